"""The rows around a difference, as a table of both sides."""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np

from kgverify.comparison.result import Divergence
from kgverify.environments.locate import RowReader
from kgverify.environments.trajectory import StepKind

MOST_BEFORE: Final = 3
"""The maximum number of rows shown before a difference."""

MOST_NUMBERS: Final = 8
"""The maximum number of numbers of a group that are shown of each row."""

MOST_WINDOWS: Final = 20
"""The maximum number of differences whose rows are shown."""

_SCALARS: Final = ("reward", "log_probability", "value")


class Row(msgspec.Struct, frozen=True):
    """A row of both sides; the cells of a side that lacks it are empty.

    step: the number of its action in the slot; call: `reset` or `step`
    """

    step: int
    call: str
    expected: tuple[str, ...]
    actual: tuple[str, ...]

    @property
    def sides(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The cells of both sides with their roles, or those that both have, with an empty role."""
        if self.expected == self.actual:
            return (("", self.expected),)
        return ("expected", self.expected), ("actual", self.actual)


class Window(msgspec.Struct, frozen=True):
    """The rows before a difference and the row that differs, which is the last one.

    divergence: the index of the divergence in its report
    columns:    the names of the cells: of an observation, a state or a mask only numbers that differ, if there are any
    """

    divergence: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def heads(self) -> list[tuple[str, str]]:
        """A title for each side of each row, with its role: `step 11 expected`."""
        return [(f"step {row.step} {role}".strip(), role) for row in self.rows for role, _ in row.sides]

    @property
    def lines(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The nonempty columns: the name of each, and a cell for each of `heads`, with its role if the sides differ."""
        lines = []
        for at, name in enumerate(("call", *self.columns)):
            line = []
            for row in self.rows:
                texts = [(role, (row.call, *cells)[at] if cells else "") for role, cells in row.sides]
                differs = len({text for _, text in texts}) > 1
                line += [(text, role if differs else "") for role, text in texts]
            if any(text for text, _ in line):
                lines.append((name, line))
        return lines


def show_rows(index: int, raw: Divergence, readers: tuple[RowReader, RowReader]) -> Window:
    """Return the rows around a difference. raw: the difference as the comparer of columns found it."""
    step = max(0, raw.step)
    bounds = [reader.first[raw.candidate : raw.candidate + 2].tolist() for reader in readers]
    at = [first + step for first, _ in bounds]
    is_within = [row < end for row, (_, end) in zip(at, bounds, strict=True)]
    longer = int(is_within == [False, True])
    reader, row = readers[longer], at[longer]
    # In lockstep a candidate is a single action, and the rows before it are those of the same slot.
    before = min(MOST_BEFORE, row - reader.rows_of(int(reader.slot[row - step])).start) if len(reader.slot) else 0
    columns = list(_choose_columns(readers, at if all(is_within) else None))
    rows = []
    for offset in range(-before, 1):
        sides = [
            _cells(side, own + offset, columns) if own + offset < end else ()
            for side, own, (_, end) in zip(readers, at, bounds, strict=True)
        ]
        # A side without this row is shown as the other one, and then left out.
        cells = [_show_both(*pair) for pair in zip(sides[0] or sides[1], sides[1] or sides[0], strict=True)]
        left, right = (tuple(pair[i] for pair in cells) if sides[i] else () for i in (0, 1))
        kind = StepKind(reader.steps.kind[row + offset])
        rows.append(Row(int(reader.number[row + offset]), kind.name.lower(), left, right))
    return Window(index, tuple(name for name, _, _ in columns), tuple(rows))


_Column = tuple[str, str, int]
"""A name, the group or column of the steps, and the index of a number in the group, or -1."""


def _choose_columns(readers: tuple[RowReader, RowReader], rows: list[int] | None) -> Iterator[_Column]:
    """Yield the columns that are shown: the action, the scalars that both sides have, and the numbers that differ.

    rows: the row of each side; None if a side lacks it
    """
    both = [reader.side for reader in readers]
    yield from _choose_numbers(readers, rows, "actions")
    yield from ((name, name, -1) for name in _SCALARS if name in both[0].known & both[1].known)
    yield "ends", "ends", -1
    for group in ("observations", "masks", "states", "hidden"):
        if group in both[0].names and group in both[1].names:
            yield from _choose_numbers(readers, rows, group)


def _choose_numbers(readers: tuple[RowReader, RowReader], rows: list[int] | None, group: str) -> Iterator[_Column]:
    """Yield the numbers of a group that differ, or the first ones of an action or an observation."""
    names, differing = readers[0].side.names.get(group, ()), []
    if rows is not None:
        left, right = (reader.numbers(group, row) for reader, row in zip(readers, rows, strict=True))
        if len(left) == len(right):
            differing = np.flatnonzero(~((left == right) | (np.isnan(left) & np.isnan(right)))).tolist()
    shown = differing or ([*range(len(names))] if group in ("actions", "observations") else [])
    yield from ((names[i] if i < len(names) else f"{group}[{i}]", group, i) for i in shown[:MOST_NUMBERS])


def _cells(reader: RowReader, row: int, columns: list[_Column]) -> tuple[float | str | None, ...]:
    """Return the values of a row; None for a number that it does not have."""
    values: list[float | str | None] = []
    is_step = reader.steps.kind[row] == StepKind.STEP
    for _, column, index in columns:
        if index >= 0:
            numbers = reader.numbers(column, row)
            values.append(float(numbers[index]) if index < len(numbers) else None)
        elif column == "ends":
            flags = [name for name in ("terminated", "truncated") if getattr(reader.steps, name)[row]]
            values.append(" and ".join(flags) or None)
        else:
            values.append(float(getattr(reader.steps, column)[row]) if is_step else None)
    return tuple(values)


def _show_both(left: float | str | None, right: float | str | None) -> tuple[str, str]:
    """Return both values as texts, with enough digits to tell numbers that differ apart."""
    for digits in (6, 9, 17):
        texts = [
            "" if each is None else f"{each:.{digits}g}" if isinstance(each, float) else each for each in (left, right)
        ]
        if texts[0] != texts[1] or left == right:
            break
    return texts[0], texts[1]
