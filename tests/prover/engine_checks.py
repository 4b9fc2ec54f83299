"""Checks that two traces are the same, and engines small enough for tests."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from random_programs import Problem

from kgverify import Limits
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Program
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.state import Layout
from kgverify.trace.model.columns import Columns, starts_of

SMALL = {"slots": 5, "match_window": 64, "pool": 64}
"""Few slots and a window that a fan does not fit into: every problem recycles and waits."""


def small_layout(limits: Limits, **sizes: int) -> Layout:
    return choose_layout(limits, **{**SMALL, "score_window": limits.max_resolvents + 8, **sizes})


def reference(problem: Problem, policy: Policy = SHORTEST) -> ReferenceEngine:
    return ReferenceEngine(problem.program, problem.limits, policy)


def eager(program: Program, limits: Limits, policy: Policy = SHORTEST, **sizes: int) -> CompiledEngine:
    return CompiledEngine(program, limits, policy, mode="eager", device="cpu", layout=small_layout(limits, **sizes))


def difference(expected: Columns, actual: Columns, score_error: float = 0.0) -> str:
    """The first column that differs; empty if none does. Log-probabilities are sums of rounded logarithms."""
    for level_name, level in zip(Columns._fields, expected, strict=True):
        for name in level._fields:
            left, right = getattr(level, name), getattr(getattr(actual, level_name), name)
            if left.shape != right.shape:
                return f"{level_name}.{name}: shapes {left.shape} and {right.shape}"
            if name == "score":
                is_equal = np.abs(left - right) <= score_error
            elif name == "log_probability":
                is_equal = np.abs(left - right) <= 1e-9 + 100 * score_error
            else:
                if left.dtype != right.dtype:
                    return f"{level_name}.{name}: {left.dtype} and {right.dtype}"
                is_equal = left == right
            if not is_equal.all():
                place = tuple(np.argwhere(~is_equal)[0].tolist())
                return f"{level_name}.{name}{list(place)}: expected {left[place]}, actual {right[place]}"
    return ""


def assert_identical(expected: Columns, actual: Columns, log_probability_error: float = 0.0) -> None:
    """Every bit of two traces; compilers may round the sum of logarithms otherwise."""
    for level, other in zip(expected, actual, strict=True):
        for name, left, right in zip(level._fields, level, other, strict=True):
            assert left.dtype == right.dtype, name
            if name == "log_probability":
                np.testing.assert_allclose(right, left, rtol=0, atol=log_probability_error, err_msg=name)
            else:
                np.testing.assert_array_equal(right, left, err_msg=name)


def near_ties(columns: Columns, margin: float) -> NDArray[np.bool_]:
    """bool [T]: whether a step's two highest scores are closer than the margin."""
    starts = starts_of(columns.steps.num_resolvents)
    score = columns.resolvents.score
    pieces = (np.sort(score[a:b]) for a, b in pairwise(starts))
    return np.array([len(each) > 1 and each[-1] - each[-2] <= margin for each in pieces], np.bool_)


def owners(columns: Columns) -> NDArray[np.int64]:
    """int64 [T]: the candidate of each step."""
    return np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)


def first_kinds(columns: Columns) -> NDArray[np.uint8]:
    """uint8 [T]: TRUE or FALSE where it stands alone in a step."""
    return columns.resolvents.kind[starts_of(columns.steps.num_resolvents)[:-1]]


def proving_steps(columns: Columns) -> NDArray[np.bool_]:
    return first_kinds(columns) == GoalKind.TRUE


def resolvents_by_step(columns: Columns) -> list[list[tuple[Any, ...]]]:
    """List the resolvents of each step, each as (kind, origin kind, its atoms)."""
    atoms = [tuple(row) for row in columns.resolvents.atoms.tolist()]
    atom_starts = starts_of(columns.resolvents.num_atoms).tolist()
    each = [
        (kind, origin_kind, tuple(atoms[a:b]))
        for kind, origin_kind, a, b in zip(
            columns.resolvents.kind.tolist(),
            columns.resolvents.origin_kind.tolist(),
            atom_starts[:-1],
            atom_starts[1:],
            strict=True,
        )
    ]
    starts = starts_of(columns.steps.num_resolvents).tolist()
    return [each[a:b] for a, b in pairwise(starts)]


def try_few_clauses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slots of five clauses count as heavy, and of thirteen as the heaviest; each tick tries a few of them."""
    from kgverify.prover.fused import ticks

    monkeypatch.setattr(ticks, "_LIGHT", ticks._Trying(4, 4, 1, 32, 1, 64))
    monkeypatch.setattr(ticks, "_HEAVY", ticks._Trying(12, 8, 1, 2, 1, 64))
    monkeypatch.setattr(ticks, "_HEAVIEST", ticks._Trying(1 << 62, 16, 1, 2, 1, 64))
