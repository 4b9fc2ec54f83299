"""Changes planted in the columns of a run: before a verdict is given, the comparison must report each of them.

In a copy of a few candidates, one value of each compared column is altered. The columns, their types and their lengths come
from the schema, so that a new column is altered as soon as it is compared.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import MemorySource, StepSource, lockstep_columns
from kgverify.comparison.compare import Comparer
from kgverify.comparison.modulo import DUPLICATES, ORDER
from kgverify.comparison.rankings import RankCandidates, compare_rankings, mean_reciprocal_rank
from kgverify.comparison.result import (
    DIGEST,
    NO_CANDIDATE,
    PROOF_CLASSES,
    Attribution,
    Cause,
    Comparison,
    Coverage,
    Divergence,
    SelfTest,
    Verdict,
    count_candidates,
)
from kgverify.comparison.step_view import side_name
from kgverify.errors import InternalError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.outcomes import Outcome, Stage
from kgverify.ranking.rank import MRR
from kgverify.report.content import Metrics, Outcomes
from kgverify.trace.model.columns import (
    Digests,
    Rankings,
    count_where,
    empty_columns,
    expand_rows,
    select_candidates,
    starts_of,
)
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace


def require(condition: bool, what: str) -> None:
    """Raise an InternalError unless a condition holds that the comparison must meet on its own run."""
    if not condition:
        raise InternalError(f"the comparison failed its self-test, so there is no verdict: {what}")


def check_verdict(comparison: Comparison, parts: Sequence[Comparer]) -> None:
    """Raise an InternalError unless the verdict follows from the findings, and AGREE from a comparison of the whole record.

    parts: the comparers that found them; the first one compared the runs as a whole
    """
    for found in (each.comparison for each in parts):
        require(set(found.reasons) <= set(comparison.reasons), "a reason for INCONCLUSIVE was lost")
        is_lost = comparison.verdict is Verdict.AGREE and found.verdict is not Verdict.AGREE
        require(not is_lost, f"a part of the comparison is {found.verdict.value}, and the whole is AGREE")
    num = len(comparison.divergences)
    follows = Verdict.INCONCLUSIVE if comparison.reasons else Verdict.DIVERGE if num else Verdict.AGREE
    require(
        comparison.verdict is follows,
        f"{comparison.verdict.value} with {num} divergences and {len(comparison.reasons)} reasons",
    )
    for benign in comparison.benign:
        is_sound = benign.kind in comparison.modulo and 0 < benign.num_candidates <= benign.num_steps
        require(is_sound, f"benign differences of kind {benign.kind} were not declared, or not counted")
    whole = parts[0].comparison.coverage
    for source in parts[0].sources if comparison.verdict is Verdict.AGREE else ():
        num_candidates, num_steps = source.num_candidates, source.num_steps
        require(whole.candidates == num_candidates, f"{whole.candidates} of {num_candidates} candidates were compared")
        # The steps after a near-tie are compared separately.
        is_all = whole.steps == num_steps or bool(comparison.near_ties)
        require(is_all, f"{whole.steps} of {num_steps} steps were compared")


def check_causes(comparison: Comparison, causes: Sequence[Cause]) -> None:
    """Raise an InternalError unless each divergence has one cause, which counts it."""
    members: dict[int, list[Divergence]] = {number: [] for number in range(len(causes))}
    for each in comparison.divergences:
        require(each.cause in members, "a divergence has no cause")
        members[each.cause].append(each)
    for number, cause in enumerate(causes):
        of_cause = members[number]
        counted = (
            len(of_cause),
            count_candidates(of_cause),
            len({each.query for each in of_cause}),
            sum(each.later_steps for each in of_cause),
        )
        listed = cause.num_divergences, cause.num_candidates, cause.num_queries, cause.num_later
        require(counted == listed, f"a cause counts {listed}, and its divergences {counted}")
        # A lost or false proof is what a fault did.
        own = {(each.stage, cause.kind if each.kind in PROOF_CLASSES else each.kind) for each in of_cause}
        is_one = own == {(cause.stage, cause.kind)}
        require(is_one and comparison.divergences[cause.first] is of_cause[0], "a cause is not that of its divergences")


def check_attribution(attribution: Attribution, expected: Trace, actual: Trace) -> None:
    """Raise an InternalError unless the shares add up to the loss, and the metrics are those of the ranks."""
    lost = attribution.expected - attribution.actual
    total = sum(share.share for share in attribution.shares)
    require(abs(total - lost) < 1e-9, f"the shares of the loss add up to {total}, and the loss is {lost}")
    for role, trace, value in (("expected", expected, attribution.expected), ("actual", actual, attribution.actual)):
        if trace.rankings is not None:
            mrr = mean_reciprocal_rank(trace.rankings)
            require(abs(mrr - value) < 1e-9, f"the {role} MRR is {mrr}, and the loss is split from {value}")


def check_numbers(
    outcomes: Outcomes, metrics: Metrics, codes: Sequence[NDArray[np.int8]], rankings: Sequence[Rankings | None]
) -> None:
    """Raise an InternalError unless the counts of outcomes and the mean reciprocal ranks are those of the traces."""
    for counts, column in zip((outcomes.expected, outcomes.actual), codes, strict=True):
        counted = {outcome.name: int((column == outcome).sum()) for outcome in Outcome}
        listed = {outcome.name: counts.get(outcome.name, 0) for outcome in Outcome}
        require(listed == counted, f"outcomes are counted as {listed}, and are {counted}")
    metric: Any
    for metric, ranks in zip((metrics.expected, metrics.actual), rankings, strict=True):
        if ranks is not None and len(ranks.query):
            mrr = mean_reciprocal_rank(ranks)
            require(abs(metric[MRR] - mrr) < 1e-9, f"the MRR is reported as {metric[MRR]}, and is {mrr}")


MAX_CANDIDATES: Final = 64
"""The most candidates in which changes are planted, spread over the run."""

MAX_GROUPS: Final = 5
"""The most groups of candidates in whose ranks changes are planted."""

CHOICE: Final = "steps.choice"
CHILD: Final = "paths.child"

_NOTHING_DIFFERS: Final = Comparison(
    verdict=Verdict.AGREE, coverage=Coverage(candidates=0, steps=0, resolvents=0, fields=())
)


@without_garbage_collection()
def plant_changes(comparers: Sequence[Comparer]) -> SelfTest:
    """Plant a change in each compared column, and in the ranks. InternalError if a change is not reported."""
    columns = {name for each in comparers for name in _plant_in_columns(each)}
    return SelfTest(len(columns) + plant_in_ranks(comparers[0].sources))


class _Change(NamedTuple):
    """A change of one column.

    values: the whole changed column of the excerpt
    owner:  the candidate that differs because of it
    """

    column: str
    values: NDArray[Any]
    owner: int


def _plant_in_columns(comparer: Comparer) -> list[str]:
    """Plant a change in each column, each in a candidate of its own; return the columns, whose changes were all reported."""
    pair = _load_pair(comparer)
    if pair is None:
        return []
    names = comparer.comparison.coverage.fields
    owners = {name: row for i, name in enumerate(names) if (row := _find_owner(pair[1], name, i)) is not None}
    # If a count is decreased by one, that of the next candidate is increased by one.
    rows = np.repeat(np.array(list(owners.values()), np.int64), 2)
    copies = _copy(pair[0], rows), _copy(pair[1], rows)
    expected, actual = copies
    changes = [_Change(name, _change(comparer, copies, name, 2 * i), 2 * i) for i, name in enumerate(owners)]
    # The digests of a trace with goals may be recomputed from the goals, so the other trace's digests are changed.
    of_expected = {DIGEST} if has_goals(actual.header.level) else set()
    like = comparer.like(
        _apply(expected, [each for each in changes if each.column in of_expected]),
        _apply(actual, [each for each in changes if each.column not in of_expected]),
    )
    found = like.compare()
    reported = {each.candidate for each in found.divergences}
    has_all = has_goals(expected.header.level) and has_goals(actual.header.level)
    for each in changes:
        if has_all:
            # Blocks that are equal as a whole would not be compared step by step.
            is_equal, _ = like.agrees((expected.columns, _apply(actual, [each]).columns), rows, rows)
            require(not is_equal, f"a block with another {each.column} counts as equal")
        require(
            found.verdict is not Verdict.AGREE and each.owner in reported,
            f"{found.verdict.value} without candidate {each.owner}, which has another {each.column}",
        )
    return [each.column for each in changes]


def _load_pair(comparer: Comparer) -> tuple[Trace, Trace] | None:
    """Return both sides of those of a few candidates that agree; if none of them agrees, use expected ones for both sides."""
    found = comparer.comparison
    if not found.coverage.candidates:
        return None
    rows = comparer.rows_of(np.unique(np.linspace(0, found.coverage.candidates - 1, MAX_CANDIDATES).astype(np.int64)))
    differing = [*(each.candidate for each in found.divergences), *(each.candidate for each in found.near_ties)]
    agreeing = rows[~np.isin(rows, differing)] if comparer.lists_all else rows[:0]
    expected, actual = comparer.load_pairs(agreeing if len(agreeing) else rows)
    if not len(agreeing):
        actual = replace(expected, header=actual.header, fields=actual.fields)
    return expected, actual


def _copy(trace: Trace, rows: NDArray[np.int64]) -> Trace:
    """Return copies of some candidates, each with a query of its own, so that equal candidates are paired in order."""
    path = f"candidates/{trace.schema.identity[0]}"
    numbers = np.arange(len(rows), dtype=trace.schema.values(trace.columns, path).dtype)
    columns = trace.schema.replaced(select_candidates(trace.columns, rows, trace.schema), path, numbers)
    steps = expand_rows(starts_of(trace.columns.candidates.num_steps), rows)
    digests = Digests(*(words[steps] for words in trace.digests))
    return replace(trace, columns=columns, digests=digests, rankings=None)


def _values(trace: Trace, name: str) -> NDArray[Any]:
    if name == DIGEST:
        return trace.digests.sequence
    return trace.schema.values(trace.columns, name)


def _starts(trace: Trace, name: str) -> NDArray[np.int64]:
    """Return the first row of each candidate in a column, and the end of the last candidate."""
    return _starts_of_level(trace, trace.schema.column_of[name.replace(".", "/")].rows)


def _starts_of_level(trace: Trace, level: str) -> NDArray[np.int64]:
    counts = next((each for each in trace.schema.counts if each.counts == level), None)
    if counts is None:
        return np.arange(len(trace.columns.candidates.num_steps) + 1)
    return starts_of(trace.schema.values(trace.columns, counts.path))[_starts_of_level(trace, counts.rows)]


def _find_owner(trace: Trace, name: str, turn: int) -> int | None:
    """Return a candidate with a value that can be changed, a different one for each turn; None if no value can be changed."""
    starts = _starts(trace, name)
    owners = np.flatnonzero(count_where(_is_changeable(trace, name), starts))
    return int(owners[turn % len(owners)]) if len(owners) else None


def _is_changeable(trace: Trace, name: str) -> NDArray[np.bool_]:
    values = _values(trace, name)
    if values.ndim > 1:
        return values[:, _place_of_symbol(trace)] >= 0
    return values > 0 if _is_count(trace, name) else np.ones(len(values), np.bool_)


def _is_count(trace: Trace, name: str) -> bool:
    return bool(trace.schema.column_of[name.replace(".", "/")].counts)


def _place_of_symbol(trace: Trace) -> int:
    """Return the position in an atom to change: its predicate, or an argument if there is no other predicate."""
    return 0 if len(trace.symbols.predicates) > 1 else 1


def _change(comparer: Comparer, pair: tuple[Trace, Trace], name: str, owner: int) -> NDArray[Any]:
    """Return a column of the actual side with a candidate's last changeable value replaced."""
    expected, actual = pair
    begin, end = _starts(actual, name)[owner : owner + 2].tolist()
    row = begin + int(np.flatnonzero(_is_changeable(actual, name)[begin:end])[-1])
    values = _values(actual, name).copy()
    if _is_count(actual, name):
        values[row : row + 2] += np.array([-1, 1]).astype(values.dtype)
    elif values.ndim > 1:
        place = _place_of_symbol(actual)
        names = actual.symbols.predicates if place == 0 else actual.symbols.constants
        values[row, place] = (values[row, place] + 1) % max(2, len(names))
    elif values.dtype.kind == "f":
        num_steps = max(1, int(expected.columns.candidates.num_steps[owner]))
        values[row] = _beyond(_values(expected, name)[row], comparer.score_tolerance, num_steps)
    elif name == CHOICE:
        # Choosing another resolvent may be a near-tie; an index outside the list cannot be one.
        beyond = int(expected.columns.steps.num_resolvents[row])
        values[row] = beyond + (values[row] == beyond)
    elif name == CHILD:
        # Other children may be kept in a near-tie; none is merged into a place that does not exist.
        values[row] = np.iinfo(values.dtype).min
    elif name != DIGEST:
        # Codes and numbers begin at 0.
        values[row] = int(values[row]) + (-1 if values[row] > 0 else 1)
    return values


def _beyond(score: Any, tolerance: float, num_steps: int) -> float:
    """Return a score, or a sum of scores, that differs by more than any tolerance."""
    if not np.isfinite(score):
        return 0.0
    return float(score) + 3 * tolerance * num_steps + 1e-3 * max(1.0, abs(float(score)))


def _apply(trace: Trace, changes: Sequence[_Change]) -> Trace:
    """Return a trace with changed columns, and with digests to match."""
    columns, digests = trace.columns, trace.digests
    for each in changes:
        if each.column != DIGEST:
            columns = trace.schema.replaced(columns, each.column, each.values)
    is_known = has_goals(trace.header.level)
    if is_known:
        digests = compute_digests(columns, trace.schema)
    starts, is_other = starts_of(trace.columns.candidates.num_steps), np.zeros(len(digests.sequence), np.uint64)
    for each in changes:
        # Without goals, changed steps get arbitrary different digests.
        if each.column == DIGEST or not (is_known or each.column.startswith("candidates.")):
            is_other[starts[each.owner] : starts[each.owner + 1]] = 1
    return replace(trace, columns=columns, digests=Digests(*(words ^ is_other for words in digests)))


def plant_in_ranks(sources: tuple[StepSource, StepSource]) -> bool:
    """Plant a change in each column of the ranks of a few groups, and return whether there are ranks."""
    left, right = (source.rankings for source in sources)
    if left is None or right is None or not len(left.query):
        return False
    rankings = Rankings(*(column[:MAX_GROUPS] for column in cast(Any, left)))
    trace = replace(sources[0].shell(), columns=empty_columns(), rankings=rankings)
    group = int(rankings.query[-1]), side_name(int(rankings.side[-1]))
    for name in Rankings._fields:
        values = getattr(rankings, name).copy()
        values[-1] += 1
        changed = rankings._replace(**{name: values})
        ranks = _rank_always(rankings), _rank_always(changed)
        found = compare_rankings(_NOTHING_DIFFERS, trace, replace(trace, rankings=changed), ranks)
        reported = {(each.query, each.side) for each in found.divergences}
        require(group in reported, f"{found.verdict.value} with another {name} in the rankings of query {group[0]}")
    return True


def _rank_always(rankings: Rankings) -> RankCandidates:
    return lambda _: rankings


MAX_RECOUNTED: Final = 32
"""The most causes whose first divergence is recounted."""


@without_garbage_collection()
def recount_causes(parts: Sequence[Comparer], divergences: Sequence[Divergence], causes: Sequence[Cause]) -> None:
    """Raise an InternalError unless the reference's comparison finds the first divergence of each cause at the same step.

    All steps before it must be equal, and this step must differ. Only comparisons of candidates as recorded are recounted:
    not ranks, steps after near-ties, candidates that only one side has, or traces without goals.

    parts: the comparers that found the divergences; the first one compared the runs as a whole
    """
    firsts = [divergences[cause.first] for cause in causes[:MAX_RECOUNTED]]
    for comparer in parts if firsts else ():
        rows = np.array([each.candidate for each in firsts])
        if comparer.lockstep:
            # In lockstep, its candidates are the steps of the run.
            rows = _find_steps(parts[0], firsts)
        _recount(comparer, set(rows.tolist()))


def _find_steps(whole: Comparer, divergences: Sequence[Divergence]) -> NDArray[np.int64]:
    """Return the candidate of a comparison in lockstep to which each divergence belongs: its step, or its level."""
    source = whole.sources[0]
    assert isinstance(source, MemorySource)
    columns = source.trace.columns
    steps = starts_of(columns.candidates.num_steps)[[each.candidate for each in divergences]]
    steps += [each.step for each in divergences]
    begins = starts_of(lockstep_columns(columns).candidates.num_steps)
    found: NDArray[np.int64] = np.searchsorted(begins, steps, "right") - 1
    return found


def _recount(comparer: Comparer, wanted: set[int]) -> None:
    listed = {
        each.candidate: each
        for each in comparer.comparison.divergences
        if each.candidate in wanted and NO_CANDIDATE not in (each.expected, each.actual) and each.stage != Stage.SHARD
    }
    # The reference's comparison does not support repeated resolvents.
    if not listed or DUPLICATES in comparer.modulo or not all(has_goals(s.header.level) for s in comparer.sources):
        return
    # Showing a saved report must not import the reference.
    from kgverify.engines.reference.comparison import compare_again

    rows = np.array(sorted(listed))
    again = compare_again(*comparer.load_pairs(rows), comparer.score_tolerance, lockstep=comparer.lockstep)
    for row, (one, other, second) in zip(rows.tolist(), again, strict=True):
        found = listed[row]
        # A tie is judged in the recorded order, which the reference's comparison does not see.
        is_tie = ORDER in comparer.modulo and "steps.choice" in (found.field, second.field if second else "")
        if is_tie or one != other:
            continue
        require(
            second is not None and second.gap is None and second.step == found.step,
            f"candidate {row}: the reference's comparison finds {second}, and step {found.step} is reported",
        )
