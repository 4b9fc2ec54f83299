"""`kgverify.shrink`: from a divergence of a run to a reproducer that fits on a screen."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgverify.api.inputs import EngineLike, GraphLike, write_down
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.report.report import Report
from kgverify.testing.checking.engine_spec import EngineSpec
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.reproducers.text import write_reproducer
from kgverify.testing.shrinking.shrink import MAX_SECONDS, Progress
from kgverify.testing.shrinking.shrink_run import (
    MAX_RUN_CALLS,
    ShrunkRun,
    engines_of,
    graph_of,
    make_run_reproducer,
    shrink_saved,
)
from kgverify.verification.save import read_run
from kgverify.verification.verify import Verification

MOST_SHOWN: Final = 24
"""Lines of a problem that are printed; the reproducer has them all."""


@dataclass(frozen=True, kw_only=True)
class ShrunkDivergence:
    """A minimal problem that diverges as a divergence of a run does. Printed, it shows the problem.

    engine:          the engine on which the problem diverges
    is_other_engine: whether that is not the engine of the run
    reproducer:      the problem with the expected difference; `save` writes it
    """

    run: ShrunkRun
    engine: EngineSpec
    is_other_engine: bool
    reproducer: Reproducer

    @property
    def problem(self) -> Problem:
        """The minimal problem."""
        return self.run.shrunk.problem

    def save(self, path: str | Path) -> Path:
        """Write the reproducer, which `kgverify.replay` runs again. UserError if it cannot be written."""
        write_reproducer(self.reproducer, Path(path))
        return Path(path)

    def __str__(self) -> str:
        """Return the signature, the sizes before and after, and the problem."""
        shrunk, minimum, sliced = self.run.shrunk, self.problem, self.run.sliced
        num_queries = len(minimum.queries) + len(minimum.unranked)
        lines = [
            f"{shrunk.failure.signature}   on {self.engine}"
            + (", where it occurs as well" if self.is_other_engine else ""),
            f"   graph      {_count(self.run.graph_facts, 'fact')}, {_count(self.run.graph_rules, 'rule')}",
            f"   slice      {_count(len(sliced.facts), 'fact')}, {_count(len(sliced.rules), 'rule')}"
            f"   ({self.run.removed:.1%} of the facts left out)",
            f"   minimum    {_count(len(minimum.facts), 'fact')}, {_count(len(minimum.rules), 'rule')},"
            f" {_count(num_queries, 'query', 'queries')}   in {shrunk.calls} runs, {shrunk.seconds:.1f} s"
            + ("" if shrunk.is_finished else ", the smallest found before --calls or --seconds ran out"),
            "",
        ]
        program = str(minimum).splitlines()
        if len(program) > MOST_SHOWN:
            hidden = len(program) - MOST_SHOWN
            program = [*program[: MOST_SHOWN // 2], f"... {hidden} lines", *program[-MOST_SHOWN // 2 :]]
        lines += [f"   {line}" for line in program]
        if shrunk.neighbour is not None:
            lines += ["", f"both sides agree with one change: {shrunk.neighbour.change}"]
        return "\n".join(lines)


def shrink(
    run: str | Path | Report,
    divergence: int = 1,
    *,
    graph: GraphLike | None = None,
    rules: str | Path | None = None,
    engine: EngineLike | None = None,
    max_calls: int = MAX_RUN_CALLS,
    seconds: float = MAX_SECONDS,
    progress: Progress | None = None,
) -> ShrunkDivergence:
    """Shrink a divergence of a run to a minimal problem that diverges in the same way.

    Args:
        run: A report of `kgverify.verify`, or the folder that its `save` or `kgverify diff --save` wrote.
        divergence: The number of the divergence in the report, from 1.
        graph: The graph of the run, if it cannot be loaded by the name that the report gives.
        rules: A file of rules that replaces those of the graph.
        engine: The engine under test, if it is not the compiled evaluator: `"module:name"`, or a class or function of
            `(program, limits, policy)` at the top level of a module.
        max_calls: The most runs of the engine.
        seconds: The most seconds.
        progress: A function that is called with the name of each pass, the problem, and the number of runs.

    Returns:
        The minimal problem: `.problem`, `.reproducer`, `.save(path)`. `print` shows it.

    Raises:
        UserError: If there is no such divergence, the graph is not that of the run, the engine cannot be made, or no part
            of the graph diverges in the same way.

    Example:
        >>> import kgverify as kv
        >>> report = kv.verify("countries", mode="eager", queries=2, corruptions=0, faults="fact-cap")
        >>> small = kv.shrink(report)
        >>> small.save("smallest.kg").name
        'smallest.kg'
        >>> kv.replay("smallest.kg").verdict.value
        'DIVERGE'
    """
    found = _with_traces(run) if isinstance(run, Report) else read_run(Path(run))
    engines = (
        engines_of(found.report) if engine is None else [write_down(engine, mode="eager", device="cpu", faults=())]
    )
    try:
        loaded = graph if isinstance(graph, KnowledgeGraph) else _load(found.report, graph, rules)
    except UserError as error:
        raise UserError(error.message, where=error.where, fix=f"{error.fix}; or give --graph") from None
    shrunk, used = shrink_saved(
        found, loaded, engines, divergence, max_calls=max_calls, seconds=seconds, progress=progress
    )
    return ShrunkDivergence(
        run=shrunk,
        engine=used,
        is_other_engine=len(engines) > 1 and used != engines[-1],
        reproducer=make_run_reproducer(shrunk, used, found.report),
    )


def _with_traces(report: Report) -> Verification:
    traces = report.traces
    if traces is None:
        raise UserError("this report was read without its traces", where="run", fix="give the folder of a saved run")
    return Verification(report, traces.expected, traces.actual, traces.stepped)


def _load(report: Report, graph: str | Path | None, rules: str | Path | None) -> KnowledgeGraph:
    return graph_of(report) if graph is None else load_graph(graph, rules=rules)


def _count(num: int, one: str, many: str = "") -> str:
    return f"{num:,} {one if num == 1 else many or one + 's'}"
