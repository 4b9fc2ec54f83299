"""Columns that follow from a formula: those of a candidate depend on its number alone.

So the same formula gives what any range, selection or order of candidates must be, without the code that joins, selects and
reads columns. Counts and values are on both sides of what 8, 16 and 32 bits hold.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import Candidates, Columns, Resolvents, Steps
from kgverify.trace.read.data_file import BLOCK_STEPS

NUM_STEPS: Final = np.array([2, 0, 300, 1, 3, 70, 1, 5, BLOCK_STEPS + 100, 1, 2, 0, 4])
"""The steps of each candidate: more than a byte counts, more than one block has, and none."""
LONG: Final = 2
"""A candidate of more steps than a byte counts."""
LARGE: Final = 8
"""A candidate of more steps than one block has."""
_WIDE: Final = 5
"""A candidate whose first step has more resolvents than 16 bits count, and a goal of more atoms than a byte counts."""
_NUM_WIDE: Final = (1 << 16) + 3
MOST: Final = 1 << 31
"""The values from 0 on that a number of 32 bits has."""
_UINT32: Final = 1 << 32


def make_columns(
    numbers: Iterable[int], dtype: "type[np.floating[Any]]" = np.float64, num_clauses: int = MOST
) -> Columns:
    """Return the columns of the candidates with these numbers, in this order.

    dtype:       the type of scores
    num_clauses: the rules, and the facts, of the program
    """
    of = np.fromiter(numbers, np.int64)
    candidates = Candidates(
        query=(of * 400_000_009 % MOST).astype(np.int32),
        side=(of % 3).astype(np.int8),
        atom=np.column_stack((of % 5, of * 100_000_007 % MOST, -1 - of)).astype(np.int32),
        num_steps=NUM_STEPS[of].astype(np.uint32),
        outcome=(of % 4).astype(np.int8),
        is_limited=(of // 4 % 2).astype(np.uint8),
        log_probability=of / -3,
    )
    return make_steps(*_expand(of, NUM_STEPS[of]), dtype, num_clauses)._replace(candidates=candidates)


def make_steps(
    candidate: NDArray[np.int64],
    step: NDArray[np.int64],
    dtype: "type[np.floating[Any]]" = np.float64,
    num_clauses: int = MOST,
) -> Columns:
    """Return steps by their candidate and their place in it, without any candidate."""
    key = candidate * 20_011 + step
    is_wide = (candidate == _WIDE) & (step == 0)
    num_atoms = np.where(is_wide, 300, 1 + key % 2)
    num_resolvents = np.where(is_wide, _NUM_WIDE, key % 3)
    owner, ordinal = _expand(key, num_resolvents)
    row = owner * 70_001 + ordinal
    kind = np.where(ordinal < 3, row % 3, 1)
    origin_kind = row // 3 % 3
    num_made = np.where(kind == 0, 1 + row % 2, 0)
    return Columns(
        make_nothing(),
        Steps(
            depth=(step % (1 << 16)).astype(np.uint16),
            num_atoms=num_atoms.astype(np.uint16),
            num_resolvents=num_resolvents.astype(np.uint32),
            dropped_atoms=(key * 2_654_435_761 % _UINT32).astype(np.uint32),
            dropped_resolvents=(key // 3 * 40_503 % _UINT32).astype(np.uint32),
            choice=(key * 7_919 % MOST).astype(np.int32),
            outcome=(key // 2 % 4).astype(np.int8),
            goal_atoms=_make_atoms(key, num_atoms),
        ),
        Resolvents(
            kind=kind.astype(np.uint8),
            num_atoms=num_made.astype(np.uint16),
            origin_kind=origin_kind.astype(np.uint8),
            origin=np.where(origin_kind == 0, 0, row * 16_807 % num_clauses).astype(np.int32),
            score=(row % 1_000_003 / -7).astype(dtype),
            atoms=_make_atoms(row, num_made),
        ),
    )


def make_nothing() -> Candidates:
    """Return no candidates."""
    none = np.zeros(0)
    return Candidates(
        query=none.astype(np.int32),
        side=none.astype(np.int8),
        atom=none.astype(np.int32).reshape(0, 3),
        num_steps=none.astype(np.uint32),
        outcome=none.astype(np.int8),
        is_limited=none.astype(np.uint8),
        log_probability=none,
    )


def _expand(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each of the rows that counts count its key, and its place among those of that key."""
    ends = counts.cumsum()
    return np.repeat(keys, counts), np.arange(counts.sum()) - np.repeat(ends - counts, counts)


def _make_atoms(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int32]:
    owner, ordinal = _expand(keys, counts)
    number = owner * 3 + ordinal
    return np.column_stack((number % 3, number * 1_000_003 % MOST, -1 - number % 70_001)).astype(np.int32)
