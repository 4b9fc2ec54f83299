"""Mistakes of evaluations in recorded traces: a filter that comes late or lacks a split, and a side without ranks."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from run_engines import countries_run

from kgverify import Report
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Rankings
from kgverify.trace.model.trace import Trace
from kgverify.verification.recorded import compare_recorded


@pytest.fixture(scope="module")
def run() -> Run:
    return countries_run(num_queries=4, num_corruptions=30)


@pytest.fixture(scope="module")
def expected(run: Run) -> Trace:
    return record(run, reference_pipeline(run).draw_for(run))


def record(run: Run, drawn: CandidateSet) -> Trace:
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(drawn)
    return build_trace(run, pipeline.engine, columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))


def add_known(run: Run, drawn: CandidateSet, known: np.ndarray) -> CandidateSet:
    """List known triples among the corruptions of their queries."""
    rows = []
    for query, side in dict.fromkeys(zip(drawn.query.tolist(), drawn.side.tolist(), strict=True)):
        atoms = drawn.atom[(drawn.query == query) & (drawn.side == side)].tolist()
        true = atoms[0]
        rows.append((query, side, true))
        more = [
            row for row in known.tolist() if row[0] == true[0] and row[2 - side] == true[2 - side] and row not in atoms
        ]
        rows += [(query, side, atom) for atom in sorted([*atoms[1:], *more], key=lambda atom: atom[1 + side])]
    query, side, atom = zip(*rows, strict=True)
    return CandidateSet(np.array(query, np.int32), np.array(side, np.int8), np.array(atom, np.int32))


def compare(expected: Trace, actual: Trace) -> Report:
    return compare_recorded(expected, actual).report


def test_known_triples_left_out_only_when_candidates_are_ranked_cost_nothing(run: Run, expected: Trace) -> None:
    drawn = reference_pipeline(run).draw_for(run)
    late = record(run, add_known(run, drawn, run.graph.known_triples))
    report = compare(expected, replace(late, rankings=expected.rankings))
    assert report.ranking_rules is not None
    assert "without known true triples" in report.ranking_rules.actual.rule
    assert report.ranking_rules.actual.num_unexplained == 0
    assert "rank" not in [cause.stage for cause in report.causes]
    assert report.attribution is not None
    assert [share.share for share in report.attribution.shares] == pytest.approx([0] * len(report.attribution.shares))


def test_a_filter_that_lacks_a_split_is_named_with_the_split(run: Run, expected: Trace) -> None:
    drawn = reference_pipeline(run).draw_for(run)
    hidden = record(run, add_known(run, drawn, run.graph.queries("valid")))
    report = compare(expected, hidden)
    assert [cause.stage for cause in report.causes] == ["corrupt"]
    assert "triples of valid, which the expected side leaves out" in " ".join(str(report).split())


def test_a_filter_that_lacks_a_split_of_an_unknown_graph_is_guessed(run: Run, expected: Trace) -> None:
    named = [
        replace(trace, header=replace_graph(trace.header))
        for trace in (
            expected,
            record(run, add_known(run, reference_pipeline(run).draw_for(run), run.graph.queries("valid"))),
        )
    ]
    assert "perhaps triples of valid or test that a filter lacks" in " ".join(str(compare(*named)).split())


def replace_graph(header):
    return msgspec.structs.replace(header, run=msgspec.structs.replace(header.run, graph="mine"))


def test_a_side_that_is_not_ranked_is_named(expected: Trace) -> None:
    tails = Rankings(*(column[expected.rankings.side == 1] for column in expected.rankings))
    report = compare(expected, replace(expected, rankings=tails))
    assert [cause.stage for cause in report.causes] == ["rank"]
    assert "the head side is not ranked" in " ".join(str(report).split())
