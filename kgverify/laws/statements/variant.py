"""The same run on a program told otherwise: other names, other orders, further clauses; and the way back to the first ids."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine, Positions
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.laws.case import Case
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Origin
from kgverify.program.program import NamedRule, Program
from kgverify.trace.model.columns import CandidateSet, Columns

FOREIGN = 1 << 30
"""What a clause or a symbol that only the variant has is mapped back to, and above."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A variant of a case's program.

    rule_of: for each rule of the variant the rule of the case, or -1
    """

    case: Case
    facts: Sequence[NamedAtom]
    rules: Sequence[NamedRule]
    rule_of: Sequence[int]

    @cached_property
    def graph(self) -> KnowledgeGraph:
        """The variant, with the queries and the constants of the case."""
        graph = self.case.run.graph
        return KnowledgeGraph(
            graph.name,
            train=tuple(self.facts),
            valid=graph.valid,
            test=graph.test,
            rules=tuple(self.rules),
            domains=graph.domains,
        )

    @property
    def program(self) -> Program:
        """The variant's program."""
        return self.graph.program

    def engine(self, limits: Limits | None = None) -> Engine:
        """The engine under test on the variant."""
        run = replace(self.case.run, graph=self.graph, policy=self._policy, limits=limits or self.case.limits)
        return self.case.make_pipeline(run, self.case.sizes).engine

    def candidates(self) -> CandidateSet:
        """The candidates of the case, in the variant's ids."""
        candidates = self.case.candidates
        return candidates._replace(atom=self._there(candidates.atom))

    def positions(self) -> Positions:
        """The positions of the case, in the variant's ids."""
        positions = self.case.positions
        candidates = positions.candidates._replace(atom=self._there(positions.candidates.atom))
        return positions._replace(candidates=candidates, atoms=self._there(positions.atoms))

    def back(self, columns: Columns) -> Columns:
        """Columns of the variant in the ids of the case; what only the variant has is `FOREIGN` or more."""
        resolvents = columns.resolvents
        rule_of = np.array([i if i >= 0 else FOREIGN + at for at, i in enumerate(self.rule_of)] or [0], np.int32)
        fact_of = self._fact_of if len(self._fact_of) else np.zeros(1, np.int32)
        origin = np.where(
            resolvents.origin_kind == Origin.RULE,
            rule_of[np.minimum(resolvents.origin, len(rule_of) - 1)],
            np.where(
                resolvents.origin_kind == Origin.FACT,
                fact_of[np.minimum(resolvents.origin, len(fact_of) - 1)],
                resolvents.origin,
            ),
        ).astype(np.int32)
        return Columns(
            columns.candidates._replace(atom=self._back(columns.candidates.atom)),
            columns.steps._replace(goal_atoms=self._back(columns.steps.goal_atoms)),
            resolvents._replace(origin=origin, atoms=self._back(resolvents.atoms)),
        )

    def _there(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        return _map_atoms(atoms, *self._maps(self.case.program, self.program))

    def _back(self, atoms: NDArray[np.int32]) -> NDArray[np.int32]:
        return _map_atoms(atoms, *self._maps(self.program, self.case.program))

    def _maps(self, source: Program, target: Program) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        maps = []
        for kind in ("predicate", "constant"):
            ids = getattr(target.symbols, f"{kind}_ids")
            names = getattr(source.symbols, f"{kind}s")
            maps.append(np.array([ids.get(name, FOREIGN + i) for i, name in enumerate(names)] or [0], np.int32))
        return maps[0], maps[1]

    @cached_property
    def _fact_of(self) -> NDArray[np.int32]:
        index = self.case.clauses.fact_index
        rows = self._back(self.program.facts).tolist()
        return np.array([index.get((p, a, b), FOREIGN + i) for i, (p, a, b) in enumerate(rows)], np.int32)

    @property
    def _policy(self) -> Policy:
        """Each symbol keeps its embedding; one that only the variant has gets zeros."""
        policy = self.case.run.policy
        if not policy.weights:
            return policy
        weights = dict(policy.weights)
        for name, rows in zip(
            ("embedding.predicate", "embedding.constant"), self._maps(self.program, self.case.program), strict=True
        ):
            table = np.asarray(weights[name])
            is_known = rows < FOREIGN
            weights[name] = np.where(is_known[:, None], table[np.where(is_known, rows, 0)], 0).astype(table.dtype)
        return Policy(policy.name, weights)


def _map_atoms(
    atoms: NDArray[np.int32], predicates: NDArray[np.int32], constants: NDArray[np.int32]
) -> NDArray[np.int32]:
    mapped = atoms.copy()
    mapped[:, 0] = predicates[atoms[:, 0]]
    arguments = atoms[:, 1:]
    mapped[:, 1:] = np.where(arguments < 0, arguments, constants[np.maximum(arguments, 0)])
    return mapped
