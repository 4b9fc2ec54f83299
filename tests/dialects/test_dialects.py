"""Correct engines of other dialects are accepted, wrong ones found, and everything keeps the dialect."""

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from invoked_commands import invoke
from second_engine import SecondEngine, engine_of_dialect, make_prover

import kgverify as kv
from kgverify import Limits, Problem, strategies
from kgverify.dialects import Dialect, write_dialect
from kgverify.laws import LAWS, draw_problems, render_reproducer
from kgverify.program.limits import FILTERS, OURS, VALUES
from kgverify.runs.engine_makers import EngineSpec, as_maker, find_dialect, find_maker
from kgverify.testing.campaigns.campaign import Campaign, run_campaign
from kgverify.testing.checking.check import Checker
from kgverify.testing.problems.decode import SHAPES, SIZE, add_switch, decode_problem, list_scope, put_in_dialect
from kgverify.testing.problems.merge import merge
from kgverify.testing.reproducers.text_format import Reproducer, parse_reproducer
from kgverify.testing.shrinking.shrink import shrink

BATCHED = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    stopping="where_no_terminal",
)
ONE_PASS = Dialect(unification="one_pass")
NOT_IN_STEPS = ("unproved", "ties", "exempts_terminal")
SECOND = EngineSpec("second_engine:SecondEngine")


class Declares(SecondEngine):
    dialect = BATCHED


def test_a_correct_engine_of_another_dialect_conforms():
    found = kv.check_engine(SecondEngine, dialect=BATCHED, examples=16)
    assert found.is_conforming, str(found)
    assert "dialect unification one_pass, " in str(found)
    assert found.left_out["complete-step"] == "clauses match or are ordered otherwise"
    assert "laws not checked, since stopping is offered beside resolvents: terminal-alone" in str(found)
    assert {"clause-order", "log-probability", "sound"} < set(found.laws)
    assert set(found.laws) | set(found.left_out) == set(LAWS)


def test_a_law_that_does_not_hold_is_left_out_even_if_it_is_asked_for():
    found = kv.check_engine(SecondEngine, dialect=BATCHED, examples=8, laws=[LAWS["complete-step"], LAWS["sound"]])
    assert (found.laws, list(found.left_out)) == (("sound",), ["complete-step"])


def test_an_engine_asks_for_its_dialect():
    assert find_dialect(Declares) == BATCHED
    assert find_dialect("reference") == find_dialect(SecondEngine) == find_dialect(EngineSpec("compiled")) == OURS
    found = kv.check_engine(Declares, examples=8)
    assert (found.dialect, found.is_conforming) == (BATCHED, True)
    kv.assert_equivalent(Declares, "countries", queries=kv.Queries(1, corruptions=2))


def test_a_shrunk_problem_keeps_its_dialect_and_the_difference():
    problems = islice(draw_problems(3, 0, ONE_PASS), 64)
    complete = as_maker(engine_of_dialect(OURS))
    failure = next(filter(None, (Checker(complete).judge(problem) for problem in problems)))
    shrunk = shrink(failure, Checker(complete)).failure
    assert shrunk.problem.size <= 4
    assert shrunk.problem.limits.dialect == ONE_PASS
    made = Reproducer(problem=shrunk.problem, signature=shrunk.signature)
    again = parse_reproducer(render_reproducer(made)).problem
    assert again.limits == shrunk.problem.limits
    assert Checker(complete).judge(again) is not None
    assert Checker(as_maker(SecondEngine)).judge(again) is None


def test_a_reproducer_names_the_switches_that_differ():
    problem = put_in_dialect(decode_problem(bytes(SIZE)), Dialect(filters=("close", "prune"), is_reversed=True))
    made = Reproducer(problem=problem, signature=judge_signature())
    text = render_reproducer(made)
    assert "\ndialect: is_reversed yes, filters close prune\n" in text
    assert parse_reproducer(text).problem == problem
    none = text.replace("filters close prune", "filters none")
    assert parse_reproducer(none).problem.limits.dialect.filters == ()
    for wrong, message in (("memory sets", "memory is 'sets'"), ("memories set", "unknown 'memories'")):
        with pytest.raises(kv.UserError, match=message):
            parse_reproducer(text.replace("is_reversed yes", wrong))
    plain = replace(made, problem=put_in_dialect(problem, OURS))
    assert "dialect" not in render_reproducer(plain)


def judge_signature():
    from kgverify.testing.checking.failure import Signature

    return Signature("resolve", "resolvents", "missing")


@pytest.mark.deep
def test_a_campaign_tries_problems_of_its_dialect_and_resumes_in_it(tmp_path):
    campaign = Campaign(corpus=tmp_path, engine=SECOND, dialect=BATCHED, examples=16)
    result = run_campaign(campaign)
    assert (result.is_passed, result.dialect) == (True, BATCHED), result
    assert run_campaign(campaign).num_resumed == 16
    wrong = run_campaign(replace(campaign, dialect=ONE_PASS, engine=EngineSpec("test_dialects:judged_complete")))
    assert (wrong.num_resumed, wrong.is_passed) == (0, False)
    (first, *_) = wrong.new
    assert kv.replay(first.file, trust=True).reproducer.problem.limits.dialect == ONE_PASS


def judged_complete(program, limits, policy):
    return SecondEngine(program, limits, policy, dialect=OURS)


@pytest.mark.deep
def test_the_command_fuzzes_in_the_dialect_of_a_file(tmp_path):
    write_dialect(BATCHED, tmp_path / "batched.toml")
    there = ["--dialect", str(tmp_path / "batched.toml")]
    common = ["fuzz", "--engine", "second_engine:SecondEngine", "--examples", "8", "--jobs", "1"]
    done = invoke([*common, *there, "--corpus", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "   dialect     unification one_pass, " in done.output
    done = invoke(["fuzz", "--examples", "8", *there, "--jobs", "1", "--corpus", str(tmp_path / "b")])
    assert done.exit_code == 2, done.output
    assert "the compiled evaluator supports the default dialect alone" in done.stderr


def test_a_scope_is_compared_in_a_dialect():
    problems = list_scope("tiny", ONE_PASS)
    assert {problem.limits.dialect for problem in problems} == {ONE_PASS}
    failures, exercise = Checker(find_maker(SECOND)).check(problems[::400])
    assert not failures
    assert exercise.proved


@pytest.mark.deep
def test_every_dialect_can_be_drawn_and_the_default_one_is_simplest():
    @settings(max_examples=80, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategies.dialects())
    def collect(dialect):
        seen.update((name, getattr(dialect, name)) for name in VALUES)
        orders.add(dialect.filters)

    seen, orders = set(), set()
    collect()
    assert seen == {(name, value) for name, values in VALUES.items() for value in values}
    assert len(orders) > 8
    assert {name for order in orders for name in order} == set(FILTERS)
    assert find(strategies.dialects(), lambda dialect: dialect.memory == "set") == Dialect(memory="set")
    assert find(strategies.limits(BATCHED), lambda limits: True).dialect == BATCHED


def offers(problem: Problem, dialect: Dialect) -> list[object]:
    program, limits = merge([problem]).graph.program, problem.limits
    prover = make_prover(program, limits, dialect)
    queries = (*problem.queries, *problem.unranked)
    return [
        (move.offers, move.dropped_atoms, move.dropped_resolvents, move.depth, move.outcome)
        for query in queries
        for move in prover.prove(tuple(program.symbols.encode(query)))
    ]


def test_the_generator_has_a_shape_that_shows_each_switch_of_steps():
    base = Problem(
        unranked=decode_problem(bytes(SIZE)).unranked, limits=Limits(max_depth=6, max_atoms=3, max_resolvents=3)
    )
    problems = [add_switch(base, number, choice) for number in range(len(SHAPES)) for choice in (0, 2, 5, 6)]
    others = [Dialect(**{name: v}) for name, values in VALUES.items() for v in values if name not in NOT_IN_STEPS]
    others += [Dialect(filters=tuple(each for each in OURS.filters if each != name)) for name in OURS.filters]
    others += [
        Dialect(filters=("revisit", "prune", "close", "max_atoms", "max_resolvents")),
        Dialect(filters=("prune", "revisit", "max_atoms", "close", "max_resolvents")),
        Dialect(filters=("prune", "revisit", "max_resolvents", "close", "max_atoms")),
        Dialect(filters=(*OURS.filters, "duplicates")),
    ]
    expected = [offers(problem, OURS) for problem in problems]
    for dialect in others:
        is_ours = dialect == OURS or dialect.exclusion == "positives_only"
        assert is_ours or any(one != offers(each, dialect) for one, each in zip(expected, problems, strict=True)), (
            dialect
        )
