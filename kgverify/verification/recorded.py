"""The comparison of two recorded traces: no engine runs, and traces on disk stay there."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code
from kgverify.comparison.classify import Surroundings, classify, group_causes
from kgverify.comparison.comparable import StepSource
from kgverify.comparison.compare import KEPT, Comparer, Options
from kgverify.comparison.equality import DEFAULT_EQUALITY, Equality
from kgverify.comparison.exercise.exercise import Minimum
from kgverify.comparison.inference.infer import name_in_dialect
from kgverify.comparison.inference.other_dialect import DialectFit, Shown, find_queries, read_steps
from kgverify.comparison.modulo import DUPLICATES
from kgverify.comparison.rankings import NO_ROWS, compare_rankings
from kgverify.comparison.recorded.evidence import withhold_agreement
from kgverify.comparison.result import ROLES, Comparison, Divergence, Verdict
from kgverify.conditions.describe import describe_conditions
from kgverify.program.outcomes import STEP_STAGES
from kgverify.progress import Progress, no_progress
from kgverify.report.content import Determinism
from kgverify.report.report import Report
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification.attribute import order_by_loss
from kgverify.verification.judgement import FULL, Effort, Explained, judge, require_shown
from kgverify.verification.recorded_ranks import find_splits, judge_ranks, recognise_ranks, split_recorded_loss
from kgverify.verification.rounding import bound_recorded


class RecordedComparison:
    """A report and its two recorded traces, expected and actual. Traces on disk stay there."""

    stepped: Trace | None = None

    def __init__(self, report: Report, sources: tuple[StepSource, StepSource]) -> None:
        self.report = report
        self.traces = tuple(source.trace for source in sources)
        self._sources = sources

    @cached_property
    def expected(self) -> Trace:
        """The whole expected trace in memory, read at first access."""
        return _read_whole(self._sources[0])

    @cached_property
    def actual(self) -> Trace:
        """The whole actual trace in memory, read at first access."""
        return _read_whole(self._sources[1])

    def excerpt(self) -> Trace | None:
        """Return the expected trace with only the candidate of the first divergence; None without divergence or goals."""
        first, expected = self.report.first_cause, self._sources[0]
        if first is None or first.step < 0 or not 0 <= first.candidate < expected.num_candidates:
            return None
        row = np.array([first.candidate])
        block = expected.load(expected.read_rows(row), row)
        return block if has_goals(block.header.level) else None


def _read_whole(source: StepSource) -> Trace:
    return source.trace if isinstance(source.trace, Trace) else read_trace(source.trace.path)


NOT_PROVED: Final = (
    "expected proofs, metrics and losses are not stated: each expected step starts from a recorded goal, and no candidate was"
    " proved from its query (a comparison with a recording of a right engine states them)"
)
"""The note on a comparison with steps taken again."""

MOST_FITTING: Final = 3
"""The most dialects to name."""

MOST_READ: Final = 40
MOST_STEPS: Final = 200
"""The most candidates and steps to read when another dialect is sought; those that differ come first."""


def compare_recorded(
    expected: str | Path | TraceFile | Trace,
    actual: str | Path | TraceFile | Trace,
    *,
    verifies_content: bool | None = None,
    equality: Equality = DEFAULT_EQUALITY,
    progress: Progress = no_progress,
    is_retaken: bool = False,
) -> RecordedComparison:
    """Compare two recorded traces block by block, without an engine, and without loading whole traces. See `Options`.

    is_retaken: whether the expected steps were taken from the goals of the actual trace
    """
    options = Options(
        verifies_content=verifies_content,
        kept=KEPT,
        explains=True,
        equality=equality,
        progress=progress,
    )
    comparer = Comparer(expected, actual, options)
    tolerance = bound_recorded(comparer, comparer.compare(), equality.accepted_error)
    if tolerance is not None:
        comparer = Comparer(expected, actual, options._replace(tolerance=tolerance))
        comparer.compare()
    minimum = require_shown(equality, comparer.recorded[0].header.engine)
    report = judge_recorded(comparer, minimum, is_retaken=is_retaken)
    return RecordedComparison(report, comparer.sources)


def judge_recorded(comparer: Comparer, minimum: Minimum, *, effort: Effort = FULL, is_retaken: bool = False) -> Report:
    """Return the report of two compared recorded traces."""
    compared = _admit_unfollowed(comparer.comparison)
    repeating = comparer.benign.candidates(DUPLICATES)
    # Steps taken again lead to the outcomes of the recorded derivations: no ranks and no loss follow from them.
    proves = not (is_retaken and compared.divergences)
    ranked = recognise_ranks(compared, comparer) if proves else None
    unexplained = ranked.unexplained if ranked is not None else frozenset()
    comparison = _compare_recorded_rankings(compared, comparer, repeating, unexplained)
    nothing = Surroundings(None, None)
    of_ranking = comparison.divergences[len(comparer.findings) :]
    findings = (*comparer.findings, *(judge_ranks(classify(each, nothing), ranked) for each in of_ranking))
    dialect = comparer.sources[0].header.limits.dialect
    divergences, causes = group_causes(*name_in_dialect(comparison.divergences, findings, dialect))
    divergences, causes = describe_conditions(
        causes, divergences, comparer, effort.explained, find_splits=lambda: find_splits(comparer.expected) or None
    )
    sides = ranked.traces if ranked is not None else comparer.sources
    attribution, notes = split_recorded_loss(ranked, divergences, causes, effort)
    if attribution is not None:
        divergences, causes, attribution = order_by_loss(divergences, causes, attribution)
    comparison = msgspec.structs.replace(comparison, divergences=divergences)
    notes = (*notes, *_note_dialects(comparer, divergences, is_retaken=is_retaken), *[NOT_PROVED] * (not proves))
    return judge(
        Explained(comparison, causes, (comparer,), comparer.recorded, comparer.sources, sides),
        minimum,
        determinism=Determinism(),
        lockstep=False,
        withhold=partial(withhold_agreement, comparer=comparer, is_retaken=is_retaken),
        notes=notes,
        proves=proves,
        attribution=attribution,
        ranking_rules=ranked.rules if ranked is not None else None,
    )


def _note_dialects(comparer: Comparer, divergences: Sequence[Divergence], *, is_retaken: bool) -> Iterator[str]:
    """Yield a note for each side whose steps fit a dialect that differs from the declared one in a single switch."""
    inference, wrong = comparer.program.origins, [each for each in divergences if each.stage in STEP_STAGES]
    if inference is None or not wrong:
        return
    differing = dict.fromkeys(each.candidate for each in wrong if each.step >= 0)
    rows = np.array([*differing, *(row for row in range(MOST_READ) if row not in differing)][:MOST_READ], np.int64)
    rows = rows[np.isin(rows, comparer.paired_rows)]
    pair, own_rows = comparer.pair_of(rows), (rows, comparer.counterparts(rows))
    shown = Shown(
        comparer.has_origins,
        "steps.dropped_resolvents" not in comparer.not_compared,
        "steps.depth" not in comparer.not_compared,
    )
    how = " (--limits dialect=FILE declares it)" * is_retaken
    for side, role in enumerate(ROLES):
        if (is_retaken and not side) or not has_goals(comparer.sources[side].header.level):
            continue
        queries = find_queries(comparer.read_candidates(side), own_rows[side])
        steps = read_steps((pair.expected, pair.actual)[side].columns, queries, shown)
        limits = comparer.sources[0 if is_retaken else side].header.limits.with_defaults()
        fit = DialectFit(inference.clauses, limits, list(islice(steps, MOST_STEPS)), shown)
        if fit.declared.misfits and (fitting := fit.list_fitting()):
            more = [f"{len(fitting) - MOST_FITTING} others"] * (len(fitting) > MOST_FITTING)
            num, total = len(fit.steps), comparer.sources[side].num_steps
            read = (
                f"all {num:,} steps that were read, of the {total:,} {role} ones,"
                if num < total
                else f"all {total:,} {role} steps"
            )
            yield (
                f"{read} fit a dialect that differs in one switch:"
                f" {' or '.join([*fitting[:MOST_FITTING], *more])} {how}"
            )


def _compare_recorded_rankings(
    comparison: Comparison,
    comparer: Comparer,
    repeating: NDArray[np.int64] = NO_ROWS,
    unexplained: Collection[tuple[int, int]] = (),
) -> Comparison:
    """Compare rankings like `compare_rankings`, but read no candidates if all ranks are equal."""
    expected, actual = comparer.sources
    left, right = expected.rankings, actual.rankings
    if left is not None and right is not None:
        if not unexplained and all(np.array_equal(left[i], right[i]) for i in range(len(left))):
            return comparison
        if any("are listed" in note for note in comparison.notes):
            note = "ranks were not compared: not all divergences that may explain them are listed"
            return msgspec.structs.replace(comparison, notes=(*comparison.notes, note))
    # Without the rankings of both, no candidate is looked at.
    shells = expected.shell(has_candidates=left is not None and right is not None), actual.shell()
    tolerance = comparer.score_tolerance
    return compare_rankings(comparison, *shells, tolerance=tolerance, repeating=repeating, unexplained=unexplained)


def _admit_unfollowed(comparison: Comparison) -> Comparison:
    """Make near-ties without divergences inconclusive: the steps after a near-tie need an engine to be compared."""
    if not comparison.near_ties or comparison.verdict is not Verdict.AGREE:
        return comparison
    reason = Code.AFTER_NEAR_TIES.mark(
        f"{len(comparison.near_ties)} candidates differ from a near-tie on, and recorded steps after one cannot be compared:"
        " compare the engines themselves"
    )
    return msgspec.structs.replace(comparison, verdict=Verdict.INCONCLUSIVE, reasons=(*comparison.reasons, reason))
