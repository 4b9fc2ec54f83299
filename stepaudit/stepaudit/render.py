"""The report of an audit: as text in a terminal, as a page, as JUnit XML, and for GitHub."""

import io
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from stepaudit.errors import escape_markdown, make_lines_visible, make_visible
from stepaudit.report import AuditReport, Cell, Finding, Section, Verdict

MOST_SHOWN: Final = 12
"""The largest number of rows of a section, and of lines of a detail, that are shown; the report contains all."""

_TEMPLATES: Final = Environment(loader=PackageLoader("stepaudit"), autoescape=select_autoescape(["xml.j2"]))
_TEMPLATES.filters |= {"visible": make_visible, "markdown": escape_markdown}


def render_audit(report: AuditReport) -> Iterator[RenderableType]:
    """Render a report for a terminal.

    Args:
        report: the result of any audit.

    Returns:
        Its parts in reading order, each of which a `rich` console prints.
    """
    yield _render_verdict(report)
    for section in report.sections.values():
        yield from _render_section(section)
    if report.measures:
        named = ((name.replace("_", " "), _show_measure(name, value)) for name, value in report.measures.items())
        yield _make_table("measures", [("", False), ("", True)], (map(Text, map(make_visible, row)) for row in named))
    for name, lines in report.details.items():
        if lines:
            more = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
            yield Text("\n  ".join((f"{name.replace('_', ' ')}:", *map(make_visible, lines[:MOST_SHOWN]), *more)))
    for overrun in report.overruns:
        yield Text(
            f"over budget: {make_visible(overrun.key)}: {overrun.measured:g}, allowed {overrun.allowed:g}", style="red"
        )
    for each in report.unmeasured:
        yield Text(make_visible(f"not measured: {each.audit}: {each.reason}"), style="yellow")
    yield Text(make_visible(f"environment: {', '.join(f'{key} {value}' for key, value in report.environment.items())}"))


def _render_verdict(report: AuditReport) -> Text:
    num = len(report.findings)
    if report.verdict is Verdict.INCONCLUSIVE:
        verdict = Text("inconclusive", style="bold yellow")
    elif report.is_clean:
        verdict = Text("clean", style="bold green")
    else:
        verdict = Text(f"{num} finding{'s' if num > 1 else ''}", style="bold red")
        if report.overruns:
            verdict.append(f", {len(report.overruns)} over budget")
    verdict.append(f"   {make_visible(report.subject)}", style="default")
    for finding in report.findings:
        verdict.append_text(_render_finding(finding))
    return verdict


def _render_finding(finding: Finding) -> Text:
    text = Text(f"\n\n{finding.audit}", style="bold").append(f"   {make_visible(finding.where)}\n", style="default")
    text.append(f"  {make_lines_visible(finding.finding)}\n", style="red not bold")
    text.append(f"  because {make_lines_visible(finding.mechanism)}\n", style="not bold")
    return text.append(f"  fix: {make_lines_visible(finding.remedy)}", style="not bold")


def _render_section(section: Section) -> Iterator[RenderableType]:
    columns = [
        (name.removeprefix("num_").replace("_", " "), isinstance(cell, (int, float)) and not isinstance(cell, bool))
        for name, cell in section.rows[0].items()
    ]
    yield _make_table(section.title, columns, [[*map(_show_cell, row.values())] for row in section.rows[:MOST_SHOWN]])
    if len(section.rows) > MOST_SHOWN:
        yield Text(f"and {len(section.rows) - MOST_SHOWN} more")


def _make_table(title: str, columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable[Text]]) -> Table:
    """Make a table. columns: the name of each column, empty if it has no header, and whether it holds numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=Text(f"\n{make_visible(title)}", style="table.title"))
    table.title_justify = "left"
    for name, is_number in columns:
        table.add_column(name, justify="right" if is_number else "left")
        table.show_header = bool(name)
    for row in rows:
        table.add_row(*row)
    return table


def _show_cell(cell: Cell) -> Text:
    if isinstance(cell, bool):
        return Text("yes" if cell else "no")
    if isinstance(cell, str):
        return Text(make_visible(cell))
    return Text(f"{cell:,}" if isinstance(cell, int) else f"{cell:.3g}")


def _show_measure(key: str, value: float) -> str:
    if "seconds" in key:
        return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.3f} ms"
    if "bytes" in key:
        return f"{value / 1e6:,.2f} MB"
    if "difference" in key or "error" in key:
        return f"{value:.3g}"
    return f"{value:,.0f}" if math.isclose(value, round(value)) else f"{value:,.2f}"


def render_html(report: AuditReport) -> str:
    """Render a report as one page without scripts, as the terminal shows it."""
    console = Console(record=True, width=160, file=io.StringIO(), markup=False, highlight=False, emoji=False)
    console.print(*render_audit(report), sep="\n")
    return console.export_html(code_format=_PAGE)


_PAGE: Final = """<!DOCTYPE html>
<html lang="en"><head><meta charset="UTF-8"><title>stepaudit</title><style>{stylesheet}
body {{ color: {foreground}; background-color: {background}; }}</style></head>
<body><pre style="font-family:monospace">{code}</pre></body></html>
"""


def render_junit(report: AuditReport) -> bytes:
    """Render UTF-8 XML with a test case for each finding, each exceeded limit and each property that was not measured."""
    return fill_template("junit.xml.j2", report=report, is_open=report.verdict is Verdict.INCONCLUSIVE).encode()


def render_markdown(report: AuditReport) -> str:
    """Render the verdict and a table of the findings."""
    return fill_template("summary.md.j2", report=report)


def fill_template(template: str, **values: Any) -> str:
    """Fill a template of this package."""
    return _TEMPLATES.get_template(template).render(**values) + "\n"


def render_annotations(report: AuditReport) -> str:
    """Render an error of a GitHub workflow for each finding and exceeded limit, and a notice with the verdict."""
    errors = [(f"{each.audit}: {each.where}", f"{each.finding}\n{each.remedy}") for each in report.findings]
    errors += [(f"budget: {each.key}", f"{each.measured:g}, allowed {each.allowed:g}") for each in report.overruns]
    notice = _annotate("notice", f"stepaudit: {report.verdict.value}", report.subject)
    return "".join(_annotate("error", *each) for each in errors) + notice


def _annotate(command: str, title: str, message: str) -> str:
    """Render a workflow command, escaped as the runner's toolkit does it."""
    shown, said = (make_lines_visible(text).replace("%", "%25").replace("\n", "%0A") for text in (title, message))
    return f"::{command} title={shown.replace(':', '%3A').replace(',', '%2C')}::{said}\n"
