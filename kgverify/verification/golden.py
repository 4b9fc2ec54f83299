"""Golden files: a digest for each candidate of a run, in a small text file that is committed beside an engine.

The reference writes the file, so that it does not hold the faults of an engine. An engine is compared by digests, and the
reference proves only the candidates that differ.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.align import align_candidates
from kgverify.comparison.comparable import MemorySource
from kgverify.comparison.compare import Comparer
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.modulo import NAMES, resolve_modulo
from kgverify.comparison.result import Coverage, Verdict
from kgverify.comparison.step_view import Names
from kgverify.engines.protocol import candidate_set
from kgverify.errors import UserError, count_of, use_words
from kgverify.files.reading import read_json
from kgverify.files.writing import make_folders, write_file
from kgverify.progress import Phase, silent_phase
from kgverify.report.content import Metrics
from kgverify.report.report import encode_report
from kgverify.runs.job import Job, Proofs, Source, WrittenRun
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    CandidateSet,
    concatenate,
    empty_columns,
    select_candidates,
)
from kgverify.trace.model.consistency import find_contradictory
from kgverify.trace.model.digests import Words, compute_digests, digest_candidates
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import make_report
from kgverify.verification.verify import Verification, prove_candidates, verify

MAX_CANDIDATES: Final = 1 << 19
"""The maximum number of candidates in a golden file. At 17 bytes each, a larger file does not belong in git."""
MAX_BYTES: Final = 32 << 20
NOT_DIGESTED: Final = frozenset(each.name for each in KNOWLEDGE_GRAPH.compared if not each.is_digested)
"""The columns that digests do not count: scores, their sums, and the clauses of resolvents."""
_FIX: Final = "restore it from git; or delete it, and run this again to have it written"


class GoldenFile(
    WrittenRun, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="format", tag="kgverify golden 1"
):
    """The content of a golden file.

    reference:      the engine that wrote the file
    schema_version: the version of the trace schema; another version gives other digests
    candidates:     a line for each query: its number and its first candidate, and the digests of all its candidates
    """

    reference: str
    program_sha256: str
    policy_sha256: str
    schema_version: int
    candidates: tuple[str, ...]

    @classmethod
    def of_run(cls, job: Job, run: Run, expected: Pipeline, candidates: Sequence[str] = ()) -> Self:
        """Return the golden file of a run."""
        return cls.of(
            replace(job, source=Source(run.graph), proofs=Proofs(run.limits, job.proofs.policy)),
            reference=_name(expected),
            program_sha256=run.graph.program.sha256,
            policy_sha256=run.policy.info.sha256,
            schema_version=SCHEMA_VERSION,
            candidates=tuple(candidates),
        )

    def split(self) -> list[tuple[str, Words]]:
        """Return the label and the digests of each line. ValueError for a line that holds something else."""
        parts = [line.rpartition(": ") for line in self.candidates]
        return [(label, np.frombuffer(bytes.fromhex(digests), ">u8").astype(np.uint64)) for label, _, digests in parts]

    @property
    def digests(self) -> Words:
        """The digests of all candidates."""
        return np.concatenate([np.zeros(0, np.uint64), *(digests for _, digests in self.split())])

    def list_differences(self, here: Self) -> list[str]:
        """Return the differences from the file that this run would write, apart from the place of the graph and digests."""
        # Weights are the same wherever their file is.
        both = [
            msgspec.to_builtins(each)
            | {"graph": 0, "policy_sha256": 0, "candidates": 0, "policy": each.policy_sha256 or each.policy}
            for each in (self, here)
        ]
        lines = [
            dict(enumerate(f"{label}, {count_of(len(digests), 'candidate')}," for label, digests in each.split()))
            for each in (self, here)
        ]
        return [*_list_changes(both[0], both[1])] or [*_list_changes(lines[0], lines[1], "query")][:1]


def _list_changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Yield each value that differs between two nested mappings, with the keys that lead to it."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _list_changes(old.get(key, "not given"), new.get(key, "not given"), f"{name} {key}".lstrip())
    elif old != new:
        yield f"{name}: {old} there, {new} here"


def read_golden(path: Path) -> GoldenFile:
    """Read a golden file. UserError for any other file."""
    file = read_json(path, GoldenFile, purpose="a golden file", fix=_FIX, max_bytes=MAX_BYTES)
    try:
        file.split()
    except ValueError as error:
        raise UserError(f"holds a line that is not made of digests: {error}", where=str(path), fix=_FIX) from None
    return file


class Golden:
    """A golden file that is written, or with which an engine is compared.

    file: its content; None if it does not exist
    """

    def __init__(self, path: Path, *, update: bool = False) -> None:
        """Read the file, if it exists. UserError if it is not a golden file.

        update: whether to write it again, and then compare
        """
        self.path, self._update = path, update
        self.file = read_golden(path) if os.path.lexists(path) else None

    def verify(
        self,
        job: Job,
        run: Run,
        expected: Pipeline,
        actual: Pipeline,
        *,
        equality: Equality = DEFAULT_EQUALITY,
        phase: Phase = silent_phase,
    ) -> Verification:
        """Compare an engine with the file, and those candidates that differ with the reference.

        The verdict is INCONCLUSIVE if the file was missing and is written now, if it is of another run, and if the reference
        contradicts it.
        """
        asked, file = expected.draw_for(run), self.file
        notes: tuple[str, ...] = ()
        shells = _shell(run, expected), _shell(run, actual)
        if file is None or self._update:
            file, note = self._write(job, run, expected, asked, phase)
            if not self._update:
                return _withhold(shells, [Code.NO_GOLDEN.mark(f"{note}; commit it, and run this again")])
            notes = (note,)
        here = GoldenFile.of_run(job, run, expected, _render(asked, shells[0], np.zeros(len(asked.query), np.uint64)))
        if differences := file.list_differences(here):
            others = [Code.OTHER_RUN.mark(f"{self.path} is of another run: {each}") for each in differences]
            return _withhold(shells, others)
        side = _Expected(self.path, file.digests, run, expected, asked, equality)
        found = verify(run, expected, actual, equality=equality, phase=phase, follow=side.follow)
        report, stale = found.report, side.describe_stale([each.candidate for each in found.report.near_ties])
        if stale and report.verdict is Verdict.AGREE:
            reasons = (*report.reasons, *stale)
            report, stale = msgspec.structs.replace(report, verdict=Verdict.INCONCLUSIVE, reasons=reasons), []
        notes = (*notes, *side.notes, *report.notes, *stale)
        return replace(found, report=msgspec.structs.replace(report, notes=notes))

    def _write(
        self, job: Job, run: Run, expected: Pipeline, asked: CandidateSet, phase: Phase
    ) -> tuple[GoldenFile, str]:
        """Write the file from the reference, and describe it."""
        name, num = _name(expected), len(asked.query)
        if num > MAX_CANDIDATES:
            raise UserError(
                f"would hold {num:,} candidates, expected at most {MAX_CANDIDATES:,}",
                where=str(self.path),
                fix="choose fewer queries or corruptions; kgverify record keeps any number of candidates",
            )
        make_folders(self.path.parent)
        with phase(f"writing the golden file: {name}", num) as progress:
            trace = prove_candidates(run, expected.engine, asked, progress)
        digests = digest_candidates(trace.columns, _choose_digests(trace, trace))
        file = GoldenFile.of_run(job, run, expected, _render(candidate_set(trace.columns), trace, digests))
        write_file(self.path, encode_report(file))
        if self.file is None:
            return file, f"{self.path} was missing, and is now written from {name}: {count_of(num, 'candidate')}"
        changed = (
            f"{np.isin(file.digests, self.file.digests, invert=True).sum():,} of {count_of(num, 'candidate')} changed"
        )
        return file, f"{self.path} is written again from {name}: {changed}"


@dataclass
class _Expected:
    """The expected side of a comparison with a golden file: the digests of the file, and the reference's steps.

    notes: what was compared
    stale: the candidates to which the reference gives other digests than the file
    """

    path: Path
    digests: Words
    run: Run
    pipeline: Pipeline
    asked: CandidateSet
    equality: Equality
    notes: tuple[str, ...] = ()
    stale: tuple[int, ...] = ()

    def follow(self, actual: Trace, phase: Phase) -> tuple[Trace, bool]:
        """Return the expected trace: the actual steps where the digests agree, and the reference's steps elsewhere.

        Also return whether all digests agree: then the run repeats the one in the file. Columns that the digests do not
        count, or that the actual engine does not know, are unknown if they were copied.
        """
        shell, source = _shell(self.run, self.pipeline), MemorySource(actual)
        found = digest_candidates(actual.columns, _choose_digests(actual, shell, self.equality))
        pairs = align_candidates(self.asked, candidate_set(actual.columns))
        # The reference also judges candidates whose columns contradict each other, such as sums that are not of their scores.
        is_equal = ~find_contradictory(actual.columns, actual.header, actual.fields)[pairs.actual]
        is_equal &= self.digests[pairs.expected] == found[pairs.actual]
        copied, own = pairs.expected[is_equal], pairs.actual[is_equal]
        rest = np.setdiff1d(np.arange(len(self.digests)), copied)
        trace, lost, further = source.load(source.read_rows(own), own), NOT_DIGESTED, "no engine ran twice"
        if len(rest):
            proved = self._prove(rest, phase)
            is_stale = self.digests[rest] != digest_candidates(proved.columns, _choose_digests(proved, actual))
            self.stale = tuple(rest[is_stale].tolist())
            columns = concatenate([trace.columns, proved.columns])
            columns = select_candidates(columns, np.argsort(np.concatenate([copied, rest])))
            trace = replace(trace, columns=columns, digests=compute_digests(columns))
            lost, further = frozenset(), f"{_name(self.pipeline)} proved {count_of(len(rest), 'other')}"
        if len(copied):
            lost |= shell.fields - actual.fields
        how = f": their scores were not compared, and {_name(self.pipeline)} ranks them by these scores"
        num = f"{len(copied):,} of {count_of(len(self.digests), 'candidate')} have the digests in {self.path}"
        self.notes = (f"{num}{how * bool(len(copied))}; {further}",)
        ranks = self.pipeline.rank_finite(self.run, trace.columns.candidates)
        expected = replace(shell, columns=trace.columns, digests=trace.digests, rankings=ranks)
        return replace(expected, fields=shell.fields - lost), not len(rest)

    def _prove(self, rows: NDArray[np.int64], phase: Phase) -> Trace:
        engine = self.pipeline.engine
        with phase(f"expected: {engine.info.name}", len(rows)) as progress:
            trace = prove_candidates(self.run, engine, self.asked.take(rows), progress)
        if (num := len(trace.columns.candidates.query)) != len(rows):
            raise UserError(
                f"returned {count_of(num, 'candidate')} for {len(rows):,}",
                where=f"engine {engine.info.name}",
                fix="return one candidate for each, in the order given",
            )
        return trace

    def describe_stale(self, tied: Sequence[int]) -> list[Coded]:
        """Return a sentence if the reference no longer takes the steps of the file, except where scores nearly tie."""
        num = len(np.setdiff1d(self.stale, tied))
        steps = f"{_name(self.pipeline)} itself gives {count_of(num, 'candidate')} other steps"
        text = use_words(f"{self.path} is stale: {steps} (--update writes the file again)")
        return [Code.STALE_GOLDEN.mark(text)] * bool(num)


def _name(pipeline: Pipeline) -> str:
    """Return the name of an engine, as the user gave it if it is a third party's."""
    return next(iter(pipeline.engines), pipeline.engine.info.name)


def _choose_digests(trace: Trace, other: Trace, equality: Equality = DEFAULT_EQUALITY) -> Words:
    """Return the digests of a trace's steps: without the names of variables if the engine numbers them its own way."""
    forgets = trace.header.engine.variables == "own"
    forgets = forgets and NAMES in resolve_modulo(equality.benign, other.header, trace.header)[0]
    return trace.digests.renaming if forgets else trace.digests.sequence


def _render(asked: CandidateSet, trace: Trace, digests: Words) -> list[str]:
    """Return a line for each query."""
    groups = np.split(np.arange(len(asked.query)), np.flatnonzero(np.diff(asked.query)) + 1)
    firsts, names = [int(rows[0]) for rows in groups if len(rows)], Names(trace)
    labels = [f"{asked.query[row]} {names.atom(tuple(asked.atom[row].tolist()))}" for row in firsts]
    texts = [digests[rows].astype(">u8").tobytes().hex(" ", 8) for rows in groups]
    return [f"{label}: {text}" for label, text in zip(labels, texts, strict=False)]


def _shell(run: Run, pipeline: Pipeline) -> Trace:
    """Return a trace of a pipeline without candidates."""
    return build_trace(run, pipeline.engine, empty_columns(), None)


def _withhold(shells: tuple[Trace, Trace], reasons: Sequence[Coded]) -> Verification:
    """Return an INCONCLUSIVE verification of no candidates."""
    comparison = Comparer(*shells).compare()
    coverage = Coverage(candidates=0, steps=0, resolvents=0, fields=())
    comparison = msgspec.structs.replace(comparison, coverage=coverage, reasons=tuple(reasons), notes=())
    headers = shells[0].header, shells[1].header
    return Verification(make_report(comparison, headers, metrics=Metrics()), *shells)
