"""The first step in which two recorded traces differ: found by their digests, and only then decoded."""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.by_stages import StageNamer
from kgverify.comparison.compare import Comparer
from kgverify.comparison.preconditions import check_preconditions
from kgverify.comparison.result import Divergence
from kgverify.comparison.sharing import counts_alike
from kgverify.comparison.streaming.blocks import load_block, shell_of
from kgverify.comparison.streaming.columns import column_pieces, has_same_bytes
from kgverify.comparison.streaming.compare import compare_streams
from kgverify.comparison.streaming.goals import Rebuilding
from kgverify.errors import UserError
from kgverify.trace.model.digests import Words
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile

_PIECE: Final = 1 << 15
_ORDER: Final = ("candidates/query", "candidates/side", "candidates/atom", "candidates/num_steps")


def find_first_divergence(
    expected: TraceFile | Path | str, actual: TraceFile | Path | str, *, rebuilding: Rebuilding | None = None
) -> Divergence | None:
    """The first divergence that shows in a digest, in the order of the expected candidates; None if there is none.

    Milliseconds for traces whose candidates are in one order up to there: the stored digests are compared, and one
    candidate is read and checked by them, as far as its level allows. Scores, origins and what is said of a candidate as
    a whole have no digest: `compare_streams` compares those. It does the work, too, where candidates come in another
    order or are missing, where names are numbered otherwise, and where digests are absent or count other columns.

    rebuilding: how the candidate gets its goals where a compact trace has none and its clauses lead to them; None to name
                its divergence by what the levels of both hold

    UserError for a trace that is refused, and for two that cannot be compared.
    """
    left, right = (each if isinstance(each, TraceFile) else TraceFile(each) for each in (expected, actual))
    right.share_symbols(left)
    shells = shell_of(left), shell_of(right)
    if reasons := check_preconditions(*shells):
        raise UserError(
            "; ".join(reasons), where=right.source, fix="compare traces of the same run, recorded to the end"
        )
    num = min(left.num_candidates, right.num_candidates)
    has_digests = "digests.sequence" in left.fields & right.fields
    if shells[0].symbols != shells[1].symbols or not has_digests or not counts_alike(*shells):
        return _compare_all(left, right, rebuilding)
    first_other = min(_first_difference(left, right, name, 0, num) for name in _ORDER)
    end = left.first_step(first_other)
    step = _first_difference(left, right, "digests/sequence", 0, end)
    while step < end:
        candidate = left.candidate_of("steps/num_atoms", step)
        if (found := _compare_candidate(left, right, candidate, rebuilding)) is not None:
            return found
        # A near-tie: what follows it in its candidate is its consequence.
        step = _first_difference(left, right, "digests/sequence", left.first_step(candidate + 1), end)
    if first_other == left.num_candidates == right.num_candidates:
        # A damaged digest shows as a difference, and is found out when the step is decoded; unless both are damaged.
        for trace in (left, right):
            trace.verify("digests/sequence", *_ORDER)
        return None
    is_same_candidate = first_other < num and all(
        _first_difference(left, right, name, first_other, first_other + 1) > first_other for name in _ORDER[:3]
    )
    # With another number of steps.
    if is_same_candidate and (found := _compare_candidate(left, right, first_other, rebuilding)) is not None:
        return found
    return _compare_all(left, right, rebuilding)


def first_difference(expected: Words, actual: Words) -> int | None:
    """The first place where two arrays of digests of one length differ; None where they are equal."""
    for begin in range(0, len(expected), _PIECE):
        x, y = expected[begin : begin + _PIECE], actual[begin : begin + _PIECE]
        if not has_same_bytes(x, y):
            return begin + int(np.argmax(x != y))
    return None


def _first_difference(expected: TraceFile, actual: TraceFile, name: str, first: int, end: int) -> int:
    """The first row of a column that differs, from `first` on; `end` if none before it does."""
    for begin, stop, (file, at), (other, other_at) in column_pieces(expected, actual, name):
        if stop <= first:
            continue
        skipped = max(0, first - begin)
        num = min(stop, end) - begin
        if num <= skipped:
            break
        x, y = file.read(name, at + skipped, at + num), other.read(name, other_at + skipped, other_at + num)
        if not has_same_bytes(x, y):
            differs: NDArray[Any] = x != y
            row = int(np.argmax(differs.any(axis=1) if differs.ndim == 2 else differs))
            return begin + skipped + row
    return end


def _compare_candidate(
    expected: TraceFile, actual: TraceFile, candidate: int, rebuilding: Rebuilding | None
) -> Divergence | None:
    row = np.array([candidate])
    blocks = [load_block(trace, trace.read_candidates(candidate, candidate + 1), row) for trace in (expected, actual)]
    if rebuilding is not None:
        blocks = [_rebuild(block, rebuilding) for block in blocks]
    comparer = Comparer(*blocks)
    found = comparer.compare().divergences
    if not found:
        return None
    named, _ = StageNamer(comparer).name(found[0])
    return msgspec.structs.replace(named, candidate=candidate)


def _rebuild(block: Trace, rebuilding: Rebuilding) -> Trace:
    if block.header.level != TraceLevel.COMPACT:
        return block
    try:
        return rebuilding(block)(block)
    except UserError:
        return block


def _compare_all(expected: TraceFile, actual: TraceFile, rebuilding: Rebuilding | None) -> Divergence | None:
    compared = compare_streams(expected, actual, verifies_content=False, rebuilding=rebuilding)
    comparison = compared.comparison
    if comparison.reasons and not comparison.divergences:
        raise UserError(
            "; ".join(comparison.reasons), where=actual.source, fix="record traces at levels that can be compared"
        )
    return comparison.divergences[0] if comparison.divergences else None
