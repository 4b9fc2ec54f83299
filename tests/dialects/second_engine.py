"""The second prover as an engine: a correct engine of the dialect in its limits, or of another one that is given."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from second_prover import Move, Row, Rows, SecondProver

from kgverify import (
    CandidateSet,
    Columns,
    EngineInfo,
    Limits,
    Policy,
    Positions,
    Program,
    Resolvent,
    StepwiseEngine,
    Taken,
)
from kgverify.dialects import Dialect
from kgverify.runs.run import Pipeline, Run, reference_pipeline


class Step(NamedTuple):
    """A step as `StepwiseEngine` records it."""

    goal: Rows
    depth: int
    taken: Taken
    choice: int
    outcome: int
    log_probability: float


class SecondEngine(StepwiseEngine):
    """An engine of the dialect of its limits; ``dialect`` makes it one of another."""

    def __init__(self, program: Program, limits: Limits, policy: Policy, *, dialect: Dialect | None = None) -> None:
        super().__init__(program, limits, policy)
        self.dialect = limits.dialect if dialect is None else dialect
        self.prover = SecondProver(
            [tuple(fact) for fact in program.facts.tolist()],
            [(tuple(rule.clause_head), tuple(map(tuple, rule.body))) for rule in program.rules],
            self.dialect,
            max_depth=limits.max_depth,
            max_atoms=limits.max_atoms,
            max_resolvents=limits.max_resolvents,
            excludes_query=limits.exclude_query,
        )
        self.triples: Any = None
        self._proved: dict[tuple[Row, bool], list[Any]] = {}

    @property
    def info(self) -> EngineInfo:
        variables = "canonical" if self.dialect.forgets_names else "own"
        return EngineInfo("second", mode="python", variables=variables)

    def prove(self, candidates: CandidateSet, progress: Any = None) -> Columns:
        """Run every candidate to its end."""
        keys = self._find_positives(candidates)
        for key in dict.fromkeys(keys):
            if key not in self._proved:
                self._proved[key] = list(map(_record, self.prover.prove(*key)))
        return self._record(candidates, [self._proved[key] for key in keys])

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        atoms = list(map(tuple, positions.atoms.tolist()))
        goals = [tuple(atoms[a:b]) for a, b in pairwise(np.cumsum([0, *positions.num_atoms]).tolist())]
        visited = [goals[a:b] for a, b in pairwise(np.cumsum([0, *positions.num_goals]).tolist())]
        queries, depths = self._find_positives(positions.candidates), positions.depth.tolist()
        moves = [
            self.prover.move(query, goals, depth, self._count_uncounted(query, goals, depth), is_positive)
            for (query, is_positive), goals, depth in zip(queries, visited, depths, strict=True)
        ]
        return self._record(positions.candidates, [[_record(move)] for move in moves])

    def _find_positives(self, candidates: CandidateSet) -> list[tuple[Row, bool]]:
        """Return each candidate, and whether it is one of the triples or stands outside of a ranking."""
        atoms = list(map(tuple, candidates.atom.tolist()))
        if self.triples is None:
            return [(atom, True) for atom in atoms]
        positives = set(map(tuple, self.triples.tolist()))
        return [(atom, side == 2 or atom in positives) for atom, side in zip(atoms, candidates.side, strict=True)]

    def _count_uncounted(self, query: Row, visited: Sequence[Rows], depth: int) -> int:
        """Return the number of uncounted steps directly before the last of the visited goals."""
        if len(visited) - 1 == depth or not self.dialect.skips_unary:
            return 0
        num = 0
        for end in range(1, len(visited)):
            num = num + 1 if self.prover.move(query, visited[:end], 0, num).is_uncounted else 0
        return num


def engine_of_dialect(dialect: Dialect) -> partial[SecondEngine]:
    """Return the maker of an engine of this dialect, whatever that of its limits."""
    return partial(SecondEngine, dialect=dialect)


def exclude_positives(run: Run, sizes: Any) -> Pipeline:
    """Make an engine that excludes the query of a test triple alone, which the run names."""
    engine = SecondEngine(run.graph.program, run.limits, run.policy, dialect=Dialect(exclusion="positives_only"))
    engine.triples = run.triples
    return reference_pipeline(run)._replace(engine=engine)


def _record(move: Move) -> Any:
    resolvents = [
        Resolvent(each.atoms, each.origin_kind, each.origin, each.kind, score)
        for each, score in zip(move.offers, move.scores, strict=True)
    ]
    taken = Taken(resolvents, move.dropped_atoms, move.dropped_resolvents)
    return Step(move.goal, move.depth, taken, move.choice, move.outcome, move.log_probability)
