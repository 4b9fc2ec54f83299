"""An engine that searches with several paths, from one function that takes a level. A base class provides the rest."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np

from kgverify.engines.adapters.stepwise import AtomIds, Goal, StepwiseEngine, collect
from kgverify.errors import UserError, count_of
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.progress import Progress, no_progress
from kgverify.step.plain_step import Taken, TakenStep, find_outcome
from kgverify.step.search import Ended, Kept, Level, Path, Searched, Searches, aggregate
from kgverify.trace.model.columns import CandidateSet, Columns, Paths

__all__ = ["Ended", "Kept", "Level", "Path", "SearchEngine", "collect_search"]


Beams: TypeAlias = Sequence[Sequence[Path]]

Record: TypeAlias = Callable[[CandidateSet, list[list[TakenStep]]], Columns]


def collect_search(
    candidates: CandidateSet, limits: Limits, searches: Sequence[Searched], record: Record = collect
) -> Columns:
    """Collect the paths of searches into columns: a step for each path of each level. record: collects the steps."""
    numbers: list[int] = []
    places: list[int] = []
    parents: list[int] = []
    sums: list[float] = []
    children: list[int] = []
    gained: list[float] = []
    steps = []
    for each in searches:
        of_candidate = []
        for beam, level in zip(each.beams, each.levels, strict=True):
            of_child = {(kept.parent, kept.choice): kept for kept in level.kept}
            for path, taken in zip(beam, level.taken, strict=True):
                numbers.append(len(path.visited) - 1)
                places.append(path.place)
                parents.append(path.parent)
                sums.append(path.log_probability)
                kept = [of_child.get((path.place, i)) for i in range(len(taken.resolvents))]
                children += [-1 if child is None else _number(child) for child in kept]
                gained += [0.0 if child is None else child.log_probability for child in kept]
                of_candidate.append(_choose(limits, path, taken, [child for child in kept if child is not None]))
        steps.append(of_candidate)
    columns = record(candidates, steps)
    of_candidates = columns.candidates._replace(
        outcome=np.array([each.outcome for each in searches], np.int8),
        is_limited=np.array([each.is_limited for each in searches], np.uint8),
        log_probability=np.array([each.log_probability for each in searches], np.float64),
    )
    paths = Paths(
        level=np.array(numbers, np.int32),
        place=np.array(places, np.int32),
        parent=np.array(parents, np.int32),
        log_probability=np.array(sums, np.float64),
        child=np.array(children, np.int32),
        child_log_probability=np.array(gained, np.float64),
    )
    return columns._replace(candidates=of_candidates, paths=paths)


def _number(kept: Kept) -> int:
    return kept.place if kept.merged_into < 0 else -2 - kept.merged_into


def _choose(limits: Limits, path: Path, taken: Taken, kept: Sequence[Kept]) -> TakenStep:
    """Return the step of a path, with the best of its children as its choice; -1 if none is kept."""
    choice, outcome = -1, Outcome.OPEN
    is_uncounted = path.is_uncounted(limits, taken)
    if kept:
        choice = min(kept, key=lambda child: child.place).choice
        outcome = find_outcome(limits, taken.resolvents[choice].kind, path.depth + (not is_uncounted))
    return TakenStep(path.visited[-1], path.depth, taken, choice, outcome, 0.0, is_uncounted)


class SearchEngine(StepwiseEngine):
    """A prover whose author provides `take_level`, which takes a step of every path of a beam and keeps some children.

    program, limits, policy: as given; `limits.dialect.searching` is the search, such as `Search("beam", 8)`, which the user
    chooses with `--limits search=beam(8)`. In the search `greedy`, the beam is a single path.

    The path of a kept child has the `place` that the child is given, and the beam has the open paths in order of place. A
    child of kind TRUE ends its path as proved, FALSE and STOP as failed.

    Example:
        >>> import kgverify as kv
        >>> class Fails(kv.SearchEngine):
        ...     def take_level(self, query, beam):
        ...         taken = [kv.Taken([kv.Resolvent((), kv.Origin.NONE, 0, kv.GoalKind.FALSE)]) for path in beam]
        ...         return kv.Level(taken, [kv.Kept(path.place, 0, path.place, path.log_probability) for path in beam])
        >>> kv.check_engine(Fails, examples=5).is_conforming
        False
    """

    searches: ClassVar[tuple[str, ...]] = ("greedy", "beam", "sample", "all")

    def take_level(self, query: AtomIds, beam: Sequence[Path]) -> Level:
        """Return the resolvents of every path with their scores, and the children that are kept, in order of place."""
        raise NotImplementedError

    def take_levels(self, queries: Sequence[AtomIds], beams: Beams) -> Sequence[Level]:
        """Take a level of each search. All searches are open; their levels may differ."""
        return [self.take_level(query, beam) for query, beam in zip(queries, beams, strict=True)]

    def aggregate(self, query: AtomIds, ended: Sequence[Ended]) -> tuple[Outcome, float]:
        """Return the outcome and the log-probability of a candidate; by default, those of the dialect."""
        return aggregate(self.limits.dialect, ended)

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end, all of them level by level in parallel. UserError for a level that does not fit."""
        queries = self._read_queries(candidates)
        searches = Searches(self.limits, [(query,) for query in queries])
        while searches.open:
            now = searches.open
            progress(searches.advance(self._take([queries[i] for i in now], [searches.beams[i][-1] for i in now])))
        found = [searches.conclude(i, partial(self.aggregate, query)) for i, query in enumerate(queries)]
        return collect_search(candidates, self.limits, found, self._record)

    def take_beams(self, candidates: CandidateSet, beams: Beams) -> Columns:
        """Take a level of each beam; return columns with a candidate for each, whose steps are its paths."""
        levels = self._take(self._read_queries(candidates), beams)
        return collect_levels(candidates, self.limits, beams, levels, self._record)

    def take_steps(self, queries: Sequence[AtomIds], visited: Sequence[Sequence[Goal]]) -> Sequence[Taken]:
        """Take a step of each path, as a beam of its own."""
        beams = [[Path(0, goals, depth=len(goals) - 1)] for goals in visited]
        return [level.taken[0] for level in self._take(queries, beams)]

    def _take(self, queries: Sequence[AtomIds], beams: Beams) -> Sequence[Level]:
        levels = self.take_levels(queries, beams)
        if len(levels) != len(beams):
            raise self._refuse(
                f"expected {count_of(len(beams), 'level')}, found {len(levels)}",
                "give one Level for each query, in the same order",
                "take_levels",
            )
        for beam, level in zip(beams, levels, strict=True):
            if not isinstance(level, Level):
                raise self._refuse(f"expected a Level, found {level!r:.200}", "return kv.Level(taken, kept)")
            if len(level.taken) != len(beam):
                raise self._refuse(
                    f"expected the resolvents of {count_of(len(beam), 'path')}, found {len(level.taken)}",
                    "give one Taken for each path of the beam, in the same order",
                )
            nums = {path.place: len(taken.resolvents) for path, taken in zip(beam, level.taken, strict=True)}
            # A merged child gives up its place.
            places = [child.place for child in level.kept if child.merged_into < 0]
            if places != sorted({place for place in places if 0 <= place < 2**31}):
                raise self._refuse(
                    f"the kept children have the places {places!r:.200}, which do not ascend from 0 or more",
                    "give each child a place of its own, and the children in order of place",
                )
            for child in level.kept:
                if not 0 <= child.choice < nums.get(child.parent, 0):
                    raise self._refuse(
                        f"keeps resolvent {child.choice} of the path at place {child.parent}, which does not exist",
                        "give the place of a path of the beam, and the index of one of its resolvents",
                    )
                if not -1 <= child.merged_into < 2**31 - 2:
                    raise self._refuse(
                        f"merges the child at place {child.place} into place {child.merged_into}: not a valid place",
                        "give the place of another kept child, or -1",
                    )
        return levels

    def _refuse(self, message: str, fix: str, method: str = "take_level") -> UserError:
        return UserError(message, where=f"{type(self).__name__}.{method}", fix=fix)


def collect_levels(
    candidates: CandidateSet, limits: Limits, beams: Beams, levels: Sequence[Level], record: Record = collect
) -> Columns:
    """Collect one level of each search into columns; the outcome is OPEN."""
    found = [Searched([beam], [level], False, Outcome.OPEN, 0.0) for beam, level in zip(beams, levels, strict=True)]
    return collect_search(candidates, limits, found, record)
