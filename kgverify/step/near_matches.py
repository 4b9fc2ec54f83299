"""Rules by which engines go wrong: they match, resolve or look up as these functions do, and not as the semantics say."""

from typing import TypeAlias

from kgverify.program.outcomes import Origin
from kgverify.step.clauses import Atoms, Clauses, resolve

Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or a fact."""


def matches(goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether a clause's head unifies with the first atom of a goal."""
    return resolve(goal, clauses.clause(goal, *clause)[0], ()) is not None


def matches_without(place: int, goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether a clause matches if an argument of the selected atom is ignored."""
    terms = list(goal[0])
    terms[place] = min(0, *terms[1:]) - 1
    return matches(((terms[0], terms[1], terms[2]),), clause, clauses)


def matches_apart(goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether each argument of a clause's head matches by itself."""
    pairs = zip(goal[0][1:], clauses.clause(goal, *clause)[0][1:], strict=True)
    return all(left == right or min(left, right) < 0 for left, right in pairs)


def matches_in(bits: int, goal: Atoms, clause: Clause, clauses: Clauses) -> bool:
    """Return whether the last bits of all constants match."""
    pairs = zip(goal[0][1:], clauses.clause(goal, *clause)[0][1:], strict=True)
    return all(min(left, right) < 0 or not (left ^ right) & (1 << bits) - 1 for left, right in pairs)


def resolve_unrenamed(goal: Atoms, clause: Clause, clauses: Clauses) -> Atoms | None:
    """Return what a clause makes if its variables, numbered from 0, are not renamed apart from the goal's."""
    kind, index = clause
    return resolve(goal, *clauses.rules[index]) if kind == Origin.RULE else resolve(goal, clauses.facts[index], ())


def resolve_unchained(goal: Atoms, clause: Clause, clauses: Clauses) -> Atoms | None:
    """Return what a clause makes if each variable is replaced only once."""
    return resolve(goal, *clauses.clause(goal, *clause), is_chained=False)


def pack(bits: int, p: int, a: int, b: int) -> int:
    """Return the key of an atom with some bits for each argument: larger ids reach into their neighbours' bits."""
    return (p << 2 * bits) + (a << bits) + b


def cut(bits: int, p: int, a: int, b: int) -> int:
    """Return the key of an atom of which some bits of each id are left."""
    most = (1 << bits) - 1
    return pack(bits, p & most, a & most, b & most)
