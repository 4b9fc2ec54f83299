"""The second prover as an engine: a correct engine of the dialect in its limits, or of another one that is given."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from second_prover import Move, Row, Rows, SecondProver

from kgverify import EngineInfo, Limits
from kgverify.dialects import Dialect
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Positions
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.step.clauses import Atoms
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Resolvents, Steps, starts_of

MOST_PROVERS: Final = 8


class SecondEngine:
    """An engine of the dialect of its limits; ``dialect`` makes it one of another."""

    def __init__(self, program: Program, limits: Limits, policy: Policy, *, dialect: Dialect | None = None) -> None:
        self.dialect = limits.dialect if dialect is None else dialect
        is_network = bool(policy.weights)
        self.prover, self._proved = _find_prover(program, limits, policy, self.dialect)
        self.info = EngineInfo(
            "second",
            mode="python",
            score_error=1e-9 if is_network else 0.0,
            variables="canonical" if self.dialect.forgets_names else "own",
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        derivations = []
        for atom in map(tuple, candidates.atom.tolist()):
            if atom not in self._proved:
                self._proved[atom] = self.prover.prove(atom)
            derivations.append(self._proved[atom])
            progress(1)
        return _columns(candidates, derivations)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        atoms = [tuple(row) for row in positions.atoms.tolist()]
        goals = [tuple(atoms[a:b]) for a, b in pairwise(starts_of(positions.num_atoms).tolist())]
        starts = starts_of(positions.num_goals).tolist()
        moves = []
        for i, atom in enumerate(positions.candidates.atom.tolist()):
            visited, depth = goals[starts[i] : starts[i + 1]], int(positions.depth[i])
            moves.append([self.prover.move(tuple(atom), visited, depth, self._count_uncounted(atom, visited, depth))])
        return _columns(positions.candidates, moves)

    def _count_uncounted(self, atom: list[int], visited: list[Rows], depth: int) -> int:
        """Return the number of uncounted steps directly before the last of the visited goals."""
        if len(visited) - 1 == depth or not self.dialect.skips_unary:
            return 0
        num = 0
        for end in range(1, len(visited)):
            is_uncounted = self.prover.move(tuple(atom), visited[:end], 0, num).is_uncounted
            num = num + 1 if is_uncounted else 0
        return num


_Found = tuple[Program, Policy, SecondProver, dict[Row, list[Move]]]
_FOUND: OrderedDict[tuple[int, Limits, int, Dialect], _Found] = OrderedDict()
"""The provers of the last programs and their derivations: laws prove the same candidates in many ways."""


def make_prover(program: Program, limits: Limits, dialect: Dialect, **network: Any) -> SecondProver:
    """Make the second prover of a program, with limits, in a dialect that may be another than theirs."""
    return SecondProver(
        [tuple(fact) for fact in program.facts.tolist()],
        [(tuple(rule.clause_head), tuple(map(tuple, rule.body))) for rule in program.rules],
        dialect,
        max_depth=limits.max_depth,
        max_atoms=limits.max_atoms,
        max_resolvents=limits.max_resolvents,
        excludes_query=limits.exclude_query,
        **network,
    )


def _find_prover(
    program: Program, limits: Limits, policy: Policy, dialect: Dialect
) -> tuple[SecondProver, dict[Row, list[Move]]]:
    key = id(program), limits, id(policy), dialect
    if key not in _FOUND:
        network = {"score": _two_tower(policy), "score_of_stopping": 0.0} if policy.weights else {}
        prover = make_prover(program, limits, dialect, **network)
        # The program and the policy are kept, so that no other ones get their ids.
        _FOUND[key] = program, policy, prover, {}
        if len(_FOUND) > MOST_PROVERS:
            _FOUND.popitem(last=False)
    _, _, prover, proved = _FOUND[key]
    return prover, proved


def engine_of_dialect(dialect: Dialect) -> partial[SecondEngine]:
    """Return the maker of an engine of this dialect, whatever that of its limits."""
    return partial(SecondEngine, dialect=dialect)


def _columns(candidates: CandidateSet, derivations: Sequence[Sequence[Move]]) -> Columns:
    moves = list(chain.from_iterable(derivations))
    offers = list(chain.from_iterable(move.offers for move in moves))
    lost = [[move.dropped_atoms + move.dropped_resolvents for move in each] for each in derivations]
    return Columns(
        Candidates(
            candidates.query,
            candidates.side,
            candidates.atom,
            num_steps=np.array([len(each) for each in derivations], np.uint32),
            outcome=np.array([each[-1].outcome for each in derivations], np.int8),
            is_limited=np.array([any(each) for each in lost], np.uint8),
            log_probability=np.array([sum(move.log_probability for move in each) for each in derivations], np.float64),
        ),
        Steps(
            depth=np.array([move.depth for move in moves], np.uint16),
            num_atoms=np.array([len(move.goal) for move in moves], np.uint16),
            num_resolvents=np.array([len(move.offers) for move in moves], np.uint32),
            dropped_atoms=np.array([move.dropped_atoms for move in moves], np.uint32),
            dropped_resolvents=np.array([move.dropped_resolvents for move in moves], np.uint32),
            choice=np.array([move.choice for move in moves], np.int32),
            outcome=np.array([move.outcome for move in moves], np.int8),
            goal_atoms=_rows(move.goal for move in moves),
        ),
        Resolvents(
            kind=np.array([each.kind for each in offers], np.uint8),
            num_atoms=np.array([len(each.atoms) for each in offers], np.uint16),
            origin_kind=np.array([each.origin_kind for each in offers], np.uint8),
            origin=np.array([each.origin for each in offers], np.int32),
            score=np.array([score for move in moves for score in move.scores], np.float64),
            atoms=_rows(each.atoms for each in offers),
        ),
    )


def _rows(goals: Iterable[Rows]) -> NDArray[np.int32]:
    return np.array([atom for goal in goals for atom in goal], np.int32).reshape(-1, 3)


def _two_tower(policy: Policy) -> Callable[[Atoms, Atoms], float]:
    """Return the score of docs/semantics.md, in float64."""
    w = {name: np.asarray(array, np.float64) for name, array in policy.weights.items()}

    def argument(term: int) -> NDArray[np.float64]:
        row: NDArray[np.float64] = w["embedding.variable"][-1 - term] if term < 0 else w["embedding.constant"][term]
        return row

    @cache
    def tower(atoms: Atoms) -> NDArray[np.float64]:
        embedded = [w["embedding.predicate"][p] + argument(a) - argument(b) for p, a, b in atoms]
        x: NDArray[np.float64] = w["input.weight"] @ (sum(embedded) / len(embedded)) + w["input.bias"]
        for i in range(policy.num_blocks):
            x = x + np.maximum(w[f"block.{i}.weight"] @ x + w[f"block.{i}.bias"], 0)
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"block.{i}.norm.weight"] + w[f"block.{i}.norm.bias"]
        return x

    def score(goal: Atoms, atoms: Atoms) -> float:
        if not goal or not atoms:
            return 0.0
        f, g = tower(goal), tower(atoms)
        return float(f @ g / np.sqrt(len(f)))

    return score
