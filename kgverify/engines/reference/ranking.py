"""The reference's own corruptions, ranks and metrics, so that they are verified like any other stage."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgreference.aggregate import aggregate, list_answers
from kgreference.corrupt import MASK, Corrupter, mix
from kgreference.program import Program
from kgreference.rank import Ranks, metrics, rank, ranking_score
from kgreference.step import Outcome
from kgreference.terms import Atom
from kgverify.engines.reference.engine import build_reference_program
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.outcomes import Side
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings


def draw_candidates(
    graph: KnowledgeGraph,
    split: str,
    queries: Sequence[int],
    num_corruptions: int,
    seed: int,
    sides: Sequence[Side] = (Side.HEAD, Side.TAIL),
) -> CandidateSet:
    """Draw the candidates of the given queries. A negative number of corruptions means all of them."""
    return ReferenceDraw(graph, split, num_corruptions, seed).draw_all(queries, sides)


class ReferenceDraw:
    """The draw of one run, a query and side at a time."""

    def __init__(self, graph: KnowledgeGraph, split: str, num_corruptions: int, seed: int) -> None:
        self._triples = graph.queries(split)
        self.set_draw(num_corruptions, seed)
        self._graph = graph
        # The draw needs only the numbers of the constants.
        program = Program((), graph.program.symbols.constants, (), ())
        self._corrupter = Corrupter(program, (), graph.domains)
        # By predicate: triples of other predicates decide nothing.
        self._known: dict[int, NDArray[np.int32]] = {}
        self._corrupters: dict[int, Corrupter] = {}

    def set_draw(self, num_corruptions: int, seed: int) -> None:
        """Draw other corruptions of the same graph from now on."""
        self._num = None if num_corruptions < 0 else num_corruptions
        self._seed = seed

    def draw_all(self, queries: Sequence[int], sides: Sequence[Side]) -> CandidateSet:
        """Return the candidates of several queries and sides."""
        rows = [
            (query, int(side), *atom) for query in queries for side in sides for atom in self.draw(query, int(side))
        ]
        table = np.array(rows, np.int32).reshape(-1, 5)
        return CandidateSet(table[:, 0], table[:, 1].astype(np.int8), table[:, 2:])

    def draw(self, query: int, side: int) -> list[Atom]:
        """Return the true triple, then its corruptions."""
        triple = Atom(*self._triples[query].tolist())
        corrupter = self._take_corrupter(triple)
        return corrupter.candidates(triple, query, side, self._num, self._seed)

    def _take_corrupter(self, triple: Atom) -> Corrupter:
        """Return the corrupter for a triple, built from the known triples that matter for it."""
        predicate, first, second = triple
        if predicate not in self._known:
            known = self._graph.known_triples
            self._known[predicate] = known[known[:, 0] == predicate]
        known = self._known[predicate]
        if not self._graph.domains:
            # Every constant may be drawn, even if no triple here contains it.
            shared = known[(known[:, 1] == first) | (known[:, 2] == second)]
            return self._corrupter.with_known(zip(*shared.T.tolist(), strict=True))
        if predicate not in self._corrupters:
            self._corrupters[predicate] = self._corrupter.with_known(zip(*known.T.tolist(), strict=True))
        return self._corrupters[predicate]


class AggregatedRanking(NamedTuple):
    """A ranking by rule confidences: its candidates, the predicted ones, both ranks, and the log-probability of the true one.

    rules: the rules that predict one of its candidates
    """

    num_ranked: int
    num_predicted: int
    is_predicted: bool
    ranks: tuple[float, float]
    log_strength: float
    rules: set[int]


class ReferenceAggregate:
    """The reference's ranks by rule confidences, a query and side at a time, among all corruptions."""

    def __init__(self, graph: KnowledgeGraph, split: str, method: str, confidences: Sequence[float]) -> None:
        self._draw, self._program = ReferenceDraw(graph, split, -1, 0), build_reference_program(graph.program)
        self._method, self._confidences, self._triples = method, confidences, graph.queries(split)

    def rank(self, query: int, side: int) -> AggregatedRanking:
        """Rank a query on a side."""
        predicate, *arguments = self._triples[query].tolist()
        predicted = defaultdict[int, list[int]](list)
        for number, rule in enumerate(self._program.rules):
            if rule.head[0] == predicate and self._confidences[number] > 0:
                for answer in list_answers(self._program, rule, 1 + side, arguments[1 - side]):
                    predicted[answer].append(number)
        true, *corruptions = (atom[1 + side] for atom in self._draw.draw(query, side))
        keys = {
            each: aggregate([self._confidences[rule] for rule in predicted[each]], self._method)
            for each in predicted.keys() & {true, *corruptions}
        }
        own, others = keys.get(true, ()), [key for each, key in keys.items() if each != true]
        above = sum(key > own for key in others)
        tied = others.count(own) if own else len(corruptions) - len(others)
        strength = 1.0
        if own:
            strength = 1 - math.exp(-own[0]) if self._method == "noisy-or" else own[0]
        rules = {rule for each in keys for rule in predicted[each]}
        ranks = 1.0 + above, 1.0 + above + tied
        return AggregatedRanking(1 + len(corruptions), len(keys), bool(own), ranks, math.log(strength), rules)


def sum_mixed(entities: Iterable[int]) -> int:
    """Return the sum of the reference's `mix` over entities, modulo 2^64."""
    return sum(map(mix, entities)) & MASK


def compute_metrics(rankings: Rankings) -> dict[str, float]:
    """Compute the metrics of rankings, with PyKEEN's keys, by the reference."""
    # The index of a side is its code. Rankings of neither side count only when both sides are pooled.
    head, tail, neither = sides = list[Ranks](), list[Ranks](), list[Ranks]()
    rows = zip(rankings.side.tolist(), rankings.optimistic.tolist(), rankings.pessimistic.tolist(), strict=True)
    for side, optimistic, pessimistic in rows:
        sides[side].append(Ranks(optimistic, (optimistic + pessimistic) / 2, pessimistic))
    return metrics(head, tail, neither)


def rank_candidates(candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
    """Rank the true triple of each query and side among its corruptions; triples int32 [n, 3] is the split."""
    groups: dict[tuple[int, int], dict[tuple[int, ...], float]] = {}
    for query, side, atom, log_probability, outcome in zip(
        candidates.query.tolist(),
        candidates.side.tolist(),
        candidates.atom.tolist(),
        candidates.log_probability.tolist(),
        candidates.outcome.tolist(),
        strict=True,
    ):
        scores = groups.setdefault((query, side), {})
        scores.setdefault(tuple(atom), ranking_score(log_probability, Outcome(outcome)))
    rows = []
    for (query, side), scores in sorted(groups.items()):
        true = tuple(triples[query].tolist())
        if true in scores:
            ranks = rank(scores[true], [score for atom, score in scores.items() if atom != true], tolerance)
            rows.append((query, side, len(scores), ranks.optimistic, ranks.pessimistic))
    columns = list(zip(*rows, strict=True)) or [()] * 5
    dtypes = (np.int32, np.int8, np.uint32, np.float64, np.float64)
    return Rankings(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))
