"""The main job: two pipelines on the same run, compared step by step."""

import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify import __version__
from kgverify.diff.compare import Comparer, lockstep_columns
from kgverify.diff.rankings import compare_rankings
from kgverify.diff.result import Comparison, Level, NearTie, Verdict
from kgverify.engines.protocol import Progress, no_progress, positions_of
from kgverify.errors import UserError
from kgverify.harness.replay import replay_divergences
from kgverify.harness.run import Pipeline, Run, build_trace
from kgverify.ranking.metric import compute_metrics
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.report.report import Determinism, Environment, Metrics, Report, build_report
from kgverify.trace.columns import Columns, Rankings, select_candidates, starts_of
from kgverify.trace.reader import read_trace
from kgverify.trace.trace import Trace

Phase = Callable[[str, int], AbstractContextManager[Progress]]
"""(what begins, how many candidates it takes) -> a context that is told of each candidate finished."""


def silent_phase(title: str, total: int) -> AbstractContextManager[Progress]:
    """Report nothing."""
    return nullcontext(no_progress)


@dataclass(frozen=True, eq=False)
class Verification:
    """A report and the two traces it was made from."""

    report: Report
    expected: Trace
    actual: Trace


def verify(
    run: Run,
    expected: Pipeline,
    actual: Pipeline,
    *,
    lockstep: bool = False,
    check_determinism: bool = True,
    phase: Phase = silent_phase,
) -> Verification:
    """Run both pipelines and compare what they did.

    Free-running, each engine follows its own choices. With `lockstep`, the actual engine takes each step from the
    expected goal, so that independent faults are told from consequences; the metrics are still those of the free run.
    """
    traces, is_deterministic = [], []
    for role, pipeline in (("expected", expected), ("actual", actual)):
        trace, same = _run_pipeline(run, pipeline, f"{role}: {pipeline.engine.info.name}", check_determinism, phase)
        traces.append(trace)
        is_deterministic.append(same)
    determinism = Determinism(*is_deterministic)

    if lockstep:
        comparer = _lockstep_comparer(run, traces[0], actual, phase)
        num_steps = traces[0].columns.candidates.num_steps
        comparison = _name_candidates(comparer.compare(), np.repeat(np.arange(len(num_steps)), num_steps))
    else:
        comparer = Comparer(*traces)
        comparison = _follow_near_ties(comparer, comparer.compare(), run, actual, phase)
    with phase("replaying divergent steps", 0):
        divergences = replay_divergences(
            comparison.divergences,
            traces[0].columns,
            (expected.engine, actual.engine),
            comparer.names,
            comparer.score_tolerance,
        )
    comparison = msgspec.structs.replace(comparison, divergences=divergences)
    comparison = compare_rankings(
        comparison, traces[0], traces[1], lambda candidates: expected.rank(candidates, run.triples, RANK_TOLERANCE)
    )
    comparison = _judge_determinism(comparison, determinism)
    report = build_report(
        comparison,
        traces[0].header,
        describe_environment(*traces),
        _metrics(*traces),
        determinism,
        lockstep=lockstep,
    )
    return Verification(report, *traces)


def compare_recorded(expected: str | Path, actual: str | Path) -> Verification:
    """Compare two recorded traces; needs no engine."""
    traces = read_trace(Path(expected)), read_trace(Path(actual))
    comparison = compare_rankings(Comparer(*traces).compare(), *traces)
    report = build_report(comparison, traces[0].header, describe_environment(*traces), _metrics(*traces), Determinism())
    return Verification(report, *traces)


def describe_environment(expected: Trace, actual: Trace) -> Environment:
    """This machine, and what the traces say of the engines."""
    return Environment(
        kgverify=__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        num_cpus=os.cpu_count() or 1,
        expected=expected.header.engine,
        actual=actual.header.engine,
    )


def _run_pipeline(
    run: Run, pipeline: Pipeline, title: str, check_determinism: bool, phase: Phase
) -> tuple[Trace, bool | None]:
    candidates = pipeline.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    with phase(title, len(candidates.query)) as progress:
        columns = pipeline.engine.prove(candidates, progress)
    same = None
    if check_determinism:
        with phase(f"{title}, again", len(candidates.query)) as progress:
            same = _is_same(columns, pipeline.engine.prove(candidates, progress))
    # A log-probability that is no number has no rank; the comparison reports it.
    is_ranked = bool(np.isfinite(columns.candidates.log_probability).all())
    rankings = pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE) if is_ranked else None
    return build_trace(run, pipeline.engine, columns, rankings), same


def _is_same(first: Columns, second: Columns) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for level, other in zip(first, second, strict=True)
        for a, b in zip(level, other, strict=True)
    )


def _lockstep_comparer(run: Run, expected: Trace, actual: Pipeline, phase: Phase) -> Comparer:
    positions = positions_of(expected.columns)
    with phase("one step from each expected goal", 0):
        stepped = actual.engine.step(positions)
    columns = lockstep_columns(expected.columns)
    fields = expected.fields - {"candidates.log_probability"}
    left = replace(build_trace(run, actual.engine, columns, None), header=expected.header, fields=fields)
    right = replace(build_trace(run, actual.engine, stepped, None), fields=fields)
    return Comparer(left, right, lockstep=True)


def _follow_near_ties(
    comparer: Comparer, comparison: Comparison, run: Run, actual: Pipeline, phase: Phase
) -> Comparison:
    """After a near-tie the engines go different ways by right; go on from the expected choices, step by step."""
    if not comparison.near_ties:
        return comparison
    rows = np.array([tie.candidate for tie in comparison.near_ties])
    first_step = np.array([tie.step for tie in comparison.near_ties])
    columns = select_candidates(comparer.expected.columns, rows)
    ordinal = _ordinals(columns.candidates.num_steps)
    follows = ordinal > np.repeat(first_step, columns.candidates.num_steps)
    lock = select_candidates(lockstep_columns(columns), np.flatnonzero(follows))
    positions = positions_of(columns)
    with phase("following near-ties", 0):
        stepped = actual.engine.step(positions)
    if len(stepped.candidates.query) != len(follows):
        raise UserError(
            f"took {len(stepped.candidates.query)} steps from {len(follows)} positions",
            where=f"engine {actual.engine.info.name}",
            fix="return one candidate with one step for each position, in the order given",
        )
    stepped = select_candidates(stepped, np.flatnonzero(follows))
    fields = comparer.expected.fields - {"candidates.log_probability"}
    left = replace(build_trace(run, actual.engine, lock, None), header=comparer.expected.header, fields=fields)
    right = replace(build_trace(run, actual.engine, stepped, None), fields=fields)
    owner = np.repeat(rows, columns.candidates.num_steps)[follows]
    later = Comparer(left, right, lockstep=True).compare() if len(owner) else None
    named = _name_candidates(later, owner) if later else None
    found, further = (named.divergences, named.near_ties) if named else ((), ())
    ties = [
        msgspec.structs.replace(tie, compared_after=int((owner == tie.candidate).sum())) for tie in comparison.near_ties
    ]
    return msgspec.structs.replace(
        comparison,
        divergences=tuple(sorted([*comparison.divergences, *found], key=lambda each: (each.candidate, each.step))),
        near_ties=tuple(sorted([*ties, *further], key=_tie_order)),
        verdict=Verdict.DIVERGE if found and comparison.verdict is Verdict.AGREE else comparison.verdict,
        coverage=msgspec.structs.replace(comparison.coverage, steps_after_near_ties=len(owner)),
        level=max(
            [level for level in (comparison.level, *(each.level for each in found)) if level is not None],
            key=list(Level).index,
            default=None,
        ),
    )


def _name_candidates(comparison: Comparison, owner: NDArray[np.int64]) -> Comparison:
    """In lockstep each step is a candidate of its own; say whose step it is. owner: the candidate of each position."""

    def name(each: Any) -> Any:
        # An engine may give more steps than it was asked for.
        return msgspec.structs.replace(each, candidate=int(owner[min(each.candidate, len(owner) - 1)]))

    return msgspec.structs.replace(
        comparison,
        divergences=tuple(map(name, comparison.divergences)),
        near_ties=tuple(map(name, comparison.near_ties)),
    )


def _tie_order(tie: NearTie) -> tuple[int, int]:
    return tie.candidate, tie.step


def _ordinals(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    first = starts_of(counts)
    return np.arange(first[-1]) - np.repeat(first[:-1], counts)


def _judge_determinism(comparison: Comparison, determinism: Determinism) -> Comparison:
    """An engine that does not repeat itself cannot be judged."""
    reasons = tuple(
        f"the {role} engine is not deterministic: two runs of the same candidates differ"
        for role, same in (("expected", determinism.expected), ("actual", determinism.actual))
        if same is False
    )
    if not reasons:
        return comparison
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=(*comparison.reasons, *reasons))


def _metrics(expected: Trace, actual: Trace) -> Metrics:
    return Metrics(*(_metrics_of(trace.rankings) for trace in (expected, actual)))


def _metrics_of(rankings: Rankings | None) -> dict[str, float]:
    return {} if rankings is None or not len(rankings.query) else compute_metrics(rankings)
