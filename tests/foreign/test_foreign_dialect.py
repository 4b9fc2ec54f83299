"""The dialect of a prover that kgverify did not write, judged by the reference on every step recorded from it."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import pytest
from foreign_records import Records, Rows, needs_records, program_of, records_of

from kgreference import (
    OUR_STAGES,
    Atom,
    Dialect,
    Filter,
    Goal,
    Kind,
    Limits,
    Matches,
    Memory,
    Order,
    Outcome,
    Program,
    Resolvent,
    Rule,
    Shortest,
    Situation,
    Stages,
    Stopping,
    Unification,
    canonical,
    derive,
    find_excluded,
    take_step,
)
from kgreference import step as ours
from kgreference.terms import Triple

pytestmark = needs_records

GRAPHS = ("countries_s3", "family")

EAGER = Dialect(
    unification=Unification.ONE_PASS,
    filters=(Filter.PRUNE, Filter.CLOSE, Filter.MAX_RESOLVENTS, Filter.REVISIT, Filter.MAX_ATOMS),
    memory=Memory.SET,
    exempts_terminal=True,
    stopping=Stopping.WHERE_NO_TERMINAL,
)
EXPAND = dataclasses.replace(EAGER, filters=EAGER.filters[:3], stopping=Stopping.NEVER)
"""The part of the dialect before the environment: what the engine gives, and what the records hold."""
LIMITS = Limits(max_depth=10, max_atoms=6, max_resolvents=120)

MOST_FACTS = 50
"""The facts of a predicate that the engine `compiled_first` matches."""

End = str
Listed = list[Goal | End]


@cache
def reference_program(graph: str) -> Program:
    data = program_of(graph)
    predicates = {name: number for number, name in enumerate(data["predicates"])}
    rules = []
    for rule in data["rules"]:
        numbers: dict[str, int] = {}
        head, *body = (
            Atom(predicates[name], *(-1 - numbers.setdefault(term, len(numbers)) for term in terms))
            for name, *terms in (rule["head"], *rule["body"])
        )
        rules.append(Rule(head, tuple(body)))
    return Program(data["predicates"], data["constants"], [Atom(*fact) for fact in data["facts"]], rules)


def goal_of(graph: str, rows: Rows) -> Goal:
    start = program_of(graph)["variable_start"]
    return canonical(tuple((p, *(start - 1 - term if term >= start else term for term in terms)) for p, *terms in rows))


def listed(graph: str, successors: Sequence[Rows]) -> Listed:
    """The successors as recorded, up to the names of variables."""
    data = program_of(graph)
    ends = {((data["true"], 0, 0),): "TRUE", ((data["false"], 0, 0),): "FALSE"}
    return [ends.get(tuple(rows)) or goal_of(graph, rows) for rows in successors]


@cache
def expanded(graph: str, kind: str, dialect: Dialect = EXPAND, stages: Stages = OUR_STAGES) -> list[Listed]:
    """The resolvents that the reference gives from each recorded state."""
    records, program, queries = records_of(graph, "eager", kind), reference_program(graph), program_of(graph)["queries"]
    answers = []
    for query, state in zip(records.query, records.states, strict=True):
        goal = goal_of(graph, state)
        excluded = find_excluded(dialect, LIMITS, tuple(queries[query]), True)
        situation = Situation(dialect, program, LIMITS, Shortest(), excluded, goal, 0, frozenset())
        step = take_step(situation, stages)
        answers.append([each.kind.name if each.kind else each.atoms for each in step.after_limit])
    return answers


@pytest.mark.parametrize(
    ("graph", "kind", "num"),
    [
        ("countries_s3", "forced", 507),
        ("countries_s3", "free", 328),
        ("family", "forced", 485),
        ("family", "free", 287),
    ],
)
def test_the_reference_gives_every_recorded_step_of_the_engine(graph: str, kind: str, num: int):
    recorded = [listed(graph, each) for each in records_of(graph, "eager", kind).successors]
    assert expanded(graph, kind) == recorded
    assert len(recorded) == num


class Recorded:
    """The policy of the free runs: fewest atoms, then the least canonical form, then the first."""

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        goals = [(len(each.atoms), each.atoms, i) for i, each in enumerate(resolvents) if each.kind == Kind.GOAL]
        place = {index: float(-number) for number, (_, _, index) in enumerate(sorted(goals))}
        return [place.get(index, -float(len(resolvents))) for index in range(len(resolvents))]


class Run(NamedTuple):
    goals: list[Goal]
    chosen: list[Goal | End]
    is_proved: bool


def recorded_runs(graph: str, records: Records) -> dict[int, Run]:
    runs = {}
    for query, group in groupby(range(len(records.query)), records.query.__getitem__):
        numbers = list(group)
        lists = [listed(graph, records.successors[i]) for i in numbers]
        runs[query] = Run(
            [goal_of(graph, records.states[i]) for i in numbers],
            [
                each[records.action[i]] if records.action[i] >= 0 else "STOP"
                for each, i in zip(lists, numbers, strict=True)
            ],
            bool(records.success[numbers[-1]]),
        )
    return runs


@pytest.mark.parametrize("forgets_names", [True, False])
@pytest.mark.parametrize(("graph", "num_proved", "num_stopped"), [("countries_s3", 20, 8), ("family", 14, 32)])
def test_the_reference_makes_every_free_run_with_its_memory_and_limits(
    graph: str, num_proved: int, num_stopped: int, forgets_names: bool
):
    dialect = dataclasses.replace(EAGER, forgets_names=forgets_names)
    runs = recorded_runs(graph, records_of(graph, "eager", "free"))
    ends: Counter[str] = Counter()
    for query, expected in runs.items():
        atom = Atom(*program_of(graph)["queries"][query])
        made = derive(reference_program(graph), LIMITS, Recorded(), atom, dialect)
        chosen = [step.chosen.kind.name if step.chosen.kind else canonical(step.chosen.atoms) for step in made.steps]
        assert Run([canonical(step.goal) for step in made.steps], chosen, made.outcome == Outcome.PROVED) == expected
        ends[made.outcome.name] += 1
    assert (ends["PROVED"], ends["FAILED"]) == (num_proved, num_stopped)


def test_the_records_decide_that_visited_goals_are_remembered():
    forgetful = dataclasses.replace(EAGER, memory=Memory.NONE)
    runs = recorded_runs("countries_s3", records_of("countries_s3", "eager", "free"))
    program, queries = reference_program("countries_s3"), program_of("countries_s3")["queries"]
    made = {query: derive(program, LIMITS, Recorded(), Atom(*queries[query]), forgetful) for query in runs}
    assert any([step.goal for step in made[query].steps] != run.goals for query, run in runs.items())


def true_of(graph: str) -> tuple[int, int, int]:
    return program_of(graph)["true"], 0, 0


def difference(
    true: tuple[int, int, int], expected: Listed, actual: Listed, rows: Sequence[Rows], recorded: Sequence[Rows]
) -> str:
    """Name the difference of an engine's list from that of the reference; names of variables differ from the eager ones."""
    if actual == expected:
        return "same" if rows == recorded else "names"
    if expected == ["TRUE"]:
        return "atoms beside TRUE" if any(true in each for each in rows) else "proof lost"
    if Counter(actual) == Counter(expected):
        return "order"
    if len(actual) == len(expected) == LIMITS.max_resolvents:
        return "another subset"
    assert actual == [] or not Counter(actual) - Counter(expected)
    return "missing" if actual or expected != ["FALSE"] else "empty for FALSE"


@pytest.mark.parametrize(
    ("graph", "engine", "numbers"),
    [
        ("countries_s3", "compiled_first", {"missing": 242, "proof lost": 31}),
        ("family", "compiled_first", {"missing": 162, "proof lost": 35, "names": 116, "order": 3, "atoms beside TRUE": 1}),
        ("countries_s3", "compiled_later", {"order": 456, "names": 8}),
        ("family", "compiled_later", {"order": 272, "names": 69, "another subset": 50}),
    ],
)  # fmt: skip
def test_each_wrong_engine_differs_from_the_reference_in_the_stated_numbers(
    graph: str, engine: str, numbers: dict[str, int]
):
    rows, recorded = records_of(graph, engine).successors, records_of(graph, "eager").successors
    differences = Counter(
        difference(true_of(graph), expected, listed(graph, actual), actual, eager)
        for expected, actual, eager in zip(expanded(graph, "forced"), rows, recorded, strict=True)
    )
    assert differences.pop("same") == len(rows) - sum(numbers.values())
    assert differences == numbers


def overwrite_last(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Write every resolvent beyond the limit over the last one kept."""
    most = situation.limits.max_resolvents
    return [*resolvents[: most - 1], *resolvents[most - 1 :][-1:]]


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_reversed_dialect_and_one_replaced_stage_describe_the_later_engine(graph: str):
    dialect = dataclasses.replace(EXPAND, order=Order.FACTS_FIRST, is_reversed=True)
    recorded = [listed(graph, each) for each in records_of(graph, "compiled_later").successors]
    right = expanded(graph, "forced", dialect)
    assert sum(a != b for a, b in zip(right, recorded, strict=True)) == {"countries_s3": 0, "family": 50}[graph]
    assert expanded(graph, "forced", dialect, Stages(limit_resolvents=overwrite_last)) == recorded


def match_first_facts(situation: Situation, selected: Triple) -> Matches:
    """Match the first facts of the predicate alone."""
    matches = ours.match_facts(situation, selected)
    first = next(i for i, fact in enumerate(situation.program.facts) if fact[0] == selected[0])
    return Matches.of([row for row in zip(*matches, strict=True) if row[0] < first + MOST_FACTS])


@pytest.mark.parametrize(("graph", "malformed"), [("countries_s3", {}), ("family", {"atoms beside TRUE": 1})])
def test_facts_first_and_one_replaced_stage_describe_the_first_engine(graph: str, malformed: dict[str, int]):
    dialect = dataclasses.replace(EXPAND, order=Order.FACTS_FIRST)
    right = expanded(graph, "forced", dialect, Stages(match_facts=match_first_facts))
    others: Counter[str] = Counter()
    for expected, rows in zip(right, records_of(graph, "compiled_first").successors, strict=True):
        actual = listed(graph, rows) or ["FALSE"]
        others[difference(true_of(graph), expected, actual, rows, rows)] += 1
    assert others - Counter(same=len(right)) == malformed
