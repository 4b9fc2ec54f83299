"""The sample that the reference checks, which the results themselves select, and how likely it has seen a defect.

A hash of all results orders the rankings and the candidates. Nobody knows the order before the last part is finished, and
everybody who has the results can repeat it.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.part_file import PartResult, Sample, hash_result, join_samples
from kgverify.evaluation.rank_only import ranks_above_unproved
from kgverify.ranking.draw import mix, number_atoms
from kgverify.report.evaluation import Strength
from kgverify.runs.run import Run

LEAST, MOST = 2048, 8192
"""The limits of the default number of candidates that the reference derives: a 64th of all."""

_DRAWS: Final = 32
"""The candidates that are drawn in the time of one derivation."""

_NUM_OUTSIDE: Final = 2
"""The candidates outside of the least model that are derived for each ranking."""


def choose_num_checked(num_candidates: int) -> int:
    """Return the default number of candidates that the reference derives."""
    return min(max(num_candidates // 64, LEAST), MOST)


def hash_results(result: EvaluationResult) -> int:
    """Return a hash of the evaluation's identity and of the results of all parts, below 2^64."""
    identity = result.identity.sha256
    digest = hashlib.sha256(identity.encode())
    for part in result.plan.parts:
        digest.update(hash_result(result.results[part.number], identity).encode())
    return int.from_bytes(digest.digest()[:8])


def choose_single(results: PartResult, key: int, num: int) -> Sample:
    """Return `num` of the candidates that the parts keep, half of them true triples, half corruptions, if possible."""
    sample = join_samples([results.sample])
    order = _order(key, sample.sample_priority)
    strata = [order[sample.sample_is_true[order] == is_true] for is_true in (True, False)]
    num_true = max(min(len(strata[0]), num // 2), min(len(strata[0]), num - len(strata[1])))
    return sample.take(np.sort(np.concatenate((strata[0][:num_true], strata[1][: num - num_true]))))


class DrawnRanking(NamedTuple):
    """A ranking as the reference draws it.

    row:          its index among the results
    num, entities: the number of its candidates, and the sum of `mix` over their entities, modulo 2^64
    atoms:        int32 [n, 3]  those to derive, the true triple first; the others cannot be PROVED or affect a rank
    """

    row: int
    num: int
    entities: int
    atoms: NDArray[np.int32]


class RankingSample(NamedTuple):
    """The rankings to recompute, and the sizes of the strata that they are drawn from: (rankings, rankings chosen)."""

    rankings: list[DrawnRanking]
    strata: list[tuple[int, int]]


def choose_rankings(
    run: Run, results: PartResult, key: int, num: int, model: NDArray[np.int64] | None = None
) -> RankingSample:
    """Choose whole rankings that `num` derivations can recompute.

    model: the keys of a model that no provable atom is missing from, ascending. If a true triple is PROVED clearly above -100,
           the corruptions outside of it rank below, and only a few of them are derived.

    Rankings that need few derivations and those that need all are two strata, since a prefix of both together would end at the
    first expensive one. Each is taken in the order of the key, until the next one is too expensive.
    """
    group = results.query.astype(np.int64) * 2 + results.side
    order = _order(key, group.astype(np.uint64))
    is_short = np.zeros(len(group), np.bool_)
    if model is not None:
        is_short = ranks_above_unproved(results.outcome, results.log_probability)
    drawer = _Drawer(run, results, key, model)
    strata = [iter(drawer.draw(order[is_short[order] == each].tolist(), is_short=each)) for each in (True, False)]
    known: set[int] = set()
    chosen: list[DrawnRanking] = []
    num_taken = [0, 0]
    spent = 0.0
    # What the expensive rankings do not need is left for further short ones.
    for i, limit in ((0, num / 2), (1, num), (0, num)):
        for ranking in strata[i]:
            numbers = set(number_atoms(ranking.atoms, drawer.num_constants).tolist()) - known
            cost = len(numbers) + ranking.num / _DRAWS
            is_first = not num_taken[i] and cost <= 2 * num
            if spent + cost > limit and not is_first:
                strata[i] = chain((ranking,), strata[i])
                break
            spent += cost
            known |= numbers
            num_taken[i] += 1
            chosen.append(ranking)
    chosen.sort(key=lambda each: each.row)
    sizes = int(is_short.sum()), int((~is_short).sum())
    return RankingSample(chosen, [*zip(sizes, num_taken, strict=True)])


class _Drawer:
    """The draw of the reference, and the choice of the candidates to derive."""

    def __init__(self, run: Run, results: PartResult, key: int, model: NDArray[np.int64] | None) -> None:
        from kgverify.engines.reference.ranking import ReferenceDraw

        self._reference = ReferenceDraw(run.graph, run.split, run.num_corruptions, run.seed)
        self._results, self._key, self._model = results, key, model
        self.num_constants = len(run.graph.program.symbols.constants)

    def draw(self, rows: list[int], *, is_short: bool) -> Iterator[DrawnRanking]:
        """Draw rankings of the results."""
        from kgverify.engines.reference.ranking import sum_mixed

        for row in rows:
            side = int(self._results.side[row])
            atoms = np.array(self._reference.draw(int(self._results.query[row]), side), np.int32).reshape(-1, 3)
            entities = sum_mixed(atoms[:, 1 + side].tolist())
            needed = self._select(atoms, row) if is_short else atoms
            yield DrawnRanking(row, len(atoms), entities, needed)

    def _select(self, atoms: NDArray[np.int32], row: int) -> NDArray[np.int32]:
        """Return the true triple, the corruptions inside of the model, and a few others."""
        assert self._model is not None
        is_inside = np.isin(number_atoms(atoms, self.num_constants), self._model)
        is_inside[0] = True
        outside = np.flatnonzero(~is_inside)
        order = _order(self._key ^ row, outside.astype(np.uint64))
        is_inside[outside[order[:_NUM_OUTSIDE]]] = True
        return atoms[is_inside]


def _order(key: int, values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return an order of values that the key determines."""
    return np.argsort(mix(mix(np.array([key], np.uint64)) ^ values), kind="stable")


SHARE: Final = 0.01
"""The share of defective members whose chance of being seen is reported."""

CONFIDENCE: Final = 0.99
"""The chance for which the smallest share is reported."""

_LEAST_LOG: Final = math.log(1e-6)

_MOST_UNITS: Final = 1 << 20
"""The steps in which defective members are added; several at once in a larger population."""


def judge_sample(strata: Iterable[tuple[int, int]]) -> Strength:
    """Judge a sample that was drawn uniformly in each stratum: (members, members drawn).

    The defect is assumed to be spread over the strata in the way that is hardest to see. Each further defective member of a
    stratum multiplies the chance to miss all by a falling factor, so the largest factors of all strata come first.
    """
    strata = [(members, drawn) for members, drawn in strata if members]
    population = sum(members for members, _ in strata)
    if not population:
        return Strength(1.0, 0.0)
    unit = 1 + population // _MOST_UNITS
    unseen = sum(-(-members // unit) for members, drawn in strata if not drawn)
    logs = [_log_factors(members, drawn, unit) for members, drawn in strata if drawn]
    missed = np.cumsum(np.sort(np.concatenate([np.zeros(0), *logs]))[::-1])
    num = math.ceil(SHARE * population / unit) - unseen
    chance = 0.0 if num <= 0 or not len(missed) else -math.expm1(missed[min(num, len(missed)) - 1])
    enough = int(np.searchsorted(-missed, -math.log1p(-CONFIDENCE) - 1e-12)) + 1
    return Strength(chance, min(1.0, (unseen + enough) * unit / population) if len(missed) else 1.0)


def _log_factors(members: int, drawn: int, unit: int) -> NDArray[np.float64]:
    """Return the logarithms of the factors until their product is negligible: ((N - n - i) / (N - i)), i = 0, 1, 2 ..."""
    num = -(-(members - drawn) // unit)
    most = math.ceil(-_LEAST_LOG * members / drawn / unit) + 1
    earlier = np.arange(min(num, most), dtype=np.float64) * unit
    logs = unit * np.log1p(-drawn / (members - earlier))
    return logs if num > most else np.append(logs, -np.inf)
