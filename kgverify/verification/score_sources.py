"""Wrong scores that belong to another step: those of the call before, or of another row of the batch."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kgverify.comparison.result import Divergence
from kgverify.comparison.step_view import StepView
from kgverify.program.outcomes import DifferenceClass
from kgverify.trace.model.columns import Columns, starts_of

MIN_STEPS: Final = 3
"""The wrong steps of which the scores must belong to others before that is said."""
MIN_SHARE: Final = 0.9
MIN_OF_ALL: Final = 0.25
"""The share of all steps with wrong scores whose scores must belong to others."""
MAX_SPREAD: Final = 1e-4
"""The largest difference between two equal scores, in standard deviations of the expected ones."""
MAX_COMMON: Final = 0.05
"""The share of steps that may begin with a score before that score says nothing, such as 0 for a single resolvent."""


class ScoreSource(NamedTuple):
    """The steps to which wrong scores belong: the class, the situation in words, and the evidence."""

    kind: DifferenceClass
    situation: str
    evidence: str


SCORES_BEFORE: Final = "scores of the call before"
_BEFORE: Final = -1
_SAME: Final = 0
_FOUND: Final = {
    _BEFORE: (
        DifferenceClass.STALE,
        SCORES_BEFORE,
        "at the step before this one: scores of the call before",
    ),
    _SAME: (DifferenceClass.FOREIGN, "scores of another row", "at the same step: scores of another row of the batch"),
}


def find_score_source(
    expected: Columns,
    divergences: Sequence[Divergence],
    views: Mapping[tuple[int, int], tuple[StepView, StepView]],
    tolerance: float,
) -> ScoreSource | None:
    """Return where wrong scores come from, if nearly all of them are those expected of another candidate's step.

    expected: the columns of the expected run, in which the steps of a batch of candidates have the same numbers
    """
    starts, first_step = starts_of(expected.steps.num_resolvents), starts_of(expected.candidates.num_steps)
    scores = expected.resolvents.score.astype(np.float64)
    number = np.arange(first_step[-1]) - np.repeat(first_step[:-1], np.diff(first_step))
    listed = np.flatnonzero(np.diff(starts) > 0)
    order = listed[np.argsort(scores[starts[listed]], kind="stable")]
    firsts = scores[starts[order]]
    spread = float(np.std(scores[np.isfinite(scores)])) if np.isfinite(scores).any() else 0.0
    # A wide tolerance would find scores of other steps by chance.
    tolerance = min(tolerance, MAX_SPREAD * spread)
    num_wrong = sum(each.field == "resolvents.score" for each in divergences)
    num_known, num_found = dict.fromkeys(_FOUND, 0), dict.fromkeys(_FOUND, 0)
    for each in divergences:
        view = views.get((each.candidate, each.step))
        if each.field != "resolvents.score" or view is None or not view[1].resolvents:
            continue
        actual = np.array([r.score for r in view[1].resolvents])
        low, high = np.searchsorted(firsts, [actual[0] - tolerance, actual[0] + tolerance])
        if not np.isfinite(actual[0]) or high - low > MAX_COMMON * len(listed):
            continue
        num_known[_SAME] += 1
        # The call before the first one is not in the run.
        num_known[_BEFORE] += each.step > 0
        offsets = set()
        for row in order[low:high].tolist():
            length = min(len(actual), int(starts[row + 1] - starts[row]))
            own = row == first_step[each.candidate] + each.step
            if not own and np.allclose(scores[starts[row] :][:length], actual[:length], rtol=0, atol=tolerance):
                offsets.add(int(number[row]) - each.step)
        for offset in offsets & num_found.keys():
            num_found[offset] += 1
    for offset, num in num_found.items():
        if num >= MIN_STEPS and num >= MIN_SHARE * num_known[offset] and num >= MIN_OF_ALL * num_wrong:
            kind, situation, words = _FOUND[offset]
            return ScoreSource(
                kind,
                situation,
                f"the wrong scores of {num:,} of {num_known[offset]:,} steps are those expected of another candidate {words}",
            )
    return None
