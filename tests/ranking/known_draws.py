"""The known-answer test of draws and ranks, of sizes that no small run has: they are hashed, and the hashes are known.

The queries, entities, predicates, seeds and counts are beyond 2^8, 2^15, 2^16 and 2^32, and gaps lie at the edges of
tolerances. The reference gives the same answers, too slowly for every run: see the tests.
"""

import hashlib
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import InternalError
from kgverify.program.outcomes import NOT_PROVED_PENALTY, Outcome, Side
from kgverify.ranking.draw import ALL, count_candidates, draw_candidates, draw_entities, may_be_drawn
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.trace.model.columns import Candidates

NUM_CONSTANTS: Final = 70_003
NUM_QUERIES: Final = 70_001
QUERIES: Final = (0, 1, 255, 256, 8_192, 32_767, 32_768, 65_535, 65_536, 70_000)
CROWD: Final = range(1_000, 2_200)
"""More queries of one predicate than its known triples are looked up one by one for."""
WIDE: Final = 0
"""The predicate whose arguments may be any entity; those of the others are a few, far apart."""
SEEDS: Final = ((1 << 32) + 5, (1 << 63) + 1, -3)
MANY: Final = 25
"""More corruptions than some queries have on a side, and fewer than others have."""
SHORT_KEY: Final = 153_392_128
"""A key of which one entity passes the first limit where two are wanted, among 256."""
TOLERANCES: Final = (0.0, 0.5)
EDGES: Final = (0.0, RANK_TOLERANCE, 0.25)
"""The tolerances at whose edges gaps are compared."""

_NEAR: Final = (1 << 8, 1 << 15, 1 << 16, NUM_CONSTANTS - 3)


class LargeGraph:
    """The part of a graph that draws read, of many entities that have no names."""

    name = "known"

    class _Program(NamedTuple):
        symbols: Any

    class _Symbols(NamedTuple):
        constants: range

    program = _Program(_Symbols(range(NUM_CONSTANTS)))

    @cached_property
    def few(self) -> NDArray[np.int32]:
        """The entities of the predicates with few: small numbers, and those on both sides of the sizes of types."""
        near = [number + i for number in _NEAR for i in range(-3, 3)]
        return np.array([*range(12), *near], np.int32)

    @cached_property
    def triples(self) -> NDArray[np.int32]:
        """The split, int32 [NUM_QUERIES, 3], of which only `QUERIES` and `CROWD` are used."""
        triples = np.zeros((NUM_QUERIES, 3), np.int32)
        few = self.few
        for i, query in enumerate(QUERIES):
            # Modulo 2^7 and 2^8 the predicates are one.
            triples[query] = (72, 72 + 256)[i % 2], few[-1 - i], few[3 * i % len(few)]
        triples[QUERIES[-1]] = WIDE, few[-2], few[-2]
        known = self._find_known(triples)
        known = known[known[:, 0] == triples[QUERIES[0], 0]]
        triples[CROWD.start : CROWD.stop] = known[np.arange(len(CROWD)) * 7 % len(known)]
        return triples

    @cached_property
    def known_triples(self) -> NDArray[np.int32]:
        """The queries, and triples beside them: int32 [n, 3], in order."""
        return self._find_known(self.triples)

    def _find_known(self, triples: NDArray[np.int32]) -> NDArray[np.int32]:
        queries = triples[list(QUERIES)].tolist()
        beside = [(p, int(e), b) for p, _, b in queries for e in self.few[::3]]
        beside += [(p, a, int(e)) for p, a, _ in queries for e in self.few[1::4]]
        return np.array(sorted({*map(tuple, queries), *beside}), np.int32)

    def queries(self, split: str) -> NDArray[np.int32]:
        """Return the split, whatever its name is."""
        return self.triples

    def argument_domain(self, predicate: int, side: Side) -> NDArray[np.int32]:
        """Return the entities of an argument: int32 [n], ascending."""
        return np.arange(NUM_CONSTANTS, dtype=np.int32) if predicate == WIDE else self.few


def make_candidates(num: int, queries: tuple[int, ...]) -> Candidates:
    """Return the candidates of both sides of queries in order, `num` of the first and a few of the others, with their ends.

    Their scores lie at, within and beyond `TOLERANCES` around that of the true triple, and far away.
    """
    counts = [num if i == 0 else 20 for i in range(2 * len(queries))]
    number = np.concatenate([np.arange(count) for count in counts])
    query = np.repeat(np.repeat(np.array(queries, np.int32), 2), counts)
    side = np.repeat(np.tile(np.array([0, 1], np.int8), len(queries)), counts)
    atom = np.zeros((len(number), 3), np.int32)
    atom[np.arange(len(number)), 1 + side] = number
    gap = np.array([0.0, 0.5, -0.5, 0.5 - 2**-20, 2**-20 - 0.5, 3.0, -3.0, 2**-9, -(2**-30), 1.25])[number % 10]
    outcome = np.where(number % 7 == 5, 2 + number % 2, int(Outcome.PROVED)).astype(np.int8)
    # What is not PROVED is as near to the true triple as the rest.
    log_probability = gap - 2049.0 + NOT_PROVED_PENALTY * (outcome != Outcome.PROVED) * (number % 3 == 0)
    zeros = np.zeros(len(number), np.uint32)
    return Candidates(query, side, atom, zeros, outcome, zeros.astype(np.uint8), log_probability)


def make_edges(tolerance: float) -> Candidates:
    """Return a ranking for each gap at the edges of a tolerance, and one with all of these gaps."""
    edges = [tolerance * factor for factor in (0.0, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 2.0)]
    gaps = [sign * gap for gap in (*edges, 1e-12, 1.0) for sign in (-1, 1)]
    rankings = [[0.0, gap] for gap in gaps] + [[0.0, *gaps]]
    counts = [len(each) for each in rankings]
    query, zeros = np.repeat(np.arange(len(rankings)), counts).astype(np.int32), np.zeros(sum(counts), np.uint32)
    atom = np.column_stack((zeros, np.concatenate([np.arange(count) for count in counts]), zeros)).astype(np.int32)
    outcome = np.full(len(query), Outcome.PROVED, np.int8)
    return Candidates(
        query, zeros.astype(np.int8), atom, zeros, outcome, zeros.astype(np.uint8), np.concatenate(rankings)
    )


def shuffle(candidates: Candidates) -> Candidates:
    """Return the same candidates in another order, some of them twice."""
    rows = np.arange(len(candidates.query)) * 7 % len(candidates.query)
    every: Any = candidates
    return Candidates(*(column[np.append(rows, rows[:9])] for column in every))


def make_behind(entities: tuple[int, ...]) -> tuple[Candidates, NDArray[np.int32]]:
    """Return a group of candidates of which 3 is the true one, and the split."""
    zeros = np.zeros(len(entities), np.uint32)
    atom = np.column_stack((zeros, zeros, entities)).astype(np.int32)
    outcome, side = np.full(len(entities), Outcome.PROVED, np.int8), np.ones(len(entities), np.int8)
    sums = np.array([0.0, -1.0, 2.0, 0.5, 0.5, 3.0])[list(entities)]
    candidates = Candidates(zeros.astype(np.int32), side, atom, zeros, outcome, zeros.astype(np.uint8), sums)
    return candidates, np.array([(0, 0, 3)], np.int32)


def make_rankable() -> Iterator[Candidates]:
    """Yield the candidates that are ranked."""
    yield make_candidates(70_000, (0, 9_000, 70_000))
    yield shuffle(make_candidates(20, (3, 255, 9_000, 40_000, 70_000)))


def answers() -> Iterator[tuple[str, str]]:
    """Yield each answer by name: a hash of what was drawn, counted or ranked."""
    graph: Any = LargeGraph()
    few = QUERIES[:-1]
    for num, seed, queries in ((3, SEEDS[0], QUERIES), *((2, seed, few) for seed in SEEDS[1:]), (ALL, 0, few)):
        yield f"{num} corruptions, seed {seed}", hash_columns(draw_candidates(graph, "test", queries, num, seed))
    yield f"{MANY} corruptions, seed 0", hash_columns(draw_candidates(graph, "test", few, MANY, 0))
    yield "queries of one predicate", hash_columns(draw_candidates(graph, "test", CROWD, 5, 0))
    of_wide = draw_candidates(graph, "test", QUERIES[-1:], ALL, 0, (Side.TAIL,))
    yield "all tails of many", hash_columns(of_wide)
    counts = [count_candidates(graph, "test", QUERIES, num) for num in (ALL, 20, MANY)]
    yield "numbers of candidates", hash_columns(counts)
    every = np.repeat(graph.triples[list(few)], len(graph.few), axis=0)
    every[:, 1] = np.tile(graph.few, len(few))
    yield "candidates that may be drawn", hash_columns([may_be_drawn(graph, every, np.zeros(len(every), np.int64))])
    yield "a short draw", hash_columns(draw_short())
    for i, candidates in enumerate(make_rankable()):
        for tolerance in TOLERANCES if i else TOLERANCES[1:]:
            ranked = rank_candidates(candidates, np.zeros((NUM_QUERIES, 3), np.int32), tolerance)
            yield f"ranks {i}, tolerance {tolerance}", hash_columns(ranked)
    for name, entities in {"behind others": (0, 1, 2, 3, 4, 5), "twice": (3, 0, 1, 2, 3, 4, 5)}.items():
        yield f"a true triple {name}", hash_columns(rank_candidates(*make_behind(entities), TOLERANCES[0]))
    for tolerance in EDGES:
        ranked = rank_candidates(make_edges(tolerance), np.zeros((NUM_QUERIES, 3), np.int32), tolerance)
        yield f"gaps at the edges of {tolerance}", hash_columns(ranked)


def draw_short() -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Draw two entities where the first limit lets only one pass."""
    graph: Any = _Dense()
    triple, side = np.zeros((1, 3), np.int32), np.zeros(1, np.int64)
    return draw_entities(graph, triple, np.array([SHORT_KEY], np.uint64), side, 2)


class _Dense:
    known_triples = np.zeros((1, 3), np.int32)

    def argument_domain(self, predicate: int, side: Side) -> NDArray[np.int32]:
        return np.arange(257, dtype=np.int32)


def hash_columns(columns: Any) -> str:
    """Return a hash of columns: of the numbers in them, whatever type an integer has."""
    digest = hashlib.sha256()
    for column in columns:
        digest.update(column.astype(np.float64 if column.dtype.kind == "f" else np.int64).tobytes())
    return digest.hexdigest()[:16]


KNOWN: Final[dict[str, str]] = {
    "3 corruptions, seed 4294967301": "174acf7e3c1cf640",
    "2 corruptions, seed 9223372036854775809": "d7c51526848b02a9",
    "2 corruptions, seed -3": "c1c1da654f33a5d8",
    "-1 corruptions, seed 0": "674dec5e5d13aaa2",
    "25 corruptions, seed 0": "f53997840772b8c2",
    "queries of one predicate": "d9f71160023cf565",
    "all tails of many": "a06beaa3cc7a81cd",
    "numbers of candidates": "dd84c07b4786f49e",
    "candidates that may be drawn": "a364942b5c6bcbe1",
    "a short draw": "0e7e7c62a0b32e20",
    "ranks 0, tolerance 0.5": "bf2a853a4b2aa7d6",
    "ranks 1, tolerance 0.0": "101d41dffad5856c",
    "ranks 1, tolerance 0.5": "2e087d7f760776a2",
    "a true triple behind others": "41ed5dfe20705613",
    "a true triple twice": "41ed5dfe20705613",
    "gaps at the edges of 0.0": "d471115eee1229ed",
    "gaps at the edges of 0.0001": "e9431f0aa2bb2aa8",
    "gaps at the edges of 0.25": "e9431f0aa2bb2aa8",
}
"""The answers."""


@cache
def check_known_draws() -> None:
    """InternalError unless draws and ranks of large sizes are those that the reference gives."""
    for name, answer in answers():
        if KNOWN[name] != answer:
            raise InternalError(f"kgverify draws or ranks wrongly: {name} is {answer}, expected {KNOWN[name]}")
