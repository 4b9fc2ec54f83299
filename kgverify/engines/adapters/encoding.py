"""The numbers that an engine on padded tensors uses for atoms, and their translation to and from the ids of a program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError, suggest
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Program

Ids: TypeAlias = NDArray[np.int64]

HOLE: Final = (-1, 0, 0)
"""A row of padding inside a state, in its recorded form."""

_LARGEST: Final = (1 << 29) - 1
"""The largest number that is kept: larger ones are recorded as this number, since traces hold ids of 32 bits."""

_BELOW_ZERO: Final = 1 << 29
"""Added to an unknown number below 0, so that its id is above the ids of all names."""


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The numbers that an engine on padded tensors gives to symbols. Every field has a default.

    padding:        the number that fills rows without an atom
    predicates:     the number of the first predicate (the others follow in the program's order), or a mapping from each
                    predicate's name to its number
    constants:      the same for constants
    first_variable: the number of the first variable; the next variables lie above it or, if it is negative, below it.
                    The default is the first number above all constants.
    true, false:    the predicate of a state that is proved, or cannot be proved; None if there is no such predicate.
                    Without `true`, a state that consists only of padding is proved.
    stop:           predicates of other actions that end a derivation, such as giving up
    order:          the columns of an atom: `p` the predicate, `a` its first argument, `b` its second

    Example:
        >>> import kgverify as kv
        >>> kv.Encoding(true=13, false=14, stop=(15,), order="apb").first_variable is None
        True
    """

    padding: int = 0
    predicates: int | Mapping[str, int] = 1
    constants: int | Mapping[str, int] = 1
    first_variable: int | None = None
    true: int | None = None
    false: int | None = None
    stop: tuple[int, ...] = ()
    order: str = "pab"

    def __post_init__(self) -> None:
        if sorted(self.order) != ["a", "b", "p"]:
            raise UserError(
                f"order is {self.order!r}, expected the letters p, a and b",
                where="Encoding",
                fix='give "pab" for rows (predicate, first, second), "apb" for rows (first, predicate, second)',
            )


class Decoded(NamedTuple):
    """States in the ids of a program.

    kind:      uint8 [R]     a `GoalKind`
    num_atoms: int64 [R]     atoms of each state, holes included
    extent:    int64 [R]     rows up to the last one that is not padding
    atoms:     int64 [N, 3]  the atoms of all states, without the atoms that mark TRUE, FALSE and STOP
    """

    kind: NDArray[np.uint8]
    num_atoms: Ids
    extent: Ids
    atoms: Ids


class Translation:
    """An encoding applied to a program. It translates states of any shape, in both directions.

    UserError for an encoding that does not fit.

    first_variable: the number of the first variable
    """

    def __init__(self, encoding: Encoding, program: Program) -> None:
        self.encoding, symbols = encoding, program.symbols
        self._padding = encoding.padding
        self._columns = ["pab".index(letter) for letter in encoding.order]
        self._of_column = [encoding.order.index(letter) for letter in "pab"]
        self._predicates = _Numbers("predicates", encoding.predicates, symbols.predicates)
        self._constants = _Numbers("constants", encoding.constants, symbols.constants)
        first = encoding.first_variable
        self.first_variable = self._constants.highest + 1 if first is None else first
        self._sign = 1 if self.first_variable >= 0 else -1
        terminals = (encoding.true,), (encoding.false,), encoding.stop
        self._kinds = [
            (kind, [number for number in numbers if number is not None])
            for kind, numbers in zip((GoalKind.TRUE, GoalKind.FALSE, GoalKind.STOP), terminals, strict=True)
        ]
        self._is_empty_true = encoding.true is None
        for kind, ids in self._kinds:
            for each in ids:
                if each == encoding.padding or self._predicates.knows(each):
                    raise UserError(
                        f"{kind.name} is {each}, which is also {'padding' if each == encoding.padding else 'a predicate'}",
                        where="Encoding",
                        fix="give numbers that mean one thing each",
                    )
        if self._sign > 0 and self.first_variable <= self._constants.highest and symbols.constants:
            raise UserError(
                f"first_variable is {self.first_variable}, and the constants reach {self._constants.highest}",
                where="Encoding",
                fix="give a number above those of the constants, or none",
            )

    @property
    def numbers(self) -> tuple[Ids, Ids]:
        """The numbers of all predicates and of all constants, in the order of their ids: int64 [P] and int64 [C]."""
        return self._predicates.own, self._constants.own

    def encode(self, atoms: NDArray[np.integer]) -> Ids:
        """Return atoms, int64 [..., 3] in ids of the program, in the engine's numbers; a hole is padding."""
        found = np.asarray(atoms, np.int64)
        predicate, arguments = found[..., 0], found[..., 1:]
        variable = self.first_variable + self._sign * (-1 - arguments)
        own = np.empty_like(found)
        own[..., 0] = self._predicates.encode(predicate)
        own[..., 1:] = np.where(arguments < 0, variable, self._constants.encode(arguments))
        own[predicate < 0] = self._padding
        reordered: Ids = own[..., self._columns]
        return reordered

    def free_variable(self, num_variables: NDArray[np.integer]) -> Ids:
        """Return the first number that is free after the given numbers of variables."""
        return self.first_variable + self._sign * np.asarray(num_variables, np.int64)

    def decode(self, states: Ids) -> Decoded:
        """Return states, int64 [R, M, 3] in the engine's numbers, in ids of the program."""
        rows = np.clip(states[..., self._of_column], -_LARGEST, _LARGEST)
        is_padding = (rows == self._padding).all(axis=-1)
        kind = np.full(len(rows), GoalKind.GOAL, np.uint8)
        is_terminal = np.zeros(rows.shape[:2], np.bool_)
        for code, ids in reversed(self._kinds):
            # A state with several terminal predicates is of the first kind; the others are recorded as its atoms.
            found = np.isin(rows[..., 0], ids) & ~is_padding
            holds = found.any(axis=1)
            kind[holds] = code
            is_terminal[holds] = found[holds]
        if self._is_empty_true:
            kind[is_padding.all(axis=1)] = GoalKind.TRUE
        position = np.arange(1, rows.shape[1] + 1)
        extent = np.where(is_padding, 0, position).max(axis=1, initial=0)
        length = np.where(is_padding | is_terminal, 0, position).max(axis=1, initial=0)
        is_kept = (position <= length[:, None]) & ~is_terminal
        return Decoded(kind, is_kept.sum(axis=1), extent, self._decode_atoms(rows[is_kept], is_padding[is_kept]))

    def _decode_atoms(self, rows: Ids, is_hole: NDArray[np.bool_]) -> Ids:
        atoms = np.empty_like(rows)
        atoms[:, 0] = self._predicates.decode(rows[:, 0])
        arguments = rows[:, 1:]
        number = (arguments - self.first_variable) * self._sign
        atoms[:, 1:] = np.where(number >= 0, -1 - number, self._constants.decode(arguments))
        atoms[is_hole] = HOLE
        return atoms


class _Numbers:
    """The engine's number of each predicate or constant. A number without a name becomes an id above the ids of all names.

    own: int64 [N]  the number of each id
    """

    def __init__(self, field: str, numbers: int | Mapping[str, int], names: tuple[str, ...]) -> None:
        self._num = len(names)
        if isinstance(numbers, Mapping):
            missing = [name for name in names if name not in numbers]
            if missing:
                raise UserError(
                    f"{field} gives no number to {missing[0]!r}",
                    where="Encoding",
                    fix=suggest(missing[0], tuple(numbers)) or f"number every name of the program's {field}",
                )
            own = np.array([int(numbers[name]) for name in names], np.int64)
        else:
            own = numbers + np.arange(len(names), dtype=np.int64)
        order = np.argsort(own, kind="stable")
        self.own, self._sorted, self._order = own, own[order], order
        if (self._sorted[1:] == self._sorted[:-1]).any():
            twice = int(self._sorted[:-1][self._sorted[1:] == self._sorted[:-1]][0])
            raise UserError(
                f"{field} gives the number {twice} to several names",
                where="Encoding",
                fix="give each name a number of its own",
            )
        # An engine may know more names than the program has, and numbers its variables above all of them.
        highest = max(map(int, numbers.values()), default=0) if isinstance(numbers, Mapping) else numbers - 1
        self.highest = max([highest, *own.tolist()])

    def knows(self, number: int) -> bool:
        """Return whether a number is that of a name."""
        return bool((self.own == number).any())

    def encode(self, ids: Ids) -> Ids:
        """Return the number of each id; any number for an id below 0."""
        unknown = ids - self._num
        unknown = np.where(unknown < _BELOW_ZERO, unknown, _BELOW_ZERO - unknown)
        if not self._num:
            return unknown
        return np.where(ids < self._num, self.own[np.clip(ids, 0, self._num - 1)], unknown)

    def decode(self, numbers: Ids) -> Ids:
        """Return the id of each number."""
        unknown = self._num + np.where(numbers >= 0, numbers, _BELOW_ZERO - numbers)
        if not self._num:
            return unknown
        at = np.minimum(np.searchsorted(self._sorted, numbers), self._num - 1)
        return np.where(self._sorted[at] == numbers, self._order[at], unknown)
