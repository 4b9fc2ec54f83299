"""The report for GitHub: Markdown for a pull request, an issue or a step summary, and annotations of a workflow."""

import re
from collections.abc import Callable
from typing import Any, Final

from kgverify.comparison.result import Verdict
from kgverify.report.content import ReportContent
from kgverify.report.exercise import exercise_lines
from kgverify.report.render.template import render_template
from kgverify.report.wording import (
    OF_TRACES,
    cause_label,
    clip,
    describe_benign,
    describe_coverage,
    describe_divergence,
    describe_engine,
    describe_finding,
    describe_kind,
    describe_location,
    describe_loss,
    describe_modulo_of,
    describe_rules,
    describe_run,
    describe_values,
    make_visible,
    metric_rows,
    show_commands,
)

MOST_ERRORS: Final = 10
"""The errors that GitHub shows for one step."""

MOST_CAUSES: Final = 20
MOST_REASONS: Final = 20
_SPECIAL: Final = re.compile(r"[^\w\s.,;:()+=%/'\"?-]|(?<![^\W_])_|_(?![^\W_])|://|www")


def render_markdown(report: ReportContent) -> str:
    """Render the verdict, the metrics, the causes and the first divergence."""
    return render_template(
        "report.md.j2",
        escape=escape_markdown,
        is_markup=False,
        filters=_FILTERS,
        report=report,
        metrics=tuple(metric_rows(report, lacking="-")),
        shares={share.cause: share for share in report.attribution.shares} if report.attribution else {},
        commands=show_commands(report.first_cause, report.divergences.index(report.first_cause) + 1, None)
        if report.first_cause
        else (),
        most_causes=MOST_CAUSES,
        most_reasons=MOST_REASONS,
        of_traces=OF_TRACES,
    )


def escape_markdown(text: str) -> str:
    """Render plain text in one line, with every character special to Markdown, HTML or GitHub as an entity."""
    line = " ".join(make_visible(text).split())
    return _SPECIAL.sub(lambda match: "".join(map(_as_entity, match[0])), line)


def _as_entity(character: str) -> str:
    # GitHub looks for mentions and issues in the decoded text; a comment splits that text.
    return f"&#{ord(character)};" + ("<!-- -->" if character in "@#" else "")


def format_code(text: str) -> str:
    """Render text in one line as code, also in a table."""
    line = " ".join(make_visible(text).split())
    if not line:
        return ""
    if re.search(r"[`|\\<]", line):
        return f"<code>{escape_markdown(line)}</code>"
    return f"`{line}`"


def fence(text: str) -> str:
    """Render text as a block of code, even if it contains backticks."""
    visible = make_visible(text)
    longest = max((len(run) for run in re.findall("`+", visible)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"{mark}text\n{visible}\n{mark}"


_FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    cause_label,
    clip,
    describe_benign,
    describe_coverage,
    describe_engine,
    describe_finding,
    describe_kind,
    describe_location,
    describe_loss,
    describe_modulo_of,
    describe_rules,
    describe_run,
    describe_values,
    exercise_lines,
    fence,
    format_code,
)


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
    summary = "\n".join(
        filter(None, (describe_coverage(report), *map(clip, exercise_lines(report)), describe_loss(report)))
    )
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
