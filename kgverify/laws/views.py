"""Every step of some columns as a view, all at once."""

from itertools import pairwise

from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.program.atoms import Atom
from kgverify.trace.model.columns import Columns, starts_of


def read_steps(columns: Columns) -> list[StepView]:
    """The steps in their order."""
    steps, resolvents = columns.steps, columns.resolvents
    atoms = [Atom(*row) for row in resolvents.atoms.tolist()]
    every = [
        ResolventView(kind, tuple(atoms[a:b]), origin_kind, origin, score)
        for kind, (a, b), origin_kind, origin, score in zip(
            resolvents.kind.tolist(),
            pairwise(starts_of(resolvents.num_atoms).tolist()),
            resolvents.origin_kind.tolist(),
            resolvents.origin.tolist(),
            resolvents.score.tolist(),
            strict=True,
        )
    ]
    goal_atoms = [Atom(*row) for row in steps.goal_atoms.tolist()]
    return [
        StepView(depth, tuple(goal_atoms[a:b]), tuple(every[r:s]), long, late, choice, outcome)
        for depth, (a, b), (r, s), long, late, choice, outcome in zip(
            steps.depth.tolist(),
            pairwise(starts_of(steps.num_atoms).tolist()),
            pairwise(starts_of(steps.num_resolvents).tolist()),
            steps.dropped_atoms.tolist(),
            steps.dropped_resolvents.tolist(),
            steps.choice.tolist(),
            steps.outcome.tolist(),
            strict=True,
        )
    ]
