"""Goals that are equal up to the names of variables, and to the order of their atoms."""

from kgverify.program.fact_index import Ids
from kgverify.step.clauses import Atoms


def shape_of(atom: Ids) -> Ids:
    """Return an atom with the same stand-in for every variable."""
    predicate, a, b = atom
    return predicate, max(a, -1), max(b, -1)


def find_embedding(atoms: Atoms, whole: Atoms, *, is_loose: bool = False) -> tuple[int, ...] | None:
    """Return where the atoms of a goal stand in another one, in order, up to the names of variables; None if they do not.

    is_loose: a variable may stand for any term, different ones at each occurrence
    """

    def match(i: int, start: int, names: dict[int, int], back: dict[int, int]) -> tuple[int, ...] | None:
        if i == len(atoms):
            return ()
        for j in range(start, len(whole) - (len(atoms) - i) + 1):
            if atoms[i][0] != whole[j][0]:
                continue
            if is_loose:
                if any(a != b and min(a, b) >= 0 for a, b in zip(atoms[i][1:], whole[j][1:], strict=True)):
                    continue
                rest = match(i + 1, j + 1, names, back)
            else:
                further = extend_renaming(atoms[i], whole[j], names, back)
                rest = None if further is None else match(i + 1, j + 1, *further)
            if rest is not None:
                return (j, *rest)
        return None

    return match(0, 0, {}, {})


def is_permutation(atoms: Atoms, others: Atoms) -> bool:
    """Return whether two goals have the same atoms, up to their order and the names of variables."""
    if sorted(map(shape_of, atoms)) != sorted(map(shape_of, others)):
        return False

    def match(i: int, left: frozenset[int], names: dict[int, int], back: dict[int, int]) -> bool:
        if i == len(atoms):
            return True
        for j in left:
            further = extend_renaming(atoms[i], others[j], names, back)
            if further is not None and match(i + 1, left - {j}, *further):
                return True
        return False

    return match(0, frozenset(range(len(others))), {}, {})


def extend_renaming(
    atom: Ids, other: Ids, names: dict[int, int], back: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the renaming of variables, and its inverse, extended so that an atom becomes another one; None if none does."""
    if atom[0] != other[0]:
        return None
    names, back = dict(names), dict(back)
    for a, b in zip(atom[1:], other[1:], strict=True):
        if min(a, b) >= 0:
            if a != b:
                return None
        elif max(a, b) >= 0 or names.setdefault(a, b) != b or back.setdefault(b, a) != a:
            return None
    return names, back
