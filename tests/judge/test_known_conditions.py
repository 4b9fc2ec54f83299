"""Engines that are wrong under a known condition: the stage, the class, and the sentence that states the condition."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

import kgverify as kv
from kgverify.engines.adapters.staged import Made
from kgverify.engines.adapters.stepwise import AtomIds, Goal
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Origin
from kgverify.program.program import NamedRule
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import Clauses
from kgverify.step.plain_step import Resolvent, Taken, TakenStep
from kgverify.trace.model.columns import CandidateSet, Columns, starts_of

SIZE = 13
NUM_FACTS = 25
"""The facts of each predicate."""


class Right(kv.StagedEngine):
    layout: ClassVar[dict[str, int]] = {}

    def __init__(self, program: Any, limits: kv.Limits, policy: Any) -> None:
        super().__init__(program, limits, policy)
        self._semantics = Clauses(self.program, exclude_query=self.limits.exclude_query)

    @property
    def info(self) -> kv.EngineInfo:
        return kv.EngineInfo("known", layout=dict(self.layout))

    def resolve(self, goal: Goal, excluded: AtomIds | None) -> Made:
        for clause in self.clauses_for(goal, excluded):
            left = self._semantics.resolve(goal, clause.origin_kind, clause.origin)
            if left is not None and self.uses(clause.origin_kind, clause.origin):
                yield clause, left

    def uses(self, kind: Origin, index: int) -> bool:
        return True


class LacksTheLastFacts(Right):
    def uses(self, kind: Origin, index: int) -> bool:
        return kind != Origin.FACT or index % NUM_FACTS < 16


class LacksARule(Right):
    def uses(self, kind: Origin, index: int) -> bool:
        return kind != Origin.RULE or index != 3


class UsesOddFactsForOtherArguments(Right):
    def resolve(self, goal: Goal, excluded: AtomIds | None) -> Made:
        yield from super().resolve(goal, excluded)
        for clause in self.clauses_for(goal, excluded):
            is_near = not clause.body and clause.head[1] == goal[0][1] and 0 <= goal[0][2] != clause.head[2]
            if is_near and clause.origin % 2:
                yield clause, goal[1:]


class KeepsAResolventLess(Right):
    def limit(self, resolvents: Sequence[Resolvent]) -> Taken:
        taken = super().limit(resolvents)
        if len(taken.resolvents) < self.limits.max_resolvents:
            return taken
        return taken._replace(resolvents=taken.resolvents[:-1], dropped_resolvents=taken.dropped_resolvents + 1)


class ChoosesTheLastOfEqualScores(Right):
    def _choose(self, goal: Goal, depth: int, taken: Taken) -> TakenStep:
        step = super()._choose(goal, depth, taken)
        scores = [each.score for each in taken.resolvents]
        return step._replace(choice=len(scores) - 1 - scores[::-1].index(max(scores)))


class AllowsAnAtomLess(Right):
    def limit(self, resolvents: Sequence[Resolvent]) -> Taken:
        short = [each for each in resolvents if len(each.atoms) < self.limits.max_atoms]
        return super().limit(short)._replace(dropped_atoms=len(resolvents) - len(short))


class ScoresLongResolventsLower(Right):
    def score(self, goal: Goal, resolvents: Sequence[Resolvent]) -> Sequence[float]:
        scores = super().score(goal, resolvents)
        return [s - 0.125 * (len(each.atoms) > 2) for s, each in zip(scores, resolvents, strict=True)]


class CountsTooManyFromTheThirdStepOn(Right):
    def take_step(self, query: AtomIds, visited: Sequence[Goal]) -> Taken:
        taken = super().take_step(query, visited)
        return taken._replace(dropped_resolvents=taken.dropped_resolvents + (len(visited) > 2))


class BeginsOtherwiseInUsedSlots(Right):
    layout: ClassVar[dict[str, int]] = {"slots": 4, "pool": 64}

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        columns = super().prove(candidates, progress)
        atoms = columns.steps.goal_atoms.copy()
        first = starts_of(columns.steps.num_atoms)[starts_of(columns.candidates.num_steps)[:-1]]
        atoms[first[4:], 0] = 0
        return columns._replace(steps=columns.steps._replace(goal_atoms=atoms))


def make_graph() -> kv.KnowledgeGraph:
    x, y, z = (Variable(name) for name in "XYZ")

    def atom(name: str, first: Any, second: Any) -> NamedAtom:
        terms = (each if isinstance(each, Variable) else f"c{each % SIZE:02}" for each in (first, second))
        return NamedAtom(name, *terms)

    facts = [atom(name, i, factor * i + 1) for name in ("near", "far") for factor in (3, 5) for i in range(SIZE)]
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
    return kv.KnowledgeGraph(
        "known conditions", tuple(facts), (), tuple(atom("way", i, 7 * i) for i in range(5)), rules
    )


STATED = {
    LacksTheLastFacts: (
        "match_facts missing",
        "the facts in the last block of 16 of their predicate's segment, which is not full are missing",
    ),
    LacksARule: ("match_rules missing", "the rules with the index 3 (from 0) are missing"),
    UsesOddFactsForOtherArguments: (
        "match_facts extra",
        "the facts that match the selected atom but for the second argument and whose index is odd are extra",
    ),
    KeepsAResolventLess: (
        "limit limit",
        "the resolvents on the last place below max_resolvents are dropped wrongly",
    ),
    ChoosesTheLastOfEqualScores: (
        "choose tie",
        "the steps with a gap of 0 between the two highest scores are wrong",
    ),
    AllowsAnAtomLess: (
        "limit limit",
        "the resolvents of max_atoms atoms and of steps that go on to another goal are dropped wrongly",
    ),
    ScoresLongResolventsLower: ("score number", "the resolvents of max_atoms atoms are scored wrongly"),
    CountsTooManyFromTheThirdStepOn: ("limit limit", "the steps with at most 1 step left to max_depth are wrong"),
    BeginsOtherwiseInUsedSlots: ("recycle substituted", "the candidates in slots used before are wrong"),
}


@pytest.mark.parametrize("engine", STATED, ids=lambda engine: engine.__name__)
def test_the_condition_under_which_an_engine_is_wrong_is_stated_and_confirmed(engine: type[Right]):
    report = kv.verify(
        make_graph(),
        engine,
        queries=5,
        corruptions=3,
        limits=kv.Limits(max_depth=4, max_atoms=3, max_resolvents=4),
        equality=kv.Equality(determinism=False, minimum={}),
    )
    cause = report.causes[0]
    assert (f"{cause.stage} {cause.kind}", cause.condition.partition(":")[0]) == (
        STATED[engine][0],
        f"in this run, {STATED[engine][1]}",
    )
    assert cause.when is not None
    assert (cause.when.wrong_inside, cause.when.right_inside) == (cause.when.num_wrong, 0)
    assert cause.when.num_wrong > 10
    assert cause.when.experiment is not None
    assert cause.when.experiment.verdict == "confirmed"
