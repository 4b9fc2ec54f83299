"""The resolvents that a program gives for one goal in a dialect, by its clauses and its filters, which may be changed."""

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from kgverify.program.dialect import Filter
from kgverify.program.fact_index import Ids
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Origin
from kgverify.step.clauses import Atoms, Clauses, number_variables
from kgverify.step.plain_step import (
    SOUND,
    Situation,
    close,
    filter_resolvents,
    limit_atoms,
    limit_resolvents,
    match_facts,
    match_rules,
    prune,
    resolve,
)
from kgverify.step.resolvent import Resolvent

Clause: TypeAlias = tuple[int, int]
"""An `Origin` and the index of a rule or a fact."""

Key: TypeAlias = tuple[int, Atoms, Clause]
"""A resolvent: its kind, its atoms in canonical variables, and the clause that made it."""

NO_CLAUSE: Final[Clause] = (int(Origin.NONE), 0)


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

    def match(self, goal: Atoms) -> list[Resolvent]:
        """Return what each clause makes of a goal, in the order of the dialect, before pruning."""
        situation = Situation(self._clauses, self.limits, self.excluded, (goal,))
        return resolve(situation, match_rules(situation, goal[0]), match_facts(situation, goal[0]))

    def make_excluded(self, goal: Atoms) -> Resolvent | None:
        """Return what the query makes of a goal if it may serve as a fact."""
        if self.excluded is None:
            return None
        number = self._clauses.fact_index[self.excluded]
        atoms = self._clauses.resolve(goal, Origin.FACT, number)
        return None if atoms is None else Resolvent(atoms, Origin.FACT, number)

    def put_in_order(self, made: Iterable[Resolvent]) -> list[Resolvent]:
        """Return resolvents in the order of the dialect, by the numbers of their clauses."""
        is_rules_first, is_reversed = self.dialect.order == "rules_first", self.dialect.is_reversed

        def place(each: Resolvent) -> tuple[bool, int]:
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

    def list(
        self, made: Sequence[Resolvent], variation: Variation | None = None, fixed: Collection[Resolvent] = ()
    ) -> Listed:
        """Return what the filters leave, by default the usual ones. fixed: resolvents that are pruned already."""
        variation = variation or self.usual
        is_fixed = {(each.clause, each.atoms) for each in fixed}

        def prune_others(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return [
                each if (each.clause, each.atoms) in is_fixed else prune(situation, [each])[0] for each in resolvents
            ]

        def close_last(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
            return close(situation, resolvents[::-1])[::-1]

        limits = {"max_atoms": variation.max_atoms, "max_resolvents": variation.max_resolvents}
        dialect = replace(
            self.dialect,
            filters=tuple(name for name in variation.filters if limits.get(name, 1) is not None),
            memory=variation.memory,
            long_resolvents="truncate" if variation.truncates else "reject",
        )
        stages = SOUND._replace(
            prune=prune_others if is_fixed else prune,
            close=close_last if variation.takes_last else close,
            limit_atoms=partial(limit_atoms, most=variation.max_atoms),
            limit_resolvents=partial(limit_resolvents, most=variation.max_resolvents),
        )
        situation = Situation(self._clauses, replace(self.limits, dialect=dialect), self.excluded, self.visited)
        left, dropped_atoms, dropped_resolvents = filter_resolvents(situation, made, stages).taken
        keys = ((each.kind, number_variables(each.atoms), each.clause) for each in left)
        return Listed(tuple(keys), dropped_atoms, dropped_resolvents)
