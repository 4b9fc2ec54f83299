"""A search with several paths: a function for each stage of docs/semantics.md after `score`, and their composition.

The reference prover has its own search, which shares no code with this one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from kgverify.program.limits import Dialect, Limits, Search
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import (
    SOUND,
    Situation,
    Stages,
    Taken,
    choose_resolvent,
    filter_resolvents,
    find_outcome,
)


class Path(NamedTuple):
    """A derivation that is open.

    place:           its place in the beam
    visited:         its goals, the current one last
    log_probability: in nats
    depth:           its counted steps
    choices:         the index of the resolvent that it chose in each step
    num_uncounted:   its last steps in a row that were not counted
    parent:          the place of the path, in the level before, from which it comes; -1 in the first level
    """

    place: int
    visited: Sequence[Atoms]
    log_probability: float = 0.0
    depth: int = 0
    choices: tuple[int, ...] = ()
    num_uncounted: int = 0
    parent: int = -1

    def is_uncounted(self, limits: Limits, taken: Taken) -> bool:
        """Return whether its step does not count: its only resolvent is a goal, in a dialect that skips such steps."""
        is_unary = len(taken.resolvents) == 1 and not taken.resolvents[0].kind
        return limits.dialect.skips_unary and is_unary and self.num_uncounted < limits.max_depth


class Child(NamedTuple):
    """A resolvent of a path. parent: the place of the path; choice: the index of the resolvent."""

    parent: int
    choice: int
    log_probability: float


class Kept(NamedTuple):
    """A child that is kept.

    parent, choice:  the place of the path, and the index among its resolvents; -1 for a child that no path of the beam has
    merged_into:     the place of the path with the same goal that takes it in; -1 for none
    goal, kind:      the goal from which an engine goes on, and its kind unless the resolvent ends the path; None for the
                     atoms of the resolvent
    """

    parent: int
    choice: int
    place: int
    log_probability: float
    merged_into: int = -1
    goal: Atoms | None = None
    kind: GoalKind = GoalKind.GOAL


class Level(NamedTuple):
    """One step of every path of a beam: the resolvents of each path, with their scores, and the children that are kept."""

    taken: Sequence[Taken]
    kept: Sequence[Kept]


class Ended(NamedTuple):
    """A path that ended. choices: as in `Path`; level: the number of its last level."""

    outcome: Outcome
    log_probability: float
    level: int
    place: int
    choices: tuple[int, ...]


class Searched(NamedTuple):
    """A search of one candidate: the beam of each level, what became of it, and the outcome."""

    beams: Sequence[Sequence[Path]]
    levels: Sequence[Level]
    is_limited: bool
    outcome: Outcome
    log_probability: float


class Draw(NamedTuple):
    """The choice of children in a level: the search, the query's atom, and the number of the level."""

    search: Search
    query: tuple[int, int, int]
    level: int


def expand(beam: Sequence[Path], taken: Sequence[Taken]) -> list[Child]:
    """Return every resolvent of every path as a child, with its log-probability."""
    children = []
    for path, each in zip(beam, taken, strict=True):
        scores = [resolvent.score for resolvent in each.resolvents]
        most = max(scores, default=0.0)
        total = math.log(math.fsum([math.exp(score - most) for score in scores] or [1.0]))
        children += [
            Child(path.place, i, path.log_probability + (score - most - total)) for i, score in enumerate(scores)
        ]
    return children


def top_k(draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Return the children that are kept, in order of place. taken: the resolvents of the path at each place."""
    kind, size, _ = draw.search
    if kind == "sample":
        chosen = {place: draw_child(draw, place, each) for place, each in taken.items()}
        return [Kept(c.parent, c.choice, c.parent, c.log_probability) for c in children if chosen[c.parent] == c.choice]
    ordered = sorted(children, key=lambda child: -child.log_probability) if kind == "beam" else children
    return [Kept(*child[:2], place, child.log_probability) for place, child in enumerate(ordered[:size])]


def draw_child(draw: Draw, sample: int, taken: Taken) -> int:
    """Return the index of the resolvent that a sample chooses."""
    number = draw_number(draw, sample)
    return next((i for i, each in enumerate(_sum_probabilities(taken)) if each > number), len(taken.resolvents) - 1)


def _sum_probabilities(taken: Taken) -> list[float]:
    """Return the probability of each resolvent together with those before it."""
    scores = [each.score for each in taken.resolvents]
    weights = [math.exp(each - max(scores)) for each in scores]
    total = math.fsum(weights)
    return list(accumulate(weight / total for weight in weights))


def miss_draw(draw: Draw, sample: int, taken: Taken, choice: int) -> float:
    """Return how far the number by which a sample chooses is from those that lead to a choice; 0 if it leads there."""
    sums = [0.0, *_sum_probabilities(taken)]
    number = draw_number(draw, sample)
    highest = 1.0 if choice == len(taken.resolvents) - 1 else sums[choice + 1]
    return max(0.0, sums[choice] - number, number - highest)


def draw_number(draw: Draw, sample: int) -> float:
    """Return the number from 0 to 1 by which a sample chooses in a level (docs/semantics.md)."""
    key = _mix(draw.search.seed)
    for word in (*draw.query, sample, draw.level):
        key = _mix(key ^ (word & _WORD))
    return (key >> 11) * 2.0**-53


_WORD: Final = (1 << 64) - 1


def _mix(word: int) -> int:
    """Return the splitmix64 step of a word."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _WORD
    return word ^ word >> 31


def merge(dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    """Merge the kept children with the same goal into the one with the best place."""
    if dialect.merge == "none":
        return list(kept)
    same: dict[object, list[Kept]] = {}
    for child in kept:
        resolvent = taken[child.parent].resolvents[child.choice]
        is_goal = resolvent.kind == GoalKind.GOAL
        same.setdefault(number_variables(resolvent.atoms) if is_goal else child.place, []).append(child)
    merged = []
    for first, *others in same.values():
        if others:
            highest = max(each.log_probability for each in (first, *others))
            total = add_probabilities([first, *others]) if dialect.merge == "sum" else highest
            first = first._replace(log_probability=total)
        merged += [first, *(each._replace(merged_into=first.place) for each in others)]
    return sorted(merged, key=lambda child: child.place)


def add_probabilities(items: "Sequence[Kept | Ended]") -> float:
    """Return the logarithm of the sum of some probabilities, given their logarithms."""
    most = max(each.log_probability for each in items)
    return most + math.log(math.fsum(math.exp(each.log_probability - most) for each in items))


def aggregate(dialect: Dialect, ended: Sequence[Ended]) -> tuple[Outcome, float]:
    """Return the outcome and the log-probability of a candidate from the paths that ended, in order of level and place."""
    proofs = list({each.choices: each for each in reversed(ended) if each.outcome is Outcome.PROVED}.values())[::-1]
    if not ended:
        # An engine that keeps no child loses all paths.
        return Outcome.FAILED, 0.0
    best = max(proofs or ended, key=lambda each: each.log_probability)
    if not proofs or dialect.aggregate == "max":
        return best.outcome, best.log_probability
    # Of tiny probabilities, the sum is also that of independent proofs, to every digit.
    if dialect.aggregate == "sum" or best.log_probability < _TINY:
        return Outcome.PROVED, add_probabilities(proofs)
    if best.log_probability >= 0.0:
        return Outcome.PROVED, 0.0
    failing = math.fsum(math.log1p(-math.exp(each.log_probability)) for each in proofs)
    return Outcome.PROVED, math.log(-math.expm1(failing))


_TINY: Final = -700.0
"""The log-probability below which a probability has fewer digits than a float."""


class SearchStages(NamedTuple):
    """The functions of a search. Each may be replaced; those of a step are `Stages`."""

    expand: Callable[[Sequence[Path], Sequence[Taken]], list[Child]] = expand
    top_k: Callable[[Draw, Sequence[Child], Mapping[int, Taken]], list[Kept]] = top_k
    merge: Callable[[Dialect, Sequence[Kept], Mapping[int, Taken]], list[Kept]] = merge
    aggregate: Callable[[Dialect, Sequence[Ended]], tuple[Outcome, float]] = aggregate


ALL_SOUND: Final = SearchStages()
"""The stages of this module."""

TakeLevel: TypeAlias = Callable[[int, Sequence[Path]], Level]
"""A function that takes one step of every path, given the number of the level and the beam."""


def take_level(
    situation: Situation,
    level: int,
    beam: Sequence[Path],
    stages: Stages = SOUND,
    searching: SearchStages = ALL_SOUND,
) -> Level:
    """Take one step of every path. situation: that of the query, whose visited goals and depth do not matter."""
    dialect, most, taken = situation.dialect, situation.limits.max_depth, []
    for path in beam:
        at = situation._replace(visited=path.visited, depth=path.depth, may_skip=path.num_uncounted < most)
        selected = stages.select(at)
        rules, facts = stages.match_rules(at, selected), stages.match_facts(at, selected)
        filtered = filter_resolvents(at, stages.resolve(at, rules, facts), stages)
        taken.append(choose_resolvent(at, filtered, stages).taken)
    ((predicate, first, second),) = situation.visited[0]
    draw = Draw(dialect.searching, (predicate, first, second), level)
    return Level(taken, keep_children(dialect, draw, beam, taken, searching))


def keep_children(
    dialect: Dialect, draw: Draw, beam: Sequence[Path], taken: Sequence[Taken], stages: SearchStages = ALL_SOUND
) -> list[Kept]:
    """Return the children that are kept or merged, in order of place: the stages from `expand` to `merge`."""
    of_place = {path.place: each for path, each in zip(beam, taken, strict=True)}
    return stages.merge(dialect, stages.top_k(draw, stages.expand(beam, taken), of_place), of_place)


def begin(dialect: Dialect, query: Atoms) -> list[Path]:
    """Return the first beam."""
    kind, size, _ = dialect.searching
    return [Path(place, (query,)) for place in range(size if kind == "sample" else 1)]


def advance_paths(limits: Limits, level: int, beam: Sequence[Path], found: Level) -> tuple[list[Path], list[Ended]]:
    """Return the paths that are open after a level, in order of place, and those that ended."""
    by_place = {path.place: (path, taken) for path, taken in zip(beam, found.taken, strict=True)}
    still_open, ended = [], []
    for child in found.kept:
        if child.merged_into >= 0:
            continue
        # A child that no path has is a derivation of its own.
        orphan = Path(-1, (), depth=level, choices=(-1, level, child.place))
        path, taken = by_place.get(child.parent, (orphan, Taken(())))
        goal, kind = child.goal or (), child.kind
        if taken.resolvents:
            resolvent = taken.resolvents[child.choice]
            goal, kind = resolvent.atoms if child.goal is None else child.goal, resolvent.kind or kind
        is_uncounted = path.is_uncounted(limits, taken)
        depth, choices = path.depth + (not is_uncounted), (*path.choices, child.choice)
        outcome = find_outcome(limits, kind, depth)
        if outcome is not Outcome.OPEN:
            ended.append(Ended(outcome, child.log_probability, level, child.place, choices))
            continue
        visited, num = (*path.visited, goal), path.num_uncounted + 1 if is_uncounted else 0
        still_open.append(Path(child.place, visited, child.log_probability, depth, choices, num, child.parent))
    return still_open, ended


class Searches:
    """The searches of several candidates, level by level."""

    def __init__(self, limits: Limits, queries: Sequence[Atoms]) -> None:
        self._limits, self._is_all = limits, limits.dialect.searching.kind == "all"
        self.beams: list[list[Sequence[Path]]] = [[begin(limits.dialect, query)] for query in queries]
        self._levels: list[list[Level]] = [[] for _ in queries]
        self._ended: list[list[Ended]] = [[] for _ in queries]
        self.open = list(range(len(queries)))

    def advance(self, found: Sequence[Level]) -> int:
        """Add a level of every candidate that is open, and return how many of them ended."""
        num_open = len(self.open)
        for i, level in zip(self.open, found, strict=True):
            paths, ended = advance_paths(self._limits, len(self._levels[i]), self.beams[i][-1], level)
            self._levels[i].append(level)
            self._ended[i] += ended
            self.beams[i].append(paths)
        self.open = [i for i in self.open if self.beams[i][-1]]
        return num_open - len(self.open)

    def conclude(self, i: int, aggregate: Callable[[Sequence[Ended]], tuple[Outcome, float]]) -> Searched:
        """Return the search of a candidate that has ended. aggregate: its last stage."""
        levels = self._levels[i]
        is_limited = any(each.dropped_atoms or each.dropped_resolvents for level in levels for each in level.taken)
        if self._is_all:
            size = self._limits.dialect.searching.size
            is_limited |= any(sum(len(each.resolvents) for each in level.taken) > size for level in levels)
        ended = self._ended[i]
        # An engine may keep no child of an open path.
        return Searched(self.beams[i][:-1], levels, is_limited, *(aggregate(ended) if ended else (Outcome.FAILED, 0.0)))
