"""The report as one self-contained HTML file, in which every divergence can be stepped through."""

import base64
import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from typing import Any, Final, NamedTuple

import msgspec
from markupsafe import Markup

from kgverify.comparison.result import Cause, Divergence, Share
from kgverify.errors import count_of
from kgverify.escaping import escape_script, make_visible
from kgverify.program.limits import OURS
from kgverify.program.outcomes import DifferenceClass
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.derivations import Derivation, DerivationReader, Sides
from kgverify.report.render.template import read_template, render_template
from kgverify.report.stepper.stage_walk import MOVES, Position, StageLine, Stepper
from kgverify.report.wording import (
    cause_label,
    clip,
    condition_of,
    describe_finding,
    describe_kind,
    stage_order,
    value_lines,
)
from kgverify.trace.model.trace import Trace

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


MOST_LISTED: Final = 100_000
"""The divergences in the list; JSON has all."""

MOST_STEPPED: Final = 200
"""The divergences whose steps are embedded."""

MOST_STEPS: Final = 60
"""The embedded steps of a derivation, around the divergent one."""

STEP_BUDGET: Final = 12_000_000
"""The characters of the embedded steps before compression."""

MOST_ITEMS: Final = 40
"""The items of a stage's output on each side."""

TEXT_CHARACTERS: Final = 160
"""The maximum number of characters of a text in the list."""


class Viewer(NamedTuple):
    """The data of the viewer: the list; the first divergences with their steps, and the proof trees of their candidates.

    divergences, steps: JSON, compressed with deflate, in base64
    """

    divergences: Markup
    steps: Markup
    num_listed: int
    num_stepped: int


_TEXTS: Final[dict[str, Callable[[Divergence], str]]] = {
    "stage": lambda each: each.stage,
    "kind": lambda each: each.kind.value,
    "what": describe_kind,
    "level": lambda each: each.level.value,
    "side": lambda each: each.side,
    "field": lambda each: each.field,
    "atom": lambda each: each.atom,
}
_NUMBERS: Final = ("candidate", "query", "step", "later_steps", "cause")


def build_viewer(stepper: Stepper) -> Viewer:
    """Build the data of the viewer. The stepper is moved."""
    divergences = stepper.report.divergences[:MOST_LISTED]
    writer = _StepWriter(stepper)
    stepped = dict(writer.write())
    return Viewer(
        _compress(msgspec.json.encode(_list(divergences))),
        _compress(msgspec.json.encode({"divergences": stepped, "steps": writer.steps, "trees": writer.trees})),
        len(divergences),
        len(stepped),
    )


def _list(divergences: tuple[Divergence, ...]) -> dict[str, Any]:
    """Return the list as columns, in the order of the report. Text columns hold indices into `texts`."""
    texts: dict[str, int] = {}
    columns: dict[str, list[int]] = {}
    for name, read in _TEXTS.items():
        shown = (clip(read(each), TEXT_CHARACTERS) for each in divergences)
        columns[name] = [texts.setdefault(text, len(texts)) for text in shown]
    for name in _NUMBERS:
        columns[name] = [getattr(each, name) for each in divergences]
    return {"texts": list(texts), "columns": columns}


class _StepWriter:
    """Writes divergences with their steps, until the limits of the page are reached."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self._budget = STEP_BUDGET
        self.steps: list[msgspec.Raw] = []
        self.trees: dict[int, msgspec.Raw] = {}
        self._known: dict[tuple[int, int], int] = {}

    def write(self) -> Iterator[tuple[int, msgspec.Raw]]:
        """Yield the index of each divergence with what is shown of it, as JSON."""
        for number, index in enumerate(_order(self._stepper.report)):
            if number >= MOST_STEPPED or self._budget <= 0:
                return
            yield index, self._encode(self._read(index))

    def _encode(self, shown: Any) -> msgspec.Raw:
        encoded = msgspec.json.encode(_make_all_visible(shown))
        self._budget -= len(encoded)
        return msgspec.Raw(encoded)

    def _read(self, index: int) -> dict[str, Any]:
        """Return what the page shows of a divergence.

        num_steps: of the candidate on each side; the page may have fewer
        steps:     indices into the steps of the page, which several divergences of a candidate share
        own:       the summary of a divergence that is not in a step, such as the outcome of a candidate
        """
        stepper = self._stepper
        stepper.position = Position(index, stepper.report.divergences[index].step)
        divergence, num_steps = stepper.divergence, stepper.num_steps
        own = stepper.document().derivation if divergence.step < 0 and max(num_steps) else None
        begin = max(0, min(max(divergence.step, 0) - MOST_STEPS // 2, max(num_steps) - MOST_STEPS))
        numbers = range(begin, min(begin + MOST_STEPS, max(num_steps)))
        if divergence.candidate not in self.trees and any(trees := stepper.trees()):
            self.trees[divergence.candidate] = self._encode(trees)
        return {
            "found": clip(describe_finding(divergence)),
            "condition": condition_of(stepper.report, divergence),
            "expected": _cut(value_lines(divergence.expected)),
            "actual": _cut(value_lines(divergence.actual)),
            "num_steps": num_steps,
            "steps": [self._step(index, divergence, step) for step in numbers],
            "own": own,
        }

    def _step(self, index: int, divergence: Divergence, step: int) -> int:
        """Return the index of a step. The divergent step has an arrow, so that it is not shared."""
        at = divergence.candidate, step
        if step == divergence.step or at not in self._known:
            self._stepper.position = Position(index, step)
            self.steps.append(self._encode(_read_step(self._stepper, "differs" if step == divergence.step else "")))
            if step == divergence.step:
                return len(self.steps) - 1
            self._known[at] = len(self.steps) - 1
        return self._known[at]


def _read_step(stepper: Stepper, mark: str) -> tuple[int, str, Derivation, tuple[StageLine, ...]]:
    """Return the current step as the page shows it: its number, mark, both sides, and stages.

    mark: `agrees`, `differs`, `follows` from an earlier difference, or the side that alone has it; empty if unknown
    """
    step, found, stages = stepper.document()
    derivation = found or Derivation((), step)
    sides = stepper.reader.sides(stepper.divergence.candidate, step)
    cut = (each._replace(expected=_cut(each.expected), actual=_cut(each.actual)) for each in stages)
    return step, mark or _mark(sides, derivation, stages), derivation._replace(before=()), tuple(cut)


def _order(report: ReportContent) -> Iterator[int]:
    """Yield the indices of the listed divergences: the first one of each cause, then the others."""
    num = min(len(report.divergences), MOST_LISTED)
    first = dict.fromkeys(each.first for each in report.causes if each.first < num)
    yield from first
    yield from (index for index in range(num) if index not in first)


def _mark(sides: Sides, derivation: Derivation, stages: tuple[StageLine, ...]) -> str:
    if sides.expected is None or sides.actual is None:
        return "actual only" if sides.expected is None else "expected only"
    if not sides.is_same_way:
        return "follows"
    is_same = all(pair.mark in ("same", "hidden") and not pair.num_differing for pair in derivation.pairs)
    is_same = is_same and not any(atoms.differs for atoms in derivation.goals)
    is_same = is_same and not any(fact.differs for fact in derivation.facts)
    return "agrees" if is_same and not any(line.is_culprit for line in stages) else "differs"


def _cut(items: Any) -> Any:
    """Keep at most `MOST_ITEMS` items, and say how many there are besides."""
    rest = len(items) - MOST_ITEMS
    return type(items)([*items[:MOST_ITEMS], f"… and {rest:,} more"]) if rest > 0 else items


def _make_all_visible(value: Any) -> Any:
    """Make every text of nested data visible."""
    if isinstance(value, str):
        return make_visible(value)
    if isinstance(value, dict):
        return {name: _make_all_visible(each) for name, each in value.items()}
    return [_make_all_visible(each) for each in value] if isinstance(value, tuple | list) else value


def _compress(encoded: bytes) -> Markup:
    # Base64 has no character that HTML would read.
    return Markup(base64.b64encode(zlib.compress(encoded, 9)).decode())


MOST_DETAILED: Final = 30
"""The rows that open to a derivation; the viewer shows more."""

MOST_ROWS: Final = 100
"""The rows of the table; the viewer lists all divergences, and JSON has all."""

MOST_MEMBERS: Final = 10
"""The further divergences of a cause that are listed."""

MOST_NEAR_TIES: Final = 50
"""The near-ties that are listed."""

DETAIL_BUDGET: Final = 40_000
"""The characters of the details of all rows, as JSON."""

DETAIL_MARKUP: Final = 1_500
"""The characters of the markup around a derivation and its values."""

MOST_CAUSE_LABELS: Final = 1000
"""The causes that the viewer names."""

ROW_CHARACTERS: Final = 120
"""The most characters of a text in a closed row."""


def render_html(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> str:
    """Render the page. All text is escaped, and the page forbids every request and every script but its own.

    stepped: in lockstep, the actual steps from the expected goals, so that both sides of each can be shown
    """
    page = build_page(report, expected, actual, stepped)
    script = read_template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render_template(
        "report.html",
        escape=make_visible,
        is_markup=True,
        report=report,
        limits={k: v for k, v in msgspec.structs.asdict(report.limits).items() if v is not None and v != OURS},
        page=page,
        viewer=build_viewer(page.stepper) if page.stepper else None,
        most_steps=MOST_STEPS,
        meanings=wording.LEVEL_MEANINGS,
        moves=MOVES,
        words=Markup(escape_script(msgspec.json.encode(_viewer_words(report)))),
        most_near_ties=MOST_NEAR_TIES,
        row_characters=ROW_CHARACTERS,
        of_traces=wording.OF_TRACES,
        style=Markup(read_template("report.css")),
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        summary=Markup(escape_script(msgspec.json.encode(summarize(report)))),
    )


def summarize(report: ReportContent) -> dict[str, Any]:
    """Return the summary that the page contains as JSON, for programs."""
    return {
        "verdict": report.verdict,
        "level": report.level,
        "run": report.run,
        "coverage": report.coverage,
        "self_test": report.self_test,
        "metrics": report.metrics,
        "num_divergences": len(report.divergences),
        "num_near_ties": len(report.near_ties),
        "modulo": report.modulo,
        "benign": report.benign,
        "first_cause": report.first_cause,
        "causes": report.causes[:MOST_DETAILED],
        "attribution": report.attribution,
        "ranking_rules": report.ranking_rules,
    }


def _viewer_words(report: ReportContent) -> dict[str, Any]:
    """Return the words that the viewer shows and the page has once: levels, causes and their first divergences."""
    causes = report.causes[:MOST_CAUSE_LABELS]
    return {
        "levels": wording.LEVEL_MEANINGS,
        "causes": [clip(wording.cause_label(report, index), ROW_CHARACTERS) for index in range(len(causes))],
        "firsts": [each.first for each in causes],
        "total": len(report.divergences),
    }


class Detail(NamedTuple):
    """The details of a row's first divergence.

    found:      the difference, and the method that found its stage
    number:     of the divergence in the report, from 1
    derivation: None if the divergence is not in a derivation
    members:    further divergences of the cause, of which `num_more` are not listed
    """

    found: str
    number: int
    derivation: Derivation | None
    members: tuple[Divergence, ...]
    num_more: int
    commands: tuple[str, ...]


class Row(NamedTuple):
    """A cause, or one made from a divergence if no causes were formed.

    share:  None if the loss was not split
    detail: None if the page would get too large
    """

    number: int
    cause: Cause
    kind: str
    what: str
    share: Share | None
    first: Divergence
    detail: Detail | None


class Page(NamedTuple):
    """The parts of the page that are computed from a report.

    metrics: see `wording.metric_rows`
    groups:  rows under one heading, which is a stage; causes have no heading
    stepper: None without divergences
    """

    metrics: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    bars: tuple[Bar, ...]
    heat: HeatMap
    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    commands: tuple[str, ...]
    stepper: Stepper | None

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for _, rows in self.groups for row in rows]

    @property
    def has_other_metrics(self) -> bool:
        """True if a metric of the two sides differs."""
        return any(expected != actual for _, cells in self.metrics for expected, actual in cells)


def build_page(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> Page:
    """Build the page of a report, with derivations from the traces. stepped: the actual steps of lockstep, if saved."""
    stepper = Stepper(report, expected, actual, stepped) if report.divergences else None
    groups = _RowBuilder(report, stepper.reader).groups() if stepper else ()
    first = groups[0][1][0].detail if groups and groups[0][1] else None
    commands = first.commands if first else ()
    return Page(
        metrics=tuple(wording.metric_rows(report, lacking="")),
        bars=build_waterfall(report),
        heat=build_heat_map(report.divergences),
        groups=groups,
        commands=commands or ("kgverify show expected.h5",),
        stepper=stepper,
    )


class _RowBuilder:
    """Builds the rows within the budget of the page."""

    def __init__(self, report: ReportContent, reader: DerivationReader) -> None:
        self._report = report
        self._reader = reader
        self._budget = DETAIL_BUDGET
        self._num = 0
        self._numbers = {id(each): number for number, each in enumerate(report.divergences, 1)}
        self._members: dict[int, list[Divergence]] = defaultdict(list)
        for each in report.divergences:
            self._members[each.cause].append(each)
        self._shares = wording.shares_of(report)

    def groups(self) -> tuple[tuple[str, tuple[Row, ...]], ...]:
        """Return the causes in the order of the report; without causes the divergences, stage by stage."""
        report = self._report
        if report.causes:
            return (("", tuple(self._row(cause, i) for i, cause in enumerate(report.causes[:MOST_ROWS]))),)
        by_stage: dict[str, list[Cause]] = defaultdict(list)
        for i, each in enumerate(report.divergences[:MOST_ROWS]):
            by_stage[each.stage].append(_make_cause(each, i))
        return tuple(
            (stage, tuple(map(self._row, by_stage[stage]))) for stage in sorted(by_stage, key=wording.stage_order)
        )

    def _row(self, cause: Cause, index: int = -1) -> Row:
        """Return the row of a cause, given its index; -1 for a divergence alone."""
        self._num += 1
        first = self._report.divergences[cause.first]
        what = ": ".join(filter(None, (cause.kind.value, clip(cause.situation, ROW_CHARACTERS))))
        if index < 0:
            what = clip(wording.describe_kind(first), ROW_CHARACTERS)
        return Row(
            number=self._num,
            cause=cause,
            kind="" if index < 0 and cause.kind is DifferenceClass.UNCLASSIFIED else cause.kind.value,
            what=what,
            share=self._shares.get(index) if index >= 0 else None,
            first=first,
            detail=self._detail(first, self._members[index] if index >= 0 else [first]),
        )

    def _detail(self, first: Divergence, members: Sequence[Divergence]) -> Detail | None:
        if self._num > MOST_DETAILED or self._budget < 0:
            return None
        derivation = self._reader.read(first)
        # In lockstep the actual engine's own run has a different step there.
        actual_candidate = None if self._report.lockstep else self._reader.actual_candidate(first)
        shown = derivation, wording.value_lines(first.expected), wording.value_lines(first.actual)
        self._budget -= len(msgspec.json.encode(shown)) + DETAIL_MARKUP
        found = wording.describe_finding(first)
        if first.kind is not DifferenceClass.UNCLASSIFIED or first.evidence:
            found = f"{wording.describe_kind(first)} (confidence {first.confidence:.0%}); {found}"
        number = self._numbers[id(first)]
        others = tuple(each for each in members[: MOST_MEMBERS + 1] if each is not first)[:MOST_MEMBERS]
        commands = wording.show_commands(first, number, actual_candidate)
        return Detail(clip(found), number, derivation, others, max(0, len(members) - 1) - len(others), commands)


def _make_cause(divergence: Divergence, index: int) -> Cause:
    return Cause(
        stage=divergence.stage,
        kind=divergence.kind,
        situation="",
        num_candidates=1,
        num_queries=1,
        num_divergences=1,
        num_later=divergence.later_steps,
        first=index,
    )
