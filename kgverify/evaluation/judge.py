"""The check and the report of an evaluation: a sample of its results is compared with the reference's derivations.

The results themselves select the sample: a hash of all of them orders the rankings and the candidates. Nobody knows the order
before the last part is finished, and anybody with the results can reproduce it. The figures of the report are recomputed from
its rankings.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.exercise.count import count_columns
from kgverify.comparison.exercise.exercise import MINIMUM, Exercise, Minimum
from kgverify.errors import InternalError
from kgverify.evaluation.closure import ModelCheck, check_model
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.parts import PartResult, Sample, hash_result, hash_triples, join_results
from kgverify.evaluation.proving import may_stop, prove_candidates
from kgverify.evaluation.rank_only import build_model, ranks_above_unproved
from kgverify.program.outcomes import Outcome, Side
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.ranking.draw import ALL, may_be_drawn, mix, number_atoms
from kgverify.ranking.intervals import bootstrap_metrics
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics, ranking_scores, take_candidates
from kgverify.report.evaluation import (
    CheckedAgain,
    CheckedModel,
    CheckedRankings,
    Difference,
    EvaluationReport,
    QueryRank,
    SpotCheck,
    Strength,
)
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, join_candidates, starts_of
from kgverify.trace.model.header import FROM_SCORES, EngineInfo
from kgverify.trace.model.score_tolerance import accept_score_error, bound_by_type, name_precision
from kgverify.version import __version__

LEAST, MOST = 512, 8192
"""The limits of the default number of candidates that the reference derives, which is a 4096th of all candidates.

A derivation takes the reference 0.2 to 0.6 ms. A run takes a second, and the native evaluator 1 to 10 ms for 4096 candidates.
By this estimate, the check takes about a tenth of a large run, and more of a small one.
"""

_DRAWS: Final = 32
"""The number of candidates that can be drawn in the time of one derivation."""

_COST: Final = 16
"""The number of derivations that take as long as the reference's rules of one ranking."""

_NUM_OUTSIDE: Final = 2
"""The number of candidates outside the least model that are derived for each ranking."""


def choose_num_checked(num_candidates: int) -> int:
    """Return the default number of candidates that the reference derives."""
    return min(max(num_candidates // 4096, LEAST), MOST)


def hash_results(result: EvaluationResult) -> int:
    """Return a hash of the evaluation's identity and of the results of all parts, below 2^64."""
    identity = result.identity.sha256
    digest = hashlib.sha256(identity.encode())
    for part in result.plan.parts:
        digest.update(hash_result(result.results[part.number], identity).encode())
    return int.from_bytes(digest.digest()[:8])


def choose_single(results: PartResult, key: int, num: int) -> Sample:
    """Return `num` of the candidates that the parts keep: if possible, half true triples and half corruptions."""
    sample = results.sample
    order = _order(key, sample.priority)
    strata = [order[sample.is_true[order] == is_true] for is_true in (True, False)]
    num_true = max(min(len(strata[0]), num // 2), min(len(strata[0]), num - len(strata[1])))
    return sample.take(np.sort(np.concatenate((strata[0][:num_true], strata[1][: num - num_true]))))


class DrawnRanking(NamedTuple):
    """A ranking as the reference draws it.

    row:          its index among the results
    num, entities: the number of its candidates, and the sum of `mix` over their entities, modulo 2^64
    atoms:        int32 [n, 3]  the atoms to derive, the true triple first; the others cannot be PROVED or affect a rank
    """

    row: int
    num: int
    entities: int
    atoms: NDArray[np.int32]


def choose_rankings(
    run: Run, results: PartResult, key: int, num: int, model: NDArray[np.int64] | None = None
) -> tuple[list[DrawnRanking], list[tuple[int, int]]]:
    """Choose whole rankings that `num` derivations can recompute.

    Return the rankings, and for each stratum its size and the number of rankings chosen from it.

    model: the ascending keys of a model that contains every provable atom. If a true triple is PROVED clearly above -100,
           the corruptions outside the model rank below it, and only a few of them are derived.

    Rankings that need few derivations and rankings that need all are separate strata, since a prefix of both together would
    end at the first expensive ranking. In each stratum, rankings are chosen in the order of the key until the next is too
    expensive.
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
    # Derivations that the expensive rankings do not need are used for more short rankings.
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
    return chosen, [*zip(sizes, num_taken, strict=True)]


class _Drawer:
    """The candidates as the reference draws them, and the choice of candidates to derive."""

    def __init__(self, run: Run, results: PartResult, key: int, model: NDArray[np.int64] | None) -> None:
        from kgverify.engines.reference.ranking import ReferenceDraw

        self._reference = ReferenceDraw(run.graph, run.split, run.num_corruptions, run.seed)
        self._results, self._key, self._model = results, key, model
        self.num_constants = len(run.graph.program.symbols.constants)

    def draw(self, rows: list[int], *, is_short: bool) -> Iterator[DrawnRanking]:
        """Draw some rankings of the results."""
        from kgverify.engines.reference.ranking import sum_mixed

        for row in rows:
            side = int(self._results.side[row])
            atoms = np.array(self._reference.draw(int(self._results.query[row]), side), np.int32).reshape(-1, 3)
            entities = sum_mixed(atoms[:, 1 + side].tolist())
            needed = self._select(atoms, row) if is_short else atoms
            yield DrawnRanking(row, len(atoms), entities, needed)

    def _select(self, atoms: NDArray[np.int32], row: int) -> NDArray[np.int32]:
        """Return the true triple, the corruptions inside the model, and a few others."""
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
"""The share of defective members for which the report gives the chance of detection."""

CONFIDENCE: Final = 0.99
"""The chance of detection for which the report gives the smallest share."""

_LEAST_LOG: Final = math.log(1e-6)

_MOST_UNITS: Final = 1 << 20
"""The maximum number of steps in which defective members are added; a larger population gets several per step."""


def judge_sample(strata: Iterable[tuple[int, int]]) -> Strength:
    """Judge a sample that was drawn uniformly in each stratum, given as (members, members drawn).

    Assume that the defective members are spread over the strata in the way that is hardest to detect. Each further defective
    member of a stratum multiplies the chance to miss all of them by a smaller factor, so the largest factors of all strata
    come first.
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


_EXACT: Final = 1e-9
"""The largest difference in nats, for each step, between float64 sums in different orders."""


class Endings(NamedTuple):
    """The endings that the reference derives for distinct atoms.

    number:     int64 [n], ascending (`number_atoms`)
    bound:      float64 [n]  the largest allowed difference of a log-probability, nats
    is_unclear: bool [n]     whether a choice is closer than the errors, so that the engine may choose differently
    exercise:                the exercise of all derivations
    """

    number: NDArray[np.int64]
    candidates: Candidates
    bound: NDArray[np.float64]
    is_unclear: NDArray[np.bool_]
    exercise: Exercise

    def take(self, rows: NDArray[np.int64]) -> "Endings":
        """Return the endings of some atoms."""
        candidates = take_candidates(self.candidates, rows)
        return Endings(self.number[rows], candidates, self.bound[rows], self.is_unclear[rows], self.exercise)


def derive_endings(
    run: Run, pipeline: Pipeline, reference: Pipeline, atoms: NDArray[np.int32], progress: Progress
) -> Endings:
    """Derive each atom, int32 [n, 3], once."""
    number, rows = np.unique(number_atoms(atoms, len(run.graph.program.symbols.constants)), return_index=True)
    zeros = np.zeros(len(rows), np.int32)
    columns = reference.engine.prove(CandidateSet(zeros, zeros.astype(np.int8), atoms[rows]), progress)
    engines = pipeline.engine.info, reference.engine.info
    if all(each.mode.endswith(FROM_SCORES) for each in engines):
        error = sum(bound_by_type(columns.resolvents, name_precision(each.precision)) for each in engines)
    else:
        error = sum(accept_score_error(each, run.policy.info) for each in engines)
    bound = columns.candidates.num_steps.astype(np.float64) * (2 * error + _EXACT)
    is_unclear = (find_smallest_gaps(columns) <= 2 * error) & (error > 0)
    exercise = count_columns(columns, run.graph.program, reference.engine.info)
    return Endings(number, columns.candidates, bound, is_unclear, exercise)


def find_smallest_gaps(columns: Columns) -> NDArray[np.float64]:
    """Return each candidate's smallest gap between a chosen score and the next, float64 [N]; inf without a choice."""
    num_resolvents = columns.steps.num_resolvents.astype(np.int64)
    starts = starts_of(num_resolvents)
    step = np.repeat(np.arange(len(num_resolvents)), num_resolvents)
    score = columns.resolvents.score.astype(np.float64)
    chosen = starts[:-1] + columns.steps.choice
    gap = score[chosen][step] - score
    gap[chosen] = np.inf
    of_step = np.full(len(num_resolvents), np.inf)
    np.minimum.at(of_step, step, gap)
    smallest = np.full(len(columns.candidates.query), np.inf)
    np.minimum.at(smallest, np.repeat(np.arange(len(smallest)), columns.candidates.num_steps.astype(np.int64)), of_step)
    return smallest


class ComparedCandidates(NamedTuple):
    """The comparison of single candidates: bool [n], and the differences of log-probabilities with bounds, float64 [n]."""

    is_equal: NDArray[np.bool_]
    is_near_tie: NDArray[np.bool_]
    apart: NDArray[np.float64]
    bound: NDArray[np.float64]
    expected: Candidates

    @property
    def wrong(self) -> NDArray[np.int64]:
        """The rows that differ for another reason than a near-tie."""
        return np.flatnonzero(~self.is_equal & ~self.is_near_tie)


class Figure(NamedTuple):
    """A figure of a ranking. Errors within the bounds move it between `low` and `high`. Within `margin` it counts as equal."""

    name: str
    expected: float
    actual: float
    low: float
    high: float
    margin: float = 0.0

    @property
    def is_possible(self) -> bool:
        """True if errors within the bounds explain the figure."""
        return self.low <= self.actual <= self.high

    @property
    def is_equal(self) -> bool:
        """True if the figure is as expected."""
        return abs(self.actual - self.expected) <= self.margin


class ComparedRanking(NamedTuple):
    """A ranking and its figures."""

    drawn: DrawnRanking
    figures: list[Figure]

    @property
    def is_equal(self) -> bool:
        """True if every figure is as expected."""
        return all(each.is_equal for each in self.figures)

    @property
    def wrong(self) -> Figure | None:
        """The first figure that errors within the bounds do not explain."""
        return next((each for each in self.figures if not each.is_possible), None)


class Judge:
    """The comparison of results with the reference's endings, which cover all compared atoms.

    may_stop: whether the engine stops derivations that cannot affect a rank
    """

    def __init__(
        self,
        run: Run,
        results: PartResult,
        reference: Pipeline,
        endings: Endings,
        *,
        rank_only: bool,
        may_stop: bool = False,
    ) -> None:
        self._run, self.results, self._reference, self._endings = run, results, reference, endings
        self.rank_only, self._may_stop = rank_only, may_stop

    def find_endings(self, atoms: NDArray[np.int32]) -> Endings:
        """Return the endings of atoms, int32 [n, 3], all of which were derived."""
        number = number_atoms(atoms, len(self._run.graph.program.symbols.constants))
        return self._endings.take(np.searchsorted(self._endings.number, number))

    def compare_single(self, actual: Candidates) -> ComparedCandidates:
        """Compare the endings of single candidates with the reference's."""
        endings = self.find_endings(actual.atom)
        expected = endings.candidates
        apart = np.abs(actual.log_probability - expected.log_probability)
        is_equal = (actual.outcome == expected.outcome) & (actual.is_limited == expected.is_limited)
        is_equal &= apart <= endings.bound
        return ComparedCandidates(is_equal, ~is_equal & endings.is_unclear, apart, endings.bound, expected)

    def rank(self, rankings: Sequence[DrawnRanking]) -> list[tuple[float, float]]:
        """Return the reference's optimistic and pessimistic rank of each ranking; candidates not derived rank below."""
        if not rankings:
            return []
        candidates = self.find_endings(np.concatenate([each.atoms for each in rankings])).candidates
        of = np.repeat([each.row for each in rankings], [len(each.atoms) for each in rankings])
        candidates = candidates._replace(query=self.results.query[of], side=self.results.side[of])
        ranked = self._reference.rank(candidates, self._run.triples, RANK_TOLERANCE)
        found = zip(ranked.query.tolist(), ranked.side.tolist(), ranked.optimistic, ranked.pessimistic, strict=True)
        by_group = {(query, side): (float(best), float(worst)) for query, side, best, worst in found}
        return [by_group[int(self.results.query[each.row]), int(self.results.side[each.row])] for each in rankings]

    def compare_rankings(
        self, rankings: Iterable[DrawnRanking], ranks: Iterable[tuple[float, float]]
    ) -> list[ComparedRanking]:
        """Compare whole rankings."""
        return [
            ComparedRanking(drawn, self._list_figures(drawn, *of)) for drawn, of in zip(rankings, ranks, strict=True)
        ]

    def _list_figures(self, drawn: DrawnRanking, best: float, worst: float) -> list[Figure]:
        results, row = self.results, drawn.row
        expected = self.find_endings(drawn.atoms)
        candidates, bound = expected.candidates, float(expected.bound[0])
        outcome, score = int(candidates.outcome[0]), float(candidates.log_probability[0])
        num_true, num = int(expected.is_unclear[0]), int(expected.is_unclear.sum())
        margin = np.inf if num_true else bound
        low, high = _bound_ranks(expected)
        figures = [
            _figure("candidates", drawn.num, results.num_ranked[row]),
            _figure("outcome of the true triple", outcome, results.outcome[row], num_true * len(Outcome)),
            _figure("log-probability of the true triple", score, results.log_probability[row], margin)._replace(
                margin=bound
            ),
            Figure("optimistic rank", best, float(results.optimistic[row]), low[0], high[0]),
            Figure("pessimistic rank", worst, float(results.pessimistic[row]), low[1], high[1]),
        ]
        if not (self.rank_only and self._run.num_corruptions == ALL):
            figures.append(_figure("hash of the entities drawn", drawn.entities, results.drawn[row]))
        counted = results.num_outcomes[row].tolist()
        needs_all = (
            not self.rank_only or not ranks_above_unproved(candidates.outcome[:1], candidates.log_probability[:1])[0]
        )
        # Candidates that cannot affect a rank need not be counted. If a choice is unclear, it is unknown which they are.
        is_whole = len(drawn.atoms) == drawn.num and (sum(counted) == drawn.num or (needs_all and not num_true))
        is_stopping = self.rank_only and self._may_stop and self._run.num_corruptions == ALL
        is_needed = np.ones(len(drawn.atoms), np.bool_)
        if is_stopping and sum(counted) < drawn.num:
            is_needed = _is_never_stopped(expected)
        figures += [
            _count(word_outcome(each), candidates.outcome == each, is_needed, counted[each], num)
            for each in (Outcome if is_whole else (Outcome.PROVED,))
        ]
        if is_whole:
            figures.append(
                _count("limited", candidates.is_limited != 0, is_needed, results.num_limited[row].item(), num)
            )
        return figures


def _figure(name: str, expected: float, actual: float, margin: float = 0) -> Figure:
    # A hash is too large for a float.
    expected, actual = (int(each) if int(each) == each else float(each) for each in (expected, actual))
    return Figure(name, expected, actual, expected - margin, expected + margin)


def _count(word: str, mask: NDArray[np.bool_], is_needed: NDArray[np.bool_], actual: int, margin: int) -> Figure:
    """Return the figure for a count of candidates: at least the needed ones, at most all."""
    low, high = int((mask & is_needed).sum()), int(mask.sum())
    return Figure(f"candidates {word}", min(max(actual, low), high), actual, low - margin, high + margin)


def _is_never_stopped(endings: Endings) -> NDArray[np.bool_]:
    """Mark the first candidate, PROVED candidates, and candidates that tie with the first or outrank it within the bounds."""
    gap = _ranking_gaps(endings.candidates)
    is_needed: NDArray[np.bool_] = gap - endings.bound - endings.bound[0] > -RANK_TOLERANCE
    is_needed |= endings.candidates.outcome == Outcome.PROVED
    is_needed[0] = True
    return is_needed


def _ranking_gaps(candidates: Candidates) -> NDArray[np.float64]:
    """Return the gaps in nats between the candidates' ranking scores and that of the first candidate."""
    score = ranking_scores(candidates)
    score -= score[0]
    return score


def _bound_ranks(endings: Endings) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the lowest and the highest optimistic and pessimistic rank of the first candidate within the bounds."""
    is_unclear, bound = endings.is_unclear, endings.bound
    gap = _ranking_gaps(endings.candidates)[1:]
    margin = np.where(is_unclear[1:] | is_unclear[0], np.inf, bound[1:] + bound[0])

    def ranks(gap: NDArray[np.float64]) -> tuple[float, float]:
        return 1.0 + float((gap >= RANK_TOLERANCE).sum()), 1.0 + float((gap > -RANK_TOLERANCE).sum())

    return ranks(gap - margin), ranks(gap + margin)


def word_outcome(outcome: int) -> str:
    """Return an outcome in words: `depth limit`."""
    return Outcome(outcome).name.lower().replace("_", " ")


_MOST_NAMED: Final = 64
"""The maximum number of a model's missing atoms that are searched for wrong candidates."""

_MOST_REPEATED: Final = 4096
"""Maximum number of candidates of a wrong ranking that the engine proves again."""


class Namer:
    """The description of wrong results of one run."""

    def __init__(self, run: Run, pipeline: Pipeline, judge: Judge) -> None:
        self._run, self._pipeline, self._judge = run, pipeline, judge

    def name_single(self, actual: Candidates, compared: ComparedCandidates) -> list[Difference]:
        """Describe the wrong candidates, by query and side."""
        rows = compared.wrong
        rows = rows[np.lexsort((actual.side[rows], actual.query[rows]))]
        words = [(_word(compared.expected, row), _word(actual, row)) for row in rows.tolist()]
        places = zip(actual.query[rows], actual.side[rows], actual.atom[rows], strict=True)
        return [self._describe(*place, *ends) for place, ends in zip(places, words, strict=True)]

    def name_rankings(self, compared: list[ComparedRanking]) -> list[Difference]:
        """Describe the wrong rankings, the first by its first wrong candidate if it has one."""
        found: list[Difference] = []
        for ranking in compared:
            if ranking.wrong is not None:
                name, expected, actual, *_ = ranking.wrong
                named = None if found else self._find_wrong_candidate(ranking)
                words = f"{name}: {expected:.12g}", f"{name}: {actual:.12g}"
                found.append(named or self._describe(*self._group(ranking), ranking.drawn.atoms[0], *words))
        return found

    def name_missing(self, missing: CandidateSet) -> list[Difference]:
        """Describe the candidates that the reference proves and the least model lacks."""
        expected = self._judge.find_endings(missing.atom).candidates
        return [
            self._describe(
                missing.query[i], missing.side[i], missing.atom[i], _word(expected, i), "not in the least model"
            )
            for i in np.flatnonzero(expected.outcome == Outcome.PROVED).tolist()
        ]

    def describe_model(self, model: ModelCheck) -> CheckedModel:
        """Describe the check of the least model."""
        missing, unsupported = (
            self._name(atoms[0]) if len(atoms) else "" for atoms in (model.missing, model.unsupported)
        )
        return CheckedModel(
            num_atoms=model.num_atoms,
            is_complete=model.is_complete,
            num_missing=len(model.missing),
            missing=missing,
            num_unsupported=len(model.unsupported),
            unsupported=unsupported,
        )

    def _group(self, ranking: ComparedRanking) -> tuple[int, int]:
        results, row = self._judge.results, ranking.drawn.row
        return int(results.query[row]), int(results.side[row])

    def _find_wrong_candidate(self, ranking: ComparedRanking) -> Difference | None:
        """Look for a candidate that was not drawn, or that ends differently when the engine proves it again."""
        run, atoms, (query, side) = self._run, ranking.drawn.atoms, self._group(ranking)
        if not self._judge.rank_only:
            redrawn = self._pipeline.draw(run.graph, run.split, [query], run.num_corruptions, run.seed)
            size = len(run.graph.program.symbols.constants)
            numbers = number_atoms(redrawn.atom[redrawn.side == side], size)
            is_absent = ~np.isin(number_atoms(atoms, size), numbers)
            if is_absent.any():
                return self._describe(query, side, atoms[np.argmax(is_absent)], "drawn", "not drawn")
        atoms = atoms[:_MOST_REPEATED]
        candidates = CandidateSet(np.full(len(atoms), query, np.int32), np.full(len(atoms), side, np.int8), atoms)
        actual = prove_candidates(self._pipeline.engine, candidates)[0]
        compared = self._judge.compare_single(actual)
        if not len(compared.wrong):
            return None
        row = compared.wrong[0]
        return self._describe(query, side, atoms[row], _word(compared.expected, row), _word(actual, row))

    def _describe(self, query: int, side: int, atom: NDArray[np.integer], expected: str, actual: str) -> Difference:
        return Difference(int(query), Side(int(side)).name.lower(), self._name(atom), expected, actual)

    def _name(self, atom: NDArray[np.integer]) -> str:
        names = self._run.graph.program.symbols
        predicate, first, second = atom.tolist()
        return f"{names.predicates[predicate]}({names.constants[first]}, {names.constants[second]})"


def find_missing_candidates(run: Run, results: PartResult, model: ModelCheck | None) -> CandidateSet:
    """Return some atoms missing from a model, as candidates of queries for which they could be corruptions."""
    rows: list[tuple[int, ...]] = []
    queries = np.unique(results.query)
    triples = run.triples[queries]
    for atom in () if model is None else model.missing:
        for side in (Side.HEAD, Side.TAIL):
            kept = 2 - side
            is_same = (triples[:, 0] == atom[0]) & (triples[:, kept] == atom[kept])
            if not may_be_drawn(run.graph, atom[None].astype(np.int32), np.array([side]))[0]:
                # It is a candidate only as the true triple.
                is_same &= (triples == atom).all(1)
            if is_same.any():
                rows.append((int(queries[np.argmax(is_same)]), int(side), *atom.tolist()))
        if len(rows) >= _MOST_NAMED:
            break
    table = np.array(sorted(rows), np.int32).reshape(-1, 5)
    return CandidateSet(table[:, 0], table[:, 1].astype(np.int8), table[:, 2:])


def _word(of: Candidates, row: int) -> str:
    limited = ", limited" if of.is_limited[row] else ""
    return f"{word_outcome(of.outcome[row].item())}{limited}, {of.log_probability[row].item():.6g} nats"


NUM_ALONE: Final = 2
"""The number of candidates that are proved again, each by itself."""


def _prove_alone(pipeline: Pipeline, candidates: Candidates, expected: Candidates) -> Candidates:
    """Prove the candidates with the longest derivations again, each by itself: a batch can hide a loop's last iteration."""
    rows = np.argsort(-expected.num_steps.astype(np.int64), kind="stable")[:NUM_ALONE]
    every = CandidateSet(*candidates[:3])
    return join_candidates([prove_candidates(pipeline.engine, every.take(rows[[i]]))[0] for i in range(len(rows))])


def check_evaluation(
    run: Run,
    pipeline: Pipeline,
    result: EvaluationResult,
    results: PartResult,
    num: int,
    *,
    reference: Pipeline | None = None,
    progress: Progress = no_progress,
) -> SpotCheck:
    """Let the reference derive about `num` candidates: half of them single candidates, the others for whole rankings.

    The engine's declared error, up to the bound computed from the weights, limits the differences. If two scores in a
    derivation are closer than the errors, the engine may choose differently from the reference there. This is a near-tie,
    which is counted separately from the differences.
    """
    reference = reference_pipeline(run) if reference is None else reference
    rank_only, key = result.plan.rank_only, hash_results(result)
    keys = model = None
    is_skipping = int(results.num_outcomes.sum(dtype=np.int64)) < int(results.num_ranked.sum(dtype=np.int64))
    found = result.model
    if rank_only and found is None and is_skipping:
        found = build_model(run, pipeline.engine)
    if found is not None:
        keys = found.read_keys()
        model = check_model(run.graph.program, keys)
    is_closed = model is not None and model.is_closed
    single = choose_single(results, key, num // 2)
    left = num - len(single.is_true)
    chosen, strata_of_rankings = choose_rankings(run, results, key, left, keys if is_closed else None)
    if not chosen and 0 < int(results.num_ranked.max(initial=0)) <= left:
        raise InternalError("the check chose no ranking, though the largest one is small enough")
    single = single if chosen else choose_single(results, key, num)
    missing = find_missing_candidates(run, results, model)
    atoms = np.concatenate((single.candidates.atom, missing.atom, *(each.atoms for each in chosen)))
    endings = derive_endings(run, pipeline, reference, atoms, progress)
    # A repeated candidate is derived once, and a small evaluation has fewer than `num`.
    progress(num - len(endings.number))
    judge = Judge(run, results, reference, endings, rank_only=rank_only, may_stop=may_stop(pipeline.engine))
    candidates = judge.compare_single(single.candidates)
    alone = _prove_alone(pipeline, single.candidates, candidates.expected)
    rankings = judge.compare_rankings(chosen, judge.rank(chosen))
    namer = Namer(run, pipeline, judge)
    again = judge.compare_single(alone)
    differences = [
        *namer.name_missing(missing),
        *namer.name_single(single.candidates, candidates),
        *namer.name_single(alone, again),
        *namer.name_rankings(rankings),
    ]
    num_equal = sum(each.is_equal for each in rankings)
    num_wrong = sum(each.wrong is not None for each in rankings)
    num_rankings, num_true = len(results.query), int(single.is_true.sum())
    num_proved = int(results.num_outcomes.sum(dtype=np.int64))
    strata = [(num_rankings, num_true), (num_proved - num_rankings, len(single.is_true) - num_true)]
    return SpotCheck(
        num_asked=num,
        key=f"{key:016x}",
        num_derived=len(endings.number),
        num_checked=len(candidates.is_equal),
        num_equal=int(candidates.is_equal.sum()),
        num_near_ties=int(candidates.is_near_tie.sum()),
        largest_error=float(candidates.apart[candidates.is_equal].max(initial=0.0)),
        bound=float(candidates.bound[candidates.is_equal].max(initial=0.0)),
        strength=judge_sample(strata),
        rankings=CheckedRankings(
            num_rankings=num_rankings,
            num_checked=len(rankings),
            num_equal=num_equal,
            num_near_ties=len(rankings) - num_equal - num_wrong,
            strength=judge_sample(strata_of_rankings),
        ),
        model=None if model is None else namer.describe_model(model),
        exercise=endings.exercise,
        again=CheckedAgain(len(again.is_equal), int(again.is_equal.sum()), int(again.is_near_tie.sum())),
        differences=tuple(sorted(differences, key=lambda each: (each.query, each.side))),
    )


def report_evaluation(
    run: Run,
    result: EvaluationResult,
    pipeline: Pipeline,
    *,
    num_checked: int = LEAST,
    reference: Pipeline | None = None,
    minimum: Minimum = MINIMUM,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Return the report of an evaluation without missing parts.

    num_checked: the number of candidates that the reference derives
    reference:   the reference's pipeline, if it runs in other processes
    minimum:     the exercise that is required of these candidates
    """
    results = join_results(result.results[part.number] for part in result.plan.parts)
    check = None
    if num_checked:
        with phase("checking a sample", num_checked) as progress:
            check = check_evaluation(
                run, pipeline, result, results, num_checked, reference=reference, progress=progress
            )
    return _build_report(
        run,
        results,
        check,
        minimum,
        policy=run.policy.name,
        policy_sha256=run.policy.info.sha256,
        engine=pipeline.engine.info,
        identity=result.identity.sha256,
        rank_only=result.plan.rank_only,
        num_parts=len(result.plan.parts),
        num_parts_resumed=result.num_resumed,
        num_processes=result.num_processes,
        seconds=result.seconds,
        warm_up_seconds=result.warm_up_seconds,
        candidates_per_second=result.num_candidates / result.seconds if result.num_candidates else None,
        accepted=result.accepted,
        reference="reference" if reference is None else reference.engine.info.name,
        ties=f"log-probabilities within {RANK_TOLERANCE:g} nats tie",
        num_confidences=sum(rule.confidence not in (None, 1) for rule in run.graph.program.named_rules),
    )


def _build_report(
    run: Run, results: PartResult, check: SpotCheck | None, minimum: Minimum, **fields: Any
) -> EvaluationReport:
    """Return the report of results, with the figures that the reference finds wrong."""
    from kgverify.engines.reference.ranking import compute_metrics as compute_by_reference

    report = EvaluationReport(
        kgverify=__version__,
        graph=run.graph.name,
        split=run.split,
        num_corruptions=run.num_corruptions,
        seed=run.seed,
        limits=run.limits,
        **_compute_figures(run, results),
        check=check,
        minimum=dict(minimum),
        triples_sha256=hash_triples(run),
        **fields,
    )
    wrong = find_wrong_figures(run, results, report, compute_by_reference(results.rankings))
    return msgspec.structs.replace(report, wrong_figures=wrong)


def _compute_figures(run: Run, results: PartResult) -> dict[str, Any]:
    """Compute the figures of a report that follow from the results of all parts, by field."""
    by_outcome = results.num_outcomes.sum(0, np.int64)
    true_outcomes = np.bincount(results.outcome, minlength=len(Outcome))
    num_candidates = int(results.num_ranked.sum(dtype=np.int64))
    smallest_gap = results.choices.smallest_gap
    return {
        "num_queries": len(run.queries),
        "metrics": compute_metrics(results.rankings),
        "intervals": bootstrap_metrics(results.rankings, run.seed),
        "ranks": _list_ranks(run, results),
        "num_rankings": len(results.query),
        "num_candidates": num_candidates,
        "num_left_out": num_candidates - int(by_outcome.sum()),
        "outcomes": _named(by_outcome.tolist()),
        "true_outcomes": _named(true_outcomes.tolist()),
        "num_limited": int(results.num_limited.sum(dtype=np.int64)),
        **results.choices._asdict(),
        "smallest_gap": smallest_gap if np.isfinite(smallest_gap) else None,
    }


def report_rules(
    run: Run,
    results: PartResult,
    method: str,
    confidences: NDArray[np.float64],
    *,
    num_unseen: int = 0,
    num_checked: int = LEAST,
    minimum: Minimum = MINIMUM,
    phase: Phase = silent_phase,
) -> EvaluationReport:
    """Return the report of an evaluation by rule confidences, whose ranks the reference recomputes for some queries.

    num_checked: 16 times the number of rankings that the reference recomputes
    """
    identity = hashlib.sha256(msgspec.json.encode((run.graph.program.sha256, hash_triples(run), method, num_unseen)))
    identity.update(confidences.tobytes())
    key = int(hash_result(results, identity.hexdigest()), 16)
    rows = np.sort(_order(key, np.arange(len(results.query), dtype=np.uint64))[: -(-num_checked // _COST)])
    check = None
    if len(rows):
        with phase("checking a sample", len(rows)) as progress:
            check = _check_rules(run, results, method, confidences, rows, progress)
    return _build_report(
        run,
        results,
        None if check is None else msgspec.structs.replace(check, num_asked=num_checked, key=f"{key:016x}"),
        minimum,
        engine=EngineInfo("rules", mode=method),
        identity=identity.hexdigest(),
        ties="equal strengths tie",
        aggregate=method,
        num_unseen=num_unseen,
        num_confidences=len(confidences),
    )


def _check_rules(
    run: Run,
    results: PartResult,
    method: str,
    confidences: NDArray[np.float64],
    rows: NDArray[np.int64],
    progress: Progress,
) -> SpotCheck:
    """Let the reference recompute some rankings by rule confidences."""
    from kgverify.engines.reference.ranking import ReferenceAggregate

    reference = ReferenceAggregate(run.graph, run.split, method, confidences.tolist())
    differences: list[Difference] = []
    used: set[int] = set()
    num_predicted = num_ranked = 0
    ranks = _list_ranks(run, results)
    for row in rows.tolist():
        query, side = int(results.query[row]), int(results.side[row])
        expected = reference.rank(query, side)
        outcome = Outcome.PROVED if expected.is_predicted else Outcome.FAILED
        figures = (
            _figure("candidates", expected.num_ranked, results.num_ranked[row]),
            _figure("candidates predicted", expected.num_predicted, results.num_outcomes[row, Outcome.PROVED]),
            _figure("outcome of the true triple", outcome, results.outcome[row]),
            _figure("optimistic rank", expected.ranks[0], results.optimistic[row]),
            _figure("pessimistic rank", expected.ranks[1], results.pessimistic[row]),
            _figure("log-probability", expected.log_strength, results.log_probability[row], _EXACT),
        )
        if wrong := next((each for each in figures if not each.is_possible), None):
            rank = ranks[row]
            words = f"{wrong.name}: {wrong.expected:.12g}", f"{wrong.name}: {wrong.actual:.12g}"
            differences.append(Difference(query, rank.side, f"{rank.relation}({rank.head}, {rank.tail})", *words))
        used |= expected.rules
        num_predicted += expected.num_predicted
        num_ranked += expected.num_ranked
        progress(1)
    exercise = Exercise(outcomes={Outcome.PROVED.name: num_predicted}, rules=len(used), num_rules=len(confidences))
    strength = judge_sample([(len(results.query), len(rows))])
    return SpotCheck(
        num_asked=0,
        key="",
        num_derived=num_ranked,
        rankings=CheckedRankings(len(results.query), len(rows), len(rows) - len(differences), 0, strength),
        differences=tuple(differences),
        exercise=exercise,
    )


def _list_ranks(run: Run, results: PartResult) -> tuple[QueryRank, ...]:
    names = run.graph.program.symbols
    columns = (*results.rankings, results.outcome, results.log_probability)
    listed = []
    for query, side, num, low, high, outcome, score in zip(*(column.tolist() for column in columns), strict=True):
        predicate, first, second = run.triples[query].tolist()
        head, relation, tail = names.constants[first], names.predicates[predicate], names.constants[second]
        ends = Outcome(outcome).name, score
        listed.append(QueryRank(query, head, relation, tail, Side(side).name.lower(), num, low, high, *ends))
    return tuple(listed)


def _named(counts: list[int]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in (*list(Outcome)[1:], Outcome.OPEN)}


def find_wrong_figures(
    run: Run, results: PartResult, report: EvaluationReport, metrics: dict[str, float]
) -> tuple[str, ...]:
    """Describe every figure of the report that does not follow from its rankings and the results of all parts.

    metrics: the reference's metrics for the same rankings
    """
    return (
        *_check_rankings(run, results, report),
        *_check_counts(results, report),
        *(
            f"{name} is {report.metrics.get(name)}, by the reference {metrics.get(name)}"
            for name in sorted({*metrics, *report.metrics})
            if metrics.get(name) != report.metrics.get(name)
        ),
    )


def _check_rankings(run: Run, results: PartResult, report: EvaluationReport) -> list[str]:
    num = min(run.num_queries, len(run.graph.queries(run.split)))
    asked = np.arange(2 * num)
    found = results.query.astype(np.int64) * 2 + results.side
    wrong = []
    if not np.array_equal(found, asked):
        odd = np.setxor1d(found, asked)
        which = f"; the first: query {odd[0] // 2}, side {odd[0] % 2}" if len(odd) else ", repeated or in another order"
        wrong.append(f"{len(asked):,} rankings were asked for and {len(found):,} were computed{which}")
    if (report.num_queries, report.num_rankings) != (num, len(asked)):
        wrong.append(f"{report.num_rankings:,} rankings of {report.num_queries:,} queries are reported")
    best, worst = results.optimistic, results.pessimistic
    is_rank = (best >= 1) & (best <= worst) & (worst <= results.num_ranked) & (best % 1 == 0) & (worst % 1 == 0)
    if not is_rank.all():
        row = int(np.argmin(is_rank))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has rank {best[row]:g} to {worst[row]:g}"
            f" among {results.num_ranked[row]}"
        )
    return wrong


def _check_counts(results: PartResult, report: EvaluationReport) -> list[str]:
    num_ranked, by_outcome = results.num_ranked.astype(np.int64), results.num_outcomes.astype(np.int64)
    num_proved = by_outcome.sum(1)
    figures = {
        "num_candidates": sum(num_ranked.tolist()),
        "num_limited": sum(results.num_limited.tolist()),
        "num_left_out": sum((num_ranked - num_proved).tolist()),
        "num_choices": results.choices.num_choices,
        "num_rescored": results.choices.num_rescored,
        "outcomes": {each.name.lower(): sum(by_outcome[:, each].tolist()) for each in Outcome},
        "true_outcomes": {each.name.lower(): results.outcome.tolist().count(each) for each in Outcome},
        "smallest_gap": None if results.choices.smallest_gap == float("inf") else results.choices.smallest_gap,
    }
    wrong = [
        f"{name} is reported as {actual}, and the rankings have {expected}"
        for name, expected in figures.items()
        if expected != (actual := getattr(report, name))
    ]
    is_counted = num_proved <= num_ranked if report.rank_only else num_proved == num_ranked
    if not is_counted.all():
        row = int(np.argmin(is_counted))
        wrong.append(
            f"query {results.query[row]}, side {results.side[row]} has {num_ranked[row]:,} candidates,"
            f" and outcomes of {num_proved[row]:,}"
        )
    return wrong
