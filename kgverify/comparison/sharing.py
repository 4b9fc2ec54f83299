"""What two traces share, whatever their levels: their columns where both have them, and the digests of their steps.

A trace without goals cannot be renumbered, nor its digests computed anew. So it is the other trace, if that has goals,
which is brought into its numbering of names and stripped of the columns that its digests do not count.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from kgverify.comparison.fields import column_names, share_fields
from kgverify.comparison.numbering import Numbering
from kgverify.trace.model.columns import Columns, empty_columns
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.trace import Trace

DIGEST = "digests.sequence"
"""The field in which steps are compared where one of the traces keeps no goals."""

_COUNTED = ("steps.dropped_atoms", "steps.dropped_resolvents")


class Shared(NamedTuple):
    """Two traces made comparable.

    expected, actual: in one numbering, without the columns that only one has; digests as they can be compared
    not_compared:     columns that one of them lacks
    by_digest:        whether steps are compared by digests that cannot be computed from what is compared
    reasons:          why digests cannot be compared
    full:             the traces as they came, in that numbering, with whatever goals and scores they have
    """

    expected: Trace
    actual: Trace
    not_compared: tuple[str, ...]
    by_digest: bool
    reasons: tuple[str, ...]
    full: tuple[Trace, Trace]


def share(expected: Trace, actual: Trace, numbering: Numbering | None = None) -> Shared:
    """What the two traces share.

    numbering: how their ids become the same, where that is known; of parts of one pair of traces
    """
    numbering = numbering or Numbering(expected, actual)
    full = numbering.convert(0, expected), numbering.convert(1, actual)
    if has_goals(expected.header.level) and has_goals(actual.header.level):
        left, right, lacking = share_fields(*full)
        return Shared(left, right, lacking, False, (), full)
    reasons = [*numbering.reasons]
    uncounted = [_uncounted(trace) for trace in full]
    for trace, own, other in zip(full, uncounted, reversed(uncounted), strict=True):
        if other - own and not has_goals(trace.header.level):
            reasons.append(
                f"the digests of {trace.source} count {', '.join(sorted(other - own))}, which the other trace does not know"
            )
    every = column_names(expected.columns)
    lacking = tuple(sorted((every - full[0].fields) | (every - full[1].fields)))
    blank = [_count_no_more(trace, uncounted[0] | uncounted[1]) for trace in full]
    if reasons:
        # Digests that cannot be compared are not: the reason makes the verdict INCONCLUSIVE.
        zeros = [trace.digests._replace(sequence=np.zeros_like(trace.digests.sequence)) for trace in blank]
        blank = [replace(trace, digests=digests) for trace, digests in zip(blank, zeros, strict=True)]
    left, right = (replace(trace, columns=_blank(trace.columns, lacking)) for trace in blank)
    return Shared(left, right, lacking, not reasons, tuple(reasons), full)


def counts_alike(expected: Trace, actual: Trace) -> bool:
    """Whether the digests of both, as they are stored, count the same columns."""
    return _uncounted(expected) == _uncounted(actual)


def _uncounted(trace: Trace) -> frozenset[str]:
    """The columns that the trace's digests count as 0."""
    if has_goals(trace.header.level) or "steps.choice" in trace.fields:
        return frozenset(_COUNTED) - trace.fields
    return frozenset(_COUNTED) & frozenset(trace.header.absent)


def _count_no_more(trace: Trace, uncounted: frozenset[str]) -> Trace:
    """The trace with digests that do not count these columns, where they can be computed."""
    if not has_goals(trace.header.level) or not uncounted & trace.fields:
        return trace
    steps = trace.columns.steps
    for name in uncounted:
        field = name.removeprefix("steps.")
        steps = steps._replace(**{field: np.zeros_like(getattr(steps, field))})
    columns = trace.columns._replace(steps=steps)
    return replace(trace, columns=columns, digests=compute_digests(columns))


def _blank(columns: Columns, lacking: tuple[str, ...]) -> Columns:
    """The columns without those that are lacking: zeros, no atoms, and no resolvents where these are not counted."""
    if "steps.num_resolvents" in lacking:
        columns = columns._replace(resolvents=empty_columns().resolvents)
    for name in lacking:
        level, field = name.split(".")
        column = getattr(getattr(columns, level), field)
        blank = np.zeros((0, 3), np.int32) if field in ("goal_atoms", "atoms") else np.zeros_like(column)
        columns = columns._replace(**{level: getattr(columns, level)._replace(**{field: blank})})
    return columns
