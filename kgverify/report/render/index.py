"""The index page of several saved runs: a table of their figures, and the trends."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from kgverify.comparison.modulo import describe_modulo
from kgverify.escaping import make_visible
from kgverify.report.content import ReportContent
from kgverify.report.render.template import Values, read_packed, render_template
from kgverify.report.wording import LEVEL_MEANINGS, clip, describe_engine, describe_run
from kgverify.version import __version__

MOST_RUNS: Final = 400
"""The maximum number of runs on a page; the last ones are shown."""

MOST_CAUSES: Final = 40
"""The maximum number of causes with a row; the causes of the most runs are shown."""

NAME_CHARACTERS: Final = 120
"""The maximum number of characters in the name of a run or a cause."""

_MRR: Final = "both.realistic.mean_reciprocal_rank"


def summarize_run(
    name: str, report: ReportContent, *, written: str, page: str = "", seconds: float | None = None
) -> Values:
    """Return the figures of a run for the page.

    written: the time at which the run's report was written
    page:    the relative, quoted address of the run's own page; empty without one
    seconds: the run time; None if it is unknown
    """
    candidates: Counter[str] = Counter()
    for cause in report.causes:
        candidates[f"{cause.stage} ({cause.kind.value})"] += cause.num_candidates
    return {
        "name": clip(name, NAME_CHARACTERS),
        "written": written,
        "page": page,
        "verdict": report.verdict.value,
        "level": report.level.value if report.level else "",
        "run": describe_run(report),
        "setting": _describe_setting(report),
        "engine": clip(describe_engine(report.environment.actual), NAME_CHARACTERS),
        "mrr": (report.metrics.expected.get(_MRR), report.metrics.actual.get(_MRR)),
        "num_divergences": len(report.divergences),
        "num_causes": len(report.causes),
        "candidates": dict(candidates),
        "seconds": seconds,
    }


def _describe_setting(report: ReportContent) -> str:
    """Describe what two runs must share to be comparable: the candidates, the reference, the limits, and what counts as equal."""
    limits = msgspec.json.decode(msgspec.json.encode(report.limits))
    parts = [
        describe_run(report),
        f"against {clip(report.environment.expected.name, NAME_CHARACTERS)}",
        ", ".join(f"{name} {value}" for name, value in limits.items() if value not in (None, {})),
        f"policy's weights {report.policy.sha256[:12]}" if report.policy.sha256 else "",
        f"equal up to {describe_modulo(report.modulo)}" if report.modulo else "",
    ]
    return clip("; ".join(filter(None, parts)))


def render_index(runs: Sequence[Values]) -> str:
    """Render the page of several runs, in the order given. It contains no script and requests nothing."""
    shown = runs[-MOST_RUNS:]
    settings = list(dict.fromkeys(run["setting"] for run in shown))
    causes = _cause_rows(shown)
    levels = {run["level"] for run in shown}
    return render_template(
        "index.html",
        escape=make_visible,
        is_markup=True,
        runs=shown,
        num_left_out=len(runs) - len(shown),
        charts=_charts(shown),
        settings=settings,
        names={each: _name(i) for i, each in enumerate(settings)},
        levels={level.value: text for level, text in LEVEL_MEANINGS.items() if level in levels},
        causes=causes[:MOST_CAUSES],
        num_causes_left_out=max(0, len(causes) - MOST_CAUSES),
        version=__version__,
        style=read_packed("first_screen.css", "report.css"),
    )


def _name(number: int) -> str:
    """Return a letter, or several: A, B, ..., Z, AA."""
    return (_name(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _charts(runs: Sequence[Values]) -> list[Values]:
    series: list[tuple[str, list[list[float | None]], str]] = [
        ("MRR, realistic, both sides", [[run["mrr"][side] for run in runs] for side in (0, 1)], ".4f"),
        ("Divergences", [[run["num_divergences"] for run in runs]], ",.0f"),
        ("Causes", [[run["num_causes"] for run in runs]], ",.0f"),
        ("Run time, seconds", [[run["seconds"] for run in runs]], ",.1f"),
    ]
    return [
        {"title": title, "trends": trends, "low": format(low, shape), "high": format(high, shape)}
        for title, values, shape in series
        for low, high, trends in [build_trends(values, [run["setting"] for run in runs])]
        if any(trend["points"] for trend in trends)
    ]


def build_trends(
    series: Sequence[Sequence[float | None]], settings: Sequence[str]
) -> tuple[float, float, list[Values]]:
    """Return the ends of a common scale for all series, which includes 0, and each series drawn in a box of 1000 by 100.

    A value is None if a run lacks the figure; it breaks the line. Only runs with the same setting share a line. A trend
    contains its unbroken lines as SVG points, and the horizontal and vertical position of each value.
    """
    known = [value for values in series for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    scale = 100 / (high - low) if high > low else 0.0
    trends = []
    for values in series:
        width = 1000 / max(1, len(values) - 1)
        placed = [
            None if value is None else (round(index * width, 2), round(100 - (value - low) * scale, 2))
            for index, value in enumerate(values)
        ]
        alike = [[placed[i] for i in range(len(values)) if settings[i] == each] for each in dict.fromkeys(settings)]
        parts = [[point for point in part if point] for group in alike for _, part in groupby(group, key=bool)]
        lines = [" ".join(f"{x},{y}" for x, y in part) for part in parts if len(part) > 1]
        trends.append({"lines": lines, "points": [point for point in placed if point]})
    return low, high, trends


def _cause_rows(runs: Sequence[Values]) -> list[Values]:
    """Return the causes in descending number of runs, each with the candidates of every run, also as shares of the maximum."""
    rows = []
    for label in dict.fromkeys(label for run in runs for label in run["candidates"]):
        nums = [run["candidates"].get(label, 0) for run in runs]
        counts = [(num, round(num / max(*nums, 1), 3)) for num in nums]
        num_runs = sum(num > 0 for num in nums)
        rows.append({"label": clip(label, NAME_CHARACTERS), "counts": counts, "num_runs": num_runs})
    return sorted(rows, key=lambda row: (-row["num_runs"], row["label"]))
