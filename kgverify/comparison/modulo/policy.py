"""The differences that a comparison counts as benign, as the user declares them."""

from collections.abc import Collection
from itertools import combinations
from typing import Final, TypeAlias

from kgverify.errors import UserError
from kgverify.trace.model.header import Header

Modulo: TypeAlias = frozenset[str]
"""The kinds of differences that are benign."""

NAMES: Final = "names"
"""The numbers of the variables of a goal."""

ORDER: Final = "order"
"""The order of the resolvents of a step; a choice means the resolvent chosen. The order of atoms in a goal counts."""

DUPLICATES: Final = "duplicates"
"""Repetitions of a resolvent of a step."""

KINDS: Final = (NAMES, ORDER, DUPLICATES)

EXACT: Final = "none"
"""Declares that nothing is benign."""

NOTHING: Final[Modulo] = frozenset()

MEANINGS: Final = {
    NAMES: "names of variables",
    ORDER: "the order of resolvents",
    DUPLICATES: "repeated resolvents",
}


def parse_modulo(declared: str | Collection[str] | None) -> Modulo | None:
    """Return the kinds that a user declares, as `"names,order"` or one by one; None if nothing is declared.

    UserError for an unknown kind.
    """
    if declared is None:
        return None
    listed = declared.split(",") if isinstance(declared, str) else declared
    kinds = frozenset(each.strip() for each in listed)
    for each in sorted(kinds - {*KINDS, EXACT}):
        raise UserError(
            f"unknown kind of differences {each!r}",
            where="modulo",
            fix=f"give one or more of {', '.join(KINDS)}, separated by commas, or {EXACT}",
        )
    if EXACT in kinds and len(kinds) > 1:
        raise UserError(f"{EXACT} excludes other kinds", where="modulo", fix=f"give {EXACT} alone, or leave it out")
    return kinds - {EXACT}


def resolve_modulo(
    declared: Collection[str] | None, expected: Header, actual: Header
) -> tuple[Modulo, tuple[str, ...]]:
    """Return the kinds that hold for two traces, with a note if they follow from the traces.

    If nothing is declared, names are benign where an engine numbers variables its own way.
    """
    if declared is not None:
        return frozenset(declared), ()
    own = [header.engine.name for header in (expected, actual) if header.engine.variables == "own"]
    if not own:
        return NOTHING, ()
    whose = " and ".join(dict.fromkeys(own))
    note = f"variables of {whose} have numbers of their own, so names do not count (--modulo {EXACT} counts them)"
    return frozenset([NAMES]), (note,)


def order_kinds(kinds: Collection[str]) -> tuple[str, ...]:
    """Return kinds in the order in which they are listed."""
    return tuple(kind for kind in KINDS if kind in kinds)


def smaller_first(kinds: Modulo) -> list[Modulo]:
    """Return the subsets of some kinds that are not empty, smaller ones first."""
    listed = order_kinds(kinds)
    return [frozenset(each) for size in range(1, len(listed) + 1) for each in combinations(listed, size)]


def describe_modulo(kinds: Collection[str]) -> str:
    """Describe kinds: `names of variables and the order of resolvents`."""
    *most, last = [MEANINGS[kind] for kind in order_kinds(kinds)] or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last
