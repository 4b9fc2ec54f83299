"""The report of an audit: as text in a terminal, as JSON, as a page, as JUnit XML, and for GitHub."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepaudit.errors import escape_markdown, make_lines_visible, make_visible
from stepaudit.report import AuditReport, Cell, Finding, Section, Verdict

MOST_SHOWN: Final = 12
"""The largest number of rows of a section, and of lines of a detail, that are shown; the report contains all."""
_MOST_COLUMNS: Final = 8
"""The largest number of columns of a table with one row; a row with more is shown as a list."""
_STYLES: Final = {Verdict.AGREE: "bold green", Verdict.DIVERGE: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


def show_cell(cell: Cell) -> str:
    """Return the text of a cell of a table."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return make_visible(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.3g}"


def show_name(name: str) -> str:
    """Return the words of the name of a column, a measure or a detail."""
    return make_visible(name.removeprefix("num_").replace("_", " "))


def show_measure(value: float, key: str) -> str:
    """Return a measure with its unit, which its name tells."""
    if "seconds" in key:
        return f"{value:.2f} s" if value >= 0.1 else f"{value * 1e3:.3f} ms"
    if "bytes" in key:
        return f"{value / 1e6:,.2f} MB"
    return f"{value:,.0f}" if math.isclose(value, round(value)) else f"{value:,.2f}"


def is_number(cell: Cell) -> bool:
    """Return whether a cell holds a number."""
    return isinstance(cell, (int, float)) and not isinstance(cell, bool)


def is_list(section: Section) -> bool:
    """Return whether a section is shown as a list: it has one row, with many columns."""
    return len(section.rows) == 1 and len(section.rows[0]) > _MOST_COLUMNS


def as_command(text: str) -> str:
    """Escape a text as GitHub's runner requires it in a workflow command."""
    return make_lines_visible(text).replace("%", "%25").replace("\n", "%0A")


def as_lines(text: str) -> Markup:
    """Escape a text for a page, except for its line breaks."""
    return Markup(escape(make_lines_visible(text)))


_FILTERS: Final = {
    each.__name__: each
    for each in (show_cell, show_name, show_measure, is_number, is_list, as_command, as_lines, escape_markdown)
}


def _make_environment(**options: Any) -> Environment:
    environment = Environment(loader=PackageLoader("stepaudit"), undefined=StrictUndefined, **options)
    environment.filters |= _FILTERS
    return environment


def _escape_value(value: Any) -> Any:
    return make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEXTS: Final = _make_environment()
_MARKUP: Final = _make_environment(autoescape=True, finalize=_escape_value)


def fill_template(template: str, **values: Any) -> str:
    """Fill a template of this package. Values in pages and XML are escaped."""
    environment = _MARKUP if template.endswith((".html.j2", ".xml.j2")) else _TEXTS
    return environment.get_template(template).render(**values) + "\n"


def render_json(report: AuditReport) -> str:
    """Render a report as JSON. No text in it can command a terminal or a runner of CI."""
    text = json.dumps(report.to_dict(), indent=2)
    return text.replace("##", "#\\u0023").replace("\x7f", "\\u007f") + "\n"


def render_html(report: AuditReport) -> str:
    """Render a report as one page without scripts, the verdict first."""
    return fill_template("report.html.j2", report=report)


def render_junit(report: AuditReport) -> str:
    """Render XML with a test case for each finding, each exceeded limit and each property that was not measured."""
    return fill_template("junit.xml.j2", report=report)


def render_markdown(report: AuditReport) -> str:
    """Render the verdict and a table of the findings."""
    return fill_template("summary.md.j2", report=report)


def render_annotations(report: AuditReport) -> str:
    """Render an error of a GitHub workflow for each finding and exceeded limit, and a notice with the verdict."""
    return fill_template("annotations.txt.j2", report=report)


def render_audit(report: AuditReport, *, is_brief: bool = False) -> Iterator[RenderableType]:
    """Render a report for a terminal.

    Args:
        report: the result of any audit.
        is_brief: whether to render only the line of the verdict.

    Returns:
        Its parts in reading order, each of which a `rich` console prints.
    """
    verdict = Text(report.verdict, style=_STYLES[report.verdict])
    yield verdict.append(f"   {make_visible('   '.join(filter(None, (report.headline, report.subject))))}", "default")
    if is_brief:
        return
    yield from map(_render_finding, report.findings)
    for section in report.sections.values():
        yield from _render_section(section)
    details = {show_name(name): lines for name, lines in report.details.items()}
    for name, lines in (details | {name: text.splitlines() for name, text in report.listings.items()}).items():
        if lines:
            more = [f"and {len(lines) - MOST_SHOWN} more"] if len(lines) > MOST_SHOWN else []
            yield Text("\n  ".join((f"\n{make_visible(name)}:", *map(make_visible, lines[:MOST_SHOWN]), *more)))
    if report.measures:
        named = ((show_name(name), show_measure(value, name)) for name, value in report.measures.items())
        yield _make_table("measures", [("", False), ("", True)], named)
    for overrun in report.overruns:
        yield Text(
            f"over budget: {make_visible(overrun.key)}: {overrun.measured:g}, allowed {overrun.allowed:g}", style="red"
        )
    for each in report.unmeasured:
        yield Text(make_visible(f"not measured: {each.audit}: {each.reason}"), style="yellow")
    yield Text(make_visible(f"environment: {', '.join(f'{key} {value}' for key, value in report.environment.items())}"))


def _render_finding(finding: Finding) -> Text:
    text = Text(f"\n{finding.audit}", style="bold").append(f"   {make_visible(finding.where)}\n", style="default")
    text.append(f"  {make_lines_visible(finding.finding)}\n", style="red not bold")
    text.append(f"  because {make_lines_visible(finding.mechanism)}\n", style="not bold")
    return text.append(f"  fix: {make_lines_visible(finding.remedy)}", style="not bold")


def _render_section(section: Section) -> Iterator[RenderableType]:
    if is_list(section):
        cells = ((show_name(name), show_cell(cell)) for name, cell in section.rows[0].items() if cell != "")
        yield _make_table(section.title, [("", False), ("", False)], cells)
        return
    columns = [(show_name(name), is_number(cell)) for name, cell in section.rows[0].items()]
    yield _make_table(section.title, columns, (map(show_cell, row.values()) for row in section.rows[:MOST_SHOWN]))
    if len(section.rows) > MOST_SHOWN:
        yield Text(f"and {len(section.rows) - MOST_SHOWN} more")


def _make_table(title: str, columns: Iterable[tuple[str, bool]], rows: Iterable[Iterable[str]]) -> Table:
    """Make a table. columns: the name of each column, empty if it has no header, and whether it holds numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), title=Text(f"\n{make_visible(title)}", style="table.title"))
    table.title_justify = "left"
    for name, is_right in columns:
        table.add_column(name, justify="right" if is_right else "left", overflow="fold")
        table.show_header = bool(name)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
