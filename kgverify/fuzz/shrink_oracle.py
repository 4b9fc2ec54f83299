"""The oracle of the shrinker: does a smaller problem still fail in the same way? Every run of an engine is counted."""

import time
from collections.abc import Sequence
from typing import Final

from kgverify.fuzz.check import find_suspects, judge, prepare_batches
from kgverify.fuzz.failure import CRASH, Failure, Signature
from kgverify.fuzz.pipelines import MakePipeline
from kgverify.fuzz.problem import NO_SPREAD, Problem, Sizes
from kgverify.harness.run import Pipeline, Run
from kgverify.logic.stages import Stage

LARGEST_RUN: Final = 20_000
"""Facts and rules of one run of attempts, at most; a single attempt may have more."""
FEWEST_TOGETHER: Final = 3
"""Attempts from which on a run of them all pays before any is run alone."""


class OutOfBudget(Exception):
    """The calls or the seconds granted are used up."""


def is_same_way(signature: Signature, other: Signature) -> bool:
    """Whether two failures are of the same stage, field, class and situation.

    Where a step is right alone and wrong among others, any column of its resolvents may be the first to differ.
    """
    return _held(signature) == _held(other)


def _held(signature: Signature) -> Signature:
    is_any = signature.stage == Stage.RECYCLE and signature.field.startswith("resolvents.")
    return signature._replace(field="resolvents") if is_any else signature


class Oracle:
    """Says of problems whether they fail with a given signature, alone; many are sifted in one run first.

    calls: runs of the engine under test so far; one run of many problems is one call
    """

    def __init__(
        self,
        make_pipeline: MakePipeline,
        signature: Signature,
        *,
        lockstep: bool = False,
        max_calls: int,
        seconds: float,
    ) -> None:
        self.calls = 0
        self.signature = signature
        self._make = make_pipeline
        self._lockstep = lockstep
        self._max_calls = max_calls
        self._begin = time.perf_counter()
        self._end = self._begin + seconds
        self._judged: dict[Problem, Failure | None] = {}

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self._begin

    def judge(self, problem: Problem) -> Failure | None:
        """What is wrong with a problem, run alone. OutOfBudget if it may not be run any more."""
        if problem not in self._judged:
            self._check_budget()
            self._judged[problem] = judge(problem, self._counted, lockstep=self._lockstep)
        return self._judged[problem]

    def holds(self, problem: Problem) -> bool:
        """Whether a problem, run alone, fails with the signature."""
        failure = self.judge(problem)
        return failure is not None and is_same_way(failure.signature, self.signature)

    def first(self, attempts: Sequence[Problem], control: Problem | None) -> Problem | None:
        """The first of the attempts that fails with the signature, alone.

        control: a problem known to; without one what agrees in a common run is taken to agree alone
        """
        places = self.sift(attempts, control)
        return next((attempts[i] for i in places if self.holds(attempts[i])), None)

    def sift(self, attempts: Sequence[Problem], control: Problem | None) -> list[int]:
        """The places of the attempts that may fail: those that differ in a common run, if the control differs there.

        Where problems cannot be judged together all are left, less those known not to fail.
        """
        places = [i for i, each in enumerate(attempts) if each not in self._judged or self.holds(each)]
        groups: list[list[int]] = []
        size = 0
        for i in places:
            if not groups or size + attempts[i].size > LARGEST_RUN or attempts[i].key != attempts[groups[-1][0]].key:
                groups.append([])
                size = 0 if control is None else control.size
            groups[-1].append(i)
            size += attempts[i].size
        return [i for group in groups for i in self._sift_group(attempts, group, control)]

    def can_share(self, problem: Problem) -> bool:
        """Whether a problem can be told to fail in a run with others: not if it takes company, or certain ids, to fail."""
        return self.signature.stage != Stage.RECYCLE and self.signature.kind != CRASH and problem.spread == NO_SPREAD

    def agreeing(self, attempts: Sequence[Problem], control: Problem) -> list[int]:
        """The places of the attempts on which both sides may well agree: those that do in a common run."""
        suspects = set(self.sift(attempts, control))
        if len(suspects) == len(attempts):
            return list(range(len(attempts)))
        return [i for i in range(len(attempts)) if i not in suspects]

    def _sift_group(self, attempts: Sequence[Problem], group: list[int], control: Problem | None) -> list[int]:
        problems = [attempts[i] for i in group] + ([] if control is None else [control])
        is_common = all(each.key == problems[-1].key and self.can_share(each) for each in problems)
        if not is_common or len(group) < FEWEST_TOGETHER:
            return group
        self._check_budget()
        (batch,) = prepare_batches(problems)
        found = {suspect.number for suspect in find_suspects(batch, self._counted, lockstep=self._lockstep)}
        if control is not None and len(group) not in found:
            return group
        return [i for place, i in enumerate(group) if place in found]

    def _check_budget(self) -> None:
        if self.calls >= self._max_calls or time.perf_counter() >= self._end:
            raise OutOfBudget

    def _counted(self, run: Run, sizes: Sizes) -> Pipeline:
        self.calls += 1
        return self._make(run, sizes)
