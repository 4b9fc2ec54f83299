"""Searches with several paths for each candidate: level by level, the paths of many candidates together.

C children, that is, resolvents of the paths of a level; P paths; D goals visited by each; A atoms of a goal, padded.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kgverify.program.limits import Limits
from kgverify.prover.program.tables import Tables
from kgverify.prover.stages.choose import Parameters, Score, score_two_tower, tower
from kgverify.prover.stages.resolve import goal_hash, rename
from kgverify.prover.state import (
    DEPTH_LIMIT,
    FAILED,
    FALSE,
    GOAL,
    OPEN,
    PAD,
    PROVED,
    TRUE,
    Decided,
    Derivations,
    Layout,
    Work,
    alter,
)
from kgverify.prover.tick.stage_ticks import Chunk, LoggedRows, LoggedSteps, TakenSteps, read_steps
from kgverify.trace.model.columns import Paths


class Beams(NamedTuple):
    """The open paths of some candidates after the same number of steps, in the order of candidates and places.

    candidate:       int64   [P]
    place, parent:   int32   [P]           the path's place, and in the level before that of its parent, or -1
    log_probability: float64 [P]           nats
    query:           int32   [P, 3]        the excluded atom
    visited:         int32   [P, D, A, 3]  the current goal is the last one
    """

    candidate: Tensor
    place: Tensor
    parent: Tensor
    log_probability: Tensor
    query: Tensor
    visited: Tensor

    def take(self, rows: Tensor | slice) -> "Beams":
        """Return the given paths."""
        return Beams(*(each[rows] for each in self))

    def derivations(self) -> Derivations:
        """Return the paths as the derivations of slots."""
        depth = torch.full_like(self.place, self.visited.shape[1] - 1)
        is_open = torch.full_like(depth, OPEN)
        is_limited = torch.zeros_like(is_open, dtype=torch.bool)
        # The kernels read every tensor row by row.
        goal, visited = self.visited[:, -1].contiguous(), self.visited.contiguous()
        return Derivations(self.candidate, self.query, goal, depth, is_open, is_limited, self.log_probability, visited)

    def count_candidates(self) -> int:
        """Return the number of candidates with open paths."""
        return int((self.candidate.diff() != 0).sum()) + 1 if len(self.candidate) else 0


Decide: TypeAlias = Callable[[Derivations, Work | None, bool], Decided]
"""(derivations, work as the tick before left it, or None, whether to count all that is dropped) -> the completed steps."""


class Level(NamedTuple):
    """The children of the paths of a level, in the order of paths and resolvents, and those that are kept.

    Unless it is recorded, paths may be left out whose children cannot be kept.

    kind, num, work: of each path: the kind and the number of its resolvents, its clauses and counts
    path, ordinal:   int64   [C]        the path of each child, and its index among the path's resolvents
    atoms:           int32   [C, A, 3]
    score:           float64 [C]
    kept:            int64   [K]        the children that are kept, in the order of candidates and places
    place:           int32   [K]
    merged_into:     int32   [K]        the place of the child that takes it in; -1 for none
    log_probability: float64 [K]
    outcome:         int32   [K]
    """

    kind: Tensor
    num: Tensor
    work: Work
    path: Tensor
    ordinal: Tensor
    atoms: Tensor
    score: Tensor
    kept: Tensor
    place: Tensor
    merged_into: Tensor
    log_probability: Tensor
    outcome: Tensor


class Endings(NamedTuple):
    """Paths that ended, ordered by level and place for each candidate: candidate int64, outcome int32, log_probability."""

    candidate: Tensor
    outcome: Tensor
    log_probability: Tensor


MOST_ROWS: Final = 1 << 15
"""The most goals whose towers are computed at once."""


class GoalScores:
    """The scores of resolvents in float64. The tower of each goal is computed only once in a level."""

    def __init__(self, tables: Tables, parameters: Parameters, score: Score) -> None:
        self.tables, self._parameters, self._score = tables, parameters, score

    def __call__(self, goals: Tensor, atoms: Tensor, path: Tensor) -> Tensor:
        """Return the score of each resolvent, int32 [C, A, 3], of the goal of its path, float64 [C]."""
        # Only goals with resolvents need a tower. On a GPU, `unique_consecutive` takes as long as many of them.
        has_some = torch.zeros_like(goals[:, 0, 0], dtype=torch.bool).index_fill_(0, path, True)
        goals, path = goals[has_some], (has_some.cumsum(0) - 1)[path]
        if self._score is not score_two_tower:
            found: Tensor = self._score(self._parameters, goals, atoms, path).double()
            return found
        every = torch.cat((goals, atoms))
        examples, numbers = number_goals(self.tables, every)
        features = torch.cat([tower(self._parameters, part) for part in torch.split(every[examples], MOST_ROWS)])
        of_goal, numbers = numbers[: len(goals)][path], numbers[len(goals) :]
        scores = [
            (features[left] * features[right]).sum(1)
            for left, right in zip(torch.split(of_goal, MOST_ROWS), torch.split(numbers, MOST_ROWS), strict=True)
        ]
        return torch.cat(scores) / math.sqrt(features.shape[1])


class Screen(NamedTuple):
    """Scores in a fast precision. margin: the error of the difference between two of a goal's scores, in nats."""

    scores: GoalScores
    margin: float


def number_goals(tables: Tables, atoms: Tensor) -> tuple[Tensor, Tensor]:
    """Return a number for each goal, int32 [n, A, 3], that only equal goals share, and before it an example of each number."""
    numbers = torch.unique(goal_hash(tables, atoms), return_inverse=True)[1]
    for _ in range(2):
        places = torch.arange(len(numbers), device=numbers.device)
        examples = torch.empty_like(places).scatter_(0, numbers, places)[: int(numbers.amax()) + 1]
        if torch.equal(atoms[examples[numbers]], atoms):
            break
        # Two goals share a hash.
        numbers = torch.unique(atoms.flatten(1), dim=0, return_inverse=True)[1]
    return examples, numbers


def add_exponentials(values: Tensor, group: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Return the highest value of each group, and the logarithm of the sum of exp(value - highest), float64 [num].

    The terms are added as integers, so that their order does not matter.
    """
    most = values.new_full((num,), -torch.inf).scatter_reduce_(0, group, values, "amax")
    scale = 2.0 ** (62 - len(values).bit_length())
    terms = ((values - most[group]).exp() * scale).round().long()
    total = torch.zeros_like(most, dtype=torch.int64).index_add_(0, group, terms)
    return most, (total.double() / scale).log()


class Searcher:
    """The searches of a dialect `beam(k)` or `all(limit)`.

    layout: it has one slot for each path that may take a step together, at least for all paths of one candidate
    decide: the stages of a step from `select` to `limit`
    scores: the stage `score`
    screen: finds paths without a child that is kept, so that these need no exact scores, except for a record
    """

    def __init__(
        self, limits: Limits, layout: Layout, decide: Decide, scores: GoalScores, screen: Screen | None = None
    ) -> None:
        self._limits, self._decide, self._scores, self._screen = limits, decide, scores, screen
        self._atoms, self._most = layout.atoms, layout.slots
        self._search = limits.dialect.searching

    def run(
        self, start: Beams, num: int, *, counts_all: bool = True, is_last: bool = False
    ) -> Iterator[tuple[Beams, Level, int]]:
        """Run candidates, numbered up to `num`, to their ends.

        Yield each level of some of them, and the number of candidates that ended in it.

        counts_all: whether to count everything that is dropped, for a record
        is_last:    whether to take only one level of each
        """
        self._counts_all = counts_all
        self._is_limited = torch.zeros(num, dtype=torch.bool, device=start.query.device)
        self._ended: list[Endings] = []
        waiting = self._split(start)
        while waiting:
            beams = waiting.pop()
            level = self._take_level(beams)
            after = self._advance(beams, level)
            yield beams, level, beams.count_candidates() - after.count_candidates()
            if not is_last:
                waiting += self._split(after)

    def _split(self, beams: Beams) -> list[Beams]:
        """Split beams into some that can take a step together."""
        num = len(beams.place)
        if num <= self._most or beams.count_candidates() <= 1:
            return [beams] if num else []
        middle = beams.candidate[num // 2]
        is_first = beams.candidate < torch.where(middle == beams.candidate[0], middle + 1, middle)
        return [*self._split(beams.take(~is_first)), *self._split(beams.take(is_first))]

    def begin(self, queries: Tensor) -> Beams:
        """Return the first beams of queries, int32 [N, 3]."""
        goal = torch.nn.functional.pad(rename(queries[:, None]), (0, 0, 0, self._atoms - 1), value=PAD)[:, None]
        candidate = torch.arange(len(queries), device=queries.device)
        place = torch.zeros_like(candidate, dtype=torch.int32)
        log_probability = torch.zeros_like(place, dtype=torch.float64)
        return Beams(candidate, place, place - 1, log_probability, queries, goal)

    def _resolve(self, beams: Beams) -> Decided:
        """Decide the steps of all paths, in the necessary number of ticks."""
        derivations, work = beams.derivations(), None
        first, kind = torch.zeros_like(beams.candidate), torch.zeros_like(derivations.outcome)
        # The first row stands for a resolvent without atoms.
        rows = [torch.full_like(derivations.goal[:1], PAD)]
        num_rows = 1
        while True:
            decided = self._decide(derivations, work, self._counts_all)
            work = decided.work
            first = torch.where(decided.is_taken, num_rows + decided.first, first)
            kind = torch.where(decided.is_taken, decided.kind, kind)
            # The next tick writes into the same buffers.
            rows.append(decided.atoms.clone())
            num_rows += len(decided.atoms)
            outcome = torch.where(decided.is_taken, FAILED, derivations.outcome).int()
            derivations = alter(derivations, outcome=outcome)
            if not bool((outcome == OPEN).any()):
                return decided._replace(kind=kind, first=first, atoms=torch.cat(rows))

    def _take_level(self, beams: Beams) -> Level:
        """Take the stages from `select` to `merge`."""
        _, work, kind, first, rows = self._resolve(beams)
        self._is_limited[beams.candidate[work.dropped_atoms + work.dropped_resolvents > 0]] = True
        num = torch.where(kind == GOAL, work.num_kept, 1)
        path = torch.repeat_interleave(num)
        index = torch.arange(len(path), device=path.device) - (num.cumsum(0) - num)[path]
        is_goal = (kind == GOAL)[path]
        atoms = rows[torch.where(is_goal, first[path] + index, 0)]
        goals = beams.visited[:, -1].contiguous()

        def expand(scores: GoalScores) -> tuple[Tensor, Tensor, Tensor]:
            score = torch.where(is_goal, scores(goals, atoms, path), 0.0)
            highest, total = add_exponentials(score, path, len(kind))
            return score, beams.log_probability[path] + (score - highest[path] - total[path]), total

        if self._screen is not None and not self._counts_all and self._search.kind == "beam":
            _, rough, total = expand(self._screen.scores)
            edge = torch.full_like(self._is_limited, -torch.inf, dtype=torch.float64)
            kept, place = self._select(beams.candidate[path], rough)
            last = kept[place == self._search.size - 1]
            edge[beams.candidate[path[last]]] = rough[last]
            # The best child of a path has its log-probability minus that of all of them together.
            may_keep = beams.log_probability - total >= edge[beams.candidate] - 2 * self._screen.margin
            path, index, is_goal, atoms = (each[may_keep[path]] for each in (path, index, is_goal, atoms))
        score, log_probability, _ = expand(self._scores)
        kept, place = self._select(beams.candidate[path], log_probability)
        log_probability = log_probability[kept]
        merged_into = torch.full_like(place, -1)
        if self._limits.dialect.merge != "none":
            merged_into, log_probability = self._merge(beams.candidate[path[kept]], atoms[kept], place, log_probability)
        outcome = torch.full_like(place, DEPTH_LIMIT if beams.visited.shape[1] >= self._limits.max_depth else OPEN)
        kind_of_kept = kind[path[kept]]
        outcome = torch.where(kind_of_kept == TRUE, PROVED, torch.where(kind_of_kept == FALSE, FAILED, outcome))
        return Level(
            kind, num, work, path, index, atoms, score, kept, place, merged_into, log_probability, outcome.int()
        )

    def _select(self, candidate: Tensor, log_probability: Tensor) -> tuple[Tensor, Tensor]:
        """Do `top_k`: return the children that are kept, and their places."""
        order = torch.arange(len(candidate), device=candidate.device)
        if self._search.kind == "beam":
            order = torch.sort(log_probability, descending=True, stable=True).indices
            candidate, of_candidate = torch.sort(candidate[order], stable=True)
            order = order[of_candidate]
        place = torch.arange(len(candidate), device=candidate.device) - torch.searchsorted(candidate, candidate)
        is_kept = place < self._search.size
        if self._search.kind == "all":
            self._is_limited[candidate[~is_kept]] = True
        return order[is_kept], place[is_kept].int()

    def _merge(self, candidate: Tensor, atoms: Tensor, place: Tensor, log_probability: Tensor) -> tuple[Tensor, Tensor]:
        """Do `merge`: return the place into which each child is merged, or -1, and the log-probabilities."""
        _, number = number_goals(self._scores.tables, atoms)
        # TRUE, FALSE and the like are not merged.
        number = torch.where(atoms[:, 0, 0] != PAD, number, len(atoms) + torch.arange(len(atoms), device=atoms.device))
        group = torch.unique(candidate * (2 * len(atoms)) + number, return_inverse=True)[1]
        own = torch.arange(len(group), device=group.device)
        leader = torch.full_like(own, len(own)).scatter_reduce_(0, group, own, "amin")[group]
        highest, total = add_exponentials(log_probability, group, len(group))
        merged = highest + total if self._limits.dialect.merge == "sum" else highest
        is_merged = leader != own
        shared = torch.zeros_like(is_merged).index_fill_(0, leader[is_merged], True)
        merged_into = torch.where(is_merged, place[leader], -1)
        return merged_into, torch.where(shared, merged[group], log_probability)

    def _advance(self, beams: Beams, level: Level) -> Beams:
        """Return the paths that are open after a level."""
        is_alone = level.merged_into < 0
        owner = level.path[level.kept]
        has_ended = is_alone & (level.outcome != OPEN)
        self._ended.append(
            Endings(beams.candidate[owner[has_ended]], level.outcome[has_ended], level.log_probability[has_ended])
        )
        is_open = is_alone & (level.outcome == OPEN)
        owner, kept = owner[is_open], level.kept[is_open]
        return Beams(
            beams.candidate[owner],
            level.place[is_open],
            beams.place[owner],
            level.log_probability[is_open],
            beams.query[owner],
            torch.cat((beams.visited[owner], level.atoms[kept][:, None]), 1),
        )

    def aggregate(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the outcome, is_limited and log-probability of each candidate of the last run."""
        candidate, outcome, log_probability = map(torch.cat, zip(*self._ended, strict=True))
        num = len(self._is_limited)
        is_proof = outcome == PROVED
        order = torch.sort(log_probability, descending=True, stable=True).indices
        order = order[torch.sort((2 * candidate + ~is_proof)[order], stable=True).indices]
        best = order[torch.searchsorted(candidate[order], torch.arange(num, device=candidate.device))]
        final, how = log_probability[best], self._limits.dialect.aggregate
        if how != "max":
            proofs, owner = log_probability[order[is_proof[order]]], candidate[order[is_proof[order]]]
            highest, total = add_exponentials(proofs, owner, num)
            joint = highest + total
            if how == "noisy_or":
                counts = torch.bincount(owner, minlength=num)
                failing = torch.segment_reduce(torch.log1p(-proofs.exp()), "sum", lengths=counts)
                joint = torch.where(highest < TINY, joint, torch.log(-torch.expm1(failing)))
            final = torch.where(outcome[best] == PROVED, joint, final)
        return outcome[best], self._is_limited, final


TINY: Final = -700.0
"""The log-probability below which a probability has fewer digits than a float."""


def read_level(beams: Beams, level: Level) -> Chunk:
    """Copy the steps and the paths of a level to the host."""
    work, path, kept = level.work, level.path, level.kept
    child = torch.full_like(path, -1, dtype=torch.int32)
    child[kept] = torch.where(level.merged_into < 0, level.place, -2 - level.merged_into)
    gained = torch.zeros_like(level.score).index_put_((kept,), level.log_probability)
    none = torch.iinfo(torch.int32).max
    lowest = torch.full_like(beams.place, none).scatter_reduce_(0, path[kept], level.place, "amin")
    is_choice = level.place == lowest[path[kept]]
    chosen = kept[is_choice]
    choice = torch.full_like(path[: len(lowest)], -1).index_put_((path[chosen],), level.ordinal[chosen])
    outcome = torch.full_like(beams.place, OPEN).index_put_((path[chosen],), level.outcome[is_choice])
    depth = torch.full_like(beams.place, beams.visited.shape[1] - 1)
    steps = LoggedSteps(
        pool_index=beams.candidate,
        depth=depth,
        kind=level.kind,
        num_resolvents=level.num,
        dropped_atoms=work.dropped_atoms,
        dropped_resolvents=work.dropped_resolvents,
        choice=choice,
        outcome=outcome,
        first=level.num.cumsum(0) - level.num,
        true_kind=work.true_origin_kind,
        true_origin=torch.where(work.true_origin_kind == 0, 0, work.true_origin),
        goal=beams.visited[:, -1],
    )
    at = path, level.ordinal
    rows = LoggedRows(work.origin_kind[at], work.origin[at], level.score, level.atoms)
    chunk = read_steps([TakenSteps(steps, rows)])
    paths = (depth.int(), beams.place, beams.parent, beams.log_probability, child, gained)
    return chunk._replace(paths=Paths(*(each.cpu().numpy() for each in paths)))
