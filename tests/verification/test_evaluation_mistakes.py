"""Mistakes of evaluations in recorded traces: a filter that comes late or lacks a split, and a side without ranks."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify import CandidateSet, Rankings, Trace
from kgverify.dialects import ReferenceEngine

GRAPH = kv.load_graph("countries")


def record(path: Path, engine: type[ReferenceEngine] = ReferenceEngine) -> Trace:
    kv.record(GRAPH, path, engine, queries=4, corruptions=30)
    return kv.open_trace(path).load()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(tmp_path_factory.mktemp("expected") / "expected.h5")


def record_with(expected: Trace, known: np.ndarray, path: Path) -> Trace:
    """Record an evaluation that has known triples among the corruptions of its queries."""
    drawn, rows = CandidateSet(*expected.columns.candidates[:3]), []
    for query, side in dict.fromkeys(zip(drawn.query.tolist(), drawn.side.tolist(), strict=True)):
        true, *atoms = drawn.atom[(drawn.query == query) & (drawn.side == side)].tolist()
        more = [
            row
            for row in known.tolist()
            if row[0] == true[0] and row[2 - side] == true[2 - side] and row not in (true, *atoms)
        ]
        rows += [(query, side, true)]
        rows += [(query, side, atom) for atom in sorted([*atoms, *more], key=lambda atom: atom[1 + side])]
    query, side, atom = zip(*rows, strict=True)
    candidates = CandidateSet(np.array(query, np.int32), np.array(side, np.int8), np.array(atom, np.int32))

    class Unfiltered(ReferenceEngine):
        def draw(self, *_: object) -> CandidateSet:
            return candidates

    return record(path, Unfiltered)


def test_known_triples_left_out_only_when_candidates_are_ranked_cost_nothing(expected: Trace, tmp_path: Path) -> None:
    late = record_with(expected, GRAPH.known_triples, tmp_path / "late.h5")
    report = kv.compare(expected, replace(late, rankings=expected.rankings))
    assert report.ranking_rules is not None
    assert "without known true triples" in report.ranking_rules.actual.rule
    assert report.ranking_rules.actual.num_unexplained == 0
    assert "rank" not in [cause.stage for cause in report.causes]
    assert report.attribution is not None
    assert [share.share for share in report.attribution.shares] == pytest.approx([0] * len(report.attribution.shares))


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ("countries", "triples of valid, which the expected side leaves out"),
        ("mine", "perhaps triples of valid or test that a filter lacks"),
    ],
)
def test_a_filter_that_lacks_a_split_is_named_or_guessed(
    expected: Trace, graph: str, text: str, tmp_path: Path
) -> None:
    hidden = record_with(expected, GRAPH.queries("valid"), tmp_path / "hidden.h5")
    sides = []
    for trace in (expected, hidden):
        run = msgspec.structs.replace(trace.header.run, graph=graph)
        sides.append(replace(trace, header=msgspec.structs.replace(trace.header, run=run)))
    report = kv.compare(*sides)
    assert [cause.stage for cause in report.causes] == ["corrupt"]
    assert text in " ".join(str(report).split())


def test_a_side_that_is_not_ranked_is_named(expected: Trace) -> None:
    tails = Rankings(*(column[expected.rankings.side == 1] for column in expected.rankings))
    report = kv.compare(expected, replace(expected, rankings=tails))
    assert [cause.stage for cause in report.causes] == ["rank"]
    assert "the head side is not ranked" in " ".join(str(report).split())
