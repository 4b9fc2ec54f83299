"""The limits of an engine, as far as its trace declares or shows them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.inference.origins import Clause, StepOrigins
from kgverify.comparison.step_view import StepReader, StepView
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.step.clauses import number_variables
from kgverify.trace.model.trace import Trace

LEAST_REACHED: Final = 3
"""The number of cut lists before a size that nobody declared counts as a limit."""

MOST_SAMPLED: Final = 20
"""The number of steps to look at for a limit."""

FindOrigins = Callable[[int, StepView], StepOrigins | None]
"""Takes a candidate and one of its steps."""


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


def find_limits(trace: Trace, find_origins: FindOrigins) -> LimitsSeen:
    """Find the limits that a trace declares or shows.

    A list is seen to be cut if the program implies more resolvents. A cap on the rules or the facts of a predicate makes
    lists equally long, too, but only where rules make the same number of their resolvents. A limit on atoms is seen if a rule has
    resolvents in the trace, and where it would make longer ones it has none.
    """
    columns, limits = trace.columns, trace.header.limits
    counts = columns.steps.num_resolvents.astype(np.int64)
    sizes = columns.resolvents.num_atoms[columns.resolvents.kind == GoalKind.GOAL].astype(np.int64)
    most, longest = (int(each.max()) if len(each) else 0 for each in (counts, sizes))
    resolvents, atoms = ({getattr(limits, name, None)} for name in ("max_resolvents", "max_atoms"))
    sample = _Sample(trace, find_origins)
    if most > 1 and _is_list_limit(sample.read(np.flatnonzero(counts == most)), most):
        resolvents.add(most)
    largest = np.argsort(-columns.steps.num_atoms.astype(np.int64), kind="stable")
    if longest and _is_atom_limit(sample.read(largest), sample.read(np.arange(len(counts))), longest):
        atoms.add(longest)
    return LimitsSeen(frozenset(filter(None, resolvents)), frozenset(filter(None, atoms)), most, longest)


class _Sample:
    """Reads some steps of a trace with their inference."""

    def __init__(self, trace: Trace, find_origins: FindOrigins) -> None:
        self._reader = StepReader(trace.columns)
        self._find_origins = find_origins

    def read(self, rows: NDArray[np.int64]) -> Iterator[tuple[StepView, StepOrigins]]:
        """Yield the first of these steps."""
        for row in rows[:MOST_SAMPLED].tolist():
            step = self._reader.read(row)
            candidate = int(np.searchsorted(self._reader.first_step, row, side="right")) - 1
            origins = self._find_origins(candidate, step)
            if origins is not None:
                yield step, origins


def _is_list_limit(full: Iterable[tuple[StepView, StepOrigins]], most: int) -> bool:
    num_rules = [_count_by_rules(step, origins) for step, origins in full if origins.count_made(()) > most]
    return len(num_rules) >= LEAST_REACHED and len(set(num_rules)) > 1


def _count_by_rules(step: StepView, origins: StepOrigins) -> int:
    """Return the number of resolvents of a step that a rule makes."""
    made = (origins.made.get(number_variables((p, a, b) for p, a, b in r.atoms), ()) for r in step.resolvents)
    return sum(any(clause[0] == Origin.RULE for clause in clauses) for clauses in made)


def _is_atom_limit(
    large: Iterable[tuple[StepView, StepOrigins]], every: Iterable[tuple[StepView, StepOrigins]], longest: int
) -> bool:
    too_long: set[Clause] = set()
    for _, origins in large:
        too_long |= {c for atoms, clauses in origins.made.items() if len(atoms) > longest for c in clauses}
    too_long = {clause for clause in too_long if clause[0] == Origin.RULE}
    if not too_long:
        return False
    for step, origins in every:
        for r in step.resolvents:
            atoms = number_variables((p, a, b) for p, a, b in r.atoms)
            if r.kind == GoalKind.GOAL and not too_long.isdisjoint(origins.made.get(atoms, ())):
                return True
    return False
