"""Arenas in which faults are planted, and the report on each fault scored against the ground truth.

An arena is a graph with sizes that make faults manifest: fewer slots than candidates, limits that are met.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from kgverify.comparison.equality import Equality
from kgverify.comparison.result import Divergence
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import Engine, Positions, ProbedEngine, StageOutputs
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Side, Stage
from kgverify.progress import Progress, no_progress
from kgverify.prover.faults.plant import find_faults
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, load_policy, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.verify import Verification, verify

from .truth import Truth, differing_ranks, find_truth


class Arena(msgspec.Struct, frozen=True, kw_only=True):
    """A small run of one graph in which faults are planted, and the number of slots of the evaluator."""

    graph: str
    name: str = "plain"
    limits: Limits = Limits()
    policy: str = "shortest"
    num_queries: int = 8
    num_corruptions: int = 8
    seed: int = 0
    slots: int = 16

    def run(self) -> Run:
        """Return the run. UserError for a graph that is not found."""
        graph = load_graph(self.graph)
        policy = SHORTEST if self.policy == "shortest" else load_policy(self.policy, graph, self.limits, self.seed)
        return Run(
            graph,
            self.limits,
            policy,
            num_queries=self.num_queries,
            num_corruptions=self.num_corruptions,
            seed=self.seed,
        )


TIGHT: Final = Limits(max_depth=5, max_atoms=3, max_resolvents=4)


def arenas_of(graph: str) -> tuple[Arena, ...]:
    """Return the arenas of a graph: with default limits, with limits that many steps meet, and with a policy of weights."""
    return (
        Arena(graph=graph),
        Arena(graph=graph, name="tight limits", limits=TIGHT, num_queries=10, num_corruptions=3, slots=5),
        Arena(graph=graph, name="weights", policy="two_tower", num_queries=4, slots=7),
    )


def sound_arenas(graphs: Sequence[str], num: int, seed: int = 0) -> Iterator[Arena]:
    """Generate configurations to try without a fault: the graphs in turn, everything else drawn from the seed."""
    rng = random.Random(seed)
    for i in range(num):
        weighted = rng.random() < 0.4
        yield Arena(
            graph=graphs[i % len(graphs)],
            name=f"configuration {i}",
            limits=Limits(
                max_depth=rng.choice((1, 2, 5, 20)),
                max_atoms=rng.choice((1, 2, 3, 6)),
                max_resolvents=rng.choice((1, 4, 30, 120)),
                exclude_query=rng.random() < 0.7,
            ),
            policy="two_tower" if weighted else "shortest",
            num_queries=rng.choice((1, 3, 6)),
            num_corruptions=rng.choice((0, 2, 6)),
            seed=rng.randrange(1000),
            slots=rng.choice((1, 3, 16, 64)),
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of planting faults in an arena.

    faults:      the faults planted; none for the unchanged evaluator
    stages, kinds: the stage and class of each fault, which the report should name
    is_manifest: whether the faults did anything, by the truth
    is_same:     whether both traces have one root digest and one ranking: the proof where nothing manifests
    num_wrong:   candidates (or ranks) wrong by the truth or in the report
    num_steps:   those for which truth and report name the same first step
    num_divergences, num_stages, num_kinds: the divergences of the report, those with a planted stage, and those also with
                 its class
    found:       (stage, class) of the report's causes, largest first
    """

    graph: str
    arena: str
    faults: tuple[str, ...]
    stages: tuple[str, ...]
    kinds: tuple[str, ...]
    verdict: str
    is_manifest: bool
    is_same: bool
    num_wrong: int
    num_steps: int
    num_divergences: int
    num_stages: int
    num_kinds: int
    found: tuple[tuple[str, str], ...]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """The result of lockstep for two faults at once.

    is_visible: whether taking either away changes anything that the evaluator does
    is_listed:  whether both are among the causes, with stage and class
    found:      (stage, class) of the report's causes, largest first
    """

    graph: str
    arena: str
    faults: tuple[str, str]
    is_visible: bool
    is_listed: bool
    found: tuple[tuple[str, str], ...]


class Stand:
    """A prepared arena: its graph loaded, and the results of the reference remembered."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._run = arena.run()
        sound = reference_pipeline(self._run)
        self._expected = Pipeline(_Remembering(sound.engine), sound.draw, sound.rank)

    def verify(self, faults: Sequence[str], *, lockstep: bool = False) -> Verification:
        """Verify the evaluator with the faults against the reference."""
        return verify(
            self._run,
            self._expected,
            self._judged(faults),
            equality=Equality(determinism=False, minimum={}, lockstep=lockstep),
        )

    def _judged(self, faults: Sequence[str]) -> Pipeline:
        return evaluator_pipeline(self._run, faults=faults, mode="eager", device="cpu", slots=self.arena.slots)

    def try_faults(self, faults: Sequence[str]) -> Trial:
        """Plant the faults, and compare the report with the ground truth."""
        truth = find_truth(self._run, faults, slots=self.arena.slots)
        return judge(self.arena, faults, truth, self.verify(faults))

    def try_pair(self, faults: tuple[str, str]) -> Pair:
        """Plant two faults and look for both among the causes of lockstep."""
        together, *alone = (self._do(names) for names in (faults, faults[:1], faults[1:]))
        found = _causes_of(self.verify(faults, lockstep=True))
        wanted = {(fault.stage.value, fault.expected_kind.value) for fault in find_faults(faults)}
        return Pair(
            graph=self.arena.graph,
            arena=self.arena.name,
            faults=faults,
            is_visible=together not in alone,
            is_listed=wanted <= set(found),
            found=found,
        )

    def _do(self, faults: Sequence[str]) -> bytes:
        """Return the bytes of everything that the evaluator with the faults computes, ranks included."""
        run, judged = self._run, self._judged(faults)
        columns = judged.engine.prove(judged.draw_for(run))
        ranks = judged.rank_finite(run, columns.candidates) or ()
        every = (*columns.candidates, *columns.steps, *columns.resolvents, *ranks)
        return b"".join(np.ascontiguousarray(column).tobytes() for column in every)


def judge(arena: Arena, names: Sequence[str], truth: Truth, verification: Verification) -> Trial:
    """Compare the report with the ground truth."""
    faults = find_faults(names)
    report = verification.report
    wanted, found = _wrong_by_truth(truth), dict(map(_locate, report.divergences))
    planted = {fault.stage.value for fault in faults}
    kinds = {(fault.stage.value, fault.expected_kind.value) for fault in faults}
    return Trial(
        graph=arena.graph,
        arena=arena.name,
        faults=tuple(fault.name for fault in faults),
        stages=tuple(fault.stage.value for fault in faults),
        kinds=tuple(fault.expected_kind.value for fault in faults),
        verdict=report.verdict.value,
        is_manifest=truth.has_manifested,
        is_same=_is_same(verification),
        num_wrong=len(wanted.keys() | found.keys()),
        num_steps=sum(location in found and found[location] == step for location, step in wanted.items()),
        num_divergences=len(report.divergences),
        num_stages=sum(each.stage in planted for each in report.divergences),
        num_kinds=sum((each.stage, each.kind.value) in kinds for each in report.divergences),
        found=_causes_of(verification),
    )


def _causes_of(verification: Verification) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((cause.stage, cause.kind.value) for cause in verification.report.causes))


Location = tuple[str, int, int]


def _wrong_by_truth(truth: Truth) -> dict[Location, int]:
    return {
        **{("candidate", row, 0): step for row, step in truth.first_step.items()},
        **{("missing", row, 0): -1 for row in truth.missing},
        **{("extra", row, 0): -1 for row in truth.extra},
        **{("rank", query, side): -1 for query, side in truth.rankings},
    }


def _locate(divergence: Divergence) -> tuple[Location, int]:
    if divergence.stage == Stage.RANK:
        return ("rank", divergence.query, Side[divergence.side.upper()]), -1
    if divergence.field == "candidates.atom":
        return ("extra" if divergence.expected == "no such candidate" else "missing", divergence.candidate, 0), -1
    return ("candidate", divergence.candidate, 0), divergence.step


def _is_same(verification: Verification) -> bool:
    expected, actual = verification.expected, verification.actual
    if expected.root != actual.root or expected.rankings is None or actual.rankings is None:
        return False
    return not differing_ranks(expected.rankings, actual.rankings)


class _Remembering:
    """An engine that proves the same candidates once."""

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine, ProbedEngine):
            raise TypeError("expected an engine with probes")
        self._engine: ProbedEngine = engine
        self._proved: dict[bytes, Columns] = {}

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        key = b"".join(column.tobytes() for column in candidates)
        if key not in self._proved:
            self._proved[key] = self._engine.prove(candidates, progress)
        return self._proved[key]

    def step(self, positions: Positions) -> Columns:
        return self._engine.step(positions)

    def probe(self, position: Positions) -> StageOutputs:
        return self._engine.probe(position)
