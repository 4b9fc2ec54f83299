"""Laws of scores: each follows the policy's formula, and depends on the goal and the resolvent alone."""

from collections.abc import Iterator

import numpy as np

from kgverify.engines.plain.two_tower import score_two_tower
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import score_shortest
from kgverify.step.resolvent import Resolvent

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
    policy = case.run.policy
    formula = score_shortest if policy.name == "shortest" else score_two_tower(policy.weights, policy.num_blocks)
    # Where names are kept, scores are those of canonical goals all the same.
    expected = np.array(
        [
            score
            for step in case.steps
            for score in formula(
                number_variables(step.goal),
                [
                    Resolvent(number_variables(each.atoms) if step.goal else (), Origin.NONE, 0)
                    for each in step.resolvents
                ],
            )
        ]
    )
    allowed = case.score_error + (ROUNDING if case.run.policy.weights else 0.0)
    is_wrong = (resolvents.kind == GoalKind.GOAL) & ~(np.abs(resolvents.score - expected) <= allowed)
    texts = (lambda row: repr(float(expected[row]))), (lambda row: repr(float(resolvents.score[row])))
    yield from case.of_resolvents(is_wrong, Stage.SCORE, "score", *texts)
