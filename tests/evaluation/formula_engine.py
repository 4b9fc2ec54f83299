"""An engine that looks the ending of every candidate up in a formula, on a graph with many queries.

The formula gives every kind of ending to true triples and to corruptions: PROVED below -100, ties, the depth limit, limited
candidates. Only what follows from the program is PROVED.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import kgreference
import kgverify as kv
from kgverify.engines.protocol import STOPPED
from kgverify.engines.reference.engine import build_reference_program
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.columns import CandidateSet

NUM_CONSTANTS = 16
NUM_QUERIES = 139
"""Twice as many rankings are more than 8 bits can number."""
SEED = (1 << 40) + 5

Triple = tuple[int, ...]


def build_graph() -> kv.KnowledgeGraph:
    """Return a graph with queries of two predicates that share entities, about half of which follow."""
    names = [f"c{i}" for i in range(NUM_CONSTANTS)]
    pairs = [(a, b) for a in range(NUM_CONSTANTS) for b in range(NUM_CONSTANTS)]
    _, _, rule = kv.load_graph("countries").rules
    head, first, second = rule.atoms
    path = [atom._replace(predicate=name) for atom, name in zip((head, first, second), "prr", strict=True)]
    inverse = [kv.NamedAtom("q", head.first, head.second), kv.NamedAtom("r", head.second, head.first)]
    return kv.KnowledgeGraph(
        "known",
        # The predicates of the queries come after eight others.
        train=(
            *(kv.NamedAtom(f"a{i}", names[0], names[1]) for i in range(8)),
            *(kv.NamedAtom("r", names[a], names[b]) for a, b in pairs if (a * 7 + b * 3) % 11 < 2),
        ),
        test=tuple(kv.NamedAtom("pq"[(a + b) % 2], names[a], names[b]) for a, b in pairs if (a * 5 + b) % 9 < 5),
        rules=(kv.NamedRule(path[0], tuple(path[1:])), kv.NamedRule(inverse[0], (inverse[1],))),
    )


class Ending(NamedTuple):
    """The ending of an atom, and the closeness of its choices."""

    outcome: int
    is_limited: int
    log_probability: float
    num_choices: int
    num_rescored: int
    gap: float

    @property
    def score(self) -> float:
        return self.log_probability - 100 * (self.outcome != 1)


class Evaluated(NamedTuple):
    """The endings of candidates, as an engine with a method `evaluate` returns them."""

    results: tuple[Any, Any, Any]
    num_choices: int
    num_rescored: int
    smallest_gap: float


class FormulaEngine:
    """The engine, which stops derivations below their floors, if it takes them, and raises these by some nats, wrongly.

    It keeps the candidates of each call, their outcomes, and the closeness of their choices.
    """

    info = kv.EngineInfo("formula", device="cpu")

    def __init__(self, graph: kv.KnowledgeGraph, *, takes_floors: bool = False, raised: float = 0.0) -> None:
        self.model = kgreference.least_model(build_reference_program(graph.program))
        self.takes_floors, self._raised = takes_floors, raised
        self.asked: list[CandidateSet] = []
        self.ends: list[NDArray[np.int32]] = []
        self.choices: list[tuple[int, int, float]] = []

    def end(self, atom: Triple) -> Ending:
        predicate, first, second = atom
        number = ((predicate * 101 + first) * 103 + second) * 2654435761 % 2**32 >> 8
        kind = number % 8
        log_probability = -0.5 * (number // 8 % 9)
        if atom in self.model and kind < 6:
            # Below -100, it may rank below one that is not PROVED.
            outcome, log_probability = 1, -100.5 if kind == 0 else log_probability
        else:
            outcome = 3 if kind % 2 else 2
        # A tie is no equality.
        log_probability += (number // 32 % 3 - 1) * RANK_TOLERANCE / 8
        gap = 1.1 + number % 1009 / 7
        return Ending(outcome, number // 16 % 2, log_probability, number % 5, number % 3, gap)

    def evaluate(
        self, candidates: CandidateSet, progress: Any = None, *, floor: NDArray[np.float64] | None = None
    ) -> Evaluated:
        ends = [self.end(tuple(atom)) for atom in candidates.atom.tolist()]
        choices = sum(each.num_choices for each in ends), sum(each.num_rescored for each in ends)
        gap = min((each.gap for each in ends), default=np.inf)
        self.choices.append((*choices, gap))
        outcome = np.array([each.outcome for each in ends], np.int32)
        log_probability = np.array([each.log_probability for each in ends])
        if floor is not None:
            outcome[log_probability < floor + self._raised] = STOPPED
        self.asked.append(candidates)
        self.ends.append(outcome)
        return Evaluated(
            (outcome, np.array([each.is_limited for each in ends], np.bool_), log_probability), *choices, gap
        )

    def prove(self, candidates: CandidateSet, progress: Any = None) -> kv.Columns:
        raise NotImplementedError

    def step(self, positions: Any) -> kv.Columns:
        raise NotImplementedError


def make_pipeline(engine: Any) -> Pipeline:
    return Pipeline(engine, draw_candidates, rank_candidates)


def make_run(num_corruptions: int) -> Run:
    return Run(build_graph(), num_queries=NUM_QUERIES, num_corruptions=num_corruptions, seed=SEED)


def list_groups(run: Run) -> list[tuple[int, int, Sequence[Triple]]]:
    """Return the candidates of each query and side, drawn by the reference."""
    num = None if run.num_corruptions < 0 else run.num_corruptions
    corrupter = kgreference.Corrupter(
        build_reference_program(run.graph.program), [kgreference.Atom(*row) for row in run.graph.known_triples.tolist()]
    )
    return [
        (query, side, corrupter.candidates(kgreference.Atom(*run.triples[query].tolist()), query, side, num, run.seed))
        for query in run.queries
        for side in (0, 1)
    ]
