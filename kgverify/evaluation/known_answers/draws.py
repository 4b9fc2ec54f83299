"""Draws and ranks that small graphs hardly meet, each compared with the reference's.

Draws have unusual seeds, queries and entities of more than 15 and 16 bits, many predicates, and a domain of more entities than 16
bits can number. Ranks have gaps at the edges of tolerances.
"""

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.reference.ranking import ReferenceDraw
from kgverify.engines.reference.ranking import rank_candidates as rank_by_reference
from kgverify.errors import InternalError
from kgverify.program.outcomes import Outcome, Side
from kgverify.ranking.corrupt import ALL, BOTH_SIDES, count_candidates, draw_candidates, may_be_drawn, number_atoms
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.trace.model.columns import Candidates, are_equal

NUM_PREDICATES: Final = 70
NUM_ENTITIES: Final = 13
"""The entities of each domain but one."""
NUM_CONSTANTS: Final = 66_001
NUM_QUERIES: Final = (1 << 15) + 8
WIDE: Final = NUM_PREDICATES
"""The predicate of whose tails there are as many as constants."""
SEEDS: Final = (0, -1, (1 << 32) + 7, (1 << 61) + 3, (1 << 63) + 1)
FEW: Final = 4
MANY: Final = NUM_ENTITIES - 1
"""More corruptions than most queries have, and as many as some have."""


class KnownGraph:
    """A graph without the names of its symbols: building those would take longer than all draws."""

    name: Final = "known"

    def __init__(self) -> None:
        pairs = [(p, n) for p in range(NUM_PREDICATES) for n in (1, 4)]
        small = [(p, self._entity(p, 0, 5 * p), self._entity(p, 1, p * n)) for p, n in pairs]
        large = [(WIDE, 40_000, 66_000), (WIDE, 40_000, 65_538), (WIDE, 40_000, 40_000), (WIDE, 9, 66_000)]
        self._queries = np.resize(np.array(small, np.int32), (NUM_QUERIES, 3))
        self._queries[-1] = large[0]
        self.known_triples: NDArray[np.int32] = np.unique(np.array([*small, *large], np.int32), axis=0)
        names = [str(i) for i in range(NUM_CONSTANTS)]
        self.program = SimpleNamespace(symbols=SimpleNamespace(constants=names))
        # Those of the wide predicate are in no domain, so that it has every constant.
        self.domains = {
            f"{p} {side}": [names[entity] for entity in self.argument_domain(p, side)]
            for p in range(NUM_PREDICATES)
            for side in BOTH_SIDES
        }

    @staticmethod
    def _entity(predicate: int, side: int, number: int) -> int:
        return 5003 * (number % NUM_ENTITIES) + 7 * predicate + side

    def queries(self, split: str) -> NDArray[np.int32]:
        """Return the queries: int32 [n, 3]."""
        return self._queries

    def argument_domain(self, predicate_id: int, side: Side) -> NDArray[np.int32]:
        """Return the entities of an argument: int32 [n], ascending."""
        if predicate_id == WIDE:
            return np.arange(NUM_CONSTANTS, dtype=np.int32)
        return np.array([self._entity(predicate_id, side, i) for i in range(NUM_ENTITIES)], np.int32)


def check_known_draws() -> None:
    """Compare draws with the reference's. InternalError if one differs."""
    graph: Any = KnownGraph()
    reference = ReferenceDraw(graph, "", ALL, 0)
    some = [*range(0, NUM_PREDICATES, 9), 254, 255, 256, NUM_QUERIES - 6, NUM_QUERIES - 2]
    every = list(range(2 * NUM_PREDICATES))
    settings = [(every, MANY, 0), (some, ALL, 0), *((some, FEW, seed) for seed in SEEDS)]
    for queries, num, seed in settings:
        _check_draw(graph, reference, queries, num, seed, BOTH_SIDES)
    _check_draw(graph, reference, [NUM_QUERIES - 1], ALL, 0, (Side.TAIL,))
    _check_atoms(graph)


def _check_draw(
    graph: Any, reference: ReferenceDraw, queries: list[int], num: int, seed: int, sides: tuple[Side, ...]
) -> None:
    found = draw_candidates(graph, "", queries, num, seed, sides)
    reference.set_draw(num, seed)
    expected = reference.draw_all(queries, sides)
    if sides == BOTH_SIDES and count_candidates(graph, "", queries, num).sum() != len(expected.query):
        raise InternalError("the candidates of a known draw are counted wrongly")
    if not are_equal(found, expected):
        raise InternalError(f"the draw of {num} corruptions with the seed {seed} is wrong on a known graph")


def _check_atoms(graph: Any) -> None:
    """Compare the numbers of atoms, and which of them may be drawn."""
    rows = graph.known_triples
    atoms = np.concatenate((rows, rows + np.array([0, 0, 5003], np.int32)))
    atoms = atoms[atoms[:, 2] < NUM_CONSTANTS]
    side = np.full(len(atoms), int(Side.TAIL), np.int64)
    numbers = [(p * NUM_CONSTANTS + a) * NUM_CONSTANTS + b for p, a, b in atoms.tolist()]
    known = {tuple(row) for row in rows.tolist()}
    domain = {p: set(graph.argument_domain(p, Side.TAIL).tolist()) for p in set(atoms[:, 0].tolist())}
    is_drawn = [(p, a, b) not in known and b in domain[p] for p, a, b in atoms.tolist()]
    if number_atoms(atoms, NUM_CONSTANTS).tolist() != numbers or may_be_drawn(graph, atoms, side).tolist() != is_drawn:
        raise InternalError("atoms of a known graph are numbered wrongly, or drawn where they are known")


def check_known_ranks() -> None:
    """Compare ranks at the edges of tolerances with the reference's. InternalError if one differs."""
    for tolerance in (0.0, RANK_TOLERANCE, 0.25):
        edges = [tolerance * factor for factor in (0.0, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 2.0)]
        gaps = [sign * gap for gap in (*edges, 1e-12, 1.0) for sign in (-1, 1)]
        # One ranking for each gap, and one with all of them.
        rankings = [*([gap] for gap in gaps), gaps]
        query = np.repeat(np.arange(len(rankings)), [1 + len(each) for each in rankings]).astype(np.int32)
        first = np.concatenate([np.arange(1 + len(each)) for each in rankings])
        score = np.concatenate([[0.0, *each] for each in rankings])
        size = len(query)
        candidates = Candidates(
            query=query,
            side=np.zeros(size, np.int8),
            atom=np.column_stack((np.zeros(size), first, query)).astype(np.int32),
            num_steps=np.ones(size, np.uint32),
            outcome=np.full(size, Outcome.PROVED, np.uint8),
            is_limited=np.zeros(size, np.uint8),
            log_probability=score,
        )
        triples = np.array([(0, 0, i) for i in range(len(rankings))], np.int32)
        found = rank_candidates(candidates, triples, tolerance)
        expected = rank_by_reference(candidates, triples, tolerance)
        if not are_equal(found, expected):
            raise InternalError(f"ranks at the edges of the tolerance {tolerance} are wrong")
