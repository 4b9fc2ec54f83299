"""The console that all text of kgverify passes on its way to a terminal, a pipe or the log of a CI job."""

from collections.abc import Iterable, Iterator
from typing import Any

import rich.console
import rich.text
from rich.segment import Segment
from rich.style import StyleType

from kgverify.escaping import find_escapes, make_lines_visible, make_visible


class Text(rich.text.Text):
    """Styled lines. Unlike the text of `rich`, it shows control characters instead of dropping them."""

    def __init__(self, text: str = "", style: StyleType = "", **settings: Any) -> None:
        super().__init__(make_lines_visible(text), style, **settings)

    def append(self, text: "rich.text.Text | str", style: StyleType | None = None) -> "Text":
        """Append lines."""
        super().append(make_lines_visible(text) if isinstance(text, str) else text, style)
        return self


class Screen(rich.console.Console):
    """A console that prints no text which a terminal or a CI job could take for a command; its own styles stay.

    A `str`, also in a table, is one line of plain text, never markup; several lines are a `Text`. What is finally written
    is checked once more, line by line, since wrapping and joining make new lines.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **settings)

    def render_str(self, text: str, **settings: Any) -> rich.text.Text:
        """Return a `str` as text."""
        return super().render_str(make_visible(text), **settings)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Return what is written, styles included."""
        return self._write_segments(_escape_segments(list(buffer)))

    def _write_segments(self, segments: Iterable[Segment]) -> str:
        """Return escaped segments with the terminal's codes of their styles."""
        return super()._render_buffer(segments)


def _escape_segments(segments: list[Segment]) -> Iterable[Segment]:
    """Escape the text of segments, among which are the console's own control codes."""
    escapes = find_escapes("".join(text for text, _, control in segments if not control))
    return _replace(segments, escapes) if escapes else segments


def _replace(segments: list[Segment], escapes: dict[int, str]) -> Iterator[Segment]:
    start = 0
    for segment in segments:
        text, style, control = segment
        if control:
            yield segment
            continue
        shown = "".join(escapes.get(position, character) for position, character in enumerate(text, start))
        yield Segment(shown, style)
        start += len(text)
