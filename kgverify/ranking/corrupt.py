"""The stage `corrupt`: seeded, filtered corruptions, drawn by key so that no chunking or order can change them."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph, find_predicate
from kgverify.program.outcomes import Side
from kgverify.ranking.draw import count_eligible, draw_entities
from kgverify.trace.model.columns import CandidateSet

ALL: Final = -1
"""The number of corruptions that stands for every eligible entity."""

Draw = Callable[[KnowledgeGraph, str, Sequence[int], int, int], CandidateSet]
"""(graph, split, queries, number of corruptions, seed) -> candidates."""

BOTH_SIDES: Final = (Side.HEAD, Side.TAIL)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the splitmix64 step (Steele, Lea and Flood 2014) to each element; arithmetic is mod 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def find_eligible_entities(graph: KnowledgeGraph, triple: NDArray[np.int32], side: Side) -> NDArray[np.int32]:
    """Return the entities of the argument's domain that make neither the triple nor a known one: int32 [n], ascending."""
    entities = graph.argument_domain(int(triple[0]), side)
    known = graph.known_triples
    kept_column = 2 if side == Side.HEAD else 1
    begin, end = find_predicate(known, int(triple[0]))
    of_predicate = known[begin:end]
    taken = of_predicate[of_predicate[:, kept_column] == triple[kept_column], 1 + side]
    return np.setdiff1d(entities, np.append(taken, triple[1 + side]), assume_unique=True)


def draw_candidates(
    graph: KnowledgeGraph,
    split: str,
    queries: Sequence[int],
    num_corruptions: int,
    seed: int,
    sides: Sequence[Side] = BOTH_SIDES,
) -> CandidateSet:
    """Draw the candidates of the given queries: for each query and side the true triple, then its corruptions by entity.

    The draw depends on (seed, query, side) alone. It takes the entities of lowest key, or all if no more are eligible.
    UserError for a query that the split does not have, or a negative number of corruptions other than `ALL`.
    """
    query, side = _rows(graph, split, queries, num_corruptions, sides)
    triple = graph.queries(split)[query]
    key = np.full(len(query), seed & (2**64 - 1), np.uint64)
    for word in (query, side):
        key = mix(key) ^ word.astype(np.uint64)
    num_wanted = None if num_corruptions == ALL else num_corruptions
    num_drawn, entities = draw_entities(graph, triple, mix(key), side, num_wanted)
    counts = num_drawn + 1
    is_corruption = np.ones(int(counts.sum()), np.bool_)
    is_corruption[np.cumsum(counts) - counts] = False
    all_sides = np.repeat(side.astype(np.int8), counts)
    atom = np.repeat(triple, counts, axis=0)
    atom[is_corruption, 1 + all_sides[is_corruption]] = entities
    return CandidateSet(np.repeat(query.astype(np.int32), counts), all_sides, atom)


def draw_eligible(
    graph: KnowledgeGraph, triple: NDArray[np.int32], side: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """List every corruption of triples on their sides.

    Takes int32 [n, 3] and int64 [n]; returns the number for each triple, int64 [n], and the corruptions, int32 [m, 3].
    """
    num, entities = draw_entities(graph, triple, np.zeros(len(side), np.uint64), side, None)
    atom, is_head = np.repeat(triple, num, axis=0), np.repeat(side == Side.HEAD, num)
    np.copyto(atom[:, 1], entities, where=is_head)
    np.copyto(atom[:, 2], entities, where=~is_head)
    return num, atom


def put_entities(triple: NDArray[np.int32], side: NDArray[np.int64], entities: NDArray[np.int32]) -> NDArray[np.int32]:
    """Replace the argument of a side, int64 [n], by an entity, int32 [n], in each triple, int32 [n, 3]."""
    atom = triple.copy()
    atom[:, 1] = np.where(side == Side.HEAD, entities, triple[:, 1])
    atom[:, 2] = np.where(side == Side.TAIL, entities, triple[:, 2])
    return atom


def may_be_drawn(graph: KnowledgeGraph, atom: NDArray[np.int32], side: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether atoms, int32 [n, 3], are corruptions on sides, int64 [n]: in the domain there, and not known."""
    size = len(graph.program.symbols.constants)
    known, number = number_atoms(graph.known_triples, size), number_atoms(atom, size)
    nearest = np.searchsorted(known, number).clip(max=max(0, len(known) - 1))
    is_drawn = known[nearest] != number if len(known) else np.ones(len(atom), np.bool_)
    codes, of = np.unique(atom[:, 0].astype(np.int64) * 2 + side, return_inverse=True)
    for i, code in enumerate(codes.tolist()):
        is_member = np.zeros(size, np.bool_)
        is_member[graph.argument_domain(code // 2, Side(code % 2))] = True
        rows = np.flatnonzero(of == i)
        is_drawn[rows] &= is_member[atom[rows, 1 + code % 2]]
    return is_drawn


def number_atoms(atom: NDArray[np.int32], num_constants: int) -> NDArray[np.int64]:
    """Return the number of each ground atom, int32 [n, 3], in their order: int64 [n]."""
    wide = atom.astype(np.int64)
    numbers: NDArray[np.int64] = (wide[:, 0] * num_constants + wide[:, 1]) * num_constants + wide[:, 2]
    return numbers


def count_candidates(
    graph: KnowledgeGraph, split: str, queries: Sequence[int], num_corruptions: int
) -> NDArray[np.int64]:
    """Count the candidates that `draw_candidates` returns for each query: int64 [n]. UserError as there."""
    query, side = _rows(graph, split, queries, num_corruptions, BOTH_SIDES)
    most = np.iinfo(np.int64).max if num_corruptions == ALL else num_corruptions
    num = np.minimum(count_eligible(graph, graph.queries(split)[query], side), most)
    total: NDArray[np.int64] = (num + 1).reshape(-1, len(BOTH_SIDES)).sum(1)
    return total


def _rows(
    graph: KnowledgeGraph, split: str, queries: Sequence[int], num_corruptions: int, sides: Sequence[Side]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the query and the side of each ranking, int64."""
    num_queries = len(graph.queries(split))
    if num_corruptions < ALL:
        raise UserError(
            f"expected a number of corruptions of 0 or more, or all, found {num_corruptions}",
            where="corruptions",
            fix="give 0 or more, or `all`",
        )
    chosen = np.array(queries, np.int64)
    unknown = chosen[(chosen < 0) | (chosen >= num_queries)]
    if len(unknown):
        raise UserError(
            f"expected a query from 0 to {num_queries - 1}, found {unknown[0]}",
            where=f"{graph.name}, split {split}",
            fix="choose a query that the split has",
        )
    return np.repeat(chosen, len(sides)), np.tile(np.array(sides, np.int64), len(chosen))
