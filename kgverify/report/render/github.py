"""The report for GitHub: Markdown for a pull request, an issue or a step summary, and annotations of a workflow."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from kgverify.comparison.result import Divergence, Verdict
from kgverify.report.content import ReportContent
from kgverify.report.wording import (
    SIDES,
    cause_label,
    clip,
    describe_coverage,
    describe_divergence,
    describe_engine,
    describe_finding,
    describe_kind,
    describe_location,
    describe_loss,
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
    parts = [f"## {report.verdict.value}: {escape_markdown(describe_run(report))}", *_summary(report)]
    if report.metrics.expected or report.metrics.actual:
        parts += ["### Metrics, realistic ranks", _metrics(report)]
    if report.causes:
        parts += ["### Causes", _causes(report)]
        if len(report.causes) > MOST_CAUSES:
            parts.append(f"… and {len(report.causes) - MOST_CAUSES:,} more in `report.json`")
    if report.first_cause is not None:
        parts += ["### First divergence", *_first_divergence(report.first_cause)]
    return "\n\n".join(parts) + "\n"


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


def render_table(header: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int) -> str:
    """Render a table; the columns after the first `num_texts` hold numbers. Cells are Markdown already."""
    rule = ["---" if i < num_texts else "---:" for i in range(len(header))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def _summary(report: ReportContent) -> list[str]:
    environment = report.environment
    lines = [
        f"- expected: {escape_markdown(describe_engine(environment.expected))}",
        f"- actual: {escape_markdown(describe_engine(environment.actual))}",
        f"- covered: {escape_markdown(describe_coverage(report))}",
    ]
    if report.level is not None:
        lines.append(f"- level: {report.level.value}")
    if report.divergences:
        lines.append(f"- divergences: {len(report.divergences):,}")
    if report.near_ties:
        lines.append(f"- near-ties: {len(report.near_ties):,}")
    if report.attribution is not None:
        lines.append(f"- MRR {escape_markdown(describe_loss(report))}")
    lines += [f"- because {escape_markdown(clip(reason))}" for reason in report.reasons[:MOST_REASONS]]
    lines += [f"- note: {escape_markdown(clip(note))}" for note in report.notes[:MOST_REASONS]]
    return ["\n".join(lines)]


def _metrics(report: ReportContent) -> str:
    rows = (
        (f"`{name}`", *(left if left == right else f"{left} → **{right}**" for left, right in cells))
        for name, cells in metric_rows(report, lacking="-")
    )
    return render_table(("", *SIDES), rows, 1)


def _causes(report: ReportContent) -> str:
    shares = {share.cause: share for share in report.attribution.shares} if report.attribution else {}
    header = ["cause", "first", "candidates", "queries", "later"]
    header += ["MRR lost", "MRR if repaired alone"] if shares else []
    rows = []
    for i, cause in enumerate(report.causes[:MOST_CAUSES]):
        first = report.divergences[cause.first]
        row = [escape_markdown(cause_label(report, i)), describe_location(first)]
        row += [f"{cause.num_candidates:,}", f"{cause.num_queries:,}", f"{cause.num_later:,}"]
        if shares:
            share = shares.get(i)
            row += [f"{share.share:.4f}", f"{share.repaired:.4f}"] if share else ["", ""]
        rows.append(row)
    return render_table(header, rows, 2)


def _first_divergence(first: Divergence) -> list[str]:
    where = f" at step {first.step}" if first.step >= 0 else ""
    found = describe_finding(first)
    commands = show_commands(first, 1, None)
    return [
        f"**{escape_markdown(first.stage)}**{where} of {format_code(clip(first.atom))} (candidate {first.candidate},"
        f" query {first.query}, {escape_markdown(first.side)} side): {escape_markdown(clip(describe_kind(first)))}; {found}.",
        fence(describe_values(first)),
        *(["Next, in the folder of the run:", fence("\n".join(commands))] if commands else []),
    ]


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
