"""The comparison of two traces, each in memory or on disk, block by block in bounded memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.align import Alignment, SourceCandidates, align_candidates, judge_unpaired, settle_undecided
from kgverify.comparison.block import BlockComparer
from kgverify.comparison.columns import ColumnComparer
from kgverify.comparison.comparable import (
    ClauseIds,
    ComparablePair,
    Convert,
    MemorySource,
    Numbering,
    TraceLike,
    compare_dialects,
    counts_alike,
    describe_unknown_steps,
    drop_unknown_steps,
    find_goals,
    note_unknown,
    open_source,
    wants_content,
)
from kgverify.comparison.equal_columns import Rounded, count_rounded, has_equal_columns, has_same_bytes
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.modulo import (
    DUPLICATES,
    NAMES,
    ORDER,
    BenignCount,
    order_kinds,
    rename_candidates,
    resolve_modulo,
)
from kgverify.comparison.result import (
    DIGEST,
    Comparison,
    Coverage,
    Divergence,
    Level,
    NearTie,
    Rounding,
    Verdict,
    highest_level,
    move,
)
from kgverify.comparison.step_view import StepView
from kgverify.errors import UserError, count_of
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Candidates, Columns, Range
from kgverify.trace.model.paths import has_paths
from kgverify.trace.model.schema import EqualityRule, has_goals
from kgverify.trace.model.score_tolerance import ScoreTolerance
from kgverify.trace.model.trace import Trace

if TYPE_CHECKING:
    from kgverify.comparison.classify import Finding
    from kgverify.comparison.inference.infer import ProgramInference
    from kgverify.comparison.inference.step_difference import StepDifference
    from kgverify.comparison.listed import Listed
    from kgverify.comparison.shards import Shards

KEPT: Final = 10_000
"""The most divergences, and the most near-ties, that a comparison of recorded traces lists; further ones are only counted."""

SKIPPED: Final = (
    "verified while comparing: the structure and the checksum of every dataset; values and digests only where the traces"
    " differ: `kgverify trace check` verifies them all"
)

Progress = Callable[[int], None]
"""A function that receives the number of bytes compared since the last call."""

_Located = TypeVar("_Located", Divergence, NearTie)


class Options(NamedTuple):
    """The options of a comparison.

    lockstep:         whether each candidate of both traces is one position from which one step was taken: then every step
                      that differs is a divergence; otherwise each candidate has its first divergence
    verifies_content: whether to verify every value and digest of a file first, as `read_trace` does; None: for traces with
                      at most `VERIFIED_STEPS` steps. The checksum of every dataset is always verified, and so are the
                      digests of a trace with goals if the other has no goals and only digests can be compared.
    kept:             the number of divergences to list; the verdict, the level and the coverage always include all
    explains:         whether to name the stages that both traces recorded, and to classify the listed divergences
    infers:           whether to infer the stage of a step that differs, if its clauses are unknown
    equality:         what counts as equal
    tolerance:        the tolerance of scores, if it was measured; None: from the equality and the headers of the traces
    progress:         a function that receives the number of bytes compared since the last call
    block_steps:      the steps of a block, which has at least one candidate; None for a size that suits the traces
    piece_bytes:      the bytes of a piece of a column on disk; like `block_steps`, it does not affect the result
    """

    lockstep: bool = False
    verifies_content: bool | None = None
    kept: int | None = None
    explains: bool = False
    infers: bool = True
    equality: Equality = DEFAULT_EQUALITY
    tolerance: ScoreTolerance | None = None
    progress: Progress = lambda num_bytes: None
    block_steps: int | None = None
    piece_bytes: int | None = None


_DEFAULT: Final = Options()


def compare(expected: TraceLike, actual: TraceLike, **options: Any) -> Comparison:
    """Compare two traces; the options are those of `Options`."""
    return Comparer(expected, actual, Options(**options)).compare()


class Comparer:
    """The comparer of two traces of the same run, at any levels: in memory, in files, or in folders of shards.

    UserError for a trace that is damaged or refused. A missing or doubled shard makes the verdict INCONCLUSIVE.

    recorded:   both traces as they were recorded
    sources:    both traces as they are compared: without steps if one of them does not show its steps
    program:    infers the clauses of resolvents if a trace does not show them

    After `compare`:

    findings:        the class of each listed divergence, if wanted
    benign:          the benign differences
    draws:           the evidence that candidates were drawn differently, by query and side
    views, guesses:  both versions of each step that differs, by (candidate, step), if both traces are in memory, and
                     the stages that may explain the step, the likeliest first
    comparison:      the result that `compare` returned
    num_found:       the number of all divergences, listed or not
    lists_all:       whether all divergences and near-ties are listed
    is_in_order:     whether both traces have the same candidates in the same order, on disk
    """

    def __init__(self, expected: TraceLike, actual: TraceLike, options: Options = _DEFAULT) -> None:
        self._options, self.lockstep = options, options.lockstep
        self.recorded = open_source(expected), open_source(actual)
        self.sources = drop_unknown_steps(settle_undecided(self.recorded))
        self._steps_notes = describe_unknown_steps(self.sources)
        self.modulo, self._modulo_notes = resolve_modulo(
            options.equality.benign, *(source.header for source in self.sources)
        )
        has_order = {ORDER, DUPLICATES} & self.modulo and any("paths.child" in each.fields for each in self.sources)
        if has_order:
            raise UserError(
                "the order of resolvents decides which children a search keeps, and cannot be ignored",
                where="modulo",
                fix="leave out order and duplicates",
            )
        self.draws: dict[tuple[int, str], str] = {}
        self._has_goals = all(has_goals(source.header.level) for source in self.sources)
        self._files = [source for source in self.sources if not isinstance(source, MemorySource)]
        self._block_steps = options.block_steps or min(source.block_steps for source in self.sources)
        for source, is_wanted in zip(self.sources, wants_content(self.sources, options.verifies_content), strict=True):
            if not isinstance(source, MemorySource):
                source.verify(content=is_wanted)
        if len(self._files) == 2:
            self._files[1].trace.share_symbols(self._files[0].trace)
        self._shells = tuple(source.shell() for source in self.sources)
        shells = self._shells
        self._numbering = Numbering(shells[0], shells[1])
        self.has_same_numbering = self._numbering.is_same
        self._pair = pair = self._compared(shells[0], shells[1])
        self.expected, self.actual = pair.expected, pair.actual
        self.names, self.score_tolerance, self.not_compared = pair.names, pair.score_tolerance, pair.not_compared
        self.has_origins, self.has_scores = pair.has_origins, pair.has_scores
        self._ignored = frozenset(self.not_compared)
        self._lacking = pair.schema.compared_names - (self.sources[0].fields & self.sources[1].fields)
        # Equal stored digests mean equal steps if both sides use the same ids and count the same columns.
        self.has_like_digests = self._numbering.is_same and counts_alike(shells[0], shells[1])

    @cached_property
    def program(self) -> "ProgramInference":
        """The inference of clauses from the program that the traces hold."""
        from kgverify.comparison.inference.infer import ProgramInference, find_program

        return ProgramInference(find_program([self._pair.full[i] for i in self._numbering.kept_sides]))

    def read_candidates(self, side: int) -> Candidates:
        """Return all candidates of a side (0: expected, 1: actual) in the common ids, without their steps."""
        candidates = self.sources[side].shell(has_candidates=True).columns.candidates
        convert = self._numbering.converter(side)
        return candidates if convert is None else candidates._replace(atom=convert(candidates.atom))

    @property
    def programs(self) -> tuple[ClauseIds, ClauseIds]:
        """The facts and rules of both traces, in common ids."""
        return self._numbering.clauses_of(0, self._shells[0]), self._numbering.clauses_of(1, self._shells[1])

    def compare(self) -> Comparison:
        """Return the verdict with everything that supports it. Identities are compared first, then bytes, then steps."""
        self._found = found = _Found(self._options)
        self._num_steps = self._num_resolvents = 0
        self._has_counted_all = False
        self._rounded = Rounded()
        self.findings: tuple[Finding, ...] = ()
        self.draws = {}
        self.views: dict[tuple[int, int], tuple[StepView, StepView]] = {}
        self.guesses: dict[tuple[int, int], Sequence[StepDifference]] = {}
        self.benign = BenignCount()
        self._alignment: Alignment | None = None
        self._shards = self._find_shards()
        faults = self._shards.faults if self._shards else [fault for each in self.sources for fault in each.faults]
        num_pairs, blocks = self._find_suspects()
        self.is_in_order = self._alignment is None
        if self._alignment is not None:
            self._judge_unpaired(self._alignment, has_faults=bool(faults))
        for each in self._shards.find() if self._shards else ():
            self._found.add_unpaired(each)
        for rows, others in blocks:
            self._compare_block(rows, others)
            for source in self.sources:
                source.trace.release()
        listed = self._explain(found.explained) if self._options.explains else found.listed()
        if self._shards:
            listed, self.findings = self._shards.name_ranks(listed, self.findings)
        self.num_found = found.num
        self.lists_all = found.num == len(listed) and found.num_ties == len(found.near_ties)
        coverage = Coverage(
            candidates=num_pairs,
            steps=self._num_steps,
            resolvents=self._num_resolvents,
            fields=self._pair.compared_fields,
            not_compared=self.not_compared,
            candidates_expected=self.sources[0].num_candidates,
            candidates_actual=self.sources[1].num_candidates,
        )
        reasons = self._list_reasons(coverage, faults)
        self.comparison = Comparison(
            verdict=Verdict.INCONCLUSIVE if reasons else Verdict.DIVERGE if found.num else Verdict.AGREE,
            coverage=coverage,
            divergences=tuple(listed),
            near_ties=tuple(found.near_ties),
            level=highest_level(found.levels) or (Level.BITS if self._rounded.num_differing else None),
            reasons=tuple(reasons),
            equality=self._pair.equality(),
            notes=(*self._list_notes(len(listed)), *(self._shards.describe(listed) if self._shards else ())),
            modulo=order_kinds(self.modulo),
            benign=self.benign.listed(),
            rounding=self._describe_rounding() if self.has_scores else None,
        )
        return self.comparison

    @property
    def _dialects(self) -> list[Coded]:
        return compare_dialects(*self._shells)

    def _list_reasons(self, coverage: Coverage, faults: Sequence[str]) -> list[Coded]:
        """Return why the verdict is INCONCLUSIVE; nothing if the comparison is conclusive."""
        reasons = [
            *(() if self._options.equality.allow_dialects else self._dialects),
            *(Code.INCOMPLETE.mark(f"a part is not there: {fault}") for fault in faults),
            *self._pair.reasons,
            *self._pair.explain_undecided(self._found.num_by_digest, self._found.num_open),
        ]
        if not coverage.candidates or not (coverage.steps or self._steps_notes):
            found = (
                f"{count_of(coverage.candidates_expected, 'candidate')} expected, {coverage.candidates_actual} actual"
            )
            steps = count_of(coverage.steps, "step")
            reasons.append(Code.NOTHING_COMPARED.mark(f"nothing was compared: {found}, {steps} in common"))
        return reasons

    def _list_notes(self, num_listed: int) -> list[str]:
        """Return what a reader should know besides the verdict, given the number of listed divergences."""
        has_tolerance = {
            each.name for each in self._pair.schema.compared if each.rule is not EqualityRule.EQUAL
        } - self._ignored
        notes = [
            *self._steps_notes,
            *self._modulo_notes,
            *(self._pair.tolerance.notes if has_tolerance else ()),
            *note_unknown(*self._shells),
            *(self._dialects if self._options.equality.allow_dialects else ()),
            *(() if all(source.is_verified for source in self.sources) else (SKIPPED,)),
        ]
        for num, num_kept, what in (
            (self._found.num, num_listed, "divergences"),
            (self._found.num_ties, len(self._found.near_ties), "near-ties"),
        ):
            if num_kept < num:
                notes.append(f"{num:,} {what} were found, and the first {num_kept:,} are listed")
        return notes

    def _explain(self, listed: list["Listed"]) -> list[Divergence]:
        """Return the divergences with their stages, and classify them."""
        if not listed:
            return []
        from kgverify.comparison.listed import choose_guesses

        listed = choose_guesses(listed, self._options.kept)
        around = [each.surroundings for each in listed]
        wanted = frozenset(each.actual.goal for each in around if each is not None and each.actual is not None)
        known = find_goals(*self.sources, self._numbering, wanted)
        self.findings = tuple(each.classify(known) for each in listed)
        return [each.divergence for each in listed]

    def describe_difference(self, difference: float) -> str:
        """Describe a difference of scores in nats and in units in the last place."""
        return self._pair.tolerance.describe(difference)

    def _describe_rounding(self) -> Rounding:
        tolerance, rounded = self._pair.tolerance, self._rounded
        words = (
            f"{count_of(rounded.num_differing, 'score')} differ within the bound, by at most"
            f" {tolerance.describe(rounded.largest)}; up to {tolerance.describe(tolerance.value)} counts as rounding"
        )
        return Rounding(
            bound=tolerance.value,
            ulps=tolerance.value / tolerance.unit if tolerance.unit else 0.0,
            float_type=tolerance.float_type,
            evidence=tolerance.evidence,
            num_differing=rounded.num_differing,
            largest=rounded.largest,
            in_words=words if rounded.num_differing else "",
        )

    def like(self, expected: Trace, actual: Trace) -> "Comparer":
        """Return a comparer of other traces that judges in the same way, without explanations."""
        return Comparer(expected, actual, self.alike)

    @property
    def alike(self) -> Options:
        """The options of a comparer that judges in the same way, without explanations."""
        own = self._options
        equality = replace(own.equality, modulo=self.modulo)
        return Options(own.lockstep, infers=False, equality=equality, tolerance=own.tolerance)

    @property
    def accepted(self) -> ScoreTolerance | float | str | None:
        """The measured tolerance of scores, or the error that the user accepts; None: the judge's bound."""
        return self._options.tolerance or self._options.equality.accepted_error

    @property
    def paired_rows(self) -> NDArray[np.int64]:
        """The candidates of the expected trace that the actual trace has as well, after `compare`."""
        return np.arange(self.sources[0].num_candidates) if self._alignment is None else self._alignment.expected

    def rows_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows in the expected trace of some pairs of candidates, given by their numbers, after `compare`."""
        return pairs if self._alignment is None else self._alignment.expected[pairs]

    def counterparts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows in the actual trace of some candidates of the expected trace, after `compare`."""
        if self._alignment is None:
            return rows
        counterparts: NDArray[np.int64] = self._alignment.actual[np.searchsorted(self._alignment.expected, rows)]
        return counterparts

    def load_pairs(self, rows: NDArray[np.int64]) -> tuple[Trace, Trace]:
        """Return some candidates of the expected trace and their counterparts as traces in memory, after `compare`.

        If some differences count as benign, both traces are in normal form, and their names have the same numbers.
        """
        if not self.modulo:
            return self._read_and_load(rows)
        expected, actual = self.pair_of(rows).full
        is_same = DUPLICATES in self.modulo and self.comparison.verdict is Verdict.AGREE
        return expected, _with_origins(actual, expected) if is_same else actual

    def pair_of(self, rows: NDArray[np.int64]) -> ComparablePair:
        """Return some candidates of the expected trace and their counterparts, made comparable, after `compare`."""
        return self._compared(*self._read_and_load(rows))

    def _read_and_load(self, rows: NDArray[np.int64]) -> tuple[Trace, Trace]:
        both = rows, self.counterparts(rows)
        expected, actual = (
            source.load(source.read_rows(own), own) for source, own in zip(self.sources, both, strict=True)
        )
        return expected, actual

    def _find_suspects(self) -> tuple[int, Iterator["_Rows"]]:
        """Return the number of pairs, and blocks of pairs that may differ; align the candidates if they are not in order."""
        verified: set[str] = set()
        if len(self._files) == 2 and self._can_compare_stored():
            from kgverify.comparison.stored_columns import StoredColumns

            expected = self._files[0]
            columns = StoredColumns(
                self._files,
                score_tolerance=self.score_tolerance,
                has_digests=self.has_like_digests,
                progress=self._options.progress,
                piece_bytes=self._options.piece_bytes,
            )
            verified = columns.verified
            if columns.has_same_candidates():
                num = expected.num_candidates
                ranges = [(0, num)]
                if columns.has_same_shape():
                    ranges = columns.find_suspects()
                    # What the suspects have is counted again when they are compared one by one.
                    self._has_counted_all = True
                    self._count({level: expected.trace.num_rows(level) for level in ("steps", "resolvents")})
                    self._rounded = columns.count_rounded(ranges)
                else:
                    for source in self._files:
                        source.verify_rest(verified)
                return num, self._split(ranges)
        for source in self._files:
            source.verify_rest(verified)
        self._alignment = align_candidates(*self._candidates())
        num = len(self._alignment.expected)
        return num, self._split([(0, num)])

    def _can_compare_stored(self) -> bool:
        """Return whether columns on disk can be compared as they are stored.

        If a trace has no goals, the digests of steps must be comparable instead.
        """
        if not self._numbering.is_same:
            return False
        has_digests = all("digests/sequence" in source.stored for source in self._files)
        return self._has_goals or (self.has_like_digests and has_digests)

    def _count(self, rows: Mapping[str, int], sign: int = 1) -> None:
        """Count the compared steps, and the compared resolvents if both traces have them."""
        self._num_steps += sign * rows["steps"]
        self._num_resolvents += 0 if "steps.num_resolvents" in self._ignored else sign * rows.get("resolvents", 0)

    def _candidates(self) -> tuple[SourceCandidates, SourceCandidates]:
        expected, actual = (SourceCandidates(source, self._converter(i)) for i, source in enumerate(self.sources))
        return expected, actual

    def _converter(self, side: int) -> Convert | None:
        """Return the function that converts the atoms of a side's candidates, or None if they stay."""
        convert = self._numbering.converter(side)
        if NAMES not in self.modulo:
            return convert
        return lambda atoms: rename_candidates(atoms if convert is None else convert(atoms))

    def _find_shards(self) -> "Shards | None":
        if not any(source.members for source in self.recorded):
            return None
        from kgverify.comparison.shards import Shards

        return Shards(self.recorded, self._candidates(), self._pair)

    def _judge_unpaired(self, alignment: Alignment, *, has_faults: bool) -> None:
        """Judge the candidates that only one trace has; beyond the number of divergences to list, only count them.

        has_faults: whether parts are missing, so that only candidates that processes doubled are divergences
        """
        most = self._options.kept
        kept = alignment._replace(missing=alignment.missing[:most], extra=alignment.extra[:most])
        if not has_faults:
            self._found.num += len(alignment.missing) + len(alignment.extra) - len(kept.missing) - len(kept.extra)
        divergences, self.draws = judge_unpaired(*self._candidates(), kept, self._pair)
        for each in divergences:
            draw = self.draws.get((each.query, each.side), "")
            told = self._shards.explain(each) if self._shards else None
            if told or not has_faults:
                self._found.add_unpaired(told or each, draw)

    def _split(self, ranges: list[Range]) -> Iterator["_Rows"]:
        """Yield the rows of pairs on both sides, in blocks of a bounded number of steps or of a single pair."""
        most, alignment = self._block_steps, self._alignment
        begins, lasts = np.array(ranges, np.int64).reshape(-1, 2).T
        ends = np.cumsum(lasts - begins)
        begin, total = 0, int(ends[-1]) if len(ends) else 0
        while begin < total:
            numbers = np.arange(begin, min(total, begin + most))
            pairs = rows = others = numbers + (lasts - ends)[np.searchsorted(ends, numbers, side="right")]
            if alignment is not None:
                rows, others = alignment.expected[pairs], alignment.actual[pairs]
            num = len(pairs)
            for source, own in zip(self.sources, (rows, others), strict=True):
                sums = np.cumsum(source.gather_column("num_steps", own), dtype=np.int64)
                num = min(num, max(1, int(np.searchsorted(sums, most, side="right"))))
            yield rows[:num], others[:num]
            begin += num

    def _compare_block(self, rows: NDArray[np.int64], others: NDArray[np.int64]) -> None:
        """Compare some pairs of candidates: as a whole if they are equal, else step by step."""
        expected, actual = self.sources
        columns = expected.read_rows(rows), actual.read_rows(others)
        self._options.progress(sum(column.nbytes for side in columns for level in side for column in level))
        if self._has_counted_all:
            self._count(self._pair.schema.count_rows(columns[0]), -1)
        blocks = None if self._has_goals else self._load(columns, rows, others)
        is_equal, has_other_bits = (
            self.agrees(columns, rows, others) if blocks is None else self._agrees_by_digest(columns, blocks)
        )
        if is_equal:
            self._count(self._pair.schema.count_rows(columns[0]))
            if has_other_bits:
                self._rounded = self._rounded.plus(count_rounded(*(each.resolvents.score for each in columns)))
            return
        pair = self._compared(*(blocks or self._load(columns, rows, others)))
        block: ColumnComparer
        if pair.schema == KNOWLEDGE_GRAPH:
            explains = self._options.explains or (self._options.infers and not pair.has_origins)
            kind: type[BlockComparer] = BlockComparer
            if has_paths(pair.expected.columns):
                from kgverify.comparison.beams import BeamComparer

                kind = BeamComparer
            block = kind(pair, lockstep=self.lockstep, program=(lambda: self.program) if explains else None)
        else:
            block = ColumnComparer(pair, lockstep=self.lockstep)
        self._num_steps += block.num_steps
        self._num_resolvents += block.num_resolvents
        self._rounded = self._rounded.plus(block.rounded)
        self._found.add(block, rows)
        for each in block.benign:
            self.benign.add(each.move(rows))
        if not self._files:
            self.views |= {(int(rows[candidate]), step): views for (candidate, step), views in block.views.items()}
            guesses = block.guesses if isinstance(block, BlockComparer) else {}
            self.guesses |= {(int(rows[candidate]), step): found for (candidate, step), found in guesses.items()}

    def _compared(self, expected: Trace, actual: Trace) -> ComparablePair:
        return ComparablePair(expected, actual, self._numbering, accepted=self.accepted, modulo=self.modulo)

    def _load(
        self, columns: tuple[Columns, Columns], rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> tuple[Trace, Trace]:
        return self.sources[0].load(columns[0], rows), self.sources[1].load(columns[1], others)

    def agrees(
        self, columns: tuple[Columns, Columns], rows: NDArray[np.int64], others: NDArray[np.int64]
    ) -> tuple[bool, bool]:
        """Return whether two blocks with goals agree in every column, and whether their scores then differ in bits."""
        expected, actual = self.sources
        if not self._numbering.is_same:
            if not actual.is_verified:
                # Ids must be checked before they are looked up in the other trace's names.
                actual.load(columns[1], others)
            left, right = (self._numbering.convert_columns(side, each) for side, each in enumerate(columns))
            columns = left, right
        found = has_equal_columns(*columns, self._ignored, self.score_tolerance, self._pair.schema)
        if found[0] and self.has_like_digests:
            stored = expected.stored_digests(rows), actual.stored_digests(others)
            if stored[0] is not None and stored[1] is not None and not has_same_bytes(stored[0], stored[1]):
                # If equal steps have two different digests, one digest is wrong.
                return False, False
        return found

    def _agrees_by_digest(self, columns: tuple[Columns, Columns], blocks: tuple[Trace, Trace]) -> tuple[bool, bool]:
        """Return the same as `agrees` if a trace has no goals: compare the columns that both have, and the digests."""
        if not self.has_like_digests or not has_same_bytes(*(block.digests.sequence for block in blocks)):
            return False, False
        return has_equal_columns(*columns, self._lacking, self.score_tolerance, self._pair.schema)


def _with_origins(trace: Trace, other: Trace) -> Trace:
    """Return a trace with the origins of another trace, which agrees with it except in the origins of repeated resolvents."""
    own, wanted = trace.columns.resolvents, other.columns.resolvents
    if len(own.kind) != len(wanted.kind):
        return trace
    resolvents = own._replace(origin_kind=wanted.origin_kind, origin=wanted.origin)
    return replace(trace, columns=trace.columns._replace(resolvents=resolvents))


_Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The rows of paired candidates in the expected and the actual trace."""


class _Found:
    """The divergences and near-ties of the whole traces: all are counted, and the first `kept` of each are listed."""

    def __init__(self, options: Options) -> None:
        self._kept, self._explains = options.kept, options.explains
        self.num = self.num_ties = self.num_by_digest = self.num_open = self._num_kept = 0
        self.near_ties: list[NearTie] = []
        self.levels: set[Level] = set()
        self._divergences: list[Divergence] = []
        self.explained: list[Listed] = []

    def add(self, block: ColumnComparer, rows: NDArray[np.int64]) -> None:
        """Add the divergences and near-ties of a block, given the rows of its candidates in the whole expected trace."""
        self.num += len(block.divergences)
        self.num_ties += len(block.near_ties)
        self.num_by_digest += sum(each.field == DIGEST for each in block.divergences)
        self.num_open += sum(block.pair.leaves_open(each.field) for each in block.divergences)
        self.levels |= {each.level for each in block.divergences}
        self.near_ties += [move(tie, rows) for tie in self._cut(block.near_ties, len(self.near_ties))]
        kept = self._cut(block.divergences, self._num_kept)
        self._num_kept += len(kept)
        if not self._explains:
            self._divergences += [move(each, rows) for each in kept]
        elif kept:
            from kgverify.comparison.listed import explain_block

            self.explained += explain_block(cast(BlockComparer, block), kept, rows)

    def add_unpaired(self, divergence: Divergence, draw: str = "") -> None:
        """Add a candidate that only one trace has, with the evidence that its query drew other candidates."""
        self.num += 1
        self.levels.add(divergence.level)
        if not self._explains:
            self._divergences.append(divergence)
            return
        from kgverify.comparison.listed import explain_unpaired

        self.explained.append(explain_unpaired(divergence, draw))

    def listed(self) -> list[Divergence]:
        """Return the divergences to list, in the order of candidates and steps, if they are not explained."""
        return sorted(self._divergences, key=lambda each: (each.candidate, each.step))[: self._kept]

    def _cut(self, found: list[_Located], num_listed: int) -> list[_Located]:
        return found if self._kept is None else found[: max(0, self._kept - num_listed)]
