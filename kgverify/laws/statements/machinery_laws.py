"""Laws of the batch machinery: slots, batches, chunks, padding and order change no derivation."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Sizes
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import Law, law
from kgverify.laws.statements.compare_runs import differing
from kgverify.program.outcomes import Stage
from kgverify.trace.model.columns import are_equal, concatenate, select_candidates

FEWER = 6
"""The factor by which some laws reduce the slots and the candidates in a pool."""
MOST_ALONE = 8
"""The largest number of candidates of a run that are also proved alone."""


@law(
    "The same engine proves the same candidates again, equal in every bit, and leaves what it gave.",
    # Among fewer candidates, the last bits of a score may differ.
    runs_again=False,
    presumes=None,
)
def _repetition(case: Case) -> Iterator[Finding]:
    first = case.columns
    kept = deepcopy(first)
    again = case.engine.prove(case.candidates)
    yield from differing(case, again, Stage.RECYCLE, exactly=True)
    for columns, expected, actual in (
        (first, "those of the first run as they were", "overwritten by the second"),
        (again, "those of the first run in every bit", "others in the second run"),
    ):
        if not are_equal(kept, columns, equal_nan=True):
            yield Finding(-1, -1, Stage.RECYCLE, "columns", expected, actual)


def _in_parts(name: str, statement: str, divide: Callable[[int], Sequence[NDArray[np.int64]]]) -> Law:
    """Return the law that candidates have the same derivations if they are proved in parts.

    `divide` returns the rows of each part.
    """

    def find(case: Case) -> Iterator[Finding]:
        parts = divide(len(case.candidates.query))
        rows = np.concatenate(parts)
        columns = concatenate([case.engine.prove(case.candidates.take(part)) for part in parts])
        for finding in differing(case, columns, Stage.RECYCLE, select_candidates(case.columns, rows)):
            yield finding._replace(candidate=int(rows[finding.candidate])) if finding.candidate >= 0 else finding

    return Law(name, statement, find, presumes=None)


_candidate_order = _in_parts(
    "candidate-order",
    "The order of the candidates changes nothing in any derivation.",
    lambda num: [np.random.default_rng(num).permutation(num)],
)
_chunks = _in_parts(
    "chunks",
    "Candidates proved in parts, one part after the other, have the derivations that they have together.",
    lambda num: np.split(np.arange(num), np.arange(num)[:: max(1, num // 3)][1:]),
)
_alone = _in_parts(
    "alone",
    f"A candidate proved alone has the derivation that it has among others (tried on up to {MOST_ALONE} of a run).",
    lambda num: [np.array([row]) for row in np.unique(np.linspace(0, num - 1, min(num, MOST_ALONE)).astype(np.int64))],
)
_twice = _in_parts(
    "twice",
    "A candidate given twice has the same derivation twice.",
    lambda num: [np.repeat(np.arange(num), 2)],
)


def _resized(name: str, statement: str, change: Callable[[Sizes], Sizes]) -> Law:
    """Return the law that derivations do not change with the sizes of the batch."""

    def find(case: Case) -> Iterator[Finding]:
        if not case.pipeline.ignores_sizes:
            engine = case.make_pipeline(case.run, change(case.merged.sizes)).engine
            yield from differing(case, engine.prove(case.candidates), Stage.RECYCLE)

    return Law(name, statement, find, presumes=None)


_slots = _resized(
    "slots",
    f"With {FEWER} times fewer slots (with two, where there is one) no derivation changes.",
    lambda sizes: sizes._replace(slots=max(1, sizes.slots // FEWER) if sizes.slots > 1 else 2),
)
_padding = _resized(
    "padding",
    "More padding of goals and of steps changes no derivation.",
    lambda sizes: sizes._replace(atoms=sizes.atoms + 3, resolvents=sizes.resolvents + 9),
)
_windows = _resized(
    "windows",
    "Smaller windows of what is matched and scored at a time change no derivation.",
    lambda sizes: sizes._replace(
        match_window=max(1, sizes.match_window // 5), score_window=max(1, sizes.score_window // 5)
    ),
)
_pool = _resized(
    "pool",
    "A smaller pool of candidates handed over at once changes no derivation.",
    lambda sizes: sizes._replace(pool=max(1, sizes.pool // (2 * FEWER))),
)
