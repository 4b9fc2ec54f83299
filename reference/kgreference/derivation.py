"""A derivation: the steps from a query to an outcome."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

from kgreference.dialect import OURS, Dialect
from kgreference.policy import Policy, PreparedPolicy
from kgreference.program import Program
from kgreference.step import (
    OUR_STAGES,
    Limits,
    Outcome,
    Stages,
    Step,
    choose_resolvent,
    find_excluded,
    find_resolvents,
    make_situation,
    take_step,
)
from kgreference.terms import Atom, Goal, Triple, canonical


class Derivation(NamedTuple):
    """The steps taken for one query, including uncounted ones.

    ``log_probability`` is the sum over the steps, in nats. ``is_limited``: whether a limit dropped a resolvent.
    """

    query: Triple
    steps: list[Step]
    outcome: Outcome
    is_limited: bool
    log_probability: float


def derive(
    program: Program,
    limits: Limits,
    policy: Policy,
    query: Atom,
    dialect: Dialect = OURS,
    stages: Stages = OUR_STAGES,
    is_positive: bool = True,
) -> Derivation:
    """Take steps from the query until the outcome is not OPEN. Raises ValueError for a limit below 1.

    ``stages`` replaces stages by other functions. ``is_positive``: whether the query is a test triple rather than a
    corruption.
    """
    if limits.max_depth < 1 or limits.max_atoms < 1 or limits.max_resolvents < 1:
        raise ValueError(f"every limit must be 1 or more, found {limits}")
    excluded = find_excluded(dialect, limits, query, is_positive)
    goal = canonical((query,))
    visited: set[Goal] = {goal}
    steps: list[Step] = []
    outcome = opened = Outcome.OPEN
    depth = num_uncounted = 0
    while outcome is opened:
        situation = make_situation((dialect, program, limits, policy, excluded, goal, depth, visited))
        step = take_step(situation, stages, num_uncounted)
        num_uncounted = num_uncounted + 1 if step.is_uncounted else 0
        steps.append(step)
        outcome, depth, goal = step.outcome, step.depth, step.chosen.atoms
        visited.add(goal)
    return conclude(query, steps)


def derive_together(
    program: Program, limits: Limits, policy: PreparedPolicy, queries: Sequence[Atom]
) -> list[Derivation]:
    """Derive several queries like `derive`, but one step of each in turn, so that the policy can prepare for all of them."""
    goals = [canonical((query,)) for query in queries]
    excluded = [find_excluded(OURS, limits, query, True) for query in queries]
    visited = [{goal} for goal in goals]
    steps: list[list[Step]] = [[] for _ in queries]
    depth, still_open = 0, list(range(len(queries)))
    while still_open:
        at = [
            make_situation((OURS, program, limits, policy, excluded[i], goals[i], depth, visited[i]))
            for i in still_open
        ]
        found = list(map(find_resolvents, at))
        policy.prepare([(situation.goal, offered) for situation, (_, offered, _) in zip(at, found, strict=True)])
        for i, situation, of_step in zip(still_open, at, found, strict=True):
            step = choose_resolvent(situation, of_step)
            steps[i].append(step)
            goals[i] = step.chosen.atoms
            visited[i].add(goals[i])
        depth += 1
        still_open = [i for i in still_open if steps[i][-1].outcome is Outcome.OPEN]
    return [conclude(query, taken) for query, taken in zip(queries, steps, strict=True)]


def conclude(query: Triple, steps: list[Step]) -> Derivation:
    """Return the derivation with these steps."""
    log_probability: float = reduce(add, [step.log_probability for step in steps], 0.0)
    is_limited = any(step.dropped_atoms > 0 or step.dropped_resolvents > 0 for step in steps)
    return Derivation(query, steps, steps[-1].outcome, is_limited, log_probability)
