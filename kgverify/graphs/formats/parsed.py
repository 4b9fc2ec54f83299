"""The triples of one file, as every reader returns them."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kgverify.program.atoms import NamedAtom

Columns: TypeAlias = tuple[int, int, int]
"""The columns of head, relation and tail in a table; 0 is the first."""

GivenColumns: TypeAlias = tuple[Columns, int]
"""The columns of a table without a header row, as the user gives them, and the number of all columns."""


class Triples(NamedTuple):
    """The triples of a file as ground atoms, in file order, and the line of each.

    warnings: what was skipped, each with file and line
    is_table: whether the file is a table, whose columns nothing but a header row names
    header:   the columns that the header row names; None without one
    """

    atoms: Sequence[NamedAtom]
    lines: Sequence[int]
    warnings: tuple[str, ...] = ()
    is_table: bool = False
    header: Columns | None = None
