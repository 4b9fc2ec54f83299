"""Atoms, substitutions and unification, for terms that are constants or variables.

A term is an int: a constant is its id (0 or more), variable number v is ``-1 - v``. There are no function
symbols, so a unifier maps variables to terms and needs no occurs check.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Atom(NamedTuple):
    """A predicate id with two terms."""

    predicate: int
    first: int
    second: int


Goal = tuple[Atom, ...]
"""Atoms to prove, left to right. The empty goal has nothing left to prove."""

Substitution = Mapping[int, int]
"""From variables to terms. Variables it does not mention stay as they are."""


def variable(number: int) -> int:
    """The term that stands for variable ``number`` (0 or more)."""
    return -1 - number


def is_ground(atom: Atom) -> bool:
    """Whether an atom holds no variable."""
    return atom.first >= 0 and atom.second >= 0


def unify(left: Atom, right: Atom) -> dict[int, int] | None:
    """The most general unifier of two atoms, fully resolved; None where there is none.

    Fully resolved: no variable that the unifier maps occurs in what it maps to, so that one application
    suffices. A variable that occurs in both atoms is the same variable.
    """
    if left.predicate != right.predicate:
        return None
    unifier: dict[int, int] = {}
    for left_term, right_term in ((left.first, right.first), (left.second, right.second)):
        kept = unifier.get(left_term, left_term)
        bound = unifier.get(right_term, right_term)
        if kept == bound:
            continue
        if bound >= 0:
            kept, bound = bound, kept
        if bound >= 0:
            return None  # two different constants
        for earlier, term in unifier.items():
            if term == bound:
                unifier[earlier] = kept
        unifier[bound] = kept
    return unifier


def match(atom: Atom, fact: Atom) -> dict[int, int] | None:
    """The substitution that makes an atom equal to a ground one, ``fact``; None where there is none."""
    predicate, first, second = atom
    if first == second and fact.first != fact.second:
        return None
    substitution: dict[int, int] = {}
    if first < 0:
        substitution[first] = fact.first
    elif first != fact.first:
        return None
    if second < 0:
        substitution[second] = fact.second
    elif second != fact.second:
        return None
    return substitution if predicate == fact.predicate else None


def substitute(atoms: Goal, substitution: Substitution) -> Goal:
    """Replace all variables at once: what is put in is not looked at again."""
    if not substitution:
        return atoms
    get = substitution.get
    return tuple([Atom(predicate, get(first, first), get(second, second)) for predicate, first, second in atoms])


def canonical(atoms: Goal) -> Goal:
    """Number the variables 0, 1, 2 ... by first appearance, left to right."""
    numbering: dict[int, int] = {}
    for _, first, second in atoms:
        if first < 0 and first not in numbering:
            numbering[first] = -1 - len(numbering)
        if second < 0 and second not in numbering:
            numbering[second] = -1 - len(numbering)
    return substitute(atoms, numbering)


def first_free_variable(atoms: Goal) -> int:
    """The least number such that no variable of that number or a higher one occurs."""
    lowest = 0
    for _, first, second in atoms:
        if first < lowest:
            lowest = first
        if second < lowest:
            lowest = second
    return -lowest


def count_variables(atoms: Goal) -> int:
    """How many distinct variables occur."""
    variables = set()
    for _, first, second in atoms:
        if first < 0:
            variables.add(first)
        if second < 0:
            variables.add(second)
    return len(variables)
