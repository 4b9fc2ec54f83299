"""Ranking scores, ranks and metrics, a second time in exact fractions."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

import kgreference

TOLERANCES: Final = (0.0, 1e-4, 2.0**-13, 0.25, 1.0)
TYPES: Final = ("optimistic", "realistic", "pessimistic")


class Ranking(NamedTuple):
    """The score of a true triple and those of its corruptions."""

    true_score: float
    scores: list[float]
    tolerance: float


def draw_rankings(seed: int) -> Iterator[Ranking]:
    """Yield rankings without end; most scores lie at the tolerance's edge, or one floating-point number beside it."""
    rng = random.Random(f"ranks {seed}")
    while True:
        tolerance = rng.choice(TOLERANCES)
        true_score = rng.choice((-rng.random() * 5, -rng.random() * 5 - 100, -rng.randrange(80) / 8, 0.0))
        scores = []
        for _ in range(rng.choice((0, 1, 2, 3, 5, 9, 14, 20, 40))):
            edge = true_score + rng.choice((-1, 1)) * rng.choice((tolerance, tolerance, 0.0, rng.random() * 3))
            score = math.nextafter(edge, rng.choice((-math.inf, math.inf))) if rng.random() < 0.5 else edge
            if Fraction(score - true_score) == Fraction(score) - Fraction(true_score):  # as exact as the subtraction
                scores.append(score)
        yield Ranking(true_score, scores, tolerance)


def rank(ranking: Ranking) -> tuple[Fraction, Fraction, Fraction]:
    """Return the optimistic, realistic and pessimistic rank."""
    true_score, tolerance = Fraction(ranking.true_score), Fraction(ranking.tolerance)
    gaps = [Fraction(score) - true_score for score in ranking.scores]
    # Equal: the same, or closer than the tolerance.
    not_below = [gap for gap in gaps if gap >= 0 or -gap < tolerance]
    above = [gap for gap in not_below if gap > 0 and gap >= tolerance]
    best, worst = Fraction(1 + len(above)), Fraction(1 + len(not_below))
    return best, (best + worst) / 2, worst


def metrics(head: Sequence[tuple[Fraction, ...]], tail: Sequence[tuple[Fraction, ...]]) -> dict[str, Fraction]:
    """Return every metric under PyKEEN's key, for the sides that have ranks."""
    values = {}
    for side, ranks in (("head", head), ("tail", tail), ("both", (*head, *tail))):
        for column, rank_type in zip(zip(*ranks, strict=True), TYPES, strict=False):
            key = f"{side}.{rank_type}."
            values[key + "mean_reciprocal_rank"] = sum(1 / each for each in column) / Fraction(len(column))
            for k in (1, 3, 10):
                values[key + f"hits_at_{k}"] = Fraction(len([each for each in column if each <= k]), len(column))
    return values


def judge_ranks(rankings: Sequence[Ranking], seen: Counter[str]) -> list[str]:
    """Return where ranks or metrics of the reference differ; count in ``seen`` what occurred."""
    wrong = []
    wanted_ranks, found_ranks = [], []
    for ranking in rankings:
        wanted = rank(ranking)
        found = kgreference.rank(ranking.true_score, ranking.scores, ranking.tolerance)
        if tuple(Fraction(getattr(found, rank_type)) for rank_type in TYPES) != wanted:
            wrong.append(f"{ranking}: expected {[float(each) for each in wanted]}, found {found}")
        if ranking.tolerance == 0 and kgreference.rank(ranking.true_score, ranking.scores) != found:
            wrong.append(f"{ranking}: another rank without a tolerance")
        wanted_ranks.append(wanted)
        found_ranks.append(found)
        gaps = [abs(Fraction(score) - Fraction(ranking.true_score)) for score in ranking.scores]
        seen["ranks"] += 1
        seen["a tie"] += 0 in gaps
        seen["a tie within the tolerance"] += any(0 < gap < ranking.tolerance for gap in gaps)
        seen["exactly the tolerance apart"] += 0 < Fraction(ranking.tolerance) in gaps
        seen["just within the tolerance"] += any(
            0 < Fraction(ranking.tolerance) - gap < Fraction(ranking.tolerance) / 10**9 for gap in gaps
        )
        for k in (1, 3, 10):
            seen[f"rank {k}"] += k in wanted
            seen[f"rank {k + 1}"] += k + 1 in wanted
            seen[f"rank {k + 0.5}"] += k + Fraction(1, 2) in wanted
    rng = random.Random(len(rankings))
    for _ in range(1 + len(rankings) // 20):
        chosen = [rng.sample(range(len(rankings)), rng.randint(0, min(20, len(rankings)))) for _ in range(2)]
        expected = metrics(*([wanted_ranks[i] for i in side] for side in chosen))
        actual = kgreference.metrics(*([found_ranks[i] for i in side] for side in chosen))
        if actual.keys() != expected.keys():
            wrong.append(f"metrics: expected {sorted(expected)}, found {sorted(actual)}")
            continue
        for key, value in expected.items():
            if not math.isclose(actual[key], value, rel_tol=1e-12):
                wrong.append(f"{key}: expected {float(value)}, found {actual[key]}")
        seen["metrics"] += len(expected)
        seen["one side alone"] += 0 < len(expected) < 36
    for true_score, scores, tolerance in (
        (math.nan, [0.0], 0.0),
        (0.0, [math.nan], 1.0),
        (0.0, [-math.inf], 0.0),
        (0.0, [], -1.0),
    ):
        try:
            wrong.append(
                f"accepted {true_score} {scores} {tolerance}: {kgreference.rank(true_score, scores, tolerance)}"
            )
        except ValueError:
            seen["refused"] += 1
    for outcome in kgreference.Outcome:
        for value in (0.0, -0.75, -12.5):
            wanted_score = value if outcome.name == "PROVED" else value - 100
            if kgreference.ranking_score(value, outcome) != wanted_score:
                wrong.append(f"ranking_score({value}, {outcome.name}): expected {wanted_score}")
    return wrong
