"""Comparing two traces that stay on disk, in bounded memory; what is found is what `compare_traces` finds."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import Alignment
from kgverify.comparison.classify import Finding
from kgverify.comparison.compare import Comparer, lacking_coverage
from kgverify.comparison.fields import column_names
from kgverify.comparison.numbering import Numbering
from kgverify.comparison.result import Comparison, Coverage, Level, Verdict, highest_level
from kgverify.comparison.sharing import counts_alike
from kgverify.comparison.streaming.align import Side, align_sides, rows_to_judge
from kgverify.comparison.streaming.blocks import (
    Pairs,
    Range,
    agrees_at_once,
    convert_columns,
    has_same_digests,
    load_block,
    read_rows,
    scores_agree,
    shell_of,
    split_pairs,
    sums_agree,
    without_steps,
)
from kgverify.comparison.streaming.columns import differing_ranges, has_same_bytes
from kgverify.comparison.streaming.findings import Gathered, find_goals
from kgverify.comparison.streaming.goals import Rebuilding, Rebuilds, find_rebuilds
from kgverify.trace.model.columns import Columns
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import COUNTS, DataFile
from kgverify.trace.read.trace_file import TraceFile

VERIFIED_STEPS: Final = 1_000_000
"""Up to here every value and digest is verified, which takes longer than to compare."""

KEPT: Final = 10_000
"""Divergences listed, and near-ties; further ones are counted."""

SKIPPED: Final = (
    "verified while comparing: the structure and the checksum of every dataset; values and digests only where the traces"
    " differ: `kgverify trace check` verifies them all"
)

_IDENTITY: Final = ("candidates/query", "candidates/side", "candidates/atom")

Progress = Callable[[int], None]
"""Called with the number of bytes compared since the last call."""


class StreamedComparison(NamedTuple):
    """A comparison with the class of each divergence listed, how many there are in all, and what goals were rebuilt."""

    comparison: Comparison
    findings: tuple[Finding, ...]
    num_divergences: int
    rebuilds: Rebuilds


def compare_streams(
    expected: TraceFile | Path | str,
    actual: TraceFile | Path | str,
    *,
    lockstep: bool = False,
    verifies_content: bool | None = None,
    kept: int = KEPT,
    rebuilding: Rebuilding | None = None,
    progress: Progress = lambda num_bytes: None,
) -> StreamedComparison:
    """Compare two recorded traces of whatever levels: files, or folders of shards.

    verifies_content: whether to verify every value and digest first, as `read_trace` does; None: of traces with at most
                      `VERIFIED_STEPS` steps. The checksum of every dataset is verified in any case, and the digests of a
                      trace with goals where the other has none and only they can be compared.
    kept:             divergences listed at most; the verdict, the level and the coverage are those of all
    rebuilding:       how compact traces that differ get their goals; None to compare them by their digests

    UserError for a trace that is damaged or refused. A missing or doubled shard makes the verdict INCONCLUSIVE.
    """
    traces = [
        each if isinstance(each, TraceFile) else TraceFile(each, tolerates_shards=True) for each in (expected, actual)
    ]
    return _StreamComparer(traces[0], traces[1], lockstep, verifies_content, kept, rebuilding, progress).compare()


class _StreamComparer:
    def __init__(
        self,
        expected: TraceFile,
        actual: TraceFile,
        lockstep: bool,
        verifies_content: bool | None,
        kept: int,
        rebuilding: Rebuilding | None,
        progress: Progress,
    ) -> None:
        self._expected, self._actual = self._traces = expected, actual
        self._lockstep = lockstep
        self._progress = progress
        self._has_goals = expected.has_goals and actual.has_goals
        is_small = [trace.num_steps <= VERIFIED_STEPS for trace in self._traces]
        self._is_verified = [
            (each if verifies_content is None else verifies_content) or (trace.has_goals and not self._has_goals)
            for trace, each in zip(self._traces, is_small, strict=True)
        ]
        for trace, is_wanted in zip(self._traces, self._is_verified, strict=True):
            if is_wanted:
                trace.verify_content()
            else:
                trace.verify("header", "symbols/", "program/", "stages/", "rankings/", "shard/")
        actual.share_symbols(expected)
        self._rebuilds = find_rebuilds(expected, actual, rebuilding)
        shells = [self._rebuilds.apply(side, shell_of(trace)) for side, trace in enumerate(self._traces)]
        self._numbering = Numbering(*shells)
        self._shell = Comparer(*shells, lockstep=lockstep, numbering=self._numbering)
        self._ignored = frozenset(self._shell.not_compared)
        self._lacking = column_names(shells[0].columns) - (expected.fields & actual.fields)
        # Stored digests tell of equal steps where they are of the same numbers and count the same columns.
        self._has_like_digests = self._numbering.is_same and counts_alike(*shells)
        self._gathered = Gathered(kept)
        self._num_steps = self._num_resolvents = 0
        self._bit_ranges: list[Range] = []
        self._has_other_bits = False

    def compare(self) -> StreamedComparison:
        """Identities first, then bytes, then steps."""
        pairs, ranges, alignment = self._find_suspects()
        if alignment is not None and not self._expected.faults and not self._actual.faults:
            self._judge_unpaired(alignment)
        for begin, end in split_pairs(pairs, ranges, self._traces):
            self._compare_block(*pairs.rows(begin, end))
            for trace in self._traces:
                trace.release()
        coverage = self._coverage(pairs.num)
        reasons = [
            *(f"a shard is not there: {fault}" for trace in self._traces for fault in trace.faults),
            *self._shell.reasons,
            *self._shell.undecided(self._gathered.num_by_digest),
            *lacking_coverage(coverage),
        ]
        gathered = self._gathered
        wanted = gathered.wanted_goals
        known = find_goals(*self._traces, self._numbering, self._rebuilds.expected, wanted) if wanted else frozenset()
        divergences, findings = gathered.finish(known, 2 * self._shell.score_tolerance)
        level = highest_level(list(gathered.levels))
        if level is None and (self._has_other_bits or self._bits_differ(ranges)):
            level = Level.BITS
        verdict = Verdict.INCONCLUSIVE if reasons else Verdict.DIVERGE if gathered.num else Verdict.AGREE
        notes = () if all(self._is_verified) else (SKIPPED,)
        for num, kept, what in (
            (gathered.num, len(divergences), "divergences"),
            (gathered.num_ties, len(gathered.near_ties), "near-ties"),
        ):
            if kept < num:
                notes = (*notes, f"{num:,} {what} were found, and the first {kept:,} are listed")
        comparison = Comparison(
            verdict=verdict,
            coverage=coverage,
            divergences=divergences,
            near_ties=tuple(gathered.near_ties),
            level=level,
            reasons=tuple(reasons),
            equality=self._shell.equality(),
            notes=notes,
        )
        return StreamedComparison(comparison, findings, gathered.num, self._rebuilds)

    def _find_suspects(self) -> tuple[Pairs, list[Range], Alignment | None]:
        """The pairs of candidates, those that may differ, and the alignment where it is not one to one in order."""
        expected, actual = self._traces
        num = expected.num_candidates
        done: set[str] = set()
        stored = [frozenset(trace.files[0].stored) for trace in self._traces]
        # Where a trace has no goals, the digests of steps must tell what their columns do not.
        is_told = self._has_goals or (self._has_like_digests and "digests/sequence" in stored[0] & stored[1])
        if self._numbering.is_same and is_told and actual.num_candidates == num:
            same = [not self._differing(name, done) for name in _IDENTITY]
            pairs = Pairs(None, None, num)
            if all(same):
                counts = [name for name in COUNTS if name in stored[0] & stored[1]]
                is_even = all(
                    expected.length(name) == actual.length(name) and not self._differing(name, done) for name in counts
                ) and all(expected.length(COUNTS[name]) == actual.length(COUNTS[name]) for name in counts)
                if is_even:
                    return pairs, self._compare_flat(done), None
                self._verify_rest(done)
                return pairs, [(0, num)], None
        self._verify_rest(done)
        alignment = align_sides(*self._sides())
        num = len(alignment.expected)
        return Pairs(alignment.expected, alignment.actual, num), [(0, num)], alignment

    def _compare_flat(self, done: set[str]) -> list[Range]:
        """Candidates that may differ where both traces have the same shape throughout, from the columns as they lie."""
        expected, actual = self._traces
        lengths = [[[f.length(n) for n in COUNTS.values()] for f in trace.files] for trace in self._traces]
        is_divided_alike = lengths[0] == lengths[1]
        # Equal counts add up alike where the files are divided alike.
        for file in expected.files if is_divided_alike else (*expected.files, *actual.files):
            _add_up(file)
        suspects: list[Range] = []
        names = {*expected.files[0].stored, *actual.files[0].stored}
        levels = ("candidates/", "steps/", "resolvents/", "digests/")
        for name in sorted(name for name in names if name.startswith(levels) and name not in done):
            held = [name in trace.files[0].stored for trace in self._traces]
            if not all(held):
                for trace, is_held, is_verified in zip(self._traces, held, self._is_verified, strict=True):
                    if is_held and not is_verified:
                        trace.verify(name)
                continue
            found = self._differing(name, done)
            if self._has_like_digests or not name.startswith("digests/"):
                suspects += [self._candidates_of(name, each) for each in found]
        ranges = _join(suspects)
        self._count(expected.num_steps, expected.num_resolvents)
        for begin, end in ranges:
            columns = expected.read_candidates(begin, end)
            self._count(-len(columns.steps.depth), -len(columns.resolvents.kind))
        return ranges

    def _count(self, num_steps: int, num_resolvents: int) -> None:
        """Count what was compared; resolvents where both traces tell them."""
        self._num_steps += num_steps
        self._num_resolvents += 0 if "steps.num_resolvents" in self._ignored else num_resolvents

    def _differing(self, name: str, done: set[str]) -> list[Range]:
        """The rows of a column that may differ; its checksums verified unless all was verified before."""
        done.add(name)
        tolerance = self._shell.score_tolerance

        def agree_as_scores(x: NDArray[np.floating], y: NDArray[np.floating], begin: int) -> bool:
            is_equal, has_other_bits = scores_agree(x, y, tolerance)
            if has_other_bits:
                self._bit_ranges.append((begin, begin + len(x)))
            return is_equal

        def agree_as_sums(x: NDArray[np.float64], y: NDArray[np.float64], begin: int) -> bool:
            rows = np.arange(begin, begin + len(x))
            return sums_agree(x, y, self._expected.gather_column("candidates/num_steps", rows), tolerance)

        rules = {"resolvents/score": agree_as_scores, "candidates/log_probability": agree_as_sums}
        return differing_ranges(
            self._expected,
            self._actual,
            name,
            agrees=rules.get(name),
            verifies=not all(self._is_verified),
            progress=self._progress,
        )

    def _candidates_of(self, name: str, rows: Range) -> Range:
        if name.startswith("digests/"):
            name = "steps/num_atoms"
        first, last = self._expected.candidate_of(name, rows[0]), self._expected.candidate_of(name, rows[1] - 1)
        return first, last + 1

    def _verify_rest(self, done: set[str]) -> None:
        for trace, is_verified in zip(self._traces, self._is_verified, strict=True):
            if is_verified:
                continue
            for file in trace.files:
                for name in file.stored:
                    if name not in done and name.startswith(("candidates/", "steps/", "resolvents/", "digests/")):
                        file.verify(name)
                file.release()
            for file in trace.files:
                _add_up(file)

    def _compare_block(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Some pairs of candidates: at once if they are equal, else step by step."""
        expected, actual = self._traces
        columns = read_rows(expected, rows), read_rows(actual, others)
        self._progress(sum(column.nbytes for side in columns for level in side for column in level))
        blocks = None if self._has_goals else self._load(columns, rows, others)
        is_equal, has_other_bits = (
            self._agrees(columns, rows, others) if blocks is None else self._agrees_by_digest(columns, blocks)
        )
        if is_equal:
            self._count(len(columns[0].steps.depth), len(columns[0].resolvents.kind))
            self._has_other_bits |= has_other_bits
            return
        blocks = blocks or self._load(columns, rows, others)
        full = [self._rebuilds.apply(side, block) for side, block in enumerate(blocks)]
        comparer = Comparer(*full, lockstep=self._lockstep, numbering=self._numbering)
        comparison = comparer.compare()
        self._num_steps += comparison.coverage.steps
        self._num_resolvents += comparison.coverage.resolvents
        self._has_other_bits |= comparison.level is Level.BITS
        self._gathered.add(comparer, comparison, rows)

    def _load(
        self, columns: tuple[Columns, Columns], rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> tuple[Trace, Trace]:
        return load_block(self._expected, columns[0], rows), load_block(self._actual, columns[1], others)

    def _agrees(
        self, columns: tuple[Columns, Columns], rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> tuple[bool, bool]:
        """Whether two blocks with goals agree in every column; and whether scores then differ in bits all the same."""
        if not self._numbering.is_same and not self._is_verified[1]:
            # Ids are looked up in the other trace's.
            load_block(self._actual, columns[1], others)
        left, right = (convert_columns(self._traces[side], columns[side], self._numbering, side) for side in (0, 1))
        found = agrees_at_once(left, right, self._ignored, self._shell.score_tolerance)
        if found[0] and self._has_like_digests and not has_same_digests(*self._traces, rows, others):
            return False, False
        return found

    def _agrees_by_digest(self, columns: tuple[Columns, Columns], blocks: tuple[Trace, Trace]) -> tuple[bool, bool]:
        """As `_agrees` of two blocks one of which has no goals: in the columns that both have, and in the digests."""
        if not self._has_like_digests or not has_same_bytes(*(block.digests.sequence for block in blocks)):
            return False, False
        return agrees_at_once(*columns, self._lacking, self._shell.score_tolerance)

    def _sides(self) -> tuple[Side, Side]:
        return Side(self._expected, self._numbering.converter(0)), Side(self._actual, self._numbering.converter(1))

    def _judge_unpaired(self, alignment: Alignment) -> None:
        """Candidates that only one trace has, as the comparer in memory judges them, among the pairs that it looks at."""
        if not len(alignment.missing) and not len(alignment.extra):
            return
        # Each of them may become a divergence, and so many are not kept.
        self._gathered.num += sum(
            max(0, len(rows) - self._gathered.kept) for rows in (alignment.missing, alignment.extra)
        )
        kept = alignment._replace(
            missing=alignment.missing[: self._gathered.kept], extra=alignment.extra[: self._gathered.kept]
        )
        rows, others = rows_to_judge(*self._sides(), kept)
        blocks = without_steps(self._expected, rows), without_steps(self._actual, others)
        comparer = Comparer(*blocks, lockstep=self._lockstep, numbering=self._numbering)
        self._gathered.add_unpaired(comparer, rows, others)

    def _bits_differ(self, ranges: list[Range]) -> bool:
        """Whether scores differ in bits in candidates that agree as a whole; in the others the comparer has looked."""
        for first, last in _join(self._bit_ranges):
            begin, end = self._candidates_of("resolvents/score", (first, last))
            for low, high in _subtract((begin, end), ranges):
                scores = [trace.read_candidates(low, high).resolvents.score for trace in self._traces]
                if scores_agree(scores[0], scores[1], self._shell.score_tolerance)[1]:
                    return True
        return False

    def _coverage(self, num_pairs: int) -> Coverage:
        base = self._shell.compare().coverage
        return Coverage(
            candidates=num_pairs,
            steps=self._num_steps,
            resolvents=self._num_resolvents,
            fields=base.fields,
            not_compared=base.not_compared,
            candidates_expected=self._expected.num_candidates,
            candidates_actual=self._actual.num_candidates,
        )


def _add_up(file: DataFile) -> None:
    """UserError unless the counts of a file add up."""
    for name in COUNTS:
        if name in file.stored:
            file.offsets(name).build()
    file.release()


def _join(ranges: list[Range]) -> list[Range]:
    """Ranges in order, those that touch made one."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _subtract(whole: Range, ranges: list[Range]) -> list[Range]:
    """What of a range lies in none of the others, which are in order."""
    left, at = [], whole[0]
    for begin, end in ranges:
        if end <= at or begin >= whole[1]:
            continue
        if begin > at:
            left.append((at, begin))
        at = max(at, end)
    if at < whole[1]:
        left.append((at, whole[1]))
    return left
