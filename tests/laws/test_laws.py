"""The laws: no false alarm on engines without a fault, an alarm on engines with one, in readable reports."""

from itertools import islice, permutations, product
from typing import get_args

import numpy as np
import pytest
from fault_search import find_breakers
from problem_text import problem_of

import kgreference
from kgverify import KnowledgeGraph, Limits, PolicySpec, UserError
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.laws import LAWS, check_laws, compiled_maker, draw_problems, find_law
from kgverify.laws.statements.clause_laws import Model
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.engine_makers import as_maker

EVERY, OURS = list(LAWS.values()), Dialect()
VALUES = {
    name: get_args(kind) or (False, True)
    for name, kind in Dialect.__annotations__.items()
    if name not in ("filters", "search", "merge", "aggregate")
}

CAUGHT_BY = {
    "rule-cap": "rule-order",
    "fact-cap": "crowded-predicate",
    "offset-renaming": "canonical",
    "no-revisit-check": "no-visited-goal",
    "scatter-collision": "sound",
    "true-not-alone": "fact-proves",
    "max-atoms-off-by-one": "limits",
    "bf16-scores": "score-formula",
    "last-argmax": "first-highest",
    "max-depth-off-by-one": "outcome",
    "sticky-outcome": "slots",
    "chunk-boundary-dropped": "reported-once",
    "stream-per-chunk": "draw-by-query",
    "known-triples": "filtered-draw",
    "optimistic-ties": "ranks",
}
QUICK = ("fact-cap", "last-argmax", "known-triples")


@pytest.mark.deep
def test_no_law_is_broken_by_an_engine_without_a_fault():
    violations = check_laws(compiled_maker(), list(islice(draw_problems(7), 16)), EVERY, most=1)
    assert [str(each) for each in violations] == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [pytest.param(*each, marks=pytest.mark.deep if each[0] not in QUICK else ()) for each in CAUGHT_BY.items()],
)
def test_a_fault_breaks_its_law(fault, law):
    assert law in find_breakers(compiled_maker(faults=[fault]), [find_law(law)], most_problems=960)


def test_a_violation_names_the_problem_alone():
    law = find_law("terminal-alone")
    violations = law.check(compiled_maker(faults=["dead-end-open"]), list(islice(draw_problems(0), 32)), most=2)
    assert len(violations) == 2
    for each in violations:
        assert each.group == (each.problem,)
        assert str(each).startswith("law broken: terminal-alone (close")
        assert str(each.problem).splitlines()[0] in str(each)


def test_a_violation_of_a_common_run_names_how_many_other_problems_it_has():
    law, problems = find_law("terminal-alone"), list(islice(draw_problems(0), 32))
    violations = check_laws(compiled_maker(faults=["dead-end-open"]), problems, [law], confirms=False)
    together = [each for each in violations if len(each.group) > 1]
    assert together
    for each in together:
        num = len(each.group) - 1
        assert f"   only in one run with {num} other problem{'s' * (num > 1)}\n" in str(each)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("query-matched", "match_facts"),
        ("rest-not-substituted", "resolve"),
        ("query-pruned", "prune"),
        ("truncated-goals", "limit"),
    ],
)
def test_a_resolvent_that_its_clause_does_not_make_names_the_stage(fault, stage):
    problems = list(islice(draw_problems(0), 192))
    found = find_law("made-by-clause").check(compiled_maker(faults=[fault]), problems, most=1)
    assert [each.stage for each in found] == [stage]


def test_an_exception_is_reported_for_the_problem_that_causes_it():
    def make(run, sizes):
        if any(name.endswith("poison") for name in run.graph.program.symbols.constants):
            raise ZeroDivisionError("poison")
        return compiled_maker()(run, sizes)

    problems = list(islice(draw_problems(0), 6))
    poisoned = problem_of("! p(a, poison)", limits=problems[0].limits)
    (violation,) = check_laws(make, [*problems, poisoned], [find_law("outcome")])
    assert (violation.index, violation.problem, violation.field) == (6, poisoned, "exception")
    assert violation.actual == "ZeroDivisionError: poison"


def test_an_unknown_law_is_the_users_mistake():
    with pytest.raises(UserError, match="did you mean 'sound'"):
        find_law("sounds")


def test_every_law_holds_in_our_dialect_and_some_are_left_out_of_others():
    assert all(law.holds_in(OURS) for law in EVERY)
    reasons = {law.name: law.explain_absence(Dialect(skips_unary=True)) for law in EVERY}
    assert {name for name, reason in reasons.items() if reason} == {"crowded-predicate", "goal-is-choice", "outcome"}
    assert reasons["outcome"] == "the depth does not count steps with one resolvent"
    of_any = {law.name for law in EVERY if law.holds_in(None)}
    assert {"alone", "renaming", "reported-once"} < of_any
    assert find_law("sound").explain_absence(None) == "the semantics of the reference are unknown"


def test_each_presumption_fails_in_some_dialect():
    dialects = [
        *(Dialect(**{name: each}) for name, values in VALUES.items() for each in values),
        *(Dialect(filters=each) for each in permutations(OURS.filters)),
        Dialect(filters=()),
        Dialect(memory="none"),
        Dialect(filters=("revisit", "close", "max_atoms", "max_resolvents"), long_resolvents="truncate"),
    ]
    for presumption in {each for law in EVERY for each in law.presumes or ()}:
        assert presumption.holds_in(OURS)
        assert not all(map(presumption.holds_in, dialects)), presumption.reason


def test_the_model_is_the_references():
    num_atoms = 0
    for problem in islice(draw_problems(3), 80):
        program = KnowledgeGraph("drawn", train=problem.facts, test=problem.queries, rules=problem.rules).program
        facts = [tuple(fact) for fact in program.facts.tolist()]
        rules = [kgreference.Rule(tuple(rule.clause_head), tuple(map(tuple, rule.body))) for rule in program.rules]
        numbers = range(len(program.symbols.constants))
        if len(numbers) > 12:
            continue
        model = Model(facts, rules, numbers)
        atoms = product(range(len(program.symbols.predicates)), numbers, numbers)
        names = program.symbols.predicates, program.symbols.constants
        expected = kgreference.least_model(kgreference.Program(*names, facts, rules))
        assert {atom for atom in atoms if model.has_instance(atom)} == set(expected)
        num_atoms += len(expected)
    assert num_atoms > 1000


def test_laws_judge_two_tower_too():
    limits = Limits(max_depth=4, max_atoms=3, max_resolvents=3)
    problem = problem_of(
        "; ".join(f"p(a, c{i})" for i in range(5)) + "; q(X, Z) <- p(X, Y), q(Y, Z); ! q(a, c1)",
        limits=limits,
        policy=PolicySpec("two_tower", seed=3),
    )
    assert check_laws(compiled_maker(), [problem], EVERY) == []
    broken = check_laws(compiled_maker(faults=["stale-weights"]), [problem], [find_law("score-formula")])
    assert [each.stage for each in broken] == ["score"]


def test_a_draw_with_one_corruption_twice_in_place_of_another_breaks_its_law():
    class Repeats(ReferenceEngine):
        def draw(self, *arguments):
            drawn = draw_candidates(*arguments)
            is_last = np.append((drawn.side[1:] != drawn.side[:-1]) | (drawn.query[1:] != drawn.query[:-1]), True)
            return drawn.take(np.arange(len(is_last)) - is_last)

    problem = problem_of("p(a, b); p(c, d); p(e, f); ! p(a, d)", num_corruptions=3)
    for engine, num in ((ReferenceEngine, 0), (Repeats, 1)):
        found = check_laws(as_maker(engine), [problem], [find_law("filtered-draw")])
        assert [each.expected for each in found] == ["each corruption once, in the order of ids"] * num


def test_a_right_derivation_is_limited_if_it_has_too_many_resolvents():
    problem = problem_of(
        "p(a, b); p(a, c); p(b, a); q(X, Z) <- p(X, Y), q(Y, Z); ? q(a, X)", limits=Limits(max_resolvents=1)
    )
    assert check_laws(as_maker(ReferenceEngine), [problem], [find_law("limited-mark")]) == []
