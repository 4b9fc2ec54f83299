"""The figures of a report must follow from one another: members of causes, shares of the loss, outcomes and metrics."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.rankings import mean_reciprocal_rank
from kgverify.comparison.result import Attribution, Cause, Comparison, Divergence, Verdict
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome
from kgverify.ranking.rank import MRR
from kgverify.report.content import Metrics, Outcomes
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.trace import Trace


def require(condition: bool, what: str) -> None:
    """InternalError unless what a run shows about its own comparison holds."""
    if not condition:
        raise InternalError(f"the comparison failed its self-test, so there is no verdict: {what}")


def check_verdict(comparison: Comparison, parts: Sequence[Comparer]) -> None:
    """InternalError unless the verdict follows from what was found, and AGREE from everything that was recorded.

    parts: what it was found by; the first one compared the runs as a whole
    """
    for found in (each.comparison for each in parts):
        require(set(found.reasons) <= set(comparison.reasons), "a reason for INCONCLUSIVE was lost")
        is_lost = comparison.verdict is Verdict.AGREE and found.verdict is not Verdict.AGREE
        require(not is_lost, f"a part of the comparison is {found.verdict.value}, and the whole is AGREE")
    num = len(comparison.divergences)
    follows = Verdict.INCONCLUSIVE if comparison.reasons else Verdict.DIVERGE if num else Verdict.AGREE
    require(
        comparison.verdict is follows,
        f"{comparison.verdict.value} with {num} divergences and {len(comparison.reasons)} reasons",
    )
    for benign in comparison.benign:
        is_sound = benign.kind in comparison.modulo and 0 < benign.num_candidates <= benign.num_steps
        require(is_sound, f"benign differences of kind {benign.kind} were not declared, or not counted")
    whole = parts[0].comparison.coverage
    for source in parts[0].sources if comparison.verdict is Verdict.AGREE else ():
        num_candidates, num_steps = source.num_candidates, source.num_steps
        require(whole.candidates == num_candidates, f"{whole.candidates} of {num_candidates} candidates were compared")
        # The steps after a near-tie are compared apart.
        is_all = whole.steps == num_steps or bool(comparison.near_ties)
        require(is_all, f"{whole.steps} of {num_steps} steps were compared")


def check_causes(comparison: Comparison, causes: Sequence[Cause]) -> None:
    """InternalError unless each divergence has one cause, which counts it."""
    members: dict[int, list[Divergence]] = {number: [] for number in range(len(causes))}
    for each in comparison.divergences:
        require(each.cause in members, "a divergence has no cause")
        members[each.cause].append(each)
    for number, cause in enumerate(causes):
        of_cause = members[number]
        counted = (
            len(of_cause),
            len({each.candidate for each in of_cause}),
            len({each.query for each in of_cause}),
            sum(each.later_steps for each in of_cause),
        )
        listed = cause.num_divergences, cause.num_candidates, cause.num_queries, cause.num_later
        require(counted == listed, f"a cause counts {listed}, and its divergences {counted}")
        is_one = {(each.stage, each.kind) for each in of_cause} == {(cause.stage, cause.kind)}
        require(is_one and comparison.divergences[cause.first] is of_cause[0], "a cause is not that of its divergences")


def check_attribution(attribution: Attribution, expected: Trace, actual: Trace) -> None:
    """InternalError unless the shares of the loss add up to it, and the metrics are those of the ranks."""
    lost = attribution.expected - attribution.actual
    total = sum(share.share for share in attribution.shares)
    require(abs(total - lost) < 1e-9, f"the shares of the loss add up to {total}, and the loss is {lost}")
    for role, trace, value in (("expected", expected, attribution.expected), ("actual", actual, attribution.actual)):
        if trace.rankings is not None:
            mrr = mean_reciprocal_rank(trace.rankings)
            require(abs(mrr - value) < 1e-9, f"the {role} MRR is {mrr}, and the loss is split from {value}")


def check_numbers(
    outcomes: Outcomes, metrics: Metrics, codes: Sequence[NDArray[np.int8]], rankings: Sequence[Rankings | None]
) -> None:
    """InternalError unless the counts of outcomes and the mean reciprocal ranks are those of the traces."""
    for counts, column in zip((outcomes.expected, outcomes.actual), codes, strict=True):
        counted = {outcome.name: int((column == outcome).sum()) for outcome in Outcome}
        listed = {outcome.name: counts.get(outcome.name, 0) for outcome in Outcome}
        require(listed == counted, f"outcomes are counted as {listed}, and are {counted}")
    metric: Any
    for metric, ranks in zip((metrics.expected, metrics.actual), rankings, strict=True):
        if ranks is not None and len(ranks.query):
            mrr = mean_reciprocal_rank(ranks)
            require(abs(metric[MRR] - mrr) < 1e-9, f"the MRR is reported as {metric[MRR]}, and is {mrr}")
