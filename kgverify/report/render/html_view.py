"""The content of the HTML page, as plain data for the template."""

from collections import defaultdict
from typing import Final, NamedTuple

from kgverify.comparison.result import Attribution, DifferenceClass, Divergence, FieldRule
from kgverify.report.content import ReportContent
from kgverify.report.derivations import Derivation, DerivationReader
from kgverify.report.render.charts import Bar, HeatMap, build_heat_map, build_waterfall
from kgverify.report.wording import (
    clip,
    describe_coverage,
    describe_engine,
    describe_finding,
    describe_kind,
    describe_loss,
    describe_run,
    diff_command,
    show_commands,
    stage_order,
    value_lines,
)
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.trace import Trace

MOST_DETAILED: Final = 200
"""The rows that open to a derivation."""

MOST_ROWS: Final = 1000
"""The rows of the table; JSON has all."""

MOST_MEMBERS: Final = 10
"""The further divergences of a cause that are listed."""

MOST_NEAR_TIES: Final = 50
"""The near-ties that are listed."""

DETAIL_BUDGET: Final = 600_000
"""The characters, markup included, of the details of all rows."""

DETAIL_MARKUP: Final = 1_500
"""The characters of the markup around a derivation and its values."""

ROW_CHARACTERS: Final = 120
"""The most characters of a text in a closed row."""

_METRICS: Final = ("mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10")
_SIDES: Final = ("both", "head", "tail")


class MetricCell(NamedTuple):
    """A metric of both sides; an empty text if a side lacks it."""

    expected: str
    actual: str


class MetricRow(NamedTuple):
    """A metric over both sides, the head side and the tail side."""

    name: str
    cells: tuple[MetricCell, ...]


class Member(NamedTuple):
    """A divergence in a list of its cause."""

    candidate: int
    atom: str
    query: int
    side: str
    step: int


class Detail(NamedTuple):
    """The details of a row: its first divergence. derivation: None if the divergence is not in a derivation."""

    candidate: int
    atom: str
    query: int
    side: str
    step: int
    field: str
    level: str
    goal: str
    found: str
    expected: tuple[str, ...]
    actual: tuple[str, ...]
    derivation: Derivation | None
    members: tuple[Member, ...]
    num_more: int
    commands: tuple[str, ...]


class Row(NamedTuple):
    """A cause, or a divergence if no causes were formed.

    share, repaired: texts, empty if the loss was not split
    detail:          None if the page would get too large
    """

    number: int
    stage: str
    kind: str
    what: str
    candidates: int
    queries: int
    later: int
    share: str
    repaired: str
    first: str
    detail: Detail | None


class Group(NamedTuple):
    """Rows under one heading; causes have no heading."""

    title: str
    rows: tuple[Row, ...]


class Tie(NamedTuple):
    """A near-tie."""

    candidate: int
    atom: str
    step: int
    gap: str
    bound: str
    expected: str
    actual: str


class EngineColumn(NamedTuple):
    """An engine, line by line."""

    role: str
    lines: tuple[tuple[str, str], ...]


class Page(NamedTuple):
    """Everything on the page, in reading order."""

    title: str
    verdict: str
    level: str
    coverage: str
    run: str
    engines: tuple[str, str]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    loss: str
    metrics: tuple[MetricRow, ...]
    num_changed: int
    bars: tuple[Bar, ...]
    attribution: Attribution | None
    heat: HeatMap
    has_causes: bool
    has_shares: bool
    has_later: bool
    num_divergences: int
    num_rows: int
    num_left_out: int
    num_closed: int
    stages: tuple[str, ...]
    kinds: tuple[str, ...]
    groups: tuple[Group, ...]
    num_near_ties: int
    near_ties: tuple[Tie, ...]
    coverage_rows: tuple[tuple[str, str], ...]
    fields: tuple[str, ...]
    num_equal: int
    equality: tuple[FieldRule, ...]
    environment: tuple[tuple[str, str], ...]
    engine_columns: tuple[EngineColumn, EngineColumn]
    commands: tuple[str, ...]


def build_page(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> Page:
    """Build the page of a report, with derivations from the traces. stepped: the actual steps of lockstep, if saved."""
    groups = _RowBuilder(report, expected, actual, stepped).groups()
    rows = [row for group in groups for row in group.rows]
    metrics = tuple(_metric_rows(report))
    total = len(report.causes) or len(report.divergences)
    special = tuple(rule for rule in report.equality if rule.rule != "equal")
    sides = report.environment.expected, report.environment.actual
    return Page(
        title=f"{report.verdict.value}: {describe_run(report)}",
        verdict=report.verdict.value,
        level=report.level.value if report.level else "",
        coverage=describe_coverage(report),
        run=describe_run(report),
        engines=(clip(describe_engine(sides[0])), clip(describe_engine(sides[1]))),
        reasons=tuple(map(clip, report.reasons)),
        notes=tuple(map(clip, report.notes)),
        loss=describe_loss(report),
        metrics=metrics,
        num_changed=sum(cell.expected != cell.actual for row in metrics for cell in row.cells),
        bars=build_waterfall(report),
        attribution=report.attribution,
        heat=build_heat_map(report.divergences),
        has_causes=bool(report.causes),
        has_shares=any(row.share for row in rows),
        has_later=any(row.later for row in rows),
        num_divergences=len(report.divergences),
        num_rows=len(rows),
        num_left_out=total - len(rows),
        num_closed=sum(row.detail is None for row in rows),
        stages=tuple(sorted({row.stage for row in rows}, key=stage_order)),
        kinds=tuple(sorted({row.kind for row in rows if row.kind})),
        groups=groups,
        num_near_ties=len(report.near_ties),
        near_ties=tuple(_ties(report)),
        coverage_rows=tuple(_coverage_rows(report)),
        fields=report.coverage.fields,
        num_equal=len(report.equality) - len(special),
        equality=special,
        environment=tuple(_environment_rows(report)),
        engine_columns=(_engine_column("expected", sides[0]), _engine_column("actual", sides[1])),
        commands=tuple(_commands(report, rows)),
    )


class _RowBuilder:
    """Builds the rows within the budget of the page."""

    def __init__(self, report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None) -> None:
        self._report = report
        self._reader = DerivationReader(expected, actual, report.divergences, lockstep=report.lockstep, stepped=stepped)
        self._budget = DETAIL_BUDGET
        self._num = 0
        self._numbers = {id(each): number for number, each in enumerate(report.divergences, 1)}
        self._members: dict[int, list[Divergence]] = defaultdict(list)
        for each in report.divergences:
            self._members[each.cause].append(each)
        attribution = report.attribution
        self._shares = {share.cause: share for share in attribution.shares} if attribution else {}

    def groups(self) -> tuple[Group, ...]:
        """Return the causes in the order of the report; without causes the divergences, stage by stage."""
        if self._report.causes:
            return (Group("", tuple(map(self._of_cause, range(min(MOST_ROWS, len(self._report.causes)))))),)
        by_stage: dict[str, list[Divergence]] = defaultdict(list)
        for each in self._report.divergences[:MOST_ROWS]:
            by_stage[each.stage].append(each)
        return tuple(
            Group(stage, tuple(map(self._of_divergence, by_stage[stage])))
            for stage in sorted(by_stage, key=stage_order)
        )

    def _of_cause(self, number: int) -> Row:
        cause, share = self._report.causes[number], self._shares.get(number)
        first = self._report.divergences[cause.first]
        members = self._members[number]
        return Row(
            number=self._next_number(),
            stage=cause.stage,
            kind=cause.kind.value,
            what=f"{cause.kind.value}: {clip(cause.situation, ROW_CHARACTERS)}"
            if cause.situation
            else cause.kind.value,
            candidates=cause.num_candidates,
            queries=cause.num_queries,
            later=cause.num_later,
            share=f"{share.share:.4f}" if share else "",
            repaired=f"{share.repaired:.4f}" if share else "",
            first=_describe_location(first),
            detail=self._detail(first, tuple(each for each in members[: MOST_MEMBERS + 1] if each is not first)),
        )

    def _of_divergence(self, divergence: Divergence) -> Row:
        return Row(
            number=self._next_number(),
            stage=divergence.stage,
            kind="" if divergence.kind is DifferenceClass.UNCLASSIFIED else divergence.kind.value,
            what=clip(describe_kind(divergence), ROW_CHARACTERS),
            candidates=1,
            queries=1,
            later=divergence.later_steps,
            share="",
            repaired="",
            first=_describe_location(divergence),
            detail=self._detail(divergence, ()),
        )

    def _next_number(self) -> int:
        self._num += 1
        return self._num

    def _detail(self, first: Divergence, others: tuple[Divergence, ...]) -> Detail | None:
        if self._num > MOST_DETAILED or self._budget < 0:
            return None
        derivation = self._reader.read(first)
        # In lockstep the actual engine's own run has a different step there.
        actual_candidate = None if self._report.lockstep else self._reader.sides.actual_candidate(first)
        values = [*value_lines(first.expected), *value_lines(first.actual)]
        self._budget -= derivation.size if derivation else 0
        self._budget -= sum(len(line) + 20 for line in values) + DETAIL_MARKUP
        members = others[:MOST_MEMBERS]
        number = first.cause if self._report.causes else -1
        num_others = max(0, len(self._members[number]) - 1) if number >= 0 else 0
        how = describe_finding(first)
        if first.kind is not DifferenceClass.UNCLASSIFIED or first.evidence:
            how = f"{describe_kind(first)} (confidence {first.confidence:.0%}); {how}"
        return Detail(
            candidate=first.candidate,
            atom=clip(first.atom),
            query=first.query,
            side=first.side,
            step=first.step,
            field=first.field,
            level=first.level.value,
            goal=clip(first.goal),
            found=clip(how),
            expected=tuple(value_lines(first.expected)),
            actual=tuple(value_lines(first.actual)),
            derivation=derivation,
            members=tuple(
                Member(each.candidate, clip(each.atom), each.query, each.side, each.step) for each in members
            ),
            num_more=num_others - len(members),
            commands=show_commands(first, self._numbers[id(first)], actual_candidate),
        )


def _describe_location(divergence: Divergence) -> str:
    step = f", step {divergence.step}" if divergence.step >= 0 else ""
    return f"candidate {divergence.candidate}{step}: {clip(divergence.atom, ROW_CHARACTERS)}"


def _metric_rows(report: ReportContent) -> list[MetricRow]:
    if not report.metrics.expected and not report.metrics.actual:
        return []

    def cell(key: str) -> MetricCell:
        found = report.metrics.expected.get(key), report.metrics.actual.get(key)
        return MetricCell(*("" if value is None else f"{value:.4f}" for value in found))

    return [MetricRow(name, tuple(cell(f"{side}.realistic.{name}") for side in _SIDES)) for name in _METRICS]


def _ties(report: ReportContent) -> list[Tie]:
    return [
        Tie(t.candidate, clip(t.atom), t.step, f"{t.gap:.3g}", f"{t.bound:.3g}", clip(t.expected), clip(t.actual))
        for t in report.near_ties[:MOST_NEAR_TIES]
    ]


def _coverage_rows(report: ReportContent) -> list[tuple[str, str]]:
    c, repeats = report.coverage, {True: "yes", False: "no", None: "not checked"}
    return [
        ("candidates compared", f"{c.candidates:,}"),
        ("candidates expected, actual", f"{c.candidates_expected:,}, {c.candidates_actual:,}"),
        ("steps compared", f"{c.steps:,}"),
        ("resolvents compared", f"{c.resolvents:,}"),
        ("steps compared after near-ties", f"{c.steps_after_near_ties:,}"),
        ("fields not compared", ", ".join(c.not_compared) or "none"),
        ("the expected engine repeats itself", repeats[report.determinism.expected]),
        ("the actual engine repeats itself", repeats[report.determinism.actual]),
    ]


def _environment_rows(report: ReportContent) -> list[tuple[str, str]]:
    environment, limits = report.environment, report.limits
    return [
        ("kgverify", environment.kgverify),
        ("Python", environment.python),
        ("platform", environment.platform),
        ("CPUs", str(environment.num_cpus)),
        ("limits", ", ".join(f"{field} {getattr(limits, field)}" for field in limits.__struct_fields__)),
        ("policy", f"{report.policy.name} {report.policy.sha256[:12]}".strip()),
    ]


def _engine_column(role: str, engine: EngineInfo) -> EngineColumn:
    lines = {
        "name": engine.name,
        "mode": engine.mode,
        "device": engine.device,
        "precision": engine.precision,
        "error of a score": f"{engine.score_error:.3g}",
        "layout": ", ".join(f"{name} {value}" for name, value in engine.layout.items()),
        "versions": ", ".join(f"{name} {value}" for name, value in engine.versions.items()),
        "faults": ", ".join(engine.faults),
    }
    return EngineColumn(role, tuple((name, clip(value) or "none") for name, value in lines.items()))


def _commands(report: ReportContent, rows: list[Row]) -> list[str]:
    commands: list[str] = []
    if rows and rows[0].detail is not None:
        commands += rows[0].detail.commands
    again = diff_command(report) if report.divergences else ""
    return [*commands, *([again] if again else ["kgverify show expected.h5"] if not commands else [])]
