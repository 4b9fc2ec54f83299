"""The agreement of two provers on the ends of their candidates, which comes before their speed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.bench.result import Agreement
from kgverify.evaluation.judge import find_smallest_gaps
from kgverify.program.outcomes import Outcome
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns

EXACT: Final = 1e-9
"""Largest difference for each step of float64 sums in different orders, in nats."""

_PROVED_AT_ONCE: Final = 256
"""Differing candidates that are proved again at once, with their steps, to see how close their scores are."""

NameOf = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Expectation:
    """The expected ends of candidates.

    against:     name of the prover that expects them
    prove:       proves candidates as that prover does, with their steps
    score_error: its declared error of scores, in nats
    rows:        int64 [n], the candidates that are compared; `ends` are theirs
    steps:       of each derivation, or their limit; a log-probability may be off by an error for each
    """

    against: str
    prove: Callable[[CandidateSet], Columns]
    score_error: float
    rows: NDArray[np.int64]
    ends: Candidates
    steps: NDArray[np.int64] | int
    name_of: NameOf

    def compare(self, actual: Candidates, score_error: float) -> Agreement:
        """Compare the ends of all candidates with the expected ones. score_error: declared by the actual engine, in nats.

        A candidate that differs is a near-tie, not a difference, where two scores of its derivation are closer than the errors.
        """
        error = score_error + self.score_error
        ends, mine = self.ends, Candidates._make(column[self.rows] for column in actual)
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
        """Count the near-ties among differing candidates, up to the first real difference, and return that."""
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
