"""The triples of one file, as every reader returns them, and the choices of a user about files that have several readings."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias, TypedDict

from kgverify.errors import UserError, suggest
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


class Part(NamedTuple):
    """The triples of a file for a split, or of an object, which has no file name."""

    split: str
    file: str
    triples: Triples


RULE_VARIABLES: Final = ("format", "graph")
_COLUMNS: Final = ("head", "relation", "tail")
_UNREAD: Final = "-"


class ReadingOptions(TypedDict, total=False):
    """The options of `load_graph` that say how files are read."""

    rule_variables: str | None
    skip_rules: bool
    columns: str | None


class Reading(NamedTuple):
    """The choices of a user about the files of a graph.

    rule_variables: the meaning of a rule's name that is a variable by its format and a constant of the graph: `format` for
                    the variable, `graph` for the constant; None refuses it
    skip_rules:     whether rules that cannot be used are left out
    columns:        the columns of tables without a header row, such as `head,tail,relation`; `-` is one that is not read
    """

    rule_variables: str | None = None
    skip_rules: bool = False
    columns: str | None = None

    def check(self) -> None:
        """Raise UserError for a value that no option has."""
        if self.rule_variables not in (None, *RULE_VARIABLES):
            raise UserError(
                f"expected {' or '.join(RULE_VARIABLES)}, found {self.rule_variables!r}",
                where="rule_variables",
                fix=suggest(self.rule_variables, RULE_VARIABLES)
                or "give format for the variables of the format, graph for the constants of the graph",
            )
        if self.columns is not None:
            self.find_columns()

    def find_columns(self) -> GivenColumns | None:
        """Return the columns of head, relation and tail, and the number of all columns; None if they are not given."""
        if self.columns is None:
            return None
        names = [name.strip() for name in self.columns.split(",")]
        if sorted(name for name in names if name != _UNREAD) != sorted(_COLUMNS):
            raise UserError(
                f"expected the names head, relation and tail, once each, found {self.columns!r}",
                where="columns",
                fix="give them in the order of the file, such as head,tail,relation; write - for each other column",
            )
        head, relation, tail = map(names.index, _COLUMNS)
        return (head, relation, tail), len(names)


AS_WRITTEN: Final = Reading()
"""Files as their formats say; what they leave open is refused."""
