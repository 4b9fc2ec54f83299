"""A benchmark as a picture, a self-contained SVG."""

from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from kgverify.bench.result import BenchResult, Measurement, summarize

WIDTH: Final = 860
_LEFT: Final = 150
_RIGHT: Final = 110
_TOP: Final = 74
_ROW: Final = 34
_BOTTOM: Final = 46
_MOST_TICKS: Final = 6
_LONGEST: Final = 95
"""Letters of a reason that fit in a row."""


class Bar(NamedTuple):
    """A row of the picture, in its units. kind: `reference`, `eager`, `other`, or `none` with a note instead of a bar."""

    label: str
    kind: str
    y: float
    width: float = 0.0
    least: float = 0.0
    most: float = 0.0
    value: str = ""
    note: str = ""


def render_plot(result: BenchResult) -> str:
    """Draw bars of the medians and whiskers from the fastest call to the slowest, in microseconds for each unit."""
    speeds = {each.name: _speed(each) for each in result.measurements if each.samples}
    marks = _choose_marks(max((most for _, _, most in speeds.values()), default=1.0))
    scale = (WIDTH - _LEFT - _RIGHT) / marks[-1]
    bars = []
    for number, each in enumerate(result.measurements):
        y = _TOP + number * _ROW
        if each.name not in speeds:
            note = each.describe_state()
            note = note if len(note) <= _LONGEST else f"{note[: _LONGEST - 2].rstrip()} …"
            bars.append(Bar(each.name, "none", y, note=note))
            continue
        median, least, most = speeds[each.name]
        kind = each.name if each.name in ("reference", "eager") else "other"
        width, begin, stop = (round(value * scale, 2) for value in (median, least, most))
        bars.append(Bar(each.name, kind, y, width, begin, stop, f"{median:,.4g}"))
    work, machine = result.work, result.environment
    environment = Environment(
        loader=PackageLoader("kgverify.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("plot.svg").render(
        title=f"{work.graph}, {work.size}: µs for each {result.unit}",
        subtitle=f"{work.describe_amount()}; policy {work.policy}, {work.precision}; {machine.device_name},"
        f" torch {machine.torch}",
        footer="bars: medians of the steady state; whiskers: fastest and slowest call",
        bars=bars,
        marks=[{"x": round(_LEFT + value * scale, 2), "text": f"{value:,.6g}"} for value in marks],
        width=WIDTH,
        height=_TOP + _ROW * len(bars) + _BOTTOM,
        left=_LEFT,
        top=_TOP,
        axis=_TOP + _ROW * len(bars),
    )


def _speed(each: Measurement) -> tuple[float, float, float]:
    """Return the microseconds for each unit: median, least, most."""
    spread = summarize(each.samples)
    by = 1e6 / each.num_units
    return spread.median * by, spread.least * by, spread.most * by


def _choose_marks(most: float) -> list[float]:
    """Choose round values from 0 up to at least the largest."""
    if most <= 0:
        most = 1.0
    power = 10.0 ** (len(str(int(most))) - 1) if most >= 1 else 10.0 ** -(len(f"{1 / most:.0f}"))
    step = next(s for s in (power * f for f in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5, 10, 20)) if most / s <= _MOST_TICKS)
    return [i * step for i in range(int(-(-most // step)) + 1)]
