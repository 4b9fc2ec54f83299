"""Atoms, in names and in ids.

In ids an atom is three int32: predicate, first argument, second argument. An argument is a constant (its id,
0 or more) or a variable (variable number v is the id `-1 - v`). The encoding is its own inverse.
"""

from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import NamedTuple, TypeAlias


class Variable(NamedTuple):
    """A variable, by its name. A constant is a plain `str`, its name."""

    name: str


Term: TypeAlias = str | Variable


class NamedAtom(NamedTuple):
    """A predicate with two arguments, each a constant's name or a `Variable`."""

    predicate: str
    first: Term
    second: Term

    @property
    def is_ground(self) -> bool:
        """True if both arguments are constants."""
        return not (isinstance(self.first, Variable) or isinstance(self.second, Variable))

    def rename(self, terms: "Mapping[Term, Term]", predicates: Mapping[str, str] | None = None) -> "NamedAtom":
        """Return the atom with terms replaced, and predicates if given; a name that the mapping lacks stays."""
        predicate, a, b = self
        if predicates is not None:
            predicate = predicates.get(predicate, predicate)
        return NamedAtom(predicate, terms.get(a, a), terms.get(b, b))


def parse_atoms(text: str) -> tuple[NamedAtom, ...]:
    """Parse atoms with blanks between them, such as `p(X,a) q(X,Y)`. Variables begin with an upper-case letter."""
    words = [word.rstrip(")").replace("(", ",").split(",") for word in text.split()]
    return tuple(
        [NamedAtom(p, *(Variable(name) if name[0].isupper() else name for name in names)) for p, *names in words]
    )


class Atom(NamedTuple):
    """A predicate with two arguments, in ids."""

    predicate: int
    first: int
    second: int


Goal: TypeAlias = tuple[Atom, ...]


def as_goal(atoms: Iterable[Iterable[int]]) -> Goal:
    """Return a goal of atoms that are any three numbers."""
    return tuple(starmap(Atom, atoms))


def encode_variable(number: int) -> int:
    """Return the argument id of variable `number` (0, 1, 2 ...): -1, -2, -3 ..."""
    return -1 - number


def decode_variable(argument: int) -> int:
    """Return the variable number of an argument id below 0."""
    return -1 - argument


def is_variable(argument: int) -> bool:
    """Return whether an argument id stands for a variable."""
    return argument < 0
