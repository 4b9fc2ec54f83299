"""The limits of an engine, as far as its trace declares or shows them."""

from typing import Final, NamedTuple

import numpy as np

from kgverify.program.outcomes import GoalKind
from kgverify.program.program import Rule
from kgverify.trace.model.columns import Columns, starts_of
from kgverify.trace.model.trace import Trace

LEAST_REACHED: Final = 3
"""The number of steps, or resolvents, that reach the largest size before it looks like a limit."""


class LimitsSeen(NamedTuple):
    """The limits of one side of a comparison.

    resolvents: numbers of resolvents at which lists may have been cut: the declared one, and one that is seen
    atoms:      the same for the atoms of a resolvent
    most:       the largest number of resolvents of a step
    longest:    the largest number of atoms of a resolvent
    """

    resolvents: frozenset[int]
    atoms: frozenset[int]
    most: int
    longest: int


def find_limits(trace: Trace, rules: tuple[Rule, ...]) -> LimitsSeen:
    """Find the limits that a trace declares or shows. A limit that nobody declared shows in sizes that many steps share.

    A cap on the facts of a predicate makes many lists equally long, too. Such lists differ in length by the rules of the
    selected predicate, whereas a limit of the whole list has one length for all.
    """
    columns, limits = trace.columns, trace.header.limits
    counts = columns.steps.num_resolvents.astype(np.int64)
    sizes = columns.resolvents.num_atoms[columns.resolvents.kind == GoalKind.GOAL].astype(np.int64)
    most, longest = (int(each.max()) if len(each) else 0 for each in (counts, sizes))
    resolvents = {getattr(limits, "max_resolvents", None)}
    full = np.flatnonzero(counts == most)
    if most > 1 and len(full) >= LEAST_REACHED and len(_count_rules(columns, full, rules)) > 1:
        resolvents.add(most)
    atoms = {getattr(limits, "max_atoms", None)}
    if int((sizes == longest).sum()) >= LEAST_REACHED:
        atoms.add(longest)
    return LimitsSeen(frozenset(filter(None, resolvents)), frozenset(filter(None, atoms)), most, longest)


def _count_rules(columns: Columns, steps: np.ndarray, rules: tuple[Rule, ...]) -> set[int]:
    """Return the different numbers of rules whose heads have the selected predicates of some steps."""
    num: dict[int, int] = {}
    for head, _ in rules:
        num[head.predicate] = num.get(head.predicate, 0) + 1
    starts = starts_of(columns.steps.num_atoms)
    with_atoms = steps[columns.steps.num_atoms[steps] > 0]
    predicates = np.unique(columns.steps.goal_atoms[starts[with_atoms], 0])
    return {num.get(predicate, 0) for predicate in predicates.tolist()}
