"""Correct engines of other dialects are accepted, wrong ones found, and everything keeps the dialect."""

from itertools import islice
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from second_engine import SecondEngine, engine_of_dialect

import kgreference
import kgverify as kv
from kgverify import FuzzOptions, strategies
from kgverify.dialects import Dialect
from kgverify.laws import LAWS, draw_problems

BATCHED = Dialect(
    unification="one_pass",
    filters=("prune", "close", "max_resolvents", "revisit", "max_atoms"),
    memory="set",
    stopping="where_no_terminal",
)
OURS, ONE_PASS = Dialect(), Dialect(unification="one_pass")
VALUES = {
    name: get_args(kind) or (False, True)
    for name, kind in Dialect.__annotations__.items()
    if name not in ("filters", "search", "merge", "aggregate")
}
SECOND = "second_engine:SecondEngine"


class Declares(SecondEngine):
    dialect = BATCHED


def unifies_completely(program, limits, policy):
    return SecondEngine(program, limits, policy, dialect=OURS)


def test_a_correct_engine_of_another_dialect_conforms():
    found = kv.check_engine(SecondEngine, dialect=BATCHED, examples=16)
    assert found.is_conforming, str(found)
    assert "dialect unification one_pass, " in str(found)
    assert found.left_out["complete-step"] == "clauses match or are ordered otherwise"
    assert "1 law not checked, since stopping is offered beside resolvents" in str(found)
    assert {"clause-order", "log-probability", "sound"} < set(found.laws)
    assert set(found.laws) | set(found.left_out) == set(LAWS)


def test_a_law_that_does_not_hold_is_left_out_even_if_it_is_asked_for():
    found = kv.check_engine(SecondEngine, dialect=BATCHED, examples=8, laws=[LAWS["complete-step"], LAWS["sound"]])
    assert (found.laws, list(found.left_out)) == (("sound",), ["complete-step"])


def test_an_engine_asks_for_its_dialect():
    assert kv.check_engine(SecondEngine, examples=2, laws=()).dialect == OURS
    found = kv.check_engine(Declares, examples=8)
    assert (found.dialect, found.is_conforming) == (BATCHED, True)
    kv.assert_equivalent(Declares, "countries", queries=kv.Queries(1, corruptions=2))


def test_a_campaign_finds_shrinks_and_saves_what_differs_in_its_dialect(tmp_path: Path):
    options = FuzzOptions(dialect=ONE_PASS, minimum="none")
    result = kv.fuzz("test_dialects:unifies_completely", examples=16, corpus=tmp_path, options=options)
    assert (result.is_passed, result.dialect) == (False, ONE_PASS)
    path = Path(result.divergences[0].file)
    replayed = kv.replay(path, trust=True)
    problem = replayed.reproducer.problem
    assert (replayed.is_same, problem.limits.dialect) == (True, ONE_PASS)
    assert problem.size <= 4
    assert kv.replay(path, SecondEngine).verdict is kv.Verdict.AGREE
    text = path.read_text()
    assert "\ndialect: unification one_pass\n" in text
    edited = tmp_path / "edited.kg"
    edited.write_text(text.replace("unification one_pass", "is_reversed yes, filters close prune"))
    found = kv.replay(edited, SecondEngine).reproducer.problem.limits.dialect
    assert found == Dialect(is_reversed=True, filters=("close", "prune"))
    edited.write_text(text.replace("unification one_pass", "filters none"))
    assert kv.replay(edited, SecondEngine).reproducer.problem.limits.dialect.filters == ()
    for wrong, message in (("memory sets", "memory is 'sets'"), ("memories set", "unknown 'memories'")):
        edited.write_text(text.replace("unification one_pass", wrong))
        with pytest.raises(kv.UserError, match=message):
            kv.replay(edited, SecondEngine)


@pytest.mark.deep
def test_a_campaign_resumes_only_in_its_dialect(tmp_path: Path):
    def run(dialect: Dialect, **budget: object) -> kv.CampaignResult:
        return kv.fuzz(SECOND, corpus=tmp_path, options=FuzzOptions(dialect=dialect, minimum="none"), **budget)

    assert run(BATCHED, examples=16).is_passed
    assert run(BATCHED, examples=16).num_resumed == 16
    assert run(ONE_PASS, examples=16).num_resumed == 0


@pytest.mark.deep
def test_every_dialect_can_be_drawn_and_the_default_one_is_simplest():
    @settings(max_examples=80, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategies.dialects())
    def collect(dialect):
        seen.update((name, getattr(dialect, name)) for name in VALUES)
        orders.add(dialect.filters)
        searches.add((dialect.searching.kind, dialect.merge, dialect.aggregate))

    seen, orders, searches = set(), set(), set()
    collect()
    assert seen == {(name, value) for name, values in VALUES.items() for value in values}
    assert len(orders) > 8
    assert {name for order in orders for name in order} == set(kgreference.Filter)
    assert [{*column} for column in zip(*searches, strict=True)] == [
        {"greedy", "beam", "sample", "all"},
        {"none", "max", "sum"},
        {"max", "sum", "noisy_or"},
    ]
    assert find(strategies.dialects(), lambda dialect: dialect.merge == "sum") == Dialect(search="beam(1)", merge="sum")
    assert find(strategies.dialects(), lambda dialect: dialect.memory == "set") == Dialect(memory="set")
    assert find(strategies.limits(BATCHED), lambda limits: True).dialect == BATCHED


def steps_of(problem: kv.Problem, dialect: Dialect) -> list[object]:
    queries = (*problem.queries, *problem.unranked)
    program = kv.KnowledgeGraph("drawn", train=problem.facts, test=queries, rules=problem.rules).program
    prover = engine_of_dialect(dialect)(program, problem.limits, kv.Policy("shortest")).prover
    return [
        (move.offers, move.dropped_atoms, move.dropped_resolvents, move.depth, move.outcome)
        for query in queries
        for move in prover.prove(tuple(program.symbols.encode(query)))
    ]


def test_drawn_problems_show_each_switch_of_steps():
    # Ranks alone show two switches, and only a revisited empty goal the third; positives are those of a run.
    invisible = ("unproved", "ties", "exempts_terminal")
    dialects = [Dialect(**{name: v}) for name, values in VALUES.items() for v in values if name not in invisible]
    dialects += [Dialect(filters=tuple(each for each in OURS.filters if each != name)) for name in OURS.filters]
    dialects += [
        Dialect(filters=("revisit", "prune", "close", "max_atoms", "max_resolvents")),
        Dialect(filters=("prune", "revisit", "max_atoms", "close", "max_resolvents")),
        Dialect(filters=("prune", "revisit", "max_resolvents", "close", "max_atoms")),
        Dialect(filters=(*OURS.filters, "duplicates")),
    ]
    unseen = {each for each in dialects if each != OURS and each.exclusion != "positives_only"}
    for problem in islice(draw_problems(0), 64):
        expected = steps_of(problem, OURS)
        unseen -= {dialect for dialect in unseen if steps_of(problem, dialect) != expected}
    assert not unseen
