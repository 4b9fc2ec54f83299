"""The loss of the metric is split over the causes so that the parts add up to the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_engines import UNEXPLAINED, countries_run, eager_pipeline, staged_pipeline

from kgverify import Equality
from kgverify.comparison.rankings import mean_reciprocal_rank
from kgverify.comparison.result import Cause, Divergence, Level
from kgverify.program.outcomes import DifferenceClass
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.resolve import left_align
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD
from kgverify.ranking.rank import MRR, rank_candidates
from kgverify.runs.run import build_trace, reference_pipeline
from kgverify.verification.attribute import ROUNDING, attribute_loss
from kgverify.verification.verify import verify

RUN = countries_run()
PIPELINE = reference_pipeline(RUN)
CANDIDATES = PIPELINE.draw(RUN.graph, "test", RUN.queries, 5, 0)
COLUMNS = PIPELINE.engine.prove(CANDIDATES)
NUM = len(CANDIDATES.query)


def rank(candidates):
    return rank_candidates(candidates, RUN.triples)


def trace_of(columns):
    return build_trace(RUN, PIPELINE.engine, columns, rank(columns.candidates))


def worse(scores):
    return COLUMNS._replace(candidates=COLUMNS.candidates._replace(log_probability=scores))


def divergence(candidate, cause, stage="score"):
    return Divergence(
        candidate=candidate,
        atom="",
        query=0,
        side="head",
        step=0,
        stage=stage,
        field="",
        level=Level.RANK,
        expected="",
        actual="",
        cause=cause,
    )


def cause(stage="score"):
    return Cause(
        stage=stage,
        kind=DifferenceClass.NUMBER,
        situation="",
        num_candidates=1,
        num_queries=1,
        num_divergences=1,
        num_later=0,
        first=0,
    )


@given(
    st.lists(st.floats(-200, 0), min_size=NUM, max_size=NUM),
    st.lists(st.integers(0, 4), min_size=NUM, max_size=NUM),
)
def test_the_shares_of_any_causes_add_up_to_the_loss(scores, owners):
    expected, actual = trace_of(COLUMNS), trace_of(worse(np.array(scores)))
    divergences = tuple(divergence(i, owner) for i, owner in enumerate(owners))
    found = attribute_loss((expected, actual), divergences, tuple(cause() for _ in range(5)), (rank, rank))
    assert found.method == "exact"
    assert found.expected == mean_reciprocal_rank(expected.rankings)
    assert found.actual == mean_reciprocal_rank(actual.rankings)
    assert sum(share.share for share in found.shares) == pytest.approx(found.expected - found.actual, abs=1e-12)


def test_beyond_eight_causes_the_shares_are_sampled_and_still_add_up():
    scores = np.linspace(-150, 0, NUM)
    divergences = tuple(divergence(i, i % 10) for i in range(NUM))
    causes = tuple(cause() for _ in range(10))
    found = attribute_loss((trace_of(COLUMNS), trace_of(worse(scores))), divergences, causes, (rank, rank))
    assert found.method == "sampled"
    assert 0 < found.error < 0.1
    assert sum(share.share for share in found.shares) == pytest.approx(found.expected - found.actual, abs=1e-12)


def test_an_unexplained_loss_is_the_share_of_rounding():
    scores = COLUMNS.candidates.log_probability + 200.0 * np.arange(NUM)
    found = attribute_loss((trace_of(COLUMNS), trace_of(worse(scores))), (), (), (rank, rank))
    assert [share.cause for share in found.shares] == [ROUNDING]
    assert found.shares[0].share == pytest.approx(found.expected - found.actual, abs=1e-12)


def test_a_fault_of_ranking_alone_is_charged_to_rank():
    def rank_unproved_as_proved(candidates, triples, tolerance):
        return rank_candidates(candidates._replace(outcome=np.ones_like(candidates.outcome)), triples, tolerance)

    judged = eager_pipeline(RUN)._replace(rank=rank_unproved_as_proved)
    report = verify(RUN, PIPELINE, judged, effort=UNEXPLAINED, equality=Equality(determinism=False)).report
    assert report.verdict.value == "DIVERGE"
    assert {each.stage for each in report.causes} == {"rank"}
    (share,) = report.attribution.shares
    lost = report.metrics.expected[MRR] - report.metrics.actual[MRR]
    assert share.share == pytest.approx(lost, abs=1e-12)
    assert share.repaired == pytest.approx(report.metrics.expected[MRR])


def test_two_faults_at_once_are_two_causes_whose_shares_add_up():
    stages = Stages(SCORES["shortest"])

    def prune_nothing(tables, atoms, query, exclude_query):
        is_left = atoms[..., 0] != PAD
        return left_align(atoms, is_left), is_left.sum(1)

    def rank_backwards(candidates, triples, tolerance):
        return rank_candidates(candidates._replace(log_probability=-candidates.log_probability), triples, tolerance)

    judged = staged_pipeline(RUN, stages._replace(prune=prune_nothing))._replace(rank=rank_backwards)
    report = verify(RUN, PIPELINE, judged, effort=UNEXPLAINED, equality=Equality(determinism=False)).report
    assert {"prune", "rank"} <= {each.stage for each in report.causes}
    lost = report.metrics.expected[MRR] - report.metrics.actual[MRR]
    assert sum(share.share for share in report.attribution.shares) == pytest.approx(lost, abs=1e-12)
