"""The cost of each cause: the loss of the metric, split with Shapley values over counterfactual repairs.

A repair of a set of causes takes the candidates of these causes from the expected run, and also the ranking if `rank` is among
them. The value is the actual metric if nothing is repaired, and the expected metric if everything is, so the shares add up to
the loss.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from kgverify.comparison.align import align_candidates
from kgverify.comparison.rankings import RankCandidates, mean_reciprocal_rank
from kgverify.comparison.result import NO_CANDIDATE, Attribution, Cause, Divergence, Share
from kgverify.program.outcomes import Stage
from kgverify.ranking.rank import MRR
from kgverify.trace.model.columns import Candidates, CandidateSet
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import FULL, Effort

ROUNDING: Final = -1
"""The cause of the share that does not belong to any divergence: rounding at near-ties."""


def attribute_loss(
    traces: Sequence[Trace],
    divergences: tuple[Divergence, ...],
    causes: tuple[Cause, ...],
    ranks: tuple[RankCandidates, RankCandidates],
    basis: str = "engines",
    effort: Effort = FULL,
) -> Attribution:
    """Split the expected MRR minus the actual MRR over the causes. basis: as in `Attribution`."""
    table = _Counterfactuals(traces, divergences, causes, ranks)
    num = table.num_players
    if num <= effort.exact:
        shares, error, method = _exact_shares(num, table.value), 0.0, "exact"
    else:
        shares, error = _sampled_shares(num, table.value, effort.samples, np.random.default_rng(0))
        method = "sampled"
    return Attribution(
        metric=MRR,
        expected=table.value((1 << num) - 1),
        actual=table.value(0),
        shares=tuple(
            Share(i if i < len(causes) else ROUNDING, share, table.value(1 << i)) for i, share in enumerate(shares)
        ),
        method=method,
        error=error,
        basis=basis,
    )


def order_by_loss(
    divergences: tuple[Divergence, ...], causes: tuple[Cause, ...], attribution: Attribution
) -> tuple[tuple[Divergence, ...], tuple[Cause, ...], Attribution]:
    """Return divergences, causes and shares with the causes in the order of the loss that each explains, the largest first."""
    share_of = {each.cause: each.share for each in attribution.shares}
    order = sorted(range(len(causes)), key=lambda i: -share_of.get(i, 0.0))
    place = {old: new for new, old in enumerate(order)}
    moved = tuple(
        replace(
            each, cause=place.get(each.cause, each.cause), other_cause=place.get(each.other_cause, each.other_cause)
        )
        for each in divergences
    )
    shares = tuple(
        sorted(
            (replace(each, cause=place.get(each.cause, each.cause)) for each in attribution.shares),
            key=lambda each: (each.cause < 0, each.cause),
        )
    )
    return moved, tuple(causes[i] for i in order), replace(attribution, shares=shares)


class _Counterfactuals:
    """The metric for every set of repaired causes; a set is a bit mask."""

    def __init__(
        self,
        traces: Sequence[Trace],
        divergences: tuple[Divergence, ...],
        causes: tuple[Cause, ...],
        ranks: tuple[RankCandidates, RankCandidates],
    ) -> None:
        e, a = (trace.columns.candidates for trace in traces)
        pairs = align_candidates(CandidateSet(*e[:3]), CandidateSet(*a[:3]))
        # One row for each pair, and for each candidate that only the expected run or only the actual run has.
        expected_rows = np.concatenate([pairs.expected, pairs.missing, np.full(len(pairs.extra), -1)])
        actual_rows = np.concatenate([pairs.actual, np.full(len(pairs.missing), -1), pairs.extra])
        # Keep the order in which candidates were drawn: a ranking function may rely on it.
        order = np.lexsort((actual_rows, expected_rows, expected_rows < 0))
        self._expected_rows, self._actual_rows = expected_rows[order], actual_rows[order]
        self._e, self._a = e, a
        self._ranks = ranks[::-1]
        # A difference in ranking without a cause is rounding.
        self._rank_causes = sum(1 << i for i, cause in enumerate(causes) if cause.stage == Stage.RANK) or 1 << len(
            causes
        )
        # The causes that must all be repaired for a candidate; most candidates have one.
        of_expected, of_extra = np.full((len(e.query) + 1, 2), -1), np.full((len(a.query) + 1, 2), -1)
        for each in reversed(divergences):
            if each.stage != Stage.RANK:
                own = each.cause, each.other_cause if each.other_cause >= 0 else each.cause
                (of_extra if each.expected == NO_CANDIDATE else of_expected)[each.candidate] = own
        is_extra = (self._expected_rows < 0)[:, None]
        self._cause = np.where(is_extra, of_extra[self._actual_rows], of_expected[self._expected_rows])
        # If candidates without a cause, such as near-ties, change the metric, they count as one more cause.
        everything = (1 << len(causes)) - 1
        without = self._compute(everything)
        self._cause[self._cause < 0] = len(causes)
        self.num_players = len(causes) + (self._compute(everything | 1 << len(causes)) != without)
        self.value = cache(self._compute)

    def _compute(self, repaired: int) -> float:
        """Return the metric with a set of causes repaired."""
        is_repaired = (((repaired >> np.maximum(self._cause, 0)) & 1).astype(np.bool_) & (self._cause >= 0)).all(1)
        has_expected, has_actual = is_repaired & (self._expected_rows >= 0), ~is_repaired & (self._actual_rows >= 0)
        rows_e, rows_a = self._expected_rows[has_expected], self._actual_rows[has_actual]
        order = np.argsort(np.concatenate([np.flatnonzero(has_expected), np.flatnonzero(has_actual)]))
        columns: Iterator[tuple[Any, Any]] = zip(self._e, self._a, strict=True)
        merged = Candidates(*(np.concatenate([left[rows_e], right[rows_a]])[order] for left, right in columns))
        return mean_reciprocal_rank(self._ranks[bool(repaired & self._rank_causes)](merged))


def _exact_shares(num: int, value: Callable[[int], float]) -> list[float]:
    shares = []
    for i in range(num):
        total = 0.0
        for others in range(1 << num):
            if not others >> i & 1:
                size = others.bit_count()
                weight = math.factorial(size) * math.factorial(num - size - 1) / math.factorial(num)
                total += weight * (value(others | 1 << i) - value(others))
        shares.append(total)
    return shares


def _sampled_shares(
    num: int, value: Callable[[int], float], num_samples: int, random: np.random.Generator
) -> tuple[list[float], float]:
    gains = np.zeros((num_samples, num))
    for sample in range(num_samples):
        repaired = 0
        for i in random.permutation(num).tolist():
            gains[sample, i] = value(repaired | 1 << i) - value(repaired)
            repaired |= 1 << i
    error = float((gains.std(0, ddof=1) / math.sqrt(num_samples)).max())
    return [float(share) for share in gains.mean(0)], error
