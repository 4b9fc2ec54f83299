"""A search engine on padded arrays, which takes a level of all candidates at once.

N candidates, K paths of the longest beam, W resolvents of the longest list, k children kept. What is free is padding.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

import kgverify
from benchmarks.searches.steps import Atom, Prover, Scorer
from kgverify.engines.adapters.searching import Ended, Kept, Level, Path, SearchEngine
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import Program
from kgverify.step.plain_step import Taken
from kgverify.trace.model.header import EngineInfo

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Words: TypeAlias = NDArray[np.uint64]


class Batch(NamedTuple):
    """A level of all candidates.

    taken:           the steps of each path, [N] lists
    scores:          float64 [N, K, W]  minus infinity where there is no resolvent
    is_child:        bool [N, K, W]
    place:           int64 [N, K]       -1 where there is no path
    log_probability: float64 [N, K]     minus infinity where there is no path
    level:           int64 [N]
    """

    queries: Sequence[Atom]
    beams: Sequence[Sequence[Path]]
    taken: list[list[Taken]]
    scores: Floats
    is_child: Bools
    place: Ints
    log_probability: Floats
    level: Ints


class Chosen(NamedTuple):
    """The children that are kept.

    row, choice, place, into: int64 [N, k]  the row of the path, the index of the resolvent, the place given, and the
                                            place into which it is merged, or -1
    log_probability:          float64 [N, k]
    is_kept:                  bool [N, k]
    """

    row: Ints
    choice: Ints
    place: Ints
    into: Ints
    log_probability: Floats
    is_kept: Bools


GOLDEN, FIRST, SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mix_words(words: Words) -> Words:
    """Return the splitmix64 step of each word."""
    with np.errstate(over="ignore"):
        words = words + GOLDEN
        words = (words ^ (words >> np.uint64(30))) * FIRST
        words = (words ^ (words >> np.uint64(27))) * SECOND
        return words ^ (words >> np.uint64(31))


def to_words(numbers: Any) -> Words:
    """Return signed numbers as words."""
    return np.asarray(numbers, np.int64).view(np.uint64)


def log_sum(logs: Floats) -> Floats:
    """Return the logarithm of the sums of exponentials over the last axis, which stays: [..., 1]."""
    most = logs.max(-1, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    # The sum is 1 or more, except for padding alone.
    return np.asarray(most + np.log(np.maximum(np.exp(logs - most).sum(-1, keepdims=True), 1e-300)), np.float64)


class ArraySearch(SearchEngine):
    """A search of all candidates at once."""

    policies: ClassVar[tuple[str, ...]] = ("shortest", "two_tower")

    def __init__(self, program: Program, limits: kgverify.Limits, policy: kgverify.Policy) -> None:
        super().__init__(program, limits, policy)
        self.prover, self.scorer = Prover(program, limits), Scorer(policy)
        self.search, self.dialect = limits.dialect.searching, limits.dialect

    def take_level(self, query: Atom, beam: Sequence[Path]) -> Level:
        """Take a step of every path of one candidate."""
        return self.take_levels([query], [beam])[0]

    def take_levels(self, queries: Sequence[Atom], beams: Sequence[Sequence[Path]]) -> list[Level]:
        """Take a step of every path of every candidate, and choose the children that are kept."""
        batch = self.pad(queries, beams, self.score(beams, self.take(queries, beams)))
        logs = self.expand(batch, self.normalise(batch))
        chosen = self.keep(batch, logs)
        if self.dialect.merge != "none":
            chosen = self.merge(batch, chosen)
        return self.unpad(batch, chosen)

    # The steps

    def take(self, queries: Sequence[Atom], beams: Sequence[Sequence[Path]]) -> list[list[Taken]]:
        """Return the resolvents of each path."""
        return [
            [self.prover.take(path.visited, query if self.limits.exclude_query else None) for path in beam]
            for query, beam in zip(queries, beams, strict=True)
        ]

    def score(self, beams: Sequence[Sequence[Path]], taken: Sequence[Sequence[Taken]]) -> list[list[Taken]]:
        """Return the resolvents with their scores, all by one call."""
        goals = self.goals(beams)
        scores = iter(self.scorer.score(goals, [made.resolvents for steps in taken for made in steps]))
        return [
            [
                made._replace(
                    resolvents=[
                        each._replace(score=score) for each, score in zip(made.resolvents, next(scores), strict=True)
                    ]
                )
                for made in steps
            ]
            for steps in taken
        ]

    def goals(self, beams: Sequence[Sequence[Path]]) -> list[Any]:
        """Return the goal of every path."""
        return [path.visited[-1] for beam in beams for path in beam]

    def pad(self, queries: Sequence[Atom], beams: Sequence[Sequence[Path]], taken: list[list[Taken]]) -> Batch:
        """Put the beams and the scores into arrays."""
        num, most = len(beams), max(map(len, beams))
        width = max(len(made.resolvents) for steps in taken for made in steps)
        scores = np.full((num, most, width), -np.inf)
        place, log_probability = np.full((num, most), -1, np.int64), np.full((num, most), -np.inf)
        for n, (beam, steps) in enumerate(zip(beams, taken, strict=True)):
            place[n, : len(beam)] = [path.place for path in beam]
            log_probability[n, : len(beam)] = [path.log_probability for path in beam]
            for row, made in enumerate(steps):
                scores[n, row, : len(made.resolvents)] = [each.score for each in made.resolvents]
        level = np.array([len(beam[0].visited) - 1 for beam in beams], np.int64)
        return Batch(queries, beams, taken, scores, np.isfinite(scores), place, log_probability, level)

    # The children

    def normalise(self, batch: Batch) -> Floats:
        """Return the log-probability of each resolvent among the others of its path: float64 [N, K, W]."""
        return batch.scores - log_sum(batch.scores)

    def expand(self, batch: Batch, logs: Floats) -> Floats:
        """Return the log-probability of each child, minus infinity in the padding: float64 [N, K, W]."""
        return np.where(batch.is_child, batch.log_probability[:, :, None] + logs, -np.inf)

    def keep(self, batch: Batch, logs: Floats) -> Chosen:
        """Return the children that are kept, with their places."""
        num, _, width = logs.shape
        if self.search.kind == "sample":
            choice = self.pick(batch, self.draw_numbers(batch))
            row = np.broadcast_to(np.arange(logs.shape[1]), choice.shape)
            values = np.take_along_axis(logs, choice[..., None], 2)[..., 0]
            return Chosen(row, choice, batch.place, np.full_like(choice, -1), values, batch.place >= 0)
        flat = logs.reshape(num, -1)
        index = self.top(batch, self.key(batch, flat)) if self.search.kind == "beam" else self.first(batch, flat)
        is_kept = np.take_along_axis(np.isfinite(flat), index, 1)
        row, choice = self.split(batch, index, width)
        place = np.broadcast_to(np.arange(index.shape[1]), index.shape)
        values = self.gather(batch, logs, index, row, choice)
        return Chosen(row, choice, place, np.full_like(row, -1), values, is_kept)

    def size(self, batch: Batch) -> int:
        """Return the number of children that are kept at most."""
        return int(self.search.size)

    def key(self, batch: Batch, flat: Floats) -> Any:
        """Return the number by which children are ranked, the highest first: [N, K * W]."""
        return flat

    def top(self, batch: Batch, key: Any) -> Ints:
        """Return the indices of the highest keys, in order; of equal ones the lowest index first."""
        index: Ints = np.argsort(-key, axis=1, kind="stable")[:, : self.size(batch)]
        return index

    def first(self, batch: Batch, flat: Floats) -> Ints:
        """Return the indices of the first children."""
        index: Ints = np.argsort(~np.isfinite(flat), axis=1, kind="stable")[:, : self.size(batch)]
        return index

    def split(self, batch: Batch, index: Ints, width: int) -> tuple[Ints, Ints]:
        """Return the row of the path and the index of the resolvent of children."""
        return index // width, index % width

    def gather(self, batch: Batch, logs: Floats, index: Ints, row: Ints, choice: Ints) -> Floats:
        """Return the log-probabilities of children."""
        return np.take_along_axis(logs.reshape(len(logs), -1), index, 1)

    # Samples

    def key_words(self, batch: Batch) -> list[Words]:
        """Return what a draw depends on, in order: [N, 1] or [N, K] each."""
        atoms = np.array([beam[0].visited[0][0] for beam in batch.beams])
        atom_words = [to_words(atoms[:, i, None]) for i in range(3)]
        return [*atom_words, to_words(batch.place), to_words(batch.level[:, None])]

    def draw_numbers(self, batch: Batch) -> Floats:
        """Return a number from 0 to 1 for each path: float64 [N, K]."""
        key = mix_words(to_words([[self.search.seed]]))
        for words in self.key_words(batch):
            key = mix_words(key ^ words)
        return np.broadcast_to((key >> np.uint64(11)) * 2.0**-53, batch.place.shape)

    def pick(self, batch: Batch, numbers: Floats) -> Ints:
        """Return the first resolvent of each path whose cumulative probability exceeds a number: int64 [N, K]."""
        most = batch.scores.max(2, keepdims=True)
        weights = np.exp(batch.scores - np.where(np.isfinite(most), most, 0.0))
        reached = (weights / np.maximum(weights.sum(2, keepdims=True), 1e-300)).cumsum(2)
        last: Ints = np.maximum(batch.is_child.sum(2) - 1, 0)
        exceeds = reached > numbers[..., None]
        index: Ints = np.where(exceeds.any(2), np.minimum(exceeds.argmax(2), last), last)
        return index

    # Merging

    def merge(self, batch: Batch, chosen: Chosen) -> Chosen:
        """Merge the children with the same goal into the first of them."""
        num, most = chosen.row.shape
        hashes = self.hash(batch, chosen).ravel()
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        first = first[group].reshape(num, most)
        column = first % most
        is_merged = chosen.is_kept & (first != np.arange(num * most).reshape(num, most))
        logs = self.merge_logs(chosen, group.reshape(num, most))
        into = np.where(is_merged, np.take_along_axis(chosen.place, column, 1), -1)
        return chosen._replace(into=into, log_probability=np.where(is_merged, chosen.log_probability, logs))

    def hash(self, batch: Batch, chosen: Chosen) -> Words:
        """Return a word for each child that is equal for those to be merged only: uint64 [N, k]."""
        num, most = chosen.row.shape
        # Children that end a path, and padding, have a word of their own.
        hashes = mix_words(to_words(np.arange(num * most).reshape(num, most)) ^ FIRST)
        for n, m in np.argwhere(chosen.is_kept):
            child = batch.taken[n][chosen.row[n, m]].resolvents[chosen.choice[n, m]]
            if child.kind == GoalKind.GOAL:
                hashes[n, m] = self.hash_goal(child.atoms, int(n))
        return hashes

    def hash_goal(self, goal: Any, n: int) -> Any:
        """Return a word for a goal of candidate n of the batch."""
        key = mix_words(to_words([n]))
        for word in to_words(goal).ravel():
            key = mix_words(key ^ word)
        return key[0]

    def merge_logs(self, chosen: Chosen, group: Ints) -> Floats:
        """Return the log-probability of the group of each child: float64 [N, k]."""
        total = np.full(group.max() + 1, -np.inf)
        add = np.logaddexp if self.dialect.merge == "sum" else np.maximum
        add.at(total, group.ravel(), np.where(chosen.is_kept, chosen.log_probability, -np.inf).ravel())
        return np.asarray(total[group], np.float64)

    def unpad(self, batch: Batch, chosen: Chosen) -> list[Level]:
        """Return the levels as the adapter takes them."""
        levels = []
        for n, steps in enumerate(batch.taken):
            rows = zip(*(each[n][chosen.is_kept[n]].tolist() for each in chosen[:5]), strict=True)
            kept = [Kept(batch.beams[n][row].place, choice, place, log, into) for row, choice, place, into, log in rows]
            levels.append(Level(taken=steps, kept=kept))
        return levels

    # The end

    def aggregate(self, query: Atom, ended: Sequence[Ended]) -> tuple[Outcome, float]:
        """Return the outcome and the log-probability of a candidate from its paths."""
        order = np.lexsort(([each.place for each in ended], [each.level for each in ended]))
        paths = self.distinct([ended[i] for i in order])
        outcomes = np.array([each.outcome for each in paths])
        logs = np.array([each.log_probability for each in paths])
        if (outcomes == Outcome.PROVED).any():
            return Outcome.PROVED, float(self.combine(logs[outcomes == Outcome.PROVED]))
        best = self.best(logs)
        return paths[best].outcome, float(logs[best])

    def distinct(self, ended: Sequence[Ended]) -> list[Ended]:
        """Return each derivation once."""
        _, first = np.unique([hash(tuple(each.choices)) for each in ended], return_index=True)
        return [ended[i] for i in np.sort(first)]

    def best(self, logs: Floats) -> int:
        """Return the best path where none is a proof."""
        return int(logs.argmax())

    def combine(self, logs: Floats) -> Any:
        """Return the log-probability of some proofs."""
        if self.dialect.aggregate == "max":
            return logs.max()
        if self.dialect.aggregate == "sum" or logs.max() < -700:
            return log_sum(logs)[0]
        if np.exp(logs.max()) >= 1.0:
            return 0.0
        return np.log(-np.expm1(np.log1p(-np.exp(logs)).sum()))


class SinglePrecisionSearch(ArraySearch):
    """The search with scores and log-probabilities in float32, which it declares."""

    @property
    def info(self) -> EngineInfo:
        """The engine's info."""
        return EngineInfo(type(self).__name__, mode="python", precision="float32", score_error=1e-5)

    def score(self, beams: Sequence[Sequence[Path]], taken: Sequence[Sequence[Taken]]) -> list[list[Taken]]:
        """Return the resolvents with their scores, rounded."""
        return [
            [
                made._replace(
                    resolvents=[each._replace(score=float(np.float32(each.score))) for each in made.resolvents]
                )
                for made in steps
            ]
            for steps in super().score(beams, taken)
        ]

    def expand(self, batch: Batch, logs: Floats) -> Floats:
        """Return the log-probability of each child, rounded."""
        return super().expand(batch, logs.astype(np.float32)).astype(np.float32).astype(np.float64)
