"""Ranks without proving what cannot matter for them: what lies outside of the least model is not proved.

Where the true triple of a query and side is PROVED with a score above -100, a candidate outside of the least model stands
below it, whatever its derivation is: it cannot be PROVED, and what is not PROVED scores its log-probability less 100. All other
candidates are evaluated, so that the ranks are those of a full evaluation.

It takes an engine that is sound: one that proves what does not follow is not found out here. For ranks alone; there are no
steps to be had, and of the candidates left out no outcome.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.harness.run import Pipeline, Run
from kgverify.logic.outcomes import Outcome
from kgverify.ranking.rank import NOT_PROVED_PENALTY, RANK_TOLERANCE
from kgverify.trace.columns import Candidates, CandidateSet, Rankings

if TYPE_CHECKING:
    from kgverify.engines.compiled.least_model import LeastModel

MARGIN: Final = 1e-3
"""Nats by which the true triple has to stand above -100 and beyond a tie, so that no rounding of a sum can matter."""

Follows = Callable[[NDArray[np.int32]], NDArray[np.bool_]]
"""int32 [n, 3] -> bool [n]: whether an atom, or an instance of it, follows from the program."""


class Ended(Protocol):
    """How candidates ended."""

    @property
    def results(self) -> Sequence[NDArray[Any]]:
        """outcome [N], is_limited [N], log_probability float64 [N]"""
        ...


Evaluate = Callable[[CandidateSet], Ended]


class Evaluated(NamedTuple):
    """How the candidates that matter for ranks ended; those left out stand as FAILED, below every true triple that is ranked.

    is_run:          bool    [N]
    outcome:         int8    [N]
    log_probability: float64 [N]
    """

    is_run: NDArray[np.bool_]
    outcome: NDArray[np.int8]
    log_probability: NDArray[np.float64]


class RankedOnly(NamedTuple):
    """Ranks, and what they took. rankings: None where a log-probability is no number."""

    rankings: Rankings | None
    num_candidates: int
    num_evaluated: int

    @property
    def num_skipped(self) -> int:
        """Candidates that were not evaluated."""
        return self.num_candidates - self.num_evaluated


def rank_only(
    run: Run, pipeline: Pipeline, model: "LeastModel | None" = None, candidates: CandidateSet | None = None
) -> RankedOnly:
    """The ranks of a run, by a pipeline of the compiled evaluator.

    model: of the run's program; computed on the engine's device if not given. candidates: drawn if not given.
    """
    evaluate = pipeline.engine.evaluate  # type: ignore[attr-defined]
    if model is None:
        from kgverify.engines.compiled.least_model import LeastModel

        model = LeastModel(run.graph.program, device=pipeline.engine.info.device)
    if candidates is None:
        candidates = pipeline.draw_for(run)
    evaluated = evaluate_for_ranks(evaluate, model.contains, candidates, run.triples)
    num = len(candidates.query)
    ended = Candidates(
        candidates.query,
        candidates.side,
        candidates.atom,
        np.zeros(num, np.uint32),
        evaluated.outcome,
        np.zeros(num, np.uint8),
        evaluated.log_probability,
    )
    return RankedOnly(pipeline.rank_finite(run, ended), num, int(evaluated.is_run.sum()))


def evaluate_for_ranks(
    evaluate: Evaluate,
    follows: Follows,
    candidates: CandidateSet,
    triples: NDArray[np.int32],
    tolerance: float = RANK_TOLERANCE,
) -> Evaluated:
    """Evaluate the candidates that can matter for the rank of a true triple, in two calls at most.

    triples: int32 [n, 3], the split that `candidates.query` points into; tolerance: of ties, in nats. The second call is for
    the queries and sides whose true triple was not proved, or not with a score above -100. A query and side without its true
    triple has no rank, and none of its candidates is evaluated.
    """
    num = len(candidates.query)
    group = np.unique(np.stack((candidates.query, candidates.side)), axis=1, return_inverse=True)[1].reshape(-1)
    num_groups = int(group.max(initial=-1)) + 1
    is_true = (candidates.atom == triples[candidates.query]).all(1)
    in_model = follows(candidates.atom)
    is_ranked = np.zeros(num_groups, np.bool_)
    is_ranked[group[is_true]] = True
    # A true triple that does not follow is not proved: all of its group is needed.
    needs_all = np.zeros(num_groups, np.bool_)
    needs_all[group[is_true & ~in_model]] = True

    is_run = np.zeros(num, np.bool_)
    outcome = np.full(num, Outcome.FAILED, np.int8)
    log_probability = np.zeros(num, np.float64)

    def run(rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        ended = evaluate(candidates.take(rows)).results
        is_run[rows], outcome[rows], log_probability[rows] = True, ended[0], ended[2]

    run(np.flatnonzero(is_ranked[group] & (is_true | in_model | needs_all[group])))
    is_above = (outcome == Outcome.PROVED) & (log_probability > MARGIN + tolerance - NOT_PROVED_PENALTY)
    needs_all[group[is_true & ~is_above]] = True
    run(np.flatnonzero(needs_all[group] & ~is_run))
    return Evaluated(is_run, outcome, log_probability)
