"""Faults of the stages `corrupt` and `rank`."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kgverify.faults.fault import Plant
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.outcomes import Side
from kgverify.ranking.corrupt import ALL, BOTH_SIDES, find_eligible_entities, mix
from kgverify.ranking.rank import rank_scores
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings

Entities = NDArray[np.int32]


def share_stream(plant: Plant) -> Plant:
    """Draw all corruptions from one stream, so that those of a query depend on what was drawn before them."""

    def draw(graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int) -> CandidateSet:
        stream = np.random.default_rng(seed)

        def draw_entities(triple: NDArray[np.int32], query: int, side: Side) -> Entities:
            entities = find_eligible_entities(graph, triple, side)
            if num == ALL or len(entities) <= num:
                return entities
            drawn: Entities = np.sort(stream.choice(entities, num, replace=False))
            return drawn

        return _list_candidates(graph.queries(split), queries, draw_entities)

    return plant._replace(draw=draw)


def leak_known(plant: Plant) -> Plant:
    """Do not filter: known triples are drawn as corruptions."""

    def draw(graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int) -> CandidateSet:
        def draw_entities(triple: NDArray[np.int32], query: int, side: Side) -> Entities:
            entities: Entities = graph.argument_domain(int(triple[0]), side)
            entities = entities[entities != triple[1 + side]]
            if num == ALL or len(entities) <= num:
                return entities
            key = np.array([seed], np.uint64)
            for word in (query, int(side)):
                key = mix(key) ^ np.uint64(word)
            priority = mix(mix(key) ^ entities.astype(np.uint64))
            drawn: Entities = np.sort(entities[np.argpartition(priority, num)[:num]])
            return drawn

        return _list_candidates(graph.queries(split), queries, draw_entities)

    return plant._replace(draw=draw)


def swap_arguments(plant: Plant) -> Plant:
    """Read (relation, tail, head) where (relation, head, tail) is meant, in every corruption."""
    sound = plant.draw

    def draw(graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int) -> CandidateSet:
        candidates = sound(graph, split, queries, num, seed)
        is_true = (candidates.atom == graph.queries(split)[candidates.query]).all(1)
        atom = np.where(is_true[:, None], candidates.atom, candidates.atom[:, [0, 2, 1]])
        return CandidateSet(candidates.query, candidates.side, atom)

    return plant._replace(draw=draw)


def rank_padding(plant: Plant) -> Plant:
    """Fill the corruptions of a query up to their number with rows of zeros, and rank these like any other."""
    sound = plant.draw

    def draw(graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int) -> CandidateSet:
        candidates = sound(graph, split, queries, num, seed)
        group = candidates.query.astype(np.int64) * 4 + candidates.side
        last = np.flatnonzero(np.r_[group[1:] != group[:-1], True]) if len(group) else np.zeros(0, np.int64)
        repeats = np.ones(len(group), np.int64)
        repeats[last] += np.maximum(0, num + 1 - np.diff(np.r_[-1, last])) if num != ALL else 0
        rows = np.repeat(np.arange(len(group)), repeats)
        is_padding = np.r_[False, rows[1:] == rows[:-1]] if len(rows) else np.zeros(0, np.bool_)
        padded = candidates.take(rows)
        return padded._replace(atom=np.where(is_padding[:, None], np.int32(0), padded.atom))

    return plant._replace(draw=draw)


def forget_push_down(plant: Plant) -> Plant:
    """Rank by the log-probability alone, proved or not."""

    def rank(candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
        return rank_scores(candidates, candidates.log_probability, triples, tolerance)

    return plant._replace(rank=rank)


def win_ties(plant: Plant) -> Plant:
    """Count every tie as won."""
    sound = plant.rank

    def rank(candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
        rankings = sound(candidates, triples, tolerance)
        return rankings._replace(pessimistic=rankings.optimistic)

    return plant._replace(rank=rank)


def _list_candidates(
    triples: NDArray[np.int32],
    queries: Sequence[int],
    draw_entities: Callable[[NDArray[np.int32], int, Side], Entities],
) -> CandidateSet:
    """List for each query and side the true triple, then the corruptions with entities of `draw_entities`."""
    groups = [(query, side) for query in queries for side in BOTH_SIDES]
    entities = [draw_entities(triples[query], query, side) for query, side in groups]
    sizes = [1 + len(each) for each in entities]
    query = np.repeat(np.array([query for query, _ in groups], np.int32), sizes)
    side = np.repeat(np.array([side for _, side in groups], np.int8), sizes)
    atom = triples[query]
    for begin, (_, corrupted), each in zip(np.cumsum([0, *sizes]), groups, entities, strict=False):
        atom[begin + 1 : begin + 1 + len(each), 1 + corrupted] = each
    return CandidateSet(query, side, atom)
