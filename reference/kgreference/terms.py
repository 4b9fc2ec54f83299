"""Atoms, substitutions and unification.

Terms are constants or variables. A term is an int: a constant is its id (0 or more), variable number v is ``-1 - v``.
There are no function symbols, so a unifier maps variables to terms and needs no occurs check.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Atom(NamedTuple):
    """A predicate id with two terms."""

    predicate: int
    first: int
    second: int


Triple = tuple[int, int, int]
"""An atom without field names. It equals the Atom with the same fields, but is created in a tenth of the time."""

Goal = tuple[Triple, ...]
"""Atoms to prove, from left to right. In the empty goal, nothing remains to be proved."""

Substitution = Mapping[int, int]
"""A map from variables to terms. Other variables stay unchanged."""


def variable(number: int) -> int:
    """Return the term that stands for variable ``number`` (0 or more)."""
    return -1 - number


def is_ground(atom: Triple) -> bool:
    """Return whether an atom contains no variable."""
    _, first, second = atom
    return first >= 0 and second >= 0


def unify(left: Triple, right: Triple) -> dict[int, int] | None:
    """Return the most general unifier of two atoms, fully resolved; None if they do not unify.

    Fully resolved means that the unifier maps no variable to a term that it also maps, so one application suffices. A
    variable that occurs in both atoms is the same variable.
    """
    left_predicate, left_first, left_second = left
    right_predicate, right_first, right_second = right
    if left_predicate != right_predicate:
        return None
    unifier: dict[int, int] = {}
    for left_term, right_term in ((left_first, right_first), (left_second, right_second)):
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


def binds_in_one_pass(atom: Triple, clause_head: Triple) -> bool:
    """Return whether an atom unifies with a clause head without binding a variable twice.

    The atom and the head must unify, and share no variable even if numbers coincide. The argument pairs are read once,
    in order: a variable of the head is bound to the term of the atom, or else a variable of the atom to the constant of
    the head. A variable of the atom that met two constants would not unify, so only a variable of the head can be bound
    to two terms.
    """
    _, first, second = clause_head
    is_repeated = first == second and first < 0
    return not is_repeated or atom[1] == atom[2]


def is_same_set(left: Goal, right: Goal) -> bool:
    """Return whether a renaming of variables turns the set of atoms of one goal into that of the other."""
    atoms, others = list(set(left)), set(right)

    def extend(index: int, renaming: dict[int, int]) -> bool:
        if index == len(atoms):
            return True
        predicate, *terms = atoms[index]
        for other in others:
            if other[0] == predicate:
                longer = dict(renaming)
                is_renamed = all(
                    longer.setdefault(term, new) == new if term < 0 and new < 0 else term == new
                    for term, new in zip(terms, other[1:], strict=True)
                )
                if is_renamed and len(set(longer.values())) == len(longer) and extend(index + 1, longer):
                    return True
        return False

    return len(atoms) == len(others) and extend(0, {})


def substitute(atoms: Goal, substitution: Substitution) -> Goal:
    """Replace all variables at once: the substituted terms are not substituted again."""
    if not substitution:
        return atoms
    get = substitution.get
    return tuple([(predicate, get(first, first), get(second, second)) for predicate, first, second in atoms])


def canonical(atoms: Goal) -> Goal:
    """Renumber the variables 0, 1, 2 ... by first appearance, left to right. Canonical atoms are returned unchanged."""
    lowest = 0
    for _, first, second in atoms:
        if first < lowest:
            lowest -= 1
            if first != lowest:
                break
        if second < lowest:
            lowest -= 1
            if second != lowest:
                break
    else:
        return atoms
    return substitute(atoms, {term: variable(number) for number, term in enumerate(variables(atoms))})


def first_free_variable(atoms: Goal) -> int:
    """Return the smallest number such that no variable with this or a higher number occurs."""
    lowest = 0
    for _, first, second in atoms:
        if first < lowest:
            lowest = first
        if second < lowest:
            lowest = second
    return -lowest


def variables(atoms: Goal) -> list[int]:
    """List the distinct variables in order of first appearance, left to right."""
    found: dict[int, None] = {}
    for _, first, second in atoms:
        if first < 0:
            found[first] = None
        if second < 0:
            found[second] = None
    return list(found)
