"""Faults around the engine: in drawing corruptions, in proving chunks of candidates, and in ranking."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine, Positions, ProbedEngine, StageOutputs
from kgverify.errors import InternalError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.outcomes import Side
from kgverify.progress import Progress, no_progress
from kgverify.prover.faults.fault import Carrier, Plant, plants, replaces
from kgverify.ranking.draw import ALL, BOTH_SIDES, Draw, find_eligible_entities, mix
from kgverify.ranking.rank import Rank, rank_scores
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, Rankings, select_candidates
from kgverify.trace.model.header import EngineInfo

CHUNK: Final = 16
"""The number of candidates proved at a time by code with these faults."""

Entities: TypeAlias = NDArray[np.int32]
Rows: TypeAlias = Callable[[int], NDArray[np.int64]]
"""A function from the number of candidates to the rows in the result."""


@replaces("stream-per-chunk", "draw")
def share_stream(
    sound: Draw, graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int
) -> CandidateSet:
    """Draw all corruptions from one stream, so that the corruptions of a query depend on earlier draws."""
    stream = np.random.default_rng(seed)

    def draw_entities(triple: NDArray[np.int32], query: int, side: Side) -> Entities:
        entities = find_eligible_entities(graph, triple, side)
        if num == ALL or len(entities) <= num:
            return entities
        drawn: Entities = np.sort(stream.choice(entities, num, replace=False))
        return drawn

    return _list_candidates(graph.queries(split), queries, draw_entities)


@replaces("known-triples", "draw")
def leak_known(
    sound: Draw, graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int
) -> CandidateSet:
    """Do not filter: known triples are drawn as corruptions."""

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


@replaces("swapped-arguments", "draw")
def swap_arguments(sound: Draw, graph: KnowledgeGraph, split: str, *given: Any) -> CandidateSet:
    """Read (relation, tail, head) instead of (relation, head, tail) in every corruption."""
    candidates = sound(graph, split, *given)
    is_true = (candidates.atom == graph.queries(split)[candidates.query]).all(1)
    atom = np.where(is_true[:, None], candidates.atom, candidates.atom[:, [0, 2, 1]])
    return CandidateSet(candidates.query, candidates.side, atom)


@replaces("padding-ranked", "draw")
def rank_padding(
    sound: Draw, graph: KnowledgeGraph, split: str, queries: Sequence[int], num: int, seed: int
) -> CandidateSet:
    """Fill the corruptions of a query up to the requested number with rows of zeros, and rank these rows like any other."""
    candidates = sound(graph, split, queries, num, seed)
    group = candidates.query.astype(np.int64) * 4 + candidates.side
    last = np.flatnonzero(np.r_[group[1:] != group[:-1], True]) if len(group) else np.zeros(0, np.int64)
    repeats = np.ones(len(group), np.int64)
    repeats[last] += np.maximum(0, num + 1 - np.diff(np.r_[-1, last])) if num != ALL else 0
    rows = np.repeat(np.arange(len(group)), repeats)
    is_padding = np.r_[False, rows[1:] == rows[:-1]] if len(rows) else np.zeros(0, np.bool_)
    padded = candidates.take(rows)
    return padded._replace(atom=np.where(is_padding[:, None], np.int32(0), padded.atom))


def _list_candidates(
    triples: NDArray[np.int32],
    queries: Sequence[int],
    draw_entities: Callable[[NDArray[np.int32], int, Side], Entities],
) -> CandidateSet:
    """List the true triple and then the corruptions with entities of `draw_entities`, for each query and side."""
    groups = [(query, side) for query in queries for side in BOTH_SIDES]
    entities = [draw_entities(triples[query], query, side) for query, side in groups]
    sizes = [1 + len(each) for each in entities]
    query = np.repeat(np.array([query for query, _ in groups], np.int32), sizes)
    side = np.repeat(np.array([side for _, side in groups], np.int8), sizes)
    atom = triples[query]
    for begin, (_, corrupted), each in zip(np.cumsum([0, *sizes]), groups, entities, strict=False):
        atom[begin + 1 : begin + 1 + len(each), 1 + corrupted] = each
    return CandidateSet(query, side, atom)


class AlteredEngine:
    """An engine that alters the results of another engine, but not the steps."""

    def __init__(self, engine: Engine, rows: Rows) -> None:
        self._engine = engine
        self._rows = rows

    @property
    def info(self) -> EngineInfo:
        """The description of the other engine."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Prove the candidates, and lose or double some."""
        columns = self._engine.prove(candidates, progress)
        return select_candidates(columns, self._rows(len(columns.candidates.query)))

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position with the other engine."""
        return self._engine.step(positions)

    def probe(self, position: Positions) -> StageOutputs:
        """Probe the other engine. InternalError if it cannot be probed."""
        if not isinstance(self._engine, ProbedEngine):
            raise InternalError("the engine with the fault cannot be probed")
        return self._engine.probe(position)


@plants("chunk-boundary-dropped", Carrier.ANY)
def drop_at_boundary(plant: Plant) -> Plant:
    """Lose the last candidate of each chunk except the last."""

    def rows(num: int) -> NDArray[np.int64]:
        candidate = np.arange(num)
        return np.flatnonzero(((candidate + 1) % CHUNK != 0) | (candidate == num - 1))

    return _alter_results(plant, rows)


@plants("chunk-boundary-doubled", Carrier.ANY)
def double_at_boundary(plant: Plant) -> Plant:
    """Count the first candidate of each chunk with the previous chunk as well, except in the first chunk."""

    def rows(num: int) -> NDArray[np.int64]:
        candidate = np.arange(num)
        return np.repeat(candidate, 1 + ((candidate % CHUNK == 0) & (candidate > 0)))

    return _alter_results(plant, rows)


def _alter_results(plant: Plant, rows: Rows) -> Plant:
    inner = plant.wrap_engine
    return plant._replace(wrap_engine=lambda engine: AlteredEngine(inner(engine), rows))


@replaces("no-push-down", "rank")
def forget_push_down(sound: Rank, candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
    """Rank by the log-probability only, proved or not."""
    return rank_scores(candidates, candidates.log_probability, triples, tolerance)


@replaces("optimistic-ties", "rank")
def win_ties(sound: Rank, *given: Any) -> Rankings:
    """Count every tie as won."""
    rankings = sound(*given)
    return rankings._replace(pessimistic=rankings.optimistic)
