"""Laws of the batch machinery: slots, batches, chunks, padding and order change no derivation."""

from collections.abc import Iterator, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.laws.statements.compare_runs import differing, is_same
from kgverify.program.outcomes import Stage
from kgverify.trace.model.columns import concatenate, select_candidates

FEWER = 6
"""The factor by which some laws reduce slots, and candidates in a pool."""
MOST_ALONE = 8
"""Candidates of a run that are proved alone."""


@law("The same engine proves the same candidates again, equal in every bit, and leaves what it gave.", presumes=None)
def _repetition(case: Case) -> Iterator[Finding]:
    first = case.columns
    kept = deepcopy(first)
    again = case.engine.prove(case.candidates)
    yield from differing(case, again, Stage.RECYCLE, exactly=True)
    for columns, expected, actual in (
        (first, "those of the first run as they were", "overwritten by the second"),
        (again, "those of the first run in every bit", "others in the second run"),
    ):
        if not is_same(kept, columns):
            yield Finding(-1, -1, Stage.RECYCLE, "columns", expected, actual)


@law("The order of the candidates changes nothing in any derivation.", presumes=None)
def _candidate_order(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    return _proved_in_parts(case, [np.random.default_rng(num).permutation(num)])


@law(
    "Candidates proved in parts, one part after the other, have the derivations that they have together.",
    presumes=None,
)
def _chunks(case: Case) -> Iterator[Finding]:
    rows = np.arange(len(case.candidates.query))
    size = max(1, len(rows) // 3)
    return _proved_in_parts(case, [rows[i : i + size] for i in range(0, len(rows), size)])


@law(
    f"A candidate proved alone has the derivation that it has among others (tried on up to {MOST_ALONE} of a run).",
    presumes=None,
)
def _alone(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    rows = np.unique(np.linspace(0, num - 1, min(num, MOST_ALONE)).astype(np.int64))
    return _proved_in_parts(case, np.split(rows, len(rows)))


@law("A candidate given twice has the same derivation twice.", presumes=None)
def _twice(case: Case) -> Iterator[Finding]:
    return _proved_in_parts(case, [np.repeat(np.arange(len(case.candidates.query)), 2)])


def _proved_in_parts(case: Case, parts: Sequence[NDArray[np.int64]]) -> Iterator[Finding]:
    """Yield the first difference of each derivation if candidates, by their rows, are proved in these parts."""
    rows = np.concatenate(parts)
    columns = concatenate([case.engine.prove(case.candidates.take(part)) for part in parts])
    for finding in differing(case, columns, Stage.RECYCLE, select_candidates(case.columns, rows)):
        yield finding._replace(candidate=int(rows[finding.candidate])) if finding.candidate >= 0 else finding


@law(f"With {FEWER} times fewer slots (with two, where there is one) no derivation changes.", presumes=None)
def _slots(case: Case) -> Iterator[Finding]:
    slots = case.merged.sizes.slots
    return _resized(case, slots=max(1, slots // FEWER) if slots > 1 else 2)


@law("More padding of goals and of steps changes no derivation.", presumes=None)
def _padding(case: Case) -> Iterator[Finding]:
    sizes = case.merged.sizes
    return _resized(case, atoms=sizes.atoms + 3, resolvents=sizes.resolvents + 9)


@law("Smaller windows of what is matched and scored at a time change no derivation.", presumes=None)
def _windows(case: Case) -> Iterator[Finding]:
    sizes = case.merged.sizes
    return _resized(case, match_window=max(1, sizes.match_window // 5), score_window=max(1, sizes.score_window // 5))


@law("A smaller pool of candidates handed over at once changes no derivation.", presumes=None)
def _pool(case: Case) -> Iterator[Finding]:
    return _resized(case, pool=max(1, case.merged.sizes.pool // (2 * FEWER)))


def _resized(case: Case, **sizes: int) -> Iterator[Finding]:
    engine = case.make_pipeline(case.run, case.merged.sizes._replace(**sizes)).engine
    return differing(case, engine.prove(case.candidates), Stage.RECYCLE)
