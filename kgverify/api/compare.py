"""`kgverify.compare`: a comparison of two recorded traces, or of a trace with an engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import msgspec

from kgverify.api.inputs import make_engine, make_pipeline, names_engine
from kgverify.arguments import checked
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.result import ROLES, Verdict
from kgverify.errors import UserError
from kgverify.program.limits import DeclaredLimits, declare_limits
from kgverify.progress import Progress, no_progress
from kgverify.ranking.rank_file import holds_text
from kgverify.report.report import Report
from kgverify.runs.job import Job
from kgverify.runs.retake import describe_left, prove_again, retake_steps
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification.compare_ranks import compare_ranks, redraw
from kgverify.verification.recorded import RecordedComparison, compare_recorded
from kgverify.verification.recorded_dialect import adopt_program
from kgverify.verification.save import RunTimes, locked_run, save_verification


@checked
def compare(
    expected: str | Path | TraceFile | Trace | Callable[..., Any],
    actual: str | Path | TraceFile | Trace | Callable[..., Any],
    *,
    save: str | Path | None = None,
    equality: Equality = DEFAULT_EQUALITY,
    limits: DeclaredLimits | Mapping[str, Any] | None = None,
    progress: Progress = no_progress,
    job: Job | None = None,
) -> Report:
    """Compare two recorded traces, step by step; or judge one trace by an engine, or an engine by one trace.

    Either side may also be a file of ranks (docs/evaluating.md): the differences are described by their pattern, or
    by the rule that ranks the candidates of the other side in the same way.

    Two traces need no engine, nor torch. An engine judges a trace by a step of its own from every recorded goal, with the facts
    and rules of the trace. Choices, scores and outcomes are judged as well if the trace's policy is `shortest`. A trace judges an
    engine that proves the candidates of the trace with its facts, rules and limits.

    Args:
        expected: The trace to compare with: the path of a file or of a folder of shards, or what `kgverify.open_trace` or
            its `load` returned. Or an engine: `"reference"`, `"module:name"` or `"file.py:name"`.
        actual: The trace to judge; or an engine, beside an expected trace.
        save: A folder for copies of both traces and the report, for `kgverify show` and `kgverify report`.
        equality: What counts as equal, and the evidence that AGREE requires; `kgverify.Equality()` if not given.
        limits: The limits of the engine, such as `{"dialect": Dialect(memory="set")}`; those that are left out are the
            trace's, or the defaults. For two traces, leave it out.
        progress: A function that is called with the number of bytes compared since its last call.
        job: The graph of a trace that lacks its facts and rules, or of files of ranks, with the split and the queries that an
            engine proves; `kgverify.Job(Source(...))`.

    Returns:
        The report, as `kgverify.verify` returns it. Only traces recorded with `level="deep"` name the stage at fault from
        what the stages gave; for others it is inferred from the recorded steps.

    Raises:
        UserError: If a trace cannot be read, or is damaged.

    Example:
        >>> import kgverify as kv
        >>> _ = kv.record("countries", "reference.h5", "reference", queries=2, corruptions=5)
        >>> _ = kv.record("countries", "compiled.h5", kv.Evaluator(mode="eager"), queries=2, corruptions=5)
        >>> kv.compare("reference.h5", "compiled.h5").verdict.value
        'AGREE'
    """
    started = perf_counter()
    with locked_run(save):
        if any(isinstance(side, str | Path) and holds_text(side) for side in (expected, actual)):
            recorded = _compare_ranks(expected, actual, job, equality)
        elif names_engine(actual):
            stored, make = _load(expected), partial(make_engine, cast(Any, actual), where="ACTUAL")
            proved = prove_again(_with_program(stored, job), make, declare_limits(limits, "limits"))
            recorded = compare_recorded(stored, proved, equality=equality, progress=progress)
        elif isinstance(expected, (Path, TraceFile, Trace)) or not names_engine(expected):
            if limits is not None:
                raise UserError("two recorded traces have their own", where="limits", fix="leave them out")
            recorded = compare_recorded(cast(Any, expected), cast(Any, actual), equality=equality, progress=progress)
        else:
            recorded = _judge_by_engine(expected, _load(actual), job, equality, limits, progress)
        if save is not None:
            save_verification(recorded, Path(save), RunTimes(perf_counter() - started))
        return recorded.report.with_traces(recorded)


def _judge_by_engine(
    engine: Any,
    actual: Trace,
    job: Job | None,
    equality: Equality,
    limits: DeclaredLimits | Mapping[str, Any] | None,
    progress: Progress,
) -> RecordedComparison:
    """Compare a trace with an engine's steps from its goals. The verdict is not AGREE if the engine did not take all steps."""
    actual = _with_program(actual, job)
    make = partial(make_engine, engine, where="EXPECTED")
    reference, num_left = retake_steps(actual, make, declare_limits(limits, "limits"))
    if equality.minimum is None and "candidates.outcome" not in reference.fields & actual.fields:
        required = {name: number for name, number in equality.required.items() if name != "proved"}
        equality = replace(equality, minimum=required)
    recorded = compare_recorded(reference, actual, equality=equality, progress=progress, is_retaken=True)
    report, left = recorded.report, [describe_left(num_left)] * bool(num_left)
    if left and report.verdict is Verdict.DIVERGE:
        recorded.report = msgspec.structs.replace(report, notes=(*report.notes, *left))
    elif left:
        reasons = (*report.reasons, *left)
        recorded.report = msgspec.structs.replace(report, verdict=Verdict.INCONCLUSIVE, reasons=reasons)
    return recorded


def _with_program(trace: Trace, job: Job | None) -> Trace:
    """Return a trace with the facts and rules of a job's graph, if there is a job. UserError if it holds its own."""
    if job is None:
        return trace
    if trace.facts is not None:
        raise UserError("the trace holds its program", where="graph", fix="leave it out")
    return adopt_program(trace, job.make_run().graph)


def _compare_ranks(expected: Any, actual: Any, job: Job | None, equality: Equality) -> RecordedComparison:
    """Compare files of ranks, each with the other one, a trace, or an engine that proves the queries of the job."""
    sides: list[Any] = [expected, actual]
    run = None if job is None else job.make_run()
    for i, side in enumerate(sides):
        if names_engine(side):
            if run is None:
                raise UserError(
                    "needs the graph whose candidates the engine proves",
                    where=str(side),
                    fix="give --graph, in Python job=",
                )
            sides[i] = redraw(run, make_pipeline(side, run, where=ROLES[i]).engine)
        elif isinstance(side, TraceFile) or not (isinstance(side, Trace) or holds_text(side)):
            sides[i] = _load(side)
    graph, split = (None, "test") if run is None else (run.graph, run.split)
    return compare_ranks(sides[0], sides[1], graph, split=split, equality=equality)


def _load(trace: Any) -> Trace:
    if isinstance(trace, Trace):
        return trace
    return trace.load() if isinstance(trace, TraceFile) else read_trace(trace)
