"""An engine on a graph of one's own: the whole report as text."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from kgverify.comparison.result import Verdict
from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.load import load_graph
from kgverify.report.render.terminal import print_report
from kgverify.runs.run import Run, reference_pipeline
from kgverify.testing.checking.third_party import Factory, as_maker
from kgverify.testing.problems.problem import DEFAULT_SIZES
from kgverify.verification.verify import verify

SLOTS = 64
WIDTH = 120


def check_run(factory: Factory, graph: KnowledgeGraph | str | Path | None = None, run: Run | None = None) -> str:
    """The report of an engine on a run, or on the first queries of a graph; empty if it agrees with the reference.

    UserError unless one of graph and run is given.
    """
    if (graph is None) == (run is None):
        raise UserError("expected a graph or a run", where="assert_equivalent", fix="give one of them")
    if run is None:
        assert graph is not None
        run = Run(graph if isinstance(graph, KnowledgeGraph) else load_graph(graph))
    sizes = DEFAULT_SIZES._replace(slots=SLOTS, match_window=4 * SLOTS, score_window=2 * SLOTS, pool=1024)
    verification = verify(run, reference_pipeline(run), as_maker(factory)(run, sizes))
    if verification.report.verdict is Verdict.AGREE:
        return ""
    text = StringIO()
    print_report(verification.report, Console(file=text, width=WIDTH, no_color=True), expected=verification.expected)
    return text.getvalue()
