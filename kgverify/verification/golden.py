"""Golden files: a digest for each candidate of a run, in a small text file that is committed beside an engine.

The reference writes the file, so that it does not hold the faults of an engine. An engine is compared by digests, and the
reference proves only the candidates that differ.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import align_candidates
from kgverify.comparison.comparable import MemorySource, check_preconditions, compare_dialects
from kgverify.comparison.compare import Comparer
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.modulo import NAMES, resolve_modulo
from kgverify.comparison.result import Coverage, Verdict
from kgverify.comparison.step_view import Names
from kgverify.engines.protocol import candidate_set
from kgverify.errors import UserError, count_of
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
    Columns,
    concatenate,
    empty_columns,
    select_candidates,
)
from kgverify.trace.model.consistency import find_contradictory
from kgverify.trace.model.digests import Words, compute_digests, digest_candidates
from kgverify.trace.model.header import SCHEMA_VERSION, PolicyInfo
from kgverify.trace.model.trace import Trace
from kgverify.verification.judgement import make_report
from kgverify.verification.verify import Verification, prove_candidates, verify

MAX_CANDIDATES: Final = 1 << 19
"""The most candidates of a golden file, which takes 17 bytes for each: a larger one does not belong into git."""
MAX_BYTES: Final = 32 << 20

NOT_DIGESTED: Final = frozenset(each.name for each in KNOWLEDGE_GRAPH.compared if not each.is_digested)
"""The columns that digests do not count: scores, their sums, and the clauses of resolvents."""

_FIX: Final = "restore it from git; or delete it, and run this again to have it written"


class GoldenFile(
    WrittenRun, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="format", tag="kgverify golden 1"
):
    """The content of a golden file.

    reference:      the engine that wrote the file
    schema_version: the version of the schema of traces, on which digests depend
    candidates:     a line for each query: its number and its triple, and the digests of its candidates, in hexadecimal
    """

    reference: str
    program_sha256: str
    policy_sha256: str
    schema_version: int
    candidates: tuple[str, ...]

    @classmethod
    def of_trace(cls, job: Job, trace: Trace, reference: str) -> Self:
        """Return the golden file of a trace of the reference."""
        header, columns = trace.header, trace.columns
        words = digest_candidates(columns, _choose_digests(trace, trace))
        labelled = zip(*_label(columns.candidates.query, columns.candidates.atom, trace), strict=True)
        lines = tuple(f"{label}: {words[rows].astype('>u8').tobytes().hex(' ', 8)}" for label, rows in labelled)
        return cls.of(
            job,
            reference=reference,
            program_sha256=header.program_sha256,
            policy_sha256=header.policy.sha256,
            schema_version=SCHEMA_VERSION,
            candidates=lines,
        )

    def split(self) -> list[tuple[str, Words]]:
        """Return the label and the digests of each line. ValueError for a line that holds something else."""
        parts = [line.rpartition(": ") for line in self.candidates]
        return [(label, np.frombuffer(bytes.fromhex(digests), ">u8").astype(np.uint64)) for label, _, digests in parts]


def read_golden(path: Path) -> GoldenFile:
    """Read a golden file. UserError for any other file."""
    file = read_json(path, GoldenFile, purpose="a golden file", fix=_FIX, max_bytes=MAX_BYTES)
    try:
        file.split()
    except ValueError as error:
        raise UserError(f"holds a line that is not made of digests: {error}", where=str(path), fix=_FIX) from None
    return file


class Golden:
    """A golden file and what is done with it: it is written, or an engine is compared with it.

    file: its content; None if it does not exist
    """

    def __init__(self, path: Path, *, update: bool = False) -> None:
        """Read the file, if it exists. UserError if it is not a golden file.

        update: whether to write the file again
        """
        self.path, self._update = path, update
        self.file = read_golden(path) if path.exists() else None

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

        A file that is missing, or to be written again, is written from the reference. The verdict is INCONCLUSIVE if the
        file was missing, if it is of another run, and if the reference contradicts it.
        """
        notes: list[str] = []
        was_missing = self.file is None
        if was_missing or self._update:
            notes.append(self._write(job, run, expected, phase))
        asked = expected.draw_for(run)
        traces = self._header_of(run, expected), build_trace(run, actual.engine, empty_columns(), None)
        reasons = notes if was_missing and not self._update else self._list_differences(expected, traces, asked)
        if reasons:
            return _withhold(traces, reasons)
        follower = _Follower(self, run, expected, asked, equality)
        found = verify(run, expected, actual, equality=equality, phase=phase, follow=follower.follow)
        report = found.report
        stale = follower.describe_stale(report.near_ties)
        is_open = stale and report.verdict is Verdict.AGREE
        report = msgspec.structs.replace(
            report,
            verdict=Verdict.INCONCLUSIVE if is_open else report.verdict,
            reasons=(*report.reasons, *(stale if is_open else ())),
            notes=(*notes, *follower.notes, *report.notes, *(() if is_open else stale)),
        )
        return replace(found, report=report)

    @property
    def digests(self) -> Words:
        """The digests of all candidates."""
        lines = [] if self.file is None else self.file.split()
        return np.concatenate([np.zeros(0, np.uint64), *(digests for _, digests in lines)])

    def _write(self, job: Job, run: Run, expected: Pipeline, phase: Phase) -> str:
        """Write the file from the reference, and describe it."""
        candidates = expected.draw_for(run)
        num = len(candidates.query)
        if num > MAX_CANDIDATES:
            raise UserError(
                f"would hold {num:,} candidates, expected at most {MAX_CANDIDATES:,}",
                where=str(self.path),
                fix="choose fewer queries or corruptions; kgverify record keeps any number of candidates",
            )
        make_folders(self.path.parent)
        name = _name(expected)
        with phase(f"writing the golden file: {name}", num) as progress:
            trace = prove_candidates(run, expected.engine, candidates, progress)
        written = replace(job, source=Source(run.graph), proofs=Proofs(run.limits, job.proofs.policy))
        before, self.file = self.file, GoldenFile.of_trace(written, trace, name)
        write_file(self.path, encode_report(self.file))
        if before is None:
            return (
                f"{self.path} was missing, and is now written from {name}: {count_of(num, 'candidate')}; commit it, and"
                " run this again"
            )
        old, new = ([(label, digest) for label, words in file.split() for digest in words.tolist()]
                    for file in (before, self.file))  # fmt: skip
        num_changed = sum(left != right for left, right in zip_longest(old, new))
        return f"{self.path} is written again from {name}: {num_changed:,} of {count_of(num, 'candidate')} changed"

    def _header_of(self, run: Run, expected: Pipeline) -> Trace:
        """Return a trace without candidates whose header says what the file holds."""
        shell, file = build_trace(run, expected.engine, empty_columns(), None), self.file
        assert file is not None
        header, queries = shell.header, file.queries
        num = header.run.num_queries if queries.number is None else queries.number
        header = msgspec.structs.replace(
            header,
            limits=file.limits,
            policy=PolicyInfo(header.policy.name, file.policy_sha256, header.policy.score_errors),
            program_sha256=file.program_sha256,
            run=msgspec.structs.replace(
                header.run,
                split=queries.split,
                num_queries=min(num, len(run.triples)),
                num_corruptions=queries.num_corruptions,
                seed=queries.seed,
            ),
        )
        return replace(shell, header=header, source=str(self.path))

    def _list_differences(self, expected: Pipeline, traces: tuple[Trace, Trace], asked: CandidateSet) -> list[str]:
        """Return the differences between the file's run and this one, which leave nothing to compare."""
        file, path, name = self.file, self.path, _name(expected)
        assert file is not None
        reasons = [*check_preconditions(*traces), *compare_dialects(*traces)]
        if file.schema_version != SCHEMA_VERSION:
            reasons.append(
                f"the schemas of traces differ: {path} has version {file.schema_version}, not {SCHEMA_VERSION}"
            )
        if file.reference != name:
            reasons.append(f"the references differ: {file.reference} wrote {path}, and {name} would decide")
        if not reasons:
            labelled = zip(*_label(asked.query, asked.atom, traces[1]), strict=True)
            both = [[(label, len(words)) for label, words in each] for each in (file.split(), labelled)]
            for number, pair in enumerate(zip_longest(*both)):
                if pair[0] != pair[1]:
                    shown = [
                        "no query" if each is None else f"{each[0]}, {count_of(each[1], 'candidate')}" for each in pair
                    ]
                    reasons.append(f"query {number} of the run differs: {shown[0]} in {path}, {shown[1]} here")
                    break
        return [f"{path} is of another run: {each}" for each in reasons]


class _Follower:
    """The expected side of a comparison with a golden file.

    notes: what was compared
    """

    def __init__(self, golden: Golden, run: Run, expected: Pipeline, asked: CandidateSet, equality: Equality) -> None:
        self._golden, self._run, self._expected, self._asked, self._equality = golden, run, expected, asked, equality
        self.notes: tuple[str, ...] = ()
        self._stale: NDArray[np.int64] = np.zeros(0, np.int64)

    def follow(self, actual: Trace, phase: Phase) -> tuple[Trace, bool]:
        """Return the expected trace: the actual steps where the digests agree, and the reference's steps elsewhere.

        Also return whether all digests agree: then the run repeats the one in the file. Columns that the digests do not
        count, or that the actual engine does not know, are unknown if they were copied.
        """
        run, asked, path = self._run, self._asked, self._golden.path
        wanted = self._golden.digests
        shell = build_trace(run, self._expected.engine, empty_columns(), None)
        found = digest_candidates(actual.columns, _choose_digests(actual, shell, self._equality))
        pairs = align_candidates(asked, candidate_set(actual.columns))
        is_equal = wanted[pairs.expected] == found[pairs.actual]
        # The reference also judges candidates whose columns contradict each other, such as sums that are not of their scores.
        is_equal &= ~find_contradictory(actual.columns, actual.header, actual.fields)[pairs.actual]
        copied = pairs.expected[is_equal]
        rest = np.setdiff1d(np.arange(len(wanted)), copied)
        source, rows = MemorySource(actual), pairs.actual[is_equal]
        copies = source.load(source.read_rows(rows), rows)
        parts = [copies.columns]
        if len(rest):
            parts.append(self._prove(rest, phase))
            proved = replace(shell, columns=parts[1], digests=compute_digests(parts[1]))
            self._stale = rest[wanted[rest] != digest_candidates(parts[1], _choose_digests(proved, actual))]
        name, num = _name(self._expected), count_of(len(wanted), "candidate")
        how = f"their scores were not compared, and {name} ranks them by these scores"
        further = f"{name} proved the {len(rest):,} others" if len(rest) else "no engine ran twice"
        self.notes = (f"{len(copied):,} of {num} have the digests in {path}: {how}; {further}",)
        columns = select_candidates(concatenate(parts), np.argsort(np.concatenate([copied, rest])))
        lost = shell.fields - actual.fields if len(copied) else frozenset()
        info = shell.header.engine
        info = msgspec.structs.replace(info, unknown=tuple(sorted({*info.unknown, *lost})))
        trace = replace(
            shell,
            header=msgspec.structs.replace(shell.header, engine=info),
            columns=columns,
            digests=compute_digests(columns) if len(rest) else copies.digests,
            rankings=self._expected.rank_finite(run, columns.candidates),
            fields=shell.fields - lost - (frozenset() if len(rest) else NOT_DIGESTED),
        )
        return trace, not len(rest)

    def _prove(self, rows: NDArray[np.int64], phase: Phase) -> Columns:
        engine = self._expected.engine
        with phase(f"expected: {engine.info.name}", len(rows)) as progress:
            columns = prove_candidates(self._run, engine, self._asked.take(rows), progress).columns
        if len(columns.candidates.query) != len(rows):
            raise UserError(
                f"returned {count_of(len(columns.candidates.query), 'candidate')} for {len(rows):,}",
                where=f"engine {engine.info.name}",
                fix="return one candidate for each, in the order given",
            )
        return columns

    def describe_stale(self, near_ties: Sequence[object]) -> tuple[str, ...]:
        """Return a sentence if the reference no longer takes the steps of the file, except where scores nearly tie."""
        tied = [getattr(each, "candidate", -1) for each in near_ties]
        num = len(np.setdiff1d(self._stale, np.array(tied, np.int64)))
        if not num:
            return ()
        return (
            f"{self._golden.path} is stale: {_name(self._expected)} itself gives {count_of(num, 'candidate')} other steps"
            " (--update writes the file again)",
        )


def _name(expected: Pipeline) -> str:
    """Return the name of a reference, as the user gave it if it is a third party's."""
    return next(iter(expected.engines), expected.engine.info.name)


def _choose_digests(trace: Trace, other: Trace, equality: Equality = DEFAULT_EQUALITY) -> Words:
    """Return the digests of a trace's steps: without the names of variables if the engine numbers them its own way."""
    forgets = (
        trace.header.engine.variables == "own"
        and NAMES in resolve_modulo(equality.benign, other.header, trace.header)[0]
    )
    return trace.digests.renaming if forgets else trace.digests.sequence


def _label(
    query: NDArray[np.int32], atom: NDArray[np.int32], trace: Trace
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Return a label for the candidates of each query, and their rows."""
    groups = np.split(np.arange(len(query)), np.flatnonzero(np.diff(query)) + 1) if len(query) else []
    names = Names(trace)
    return [f"{query[rows[0]]} {names.atom(tuple(atom[rows[0]].tolist()))}" for rows in groups], groups


def _withhold(traces: tuple[Trace, Trace], reasons: Sequence[str]) -> Verification:
    """Return an INCONCLUSIVE verification of no candidates."""
    comparison = Comparer(*traces).compare()
    coverage = Coverage(candidates=0, steps=0, resolvents=0, fields=())
    comparison = msgspec.structs.replace(comparison, coverage=coverage, reasons=tuple(reasons), notes=())
    headers = traces[0].header, traces[1].header
    return Verification(make_report(comparison, headers, metrics=Metrics()), *traces)
