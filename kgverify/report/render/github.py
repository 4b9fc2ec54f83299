"""The report for GitHub: Markdown for a pull request, an issue or a step summary, and annotations of a workflow."""

from typing import Final

from kgverify.comparison.result import Divergence, Verdict
from kgverify.escaping import (
    escape_data,
    escape_markdown,
    escape_markdown_block,
    escape_markdown_code,
    escape_property,
)
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.render.template import render_template

MOST_ERRORS: Final = 10
"""The number of errors that GitHub shows for one step."""

MOST_CAUSES: Final = 20
MOST_REASONS: Final = 20


def render_markdown(report: ReportContent) -> str:
    """Render the verdict, the metrics, the causes and the first divergence."""
    return render_template(
        "report.md.j2",
        escape=escape_markdown,
        is_markup=False,
        filters=(escape_markdown_block, escape_markdown_code),
        report=report,
        metrics=tuple(wording.metric_rows(report, lacking="-")),
        shares=wording.shares_of(report),
        commands=wording.show_commands(report.first_cause, _number_of(report.first_cause, report), None)
        if report.first_cause
        else (),
        most_causes=MOST_CAUSES,
        most_reasons=MOST_REASONS,
        of_traces=wording.OF_TRACES,
    )


def _number_of(first: Divergence, report: ReportContent) -> int:
    # A report from elsewhere may refer to a divergence that it does not list.
    return report.divergences.index(first) + 1 if first in report.divergences else 1


def render_annotations(report: ReportContent) -> str:
    """Render an error for each cause or for the first divergence, a warning if inconclusive, and a notice with the verdict."""
    lines = []
    if report.verdict is Verdict.INCONCLUSIVE:
        lines.append(annotate("warning", "kgverify: INCONCLUSIVE", "\n".join(map(wording.clip, report.reasons))))
    errors = [
        (
            wording.cause_label(report, i),
            f"this cause: {wording.describe_size(cause)}\nthe first: ",
            report.divergences[cause.first],
        )
        for i, cause in enumerate(report.causes[:MOST_ERRORS])
    ]
    for title, about, first in errors or [(each.stage, "", each) for each in report.divergences[:MOST_ERRORS]]:
        text = f"{about}{wording.describe_divergence(first)}\n{wording.describe_values(first)}"
        lines.append(annotate("error", f"kgverify: {title}", text))
    summary = [wording.describe_coverage(report), *map(wording.clip, wording.exercise_lines(report))]
    summary += filter(None, [wording.describe_loss(report)])
    lines.append(annotate("notice", f"kgverify: {report.verdict.value}", "\n".join(summary)))
    return "".join(f"{line}\n" for line in lines)


def annotate(command: str, title: str, message: str) -> str:
    """Render a workflow command, `::error title=…::…`, escaped as the runner's toolkit does."""
    return f"::{command} title={escape_property(title)}::{escape_data(message)}"
