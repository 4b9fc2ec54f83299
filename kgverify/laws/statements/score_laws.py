"""Laws of scores: each follows the policy's formula, and depends on the goal and the resolvent alone."""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.adapters.resolution import Atoms
from kgverify.engines.policy import Policy
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.program.outcomes import GoalKind
from kgverify.program.stages import Stage
from kgverify.trace.model.columns import starts_of

ROUNDING = 1e-9
"""The error of the formula itself, computed in float64."""


@law(
    "A score depends on the goal and the resolvent alone: equal ones have equal scores, within twice the declared error.",
    needs_rows=False,
)
def _score_of_step(case: Case) -> Iterator[Finding]:
    seen: dict[tuple[Atoms, Atoms], float] = {}
    for row in range(len(case.owner)):
        step = case.steps[row]
        for each in step.resolvents:
            if each.kind != GoalKind.GOAL:
                continue
            first = seen.setdefault((step.goal, each.atoms), each.score)
            if not abs(first - each.score) <= 2 * case.score_error:
                actual = f"{each.score!r} for {case.names.goal(each.atoms)}"
                yield case.of_step(row, Stage.SCORE, "score", f"{first!r}, as elsewhere", actual)
                break


@law(
    "A score is what the policy's formula gives in float64, exactly for `shortest`, else within the declared error.",
    needs_rows=False,
    is_replica=True,
)
def _score_formula(case: Case) -> Iterator[Finding]:
    resolvents = case.columns.resolvents
    step_of = np.repeat(np.arange(len(case.owner)), case.columns.steps.num_resolvents)
    is_goal = resolvents.kind == GoalKind.GOAL
    if case.run.policy.name == "shortest":
        expected = _shortest(resolvents.atoms, resolvents.num_atoms)
    else:
        expected = _two_tower(case, step_of)
    allowed = case.score_error + (ROUNDING if case.run.policy.weights else 0.0)
    is_wrong = is_goal & ~(np.abs(resolvents.score - expected) <= allowed)
    for each in np.flatnonzero(is_wrong):
        yield case.of_step(
            step_of[each], Stage.SCORE, "score", repr(float(expected[each])), repr(float(resolvents.score[each]))
        )


def _shortest(atoms: NDArray[np.int32], num_atoms: NDArray[np.uint16]) -> NDArray[np.float64]:
    starts = starts_of(num_atoms)
    variables = atoms[:, 1:].reshape(-1)
    owner = np.repeat(np.arange(len(num_atoms)), 2 * num_atoms.astype(np.int64))
    distinct = np.unique(np.column_stack((owner, variables))[variables < 0], axis=0)[:, 0]
    num_variables = np.bincount(distinct, minlength=len(num_atoms))
    return -(np.diff(starts) + num_variables / 64.0)


def _two_tower(case: Case, step_of: NDArray[np.int64]) -> NDArray[np.float64]:
    tower = _tower_of(case.run.policy)
    resolvents, steps = case.columns.resolvents, case.columns.steps
    atoms = [tuple(row) for row in resolvents.atoms.tolist()]
    goals = [tuple(row) for row in steps.goal_atoms.tolist()]
    bounds = list(pairwise(starts_of(resolvents.num_atoms).tolist()))
    goal_bounds = list(pairwise(starts_of(steps.num_atoms).tolist()))
    expected = np.zeros(len(bounds))
    for i, (begin, end) in enumerate(bounds):
        goal = tuple(goals[slice(*goal_bounds[step_of[i]])])
        if begin < end and goal:
            f, g = tower(goal), tower(tuple(atoms[begin:end]))
            expected[i] = f @ g / np.sqrt(len(f))
    return expected


def _tower_of(policy: Policy):  # type: ignore[no-untyped-def]
    """Return f of docs/semantics.md, in float64."""
    w = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}

    def argument(term: int) -> NDArray[np.float64]:
        row: NDArray[np.float64] = w["embedding.variable"][-1 - term] if term < 0 else w["embedding.constant"][term]
        return row

    @cache
    def tower(atoms: Atoms) -> NDArray[np.float64]:
        embedded = [w["embedding.predicate"][p] + argument(a) - argument(b) for p, a, b in atoms]
        x: NDArray[np.float64] = w["input.weight"] @ (sum(embedded) / len(embedded)) + w["input.bias"]
        for i in range(policy.num_blocks):
            x = x + np.maximum(w[f"block.{i}.weight"] @ x + w[f"block.{i}.bias"], 0)
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"block.{i}.norm.weight"] + w[f"block.{i}.norm.bias"]
        return x

    return tower
