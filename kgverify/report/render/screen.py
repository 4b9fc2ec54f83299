"""The console for all text to a terminal, a pipe or the log of a CI job, and tables that fit it."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import rich.console
import rich.text
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import StyleType
from rich.table import Table
from rich.text import Text as AnyText

from kgverify.escaping import find_escapes, make_lines_visible, make_visible

_TITLED: Final = re.compile(r" *\w+(?: \w+)* {2,}(?=\S)")
"""The title of a line, such as `outcomes`, separated from its value by spaces."""


class Text(rich.text.Text):
    """Styled lines. Unlike the text of `rich`, it shows control characters instead of dropping them.

    A long line is folded between words. Its continuation is indented below a title's value, or slightly more than the line.
    """

    def __init__(self, text: str = "", style: StyleType = "", **settings: Any) -> None:
        super().__init__(make_lines_visible(text), style, **settings)

    def append(self, text: "rich.text.Text | str", style: StyleType | None = None) -> "Text":
        """Append lines."""
        super().append(make_lines_visible(text) if isinstance(text, str) else text, style)
        return self

    def wrap(self, console: rich.console.Console, width: int, **settings: Any) -> Lines:
        """Fold the lines to a width in columns."""
        if settings.get("no_wrap") or settings.get("overflow") == "ignore":
            return super().wrap(console, width, **settings)
        folded = Lines()
        for line in self.split("\n", allow_blank=True):
            parts = rich.text.Text.wrap(line, console, width, **settings)
            indent = _find_indent(line.plain, width)
            if len(parts) > 1 and indent:
                # In a table, each part is padded to the width.
                rest = line[len(parts[0].plain.rstrip()) :]
                rest = rest[len(rest.plain) - len(rest.plain.lstrip()) :]
                further = rich.text.Text.wrap(rest, console, width - indent, **settings)
                for each in further:
                    each.pad_left(indent)
                parts = Lines([parts[0], *further])
            for each in parts:
                each.rstrip()
            folded.extend(parts)
        return folded


def _find_indent(line: str, width: int) -> int:
    """Return the number of columns by which the continuation of a long line is indented."""
    indent = len(line) - len(line.lstrip())
    titled = _TITLED.match(line)
    found = titled.end() if titled else indent + 3 if indent else 0
    return found if found <= width // 2 else min(indent, width // 2)


class Screen(rich.console.Console):
    """A console whose text a terminal or a CI job cannot mistake for commands; its own styles are kept.

    A `str`, even in a table, is one line of plain text, never markup; several lines are a `Text`. The final output is checked
    once more, line by line, since wrapping and joining make new lines.
    """

    def __init__(self, **settings: Any) -> None:
        # In a notebook, rich would display the output a second time.
        super().__init__(markup=False, highlight=False, emoji=False, force_jupyter=False, **settings)

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print objects. Keep a single `Text`, which `rich` would replace by its own text, folded without an indent."""
        is_alone = len(objects) == 1 and isinstance(objects[0], Text) and not settings.keys() - {"style"}
        super().print(*([rich.console.Group(objects[0])] if is_alone else objects), **settings)

    def render_str(self, text: str, **settings: Any) -> rich.text.Text:
        """Return a `str` as a `Text`."""
        found = super().render_str(make_visible(text), **settings)
        return Text(found.plain, found.style, justify=found.justify, overflow=found.overflow)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Return the output, including styles."""
        return super()._render_buffer(_escape_segments(list(buffer)))


def _escape_segments(segments: list[Segment]) -> Iterable[Segment]:
    """Escape the text of segments, except the console's own control codes."""
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


def list_pairs(rows: Iterable[tuple[str | AnyText, str | AnyText]], style: StyleType = "dim") -> Table:
    """Return a table of names beside folded values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


_WIDE: Final = 1000
_SIDES: Final = ["expected", "actual"]


class FittedTable:
    """A table, or, if a cell would be cut, a list of titles and values for each row.

    table:    a table with its columns and without rows
    rows:     the cells of each row; the first cell names the row
    may_fold: whether cells may be folded between words
    styles:   the style of each row; empty for no styles
    notes:    the text below each row, if any, in a table whose cells may not be folded
    """

    def __init__(
        self,
        table: Table,
        rows: Iterable[Sequence[str | AnyText]],
        *,
        may_fold: bool = True,
        styles: Sequence[str] = (),
        notes: Sequence[AnyText | None] = (),
    ) -> None:
        self._table, self._may_fold, self._styles, self._notes = table, may_fold, styles, notes
        self._rows = [[Text(make_visible(each)) if isinstance(each, str) else each for each in row] for row in rows]
        for column in table.columns:
            column.overflow = "fold"
            column.no_wrap = column.no_wrap or not may_fold
        for row, style in zip_longest(self._rows, styles):
            table.add_row(*row, style=style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or the list."""
        # Measure on a console that is wide enough for anything.
        width = Measurement.get(console, options.update_width(_WIDE), self._table)
        if (width.minimum if self._may_fold else width.maximum) > options.max_width:
            yield self._list()
        elif not any(self._notes):
            yield self._table
        else:
            # No cell is folded, so each row is one line, after the line of headings.
            heading, *rows = console.render_lines(self._table, options, pad=False)
            for row, note in ((heading, None), *zip_longest(rows, self._notes)):
                yield from (*row, Segment.line())
                if note is not None:
                    yield Padding(note, (0, 0, 0, 2))

    def _list(self) -> RenderableType:
        titles = [str(column.header) for column in self._table.columns]
        title = str(self._table.title or "").strip("\n")
        parts: list[RenderableType] = [Text(title, "table.title")] if title else []
        num_names = int(titles != _SIDES)
        for row, style, note in zip_longest(self._rows, self._styles, self._notes):
            values = Table.grid(padding=(0, 1))
            values.add_column(no_wrap=True, style="dim")
            values.add_column(overflow="fold")
            names, cells = row[:num_names], row[num_names:]
            shown = [each for each in zip(titles[num_names:], cells, strict=False) if each[1].plain.strip()]
            if [label for label, _ in shown] == _SIDES and shown[0][1].plain == shown[1][1].plain:
                shown = [("both", shown[0][1])]
            for label, cell in shown:
                values.add_row(label, cell)
            parts += [name for name in names if name.plain.strip()]
            parts += [Padding(each, (0, 0, 0, 2), style=style or "", expand=False) for each in (values, note) if each]
        return Group(*parts)
