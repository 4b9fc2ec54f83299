"""`kgverify.shrink`: reduce a divergence of a run to a reproducer that fits on a screen."""

from pathlib import Path

from kgverify.arguments import checked
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.report.report import Report
from kgverify.runs.engine_makers import require_trust
from kgverify.runs.job import EngineLike, GraphLike, load_run_graph, read_job, write_down
from kgverify.testing.shrinking.shrink import DEFAULT_BUDGET, MAX_SECONDS, Budget, Progress
from kgverify.testing.shrinking.shrink_run import MAX_RUN_CALLS, ShrunkRun, shrink_run
from kgverify.verification.save import REPORT, read_run
from kgverify.verification.verify import Verification


@checked
def shrink(
    run: str | Path | Report,
    divergence: int = 1,
    *,
    graph: GraphLike | None = None,
    engine: EngineLike | None = None,
    reference: EngineLike | None = None,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
    trust: bool = False,
) -> ShrunkRun:
    """Shrink a divergence of a run to a minimal problem that diverges in the same way.

    Args:
        run: A report of `kgverify.verify`, or the folder that its `save` or `kgverify diff --save` wrote.
        divergence: The number of the divergence in the report, from 1.
        graph: The graph of the run, if it cannot be loaded by the name that the report gives.
        engine: The engine under test, if it is not that of the run or cannot be made again by its name: `"compiled"`,
            `"module:name"`, `"file.py:name"`, or a class or function of `(program, limits, policy)` at the top level of
            a module.
        reference: The engine to compare with, if it is not that of the run, given in the same way.
        max_calls: The most runs of the engine.
        seconds: The most seconds.
        progress: A function that is called with the name of each pass, the problem, and the number of runs.
        trust: Whether to import the engines that a saved run names. Without it only kgverify's own engines run, and those
            that you name: a folder from a stranger could name any code.

    Returns:
        The minimal problem: `.problem`, `.reproducer`, `.save(path)`. `print` shows it.

    Raises:
        UserError: If there is no such divergence, the graph is not that of the run, the engine is not trusted or cannot be
            made, or no part of the graph diverges in the same way.

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", kv.Evaluator(mode="eager", faults="fact-cap"), queries=2, corruptions=0)
        >>> small = kv.shrink(report)
        >>> small.save("smallest.kg").name
        'smallest.kg'
        >>> kv.replay("smallest.kg").verdict.value
        'DIVERGE'
    """
    if isinstance(run, Report):
        found = _with_traces(run)
    else:
        found, file = read_run(Path(run)), Path(run) / REPORT
        sides, named = read_job(found.report).engines, (engine, reference)
        for side, given in (("engine", engine), ("reference", reference)):
            if given is None and (spec := write_down(getattr(sides, side))).name:
                require_trust(spec, f"{file}: {side}", side, named=named, trust=trust)
    actual = None if engine is None else write_down(engine)
    expected = None if reference is None else write_down(reference, where="reference")
    try:
        if graph is None:
            graph = load_run_graph(found.report)
        elif not isinstance(graph, KnowledgeGraph):
            graph = load_graph(graph)
    except UserError as error:
        raise UserError(error.message, where=error.where, fix=f"{error.fix}; or give --graph") from None
    budget = Budget(max_calls, seconds, progress or DEFAULT_BUDGET.progress)
    return shrink_run(found, divergence, budget, engine=actual, reference=expected, graph=graph)


def _with_traces(report: Report) -> Verification:
    traces = report.traces
    if traces is None:
        raise UserError("this report was read without its traces", where="run", fix="give the folder of a saved run")
    return Verification(report, traces.expected, traces.actual, traces.stepped)
