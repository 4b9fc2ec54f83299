"""The text of a terminal as HTML for a notebook."""

from collections.abc import Callable, Iterable
from html import escape
from io import StringIO
from typing import Final

from rich.segment import Segment
from rich.style import Style

from kgverify.escaping import wrap_notebook
from kgverify.report.render.screen import Screen
from kgverify.report.render.terminal import TEXT_WIDTH

# Of middle lightness, so that both can be read on white and on black.
COLOURS: Final = {"red": "#d63a32", "green": "#1f8a3a", "yellow": "#97700a"}


def render_notebook(draw: Callable[[Screen], None]) -> str:
    """Return what a function prints on a console 120 columns wide as HTML, escaped, in colours for light and dark pages."""
    console = _Recorder(file=StringIO(), width=TEXT_WIDTH, color_system="standard", force_terminal=True)
    draw(console)
    return wrap_notebook("".join(map(_render_segment, console.segments)).rstrip("\n"))


class _Recorder(Screen):
    """A console that keeps what it prints, escaped as for a terminal, in pieces with one style each."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.segments: list[Segment] = []

    def _write_segments(self, segments: Iterable[Segment]) -> str:
        self.segments += segments
        return ""


def _render_segment(segment: Segment) -> str:
    text, style, control = segment
    css = _render_style(style) if style is not None else ""
    shown = "" if control else escape(text)
    return f'<span style="{css}">{shown}</span>' if css and shown.strip() else shown


def _render_style(style: Style) -> str:
    colour = COLOURS.get(style.color.name, "") if style.color is not None else ""
    parts = (colour and f"color: {colour}", style.bold and "font-weight: bold", style.dim and "opacity: 0.65")
    return "; ".join(part for part in parts if part)
