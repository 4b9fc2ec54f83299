"""Whether a prover ended its candidates as another did: asked before its speed is told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.bench.result import Agreement
from kgverify.evaluation.evaluation_report import find_smallest_gaps
from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns

EXACT: Final = 1e-9
"""How far sums of float64 may be apart that were added up in another order, for each step, in nats."""

_PROVED_AT_ONCE: Final = 256
"""Candidates that differ, proved again with their steps to see how close their scores are."""

NameOf = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Expectation:
    """How candidates have to end.

    against:     who says so
    prove:       proves candidates as that one does, with their steps
    score_error: that it declares, in nats
    rows:        int64 [n], the candidates that are compared; `ends` are theirs
    steps:       of each derivation, or the most that there may be; a log-probability may be off by an error for each
    """

    against: str
    prove: Callable[[CandidateSet], Columns]
    score_error: float
    rows: NDArray[np.int64]
    ends: Candidates
    steps: NDArray[np.int64] | int
    name_of: NameOf

    def compare(self, actual: Candidates, score_error: float) -> Agreement:
        """What became of all candidates, beside what is expected. score_error: what the actual engine declares, in nats.

        A candidate that differs is no difference where two scores on its way are closer than the errors: a near-tie.
        """
        error = score_error + self.score_error
        ends, mine = self.ends, _take_rows(actual, self.rows)
        with np.errstate(invalid="ignore"):
            apart = np.abs(mine.log_probability - ends.log_probability)
        is_same = (mine.outcome == ends.outcome) & (mine.is_limited == ends.is_limited)
        is_same &= (mine.log_probability == ends.log_probability) | (apart <= self.steps * (2 * error + EXACT))
        differing = np.flatnonzero(~is_same)
        num_near_ties, real = self._excuse(differing, error)
        return Agreement(
            against=self.against,
            num_compared=len(self.rows),
            num_differing=len(differing) - num_near_ties,
            num_near_ties=num_near_ties,
            largest_gap=float(np.nan_to_num(apart[is_same], nan=0.0).max(initial=0.0)),
            example="" if real is None else self._describe(real, mine),
        )

    def _excuse(self, differing: NDArray[np.int64], error: float) -> tuple[int, int | None]:
        """How many of those that differ are near-ties, and the first that is none; none is looked for after that."""
        if not len(differing):
            return 0, None
        if error == 0:
            return 0, int(differing[0])
        num = 0
        for begin in range(0, len(differing), _PROVED_AT_ONCE):
            part = differing[begin : begin + _PROVED_AT_ONCE]
            candidates = CandidateSet(self.ends.query[part], self.ends.side[part], self.ends.atom[part])
            is_near = find_smallest_gaps(self.prove(candidates)) <= 2 * error
            num += int(is_near.sum())
            if not is_near.all():
                return num, int(part[~is_near][0])
        return num, None

    def _describe(self, row: int, mine: Candidates) -> str:
        def ended(ends: Candidates) -> str:
            limited = ", limited" if ends.is_limited[row] else ""
            outcome = Outcome(int(ends.outcome[row])).name.lower().replace("_", " ")
            return f"{outcome}{limited}, {float(ends.log_probability[row]):.6g} nats"

        return f"{self.name_of(int(self.rows[row]))}: {self.against} {ended(self.ends)}; here {ended(mine)}"


def _take_rows(ends: Candidates, rows: NDArray[np.int64]) -> Candidates:
    columns: Any = (column[rows] for column in ends)
    return Candidates(*columns)


def join_agreements(earlier: Agreement | None, later: Agreement) -> Agreement:
    """Of two calls on the same candidates: what the later one differs in, and the largest gap of both."""
    if earlier is None:
        return later
    return Agreement(
        against=later.against,
        num_compared=later.num_compared,
        num_differing=later.num_differing,
        num_near_ties=max(earlier.num_near_ties, later.num_near_ties),
        largest_gap=max(earlier.largest_gap, later.largest_gap),
        example=later.example,
    )
