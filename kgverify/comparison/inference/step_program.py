"""The resolvents that a program gives for one goal in a dialect, by its clauses and its filters, which may be changed."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from kgverify.program.dialect import Filter
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin
from kgverify.step.clauses import Atoms, Clauses, number_variables

Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or a fact."""

Key: TypeAlias = tuple[int, Atoms, Clause]
"""A resolvent: its kind, its atoms in canonical variables, and the clause that made it."""

NO_CLAUSE: Final[Clause] = (int(Origin.NONE), 0)


class Made(NamedTuple):
    """A resolvent on its way through the filters. resolved: the atoms before pruning; is_fixed: whether pruning is done."""

    clause: Clause
    resolved: Atoms
    kind: int = GoalKind.GOAL
    is_fixed: bool = False


class Listed(NamedTuple):
    """The list that a step offers, and what the limits dropped."""

    keys: tuple[Key, ...]
    dropped_atoms: int
    dropped_resolvents: int


class Variation(NamedTuple):
    """Changes of the filters. takes_last: whether `close` keeps the last proof; None stands for no limit."""

    filters: tuple[Filter, ...]
    max_atoms: int | None
    max_resolvents: int | None
    memory: str
    truncates: bool
    takes_last: bool = False


class StepProgram:
    """The resolvents that a program gives for one goal, filter by filter.

    visited: the goals of the derivation in canonical variables, the current one last
    """

    def __init__(self, clauses: Clauses, limits: Limits, visited: Sequence[Atoms], query: Ids) -> None:
        self._clauses, self._query, self.limits, self.visited = clauses, query, limits, visited
        self.excluded = clauses.excluded(query)
        self.dialect = limits.dialect
        self.usual = Variation(
            self.dialect.filters,
            limits.max_atoms,
            limits.max_resolvents,
            self.dialect.memory,
            self.dialect.long_resolvents == "truncate",
        )

    @property
    def remembers(self) -> bool:
        """True if a goal is not visited twice."""
        return "revisit" in self.dialect.filters and self.dialect.memory != "none"

    def forget_earlier_goals(self) -> "StepProgram":
        """Return the same program with the current goal alone as visited."""
        return StepProgram(self._clauses, self.limits, self.visited[-1:], self._query)

    def match(self, goal: Atoms) -> list[Made]:
        """Return what each clause makes of a goal, in the order of the dialect."""
        predicate = goal[0][0]
        rules = [(int(Origin.RULE), i) for i in self._clauses.rules_of(predicate)]
        facts = [(int(Origin.FACT), i) for i in self._clauses.facts_like(goal[0], self.excluded)]
        return self.put_in_order(filter(None, (self._make(goal, clause) for clause in (*rules, *facts))))

    def make_excluded(self, goal: Atoms) -> Made | None:
        """Return what the query makes of a goal if it may serve as a fact."""
        if self.excluded is None:
            return None
        return self._make(goal, (int(Origin.FACT), self._clauses.fact_index[self.excluded]))

    def put_in_order(self, made: Iterable[Made]) -> list[Made]:
        """Return resolvents in the order of the dialect, by the numbers of their clauses."""
        is_rules_first, is_reversed = self.dialect.order == "rules_first", self.dialect.is_reversed

        def place(each: Made) -> tuple[bool, int]:
            kind, number = each.clause
            return (kind == Origin.RULE) != is_rules_first, -number if is_reversed else number

        return sorted(made, key=place)

    def is_fact(self, atom: Ids) -> bool:
        """Return whether pruning deletes an atom."""
        return atom in self._clauses.fact_index and atom != self.excluded

    def is_like_fact(self, atom: Ids) -> bool:
        """Return whether an atom, perhaps with variables, unifies with a fact, the excluded one among them."""
        return bool(self._clauses.facts_like(atom, None))

    def prune(self, atoms: Atoms) -> Atoms:
        """Return atoms without those that are facts, in canonical variables."""
        return number_variables(atom for atom in atoms if not self.is_fact(atom))

    def list(self, made: Sequence[Made], variation: Variation) -> Listed:
        """Return what the filters leave."""
        left = [(each.kind, each.resolved, each) for each in made]
        counts, is_closed = [0, 0], False
        for name in variation.filters:
            if name == "prune":
                left = [
                    (kind, atoms if each.is_fixed else tuple(a for a in atoms if not self.is_fact(a)), each)
                    for kind, atoms, each in left
                ]
            elif name == "revisit" and variation.memory != "none":
                seen = {_remember(goal, variation.memory) for goal in self.visited}
                left = [
                    item
                    for item in left
                    if _remember(number_variables(iter(item[1])), variation.memory) not in seen
                    or (self.dialect.exempts_terminal and not item[1])
                ]
            elif name == "duplicates":
                first = {
                    (kind, number_variables(iter(atoms))): item for item in reversed(left) for kind, atoms, _ in [item]
                }
                kept = {id(item) for item in first.values()}
                left = [item for item in left if id(item) in kept]
            elif name == "close":
                proofs = [item for item in left if _is_proof(item[0], item[1])]
                left = proofs[-1 if variation.takes_last else 0 :][:1] if proofs else left
                is_closed = not left
            elif name == "max_atoms" and variation.max_atoms is not None:
                most = variation.max_atoms
                long = [item for item in left if len(item[1]) > most]
                counts[0] += len(long)
                if variation.truncates:
                    left = [(kind, atoms[:most], each) for kind, atoms, each in left]
                elif long:
                    left = [item for item in left if len(item[1]) <= most]
            elif name == "max_resolvents" and variation.max_resolvents is not None:
                counts[1] += max(0, len(left) - variation.max_resolvents)
                left = left[: variation.max_resolvents]
        keys: list[Key] = [
            (GoalKind.TRUE if _is_proof(kind, atoms) else kind, number_variables(iter(atoms)), each.clause)
            for kind, atoms, each in left
        ]
        is_ended = any(kind in (GoalKind.TRUE, GoalKind.FALSE) for kind, _, _ in keys) or is_closed
        if self.dialect.stopping == "where_no_terminal" and not is_ended:
            keys.append((GoalKind.STOP, (), NO_CLAUSE))
        return Listed(tuple(keys) or ((GoalKind.FALSE, (), NO_CLAUSE),), counts[0], counts[1])

    def _make(self, goal: Atoms, clause: Clause) -> Made | None:
        atoms = self._clauses.resolve(goal, *clause)
        return None if atoms is None else Made(clause, atoms)


def _is_proof(kind: int, atoms: Atoms) -> bool:
    return kind == GoalKind.TRUE or (kind == GoalKind.GOAL and not atoms)


def _remember(goal: Atoms, memory: str) -> object:
    return frozenset(goal) if memory == "set" else goal
