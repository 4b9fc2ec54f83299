"""The repetition of an engine: it proves a sample of its candidates again, and must give the same up to rounding."""

from typing import Final, NamedTuple

import numpy as np

from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.result import Comparison
from kgverify.engines.protocol import candidate_set
from kgverify.progress import Progress
from kgverify.report.content import Determinism
from kgverify.runs.run import Run, build_trace
from kgverify.trace.model.columns import CandidateSet, Columns, are_equal, select_candidates
from kgverify.verification.rounding import EngineRun

TO_THE_BIT: Final = "to the bit"
IN_THE_SAME_BATCH: Final = "in the same batch"
SHARE: Final = 16
"""One in this number of candidates is proved again."""
MIN_SAMPLE: Final = 16
MAX_SAMPLE: Final = 64
"""The candidates of a sample: the same number in every run of the same candidates."""


class Repetition(NamedTuple):
    """The repetition of both engines.

    reasons: why the verdict is INCONCLUSIVE, if an engine is not deterministic
    by_batch: the reasons why AGREE is INCONCLUSIVE, if an engine is deterministic and another batch changes its results
    """

    determinism: Determinism
    reasons: tuple[str, ...]
    by_batch: tuple[str, ...]


def choose_sample_size(num: int) -> int:
    """Return the number of candidates to prove again."""
    return min(num, MAX_SAMPLE, max(MIN_SAMPLE, num // SHARE))


def prove_again(side: EngineRun, asked: CandidateSet, progress: Progress) -> EngineRun:
    """Prove a sample of a run again, spread over its candidates; all of them if the engine returned another number."""
    num = len(side.trace.columns.candidates.query)
    if num != len(asked.query):
        return side._replace(rows=np.arange(num), again=side.engine.prove(asked, progress))
    rows = np.unique(np.linspace(0, num - 1, choose_sample_size(num)).astype(np.int64))
    return side._replace(rows=rows, again=side.engine.prove(asked.take(rows), progress))


def judge_repetition(run: Run, sides: tuple[EngineRun, EngineRun], options: Options) -> Repetition:
    """Return whether each engine repeats itself, and what that means for the verdict if one does not.

    Lists, choices and outcomes must be equal, and scores within their bound. A choice between two scores closer than the
    bound is a near-tie, as it is between two engines.
    """
    found = [_compare_runs(run, side, options) for side in sides]
    nums = [None if side.again is None else len(side.rows) for side in sides]
    (expected, expected_within, _), (actual, actual_within, _) = found
    return Repetition(
        Determinism(expected, actual, expected_within, actual_within, *nums),
        tuple(reason for is_same, _, reason in found if reason and not is_same),
        tuple(reason for is_same, _, reason in found if reason and is_same),
    )


def _compare_runs(run: Run, side: EngineRun, options: Options) -> tuple[bool | None, str, str]:
    """Return whether a side repeats itself, within which difference, and why the verdict may be INCONCLUSIVE."""
    if side.again is None:
        return None, "", ""
    first = select_candidates(side.trace.columns, side.rows)
    if are_equal(first[:3], side.again[:3], equal_nan=True):
        return True, TO_THE_BIT, ""

    def compare(columns: Columns, other: Columns) -> tuple[Comparer, Comparison]:
        first, second = (build_trace(run, side.engine, each, None) for each in (columns, other))
        comparer = Comparer(first, second, options)
        return comparer, comparer.compare()

    comparer, found = compare(first, side.again)
    if found.divergences:
        rows, is_whole = side.rows, len(side.rows) == len(side.trace.columns.candidates.query)
        in_same_batch = found
        if not is_whole:
            # All candidates at once are the batch of the first run. Twice: an engine may alternate.
            whole = side.trace.columns
            for _ in range(2):
                _, in_same_batch = compare(whole, side.engine.prove(candidate_set(whole)))
                if in_same_batch.divergences:
                    rows = np.arange(len(whole.candidates.query))
                    break
        differing = in_same_batch.divergences or found.divergences
        num, earliest = len(differing), differing[0]
        where = f"first in {earliest.field} of candidate {rows[earliest.candidate]}, {earliest.atom}"
        where += f", from step {earliest.step} on" if earliest.step >= 0 else ""
        if not in_same_batch.divergences:
            reason = f"the {side.role} engine gives {num:,} candidates other results in another batch, {where}"
            return True, IN_THE_SAME_BATCH, reason
        reason = f"two runs of the same candidates differ in {num:,} of them, {where}"
        return False, "", f"the {side.role} engine is not deterministic: {reason}"
    largest = found.rounding.largest if found.rounding is not None else 0.0
    words = f"within {comparer.describe_difference(largest)}" if largest else TO_THE_BIT
    ties = f", with {len(found.near_ties):,} choices at near-ties" if found.near_ties else ""
    return True, words + ties, ""
