"""The known draws and ranks of large sizes, given by the reference."""

from collections.abc import Iterator, Sequence
from typing import Any

import known_draws
import numpy as np
import pytest
from known_draws import KNOWN, LargeGraph, answers, check_known_draws, hash_columns
from numpy.typing import NDArray

from kgreference.corrupt import Corrupter, mix
from kgreference.program import Program
from kgreference.terms import Atom
from kgverify.engines.reference.ranking import rank_candidates as rank_by_reference
from kgverify.errors import InternalError
from kgverify.program.outcomes import Side
from kgverify.ranking import draw, rank
from kgverify.ranking.draw import draw_candidates
from kgverify.trace.model.columns import CandidateSet


class LargeCorrupter(Corrupter):
    """The reference's draw from the entities of a large graph."""

    def __init__(self) -> None:
        self.graph = LargeGraph()
        super().__init__(Program.from_names((), (), (), ()), (Atom(*row) for row in self.graph.known_triples.tolist()))

    def domain(self, predicate: int, side: int) -> NDArray[np.int64]:
        return self.graph.argument_domain(predicate, Side(side)).astype(np.int64)


def draw_by_reference(
    graph: Any, split: str, queries: Sequence[int], num_corruptions: int, seed: int, sides: Sequence[int] = (0, 1)
) -> CandidateSet:
    drawer = LargeCorrupter()
    num = None if num_corruptions < 0 else num_corruptions
    rows = [
        (query, int(side), *atom)
        for query in queries
        for side in sides
        for atom in drawer.candidates(Atom(*graph.triples[query].tolist()), query, side, num, seed)
    ]
    table = np.array(rows, np.int32)
    return CandidateSet(table[:, 0], table[:, 1].astype(np.int8), table[:, 2:])


def count_by_reference(graph: Any, split: str, queries: Sequence[int], num_corruptions: int) -> Any:
    drawer = LargeCorrupter()
    counts = []
    for query in queries:
        triple = Atom(*graph.triples[query].tolist())
        num = [len(drawer.eligible(triple, side)) for side in (0, 1)]
        counts.append(sum(1 + (each if num_corruptions < 0 else min(each, num_corruptions)) for each in num))
    return np.array(counts, np.int64)


def may_be_drawn_by_reference(graph: Any, atoms: Any, sides: Any) -> Any:
    drawer = LargeCorrupter()
    known = set(map(tuple, graph.known_triples.tolist()))
    return np.array(
        [
            tuple(atom) not in known and atom[1 + side] in drawer.domain(atom[0], side)
            for atom, side in zip(atoms.tolist(), sides.tolist(), strict=True)
        ]
    )


def draw_short_by_reference() -> Any:
    drawer = Corrupter(Program.from_names((), (), (), [f"c{i}" for i in range(257)]), [Atom(0, 0, 0)])

    entities = sorted(
        drawer.eligible(Atom(0, 0, 0), 0).tolist(), key=lambda entity: mix(known_draws.SHORT_KEY ^ entity)
    )[:2]
    return np.array([2]), np.array(sorted(entities), np.int32)


def test_the_known_draws_and_ranks_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_draws, "draw_candidates", draw_by_reference)
    monkeypatch.setattr(known_draws, "count_candidates", count_by_reference)
    monkeypatch.setattr(known_draws, "may_be_drawn", may_be_drawn_by_reference)
    monkeypatch.setattr(known_draws, "draw_short", draw_short_by_reference)
    monkeypatch.setattr(known_draws, "rank_candidates", rank_by_reference)

    assert dict(answers()) == KNOWN


def test_a_draw_that_is_wrong_for_many_queries_alone_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph: Any, split: str, queries: Sequence[int], *rest: Any) -> CandidateSet:
        drawn = draw_candidates(graph, split, queries, *rest)
        return drawn._replace(query=drawn.query.astype(np.uint16).astype(np.int32))

    monkeypatch.setattr(known_draws, "draw_candidates", wrong)

    with pytest.raises(InternalError, match="draws or ranks wrongly: 3 corruptions"):
        check_known_draws.__wrapped__()


def test_known_triples_that_are_not_filtered_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group_rows = draw.group_rows

    def narrow(*arguments: Any) -> Iterator[draw.Group]:
        for group in group_rows(*arguments):
            yield group._replace(column=group.column & 0xFFFF)

    monkeypatch.setattr(draw, "group_rows", narrow)
    with pytest.raises(InternalError, match="draws or ranks wrongly"):
        check_known_draws.__wrapped__()


def test_ties_at_the_edge_of_the_tolerance_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "compare_gaps", lambda gap, tolerance: (gap > tolerance, abs(gap) <= tolerance))
    with pytest.raises(InternalError, match="draws or ranks wrongly"):
        check_known_draws.__wrapped__()


def test_hashes_count_every_number_and_no_type() -> None:
    assert hash_columns([np.array([1, 2], np.int8)]) == hash_columns([np.array([1, 2], np.int64)])
    assert hash_columns([np.array([1.5])]) != hash_columns([np.array([1.25])])
