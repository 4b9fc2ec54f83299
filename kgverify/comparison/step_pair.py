"""Two steps side by side: their lists of resolvents, aligned once, with the resolvents that only one side has."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from kgverify.comparison.step_view import Content, ResolventView, StepView, content_of, list_unshared
from kgverify.errors import count_of
from kgverify.program.outcomes import DifferenceClass, GoalKind, Origin
from kgverify.step.clauses import Atoms, Clause

Item = TypeVar("Item")
AnyKey = TypeVar("AnyKey", bound=Hashable)

Key: TypeAlias = tuple[int, Atoms, Clause]
"""A resolvent: its kind, its atoms in canonical variables, and the clause that made it."""

NO_CLAUSE: Final[Clause] = (int(Origin.NONE), 0)


class Listed(NamedTuple):
    """The list of resolvents that a step offers, and the numbers that the limits dropped."""

    keys: tuple[Key, ...]
    dropped_atoms: int
    dropped_resolvents: int


class Aligned(Generic[Item, AnyKey]):
    """Two lists, aligned by a key of their items.

    missing, extra: the items that only the expected, or only the actual list has, counted with multiplicity
    """

    def __init__(self, expected: Sequence[Item], actual: Sequence[Item], key: Callable[[Item], AnyKey]) -> None:
        self.sides = expected, actual
        self.keys = list(map(key, expected)), list(map(key, actual))
        self.missing, self.extra = list_unshared(expected, actual, key)


class StepPair:
    """The expected and the actual step from the same goal.

    has_origins: whether both sides know the clauses that made their resolvents
    has_counts:  whether both sides know how many resolvents the limits dropped
    """

    def __init__(
        self, expected: StepView, actual: StepView, *, has_origins: bool = True, has_counts: bool = True
    ) -> None:
        self.steps = expected, actual
        self.has_origins, self.has_counts = has_origins, has_counts

    def without_stopping(self) -> "StepPair":
        """Return the two steps without STOP among their resolvents."""
        expected, actual = (step.without_stopping() for step in self.steps)
        return StepPair(expected, actual, has_origins=self.has_origins, has_counts=self.has_counts)

    @cached_property
    def only(self) -> tuple[list[ResolventView], list[ResolventView]]:
        """The resolvents that only one side has; names of variables and clauses count.

        FALSE, which marks an empty list, and STOP are left out unless nothing else differs.
        """
        expected, actual = self.steps
        found = Aligned(expected.resolvents, actual.resolvents, lambda r: (r.content, r.clause))
        ends = GoalKind.FALSE, GoalKind.STOP
        left, right = ([r for r in side if r.kind not in ends] for side in (found.missing, found.extra))
        return (left, right) if left or right else (found.missing, found.extra)

    @cached_property
    def contents(self) -> Aligned[ResolventView, Content]:
        """The resolvents up to the names of variables, without the FALSE that marks an empty list."""
        left, right = ([r for r in s.resolvents if r.kind != GoalKind.FALSE or r.atoms] for s in self.steps)
        return Aligned(left, right, content_of)

    @cached_property
    def listed(self) -> Aligned[ResolventView, Key]:
        """The resolvents with the details that both sides know, up to the names of variables."""
        expected, actual = self.steps
        return Aligned(expected.resolvents, actual.resolvents, lambda r: self._known((*content_of(r), r.clause)))

    @cached_property
    def has_proof(self) -> tuple[bool, bool]:
        """True for each side that lists TRUE."""
        expected, actual = (any(r.kind == GoalKind.TRUE for r in step.resolvents) for step in self.steps)
        return expected, actual

    def read(self, side: int) -> Listed:
        """Return the list of a side (0: expected, 1: actual) with the details that both sides know."""
        step = self.steps[side]
        return self.show(Listed(tuple(self.listed.keys[side]), step.dropped_atoms, step.dropped_resolvents))

    def show(self, listed: Listed) -> Listed:
        """Return a list with the details that both sides know."""
        return Listed(tuple(map(self._known, listed.keys)), *(listed[1:] if self.has_counts else (0, 0)))

    def _known(self, key: Key) -> Key:
        kind, atoms, _ = key
        return key if self.has_origins else (kind, atoms, NO_CLAUSE)


def judge_counts(missing: int, extra: int, what: str, repeated: int = 0) -> tuple[DifferenceClass, str]:
    """Return the class for some missing and extra items, and both numbers in words: `2 facts missing, none extra`.

    repeated: how many of the extra items are there already
    """
    of_extra = f", {repeated:,} of them repeated" if repeated else ""
    if not missing:
        words = (
            f"{count_of(extra, f'repeated {what}')} extra"
            if repeated == extra
            else f"{count_of(extra, what)} extra{of_extra}"
        )
        return DifferenceClass.EXTRA, f"{words}, none missing"
    kind = DifferenceClass.SUBSTITUTED if extra else DifferenceClass.MISSING
    return kind, f"{count_of(missing, what)} missing, {f'{extra:,}' if extra else 'none'} extra{of_extra}"
