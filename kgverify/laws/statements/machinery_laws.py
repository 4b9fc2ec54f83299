"""Laws of the batch machinery: slots, batches, chunks, padding and order change no derivation."""

from collections.abc import Iterator
from copy import deepcopy

import numpy as np

from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.laws.statements.compare_runs import differing, differing_among, is_same
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import concatenate, select_candidates

FEWER = 6
"""The factor by which some laws reduce slots, and candidates in a pool."""
MOST_ALONE = 8
"""Candidates of a run that are proved alone."""


@law("The same engine proves the same candidates again, equal in every bit, and leaves what it gave.", presumes=None)
def _repetition(case: Case) -> Iterator[Finding]:
    first = case.columns
    kept = deepcopy(first)
    yield from differing(case, case.engine.prove(case.candidates), Stage.RECYCLE, exactly=True)
    if not is_same(kept, first, 0.0):
        yield Finding(
            -1, -1, Stage.RECYCLE, "columns", "those of the first run as they were", "overwritten by the second"
        )


@law("The order of the candidates changes nothing in any derivation.", presumes=None)
def _candidate_order(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    order = np.random.default_rng(num).permutation(num)
    columns = case.engine.prove(case.candidates.take(order))
    yield from differing_among(case, columns, num, np.argsort(order))


@law(
    "Candidates proved in parts, one part after the other, have the derivations that they have together.",
    presumes=None,
)
def _chunks(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    size = max(1, num // 3)
    parts = [case.engine.prove(case.candidates.take(slice(i, i + size))) for i in range(0, num, size)]
    yield from differing(case, concatenate(parts), Stage.RECYCLE)


@law(
    f"A candidate proved alone has the derivation that it has among others (tried on up to {MOST_ALONE} of a run).",
    presumes=None,
)
def _alone(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    rows = np.unique(np.linspace(0, num - 1, min(num, MOST_ALONE)).astype(np.int64))
    parts = [case.engine.prove(case.candidates.take(slice(i, i + 1))) for i in rows.tolist()]
    for finding in differing(case, concatenate(parts), Stage.RECYCLE, select_candidates(case.columns, rows)):
        yield finding._replace(candidate=int(rows[finding.candidate]))


@law("A candidate given twice has the same derivation twice.", presumes=None)
def _twice(case: Case) -> Iterator[Finding]:
    num = len(case.candidates.query)
    rows = np.repeat(np.arange(num), 2)
    columns = case.engine.prove(case.candidates.take(rows))
    for half in (0, 1):
        yield from differing_among(case, columns, 2 * num, np.arange(half, 2 * num, 2))


@law(f"With {FEWER} times fewer slots (with two, where there is one) no derivation changes.", presumes=None)
def _slots(case: Case) -> Iterator[Finding]:
    slots = case.sizes.slots
    return _resized(case, slots=max(1, slots // FEWER) if slots > 1 else 2)


@law("More padding of goals and of steps changes no derivation.", presumes=None)
def _padding(case: Case) -> Iterator[Finding]:
    return _resized(case, atoms=case.sizes.atoms + 3, resolvents=case.sizes.resolvents + 9)


@law("Smaller windows of what is matched and scored at a time change no derivation.", presumes=None)
def _windows(case: Case) -> Iterator[Finding]:
    match_window, score_window = (max(1, each // 5) for each in (case.sizes.match_window, case.sizes.score_window))
    return _resized(case, match_window=match_window, score_window=score_window)


@law("A smaller pool of candidates handed over at once changes no derivation.", presumes=None)
def _pool(case: Case) -> Iterator[Finding]:
    return _resized(case, pool=max(1, case.sizes.pool // (2 * FEWER)))


def _resized(case: Case, **sizes: int) -> Iterator[Finding]:
    engine = case.vary(sizes=case.sizes._replace(**sizes))
    return differing(case, engine.prove(case.candidates), Stage.RECYCLE)
