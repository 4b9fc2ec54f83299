"""The charts of a report and of several runs, as data."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from typing import Final, NamedTuple

from kgverify.comparison.result import Divergence
from kgverify.errors import count_of
from kgverify.report.content import ReportContent
from kgverify.report.wording import cause_label, stage_order

MOST_BARS: Final = 12
"""The causes that have their own bar; the rest share one."""

MOST_COLUMNS: Final = 20
"""The columns of depths; in deeper derivations several depths share a column."""


class Bar(NamedTuple):
    """A bar of the waterfall.

    kind:       `expected`, `loss`, `gain` or `actual`
    begin, end: in thousandths of the width, `begin` the smaller
    level:      the metric after it, in thousandths of the width
    repaired:   the metric if this cause alone were repaired, and its position; None for the two ends
    """

    kind: str
    label: str
    value: float
    begin: float
    end: float
    level: float
    repaired: float | None = None
    repaired_at: float = 0.0


class Cell(NamedTuple):
    """The number of divergences of a stage at some depths; heat: 0 to 1."""

    num: int
    heat: float


class HeatRow(NamedTuple):
    """A stage with its divergences by depth."""

    stage: str
    cells: tuple[Cell, ...]
    total: int


class HeatMap(NamedTuple):
    """Stages against depths."""

    columns: tuple[str, ...]
    rows: tuple[HeatRow, ...]


def build_waterfall(report: ReportContent) -> tuple[Bar, ...]:
    """Build the bars from the expected metric to the actual one, the most expensive causes first."""
    attribution = report.attribution
    if attribution is None:
        return ()
    shares = sorted(attribution.shares, key=lambda share: -abs(share.share))
    steps: list[tuple[str, float, float | None]] = [
        (cause_label(report, share.cause), share.share, share.repaired) for share in shares[:MOST_BARS]
    ]
    rest = shares[MOST_BARS:]
    if rest:
        steps.append((count_of(len(rest), "further cause"), sum(share.share for share in rest), None))
    levels = [attribution.expected]
    for _, value, _ in steps:
        levels.append(levels[-1] - value)
    values = [*levels, attribution.actual, 0.0, *(each for *_, each in steps if each is not None)]
    low, high = min(values), max(values)
    scale = 1000 / (high - low) if high > low else 0.0

    def at(value: float) -> float:
        return round((value - low) * scale, 2)

    bars = [Bar("expected", "expected", attribution.expected, at(0), at(levels[0]), at(levels[0]))]
    for (label, value, repaired), before, after in zip(steps, levels, levels[1:], strict=False):
        begin, end = sorted((at(before), at(after)))
        kind = "gain" if value < 0 else "loss"
        bars.append(Bar(kind, label, value, begin, end, at(after), repaired, at(repaired or 0.0)))
    actual = at(attribution.actual)
    return (*bars, Bar("actual", "actual", attribution.actual, at(0), actual, actual))


def build_heat_map(divergences: tuple[Divergence, ...]) -> HeatMap:
    """Count the divergences by stage, in the order of stages, and by depth, those without a step first."""
    deepest = max((each.step for each in divergences), default=-1)
    width = max(1, -(-(deepest + 1) // MOST_COLUMNS))
    has_whole = any(each.step < 0 for each in divergences)

    def column_of(step: int) -> int:
        return -1 if step < 0 else step // width

    numbers = [*([-1] if has_whole else []), *range(deepest // width + 1 if deepest >= 0 else 0)]
    counts = Counter((each.stage, column_of(each.step)) for each in divergences)
    most = max(counts.values(), default=1)
    rows = []
    for stage in sorted({each.stage for each in divergences}, key=stage_order):
        cells = tuple(Cell(n, round(sqrt(n / most), 3)) for n in (counts[stage, number] for number in numbers))
        rows.append(HeatRow(stage, cells, sum(cell.num for cell in cells)))
    labels = [f"{number * width}–{number * width + width - 1}" if width > 1 else str(number) for number in numbers]
    return HeatMap(("whole", *labels[1:]) if has_whole else tuple(labels), tuple(rows))


class Trend(NamedTuple):
    """A figure over several runs, drawn in a box of 1000 by 100.

    lines:     the points of each unbroken line, as SVG has them; a run without the figure breaks it
    points:    horizontal and vertical position of each run that has the figure
    low, high: the values at the lower and the upper edge
    """

    lines: tuple[str, ...]
    points: tuple[tuple[float, float], ...]
    low: float
    high: float


def build_trends(series: Sequence[Sequence[float | None]]) -> tuple[Trend, ...]:
    """Build trends with one scale, which contains 0. Values are in the order of the runs, None if a run lacks the figure."""
    known = [value for values in series for value in values if value is not None]
    low, high = min([0.0, *known]), max([0.0, *known])
    return tuple(_build_trend(values, low, high) for values in series)


def _build_trend(values: Sequence[float | None], low: float, high: float) -> Trend:
    width = 1000 / max(1, len(values) - 1)
    scale = 100 / (high - low) if high > low else 0.0
    lines: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            lines[-1].append((round(index * width, 2), round(100 - (value - low) * scale, 2)))
    drawn = tuple(" ".join(f"{x},{y}" for x, y in line) for line in lines if len(line) > 1)
    return Trend(drawn, tuple(point for line in lines for point in line), low, high)
