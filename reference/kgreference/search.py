"""A search: several derivations of one query, followed level by level, as docs/semantics.md defines it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from kgreference.corrupt import MASK, mix
from kgreference.dialect import Aggregate, Dialect, Merge
from kgreference.policy import Policy
from kgreference.program import Program
from kgreference.rank import Ranks, rank
from kgreference.resolvent import Kind
from kgreference.step import (
    OUR_STAGES,
    Limits,
    Outcome,
    Situation,
    Stages,
    Step,
    complete_step,
    find_excluded,
    find_resolvents,
)
from kgreference.terms import Atom, Goal, canonical, variables

LEAST_EXACT = -700.0
"""The log-probability, in nats, below which `exp` loses digits, and noisy-or equals a sum to every digit."""


class Path(NamedTuple):
    """The steps from the query, or from a given goal, to a goal, or to an end.

    place:           the place in its level; -1 if it is not kept
    parent:          the place of the path that it continues, in the level before; -1 at the query
    log_probability: of the path, or as merging gives it, in nats
    goals:           the visited goals, the current one last
    depth:           the number of counted steps
    num_uncounted:   the number of uncounted steps directly before
    steps:           the steps taken, each with its choice
    """

    place: int
    parent: int
    log_probability: float
    goals: tuple[Goal, ...]
    depth: int
    num_uncounted: int
    steps: tuple[Step, ...] = ()


class Expansion(NamedTuple):
    """The step of one path.

    level:    the number of its level, from 0
    path:     the path before the step
    step:     the step whose choice is the kept child of the lowest place. If none is kept, its choice is -1 and its outcome
              OPEN
    children: the place and the log-probability of each child: -1 and 0 if it is not kept; -2 - p if it is merged into place
              p, whose log-probability is that of all that are merged
    """

    level: int
    path: Path
    step: Step
    children: list[tuple[int, float]]


class Search(NamedTuple):
    """A search from a query.

    start:           the situation at the query
    levels:          the expansions of each level, in order of place
    ended:           the ended paths, in order of level and place
    outcome:         PROVED if any path is PROVED
    is_limited:      whether a limit dropped a resolvent, or `all` a child
    log_probability: the result of `aggregate`, in nats
    """

    start: Situation
    levels: list[list[Expansion]]
    ended: list[Path]
    outcome: Outcome
    is_limited: bool
    log_probability: float

    @property
    def steps(self) -> list[Step]:
        """The steps of all expansions."""
        return [each.step for level in self.levels for each in level]


def search(
    program: Program,
    limits: Limits,
    policy: Policy,
    query: Atom,
    dialect: Dialect,
    stages: Stages = OUR_STAGES,
    is_positive: bool = True,
) -> Search:
    """Search from the query until no path is open. The parameters are those of `derive`; the stage `choose` is not used.

    Raises ValueError for the greedy search, and for a limit below 1.
    """
    name, size, _ = dialect.search_numbers
    if name == "greedy" or min(limits.max_depth, limits.max_atoms, limits.max_resolvents) < 1:
        raise ValueError(f"expected a search that is not greedy, and limits of 1 or more, found {name} and {limits}")
    excluded = find_excluded(dialect, limits, query, is_positive)
    start = Situation(dialect, program, limits, policy, excluded, canonical((query,)), 0, set())
    beam = [Path(place, -1, 0.0, (start.goal,), 0, 0) for place in range(size if name == "sample" else 1)]
    levels: list[list[Expansion]] = []
    ended: list[Path] = []
    is_limited = False
    while beam:
        level, followed = take_level(start, len(levels), beam, stages)
        levels.append(level)
        is_limited |= any(each.step.dropped_atoms > 0 or each.step.dropped_resolvents > 0 for each in level)
        is_limited |= name == "all" and sum(len(each.children) for each in level) > size
        ended += [path for path in followed if path.steps[-1].outcome is not Outcome.OPEN]
        beam = [path for path in followed if path.steps[-1].outcome is Outcome.OPEN]
    outcome, log_probability = aggregate(dialect, ended)
    return Search(start, levels, ended, outcome, is_limited, log_probability)


def take_level(
    start: Situation, number: int, beam: Sequence[Path], stages: Stages = OUR_STAGES
) -> tuple[list[Expansion], list[Path]]:
    """Take one step of every path of a beam; return the expansions, and the paths that are followed or that end."""
    children = [expand(start, path, stages) for path in beam]
    kept = keep(start.dialect, start.goal[0], number, children)
    followed, shown = merge(start.dialect, kept)
    level = []
    for path, own in zip(beam, children, strict=True):
        nothing = own[0].steps[-1]._replace(choice=-1, outcome=Outcome.OPEN)
        step = next((child.steps[-1] for child in kept if child.parent == path.place), nothing)
        of_path = [shown.get((path.place, choice), (-1, 0.0)) for choice in range(len(own))]
        level.append(Expansion(number, path, step, of_path))
    return level, followed


def expand(start: Situation, path: Path, stages: Stages = OUR_STAGES) -> list[Path]:
    """Return the children of a path, one for each resolvent, without places. ``start``: the situation at the query."""
    situation = start._replace(goal=path.goals[-1], depth=path.depth, visited=set(path.goals))
    found = find_resolvents(situation, stages, path.num_uncounted)
    scores = stages.score(situation, found[1])
    children = []
    for index in range(len(scores)):
        step = complete_step(situation, found, scores, index, stages)
        log_probability = path.log_probability + step.log_probability
        num_uncounted = path.num_uncounted + 1 if step.is_uncounted else 0
        goals, steps = (*path.goals, step.chosen.atoms), (*path.steps, step)
        children.append(Path(-1, path.place, log_probability, goals, step.depth, num_uncounted, steps))
    return children


def keep(dialect: Dialect, query: Any, level: int, children: Sequence[Sequence[Path]]) -> list[Path]:
    """Return the kept children with their places, in order of place. There is one sequence of children for each path."""
    name, size, seed = dialect.search_numbers
    if name == "sample":
        drawn = [own[draw(seed, (*query, own[0].parent, level), own[0].steps[-1].scores)] for own in children]
        return [child._replace(place=child.parent) for child in drawn]
    listed = [child for own in children for child in own]
    if name == "beam":
        listed.sort(key=lambda child: -child.log_probability)  # stable: of equal children, the first one stays first
    return [child._replace(place=place) for place, child in enumerate(listed[:size])]


def draw(seed: int, numbers: Sequence[int], scores: Sequence[float]) -> int:
    """Return the index that a sample draws, in proportion to the exponentiated scores.

    ``numbers``: the ids of the query's predicate and arguments, the sample and the level.
    """
    key = mix(seed)
    for number in numbers:
        key = mix(key ^ (number & MASK))
    weights = [math.exp(score - max(scores)) for score in scores]
    total = math.fsum(weights)
    # `accumulate` adds plain floats from left to right, while `sum` compensates in some versions of Python.
    shares = accumulate(weight / total for weight in weights)
    return next((i for i, share in enumerate(shares) if share > (key >> 11) * 2.0**-53), len(scores) - 1)


def merge(dialect: Dialect, kept: Sequence[Path]) -> tuple[list[Path], dict[tuple[int, int], tuple[int, float]]]:
    """Return the paths that are followed, and the entry of each kept child in an expansion, by its parent and its choice."""
    groups: dict[Any, list[Path]] = {}
    for path in kept:
        chosen = path.steps[-1].chosen
        is_merged = chosen.kind is Kind.GOAL and dialect.merge is not Merge.NONE
        groups.setdefault(canonical(chosen.atoms) if is_merged else path.place, []).append(path)
    followed, shown = [], {}
    for first, *others in groups.values():
        values = [path.log_probability for path in (first, *others)]
        followed.append(first._replace(log_probability=_add(values) if dialect.merge is Merge.SUM else max(values)))
        shown[first.parent, first.steps[-1].choice] = first.place, followed[-1].log_probability
        for path in others:
            shown[path.parent, path.steps[-1].choice] = -2 - first.place, path.log_probability
    return followed, shown


def aggregate(dialect: Dialect, ended: Sequence[Path]) -> tuple[Outcome, float]:
    """Return the outcome and the log-probability of a candidate from its ended paths, in order of level and place."""
    if proofs := find_proofs(ended):
        return Outcome.PROVED, pool_proofs(dialect, [path.log_probability for path in proofs])
    best = max(ended, key=lambda path: path.log_probability)
    return best.steps[-1].outcome, best.log_probability


def find_proofs(ended: Sequence[Path]) -> list[Path]:
    """Return the proofs, each derivation once. Only samples repeat a derivation, which its choices identify."""
    distinct = {tuple(step.choice for step in path.steps): path for path in ended}
    return [path for path in distinct.values() if path.steps[-1].outcome is Outcome.PROVED]


def pool_proofs(dialect: Dialect, proofs: Sequence[float]) -> float:
    """Return the log-probability that the dialect gives to several proofs, in any order, from that of each."""
    highest = max(proofs)
    if dialect.aggregate is Aggregate.MAX:
        return highest
    if dialect.aggregate is Aggregate.SUM or highest < LEAST_EXACT:
        return _add(proofs)
    if math.exp(highest) >= 1.0:
        return 0.0
    return math.log(-math.expm1(math.fsum(math.log1p(-math.exp(each)) for each in proofs)))


def _add(log_probabilities: Sequence[float]) -> float:
    highest = max(log_probabilities)
    return highest + math.log(math.fsum(math.exp(each - highest) for each in log_probabilities))


def score_answers(found: Search, stages: Stages = OUR_STAGES) -> dict[int, float]:
    """Return the entities that the proofs of a query with one variable reach, with the aggregated log-probabilities.

    A proof that binds no constant to the variable reaches every constant. Merging would lose answers, and so do the
    filters `close` and `duplicates`. Raises ValueError for merging, and for a query without one variable.
    """
    (_, first, second), dialect = found.start.goal[0], found.start.dialect
    if dialect.merge is not Merge.NONE or (first < 0) == (second < 0):
        raise ValueError(
            f"expected a query with one variable, and no merging, found {found.start.goal}, {dialect.merge}"
        )
    reached: dict[int, list[float]] = {}
    for path in find_proofs(found.ended):
        answer = find_answer(found.start, path, stages)
        for entity in [answer] if answer >= 0 else range(len(found.start.program.constants)):
            reached.setdefault(entity, []).append(path.log_probability)
    return {entity: pool_proofs(dialect, log_probabilities) for entity, log_probabilities in reached.items()}


def find_answer(start: Situation, path: Path, stages: Stages = OUR_STAGES) -> int:
    """Return the term that a path gives to the variable of the query: a constant, or a variable that stays free.

    Each goal is resolved again with the chosen clause, and with a last atom that holds the term and that no clause matches.
    """
    term, visited = -1, set()
    for step in path.steps:
        visited.add(step.goal)
        marked = (*step.goal, (len(start.program.predicates), term, term))
        situation = start._replace(goal=marked, visited=visited)
        matches = [match(situation, step.selected) for match in (stages.match_rules, stages.match_facts)]
        resolvents = stages.resolve(situation, *matches)
        (atoms,) = [each.atoms for each in resolvents if each[2:] == step.chosen[2:]]  # by the same clause
        (*_, (_, term, _)) = canonical(atoms) if start.dialect.forgets_names else atoms
        if term not in variables(step.chosen.atoms):
            break
    return term


def rank_answers(scores: Mapping[int, float], entity: int, others: Iterable[int], tolerance: float = 0.0) -> Ranks:
    """Return the ranks of the true entity among others, from the scores of the entities reached.

    others: the entities to rank it against, without the other known answers

    Entities without a score come last, and are equal. The tolerance is that of `rank`.
    """
    last = min(scores.values(), default=0.0) - 1.0 - tolerance
    return rank(scores.get(entity, last), [scores.get(other, last) for other in others], tolerance)
