"""The report as one self-contained HTML file."""

import base64
import hashlib
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kgverify.report import wording
from kgverify.report.content import ReportContent
from kgverify.report.render.html_view import MOST_DETAILED, MOST_NEAR_TIES, ROW_CHARACTERS, build_page
from kgverify.trace.model.trace import Trace

_IN_SCRIPTS: Final = {
    code: f"\\u{code:04x}"
    for code in (*map(ord, "<>&"), 0x7F, *range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""The characters that could end a script element or mislead a reader of its source, with their escapes."""


_FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    wording.clip,
    wording.describe_coverage,
    wording.describe_engine,
    wording.describe_location,
    wording.describe_loss,
    wording.describe_run,
    wording.value_lines,
)


def render_html(report: ReportContent, expected: Trace, actual: Trace, stepped: Trace | None = None) -> str:
    """Render the page. All text is escaped, and the page forbids every request and every script but its own.

    stepped: in lockstep, the actual steps from the expected goals, so that both sides of each can be shown
    """
    environment = Environment(
        loader=PackageLoader("kgverify.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters.update({each.__name__: each for each in _FILTERS})
    templates = files("kgverify.report") / "templates"
    style, script = ((templates / name).read_text("utf-8") for name in ("report.css", "report.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        report=report,
        page=build_page(report, expected, actual, stepped),
        most_near_ties=MOST_NEAR_TIES,
        row_characters=ROW_CHARACTERS,
        style=Markup(style),
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        summary=Markup(encode_for_script(summarize(report))),
    )


def summarize(report: ReportContent) -> dict[str, Any]:
    """Return the summary that the page contains as JSON, for programs."""
    return {
        "verdict": report.verdict,
        "level": report.level,
        "run": report.run,
        "coverage": report.coverage,
        "metrics": report.metrics,
        "num_divergences": len(report.divergences),
        "num_near_ties": len(report.near_ties),
        "first_cause": report.first_cause,
        "causes": report.causes[:MOST_DETAILED],
        "attribution": report.attribution,
    }


def encode_for_script(data: Any) -> str:
    """Encode JSON for a script element: without `<`, nothing in it can end the element."""
    return msgspec.json.encode(data).decode().translate(_IN_SCRIPTS)


def _finalize(value: Any) -> Any:
    return wording.make_visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
