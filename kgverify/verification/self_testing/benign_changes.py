"""The judge of planted changes under a policy of benign differences, written apart from the comparison."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from kgverify.comparison.compare import Comparer
from kgverify.trace.model.columns import Columns

_OF_STEPS: Final = (
    "steps.num_atoms",
    "steps.goal_atoms",
    "steps.num_resolvents",
    "steps.choice",
    "resolvents.kind",
    "resolvents.num_atoms",
    "resolvents.atoms",
)


def find_wrong_owners(
    comparer: Comparer, column: str, sides: tuple[Columns, Columns], owners: dict[int, int | None]
) -> dict[int, int | None]:
    """Return the candidates in which a change of a column is not benign, with the first step where it is not.

    owners: the candidates changed, with the step changed, as the comparison counts it; None if it is not known
    """
    found: dict[int, int | None] = {}
    for candidate, step in owners.items():
        if column == "candidates.atom":
            atoms = [_rename([columns.candidates.atom[candidate].tolist()], comparer.modulo) for columns in sides]
            if atoms[0] != atoms[1]:
                found[candidate] = step
        elif column in _OF_STEPS:
            lists = [_steps(columns, candidate, comparer.modulo, comparer.not_compared) for columns in sides]
            wrong = [i for i, (left, right) in enumerate(zip(*lists, strict=True)) if left != right]
            if wrong:
                found[candidate] = step if comparer.lockstep else wrong[0]
        else:
            found[candidate] = step
    return found


def _steps(columns: Columns, candidate: int, modulo: frozenset[str], ignored: Collection[str]) -> list[Any]:
    """Return the goal, the resolvents, and the choice of each step of a candidate, in a form that equality suits.

    ignored: the columns that are not compared
    """
    steps, resolvents = columns.steps, columns.resolvents
    begin = int(columns.candidates.num_steps[:candidate].sum())
    goal_at = int(steps.num_atoms[:begin].sum())
    at = int(steps.num_resolvents[:begin].sum())
    atom_at = int(resolvents.num_atoms[:at].sum())
    found: list[Any] = []
    for row in range(begin, begin + int(columns.candidates.num_steps[candidate])):
        goal_end, end = goal_at + int(steps.num_atoms[row]), at + int(steps.num_resolvents[row])
        goal = _rename(steps.goal_atoms[goal_at:goal_end].tolist(), modulo)
        contents = []
        for resolvent in range(at, end):
            atom_end = atom_at + int(resolvents.num_atoms[resolvent])
            atoms = _rename(resolvents.atoms[atom_at:atom_end].tolist(), modulo)
            contents.append((int(resolvents.kind[resolvent]), atoms))
            atom_at = atom_end
        goal_at, at = goal_end, end
        choice: Any = None if "steps.choice" in ignored else int(steps.choice[row])
        if modulo & {"order", "duplicates"} and choice is not None and 0 <= choice < len(contents):
            choice = contents[choice]
        found.append((goal, _list(contents, modulo), choice))
    return found


def _list(contents: list[Any], modulo: frozenset[str]) -> Any:
    if "duplicates" in modulo:
        contents = list(dict.fromkeys(contents))
    return Counter(contents) if "order" in modulo else contents


def _rename(atoms: list[list[int]], modulo: frozenset[str]) -> tuple[tuple[int, ...], ...]:
    if "names" not in modulo:
        return tuple(map(tuple, atoms))
    names: dict[int, int] = {}
    return tuple((p, *(a if a >= 0 else -1 - names.setdefault(a, len(names)) for a in rest)) for p, *rest in atoms)
