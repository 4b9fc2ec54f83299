"""Known conditions: engines that are wrong under a condition that is known, before any condition of another one is stated.

They test what says when something goes wrong: the instances of a cause, the value of every feature, the search, chance, the
experiments and the words.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, Final, cast

import msgspec
import numpy as np
from judge_answers.answers import Answer, require_known
from judge_answers.pairs import blank

from kgverify import EngineInfo, Equality, KnowledgeGraph, Limits, Report, Stage, StagedEngine
from kgverify.comparison.classify import group_causes
from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.result import Comparison
from kgverify.conditions.confirm import judge
from kgverify.conditions.describe import describe_conditions
from kgverify.conditions.experiment import Tried
from kgverify.conditions.features import Feature, Scale, features_of
from kgverify.conditions.find import Found, Table, is_nearly
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import Condition, Search, chance_of
from kgverify.conditions.sentence import show
from kgverify.engines.adapters.staged import Made
from kgverify.engines.adapters.stepwise import AtomIds, Goal
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Origin
from kgverify.program.program import NamedRule
from kgverify.progress import Progress, no_progress
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import Resolvent, Taken, TakenStep
from kgverify.trace.model.columns import CandidateSet, Columns, starts_of
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import LITTLE

Verify = Callable[..., Any]
"""Verifies a pipeline against another on the same run."""

_EFFORT: Final = LITTLE._replace(explained=1)
_SIZE: Final = 13
_NUM_FACTS: Final = 25
"""The facts of each predicate."""


class _Known(StagedEngine):
    """An engine that is right, but for what its subclasses replace."""

    layout: ClassVar[dict[str, int]] = {}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._semantics = Clauses(self.program, exclude_query=self.limits.exclude_query)

    @property
    def info(self) -> EngineInfo:
        """The description of the engine, with its slots."""
        return EngineInfo("known", layout=dict(self.layout))

    def resolve(self, goal: Goal, excluded: AtomIds | None) -> Made:
        """Return what each clause leaves of a goal."""
        for clause in self.clauses_for(goal, excluded):
            left = self._semantics.resolve(goal, clause.origin_kind, clause.origin)
            if left is not None and self.uses(goal, clause.origin_kind, clause.origin):
                yield clause, left

    def uses(self, goal: Goal, kind: Origin, index: int) -> bool:
        """Return whether a clause that matches is used."""
        return True


class _LacksFacts(_Known):
    """Lacks the last facts of each predicate."""

    def uses(self, goal: Goal, kind: Origin, index: int) -> bool:
        return kind != Origin.FACT or index % _NUM_FACTS < 16


class _LacksRule(_Known):
    """Lacks a rule."""

    def uses(self, goal: Goal, kind: Origin, index: int) -> bool:
        return kind != Origin.RULE or index != 3


class _FindsMore(_Known):
    """Uses each other fact for atoms with another second argument."""

    def resolve(self, goal: Goal, excluded: AtomIds | None) -> Made:
        yield from super().resolve(goal, excluded)
        for clause in self.clauses_for(goal, excluded):
            is_near = not clause.body and clause.head[1] == goal[0][1] and 0 <= goal[0][2] != clause.head[2]
            if is_near and clause.origin % 2:
                yield clause, goal[1:]


class _DropsLast(_Known):
    """Keeps a resolvent less than max_resolvents."""

    def limit(self, resolvents: Sequence[Resolvent]) -> Taken:
        taken = super().limit(resolvents)
        if len(taken.resolvents) < self.limits.max_resolvents:
            return taken
        return taken._replace(resolvents=taken.resolvents[:-1], dropped_resolvents=taken.dropped_resolvents + 1)


class _ChoosesLast(_Known):
    """Chooses the last of equal scores."""

    def _choose(self, goal: Goal, depth: int, taken: Taken) -> TakenStep:
        step = super()._choose(goal, depth, taken)
        scores = [each.score for each in taken.resolvents]
        return step._replace(choice=len(scores) - 1 - scores[::-1].index(max(scores)))


class _CountsOne(_Known):
    """Allows an atom less than max_atoms."""

    def limit(self, resolvents: Sequence[Resolvent]) -> Taken:
        short = [each for each in resolvents if len(each.atoms) < self.limits.max_atoms]
        taken = super().limit(short)
        return taken._replace(dropped_atoms=len(resolvents) - len(short))


class _ScoresLong(_Known):
    """Scores long resolvents lower."""

    def score(self, goal: Goal, resolvents: Sequence[Resolvent]) -> Sequence[float]:
        scores = super().score(goal, resolvents)
        return [s - 0.125 * (len(each.atoms) > 2) for s, each in zip(scores, resolvents, strict=True)]


class _CountsLate(_Known):
    """Counts a dropped resolvent too many from the third step on."""

    def take_step(self, query: AtomIds, visited: Sequence[Goal]) -> Taken:
        taken = super().take_step(query, visited)
        return taken._replace(dropped_resolvents=taken.dropped_resolvents + (len(visited) > 2))


class _KeepsSlots(_Known):
    """Begins with another predicate in slots used before."""

    layout: ClassVar[dict[str, int]] = {"slots": 4, "pool": 64}

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns = super().prove(candidates, progress)
        atoms = columns.steps.goal_atoms.copy()
        first = starts_of(columns.steps.num_atoms)[starts_of(columns.candidates.num_steps)[:-1]]
        atoms[first[4:], 0] = 0
        return columns._replace(steps=columns.steps._replace(goal_atoms=atoms))


class _HandsOnOthers(_Known):
    """Continues with another predicate after the second step."""

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns = super().prove(candidates, progress)
        atoms, steps = columns.steps.goal_atoms.copy(), columns.steps
        last = starts_of(steps.num_atoms)[1:][steps.depth == 2] - 1
        atoms[last, 0] = 2
        return columns._replace(steps=steps._replace(goal_atoms=atoms))


_COMPARED: Final[tuple[type[_Known], ...]] = (
    _LacksRule,
    _FindsMore,
    _CountsOne,
    _DropsLast,
    _ScoresLong,
    _ChoosesLast,
    _CountsLate,
    _KeepsSlots,
    _HandsOnOthers,
)
_TRIED: Final[tuple[type[_Known], ...]] = (_LacksFacts, _CountsLate, _KeepsSlots)
"""The engines whose steps are compared, and those with which experiments are made."""


def _known_run() -> Run:
    x, y, z = (Variable(name) for name in "XYZ")

    def atom(name: str, first: Any, second: Any) -> NamedAtom:
        return NamedAtom(
            name, *(each if isinstance(each, Variable) else f"c{each % _SIZE:02}" for each in (first, second))
        )

    facts = [atom(name, i, factor * i + 1) for name in ("near", "far") for factor in (3, 5) for i in range(_SIZE)]
    rules = (
        NamedRule(atom("way", x, y), (atom("way", x, y),)),
        # Always too long.
        NamedRule(atom("way", x, y), tuple(atom("far", *pair) for pair in ((x, z), (z, y), (y, z), (z, x)))),
        NamedRule(atom("way", x, z), (atom("near", x, y), atom("near", y, z))),
        NamedRule(atom("way", x, z), (atom("far", x, y), atom("way", y, z))),
        NamedRule(atom("way", x, z), (atom("near", y, z), atom("far", x, y), atom("near", z, z))),
        # Of a predicate with facts.
        NamedRule(atom("near", x, y), (atom("far", y, x), atom("far", x, z))),
        # Its last argument may be anything.
        NamedRule(atom("way", x, z), (atom("far", x, y), atom("near", y, y))),
    )
    test = tuple(atom("way", i, 7 * i) for i in range(5))
    graph = KnowledgeGraph("known conditions", tuple(facts), (), test, rules)
    return Run(graph, Limits(max_depth=4, max_atoms=3, max_resolvents=4), num_queries=5, num_corruptions=3)


def known_condition_answers(verify: Verify) -> Iterator[tuple[str, Answer]]:
    """Yield what is said about the conditions of known engines, with the values of all features in their steps."""
    yield from _search_answers()
    run = _known_run()
    right = reference_pipeline(run)
    candidates = right.draw_for(run)
    expected = build_trace(run, right.engine, right.engine.prove(candidates), None)
    for made in _COMPARED:
        engine: Any = made(run.graph.program, run.limits, run.policy)
        actual = build_trace(run, engine, engine.prove(candidates), None)
        if made is _LacksRule:
            # What an engine that does not know its clauses records.
            actual = blank(actual, actual.fields - {"resolvents.origin_kind", "resolvents.origin"})
        yield f"conditions: {made.__name__}", _answer(expected, actual)
    for made in _TRIED:
        engine = made(run.graph.program, run.limits, run.policy)
        equality = Equality(determinism=False, minimum={})
        found = verify(run, right, right._replace(engine=engine), equality=equality, effort=_EFFORT).report
        yield f"conditions: {made.__name__}, by experiment", _answer_of(found, found.divergences, found.causes)


def _search_answers() -> Iterator[tuple[str, Answer]]:
    """Yield what the search finds among numbers, and the words for it."""
    scales = (Scale.COUNT, Scale.COUNT, Scale.COUNT, Scale.COUNT, Scale.NUMBER, Scale.FLAG, Scale.ID)
    i = np.arange(90.0)
    pairs = np.arange(90) // 2
    columns = i, i % 7, i * i % 11, i // 9 * 20, np.sqrt(i) - 4, i % 3 == 0, i * 5 % 6
    features = [
        Feature(
            f"number {n}",
            "" if scale is Scale.FLAG else f"unit {(n + 1) // 2}",
            frozenset(),
            scale,
            f"{'at' if n % 2 else 'with'} {{}} of number {n}",
            lambda _: 0.0,
        )
        for n, scale in enumerate(scales)
    ]
    values = np.column_stack(columns)
    a, b, c, d, e, f, g = values.T
    wrong = {
        "bounds": (d >= 80) & (a < 78),
        "an upper bound": e <= 0.25,
        "a boundary": d >= 140,
        "a value": b == 3,
        "another value": g != 2,
        "a remainder": a % 8 == 5,
        "equal numbers": a % 7 == a * a % 11,
        "three tests": (f == 1) & (d <= 120) & (c > 2),
        "either": (b == 3) | (d >= 140),
        "nearly": (d >= 80) ^ (a == 41),
        "nothing": i * 7919 % 13 < 5,
    }
    for name, rows in wrong.items():
        search = Search(features, values, rows, Stage.LIMIT)
        exact = search.find_exact()[:4]
        found = [*exact, *search.find_two()[:3]] if name in ("either", "nearly") else exact
        inexact = search.find_inexact(values, rows)
        seen = [
            SimpleNamespace(is_wrong=each, candidate=SimpleNamespace(row=n), step=None) for n, each in enumerate(rows)
        ]
        cases, table = (
            Cases(Unit.STEP, "wrong", "right", cast("Any", seen)),
            Table(tuple(features), values, rows, *[pairs] * 5),
        )
        told: list[Any] = [search.num_single]
        for each in (*found, *([] if inexact is None else [inexact])):
            inside = each.holds(values)
            counts = [int(x.sum()) for x in (rows, ~rows, inside & rows, inside & ~rows)]
            chance = chance_of(counts[0], counts[1], counts[2], counts[3], each.num_tried)
            shown = show(Stage.LIMIT, Found(cases, table, each, tuple(found), each is not inexact, chance))
            told.append((msgspec.to_builtins(shown), each.cost, is_nearly(inside, rows)))
        yield f"conditions: search for {name}", _answer_to(told)
    chances = [
        chance_of(20, right, inside, others, tried)
        for right in (0, 7, 40)
        for inside in (0, 3, 17, 20)
        for others in {0, right // 3}
        for tried in (0, 1, 500.0)
    ]
    yield "conditions: chance", _answer_to(chances)
    yield from _experiment_answers()


def _experiment_answers() -> Iterator[tuple[str, Answer]]:
    """Yield what is said about experiments that did not go as predicted."""
    predicted, unread = np.arange(8) < 4, cast("Table", None)
    for others in ([0], [5], [0, 7]):
        observed = predicted ^ np.isin(np.arange(8), others)
        instances: Any = [
            SimpleNamespace(name=name, is_wrong=wrong) for name, wrong in zip("abcdefgh", observed, strict=True)
        ]
        cases = Cases(Unit.STEP, "wrong", "right", tuple(instances))
        found = Found(cases, unread, Condition((), 0.0, 1.0), (), True, 0.0)
        judged = judge(found, Tried(cases, predicted), lambda each: cast("Any", each).name)
        yield f"conditions: experiment {others}", _answer_to(msgspec.to_builtins(judged))


def _answer_to(content: Any) -> Answer:
    digest = hashlib.sha256(json.dumps(_rounded(content)).encode()).hexdigest()[:16]
    return Answer("", 0, 0, 0, digest)


def _answer(expected: Trace, actual: Trace) -> Answer:
    """Return what is said about the conditions of a trace, with the values of all features."""
    comparer = Comparer(expected, actual, Options(explains=True))
    found = comparer.compare()
    seen: dict[int, Instance] = {}

    def see(instance: Instance) -> float:
        seen.setdefault(id(instance), instance)
        return 0.0

    # A feature that an engine declares is read for every instance.
    every = Feature("seen", "", frozenset(Unit), Scale.FLAG, "seen", see, is_declared=True)
    divergences, causes = group_causes(found.divergences, comparer.findings)
    divergences, causes = describe_conditions(causes, divergences, comparer, _EFFORT.explained, own=(every,))
    values = [[(each.name, each.value(instance)) for each in features_of(instance.unit)] for instance in seen.values()]
    return _answer_of(found, divergences, causes, values)


def _answer_of(found: Comparison | Report, *content: Any) -> Answer:
    divergences, causes, *_ = content
    # Chance is a logarithm of factorials, whose last bits depend on the machine.
    text = json.dumps(_rounded(msgspec.to_builtins(content)), sort_keys=True)
    counts = len(divergences), len(found.near_ties), len(causes)
    return Answer(found.verdict.value, *counts, hashlib.sha256(text.encode()).hexdigest()[:16])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


@cache
@without_garbage_collection()
def check_known_conditions(verify: Verify) -> None:
    """InternalError unless the conditions of known engines are described as known."""
    for name, answer in known_condition_answers(verify):
        require_known(name, answer)
