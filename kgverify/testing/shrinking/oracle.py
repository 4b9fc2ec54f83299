"""The oracle of the shrinker, which decides whether a smaller problem still fails, and counts runs of the engine."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from kgverify.engines.sizes import Sizes
from kgverify.program.stages import Stage
from kgverify.runs.delta_debugging import minimize
from kgverify.runs.engine_makers import MakePipeline, make_reference
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.check import find_suspects, judge, prepare_batches
from kgverify.testing.checking.failure import ENDS_RUN, Failure, Signature, fails_same_way
from kgverify.testing.problems.problem import NO_SPREAD, Problem

LARGEST_RUN: Final = 20_000
"""The largest number of facts, rules and unused symbols in one run; a single attempt may have more."""
MOST_WITH_IDS: Final = 12
"""The number of attempts up to which those that agree in a common run are run alone, if ids matter."""
SMALL: Final = 6
"""The largest number of elements of a small problem."""
FEWEST_TOGETHER: Final = 3
"""The number of attempts from which a common run pays before any is run alone."""


T = TypeVar("T")


class OutOfBudget(Exception):
    """The limit on calls or seconds is reached."""


class Oracle:
    """Decides whether problems fail, alone, with a given signature; a common run sifts many of them first.

    calls:    runs of the engine under test so far; one run of many problems is one call
    smallest: the first of the smallest problems that were found to fail; None before one was
    """

    def __init__(
        self,
        make_pipeline: MakePipeline,
        signature: Signature,
        *,
        reference: MakePipeline = make_reference,
        lockstep: bool = False,
        max_calls: int,
        seconds: float,
    ) -> None:
        self.calls = 0
        self.smallest: Problem | None = None
        self.signature = signature
        self._make, self._reference = make_pipeline, reference
        self._lockstep = lockstep
        self._max_calls = max_calls
        self._begin = time.perf_counter()
        self._end = self._begin + seconds
        self._judged: dict[Problem, Failure | None] = {}
        self._agreed: set[Problem] = set()

    @property
    def seconds(self) -> float:
        """The seconds since the oracle was made."""
        return time.perf_counter() - self._begin

    def judge(self, problem: Problem) -> Failure | None:
        """Return the failure of a problem, run alone. OutOfBudget if the limit is reached."""
        if problem not in self._judged:
            self._check_budget()
            self._judged[problem] = self.judge_alone(problem)
        return self._judged[problem]

    def judge_alone(self, problem: Problem) -> Failure | None:
        """Judge a problem without memory and without a budget."""
        return judge(problem, self._counted, reference=self._reference, lockstep=self._lockstep)

    def judge_together(self, problems: Sequence[Problem]) -> set[int]:
        """Return the indices of the problems that differ in a common run."""
        (batch,) = prepare_batches(problems, self._reference)
        return {each.number for each in find_suspects(batch, self._counted, lockstep=self._lockstep)}

    def holds(self, problem: Problem) -> bool:
        """Return whether a problem, run alone, fails with the signature."""
        failure = self.judge(problem)
        is_held = failure is not None and fails_same_way(failure.signature, self.signature)
        if is_held and (self.smallest is None or _extent(problem) < _extent(self.smallest)):
            self.smallest = problem
        return is_held

    def first(self, attempts: Sequence[Problem], control: Problem | None) -> Problem | None:
        """Return the first of the attempts that fails with the signature, alone.

        control: a problem known to fail; without it, attempts that agree in a common run count as find_agreeing alone
        """
        return next((attempts[i] for i in self.sift(attempts, control) if self.holds(attempts[i])), None)

    def drop_items(
        self, problem: Problem, items: Sequence[T], rebuild: Callable[[tuple[T, ...]], Problem | None]
    ) -> Problem:
        """Return a problem that fails with the signature, rebuilt from as few of the items as possible."""

        def still_fails(kept: tuple[T, ...]) -> bool:
            return (built := rebuild(kept)) is not None and self.holds(built)

        every = tuple(items)
        kept = minimize(every, still_fails, _Sift(self, problem, every, rebuild) if self.can_share else None)
        return problem if kept == every else rebuild(kept) or problem

    def sift(self, attempts: Sequence[Problem], control: Problem | None) -> Iterator[int]:
        """Yield the indices of the attempts that may fail: those that differ in a common run, if the control does.

        The runs are made one at a time, as the indices are consumed. If problems cannot be judged together, all of them
        are yielded except those known not to fail.
        """
        group: list[int] = []
        size = 0
        for i, attempt in enumerate(attempts):
            if attempt in self._agreed or (attempt in self._judged and not self.holds(attempt)):
                continue
            weight = _weigh(attempt)
            if group and (size + weight > LARGEST_RUN or attempt.key != attempts[group[0]].key):
                yield from self._sift_group(attempts, group, control)
                group = []
            if not group:
                size = 0 if control is None else _weigh(control)
            group.append(i)
            size += weight
        if group:
            yield from self._sift_group(attempts, group, control)

    @property
    def needs_batch(self) -> bool:
        """True if the failure occurs only in a batch: then the sizes of the batch matter."""
        return self.signature.stage == Stage.RECYCLE

    @property
    def can_share(self) -> bool:
        """True if a failure can be recognized in a run with others.

        An exception or a hang ends the run for all of them, and a failure that occurs only in a batch depends on the others.
        """
        return self.signature.kind not in ENDS_RUN and not self.needs_batch

    def find_agreeing(self, attempts: Sequence[Problem], control: Problem) -> list[int]:
        """Return the indices of the attempts that agree in a common run, and so may well agree alone."""
        suspects = set(self.sift(attempts, control))
        if len(suspects) == len(attempts):
            return list(range(len(attempts)))
        return [i for i in range(len(attempts)) if i not in suspects]

    def _sift_group(self, attempts: Sequence[Problem], group: list[int], control: Problem | None) -> list[int]:
        problems = [attempts[i] for i in group]
        # Between others, so that a fault in the last fact or rule of a run does not affect the control alone.
        middle = len(group) // 2
        if control is not None:
            problems.insert(middle, control)
        is_common = self.can_share and all(each.key == problems[0].key for each in problems)
        if not is_common or len(group) < FEWEST_TOGETHER:
            return group
        self._check_budget()
        found = self.judge_together(problems)
        if control is None:
            return [i for member, i in enumerate(group) if member in found]
        if middle not in found:
            return group
        found = {at - (at > middle) for at in found if at != middle}
        members = [member for member in range(len(group)) if member in found]
        others = [member for member in range(len(group)) if member not in found]
        if control.spread != NO_SPREAD and control.size <= SMALL and len(group) <= MOST_WITH_IDS:
            # In a common run they have other ids, so that they are only less likely to fail.
            return [group[member] for member in (*members, *others)]
        self._agreed.update(attempts[group[member]] for member in others)
        return [group[member] for member in members]

    def _check_budget(self) -> None:
        if self.calls >= self._max_calls or time.perf_counter() >= self._end:
            raise OutOfBudget

    def _counted(self, run: Run, sizes: Sizes) -> Pipeline:
        self.calls += 1
        return self._make(run, sizes)


class _Sift(NamedTuple, Generic[T]):
    """A test of many rebuilt problems in one run."""

    oracle: Oracle
    problem: Problem
    items: tuple[T, ...]
    rebuild: Callable[[tuple[T, ...]], Problem | None]

    def capacity(self, kept: tuple[T, ...]) -> int:
        """Return how many problems with about as many items one run holds, the control apart."""
        return LARGEST_RUN // max(1, _weigh(self._build(kept))) - 1

    def find_suspects(self, attempts: Sequence[tuple[T, ...]], kept: tuple[T, ...]) -> Iterable[int]:
        """Yield the indices of the attempts that may fail with the signature."""
        built = [(i, problem) for i, left in enumerate(attempts) if (problem := self.rebuild(left)) is not None]
        for i in self.oracle.sift([problem for _, problem in built], self._build(kept)):
            yield built[i][0]

    def _build(self, kept: tuple[T, ...]) -> Problem:
        return self.problem if kept == self.items else self.rebuild(kept) or self.problem


def _weigh(problem: Problem) -> int:
    """Return the share of a run's capacity that a problem takes."""
    return problem.size + sum(problem.spread[:2])


def _extent(problem: Problem) -> tuple[int, int]:
    return problem.size, len(problem.queries) + len(problem.unranked)
