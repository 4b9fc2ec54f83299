"""The index page of several saved runs: a table, and the trends of their figures."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from kgverify.escaping import make_visible
from kgverify.report.content import ReportContent
from kgverify.report.render.html import Trend, build_trends
from kgverify.report.render.template import read_template, render_template
from kgverify.report.wording import LEVEL_MEANINGS, clip, describe_engine, describe_run
from kgverify.version import __version__

MOST_RUNS: Final = 400
"""The runs on a page, the last of those given."""

MOST_CAUSES: Final = 40
"""The causes that have a row, those of the most runs."""

NAME_CHARACTERS: Final = 120
"""The most characters of the name of a run, or of a cause."""

_MRR: Final = "both.realistic.mean_reciprocal_rank"


class RunSummary(NamedTuple):
    """The figures of a saved run.

    written:    the time at which its report was written
    page:       the relative address of its page; empty without one
    mrr:        expected and actual; None without metrics
    candidates: the divergent candidates of each cause, by its stage and class
    seconds:    the run time; None if it is unknown
    """

    name: str
    written: str
    page: str
    verdict: str
    level: str
    run: str
    engine: str
    mrr: tuple[float | None, float | None]
    num_divergences: int
    num_causes: int
    candidates: dict[str, int]
    seconds: float | None = None


class CauseRow(NamedTuple):
    """A cause over the runs. counts: its candidates in each run, with the share of the largest number, 0 to 1."""

    label: str
    counts: tuple[tuple[int, float], ...]
    num_runs: int


class Chart(NamedTuple):
    """A chart of one or two figures; the second is the actual one of two sides."""

    title: str
    trends: tuple[Trend, ...]
    low: str
    high: str


def summarize_run(
    name: str, report: ReportContent, *, written: str, page: str = "", seconds: float | None = None
) -> RunSummary:
    """Summarize a run for the page. page: the relative address of its own page, quoted."""
    candidates: dict[str, int] = defaultdict(int)
    for cause in report.causes:
        candidates[f"{cause.stage} ({cause.kind.value})"] += cause.num_candidates
    return RunSummary(
        name=clip(name, NAME_CHARACTERS),
        written=written,
        page=page,
        verdict=report.verdict.value,
        level=report.level.value if report.level else "",
        run=describe_run(report),
        engine=clip(describe_engine(report.environment.actual), NAME_CHARACTERS),
        mrr=(report.metrics.expected.get(_MRR), report.metrics.actual.get(_MRR)),
        num_divergences=len(report.divergences),
        num_causes=len(report.causes),
        candidates=dict(candidates),
        seconds=seconds,
    )


def render_index(runs: Sequence[RunSummary]) -> str:
    """Render the page of several runs, in the order given. It contains no script and requests nothing."""
    shown = runs[-MOST_RUNS:]
    causes = _cause_rows(shown)
    return render_template(
        "index.html",
        escape=make_visible,
        is_markup=True,
        runs=shown,
        num_left_out=len(runs) - len(shown),
        charts=_charts(shown),
        levels={level.value: text for level, text in LEVEL_MEANINGS.items() if level in {run.level for run in shown}},
        causes=causes[:MOST_CAUSES],
        num_causes_left_out=max(0, len(causes) - MOST_CAUSES),
        version=__version__,
        style=Markup(read_template("report.css")),
    )


def _charts(runs: Sequence[RunSummary]) -> list[Chart]:
    series: list[tuple[str, list[list[float | None]], str]] = [
        ("MRR, realistic, both sides", [[run.mrr[side] for run in runs] for side in (0, 1)], ".4f"),
        ("Divergences", [[run.num_divergences for run in runs]], ",.0f"),
        ("Causes", [[run.num_causes for run in runs]], ",.0f"),
        ("Run time, seconds", [[run.seconds for run in runs]], ",.1f"),
    ]
    charts = []
    for title, values, shape in series:
        trends = build_trends(values)
        if any(trend.points for trend in trends):
            charts.append(Chart(title, trends, format(trends[0].low, shape), format(trends[0].high, shape)))
    return charts


def _cause_rows(runs: Sequence[RunSummary]) -> list[CauseRow]:
    """Return the causes, those of the most runs first."""
    counts: dict[str, Any] = {}
    for index, run in enumerate(runs):
        for label, num in run.candidates.items():
            counts.setdefault(label, [0] * len(runs))[index] = num
    rows = []
    for label, nums in counts.items():
        most = max(*nums, 1)
        cells = tuple((num, round(num / most, 3)) for num in nums)
        rows.append(CauseRow(clip(label, NAME_CHARACTERS), cells, sum(num > 0 for num in nums)))
    return sorted(rows, key=lambda row: (-row.num_runs, row.label))
