"""The report for GitHub: Markdown for a pull request, an issue or a step summary, and annotations of a workflow."""

from collections.abc import Callable, Iterator
from typing import Final

from kgverify.comparison.modulo import describe_modulo
from kgverify.comparison.result import Cause, Divergence, Verdict
from kgverify.escaping import (
    escape_data,
    escape_markdown,
    escape_markdown_block,
    escape_markdown_code,
    escape_property,
)
from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.next_steps import show_first
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
        commands=[each.text for each in show_first(report)],
        most_causes=MOST_CAUSES,
        most_reasons=MOST_REASONS,
        most_of_condition=wording.MOST_OF_CONDITION,
        of_traces=wording.OF_TRACES,
    )


def render_annotations(
    report: ReportContent, find_place: Callable[[Divergence], tuple[str, int] | None] = lambda _: None
) -> str:
    """Render an error for each cause or for the first divergence, a warning if inconclusive, and a notice with the verdict.

    find_place: returns the file and the line at which GitHub shows the error of a divergence; None for no line
    """
    errors = [
        (
            wording.cause_label(report, i),
            f"this cause: {wording.describe_size(cause)}\n{_describe_condition(cause)}the first: ",
            report.divergences[cause.first],
        )
        for i, cause in enumerate(report.causes[:MOST_ERRORS])
    ]
    lines = []
    if report.verdict is Verdict.INCONCLUSIVE:
        lines.append(annotate("warning", "kgverify: INCONCLUSIVE", "\n".join(map(wording.clip, report.reasons))))
    lines += [
        annotate(
            "error",
            f"kgverify: {title}",
            f"{about}{wording.describe_divergence(first)}\n{wording.describe_values(first)}",
            find_place(first),
        )
        for title, about, first in errors or [(each.stage, "", each) for each in report.divergences[:MOST_ERRORS]]
    ]
    lines.append(annotate("notice", f"kgverify: {report.verdict.value}", "\n".join(_summarize(report))))
    return "".join(f"{line}\n" for line in lines)


def _summarize(report: ReportContent) -> Iterator[str]:
    yield wording.describe_run(report)
    yield wording.describe_engines(report)
    yield wording.describe_extent(report)
    if report.modulo:
        yield f"equal up to {describe_modulo(report.modulo)}"
    if report.level:
        yield f"level: {report.level.value}"
    if report.near_ties:
        yield f"near-ties: {len(report.near_ties):,}"
    yield from (f"benign: {wording.describe_benign(each)}" for each in report.benign)
    yield from map(wording.clip, wording.exercise_lines(report))
    if loss := wording.describe_loss(report):
        yield f"MRR {loss}"
    if report.attribution and report.attribution.basis == "traces":
        yield wording.OF_TRACES
    yield from map(wording.clip, wording.describe_rules(report))
    yield from wording.metric_lines(report)
    yield from (f"note: {wording.clip(note)}" for note in report.notes[:MOST_REASONS])


def _describe_condition(cause: Cause) -> str:
    return f"condition: {wording.clip(cause.condition, wording.MOST_OF_CONDITION)}\n" if cause.condition else ""


def annotate(command: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    """Render a workflow command, `::error file=…,line=…,title=…::…`, escaped as the runner's toolkit does."""
    where = "" if place is None else f"file={escape_property(place[0])},line={place[1]},"
    return f"::{command} {where}title={escape_property(title)}::{escape_data(message)}"
