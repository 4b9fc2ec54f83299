"""The levels of searches with several paths, as recorded on the expected side."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import StepReader
from kgverify.program.atoms import Goal
from kgverify.program.limits import Dialect
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import Resolvent, Taken
from kgverify.step.search import ALL_SOUND, Draw, Path, SearchStages, expand, keep_children
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.paths import has_paths, number_levels


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
    "goal": lambda child: child.kind == GoalKind.GOAL,
    "proof": lambda child: child.kind == GoalKind.TRUE,
    "failure": lambda child: child.kind in (GoalKind.FALSE, GoalKind.STOP),
    "alive": lambda child: child.kind in (GoalKind.GOAL, GoalKind.TRUE),
    "open": lambda child: child.is_open,
    "ended": lambda child: child.place >= 0 and not child.is_open,
}
"""The properties of children by which features select them."""


@dataclass(eq=False)
class Level:
    """A level of a search.

    rows:     the row of the step of the path at each place
    before:   the levels before
    beam:     the paths with resolvents, without the goals that they visited; taken: their resolvents, by place
    children: the children, in the order of `expand`
    draw:     what decides which children are kept
    """

    reader: StepReader
    dialect: Dialect
    rows: dict[int, int]
    before: tuple["Level", ...]
    beam: list[Path]
    taken: dict[int, Taken]
    children: list[SeenChild]
    draw: Draw

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The goal of each path."""
        return tuple(map(self.reader.goal_of, self.rows.values()))

    def list_children(self, properties: str) -> list[SeenChild]:
        """Return the children that have all properties, by level and place.

        They are those of this level, of the levels before (`before`), or of both (`all`).
        """
        names = properties.split()
        levels = (*(self.before if {"before", "all"} & {*names} else ()), *(() if "before" in names else (self,)))
        every = (each for level in levels for each in sorted(level.children, key=lambda child: child.place))
        return [each for each in every if all(_IS[name](each) for name in names if name in _IS)]

    def keep(self, stages: SearchStages = ALL_SOUND) -> list[tuple[float, ...]]:
        """Return the children that some stages keep: path, index, place, rounded log-probability, and place of merging."""
        kept = keep_children(self.dialect, self.draw, self.beam, list(self.taken.values()), stages)
        return [(*each[:3], round(each.log_probability, 9), each.merged_into) for each in kept]


class LevelReader(StepReader):
    """A reader of steps, and of the levels of searches. dialect: that of both sides; None if no levels are wanted."""

    def __init__(self, columns: Columns, dialect: Dialect | None) -> None:
        super().__init__(columns)
        self._dialect = dialect if has_paths(columns) else None
        self._numbers = number_levels(columns) if self._dialect else None
        self._known: dict[int, list[Level]] = {}

    def find_parent(self, candidate: int, step: int) -> int:
        """Return the number of the step from which a step comes; a negative number for none."""
        first, end = self.first_step[candidate : candidate + 2]
        return int(self._parents[first + step]) - first if step < end - first else step - 1

    def find_level(self, candidate: int, step: int) -> Level | None:
        """Return the level of a step; None without a search."""
        first, end = self.first_step[candidate : candidate + 2]
        if self._dialect is None or self._numbers is None or not 0 <= step < end - first:
            return None
        if candidate not in self._known:
            self._known[candidate] = self._read_levels(candidate, self._dialect)
        return self._known[candidate][int(self._numbers[first + step])]

    def children_of(self, candidate: int, step: int) -> NDArray[np.float64]:
        """Return the places and the log-probabilities of the children of a step: float64 [2, R]; none for a missing step."""
        row, paths = self.first_step[candidate] + step, self.columns.paths
        stop = min(row + 1, self.first_step[candidate + 1])
        span = slice(self.first_resolvent(min(row, stop)), self.first_resolvent(stop))
        return np.array([paths.child[span], paths.child_log_probability[span]], np.float64)

    def _read_levels(self, candidate: int, dialect: Dialect) -> list[Level]:
        columns, start, numbers = self.columns, self.first_resolvent, self._numbers
        assert numbers is not None
        first, end = self.first_step[candidate : candidate + 2]
        begins = [row for row in range(first, end) if row == first or numbers[row] != numbers[row - 1]]
        places = columns.paths.place.tolist()
        predicate, one, two = columns.candidates.atom[candidate].tolist()
        (query,) = number_variables([(predicate, one, two)])
        levels: list[Level] = []
        for number, (begin, stop) in enumerate(pairwise((*begins, end))):
            rows = {places[row]: row for row in range(begin, stop)}
            after = places[stop : begins[number + 2] if number + 2 < len(begins) else end]
            taken = {
                place: Taken(
                    [Resolvent(r.atoms, Origin.NONE, 0, GoalKind(r.kind), r.score) for r in self.read(row).resolvents]
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
            draw = Draw(dialect.searching, query, number)
            levels.append(Level(self, dialect, rows, tuple(levels), beam, taken, children, draw))
        return levels
