"""The dialects that are consistent with the answers so far."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Final

import msgspec

from kgverify.program.dialect import FILTERS, OURS, VALUES, Dialect, Filter
from kgverify.testing.dialects.answer import Answer, predict, project
from kgverify.testing.dialects.experiments import Experiment

NO_MEMORY: Final = "none"
NEEDS: Final = {
    "memory": "revisit",
    "forgets_names": "revisit",
    "exempts_terminal": "revisit",
    "long_resolvents": "max_atoms",
}
"""The filter without which a switch means nothing."""
MOST_TRIED: Final = 300
"""Dialects that are tried on a problem."""


class Hypotheses:
    """A set of dialects, in which only the switches and filters matter that some experiment has used.

    dialects: the dialects; one without a memory has the memory `none` and no filter `revisit`
    used:     the names of these switches and filters
    """

    def __init__(self) -> None:
        self.dialects = [Dialect(filters=())]
        self.used: set[str] = set()

    def distinguish(self, uses: Iterable[str]) -> None:
        """Distinguish the values of further switches, and the places of further filters."""
        new = set(uses) - self.used
        self.used |= new
        for each in FILTERS:
            if each in new:
                self.dialects = [other for dialect in self.dialects for other in _place(dialect, each)]
        for name, values in VALUES.items():
            if name in new:
                self.dialects = [
                    msgspec.structs.replace(dialect, **{name: value})
                    for dialect in self.dialects
                    for value in _meaningful(dialect, name, values)
                ]

    def keep(self, experiments: Sequence[Experiment], answers: Sequence[Answer], *, is_ordered: bool) -> int:
        """Keep the dialects that fit the most answers, if these are more than half of them. Return how many they fit."""
        uses = experiments[0].uses
        fits: dict[Dialect, int] = {}
        for dialect in {project(dialect, uses) for dialect in self.dialects}:
            fits[dialect] = sum(
                arrange(predict(each, dialect).lines, is_ordered) == arrange(answer.lines, is_ordered)
                for each, answer in zip(experiments, answers, strict=True)
            )
        most = max(fits.values())
        if 2 * most > len(answers):
            self.dialects = [dialect for dialect in self.dialects if fits[project(dialect, uses)] == most]
        return most

    def keep_counts(self, experiments: Sequence[Experiment], answers: Sequence[Answer]) -> bool:
        """Keep the dialects that fit the numbers dropped in every answer. Return whether there are any; else keep all."""
        remaining = self.dialects
        for experiment, answer in zip(experiments, answers, strict=True):
            found = {project(dialect, experiment.uses) for dialect in remaining}
            fitting = {dialect for dialect in found if predict(experiment, dialect).counts == answer.counts}
            remaining = [dialect for dialect in remaining if project(dialect, experiment.uses) in fitting]
        if remaining:
            self.dialects = remaining
        return bool(remaining)

    def keep_fitting(self, fits: Callable[[Dialect], bool]) -> bool:
        """Try the nearest dialects, and drop those that do not fit. Return whether any of them fits; if none does, keep all."""
        self.dialects.sort(key=_distance)
        tried, rest = self.dialects[:MOST_TRIED], self.dialects[MOST_TRIED:]
        fitting = [each for each in tried if fits(with_place_of_revisit(each))]
        if fitting:
            self.dialects = [*fitting, *rest]
        return bool(fitting)

    def is_forced(self, experiments: Sequence[Experiment]) -> bool:
        """Return whether no dialect leaves the policy a choice in any of the experiments."""
        found = {project(dialect, experiments[0].uses) for dialect in self.dialects}
        return all(predict(each, dialect).is_forced for each in experiments for dialect in found)

    @property
    def nearest(self) -> Dialect:
        """The dialect that is nearest to the default one, with the filter `revisit` where it has no memory."""
        return with_place_of_revisit(min(self.dialects, key=_distance))

    def values(self, name: str) -> list[object]:
        """Return the possible values of a switch, in order; all that it has if no experiment has used it."""
        if name not in self.used:
            return list(VALUES[name])
        found = {getattr(dialect, name) for dialect in self.dialects}
        return [value for value in VALUES[name] if value in found]


def arrange(lines: Sequence[str], is_ordered: bool) -> tuple[str, ...]:
    """Return the lines as they are compared."""
    return tuple(lines if is_ordered else sorted(lines))


def with_place_of_revisit(dialect: Dialect) -> Dialect:
    """Return the dialect with the filter `revisit` at its default place if it has no memory, where that does nothing."""
    if "revisit" in dialect.filters or dialect.memory != NO_MEMORY:
        return dialect
    at = int("prune" in dialect.filters[:1])
    return msgspec.structs.replace(dialect, filters=(*dialect.filters[:at], "revisit", *dialect.filters[at:]))


def _place(dialect: Dialect, each: Filter) -> list[Dialect]:
    """Return the dialect without a filter, and with it at every place."""
    filters = dialect.filters
    placed = [(*filters[:at], each, *filters[at:]) for at in range(len(filters) + 1)]
    if each == "revisit":
        return [msgspec.structs.replace(dialect, memory=NO_MEMORY), *(_with_filters(dialect, f) for f in placed)]
    return [dialect, *(_with_filters(dialect, f) for f in placed)]


def _with_filters(dialect: Dialect, filters: tuple[Filter, ...]) -> Dialect:
    return msgspec.structs.replace(dialect, filters=filters)


def _meaningful(dialect: Dialect, name: str, values: tuple[object, ...]) -> list[object]:
    """Return the values of a switch that differ in their meaning."""
    if name in NEEDS and NEEDS[name] not in dialect.filters:
        return [getattr(dialect, name)]
    return [value for value in values if value != NO_MEMORY]


def _distance(dialect: Dialect) -> tuple[int, int]:
    """Return the number of switches that differ from the default dialect, and of pairs of filters in another order."""
    switches = sum(getattr(dialect, name) != getattr(OURS, name) for name in VALUES)
    filters = len(set(dialect.filters) ^ set(OURS.filters) - ({"revisit"} if dialect.memory == NO_MEMORY else set()))
    swapped = sum(FILTERS.index(a) > FILTERS.index(b) for a, b in combinations(dialect.filters, 2))
    return switches + filters, swapped
