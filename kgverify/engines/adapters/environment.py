"""The part of the environment of a prover that kgverify plays: the memory of visited goals, and the unknown columns."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from kgverify.errors import UserError, suggest
from kgverify.step.clauses import number_variables

Memory: TypeAlias = Literal["none", "sets", "goals"]

UNKNOWN_TO_STEPS: Final = (
    "resolvents.origin_kind",
    "resolvents.origin",
    "steps.dropped_atoms",
    "steps.dropped_resolvents",
    "candidates.is_limited",
)
"""The columns unknown to a prover that gives successors alone."""

GIVE_UP_SCORE: Final = -64.0
"""The score of an action that gives up, or of an empty goal, where kgverify scores: below that of any goal."""


def describe_mode(arrays: str, given: Collection[str] = ()) -> str:
    """Return the mode of an engine: its arrays, and who chooses. given: those of "scores" and "choice" that it gives."""
    if "choice" in given:
        return arrays
    return f"{arrays}, choices by kgverify" + (" from its scores" if "scores" in given else "")


def _as_set(goal: Iterable[Sequence[Any]]) -> Hashable:
    return frozenset(map(tuple, goal))


def _as_goal(goal: Iterable[Sequence[Any]]) -> Hashable:
    return number_variables((predicate, a, b) for predicate, a, b in goal)


MEMORIES: Final[Mapping[str, Callable[[Iterable[Sequence[Any]]], Hashable] | None]] = {
    "none": None,
    "sets": _as_set,
    "goals": _as_goal,
}
"""The form in which each memory keeps a visited goal."""


def check_memory(memory: str, where: str) -> None:
    """Raise a UserError unless the memory exists."""
    if memory not in MEMORIES:
        raise UserError(
            f"unknown memory {memory!r}",
            where=f"{where}.memory",
            fix=suggest(memory, tuple(MEMORIES)) or f"choose one of {', '.join(MEMORIES)}",
        )
