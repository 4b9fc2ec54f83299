"""Planted faults of searches, with the answer that a differ should give.

Each class is one fault: a small change of one of the two right engines. `FAULTS` is the table.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import kgverify
from benchmarks.searches.arrays import ArraySearch, Batch, Bools, Chosen, Floats, Ints, Words, log_sum, to_words
from benchmarks.searches.lists import Child, Children, ListSearch, add_logs, level_of
from benchmarks.searches.steps import Atom
from kgverify.engines.adapters.searching import Ended, Path
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import Dialect
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import Program, parse_rules
from kgverify.step.plain_step import Resolvent, Taken

FAN: Final = kgverify.KnowledgeGraph(
    "fan",
    train=tuple(
        NamedAtom(predicate, f"{first}{i}", f"{second}{i + j}")
        for predicate, first, second in (("opens", "hub", "door"), ("leads", "door", "hall"), ("ends", "hall", "exit"))
        for i in range(1 if first == "hub" else 80)
        for j in range(80 if first == "hub" else 2)
    ),
    test=tuple(NamedAtom("reaches", "hub0", f"exit{i}") for i in (3, 40, 75)),
    rules=parse_rules("reaches(X,Y) opens(X,Z) leads(Z,W) ends(W,Y)"),
)
"""A graph in which a goal has 80 resolvents."""


class Settings(NamedTuple):
    """The run in which a fault shows."""

    search: str = "beam(4)"
    merge: str = "none"
    aggregate: str = "max"
    policy: str = "two_tower"
    stopping: str = "never"
    graph: str | kgverify.KnowledgeGraph = "random:3"
    queries: int = 6
    corruptions: int = 2
    max_depth: int = 4
    max_resolvents: int = 120

    @property
    def limits(self) -> kgverify.Limits:
        """The limits of the run."""
        switches: dict[str, Any] = {name: getattr(self, name) for name in ("search", "merge", "aggregate", "stopping")}
        return kgverify.Limits(
            max_depth=self.max_depth, max_resolvents=self.max_resolvents, dialect=Dialect(**switches)
        )

    def verify(self, engine: Any, **options: Any) -> kgverify.Report:
        """Verify an engine in this run."""
        return kgverify.verify(
            self.graph,
            engine,
            queries=self.queries,
            corruptions=self.corruptions,
            policy=self.policy,
            seed=1,
            limits=self.limits,
            **options,
        )


class Fault(NamedTuple):
    """A planted fault.

    stages:    the stages that a report may name, the usual one first
    condition: when it shows; empty if it always does
    note:      the change
    """

    name: str
    stages: tuple[str, ...]
    condition: str
    note: str
    wrong: Any
    settings: Settings


FAULTS: Final[list[Fault]] = []


def name_fault(wrong: type) -> str:
    """Return the name of a class with underscores."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", wrong.__name__).lower()


def fault(stages: str, condition: str, note: str, **settings: Any) -> Callable[[Any], Any]:
    """Enter a class into the table."""

    def enter(wrong: Any) -> Any:
        FAULTS.append(Fault(name_fault(wrong), tuple(stages.split()), condition, note, wrong, Settings(**settings)))
        return wrong

    return enter


def drop_unusable(batch: Batch, chosen: Chosen) -> Chosen:
    """Leave out children that do not exist, and the second of two equal ones."""
    is_kept: Bools = chosen.is_kept.copy()
    for n, steps in enumerate(batch.taken):
        seen = set()
        for m in range(is_kept.shape[1]):
            row, choice = int(chosen.row[n, m]), int(chosen.choice[n, m])
            exists = row < len(steps) and choice < len(steps[row].resolvents)
            is_kept[n, m] &= exists and (row, choice) not in seen
            seen.add((row, choice))
    return chosen._replace(is_kept=is_kept)


# expand


@fault(
    "expand", "a path with fewer children than the widest one", "scores are padded with 0 in place of minus infinity"
)
class ZerosInThePadding(ArraySearch):
    def normalise(self, batch: Batch) -> Floats:
        scores = np.where(batch.is_child, batch.scores, 0.0)
        return scores - log_sum(scores)


@fault("expand", "two paths or more in the beam", "the softmax is taken over the children of all paths")
class SoftmaxOverTheBeam(ArraySearch):
    def normalise(self, batch: Batch) -> Floats:
        flat = batch.scores.reshape(len(batch.scores), -1)
        return (flat - log_sum(flat)).reshape(batch.scores.shape)


@fault("expand", "the second level and later", "the log-probability of the path is not added")
class PathForgotten(ArraySearch):
    def expand(self, batch: Batch, logs: Floats) -> Floats:
        return np.where(batch.is_child, logs, -np.inf)


@fault(
    "expand", "a child whose place is not its path's", "the path's log-probability is that of the slot, not gathered"
)
class PathOfTheSlot(ArraySearch):
    def gather(self, batch: Batch, logs: Floats, index: Ints, row: Ints, choice: Ints) -> Floats:
        values = super().gather(batch, logs, index, row, choice)
        slot = np.minimum(np.broadcast_to(np.arange(row.shape[1]), row.shape), batch.place.shape[1] - 1)
        own, other = (np.take_along_axis(batch.log_probability, rows, 1) for rows in (row, slot))
        return np.where(
            (slot == row) | ~np.isfinite(other), values, values - own + np.where(np.isfinite(other), other, 0)
        )


@fault("expand", "the second level and later", "the log-probability of the path is added twice")
class PathTwice(ListSearch):
    def expand(self, beam: Sequence[Path], taken: Sequence[Taken]) -> Children:
        return [
            each._replace(log_probability=each.log_probability + each.path.log_probability)
            for each in super().expand(beam, taken)
        ]


@fault("expand", "stopping is offered", "stopping is left out of the softmax", stopping="where_no_terminal")
class StopOutsideTheSoftmax(ListSearch):
    def normalise(self, made: Sequence[Resolvent]) -> list[float]:
        goals = [each.score for each in made if each.kind != GoalKind.STOP]
        total = add_logs(goals) if goals else 0.0
        return [each.score - total for each in made]


# top_k of beams


@fault(
    "top_k",
    "equal log-probabilities of children of different paths",
    "of equal children, the one of the lower index in its list comes first",
    policy="shortest",
    graph="countries",
)
class TiesByIndexInTheList(ArraySearch):
    def top(self, batch: Batch, key: Any) -> Ints:
        num, most, width = batch.scores.shape
        turned: Floats = key.reshape(num, most, width).transpose(0, 2, 1).reshape(num, -1)
        index: Ints = super().top(batch, turned)
        row, choice = index % most, index // most
        return np.asarray(row * width + choice, np.int64)


@fault("top_k", "equal log-probabilities", "of equal children, the last one comes first", policy="shortest")
class TiesToTheLast(ArraySearch):
    def top(self, batch: Batch, key: Any) -> Ints:
        return np.argsort(key, axis=1, kind="stable")[:, ::-1][:, : self.size(batch)]


@fault("top_k", "children kept whose order is not that of their paths", "the best children are not sorted")
class Unsorted(ArraySearch):
    def top(self, batch: Batch, key: Any) -> Ints:
        index = super().top(batch, key)
        is_free = ~np.isfinite(np.take_along_axis(key, index, 1))
        return np.take_along_axis(index, np.lexsort((index, is_free)), 1)


@fault(
    "top_k",
    "a candidate whose longest list is shorter than that of another candidate",
    "index // width, with the width of the candidate in place of the batch's",
)
class WidthOfTheCandidate(ArraySearch):
    def split(self, batch: Batch, index: Ints, width: int) -> tuple[Ints, Ints]:
        own = batch.is_child.sum(2).max(1)[:, None]
        return index // own, index % own

    def keep(self, batch: Batch, logs: Floats) -> Chosen:
        return drop_unusable(batch, super().keep(batch, logs))


@fault(
    "top_k",
    "log-probabilities that differ by less than float16 tells",
    "children are ranked in float16",
    queries=12,
    search="beam(16)",
)
class HalfPrecision(ArraySearch):
    def key(self, batch: Batch, flat: Floats) -> Any:
        return flat.astype(np.float16)


@fault("top_k", "children with different numbers of atoms", "each atom of a goal costs 0.1 in the ranking")
class PenaltyForLength(ArraySearch):
    def key(self, batch: Batch, flat: Floats) -> Any:
        num_atoms = np.zeros(batch.scores.shape)
        for n, steps in enumerate(batch.taken):
            for row, made in enumerate(steps):
                num_atoms[n, row, : len(made.resolvents)] = [len(each.atoms) for each in made.resolvents]
        return flat - 0.1 * num_atoms.reshape(flat.shape)


@fault("top_k", "two paths or more in the beam", "k children of each path are kept", search="beam(2)")
class BeamOfEachPath(ArraySearch):
    def top(self, batch: Batch, key: Any) -> Ints:
        shape = batch.scores.shape
        ranks = (-key.reshape(shape)).argsort(2, kind="stable").argsort(2, kind="stable")
        masked = np.where(ranks.reshape(key.shape) < self.size(batch), key, -np.inf)
        num = int((masked > -np.inf).sum(1).max())
        return np.argsort(-masked, axis=1, kind="stable")[:, :num]


@fault("top_k", "the last place, from the second level on", "the beam is one place narrower after the first level")
class NarrowerAfterTheFirstLevel(ArraySearch):
    def keep(self, batch: Batch, logs: Floats) -> Chosen:
        chosen = super().keep(batch, logs)
        sizes = self.size(batch) - (batch.level > 0)
        return chosen._replace(is_kept=chosen.is_kept & (np.arange(chosen.row.shape[1]) < sizes[:, None]))


@fault(
    "top_k recycle",
    "candidates after the first of the batch",
    "the children are those at the best indices of the candidate before",
)
class OffsetOfTheRowBefore(ArraySearch):
    def top(self, batch: Batch, key: Any) -> Ints:
        index = super().top(batch, key)
        before = np.concatenate([index[:1], index[:-1]])
        # A candidate without any child at these indices has its own.
        is_empty = ~np.isfinite(np.take_along_axis(key, before, 1)).any(1, keepdims=True)
        return np.where(is_empty, index, before)


@fault("top_k", "more than 64 children", "only the first 64 resolvents of a path are considered", graph=FAN)
class SixtyFourChildren(ArraySearch):
    def key(self, batch: Batch, flat: Floats) -> Any:
        width = batch.scores.shape[2]
        return np.where(np.arange(flat.shape[1]) % width < 64, flat, -np.inf)


@fault("top_k", "after a path of the candidate ended", "paths that ended keep their places", queries=12)
class EndedPathsKeepTheirPlaces(ListSearch):
    def __init__(self, program: Program, limits: kgverify.Limits, policy: kgverify.Policy) -> None:
        super().__init__(program, limits, policy)
        self.num_ended: dict[Any, int] = {}

    def keep_beam(self, beam: Sequence[Path], children: Children) -> Children:
        query, level = beam[0].visited[0], level_of(beam)
        num_ended = sum(self.num_ended.get((query, before), 0) for before in range(level))
        kept = super().keep_beam(beam, children)[: max(0, self.search.size - num_ended)]
        self.num_ended[query, level] = sum(each.resolvent.kind != GoalKind.GOAL for each in kept)
        return kept


@fault("top_k", "the last level", "at the last depth only paths that end in TRUE or FALSE are kept")
class LastLevelWithoutGoals(ListSearch):
    def keep_beam(self, beam: Sequence[Path], children: Children) -> Children:
        kept = super().keep_beam(beam, children)
        is_last = level_of(beam) + 1 == self.limits.max_depth
        ended = [each for each in kept if each.resolvent.kind != GoalKind.GOAL]
        return ended or kept[:1] if is_last else kept


# top_k of `all` and samples


@fault("top_k", "", "all children are sorted by their log-probability", search="all(30)", max_depth=3)
class AllByProbability(ListSearch):
    def keep_all(self, beam: Sequence[Path], children: Children) -> Children:
        return self.keep_beam(beam, children)


@fault("top_k", "more children than the limit", "one child less than the limit is kept", search="all(8)")
class OneLessThanAll(ListSearch):
    def keep_all(self, beam: Sequence[Path], children: Children) -> Children:
        return children[: self.search.size - 1]


@fault("top_k", "samples after the first", "every sample draws with the number of the first", search="sample(6, 3)")
class OneSeedForAllSamples(ListSearch):
    def draw_numbers(self, query: Atom, beam: Sequence[Path], row: int) -> float:
        return super().draw_numbers(query, [beam[row]._replace(place=0)], 0)


@fault("top_k", "the second level and later", "the draw does not depend on the level", search="sample(6, 3)")
class SameDrawAtEachLevel(ArraySearch):
    def key_words(self, batch: Batch) -> list[Words]:
        return [*super().key_words(batch)[:-1], to_words([[0]])]


@fault(
    "top_k",
    "after a sample of a lower number ended",
    "the number of a sample is its row among the open ones",
    search="sample(8, 3)",
)
class SamplesCountedAnew(ArraySearch):
    def key_words(self, batch: Batch) -> list[Words]:
        *atom, _, level = super().key_words(batch)
        return [*atom, to_words(np.arange(batch.place.shape[1])[None]), level]


@fault("top_k", "the last resolvent drawn", "the last resolvent is never drawn", search="sample(8, 3)")
class LastNeverDrawn(ArraySearch):
    def pick(self, batch: Batch, numbers: Floats) -> Ints:
        return np.clip(super().pick(batch, numbers), 0, np.maximum(batch.is_child.sum(2) - 2, 0))


@fault(
    "top_k recycle",
    "candidates after the first of the batch",
    "the draw depends on the row of the batch in place of the query",
    search="sample(4, 3)",
)
class DrawByRowOfTheBatch(ArraySearch):
    def key_words(self, batch: Batch) -> list[Words]:
        place, level = super().key_words(batch)[-2:]
        return [to_words(np.arange(len(batch.beams))[:, None]), place, level]


# merge


@fault(
    "merge recycle",
    "candidates of one batch with the same goal",
    "the hash of a goal does not depend on the candidate",
    merge="max",
    search="beam(8)",
    corruptions=6,
)
class MergedAcrossCandidates(ArraySearch):
    def hash_goal(self, goal: Any, n: int) -> Any:
        return super().hash_goal(goal, 0)

    def aggregate(self, query: Atom, ended: Sequence[Ended]) -> tuple[Outcome, float]:
        return super().aggregate(query, ended) if ended else (Outcome.FAILED, 0.0)


@fault(
    "merge",
    "two goals whose ids have the same sum",
    "goals are merged by the sum of their ids",
    merge="max",
    search="beam(12)",
    queries=12,
)
class MergedBySums(ArraySearch):
    def hash_goal(self, goal: Any, n: int) -> Any:
        return super().hash_goal(((0, 0, sum(map(sum, goal))),), n)


@fault("merge", "two paths with the same goal", "the merged path gets the lower score", merge="max", search="beam(12)")
class MergedWithTheLowerScore(ListSearch):
    def merge_logs(self, logs: Sequence[float]) -> float:
        return min(logs)


@fault("merge", "two paths with the same goal", "the best path counts twice in the sum", merge="sum", search="beam(12)")
class BestCountedTwice(ListSearch):
    def merge_logs(self, logs: Sequence[float]) -> float:
        return add_logs([logs[0], *logs])


@fault(
    "merge",
    "two paths with the same goal",
    "the merged path is the one of the worst place",
    merge="max",
    search="beam(12)",
)
class PathOfTheWorstPlace(ListSearch):
    def merge_group(self, group: Children) -> Children:
        first, *others = super().merge_group(group)
        *middle, last = others
        survivor = last._replace(place=first.place, merged_into=-1, log_probability=first.log_probability)
        loser = first._replace(place=last.place, merged_into=first.place, log_probability=group[0].log_probability)
        return [survivor, *middle, loser]


@fault("merge", "a child after a merged one", "places are closed up after merging", merge="max", search="beam(12)")
class PlacesClosedUp(ListSearch):
    def merge(self, children: Children) -> Children:
        merged = super().merge(children)
        left = sorted(each.place for each in merged if each.merged_into < 0)
        places = {place: number for number, place in enumerate(left)}
        return [
            each._replace(place=places[each.place])
            if each.merged_into < 0
            else each._replace(merged_into=places[each.merged_into])
            for each in merged
        ]


@fault(
    "merge top_k",
    "two paths with the same goal, and more children than places",
    "children are merged before the best are taken",
    merge="max",
    search="beam(4)",
    queries=12,
)
class MergedBeforeTheCut(ListSearch):
    def keep_beam(self, beam: Sequence[Path], children: Children) -> Children:
        ranked = sorted(children, key=lambda each: -each.log_probability)
        firsts: dict[Any, Child] = {}
        for each in ranked:
            is_goal = each.resolvent.kind == GoalKind.GOAL
            firsts.setdefault(each.resolvent.atoms if is_goal else (each.row, each.choice), each)
        return list(firsts.values())[: self.search.size]


# aggregate


@fault(
    "aggregate",
    "two proofs or more",
    "the best proof counts in place of the sum",
    aggregate="sum",
    search="beam(12)",
    queries=12,
)
class BestProofOnly(ListSearch):
    def combine(self, proofs: Sequence[float]) -> float:
        return max(proofs)


@fault("aggregate", "two proofs or more", "log-probabilities are added", aggregate="sum", search="beam(12)", queries=12)
class SumOfLogarithms(ListSearch):
    def combine(self, proofs: Sequence[float]) -> float:
        return sum(proofs)


@fault(
    "aggregate",
    "a proof of probability 1",
    "probabilities are at most 0.99 in noisy-or",
    aggregate="noisy_or",
    search="beam(8)",
    queries=12,
)
class NeverCertain(ListSearch):
    def combine(self, proofs: Sequence[float]) -> float:
        return super().combine([min(each, math.log(0.99)) for each in proofs])


@fault(
    "aggregate",
    "the same proof drawn twice",
    "samples of the same derivation count several times",
    aggregate="sum",
    search="sample(12, 1)",
    queries=12,
)
class RepeatedSamplesCount(ArraySearch):
    def distinct(self, ended: Sequence[Ended]) -> list[Ended]:
        return list(ended)


@fault(
    "aggregate",
    "no proof, and the best path is not the first",
    "the first path counts where none is a proof",
    stopping="where_no_terminal",
)
class FirstOfTheUnproved(ArraySearch):
    def best(self, logs: Floats) -> int:
        return 0


@fault(
    "aggregate",
    "more paths ended than the beam has places",
    "only the last k paths that ended are remembered",
    search="beam(3)",
    queries=12,
)
class EarlyProofsForgotten(ListSearch):
    def distinct(self, ended: Sequence[Ended]) -> list[Ended]:
        return super().distinct(ended)[-self.search.size :]


# The steps of a beam


@fault("score", "paths after the first", "every resolvent is scored from the goal of the first path")
class ScoredFromTheFirstGoal(ArraySearch):
    def goals(self, beams: Sequence[Sequence[Path]]) -> list[Any]:
        return [beam[0].visited[-1] for beam in beams for _ in beam]


@fault(
    "limit",
    "more resolvents of the beam than the limit",
    "the resolvents of the whole beam are limited together",
    max_resolvents=12,
    search="beam(8)",
)
class LimitOfTheBeam(ListSearch):
    def take(self, query: Atom, beam: Sequence[Path]) -> list[Taken]:
        room, taken = self.limits.max_resolvents, []
        for made in super().take(query, beam):
            # One resolvent of each path stays.
            kept = made.resolvents[: max(1, room)]
            dropped = made.dropped_resolvents + len(made.resolvents) - len(kept)
            taken.append(made._replace(resolvents=kept, dropped_resolvents=dropped))
            room -= len(kept)
        return taken


@fault(
    "match_facts prune recycle",
    "candidates after the first of the batch",
    "the excluded atom is the query of the first candidate",
    queries=20,
    search="beam(3)",
)
class ExcludedAtomOfTheFirst(ArraySearch):
    def take(self, queries: Sequence[Atom], beams: Sequence[Sequence[Path]]) -> list[list[Taken]]:
        return super().take([queries[0]] * len(queries), beams)


@fault(
    "revisit recycle",
    "a path whose parent has another place",
    "the visited goals of a slot are not gathered: they remain those of its former path",
    search="beam(6)",
    queries=12,
    max_depth=5,
)
class VisitedOfTheFormerPath(ListSearch):
    def __init__(self, program: Program, limits: kgverify.Limits, policy: kgverify.Policy) -> None:
        super().__init__(program, limits, policy)
        self.memory: dict[Any, dict[int, tuple[Any, ...]]] = {}

    def take(self, query: Atom, beam: Sequence[Path]) -> list[Taken]:
        level, remembered = level_of(beam), {}
        slots = self.memory.get((query, level - 1), {})
        excluded = query if self.limits.exclude_query else None
        taken = []
        for path in beam:
            seen = (*slots.get(path.place, tuple(path.visited[:-1])), path.visited[-1])
            remembered[path.place] = seen
            taken.append(self.prover.take(seen, excluded))
        self.memory[query, level] = remembered
        return taken


@fault(
    "select recycle",
    "a free place before the path",
    "the step is that of the path whose row is the place",
    search="beam(6)",
    queries=12,
)
class RowByPlace(ListSearch):
    def take(self, query: Atom, beam: Sequence[Path]) -> list[Taken]:
        taken = super().take(query, beam)
        return [taken[min(path.place, len(taken) - 1)] for path in beam]
