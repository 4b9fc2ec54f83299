"""`kgverify.assert_equivalent`: a check of an engine in one line."""

import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Final

from kgverify.api.verify import verify_job
from kgverify.arguments import checked
from kgverify.comparison.equality import Equality
from kgverify.comparison.exercise.exercise import Minimum
from kgverify.comparison.result import Verdict
from kgverify.conformance import (
    EXAMPLES,
    SECONDS,
    Conformance,
    NotConforming,
    check_engine,
    describe_failure,
    describe_first,
)
from kgverify.engines.load_engine import refuse_exit
from kgverify.engines.table import REFERENCE
from kgverify.errors import UserError, count_of
from kgverify.interrupts import OutOfTime, stop_after
from kgverify.laws.catalogue import find_law
from kgverify.laws.replay import find_violation
from kgverify.program.limits import DeclaredLimits, Dialect
from kgverify.report.report import Report
from kgverify.runs.engine_makers import AnyEngine, find_dialect, find_maker, name_engine, name_with_place
from kgverify.runs.job import Engines, GraphLike, Job, Proofs, Queries, Source, job_of, write_down
from kgverify.runs.run import Run
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.guard import find_refused
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import make_reproducer, write_reproducer

NOT_AS_A_WHOLE: Final = (
    "the time ended before one query was compared on the whole graph; fix: allow more, such as seconds=600 (in pytest"
    " --kgverify-seconds 600), or give a smaller graph"
)


@refuse_exit()
@checked
def assert_equivalent(
    engine: AnyEngine,
    graph: GraphLike | Run | None = None,
    *,
    reference: AnyEngine | None = None,
    examples: int = EXAMPLES,
    seed: int = 0,
    seconds: float = SECONDS,
    queries: int | Queries = 20,
    minimum: str | Minimum | None = None,
    dialect: Dialect | None = None,
) -> None:
    """Raise a NotConforming error unless an engine agrees with a reference and keeps the laws.

    In pytest the fixture `assert_equivalent` does the same, and saves what it finds.

    Args:
        engine: A class or function that makes the engine of `(program, limits, policy)`, or its name: `"module:name"` or
            `"file.py:name"`.
        graph: A graph, or a `kgverify.Run`. The neighbourhoods of the graph's test queries are checked as problems, then the
            queries on the whole graph. If not given, generated problems. Problems are shrunk if they fail.
        reference: The engine to compare with, given in the same way. If not given, kgverify's reference prover; on a graph,
            `"search"` for an engine that tells only outcomes. With another one, only laws that hold for any prover are
            checked.
        examples: Number of generated problems.
        seed: Seed of the generated problems, or of the corruptions of a graph.
        seconds: The time for everything. The text states what was examined until then.
        queries: Number of queries of the graph, or `kgverify.Queries(...)`.
        minimum: The exercise that is required, as for `kgverify.verify`: of the graph, or of all problems together.
        dialect: The dialect of the engine; if not given, its attribute `dialect`, and the default dialect if it has none.

    Raises:
        NotConforming: An AssertionError, if the engine differs or breaks a law, or if too little was exercised.
        UserError: If the engine cannot be made, or the graph cannot be read.

    Example:
        >>> import kgverify as kv
        >>> @kv.engine_of
        ... def proves_nothing(goal, clauses):
        ...     return []
        >>> kv.assert_equivalent(proves_nothing, examples=20)
        Traceback (most recent call last):
        ...
        kgverify.conformance.NotConforming: proves_nothing does not conform...
    """
    begun, own = monotonic(), find_dialect(engine) if dialect is None else dialect
    given: dict[str, Any] = {"reference": reference, "seed": seed, "minimum": minimum, "dialect": own}
    if graph is None:
        check_engine(engine, examples=examples, seconds=seconds, **given).raise_if_broken()
        return
    sides, equality, found = Engines(engine, reference), Equality(minimum=minimum), None
    if isinstance(graph, Run):
        job = job_of(graph, sides, equality)
    else:
        source, chosen = Source(Source(graph).load()), Queries.choose(queries, None, seed)
        found = check_engine(engine, graph=source.load(), problems=(), seconds=seconds / 2, **given)
        if found.verdict is Verdict.DIVERGE:
            raise NotConforming(found)
        job = Job(source, chosen, sides, Proofs(DeclaredLimits(dialect=own)), equality)
    report, text = _verify_in_time(job, seconds - (monotonic() - begun))
    verdicts = {each.verdict for each in (report, found) if each is not None}
    if report is None or Verdict.DIVERGE in verdicts or Verdict.AGREE not in verdicts:
        verb = " does not agree" if Verdict.DIVERGE in verdicts else ""
        raise NotConforming("\n".join([f"{name_with_place(engine)}{verb}: {text}", *_describe(report, found)]))
    stopped = [found.stopped] if found is not None and found.stopped else []
    if stopped := [*stopped, *[text] * ("stopped after" in text)]:
        warnings.warn(f"{name_with_place(engine)}: {'; '.join(stopped)}", stacklevel=2)


def _verify_in_time(job: Job, seconds: float) -> tuple[Report | None, str]:
    """Return the report on as many queries of a job as the time allows, None without any, and their number as text.

    Each round takes more queries than the one before. The first takes one corruption on each side of one query.
    """
    begun, run = monotonic(), job.make_run()
    most, given = len(run.queries), job.queries
    rounds = [replace(given, number=1, corruptions=1)] if run.num_corruptions else []
    rounds += [replace(given, number=min(most, 4**i)) for i in range(((max(most, 1) - 1).bit_length() + 1) // 2 + 1)]
    report, done = None, replace(given, number=0)
    with suppress(OutOfTime), stop_after(seconds):
        for chosen in rounds if seconds < inf else rounds[-1:]:
            report, done = verify_job(replace(job, source=Source(run.graph), queries=chosen)), chosen
            if report.verdict is Verdict.DIVERGE or monotonic() - begun >= seconds:
                break
    few = " with 1 corruption on each side" if run.num_corruptions and done is rounds[0] != rounds[-1] else ""
    stopped = f", stopped after {monotonic() - begun:.0f} s" if done is not rounds[-1] else ""
    return report, f"{done.number:,} of {count_of(most, 'query')} of {run.graph.name} compared{few}{stopped}"


def _describe(report: Report | None, found: Conformance | None) -> list[str]:
    """Return the first divergence of a report, or the reasons why a check decided nothing."""
    if report is not None and report.first_divergence is not None:
        return [*describe_first(report.first_divergence), "kgverify.verify(graph, engine) shows the whole report"]
    reasons = report.reasons if report is not None else (NOT_AS_A_WHOLE,)
    return [*(f"inconclusive: {each}" for each in reasons), *([] if found is None else str(found).splitlines())]


@refuse_exit()
@checked
def assert_agrees(
    engine: AnyEngine,
    problem: Problem,
    *,
    reference: AnyEngine = REFERENCE,
    lockstep: bool = True,
    laws: Sequence[str] = (),
    save: Path | str | None = None,
) -> None:
    """Raise an AssertionError unless an engine and a reference agree on one problem, step by step.

    The problem is not shrunk: Hypothesis does that, if it drew the problem. An example with a policy that the engine does
    not support is rejected there.

    Args:
        engine: A class or function that makes the engine of `(program, limits, policy)`, or its name: `"module:name"` or
            `"file.py:name"`.
        problem: What both prove, as `kgverify.parse_problem` reads it or `kgverify.strategies.problems()` draws it.
        reference: The engine to compare with, given in the same way; kgverify's reference prover if not given.
        lockstep: Compare every step from the expected goal as well.
        laws: The names of laws that the engine must keep on this problem.
        save: The file for the problem if it fails, which `kgverify replay` runs again. Hypothesis runs its smallest
            example last, so that this one remains.

    Raises:
        NotConforming: An AssertionError, if the engine differs or fails. It names the stage, both values and the problem.
        UserError: If the engine cannot be made, or does not support the problem.

    Example:
        >>> from hypothesis import Phase, given, settings
        >>> import kgverify as kv
        >>> from kgverify import strategies
        >>> @kv.engine_of
        ... def proves_nothing(goal, clauses):
        ...     return []
        >>> @given(strategies.problems(policies=["shortest"]))
        ... @settings(deadline=None, database=None, derandomize=True, phases=[Phase.generate])
        ... def test_agrees(problem):
        ...     kv.assert_agrees(proves_nothing, problem)
        >>> try:
        ...     test_agrees()
        ... except AssertionError as error:
        ...     print(str(error).splitlines()[0])
        proves_nothing (...) does not agree
    """
    make, make_expected = find_maker(engine, "engine"), find_maker(reference, "reference")
    if refused := find_refused((make, make_expected), [problem]):
        hypothesis = sys.modules.get("hypothesis")
        if hypothesis is not None and hypothesis.currently_in_test_context():
            hypothesis.reject()
        raise UserError(
            f"refused this problem: {refused[0]}",
            where=name_engine(engine),
            fix="give another problem, such as one drawn by strategies.problems(policies=['shortest'])",
        )
    for name in laws:
        if (violation := find_violation(problem, find_law(name), make)) is not None:
            raise NotConforming(f"{name_with_place(engine)} does not conform\n{violation}")
    failure = Checker(make, make_expected, lockstep).judge(problem)
    if failure is not None:
        if save is not None:
            sides = [write_down(each, default=name_engine(each)) for each in (engine, reference)]
            write_reproducer(make_reproducer(failure, sides[0], reference=sides[1], lockstep=lockstep), Path(save))
        raise NotConforming("\n".join([f"{name_with_place(engine)} does not agree", *describe_failure(failure)]))
