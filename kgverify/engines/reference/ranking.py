"""The reference's own corruptions and ranks, so that `corrupt` and `rank` are verified like any stage."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kgreference.corrupt import Corrupter
from kgreference.program import Program
from kgreference.rank import rank, ranking_score
from kgreference.step import Outcome
from kgreference.terms import Atom
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
    """Draw the candidates of the given queries; a negative number of corruptions takes all."""
    corrupter = Corrupter(
        # The draw needs the numbers of the constants alone.
        Program.from_names((), (), (), graph.program.symbols.constants),
        (Atom(*row) for row in graph.known_triples.tolist()),
        {name: list(constants) for name, constants in graph.domains.items()},
    )
    triples = graph.queries(split).tolist()
    rows = [
        (query, int(side), *candidate)
        for query in queries
        for side in sides
        for candidate in corrupter.candidates(
            Atom(*triples[query]), query, int(side), None if num_corruptions < 0 else num_corruptions, seed
        )
    ]
    table = np.array(rows, np.int32).reshape(-1, 5)
    return CandidateSet(table[:, 0], table[:, 1].astype(np.int8), table[:, 2:])


def rank_candidates(candidates: Candidates, triples: NDArray[np.int32], tolerance: float) -> Rankings:
    """Rank the true triple of each query and side among its corruptions; triples int32 [n, 3] is the split."""
    groups: dict[tuple[int, int], dict[Atom, float]] = {}
    for query, side, atom, log_probability, outcome in zip(
        candidates.query.tolist(),
        candidates.side.tolist(),
        candidates.atom.tolist(),
        candidates.log_probability.tolist(),
        candidates.outcome.tolist(),
        strict=True,
    ):
        scores = groups.setdefault((query, side), {})
        scores.setdefault(Atom(*atom), ranking_score(log_probability, Outcome(outcome)))
    rows = []
    for (query, side), scores in sorted(groups.items()):
        true = Atom(*triples[query].tolist())
        if true in scores:
            ranks = rank(scores[true], [score for atom, score in scores.items() if atom != true], tolerance)
            rows.append((query, side, len(scores), ranks.optimistic, ranks.pessimistic))
    columns = list(zip(*rows, strict=True)) or [()] * 5
    dtypes = (np.int32, np.int8, np.uint32, np.float64, np.float64)
    return Rankings(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True)))
