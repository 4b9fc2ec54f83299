"""The atoms of a resolvent, changed: bodies that lack an atom or are turned, and what is left of a longer goal."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kgverify.program.fact_index import Ids
from kgverify.program.outcomes import Origin
from kgverify.step.clauses import Atoms
from kgverify.step.renaming import find_embedding
from kgverify.step.resolvent import Resolvent

_CHANGES: Final = {
    "the last atom of each longer body is missing": slice(None, -1),
    "the first atom of each longer body is missing": slice(1, None),
    "each body is turned": slice(None, None, -1),
}


def change_bodies(made: Sequence[Resolvent], num_rest: int) -> Iterator[tuple[str, list[Resolvent]]]:
    """Yield what clauses make if all bodies of two atoms or more are changed, with the change in words.

    num_rest: the number of atoms of the goal behind the selected one
    """
    for words, change in _CHANGES.items():
        changed = [_change(each, num_rest, change) for each in made]
        if changed != made:
            yield words, changed


def _change(each: Resolvent, num_rest: int, change: slice) -> Resolvent:
    num = len(each.atoms) - num_rest
    if each.clause[0] != Origin.RULE or num < 2:
        return each
    return each._replace(atoms=(*each.atoms[:num][change], *each.atoms[num:]))


def could_be_pruned(
    made: Sequence[Resolvent], changed: Sequence[Resolvent], is_like_fact: Callable[[Ids], bool]
) -> bool:
    """Return whether a single clause is changed, and lacks ground atoms alone, or atoms like facts."""
    pairs = [pair for pair in zip(made, changed, strict=True) if pair[0] != pair[1]]
    lost = (atom for own, other in pairs for atom in Counter(own.atoms) - Counter(other.atoms))
    return len(pairs) < 2 and all(min(atom[1:]) >= 0 or is_like_fact(atom) for atom in lost)


def has_lost_ground(shorter: Atoms, longer: Atoms) -> bool:
    """Return whether the shorter goal is the longer one without some ground atoms."""
    kept = find_embedding(shorter, longer)
    return (
        kept is not None
        and len(shorter) < len(longer)
        and all(min(atom[1:]) >= 0 for i, atom in enumerate(longer) if i not in kept)
    )
