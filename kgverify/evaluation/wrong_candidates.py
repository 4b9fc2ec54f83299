"""The names of wrong candidates: those that differ themselves, and those that make a ranking or the least model wrong."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.evaluation.closure import ModelCheck
from kgverify.evaluation.judge import ComparedCandidates, ComparedRanking, Judge, word_outcome
from kgverify.evaluation.part_file import PartResult, Sample
from kgverify.evaluation.proving import prove_candidates
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.corrupt import may_be_drawn, number_atoms
from kgverify.report.evaluation import CheckedModel, Difference
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import Candidates, CandidateSet

_MOST_NAMED: Final = 64
"""The most missing atoms of a model among which wrong candidates are looked for."""

_MOST_REPEATED: Final = 4096
"""The most candidates of a wrong ranking that the engine proves again."""


class Namer:
    """The description of wrong results of one run."""

    def __init__(self, run: Run, pipeline: Pipeline, judge: Judge, *, rank_only: bool) -> None:
        self._run, self._pipeline, self._judge = run, pipeline, judge
        self._rank_only = rank_only

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
        if not self._rank_only:
            redrawn = self._pipeline.draw(run.graph, run.split, [query], run.num_corruptions, run.seed)
            size = len(run.graph.program.symbols.constants)
            numbers = number_atoms(redrawn.atom[redrawn.side == side], size)
            is_absent = ~np.isin(number_atoms(atoms, size), numbers)
            if is_absent.any():
                return self._describe(query, side, atoms[np.argmax(is_absent)], "drawn", "not drawn")
        atoms = atoms[:_MOST_REPEATED]
        expected = self._judge.find_endings(atoms)
        candidates = CandidateSet(np.full(len(atoms), query, np.int32), np.full(len(atoms), side, np.int8), atoms)
        actual = prove_candidates(self._pipeline.engine, candidates)[0]
        is_wrong = (actual.outcome != expected.candidates.outcome) | (
            actual.is_limited != expected.candidates.is_limited
        )
        is_wrong |= np.abs(actual.log_probability - expected.candidates.log_probability) > expected.bound
        rows = np.flatnonzero(is_wrong & ~expected.is_unclear)
        if not len(rows):
            return None
        return self._describe(query, side, atoms[rows[0]], _word(expected.candidates, rows[0]), _word(actual, rows[0]))

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
