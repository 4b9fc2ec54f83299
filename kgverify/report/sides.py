"""A step of both sides, looked up in the traces of a saved run."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import Alignment, LoadedCandidates, align_candidates
from kgverify.comparison.comparable import ComparablePair, lockstep_columns, share_symbols
from kgverify.comparison.result import NO_CANDIDATE, Divergence
from kgverify.comparison.step_view import Names, StepReader, StepView
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.stage_items import StageOutputs, StageReader
from kgverify.trace.model.trace import Trace


class Sides(NamedTuple):
    """A step of both sides; None where a side has no such step.

    is_same_way: whether both came to this step by the same choices, so that their steps can be compared
    """

    expected: StepView | None
    actual: StepView | None
    is_same_way: bool


class SidesReader:
    """Looks steps up, by candidate and step of the expected trace.

    stepped: in lockstep, the actual engine's steps from the expected goals, each a candidate with one step, in the order
             of the expected steps; None where these were not saved, and the actual engine's own run stands in
    """

    def __init__(self, expected: Trace, actual: Trace, stepped: Trace | None = None) -> None:
        pair = ComparablePair(expected, actual)
        self.names = pair.names, pair.actual_names
        self.score_tolerance = pair.score_tolerance
        self.expected_fields, self.actual_fields = expected.fields, (stepped or actual).fields
        self._expected, self._actual = pair.expected.columns, pair.actual.columns
        self._readers = StepReader(self._expected), StepReader(self._actual)
        self._stage_readers = StageReader(self._expected), StageReader(self._actual)
        alignment = _align(self._expected.candidates, self._actual.candidates)
        self._actual_of = dict(zip(alignment.expected.tolist(), alignment.actual.tolist(), strict=True))
        self._stepped: StepReader | None = None
        self._stepped_of: dict[int, int] = {}
        if stepped is not None:
            shared = share_symbols(pair.expected, stepped)
            self.names = pair.names, Names(shared)
            self._stepped = StepReader(shared.columns)
            aligned = _align(lockstep_columns(expected.columns).candidates, shared.columns.candidates)
            self._stepped_of = dict(zip(aligned.expected.tolist(), aligned.actual.tolist(), strict=True))

    @property
    def has_stepped(self) -> bool:
        """Whether the actual steps are those of lockstep."""
        return self._stepped is not None

    def actual_candidate(self, divergence: Divergence) -> int | None:
        """The row of a divergence's candidate in the actual trace; None where it is not there."""
        if divergence.expected == NO_CANDIDATE:
            return divergence.candidate
        return self._actual_of.get(divergence.candidate)

    def num_steps(self, candidate: int) -> tuple[int, int]:
        """Steps that each side has of a candidate."""
        expected = _count(self._expected.candidates.num_steps, candidate)
        if self._stepped is not None:
            return expected, expected
        return expected, _count(self._actual.candidates.num_steps, self._actual_of.get(candidate))

    def read(self, candidate: int, step: int) -> Sides:
        """The step of both sides."""
        num_expected, num_actual = self.num_steps(candidate)
        expected = self.read_expected(candidate, step) if 0 <= step < num_expected else None
        if self._stepped is not None:
            return Sides(expected, self._read_stepped(candidate, step) if expected else None, True)
        actual = self._read_actual(candidate, step) if 0 <= step < num_actual else None
        return Sides(expected, actual, self._agree_before(candidate, step))

    def read_expected(self, candidate: int, step: int) -> StepView:
        """A step of the expected side, which must have it."""
        reader = self._readers[0]
        return reader.read(reader.first_step[candidate] + step)

    def _read_actual(self, candidate: int, step: int) -> StepView:
        reader = self._readers[1]
        return reader.read(reader.first_step[self._actual_of[candidate]] + step)

    def _read_stepped(self, candidate: int, step: int) -> StepView | None:
        position = self._stepped_of.get(self._readers[0].first_step[candidate] + step)
        if self._stepped is None or position is None:
            return None
        first, end = self._stepped.first_step[position : position + 2]
        return self._stepped.read(first) if first < end else None

    def outputs(self, candidate: int, step: int) -> tuple[StageOutputs, StageOutputs]:
        """What the stages of a step gave on both sides; nothing where a side has no such step, or did not record it."""
        places = candidate, None if self._stepped is not None else self._actual_of.get(candidate)
        sides = zip(self._stage_readers, self._readers, places, self.num_steps(candidate), strict=True)
        expected, actual = (
            stages.read(reader.first_step[row] + step) if row is not None and 0 <= step < num_steps else {}
            for stages, reader, row, num_steps in sides
        )
        return expected, actual

    def _agree_before(self, candidate: int, step: int) -> bool:
        if min(self.num_steps(candidate)) < step or candidate not in self._actual_of:
            return False
        for number in range(step):
            left, right = self.read_expected(candidate, number), self._read_actual(candidate, number)
            if left.goal != right.goal or left.chosen != right.chosen:
                return False
        return True


def _align(expected: Candidates, actual: Candidates) -> Alignment:
    return align_candidates(LoadedCandidates(expected), LoadedCandidates(actual))


def _count(num_steps: NDArray[np.uint32], candidate: int | None) -> int:
    return int(num_steps[candidate]) if candidate is not None and 0 <= candidate < len(num_steps) else 0
