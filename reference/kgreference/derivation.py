"""A derivation: the steps from a query to an outcome."""

from typing import NamedTuple

from kgreference.policy import Policy
from kgreference.program import Program
from kgreference.step import Limits, Outcome, Step, take_step
from kgreference.terms import Atom, Goal, canonical


class Derivation(NamedTuple):
    """The steps taken for one query.

    ``log_probability`` is the sum over the steps, in nats. ``is_limited``: whether a limit dropped a resolvent.
    """

    query: Atom
    steps: list[Step]
    outcome: Outcome
    is_limited: bool
    log_probability: float


def derive(program: Program, limits: Limits, policy: Policy, query: Atom) -> Derivation:
    """Take steps from the query until the outcome is not OPEN. Raises ValueError for a limit below 1."""
    if min(limits.max_depth, limits.max_atoms, limits.max_resolvents) < 1:
        raise ValueError(f"every limit must be 1 or more, found {limits}")
    goal = canonical((query,))
    visited: set[Goal] = {goal}
    steps: list[Step] = []
    outcome = Outcome.OPEN
    log_probability = 0.0
    while outcome == Outcome.OPEN:
        step = take_step(program, limits, policy, query, goal, len(steps), visited)
        steps.append(step)
        outcome = step.outcome
        log_probability += step.log_probability
        goal = step.chosen.atoms
        visited.add(goal)
    is_limited = any(step.dropped_atoms or step.dropped_resolvents for step in steps)
    return Derivation(query, steps, outcome, is_limited, log_probability)
