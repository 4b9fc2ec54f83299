"""A small prover on padded arrays, with its own numbers and its own ranking, such as a third party might write.

It can have three faults: facts beyond a cap are not matched, a state with too many successors counts as proved, and what is
not proved ranks among what is.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgverify import EngineInfo, Limits, StepwiseEngine
from kgverify.engines.adapters.stepwise import AtomIds, Goal
from kgverify.engines.policy import Policy
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.program import Program
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.step.plain_step import Resolvent, Taken
from kgverify.trace.model.columns import Candidates, Rankings

FAULTS = ("fact cap", "overflow as proof", "no push-down")
UNKNOWN = ("candidates.is_limited", "steps.dropped_atoms", "steps.dropped_resolvents")
PENALTY = 100.0

Ids = NDArray[np.int64]


class PaddedProver:
    """Resolves the first atom of padded states [A, 3]: 0 is padding, constants count from 1, variables follow them."""

    def __init__(self, program: Program, limits: Limits, faults: Sequence[str], fact_cap: int) -> None:
        self.limits, self.faults = limits, faults
        self.first_variable = len(program.symbols.constants) + 1
        self.true = len(program.symbols.predicates) + 1
        self.facts = self.encode(program.facts.tolist())
        self.rules = [self.encode([rule.clause_head, *rule.body]) for rule in program.rules]
        predicate = self.facts[:, 0]
        place = np.array([(predicate[:i] == each).sum() for i, each in enumerate(predicate)])
        self.is_matched = (place < fact_cap) if "fact cap" in faults else np.ones(len(place), np.bool_)
        self.keys = self.key(self.facts)

    def encode(self, atoms: Sequence[Sequence[int]]) -> Ids:
        rows = np.array(atoms, np.int64).reshape(-1, 3)
        terms = rows[:, 1:]
        return np.column_stack((rows[:, 0] + 1, np.where(terms >= 0, terms + 1, self.first_variable - 1 - terms)))

    def decode(self, state: Ids) -> Goal:
        names: dict[int, int] = {}
        return tuple(
            (
                int(predicate) - 1,
                *(
                    int(t) - 1 if t < self.first_variable else -1 - names.setdefault(int(t), len(names))
                    for t in (first, second)
                ),
            )
            for predicate, first, second in state[state[:, 0] > 0].tolist()
        )

    def key(self, atoms: Ids) -> Ids:
        size = 4 * self.first_variable
        return (atoms[..., 0] * size + atoms[..., 1]) * size + atoms[..., 2]

    def expand(self, state: Ids, excluded: Ids) -> tuple[Ids, list[tuple[Origin, int]]]:
        """Return successors [S, M, 3], padded, before the cap, and the clause of each; a proof is TRUE alone."""
        goal, rest = state[0], state[1:]
        apart = max(int(state[:, 1:].max()) + 1 - self.first_variable, 0)
        clauses = [
            np.where([False, True, True] & (rule >= self.first_variable), rule + apart, rule) for rule in self.rules
        ]
        facts = np.flatnonzero(self.is_matched & (self.facts[:, 0] == goal[0]) & (self.facts != excluded).any(1))
        tried = [((Origin.RULE, i), rule) for i, rule in enumerate(clauses) if rule[0, 0] == goal[0]]
        tried += [((Origin.FACT, i), self.facts[i : i + 1]) for i in facts.tolist()]
        made = [(origin, self.resolve(goal, clause, rest)) for origin, clause in tried]
        pruned = [(origin, self.prune(atoms, excluded)) for origin, atoms in made if atoms is not None]
        pruned = [each for each in pruned if len(each[1]) <= self.limits.max_atoms]
        proofs = [origin for origin, atoms in pruned if not len(atoms)]
        if "overflow as proof" in self.faults and len(pruned) > self.limits.max_resolvents:
            proofs = proofs or [pruned[0][0]]
        if proofs:
            pruned = [(proofs[0], np.array([[self.true, 0, 0]]))]
        kept = [atoms for _, atoms in pruned]
        successors = np.zeros((max(len(kept), 1), max(map(len, kept), default=1), 3), np.int64)
        for successor, atoms in zip(successors, kept, strict=False):
            successor[: len(atoms)] = atoms
        return successors, [origin for origin, _ in pruned]

    def resolve(self, goal: Ids, clause: Ids, rest: Ids) -> Ids | None:
        """Return the clause's body and the rest of the state under the unifier; None without one."""
        bound: dict[int, int] = {}

        def end(term: int) -> int:
            while term in bound:
                term = bound[term]
            return term

        for left, right in zip(goal[1:].tolist(), clause[0, 1:].tolist(), strict=True):
            one, other = end(left), end(right)
            if one == other:
                continue
            if max(one, other) < self.first_variable:
                return None
            bound[max(one, other)] = min(one, other)
        atoms = np.concatenate((clause[1:], rest))
        table = np.array([end(term) for term in range(int(max(atoms.max(initial=0), *bound, 0)) + 1)])
        return np.column_stack((atoms[:, 0], table[atoms[:, 1:]]))

    def prune(self, atoms: Ids, excluded: Ids) -> Ids:
        """Return the atoms without those that are facts, except the excluded one."""
        is_fact = np.isin(self.key(atoms), self.keys) & (atoms != excluded).any(1)
        return atoms[~is_fact]


class PaddedEngine(StepwiseEngine):
    """The prover with its environment: derivations do not return to a goal, and the shortest successor is taken."""

    faults: tuple[str, ...] = ()
    fact_cap = 50

    def __init__(self, program: Program, limits: Limits, policy: Policy) -> None:
        super().__init__(program, limits, policy)
        self.prover = PaddedProver(program, limits, self.faults, self.fact_cap)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("padded", mode="numpy", unknown=UNKNOWN)

    def take_step(self, query: AtomIds, visited: Sequence[Goal]) -> Taken:
        goal, excluded = self.prover.encode(visited[-1]), self.prover.encode([query])[0]
        successors, origins = self.prover.expand(goal, excluded)
        if origins and successors[0, 0, 0] == self.prover.true:
            return Taken([Resolvent((), *origins[0], GoalKind.TRUE)])
        states = [self.prover.decode(each) for each in successors[: len(origins)]]
        new = [
            Resolvent(state, *origin, score=self.score(state))
            for state, origin in zip(states, origins, strict=True)
            if state not in visited
        ]
        return Taken(new[: self.limits.max_resolvents] or [Resolvent((), Origin.NONE, 0, GoalKind.FALSE)])

    @staticmethod
    def score(goal: Goal) -> float:
        return -(len(goal) + len({t for _, *terms in goal for t in terms if t < 0}) / 64)


def rank_by(penalty: float):
    """Return a ranking of the prover's own: the true triple is the first of its group, and ties are shared."""

    def rank(candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
        del triples
        scores = candidates.log_probability - penalty * (candidates.outcome != Outcome.PROVED)
        groups = sorted(set(zip(candidates.query.tolist(), candidates.side.tolist(), strict=True)))
        rows = []
        for query, side in groups:
            own = scores[(candidates.query == query) & (candidates.side == side)]
            gap = own[1:] - own[0]
            above, tied = int((gap >= tolerance).sum()), int((np.abs(gap) < tolerance).sum())
            rows.append((query, side, len(own), 1.0 + above, 1.0 + above + tied))
        dtypes = np.int32, np.int8, np.uint32, np.float64, np.float64
        columns = zip(*rows, strict=True)
        return Rankings(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))

    return rank


def padded_pipeline(run: Run, faults: Sequence[str] = (), fact_cap: int = 50) -> Pipeline:
    """Return the prover with faults, with its own ranking."""
    engine = type("Padded", (PaddedEngine,), {"faults": tuple(faults), "fact_cap": fact_cap})
    penalty = 0.0 if "no push-down" in faults else PENALTY
    return Pipeline(engine(run.graph.program, run.limits, run.policy), draw_candidates, rank_by(penalty))


def split_truly(values: dict[frozenset[str], float]) -> dict[str, float]:
    """Return the exact Shapley value of each repair, from the metric of every set of repairs."""
    num, shares = len(FAULTS), dict.fromkeys(FAULTS, 0.0)
    for repaired, value in values.items():
        for fault in set(FAULTS) - repaired:
            size = len(repaired)
            weight = math.factorial(size) * math.factorial(num - size - 1) / math.factorial(num)
            shares[fault] += weight * (values[repaired | {fault}] - value)
    return shares
