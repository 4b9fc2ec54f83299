"""Stage `corrupt`: seeded, filtered corruptions, drawn by key, so that no chunking or order can change them."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.kg.graph import KnowledgeGraph
from kgverify.logic.outcomes import Side
from kgverify.trace.columns import CandidateSet

ALL: Final = -1
"""The number of corruptions that means every eligible entity."""

BOTH_SIDES: Final = (Side.HEAD, Side.TAIL)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 step (Steele, Lea and Flood 2014) of each element; arithmetic is mod 2^64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def eligible_entities(graph: KnowledgeGraph, triple: NDArray[np.int32], side: Side) -> NDArray[np.int32]:
    """int32 [n], ascending: those of the argument's domain that make neither the triple, int32 [3], nor a known one."""
    entities = graph.argument_domain(int(triple[0]), side)
    known = graph.known_triples
    kept_column = 2 if side == Side.HEAD else 1
    begin, end = np.searchsorted(known[:, 0], [triple[0], triple[0] + 1])
    of_predicate = known[begin:end]
    taken = of_predicate[of_predicate[:, kept_column] == triple[kept_column], 1 + side]
    return np.setdiff1d(entities, np.append(taken, triple[1 + side]), assume_unique=True)


def draw_corruptions(
    graph: KnowledgeGraph, triple: NDArray[np.int32], query: int, side: Side, num_corruptions: int, seed: int
) -> NDArray[np.int32]:
    """int32 [k], ascending: the entities that replace one side of a query; fewer where fewer are eligible.

    `num_corruptions` of `ALL` takes all. The draw depends on (seed, query, side) alone.
    """
    entities = eligible_entities(graph, triple, side)
    if num_corruptions == ALL or len(entities) <= num_corruptions:
        return entities
    key = np.array([seed & (2**64 - 1)], np.uint64)
    for word in (query, int(side)):
        key = mix(key) ^ np.uint64(word)
    priority = mix(mix(key) ^ entities.astype(np.uint64))
    return np.sort(entities[np.argpartition(priority, num_corruptions)[:num_corruptions]])


def draw_candidates(
    graph: KnowledgeGraph,
    split: str,
    queries: Sequence[int],
    num_corruptions: int,
    seed: int,
    sides: Sequence[Side] = BOTH_SIDES,
) -> CandidateSet:
    """The candidates of the given queries: for each query and side the true triple, then its corruptions.

    UserError for a query that the split does not have, or a negative number of corruptions other than `ALL`.
    """
    triples = graph.queries(split)
    if num_corruptions < ALL:
        raise UserError(
            f"expected a number of corruptions of 0 or more, or all, found {num_corruptions}",
            where="--corruptions",
            fix="give 0 or more, or `all`",
        )
    query_parts, side_parts, atom_parts = [], [], []
    for query in queries:
        if not 0 <= query < len(triples):
            raise UserError(
                f"expected a query from 0 to {len(triples) - 1}, found {query}",
                where=f"{graph.name}, split {split}",
                fix="choose a query that the split has",
            )
        for side in sides:
            entities = draw_corruptions(graph, triples[query], query, side, num_corruptions, seed)
            atoms = np.repeat(triples[query][None], 1 + len(entities), axis=0)
            atoms[1:, 1 + side] = entities
            atom_parts.append(atoms)
            query_parts.append(np.full(len(atoms), query, np.int32))
            side_parts.append(np.full(len(atoms), side, np.int8))
    return CandidateSet(
        np.concatenate([*query_parts, np.zeros(0, np.int32)]),
        np.concatenate([*side_parts, np.zeros(0, np.int8)]),
        np.concatenate([*atom_parts, np.zeros((0, 3), np.int32)]),
    )
