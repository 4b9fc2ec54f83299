"""The candidates of a run as instances: their places in rankings, and their turns in the slots of the batch."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import OriginInference
from kgverify.conditions.instances import Candidate
from kgverify.conditions.slot_turns import Turn, find_turns
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.header import EngineInfo


class CandidateReader:
    """Reads the candidates of a run.

    expected:  of the expected side
    num_steps: of the actual side; None if its candidates are others
    info:      of the engine under test
    """

    def __init__(
        self,
        expected: Candidates,
        num_steps: Sequence[int] | None,
        info: EngineInfo,
        inference: OriginInference | None,
    ) -> None:
        self._expected, self._num_steps, self._info, self._inference = expected, num_steps, info, inference
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
        layout = {name: size for name, size in self._info.layout.items() if isinstance(size, int)}
        if self._num_steps is None:
            return None
        return find_turns(layout, self._expected.query.tolist(), self._expected.outcome.tolist(), self._num_steps)
