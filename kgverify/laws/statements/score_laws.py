"""Laws of scores: each follows the policy's formula, and depends on the goal and the resolvent alone."""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import Policy
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.program.outcomes import GoalKind
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, number_variables

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
)
def _score_formula(case: Case) -> Iterator[Finding]:
    resolvents = case.columns.resolvents
    step_of = np.repeat(np.arange(len(case.owner)), case.columns.steps.num_resolvents)
    is_goal = resolvents.kind == GoalKind.GOAL
    formula = _shortest if case.run.policy.name == "shortest" else _two_tower(case.run.policy)
    # Where names are kept, scores are those of canonical goals all the same.
    number = tuple if case.limits.dialect.forgets_names else lambda atoms: number_variables(iter(atoms))
    expected = np.array(
        [formula(number(step.goal), number(each.atoms)) for step in case.steps for each in step.resolvents]
    )
    allowed = case.score_error + (ROUNDING if case.run.policy.weights else 0.0)
    is_wrong = is_goal & ~(np.abs(resolvents.score - expected) <= allowed)
    for each in np.flatnonzero(is_wrong):
        yield case.of_step(
            step_of[each], Stage.SCORE, "score", repr(float(expected[each])), repr(float(resolvents.score[each]))
        )


def _shortest(goal: Atoms, atoms: Atoms) -> float:
    return -(len(atoms) + len({term for atom in atoms for term in atom[1:] if term < 0}) / 64.0)


def _two_tower(policy: Policy) -> Callable[[Atoms, Atoms], float]:
    """Return the score of docs/semantics.md, in float64."""
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

    def score(goal: Atoms, atoms: Atoms) -> float:
        if not goal or not atoms:
            return 0.0
        f, g = tower(goal), tower(atoms)
        return float(f @ g / np.sqrt(len(f)))

    return score
