"""The levels of searches with several paths, as recorded on the expected side."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import StepReader, content_of
from kgverify.program.atoms import Goal
from kgverify.program.limits import Search
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import Resolvent, Taken
from kgverify.step.search import Draw, Path, expand
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.paths import find_parents, has_paths, number_levels


class SeenChild(NamedTuple):
    """A child of a path of a level.

    parent, choice: the place of the path, and the index among its resolvents
    place:   the place that it got; -1 if it was not kept, -2 - p if it was merged into place p
    is_open: whether its path goes on in the next level
    """

    parent: int
    choice: int
    log_probability: float
    place: int
    kind: int
    is_open: bool


_IS: Final[dict[str, Callable[[SeenChild], bool]]] = {
    "kept": lambda child: child.place >= 0,
    "dropped": lambda child: child.place == -1,
    "merged": lambda child: child.place < -1,
    "proof": lambda child: child.kind == GoalKind.TRUE,
    "goal": lambda child: child.kind == GoalKind.GOAL,
    "failure": lambda child: child.kind in (GoalKind.FALSE, GoalKind.STOP),
    "open": lambda child: child.is_open,
    "ended": lambda child: child.place >= 0 and not child.is_open,
}
"""The properties of children by which features select them."""


@dataclass(eq=False)
class Level:
    """A level of a search.

    rows:     the row of the step of the path at each place
    before:   the levels before
    taken:    the scores of the path at each place, without the atoms of its resolvents
    children: the children, in the order of `expand`
    draw:     what decides which children are kept
    """

    reader: "LevelReader"
    rows: dict[int, int]
    before: tuple["Level", ...]
    taken: dict[int, Taken]
    children: list[SeenChild]
    draw: Draw

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The goal of each path."""
        return tuple(map(self.reader.goal_of, self.rows.values()))

    @cached_property
    def parents_by_goal(self) -> list[list[int]]:
        """The paths of the kept and merged children with the same goal, by goal."""
        groups = defaultdict[object, list[int]](list)
        for each in self.children:
            if each.place != -1 and each.kind == GoalKind.GOAL:
                resolvents = self.reader.read(self.rows[each.parent]).resolvents
                groups[content_of(resolvents[each.choice])].append(each.parent)
        return list(groups.values())

    def list_children(self, properties: str) -> list[SeenChild]:
        """Return the children that have all properties, by level and place.

        They are those of this level, of the levels before (`before`), or of both (`all`).
        """
        names = properties.split()
        levels = (*(self.before if {"before", "all"} & {*names} else ()), *(() if "before" in names else (self,)))
        every = (each for level in levels for each in sorted(level.children, key=lambda child: child.place))
        return [each for each in every if all(_IS[name](each) for name in names if name in _IS)]


class LevelReader(StepReader):
    """A reader of steps, and of the levels of searches. search: the search of both sides, None if it is unknown."""

    def __init__(self, columns: Columns, search: Search | None) -> None:
        super().__init__(columns)
        self._search = search if search is not None and has_paths(columns) else None
        self._parents = find_parents(columns)
        self._numbers = number_levels(columns) if self._search else None
        self._known: dict[int, list[Level]] = {}

    def rows_before(self, row: int) -> list[int]:
        """Return the rows of the steps that led to a step, the first one first."""
        parent = int(self._parents[row])
        return [] if parent < 0 else [*self.rows_before(parent), parent]

    def find_parent(self, candidate: int, step: int) -> int:
        """Return the number of the step from which a step comes; a negative number for none."""
        first, end = self.first_step[candidate : candidate + 2]
        return int(self._parents[first + step]) - first if self._search and step < end - first else step - 1

    def children_of(self, candidate: int, step: int) -> NDArray[np.float64]:
        """Return the places and the log-probabilities of the children of a step: float64 [2, R]; none for a missing step."""
        row, paths = self.first_step[candidate] + step, self.columns.paths
        stop = min(row + 1, self.first_step[candidate + 1])
        span = slice(self.first_resolvent(min(row, stop)), self.first_resolvent(stop))
        return np.array([paths.child[span], paths.child_log_probability[span]], np.float64)

    def find_level(self, candidate: int, step: int) -> Level | None:
        """Return the level of a step; None without a search."""
        first, end = self.first_step[candidate : candidate + 2]
        if self._search is None or self._numbers is None or step >= end - first:
            return None
        if candidate not in self._known:
            self._known[candidate] = self._read_levels(candidate, self._search)
        return self._known[candidate][int(self._numbers[first + step])]

    def _read_levels(self, candidate: int, search: Search) -> list[Level]:
        columns, start, numbers = self.columns, self.first_resolvent, self._numbers
        assert numbers is not None
        first, end = self.first_step[candidate : candidate + 2]
        begins = [row for row in range(first, end) if row == first or numbers[row] != numbers[row - 1]]
        places, scores = columns.paths.place.tolist(), columns.resolvents.score
        predicate, *terms = columns.candidates.atom[candidate].tolist()
        (query,) = number_variables([(predicate, terms[0], terms[1])])
        levels: list[Level] = []
        for number, (begin, stop) in enumerate(pairwise((*begins, end))):
            rows = {places[row]: row for row in range(begin, stop)}
            after = places[stop : begins[number + 2] if number + 2 < len(begins) else end]
            taken = {
                place: Taken(
                    [Resolvent((), Origin.NONE, 0, score=x) for x in scores[start(row) : start(row + 1)].tolist()]
                )
                for place, row in rows.items()
                if start(row) < start(row + 1)
            }
            beam = [Path(place, (), float(columns.paths.log_probability[rows[place]])) for place in taken]
            span = slice(start(begin), start(stop))
            recorded = columns.paths.child[span].tolist(), columns.resolvents.kind[span].tolist()
            children = [
                SeenChild(*child, place, kind, kind == GoalKind.GOAL and place in after)
                for child, place, kind in zip(expand(beam, list(taken.values())), *recorded, strict=True)
            ]
            levels.append(Level(self, rows, tuple(levels), taken, children, Draw(search, query, number)))
        return levels
