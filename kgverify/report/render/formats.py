"""The file formats of a report, in one list for `Report.to_html`, similar methods and `kgverify report`."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kgverify.report.content import ComparedTraces, ReportContent
from kgverify.report.render.github import render_markdown
from kgverify.report.render.html import render_html
from kgverify.report.render.junit import render_junit


class Format(NamedTuple):
    """A format: the default name of its file, and the function that renders a report with its traces."""

    file: str
    render: Callable[[ReportContent, ComparedTraces], bytes]


FORMATS: Final[Mapping[str, Format]] = {
    "html": Format(
        "report.html", lambda report, run: render_html(report, run.expected, run.actual, run.stepped).encode()
    ),
    "junit": Format("junit.xml", lambda report, run: render_junit(report, run.expected)),
    "markdown": Format("report.md", lambda report, run: render_markdown(report).encode()),
}
"""The formats by name, in the order in which `kgverify report` writes the files."""
