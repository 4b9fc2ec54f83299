"""The levels of searches with several paths, as recorded on the expected side."""

from collections.abc import Callable
from itertools import chain, groupby
from typing import Any, Final, NamedTuple

from kgverify.comparison.beams import as_resolvent
from kgverify.comparison.step_view import StepReader, plain
from kgverify.program.limits import Dialect, Search
from kgverify.program.outcomes import GoalKind
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import Taken
from kgverify.step.search import ALL_SOUND, Draw, Path, SearchStages, expand, keep_children
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.paths import has_paths


class SeenChild(NamedTuple):
    """A child of a path of a level.

    level:  the number of the level
    rank:   its number in the level, the most probable child first, less the most paths of a beam
    parent, choice, came: the place of its path, the index of the resolvent, and those that led to the path
    place:  the place that it got; -1 if it was not kept, -2 - p if it was merged into place p
    is_open: whether its path goes on in the next level
    """

    level: int
    rank: int
    parent: int
    choice: int
    log_probability: float
    place: int
    kind: GoalKind
    goal: Atoms
    came: tuple[int, ...]
    is_open: bool


_IS: Final[dict[str, Callable[[SeenChild], bool]]] = {
    "kept": lambda child: child.place >= 0,
    "listed": lambda child: child.place != -1,
    "dropped": lambda child: child.place == -1,
    "merged": lambda child: child.place < -1,
    "goal": lambda child: child.kind == GoalKind.GOAL,
    "proof": lambda child: child.kind == GoalKind.TRUE,
    "failure": lambda child: child.kind in (GoalKind.FALSE, GoalKind.STOP),
    "ended": lambda child: child.place >= 0 and not child.is_open,
    "near": lambda child: child.rank <= 0,
    "edge": lambda child: child.rank in (-1, 0),
}
"""The properties of children by which features pick them. `edge`: the last one within a beam, and the first one beyond it."""


class Level(NamedTuple):
    """A level of a search.

    places:   the place of the path of each step, by the number of the step
    before:   the levels before
    paths:    the paths, without the goals that they visited, and their resolvents
    children: the children, by place
    draw:     what decides which children are kept
    """

    places: dict[int, int]
    before: Any
    paths: tuple[list[Path], list[Taken]]
    children: list[SeenChild]
    draw: Draw

    def pick(self, properties: str) -> list[SeenChild]:
        """Return the children with all properties: of this level, of the levels before (`before`), or of both (`all`)."""
        names = {*properties.split()}
        levels = self.before if "before" in names else (*self.before, self) if "all" in names else (self,)
        tests = [_IS[name] for name in names & {*_IS}]
        return [child for level in levels for child in level.children if all(test(child) for test in tests)]

    def changes(self, dialect: Dialect, stages: SearchStages) -> bool:
        """Return whether other children are kept by some stages, or with log-probabilities that rounding does not explain."""
        both = (keep_children(dialect, self.draw, *self.paths, each) for each in (stages, ALL_SOUND))
        left, right = (
            [kept._replace(log_probability=round(kept.log_probability, 9)) for kept in each] for each in both
        )
        return left != right


class LevelReader(StepReader):
    """A reader of steps, and of the levels of searches. dialect: that of both sides; None if no levels are wanted."""

    def __init__(self, columns: Columns, dialect: Dialect | None) -> None:
        super().__init__(columns)
        self._search = dialect.searching if dialect is not None and has_paths(columns) else None
        self._numbers = columns.paths.level
        self._levels: dict[tuple[int, int], Level] = {}

    def find_level(self, candidate: int, step: int) -> Level | None:
        """Return the level of a step; None without a search."""
        if self._search is not None and (candidate, step) not in self._levels:
            self._read_levels(candidate, self._search)
        return self._levels.get((candidate, step))

    def _read_levels(self, candidate: int, search: Search) -> None:
        paths, start = self.columns.paths, self.first_resolvent
        rows = range(*self.first_step[candidate : candidate + 2])
        steps_of_levels = groupby(range(len(rows)), lambda step: self._numbers[rows[step]])
        beams = [{step: int(paths.place[rows[step]]) for step in steps} for _, steps in steps_of_levels]
        (query,) = number_variables(plain(self.columns.candidates.atom[[candidate]].tolist()))
        levels: list[Level] = []
        for number, (places, after) in enumerate(zip(beams, (*(each.values() for each in beams[1:]), ()), strict=True)):
            taken = [Taken([*map(as_resolvent, self.read(rows[step]).resolvents)]) for step in places]
            beam = [Path(place, (), float(paths.log_probability[rows[step]])) for step, place in places.items()]
            got = paths.child[start(rows[min(places)]) : start(rows[max(places)] + 1)].tolist()
            every = zip(expand(beam, taken), got, chain(*(each.resolvents for each in taken)), strict=True)
            ranked = sorted(every, key=lambda each: -each[0].log_probability)
            came = {child.place: (*child.came, child.choice) for child in (levels[-1].children if levels else ())}
            children = [
                SeenChild(number, rank, *c, at, r.kind, number_variables(r.atoms), came.get(c.parent, ()), at in after)
                for rank, (c, at, r) in enumerate(ranked, -search.size if search.kind == "beam" else 0)
            ]
            children.sort(key=lambda child: child.place)
            levels.append(Level(places, tuple(levels), (beam, taken), children, Draw(search, query, number)))
            self._levels |= {(candidate, step): levels[-1] for step in places}
