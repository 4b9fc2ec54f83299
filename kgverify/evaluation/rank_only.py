"""Ranks without proving what cannot matter for them: what lies outside of the least model is not proved.

Where the true triple of a query and side is PROVED with a score above -100, a candidate outside of the least model stands
below it, whatever its derivation is: it cannot be PROVED, and what is not PROVED scores its log-probability less 100. All other
candidates are evaluated, so that the ranks are those of a full evaluation. A true triple that is not PROVED is ranked by its
log-probability among those of all of its corruptions, and they are all evaluated: there is nothing that bounds the
log-probability of a derivation but the derivation.

It takes an engine that is sound: of one that proves what does not follow, the ranks are others than those of its full
evaluation. For ranks alone; there are no steps to be had, and of the candidates left out no outcome.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.outcomes import Outcome
from kgverify.ranking.groups import find_groups
from kgverify.ranking.rank import NOT_PROVED_PENALTY, RANK_TOLERANCE
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

if TYPE_CHECKING:
    from kgverify.engines.compiled.program.least_model import LeastModel

MARGIN: Final = 1e-3
"""Nats by which the true triple has to stand above -100 and beyond a tie, so that no rounding of a sum can matter."""

NUM_OUTSIDE: Final = 256
"""Candidates of a part that could be left out and are proved all the same, so that the check may see some of them."""

_SHARE_OUTSIDE: Final = 16
"""Of so many candidates there is one of these at most."""

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
    is_limited:      uint8   [N]
    """

    is_run: NDArray[np.bool_]
    outcome: NDArray[np.int8]
    log_probability: NDArray[np.float64]
    is_limited: NDArray[np.uint8]

    def complete(self, candidates: CandidateSet) -> Candidates:
        """The candidates with how they ended, those left out as they stand."""
        num_steps = np.zeros(len(self.outcome), np.uint32)
        return Candidates(*candidates, num_steps, self.outcome, self.is_limited, self.log_probability)


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
    """The ranks of a run, by a pipeline of the compiled evaluator, all its candidates at once.

    model: of the run's program; computed on the engine's device if not given. candidates: drawn if not given.
    """
    evaluate = pipeline.engine.evaluate  # type: ignore[attr-defined]
    if model is None:
        model = find_model(run, pipeline.engine.info.device)
    if candidates is None:
        candidates = pipeline.draw_for(run)
    evaluated = evaluate_for_ranks(evaluate, model.contains, candidates, run.triples)
    rankings = pipeline.rank_finite(run, evaluated.complete(candidates))
    return RankedOnly(rankings, len(candidates.query), int(evaluated.is_run.sum()))


def choose_num_outside(num_candidates: int) -> int:
    """How many of a part's candidates are proved although they could be left out."""
    return min(NUM_OUTSIDE, -(-num_candidates // _SHARE_OUTSIDE))


def find_model(run: Run, device: str) -> "LeastModel":
    """The least model of a run's program. UserError where it takes more memory than it may."""
    from kgverify.engines.compiled.program.least_model import LeastModel

    try:
        return LeastModel(run.graph.program, device=device)
    except UserError as error:
        raise UserError(
            error.message, where="--rank-only", fix="leave --rank-only out, and all candidates are proved"
        ) from None


def stands_above(
    outcome: NDArray[np.int8], log_probability: NDArray[np.float64], tolerance: float = RANK_TOLERANCE
) -> NDArray[np.bool_]:
    """bool [n]: whether true triples that ended so, int8 and float64 [n], stand above all that is not PROVED."""
    is_above: NDArray[np.bool_] = (outcome == Outcome.PROVED) & (
        log_probability > MARGIN + tolerance - NOT_PROVED_PENALTY
    )
    return is_above


def evaluate_for_ranks(
    evaluate: Evaluate,
    follows: Follows,
    candidates: CandidateSet,
    triples: NDArray[np.int32],
    tolerance: float = RANK_TOLERANCE,
    num_outside: int = 0,
) -> Evaluated:
    """Evaluate the candidates that can matter for the rank of a true triple, in two calls at most.

    triples: int32 [n, 3], the split that `candidates.query` points into; tolerance: of ties, in nats. The second call is for
    the queries and sides whose true triple was not proved, or not with a score above -100. A query and side without its true
    triple has no rank, and none of its candidates is evaluated. num_outside: so many of those that do not follow, spread
    over all, are evaluated too.
    """
    num = len(candidates.query)
    group, is_true = _group(candidates, triples)
    num_groups = int(group.max(initial=-1)) + 1
    in_model = follows(candidates.atom)
    is_ranked = np.zeros(num_groups, np.bool_)
    is_ranked[group[is_true]] = True
    # A true triple that does not follow is not proved: all of its group is needed.
    needs_all = np.zeros(num_groups, np.bool_)
    needs_all[group[is_true & ~in_model]] = True

    is_run = np.zeros(num, np.bool_)
    outcome = np.full(num, Outcome.FAILED, np.int8)
    log_probability = np.zeros(num, np.float64)
    is_limited = np.zeros(num, np.uint8)

    def run(rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        ended = evaluate(candidates.take(rows)).results
        is_run[rows], outcome[rows], is_limited[rows], log_probability[rows] = True, *ended

    is_needed = is_true | in_model | needs_all[group]
    outside = np.flatnonzero(is_ranked[group] & ~is_needed)
    if num_outside:
        is_needed[outside[:: max(1, len(outside) // num_outside)][:num_outside]] = True
    run(np.flatnonzero(is_ranked[group] & is_needed))
    is_above = stands_above(outcome, log_probability, tolerance)
    needs_all[group[is_true & ~is_above]] = True
    run(np.flatnonzero(needs_all[group] & ~is_run))
    return Evaluated(is_run, outcome, log_probability, is_limited)


def _group(candidates: CandidateSet, triples: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The number of each candidate's query and side, int64 [N], and whether it is the true triple, bool [N]."""
    groups = find_groups(candidates, triples)
    if groups is None:
        keys = candidates.query.astype(np.int64) * 4 + candidates.side
        of = np.unique(keys, return_inverse=True)[1].reshape(-1)
        return of, (candidates.atom == triples[candidates.query]).all(1)
    is_true = np.zeros(len(candidates.query), np.bool_)
    is_true[groups.true] = True
    return groups.repeat(np.arange(len(groups.query))), is_true
