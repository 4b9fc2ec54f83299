"""The report as annotations of a GitHub workflow, which its runner reads from standard output."""

from typing import Final

from kgverify.comparison.result import Verdict
from kgverify.report.content import ReportContent
from kgverify.report.wording import (
    cause_label,
    clip,
    describe_coverage,
    describe_divergence,
    describe_loss,
    describe_values,
    make_visible,
)

MOST_ERRORS: Final = 10
"""The errors that GitHub shows for one step."""


def render_annotations(report: ReportContent) -> str:
    """Render an error for each cause or first divergence, a warning if inconclusive, and a notice with the verdict."""
    lines = []
    if report.verdict is Verdict.INCONCLUSIVE:
        lines.append(annotate("warning", "kgverify: INCONCLUSIVE", "\n".join(map(clip, report.reasons))))
    for i, cause in enumerate(report.causes[:MOST_ERRORS]):
        first = report.divergences[cause.first]
        size = f"{cause.num_candidates:,} candidates of {cause.num_queries:,} queries, {cause.num_later:,} later steps"
        text = f"{size}\nfirst: {describe_divergence(first)}\n{describe_values(first)}"
        lines.append(annotate("error", f"kgverify: {cause_label(report, i)}", text))
    if not report.causes:
        for each in report.divergences[:MOST_ERRORS]:
            text = f"{describe_divergence(each)}\n{describe_values(each)}"
            lines.append(annotate("error", f"kgverify: {each.stage}", text))
    summary = "\n".join(filter(None, (describe_coverage(report), describe_loss(report))))
    lines.append(annotate("notice", f"kgverify: {report.verdict.value}", summary))
    return "".join(f"{line}\n" for line in lines)


def annotate(command: str, title: str, message: str) -> str:
    """Render a workflow command, `::error title=…::…`, escaped as the runner's toolkit does it."""
    return f"::{command} title={escape_property(make_visible(title))}::{escape_data(make_visible(message))}"


def escape_data(text: str) -> str:
    """Escape the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape the value of a property of a workflow command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")
