"""The candidates of a run as instances: their places in rankings, and their turns in the slots of the batch."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import OriginInference
from kgverify.comparison.step_view import StepReader
from kgverify.conditions.instances import Candidate
from kgverify.conditions.slot_history import SlotHistory
from kgverify.conditions.slot_turns import Turn, find_turns
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.header import EngineInfo


class Actual(NamedTuple):
    """The outcome and the number of steps of each candidate on the actual side."""

    outcomes: Sequence[int]
    num_steps: Sequence[int]


class CandidateReader:
    """Reads the candidates of a run.

    expected:  of the expected side
    actual:    those of the actual side; None if they are others
    info:      of the engine under test
    read:      returns readers of all steps of the expected and of the actual side; None where slots have no history
    """

    def __init__(
        self,
        expected: Candidates,
        actual: Actual | None,
        info: EngineInfo,
        inference: OriginInference | None,
        read: Callable[[], tuple[StepReader, StepReader]] | None = None,
    ) -> None:
        self._expected, self._actual, self._info, self._inference = expected, actual, info, inference
        self._read = read
        self._known: dict[int, Candidate] = {}

    def read(self, row: int) -> Candidate:
        """Return the candidate in a row."""
        if row not in self._known:
            c = self._expected
            atom = tuple(c.atom[row].tolist())
            self._known[row] = Candidate(
                row=row,
                query=int(c.query[row]),
                side=int(c.side[row]),
                atom=atom,
                outcome=int(c.outcome[row]),
                num_steps=int(c.num_steps[row]),
                place=int(self._places[0][row]),
                is_fact=None if self._inference is None else atom in self._inference.clauses.fact_index,
                num_alike=int(self._places[1][row]),
                rows_left=len(c.query) - 1 - row,
                turn=None if self._turns is None else self._turns[row],
                history=self._history,
            )
        return self._known[row]

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The position of each candidate among those of its query and side, and the number of these: int64 [N]."""
        keys = self._expected.query.astype(np.int64) * 4 + self._expected.side
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=keys[order][:1] - 1))
        sizes = np.diff(np.append(starts, len(keys)))
        places, counts = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        places[order] = np.arange(len(keys)) - np.repeat(starts, sizes)
        counts[order] = np.repeat(sizes, sizes)
        return places, counts

    @cached_property
    def _turns(self) -> list[Turn] | None:
        """The turns in the slots of the batch; None if the engine does not name its slots."""
        if self._actual is None:
            return None
        c = self._expected
        return find_turns(self._layout, c.query.tolist(), c.outcome.tolist(), self._actual.num_steps)

    @property
    def _layout(self) -> dict[str, int]:
        return {name: size for name, size in self._info.layout.items() if isinstance(size, int)}

    @cached_property
    def _history(self) -> SlotHistory | None:
        turns, actual = self._turns, self._actual
        if turns is None or actual is None or self._read is None or any(turn.tick < 0 for turn in turns[:1]):
            return None
        c = self._expected
        expected = c.outcome.tolist(), c.num_steps.tolist()
        return SlotHistory(turns, actual.outcomes, actual.num_steps, *expected, self._read)
