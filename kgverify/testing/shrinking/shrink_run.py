"""Shrinking a divergence of a run on a real graph: the proof slice first, then the shrinker."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.report.report import Report
from kgverify.testing.checking.engine_spec import COMPILED, EngineSpec, make_pipeline
from kgverify.testing.checking.failure import sign
from kgverify.testing.checking.pipelines import MakePipeline
from kgverify.testing.problems.problem import SHORTEST, PolicySpec, Problem
from kgverify.testing.reproducers.reproducer import Reproducer, reproducer_of_shrunk
from kgverify.testing.shrinking.held_ids import cut_with_ids
from kgverify.testing.shrinking.oracle import Oracle, OutOfBudget
from kgverify.testing.shrinking.proof_slice import Slicer
from kgverify.testing.shrinking.shrink import MAX_SECONDS, Progress, Shrunk, shrink_with
from kgverify.verification.verify import Verification

POLICIES: Final = (SHORTEST, *(PolicySpec("two_tower", seed=seed) for seed in range(4)))
"""A problem has no weights of its own: these stand for whatever policy a run had, the run's kind first."""

MOST_SEEDS_ALONE: Final = 2
"""Seeds of random weights that are tried where attempts cannot share a run."""
MAX_RUN_CALLS: Final = 100
"""Runs of the engine under test that shrinking a divergence on a graph may take unless it is told otherwise."""


class NoSlice(UserError):
    """No part of the graph was found that diverges as the run does."""


@dataclass(frozen=True, kw_only=True)
class ShrunkRun:
    """What shrinking a divergence came to.

    graph_facts, graph_rules: of the graph; sliced: the problem that the shrinker began with
    """

    shrunk: Shrunk
    sliced: Problem
    graph_facts: int
    graph_rules: int

    @property
    def removed(self) -> float:
        """The part of the graph's facts that the slice had not, 0 to 1."""
        return 1 - len(self.sliced.facts) / max(1, self.graph_facts)


def shrink_divergence(
    verification: Verification,
    graph: KnowledgeGraph,
    maker: MakePipeline,
    number: int = 1,
    *,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> ShrunkRun:
    """A minimal problem that diverges as the divergence of a run does.

    graph: that of the run; number: of the divergence in the report, from 1
    UserError if there is no such divergence, the graph is another, or no slice diverges in the same way.
    """
    report = verification.report
    if not 1 <= number <= len(report.divergences):
        num = len(report.divergences)
        raise UserError(
            f"there is no divergence {number}: the run has {num}",
            where="--divergence",
            fix=f"give 1 to {num}" if num else "shrink a run that diverges",
        )
    if graph.program.sha256 != verification.expected.header.program_sha256:
        raise UserError(
            "holds other facts or rules than the run had",
            where=f"graph {graph.name}",
            fix="run `kgverify diff --save` again, and shrink that run",
        )
    divergence = report.divergences[number - 1]
    oracle = Oracle(maker, sign(report, divergence), lockstep=report.lockstep, max_calls=max_calls, seconds=seconds)
    sliced = _find_slice(verification, graph, number, oracle)
    if progress is not None:
        progress("slice", sliced, oracle.calls)
    failure = oracle.judge(sliced)
    assert failure is not None
    shrunk = shrink_with(oracle, failure, progress)
    return ShrunkRun(shrunk=shrunk, sliced=sliced, graph_facts=len(graph.train), graph_rules=len(graph.rules))


def graph_of(report: Report) -> KnowledgeGraph:
    """The graph of a saved run, loaded again as its command did. UserError if it is not found."""
    words = shlex.split(report.command)
    given: dict[str, str] = {}
    for i, word in enumerate(words):
        for option in ("--graph", "--rules"):
            if word == option and i + 1 < len(words):
                given[option] = words[i + 1]
            elif word.startswith(f"{option}="):
                given[option] = word.removeprefix(f"{option}=")
    return load_graph(given.get("--graph", report.run.graph), rules=given.get("--rules"))


def engines_of(report: Report) -> list[EngineSpec]:
    """The engine under test of a saved run, the fastest way to run it first. UserError if kgverify cannot make it."""
    info = report.environment.actual
    if info.name != COMPILED:
        raise UserError(
            f"kgverify cannot make the engine {info.name!r} again",
            where="the run's engine",
            fix="give --engine MODULE:FUNCTION, a function of (program, limits, policy) that returns it",
        )
    recorded = EngineSpec(mode=info.mode, device=info.device, faults=info.faults)
    return list(dict.fromkeys((recorded._replace(mode="eager", device="cpu"), recorded)))


def shrink_saved(
    verification: Verification,
    graph: KnowledgeGraph,
    engines: Sequence[EngineSpec],
    number: int = 1,
    *,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> tuple[ShrunkRun, EngineSpec]:
    """As `shrink_divergence`, with the first of the engines on which the divergence shows."""
    for i, engine in enumerate(engines):
        maker = make_pipeline(engine)
        try:
            shrunk = shrink_divergence(
                verification, graph, maker, number, max_calls=max_calls, seconds=seconds, progress=progress
            )
        except NoSlice:
            if i + 1 == len(engines):
                raise
        else:
            return shrunk, engine
    raise UserError("expected an engine, found none", where="shrink", fix="give an engine or more")


def make_run_reproducer(shrunk: ShrunkRun, engine: EngineSpec, report: Report) -> Reproducer:
    """The reproducer of what shrinking a run came to, with a note of where it came from."""
    notes = [
        f"from {report.command}" if report.command else f"from a run on {report.run.graph}",
        f"{shrunk.graph_facts:,} facts and {shrunk.graph_rules:,} rules cut to {len(shrunk.sliced.facts):,} and"
        f" {len(shrunk.sliced.rules):,} by the proof slice, then to {len(shrunk.shrunk.problem.facts):,} and"
        f" {len(shrunk.shrunk.problem.rules):,}; {shrunk.shrunk.calls} runs of the engine",
    ]
    return reproducer_of_shrunk(shrunk.shrunk, engine, lockstep=report.lockstep, notes=tuple(notes))


def _find_slice(verification: Verification, graph: KnowledgeGraph, number: int, oracle: Oracle) -> Problem:
    report = verification.report
    divergence = report.divergences[number - 1]
    is_plain = report.policy.name == SHORTEST.name
    # Where each attempt is a run of its own, fewer of them.
    most = MOST_SEEDS_ALONE if oracle.takes_company else len(POLICIES)
    policies = POLICIES[:1] if is_plain else (*POLICIES[1:][:most], SHORTEST)
    try:
        rounds = [Slicer(verification, graph, policy).slices(divergence) for policy in policies]
        for attempts in (attempts for attempts in zip(*rounds, strict=True)):
            for of_policy in attempts:
                found = oracle.first(of_policy, None)
                if found is None:
                    continue
                if len(found.facts) < len(graph.train):
                    return found
                return cut_with_ids(found, Slicer(verification, graph).touched(divergence), oracle)
    except OutOfBudget:
        if oracle.smallest is not None:
            return oracle.smallest
    raise NoSlice(
        f"no part of the graph was found that diverges in the same way ({oracle.signature}) in {oracle.calls} runs",
        where=f"divergence {number}",
        fix="choose another divergence of the same cause, or allow more --seconds"
        + ("" if is_plain else "; it may take the weights of the run's policy, which a problem cannot have"),
    )
