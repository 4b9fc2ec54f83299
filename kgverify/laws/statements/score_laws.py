"""Laws of scores: each score follows the policy's formula, and depends only on the goal and the resolvent."""

from collections.abc import Iterator

from kgverify.engines.plain.engine import score_two_tower
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.program.outcomes import GoalKind, Origin, Stage
from kgverify.step.clauses import Atoms, number_variables
from kgverify.step.plain_step import Resolvent, score_shortest

ROUNDING = 1e-9
"""The error of the formula itself, computed in float64."""


@law(
    "A score depends on the goal and the resolvent alone: equal ones have equal scores, within twice the error of rounding.",
    runs_again=False,
)
def _score_of_step(case: Case) -> Iterator[Finding]:
    seen: dict[tuple[Atoms, Atoms], float] = {}
    for at, step in case.walk():
        for each in step.resolvents:
            if each.kind == GoalKind.GOAL:
                first = seen.setdefault((step.goal, each.atoms), each.score)
                if first != each.score and not abs(first - each.score) <= 2 * case.rounding():
                    actual = f"{each.score!r} for {case.names.goal(each.atoms)}"
                    yield Finding(*at, Stage.SCORE, "score", f"{first!r}, as elsewhere", actual)


@law(
    "A score is what the policy's formula gives in float64, exactly for `shortest`, else within the error of rounding.",
    runs_again=False,
)
def _score_formula(case: Case) -> Iterator[Finding]:
    policy = case.run.policy
    formula_error = ROUNDING if policy.weights else 0.0
    formula = score_shortest if policy.name == "shortest" else score_two_tower(policy.weights, policy.num_blocks)
    for at, step in case.walk():
        # Even if names are kept, scores are those of canonical goals.
        goals = [number_variables(each.atoms) if step.goal else () for each in step.resolvents]
        scores = formula(number_variables(step.goal), [Resolvent(goal, Origin.NONE, 0) for goal in goals])
        for each, expected in zip(step.resolvents, scores, strict=True):
            error = abs(each.score - expected)
            if each.kind == GoalKind.GOAL and error != 0 and not error <= case.rounding() + formula_error:
                yield Finding(*at, Stage.SCORE, "score", repr(float(expected)), repr(each.score))
