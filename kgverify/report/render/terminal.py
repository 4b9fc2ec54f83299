"""The report as text for a terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from kgverify.codes import Code
from kgverify.comparison.modulo import describe_modulo
from kgverify.comparison.result import Cause, Condition, Divergence, Experiment, Verdict
from kgverify.comparison.step_view import Names, StepReader
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.next_steps import shrink_cause
from kgverify.report.render.screen import FittedTable, Screen, Text, list_pairs
from kgverify.report.step_document import StepBefore, read_before
from kgverify.trace.model.trace import Trace

STYLES = {Verdict.AGREE: "bold green", Verdict.DIVERGE: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}
MOST_CAUSES = 12
MOST_LINES: Final = 3
"""The number of lines shown for each side of a benign difference."""
TEXT_WIDTH: Final = 120
"""The width of a report that is not printed on a terminal."""


def print_report(
    report: ReportContent,
    console: Screen,
    *,
    expected: Trace | None = None,
    next_commands: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print the report: verdict, coverage, first divergence, causes, metrics, and the commands to type next.

    expected:      the expected trace, or only its candidate with the first divergence, to show the steps that agree before the
                   divergence; by default the report's
    next_commands: the commands to run next, with the purpose of each
    """
    if expected is None and report.traces is not None:
        expected = report.traces.excerpt()
    console.print(Group(*_render_report(report, expected)))
    if report.divergences:
        print_next(console, next_commands)


def print_next(console: Screen, commands: Mapping[str, str]) -> None:
    """Print the commands to run next, with the purpose of each."""
    if commands:
        console.print(Text("\nnext", style="bold"))
    for command, purpose in commands.items():
        # Not wrapped, so that it can be copied.
        line = Text(f"  {make_visible(command)}").append(f"   # {purpose}", style="dim")
        console.print(line, soft_wrap=True)


def _render_report(report: ReportContent, expected: Trace | None) -> Iterator[RenderableType]:
    yield from _render_verdict(report)
    if report.first_cause is not None:
        yield from _render_first_cause(report, report.first_cause, expected)
    if report.causes:
        yield from _render_causes(report)
    if report.near_ties:
        yield _render_near_ties(report)
    if report.benign:
        yield from _render_benign(report)
    if report.metrics.expected or report.metrics.actual:
        yield from _render_metrics(report)
    yield _render_equality(report)
    if report.reasons_of_actual:
        yield Text(make_visible(describe_settings(report.reasons_of_actual)), style="dim")


def draw_text(draw: Callable[[Screen], None]) -> str:
    """Return, as plain text, what a function prints on a console of 120 columns."""
    text = StringIO()
    draw(Screen(file=text, width=TEXT_WIDTH, color_system=None))
    return text.getvalue()


def summary_lines(report: ReportContent) -> list[str]:
    """Return the verdict with its coverage and reasons, and the first divergence, one line each."""
    lines = [f"{report.verdict.value}   {wording.describe_extent(report)}"]
    lines += [make_visible(f"  because {reason}") for reason in report.reasons]
    lines += [f"  {line}" for line in wording.limit_lines(report)]
    if report.first_cause is not None:
        num = len(report.divergences)
        others = f"   (the first of {num:,})" if num > 1 else ""
        lines.append(f"  first divergence: {make_visible(wording.describe_divergence(report.first_cause))}{others}")
    return lines


def _render_verdict(report: ReportContent) -> Iterator[RenderableType]:
    yield Text(report.verdict.value, style=STYLES[report.verdict]).append(
        f"   {wording.describe_extent(report)}", "default"
    )
    yield f"  {wording.describe_engines(report)}"
    yield f"  {wording.describe_run(report)}"
    if report.modulo:
        yield f"  equal up to {describe_modulo(report.modulo)}"
    yield from (Text(make_visible(f"  because {reason}"), style="yellow") for reason in report.reasons)
    yield from (f"  note: {note}" for note in report.notes)
    yield from (f"  {line}" for line in wording.exercise_lines(report))
    if report.level is not None:
        yield f"  level: {report.level.value}"
    if tested := wording.describe_self_test(report):
        yield f"  self-test: {tested}"


def _render_first_cause(report: ReportContent, first: Divergence, expected: Trace | None) -> Iterator[RenderableType]:
    where = f" at step {first.step}" if first.step >= 0 else ""
    title = Text(f"\nfirst divergence: {make_visible(first.stage)}{where}", style="bold")
    yield title.append(f"   ({wording.describe_finding(first)}; the first of {len(report.divergences):,})", style="dim")
    query = f" (query {first.query}, {first.side} side)" if first.query >= 0 else ""
    rows: list[tuple[str | Text, str | Text]] = [("   candidate", f"{first.candidate}: {first.atom}{query}")]
    # All steps before the first divergence of a candidate agree.
    for each in () if expected is None or first.step < 0 else _steps_before(first, expected):
        goal = Text(make_visible(each.goal)).append("   agrees", style="green")
        rows.append((f"   step {each.step}", goal.append(f"\n  by {make_visible(each.clause)}", style="dim")))
    if first.step >= 0:
        goal = Text(wording.clip(first.goal) or "not reached", style="bold")
        goal.append(f"   {make_visible(first.stage)}", style="bold red")
        rows.append((Text(f"-> step {first.step}", style="bold red"), goal))
    rows += [
        ("   field", f"{first.field}, level {first.level.value}"),
        ("   difference", wording.describe_difference(first)),
        ("   expected", Text("\n".join(wording.value_lines(first.expected)), style="green")),
        ("   actual", Text("\n".join(wording.value_lines(first.actual)), style="red")),
    ]
    yield list_pairs(rows)
    yield from (Text(f"   {line}") for line in _consequences(report, first))


def _steps_before(first: Divergence, expected: Trace) -> Sequence[StepBefore]:
    row = 0 if len(expected.columns.candidates.num_steps) == 1 else first.candidate
    return read_before(StepReader(expected.columns), Names(expected), row, first.step)


def _consequences(report: ReportContent, first: Divergence) -> list[str]:
    """Describe the consequences of the first divergence, and the cost of its cause."""
    lines = [f"{later}."] if (later := wording.describe_later(first)) else []
    if not 0 <= first.cause < len(report.causes):
        return lines
    cause = report.causes[first.cause]
    share = wording.shares_of(report).get(first.cause)
    assumed = f", {cause.num_assumed:,} of them not replayed" if cause.num_assumed else ""
    parts = [f"{cause.num_divergences:,} divergences have this cause{assumed}"] if cause.num_divergences > 1 else []
    if share is not None and report.attribution is not None:
        sign, size, verb = wording.measure_loss(report.attribution)
        parts.append(f"{'it' if parts else 'its cause'} explains {sign * share.share:.4f} of the {size:.4f} MRR {verb}")
    return [*lines, f"{'; '.join(parts)}."] if parts else lines


def _render_causes(report: ReportContent) -> Iterator[RenderableType]:
    shares = wording.shares_of(report)
    columns = ["#", "stage", "difference", "candidates", "queries", "later steps"]
    columns += ["MRR lost", "MRR if repaired alone"] if shares else []
    rows, notes = [], []
    for i, cause in enumerate(report.causes[:MOST_CAUSES]):
        kind = make_visible(cause.kind.value + (f": {cause.situation}" if cause.situation else ""))
        cells = [f"{count:,}" for count in (cause.num_candidates, cause.num_queries, cause.num_later)]
        share = shares.get(i)
        if shares:
            cells += [f"{share.share:.4f}", f"{share.repaired:.4f}"] if share else ["", ""]
        rows.append((f"{i + 1}", cause.stage, kind, *cells, wording.describe_location(report.divergences[cause.first])))
        condition = wording.clip(cause.condition, wording.MOST_OF_CONDITION)
        notes.append(Text(condition) if condition else None)
    yield Text("\ncauses", style="bold")
    table = Table(*columns, "first", box=None, padding=(0, 2, 0, 0))
    yield FittedTable(table, rows, may_fold=False, notes=notes)
    if len(report.causes) > MOST_CAUSES:
        yield Text(f"... and {len(report.causes) - MOST_CAUSES} more; --json has them all", style="dim")
    for i, cause in enumerate(report.causes[:MOST_CAUSES]):
        source = f"code: {wording.describe_source(cause)}" if cause.source is not None else ""
        for text in (wording.describe_size(cause) if cause.num_assumed else "", source):
            if text:
                yield Text(f"#{i + 1}: {text}", style="dim")
    if report.attribution:
        yield wording.describe_shares(report, report.attribution, is_short=True)
        if report.attribution.basis == "traces":
            yield Text(wording.OF_TRACES, style="dim")
    yield from (Text(make_visible(text), style="dim") for text in wording.describe_rules(report))


def _render_near_ties(report: ReportContent) -> RenderableType:
    first = report.near_ties[0]
    lines = Text(f"\n{len(report.near_ties):,} near-ties", style="bold")
    lines.append(
        f"   choices that differ inside the error bound; {count_of(report.coverage.steps_after_near_ties, 'step')} after them"
        f" compared from the expected choice\n  first: candidate {first.candidate} {wording.clip(first.atom)}, step {first.step},"
        f" gap {first.gap:.3g} <= {first.bound:.3g} [{Code.NEAR_TIE}]",
        style="default",
    )
    return lines


def _render_benign(report: ReportContent) -> Iterator[RenderableType]:
    title = Text("\nbenign differences", style="bold")
    yield title.append(
        f"   steps that are equal up to {describe_modulo(report.modulo)}; none is a divergence", "default"
    )
    for each in report.benign:
        yield f"  {wording.describe_benign(each)}"
        yield f"    first: candidate {each.candidate} {each.atom}, step {each.step}, {each.field}"
        yield list_pairs(
            (f"      {role}", Text("\n".join(_cut(wording.value_lines(value)))))
            for role, value in (("expected", each.expected), ("actual", each.actual))
        )


def _cut(lines: list[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"... and {more} more"] if more > 0 else lines


def _render_metrics(report: ReportContent) -> Iterator[RenderableType]:
    yield Text("\nmetrics, realistic ranks: expected, and actual where it differs", style="bold")
    yield fit_metrics(
        "",
        {
            metric: [
                Text(expected) if expected == actual else Text(expected).append(f" -> {actual}", style="red")
                for expected, actual in cells
            ]
            for metric, cells in wording.metric_rows(report, lacking="-")
        },
    )


def fit_metrics(title: str, rows: Mapping[str, Sequence[str | Text]], *further: str) -> FittedTable:
    """Return a row for each metric and a column for each of `wording.SIDES`; every value is shown whole, whatever the width.

    Args:
        title: the title of the column of metrics.
        rows:  the metric to its values, in the order of `wording.SIDES`, and then of the further columns.
        *further: the titles of further columns.
    """
    table = Table(title, *wording.SIDES, *further, box=None, padding=(0, 3, 0, 0))
    return FittedTable(table, [(metric, *values) for metric, values in rows.items()], may_fold=False)


def describe_settings(reasons: Sequence[str]) -> str:
    """Describe in one line the reasons for an engine's device, mode and precision."""
    return f"settings: {'; '.join(reasons)}"


def _render_equality(report: ReportContent) -> RenderableType:
    by_rule: dict[str, list[str]] = {}
    for each in report.equality:
        by_rule.setdefault(each.rule, []).append(each.field)
    num_equal = len(by_rule.pop("equal", ()))
    special = [f"{', '.join(fields)} {rule}" for rule, fields in by_rule.items()]
    text = "; ".join((f"equal means: {count_of(num_equal, 'field')} bit for bit", *special))
    return Text(f"\n{make_visible(text)}", style="dim")


BAR: Final = 30
"""The length of the longest bar of a plot, in characters."""


class ShownCauses(msgspec.Struct, frozen=True):
    """The causes of a saved run, or that of one divergence: `kgverify show RUN_DIR --explain`."""

    causes: tuple[Cause, ...]


def choose_causes(report: ReportContent, divergence: int | None) -> list[int]:
    """Return the indices of all causes, or only that of the cause of a divergence, counted from 1.

    UserError for a divergence that the report does not have.
    """
    if divergence is None:
        return [*range(len(report.causes))]
    cause = choose_divergence(report.divergences, divergence).cause
    return [cause] if cause >= 0 else []


def choose_divergence(divergences: Sequence[Divergence], number: int) -> Divergence:
    """Return a divergence by its number, from 1. UserError for a number that no divergence has."""
    if not 1 <= number <= len(divergences):
        raise UserError(
            f"expected a divergence from 1 to {len(divergences):,}, found {number}",
            where="divergence",
            fix="choose one that the run has" if divergences else "choose a run that diverges",
        )
    return divergences[number - 1]


def explain_causes(
    report: ReportContent, divergence: int | None = None, folder: str | Path = "RUN_DIR"
) -> Iterator[str]:
    """Yield the lines that explain all causes of a report, or only the cause of a divergence, counted from 1.

    folder: the folder of the saved run, for the commands

    UserError for a divergence that the report does not have.
    """
    numbers = choose_causes(report, divergence)
    if not numbers:
        yield "no cause: nothing diverged, or its cause is unknown"
    for number in numbers:
        yield f"#{number + 1} {wording.cause_label(report, number)}: {wording.describe_size(report.causes[number])}"
        if source := wording.describe_source(report.causes[number]):
            yield f"  code: {source}"
        yield from (f"  {line}" for line in _explain(report.causes[number]))
        step = shrink_cause(report, number, folder)
        yield f"  first divergence: {report.causes[number].first + 1}; {step.text} {step.does}"


def _explain(cause: Cause) -> Iterator[str]:
    found = cause.when
    if found is None:
        yield wording.clip(cause.condition, wording.MOST_OF_CONDITION) if cause.condition else "no condition was sought"
        return
    yield wording.clip(found.sentence, wording.MOST_OF_CONDITION)
    sample = " (a sample)" * found.is_sample
    yield f"instances: {count_of(found.num_wrong, found.unit)} wrong, {found.num_right:,} right{sample}"
    if found.tests:
        yield f"chance: at most {found.chance:.2g}, after correction for {found.num_tried:,} conditions"
    if found.experiment is not None:
        yield from _explain_experiment(found.experiment)
    if found.is_cut:
        yield "the search ended before every condition was tried: there may be a shorter one"
    for title, texts in (
        ("as exact on these instances", found.others),
        ("not explained", found.counter_examples),
    ):
        if texts:
            yield f"{title}:"
            yield from (f"  {wording.clip(text, wording.MOST_OF_CONDITION)}" for text in texts)
    yield from _plot(found)
    if found.tried:
        yield "the best test of each feature alone: precision, recall"
        for each in found.tried:
            yield f"  {each.precision:.3f}  {each.recall:.3f}  {wording.clip(each.words, wording.MOST_OF_CONDITION)}"


def _explain_experiment(tried: Experiment) -> Iterator[str]:
    """Yield the verdict of an experiment, and its problems."""
    num = f": {tried.num_predicted:,} of {tried.num_tried:,} instances as predicted" if tried.num_tried else ""
    yield f"experiment: {tried.verdict}{num}{f' ({tried.reason})' if tried.reason else ''}"
    titles = ("wrong", "right") if len(tried.pair) > 1 else ("not as predicted",)
    yield from (
        f"  {title}: {wording.clip(text, wording.MOST_OF_CONDITION)}"
        for title, text in zip(titles, tried.pair, strict=False)
    )


def _plot(found: Condition) -> Iterator[str]:
    """Yield a bar for each class and each value of the first feature."""
    if not (found.values and found.features):
        return
    most = max(max(each.num_wrong, each.num_right) for each in found.values)
    yield f"{wording.clip(found.features[0])}: wrong (#) and right (.)"
    for each in found.values:
        bars = "#" * _length(each.num_wrong, most), "." * _length(each.num_right, most)
        yield f"  {each.value:>10,.6g}  {bars[0]:<{BAR}}  {bars[1]:<{BAR}}  {each.num_wrong:,} / {each.num_right:,}"


def _length(num: int, most: int) -> int:
    return -(-num * BAR // most) if num else 0
