"""The audits of numerics and of observers as a person reads them in a terminal."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kgverify.audit.evaluator.observer import ObserverReport
from kgverify.audit.report import AuditReport, Finding, Unmeasured
from kgverify.audit.numerics.report import Convention, NumericsReport, Rung

MOST_SHOWN = 5
"""Flips of each precision that are shown; JSON has all that are listed."""


def render_numerics(report: NumericsReport) -> Iterator[RenderableType]:
    """The report, in reading order."""
    yield render_verdict(report)
    if report.conventions:
        yield _render_conventions(report.conventions)
    if report.rungs:
        yield _render_rungs(report.rungs)
        yield from _render_flips(report.rungs)
    yield _render_measures(report)
    yield from render_unmeasured(report.unmeasured)


def render_observer(report: ObserverReport) -> Iterator[RenderableType]:
    """The report, in reading order."""
    yield render_verdict(report)
    table = Table(
        box=None, padding=(0, 2, 0, 0), title="\nends, against eager with its steps recorded", title_justify="left"
    )
    for column in ("mode", "recording", "end otherwise", "rounded otherwise", "after a close choice"):
        table.add_column(column)
    for each in report.builds:
        counts = (each.num_differing, each.num_rounded, each.num_close)
        cells = [f"raises {each.error}", "", ""] if each.error else [f"{count:,}" for count in counts]
        table.add_row(each.mode, each.how, *map(escape, cells))
    yield table
    yield Text(f"\n{report.measures['candidates']:,.0f} candidates")
    yield from render_unmeasured(report.unmeasured)


def render_verdict(report: AuditReport) -> RenderableType:
    """`clean` or how many findings, and each of them."""
    num = len(report.findings)
    if not num:
        verdict = Text("clean", style="bold green").append(f"   {report.subject}", style="default")
    else:
        findings = "1 finding" if num == 1 else f"{num} findings"
        verdict = Text(findings, style="bold red").append(f"   {report.subject}", style="default")
    for finding in report.findings:
        verdict.append_text(_render_finding(finding))
    return verdict


def _render_finding(finding: Finding) -> Text:
    text = Text(f"\n\n{finding.audit}", style="bold").append(f"   {finding.where}\n", style="default")
    text.append(f"  {finding.finding}\n", style="red not bold")
    text.append(f"  because {finding.mechanism}\n", style="not bold")
    return text.append(f"  fix: {finding.remedy}", style="not bold")


def _render_conventions(conventions: tuple[Convention, ...]) -> RenderableType:
    table = Table("operation", "situation", "eager", "compiled", "`choose` relies on", box=None, padding=(0, 2, 0, 0))
    table.title, table.title_justify = "\nwhere scores leave a choice open", "left"
    for each in conventions:
        table.add_row(each.operation, each.situation, each.eager, each.compiled or "not looked at", each.relies)
    return table


def _render_rungs(rungs: tuple[Rung, ...]) -> RenderableType:
    columns = ("precision", "how", "declared error", "largest seen", "choices", "close", "flips", "beyond 2x")
    table = Table(box=None, padding=(0, 2, 0, 0), title="\nprecisions, against float64 (nats)", title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    for each in rungs:
        numbers = (each.num_choices, each.num_close, each.num_flips, each.num_beyond)
        errors = (f"{each.score_error:.2g}", f"{each.largest_error:.2g}")
        table.add_row(each.precision, each.how, *errors, *(f"{number:,}" for number in numbers))
    return table


def _render_flips(rungs: tuple[Rung, ...]) -> Iterator[RenderableType]:
    for rung in rungs:
        if not rung.flips:
            continue
        table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left")
        table.title = f"\nflips in {rung.precision} ({rung.how}), the largest gaps first"
        for column in ("candidate", "step", "gap", "bound", "chosen", "instead of"):
            table.add_column(column, overflow="fold")
        for flip in rung.flips[:MOST_SHOWN]:
            gap, bound = f"{flip.gap:.3g}", f"{flip.bound:.3g}"
            table.add_row(str(flip.candidate), str(flip.step), gap, bound, escape(flip.chosen), escape(flip.exact))
        yield table


def _render_measures(report: NumericsReport) -> RenderableType:
    measures = ", ".join(f"{name} {value:,.6g}" for name, value in report.measures.items() if "flips" not in name)
    settings = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    return Text(f"\nmeasured: {measures}\nunder: {settings}")


def render_unmeasured(unmeasured: tuple[Unmeasured, ...]) -> Iterator[RenderableType]:
    """What was not looked at, and why."""
    for each in unmeasured:
        yield Text(f"not looked at: {each.audit}: {each.reason}", style="yellow")
