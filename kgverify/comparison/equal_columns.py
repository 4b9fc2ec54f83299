"""Equality of whole columns: equal blocks are recognized without looking at a single step."""

import ctypes
import os
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, Columns
from kgverify.trace.model.schema import Column, EqualityRule, Schema

_MEMCMP: Final = ctypes.CDLL(None).memcmp if os.name == "posix" else None
"""Compares bytes in memory, as the C library does."""


def has_same_bytes(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    """Return whether two arrays hold the same bytes.

    This is several times faster than `numpy.array_equal`, which builds a mask.
    """
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    if _MEMCMP is None or not (expected.flags.c_contiguous and actual.flags.c_contiguous):
        return expected.tobytes() == actual.tobytes()
    places = ctypes.c_void_p(expected.ctypes.data), ctypes.c_void_p(actual.ctypes.data)
    return not expected.size or _MEMCMP(*places, ctypes.c_size_t(expected.nbytes)) == 0


def has_equal_columns(
    expected: Columns,
    actual: Columns,
    ignored: frozenset[str],
    score_tolerance: float,
    schema: Schema = KNOWLEDGE_GRAPH,
) -> tuple[bool, bool]:
    """Return whether every field agrees, and whether agreeing scores differ in bits. Outputs of stages are not compared."""
    has_other_bits = False
    for each in schema.compared:
        if each.name in ignored:
            continue
        left, right = schema.values(expected, each.path), schema.values(actual, each.path)
        num_steps = count_terms(each, expected)
        is_equal, is_rounded = agree(each, left, right, score_tolerance, num_steps)
        if not is_equal:
            return False, False
        has_other_bits |= is_rounded
    return True, has_other_bits


def count_terms(column: Column, columns: Columns) -> NDArray[np.integer]:
    """Return the number of scores that each value of a column sums up: the steps of the candidate, or of the path."""
    if not column.of_search:
        return columns.candidates.num_steps
    # A path may have steps that do not count in its depth.
    terms = columns.steps.depth.astype(np.int64) + 1
    return np.repeat(terms, columns.steps.num_resolvents) if column.rows == "resolvents" else terms


def agree(
    column: Column,
    expected: NDArray[Any],
    actual: NDArray[Any],
    score_tolerance: float,
    num_steps: NDArray[np.integer],
) -> tuple[bool, bool]:
    """Return whether the values of a column agree, and whether agreeing scores differ in bits.

    num_steps: the steps of each candidate, if it is a column of candidates
    """
    if column.rule is EqualityRule.SCORE:
        return has_equal_scores(expected, actual, score_tolerance)
    if column.rule is EqualityRule.SUM:
        return has_equal_sums(expected, actual, num_steps, score_tolerance), False
    return has_same_bytes(expected, actual) or np.array_equal(expected, actual), False


def differ_in(
    column: Column, tolerance: float, *values: NDArray[Any], num_steps: NDArray[np.integer] | None = None
) -> NDArray[np.bool_]:
    """Return a mask of the rows in which a column differs, scores by more than the tolerance.

    num_steps: as in `agree`; sums are compared exactly without it
    """
    if column.rule is EqualityRule.SUM and num_steps is not None:
        return ~are_equal_sums(values[0], values[1], num_steps, tolerance)
    if column.rule is EqualityRule.SCORE:
        left, right = (side.astype(np.float64) for side in values)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            is_score_other: NDArray[np.bool_] = ~((left == right) | (np.abs(left - right) <= tolerance))
        return is_score_other
    differs: NDArray[np.bool_] = np.not_equal(*values)
    in_rows: NDArray[np.bool_] = differs if differs.ndim == 1 else np.logical_or.reduce(differs, axis=1)
    return in_rows


def has_equal_scores(
    expected: NDArray[np.floating], actual: NDArray[np.floating], tolerance: float
) -> tuple[bool, bool]:
    """Return whether scores agree within the tolerance, and whether agreeing scores differ in bits.

    Bits are compared in the coarser of the two types.
    """
    if len(expected) != len(actual):
        return False, False
    if expected.dtype == actual.dtype and bool((expected == actual).all()):
        return True, False
    x, y = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if not bool(((x == y) | (np.abs(x - y) <= tolerance)).all()):
            return False, False
        coarse = min(expected.dtype, actual.dtype, key=lambda each: each.itemsize)
        return True, not np.array_equal(expected.astype(coarse), actual.astype(coarse))


class Rounded(NamedTuple):
    """The scores that agree but differ in bits: how many there are, and the largest difference in nats."""

    num_differing: int = 0
    largest: float = 0.0

    def plus(self, other: "Rounded") -> "Rounded":
        """Return the sum of both counts."""
        return Rounded(self.num_differing + other.num_differing, max(self.largest, other.largest))


def count_rounded(expected: NDArray[np.floating], actual: NDArray[np.floating]) -> Rounded:
    """Count the pairs of scores that differ in the bits of the coarser of the two types."""
    coarse = min(expected.dtype, actual.dtype, key=lambda each: each.itemsize)
    with np.errstate(invalid="ignore", over="ignore"):
        differs = expected.astype(coarse) != actual.astype(coarse)
        apart = np.abs(expected[differs].astype(np.float64) - actual[differs].astype(np.float64))
    return Rounded(int(differs.sum()), float(apart.max(initial=0.0)))


def has_equal_sums(
    expected: NDArray[np.float64], actual: NDArray[np.float64], num_steps: NDArray[np.integer], score_tolerance: float
) -> bool:
    """Return whether sums of log-probabilities agree within the tolerance that their steps allow."""
    return len(expected) == len(actual) and (
        bool((expected == actual).all()) or bool(are_equal_sums(expected, actual, num_steps, score_tolerance).all())
    )


def are_equal_sums(
    expected: NDArray[np.float64], actual: NDArray[np.float64], num_steps: NDArray[np.integer], score_tolerance: float
) -> NDArray[np.bool_]:
    """Return a mask of the sums of log-probabilities that agree within the tolerance that their steps allow."""
    with np.errstate(invalid="ignore", over="ignore"):
        found: NDArray[np.bool_] = expected == actual
        return found | (np.abs(expected - actual) <= bound_sums(expected, num_steps, score_tolerance))


def bound_sums(
    sums: NDArray[np.float64], num_steps: NDArray[np.integer], score_tolerance: float
) -> NDArray[np.float64]:
    """Return the difference that the steps of each sum of log-probabilities allow, in nats."""
    size = np.where(np.isfinite(sums), np.abs(sums), 0.0)
    bound: NDArray[np.float64] = 2 * score_tolerance * np.maximum(1, num_steps.astype(np.int64)) + 1e-9 * np.maximum(
        1.0, size
    )
    return bound
