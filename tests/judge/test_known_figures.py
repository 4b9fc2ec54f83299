"""Figures worked out by hand: shares of the loss, recorded ranks, true triples, tolerances, numbers of variables."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pytest

from kgverify import Candidates, Divergence, EngineInfo, PolicyInfo, Rankings, Stage
from kgverify.comparison.result import NO_CANDIDATE, Attribution, Cause, Level
from kgverify.program.outcomes import DifferenceClass, Outcome
from kgverify.ranking.rank import find_truth
from kgverify.ranking.rules import RankingRule, Ties, count_above, give_ranks
from kgverify.trace.model.digests import renumber
from kgverify.trace.model.score_tolerance import accept_score_error, judge_tolerance, name_precision
from kgverify.verification.attribute import attribute_loss

_COUNTS: Final = dict.fromkeys(("num_candidates", "num_queries", "num_divergences"), 1)
_CAUSE: Final = Cause(stage="match_facts", kind=DifferenceClass.MISSING, situation="", num_later=0, first=0, **_COUNTS)
_PLACE: Final = {"atom": "", "query": 0, "side": "head", "step": 0, "stage": "match_facts", "field": "resolvents.atoms"}


def _divergence(candidate: int, cause: int, other: int = -1, expected: object = 0) -> Divergence:
    found = {"kind": DifferenceClass.MISSING, "level": Level.CHOICE, "expected": expected, "actual": 1}
    return Divergence(candidate=candidate, cause=cause, other_cause=other, **_PLACE, **found)


class _Run(NamedTuple):
    """The part of a trace, or of its columns, that is read."""

    columns: Any = None
    candidates: Any = None
    policy: Any = None
    engine: Any = None


def _candidates(entities: list[int], log_probability: list[float], query: list[int] | None = None) -> Candidates:
    """Return proved candidates of one side, each with an entity as its first argument."""
    zeros = np.zeros(len(entities), np.uint32)
    atom = np.column_stack((zeros, entities, zeros)).astype(np.int32)
    of_query = zeros.astype(np.int32) if query is None else np.array(query, np.int32)
    outcome = np.full(len(entities), Outcome.PROVED, np.int8)
    sums = np.array(log_probability, np.float64)
    return Candidates(of_query, zeros.astype(np.int8), atom, zeros, outcome, zeros.astype(np.uint8), sums)


def _rank_first(candidates: Candidates, lower: int = 0) -> Rankings:
    """Rank the first candidate, as functions do that rely on the order in which candidates are drawn."""
    rank = np.array([1.0 + lower + (candidates.log_probability > candidates.log_probability[0]).sum()])
    return Rankings(candidates.query[:1], candidates.side[:1], np.array([1], np.uint32), rank, rank)


def _attribute(
    expected: Candidates,
    actual: Candidates,
    causes: list[Cause],
    *divergences: Divergence,
    actual_rank: Any = _rank_first,
) -> Attribution:
    sides = tuple(_Run(columns=_Run(candidates=each)) for each in (expected, actual))
    given: tuple[Any, ...] = sides, divergences, tuple(causes), (_rank_first, actual_rank)
    return attribute_loss(*given)


def _of_shares() -> Iterator[tuple[str, object, object]]:
    """Yield shares of the loss.

    First, the true triple has both causes, and the last corruption the second: the reciprocal ranks are 1/4 with nothing or
    the first cause repaired, 1/3 with the second, 1 with both. Then a candidate is missing, two are extra, and ranks are one
    too low: 1/4 with nothing repaired, 1/5, 1/2, 1/3 with one cause, 1/3 (both draws), 1/4, 1 with two, 1/2 with all.
    """

    right, wrong = _candidates([9, 1, 2, 3], [0, -1, -2, -3]), _candidates([9, 1, 2, 3], [-2.5, -1, -2, -0.5])
    found = _attribute(right, wrong, [_CAUSE, _CAUSE], _divergence(0, 0, 1), _divergence(3, 1))
    yield "two causes of one candidate", _rounded(found), [1.0, 0.25, 1 / 3, 0.25, 5 / 12, 1 / 3]
    right, wrong = _candidates([9, 1, 2], [0, -1, 1]), _candidates([9, 1, 4, 5], [0, -1, 2, 3])
    found = _attribute(
        right,
        wrong,
        [_CAUSE, _CAUSE, msgspec.structs.replace(_CAUSE, stage=Stage.RANK.value)],
        _divergence(2, 0),
        _divergence(2, 1, expected=NO_CANDIDATE),
        _divergence(3, 1, expected=NO_CANDIDATE),
        actual_rank=partial(_rank_first, lower=1),
    )
    yield "other candidates and ranks", _rounded(found), [0.5, 0.25, -0.225, 0.2, 0.3, 0.5, 0.175, 1 / 3]


def _rounded(found: Attribution) -> list[float]:
    shares = [number for share in found.shares for number in (share.share, share.repaired)]
    return [found.expected, found.actual, *shares]


def _of_ranks() -> Iterator[tuple[str, object, object]]:
    """Yield ranks by recorded candidates: of 300 that tie, and of sums that lie within a margin for each of five steps."""
    many = _candidates([*range(301)], [0.0] * 301)
    truth = find_truth(many, many.atom[:, 1] == 0, None)
    for ties, ranks in ((Ties.BOUNDS, (1, 301)), (Ties.REALISTIC, (151, 151)), (Ties.PESSIMISTIC, (301, 301))):
        ranked = give_ranks(count_above(many, truth, RankingRule(ties=ties)), RankingRule(ties=ties))
        yield f"300 ties, {ties.name}", [*ranked.optimistic.tolist(), *ranked.pessimistic.tolist()], [*ranks]
    few = _candidates([0, 1, 2, 3], [0.0, -0.5, -0.9, -1.5])
    few = few._replace(num_steps=np.array([1, 2, 5, 3], np.uint32))
    for margin, above in ((0.0, 0), (0.2, 2), (0.4, 3)):
        counts = count_above(few, truth, RankingRule(tolerance=0.0), margin=margin)
        yield f"a margin of {margin}", counts.above.tolist(), [above]


def _of_numbers() -> Iterator[tuple[str, object, object]]:
    """Yield goals whose variables are numbered anew: 40,000 in one goal, and a hole beside variables."""
    num = 40_000
    numbers = np.arange(num, dtype=np.int32)
    turned = np.column_stack((numbers[::2] * 0, -num + numbers[::2], -num + numbers[1::2]))
    right = np.column_stack((numbers[::2] * 0, -1 - numbers[::2], -1 - numbers[1::2]))
    yield "many variables", bool((renumber(turned, np.array([0, num // 2])) == right).all()), True
    atoms = np.array([(0, -3, -2), (-7, -2, 5), (1, -4, -4), (-7, 0, -9)], np.int32)
    wanted = [[0, -1, -2], [-7, -2, 5], [1, -1, -1], [-7, 0, -2]]
    yield "holes", renumber(atoms, np.array([0, 2, 4])).tolist(), wanted


def _of_errors() -> Iterator[tuple[str, object, object]]:
    """Yield tolerances: the sum of what both sides declare, each up to the judge's bound."""
    policy = PolicyInfo("other", score_errors={"float32": 0.5, "bf16": 8.0})
    engines = [EngineInfo("engine", precision="float32", score_error=error) for error in (0.125, 0.25, 3.0)]
    for own, total in zip(engines, (0.25, 0.375, 0.625), strict=True):
        sides: Any = [_Run(policy=policy, engine=each) for each in (engines[0], own)]
        yield f"both errors, {own.score_error} declared", judge_tolerance(*sides).value, total
    accepted = [accept_score_error(each, policy) for each in engines]
    yield "accepted errors", accepted, [0.125, 0.25, 0.5]
    yield "precisions", [name_precision(each) for each in ("fp8", "bfloat16", "tf32")], ["float32", "bf16", "tf32"]


FIGURES = [figure for part in (_of_shares, _of_ranks, _of_numbers, _of_errors) for figure in part()]


@pytest.mark.parametrize(("found", "known"), [pytest.param(*figure[1:], id=figure[0]) for figure in FIGURES])
def test_a_figure_is_the_one_worked_out_by_hand(found: object, known: object):
    has_floats = isinstance(known, list) and any(isinstance(each, float) for each in known)
    assert found == (pytest.approx(known, rel=0, abs=1e-12) if has_floats else known)
