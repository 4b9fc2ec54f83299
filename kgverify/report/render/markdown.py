"""The report as GitHub Markdown, for a pull request, an issue or a step summary."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from kgverify.comparison.result import Divergence
from kgverify.report.content import ReportContent
from kgverify.report.wording import (
    SIDES,
    cause_label,
    clip,
    describe_coverage,
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
