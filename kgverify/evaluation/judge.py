"""The comparison of an evaluation's results with what the reference derives, and the names of the wrong candidates."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.exercise.count import count_columns
from kgverify.comparison.exercise.exercise import Exercise
from kgverify.errors import InternalError
from kgverify.evaluation.closure import ModelCheck, check_model
from kgverify.evaluation.evaluate import EvaluationResult
from kgverify.evaluation.part_file import PartResult, Sample
from kgverify.evaluation.proving import may_stop, prove_candidates
from kgverify.evaluation.rank_only import build_model, ranks_above_unproved
from kgverify.evaluation.sampling import DrawnRanking, choose_rankings, choose_single, hash_results, judge_sample
from kgverify.program.outcomes import Outcome, Side
from kgverify.progress import Progress, no_progress
from kgverify.ranking.draw import ALL, may_be_drawn, number_atoms
from kgverify.ranking.groups import take_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, ranking_scores
from kgverify.report.evaluation import CheckedAgain, CheckedModel, CheckedRankings, Difference, SpotCheck
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, join_candidates, starts_of
from kgverify.trace.model.score_tolerance import accept_score_error

_EXACT: Final = 1e-9
"""The largest difference, for each step and in nats, between sums of float64 added in another order."""


class Endings(NamedTuple):
    """The reference's endings of distinct atoms.

    number:     int64 [n], ascending (`number_atoms`)
    bound:      float64 [n]  the largest allowed difference of a log-probability, nats
    is_unclear: bool [n]     whether a choice is closer than the errors, so that the engine may choose otherwise
    exercise:                of all derivations
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
    run: Run, reference: Pipeline, atoms: NDArray[np.int32], error: float, progress: Progress
) -> Endings:
    """Derive each atom, int32 [n, 3], once. error: of the scores of both engines."""
    number, rows = np.unique(number_atoms(atoms, len(run.graph.program.symbols.constants)), return_index=True)
    zeros = np.zeros(len(rows), np.int32)
    columns = reference.engine.prove(CandidateSet(zeros, zeros.astype(np.int8), atoms[rows]), progress)
    bound = columns.candidates.num_steps.astype(np.float64) * (2 * error + _EXACT)
    is_unclear = (find_smallest_gaps(columns) <= 2 * error) & (error > 0)
    exercise = count_columns(columns, run.graph.program, reference.engine.info)
    return Endings(number, columns.candidates, bound, is_unclear, exercise)


def find_smallest_gaps(columns: Columns) -> NDArray[np.float64]:
    """Return each candidate's smallest gap between a chosen score and the next one, float64 [N]; inf without a choice."""
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
    """Single candidates compared: bool [n], and the differences of their log-probabilities with their bounds, float64 [n]."""

    is_equal: NDArray[np.bool_]
    is_near_tie: NDArray[np.bool_]
    apart: NDArray[np.float64]
    bound: NDArray[np.float64]
    expected: Candidates

    @property
    def wrong(self) -> NDArray[np.int64]:
        """The rows that differ, other than by a near-tie."""
        return np.flatnonzero(~self.is_equal & ~self.is_near_tie)


class Figure(NamedTuple):
    """A figure of a ranking. Errors within the bounds move it between `low` and `high`; up to `margin` it counts as equal."""

    name: str
    expected: float
    actual: float
    low: float
    high: float
    margin: float = 0.0

    @property
    def is_possible(self) -> bool:
        """True if errors within the bounds explain it."""
        return self.low <= self.actual <= self.high

    @property
    def is_equal(self) -> bool:
        """True if it is the expected one."""
        return abs(self.actual - self.expected) <= self.margin


class ComparedRanking(NamedTuple):
    """A ranking and its figures."""

    drawn: DrawnRanking
    figures: list[Figure]

    @property
    def is_equal(self) -> bool:
        """True if every figure is the expected one."""
        return all(each.is_equal for each in self.figures)

    @property
    def wrong(self) -> Figure | None:
        """The first figure that errors within the bounds do not explain."""
        return next((each for each in self.figures if not each.is_possible), None)


class Judge:
    """The comparison of results with the reference's endings of all atoms that are compared.

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
        """Return the endings of atoms, int32 [n, 3], all of them derived."""
        number = number_atoms(atoms, len(self._run.graph.program.symbols.constants))
        return self._endings.take(np.searchsorted(self._endings.number, number))

    def compare_single(self, sample: Sample) -> ComparedCandidates:
        """Compare single candidates."""
        return self.compare_endings(
            sample.sample_atom, sample.sample_outcome, sample.sample_is_limited, sample.sample_log_probability
        )

    def compare_endings(
        self,
        atoms: NDArray[np.int32],
        outcome: NDArray[np.int8],
        is_limited: NDArray[np.uint8],
        log_probability: NDArray[np.float64],
    ) -> ComparedCandidates:
        """Compare the endings of atoms, int32 [n, 3], with those that the reference derived."""
        endings = self.find_endings(atoms)
        expected = endings.candidates
        apart = np.abs(log_probability - expected.log_probability)
        is_equal = (outcome == expected.outcome) & (is_limited == expected.is_limited) & (apart <= endings.bound)
        return ComparedCandidates(is_equal, ~is_equal & endings.is_unclear, apart, endings.bound, expected)

    def rank(self, rankings: Sequence[DrawnRanking]) -> list[tuple[float, float]]:
        """Return the optimistic and the pessimistic rank of each ranking by the reference; what was not derived is below."""
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
        # Those that cannot affect a rank need not be counted; where a choice is unclear, it is open which these are.
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
    # A hash is larger than the integers of a float.
    expected, actual = (int(each) if int(each) == each else float(each) for each in (expected, actual))
    return Figure(name, expected, actual, expected - margin, expected + margin)


def _count(word: str, mask: NDArray[np.bool_], is_needed: NDArray[np.bool_], actual: int, margin: int) -> Figure:
    """Return the figure of a count of candidates, between those that are needed and all."""
    low, high = int((mask & is_needed).sum()), int(mask.sum())
    return Figure(f"candidates {word}", min(max(actual, low), high), actual, low - margin, high + margin)


def _is_never_stopped(endings: Endings) -> NDArray[np.bool_]:
    """Return the first candidate, the PROVED ones, and those that tie with the first or rank above it within the bounds."""
    gap = _ranking_gaps(endings.candidates)
    is_needed: NDArray[np.bool_] = gap - endings.bound - endings.bound[0] > -RANK_TOLERANCE
    is_needed |= endings.candidates.outcome == Outcome.PROVED
    is_needed[0] = True
    return is_needed


def _ranking_gaps(candidates: Candidates) -> NDArray[np.float64]:
    """Return the gaps in nats between the candidates' ranking scores and the first one's."""
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
"""The most missing atoms of a model among which wrong candidates are looked for."""

_MOST_REPEATED: Final = 4096
"""Maximum number of candidates of a wrong ranking that the engine proves again."""


class Namer:
    """The description of wrong results of one run."""

    def __init__(self, run: Run, pipeline: Pipeline, judge: Judge) -> None:
        self._run, self._pipeline, self._judge = run, pipeline, judge

    def name_single(self, sample: Sample, compared: ComparedCandidates) -> list[Difference]:
        """Describe the wrong candidates of a sample, by query and side."""
        rows = compared.wrong
        rows = rows[np.lexsort((sample.sample_side[rows], sample.sample_query[rows]))]
        actual = sample.sample_outcome, sample.sample_is_limited, sample.sample_log_probability
        return [
            self._describe(
                sample.sample_query[row],
                sample.sample_side[row],
                sample.sample_atom[row],
                _word(compared.expected, row),
                _word_ending(*(column[row].item() for column in actual)),
            )
            for row in rows.tolist()
        ]

    def name_rankings(self, compared: list[ComparedRanking]) -> list[Difference]:
        """Describe the wrong rankings, the first one by its first wrong candidate if there is one."""
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
        """Look for a candidate that was not drawn, or that ends otherwise when the engine proves it again."""
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
        compared = self._judge.compare_endings(atoms, actual.outcome, actual.is_limited, actual.log_probability)
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
    """Return some of the atoms that a model lacks, as candidates of the queries that they could be corruptions of."""
    rows: list[tuple[int, ...]] = []
    queries = np.unique(results.query)
    triples = run.triples[queries]
    for atom in () if model is None else model.missing:
        for side in (Side.HEAD, Side.TAIL):
            kept = 2 - side
            is_same = (triples[:, 0] == atom[0]) & (triples[:, kept] == atom[kept])
            if not may_be_drawn(run.graph, atom[None].astype(np.int32), np.array([side]))[0]:
                # Only as a true triple is it a candidate.
                is_same &= (triples == atom).all(1)
            if is_same.any():
                rows.append((int(queries[np.argmax(is_same)]), int(side), *atom.tolist()))
        if len(rows) >= _MOST_NAMED:
            break
    table = np.array(sorted(rows), np.int32).reshape(-1, 5)
    return CandidateSet(table[:, 0], table[:, 1].astype(np.int8), table[:, 2:])


def _word(of: Candidates, row: int) -> str:
    return _word_ending(of.outcome[row].item(), of.is_limited[row].item(), of.log_probability[row].item())


def _word_ending(outcome: int, is_limited: int, log_probability: float) -> str:
    return f"{word_outcome(outcome)}{', limited' if is_limited else ''}, {log_probability:.6g} nats"


NUM_ALONE: Final = 2
"""The candidates that are proved again by themselves."""


def _prove_alone(pipeline: Pipeline, sample: Sample, expected: Candidates) -> Sample:
    """Let the engine prove the candidates of the longest derivations again, each by itself: a batch hides a loop's last turn."""
    rows = np.argsort(-expected.num_steps.astype(np.int64), kind="stable")[:NUM_ALONE]
    longest = sample.take(rows)
    if not len(rows):
        return longest
    alone = [longest.candidates.take(np.array([i])) for i in range(len(rows))]
    *_, outcome, is_limited, score = join_candidates([prove_candidates(pipeline.engine, each)[0] for each in alone])
    return longest._replace(sample_outcome=outcome, sample_is_limited=is_limited, sample_log_probability=score)


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
    """Let the reference derive about `num` candidates: half of them single ones, the others for whole rankings.

    The error that the engine declares, up to the bound computed from the weights, limits the differences. If two scores in a
    derivation are closer than the errors, the engine may choose otherwise than the reference there. This is a near-tie,
    counted apart from the differences.
    """
    reference = reference_pipeline(run) if reference is None else reference
    rank_only, key = result.plan.rank_only, hash_results(result)
    keys = model = None
    is_skipping = int(results.num_outcomes.sum(dtype=np.int64)) < int(results.num_ranked.sum(dtype=np.int64))
    found = result.model
    if rank_only and found is None and is_skipping:
        found = build_model(run, pipeline.engine.info.device)
    if found is not None:
        keys = found.read_keys()
        model = check_model(run.graph.program, keys)
    is_closed = model is not None and model.is_closed
    single = choose_single(results, key, num // 2)
    left = num - len(single.sample_query)
    sample = choose_rankings(run, results, key, left, keys if is_closed else None)
    if not sample.rankings and 0 < int(results.num_ranked.max(initial=0)) <= left:
        raise InternalError("the check chose no ranking, though the largest one is small enough")
    missing = find_missing_candidates(run, results, model)
    atoms = np.concatenate((single.sample_atom, missing.atom, *(each.atoms for each in sample.rankings)))
    error = sum(accept_score_error(each.engine.info, run.policy.info) for each in (pipeline, reference))
    endings = derive_endings(run, reference, atoms, error, progress)
    judge = Judge(run, results, reference, endings, rank_only=rank_only, may_stop=may_stop(pipeline.engine))
    candidates = judge.compare_single(single)
    alone = _prove_alone(pipeline, single, candidates.expected)
    ranks = judge.rank(sample.rankings)
    rankings = judge.compare_rankings(sample.rankings, ranks)
    namer = Namer(run, pipeline, judge)
    again = judge.compare_single(alone)
    differences = [
        *namer.name_missing(missing),
        *namer.name_single(single, candidates),
        *namer.name_single(alone, again),
        *namer.name_rankings(rankings),
    ]
    num_equal = sum(each.is_equal for each in rankings)
    num_wrong = sum(each.wrong is not None for each in rankings)
    num_rankings, num_true = len(results.query), int(single.sample_is_true.sum())
    num_proved = int(results.num_outcomes.sum(dtype=np.int64))
    strata = [(num_rankings, num_true), (num_proved - num_rankings, len(single.sample_query) - num_true)]
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
            strength=judge_sample(sample.strata),
        ),
        model=None if model is None else namer.describe_model(model),
        exercise=endings.exercise,
        again=CheckedAgain(len(again.is_equal), int(again.is_equal.sum()), int(again.is_near_tie.sum())),
        differences=tuple(sorted(differences, key=lambda each: (each.query, each.side))),
    )
