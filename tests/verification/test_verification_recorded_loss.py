"""The loss of the metric is split over its causes, with engines and from traces alone, so that the parts add up to the whole."""

import random
from dataclasses import replace
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_engines import UNEXPLAINED, countries_run, eager_pipeline, staged_pipeline
from textbook import Textbook

import kgverify as kv
from kgverify import Divergence, Equality, KnowledgeGraph, Limits, NamedAtom, NamedRule, Report, Run, Trace
from kgverify.comparison.rankings import mean_reciprocal_rank
from kgverify.comparison.result import Cause
from kgverify.engines.policy import SHORTEST
from kgverify.program.atoms import Variable
from kgverify.program.outcomes import DifferenceClass
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.resolve import left_align
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD
from kgverify.ranking.rank import MRR, RANK_TOLERANCE, rank_candidates
from kgverify.report.render.html import render_html
from kgverify.runs.engine_makers import make_for
from kgverify.runs.run import build_trace, load_policy, reference_pipeline
from kgverify.trace.model.columns import LABELS
from kgverify.trace.write.writer import write_again
from kgverify.verification.attribute import ROUNDING, attribute_loss
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import Verification, verify

CLOSE, SAME = 0.02, 0.005
PROVED, FAILED = 1, 2
RUN = countries_run(num_corruptions=4)
PIPELINE = reference_pipeline(RUN)


def judge(run: Run, pipeline: Any) -> Verification:
    return verify(run, reference_pipeline(run), pipeline, effort=UNEXPLAINED, equality=Equality(determinism=False))


def hubs_run(seed: int = 2) -> Run:
    """A run in which two steps prove a triple, and some constants have more neighbours than the limit allows."""
    rng = random.Random(seed)
    names = [f"e{i:02}" for i in range(24)]
    near = {(name, other) for i, name in enumerate(names) for other in rng.sample(names, 8 if i < 4 else 2)}
    far = {(name, other) for name in names for other in rng.sample(names, 2)}
    true = sorted({(a, b) for a, middle in near for other, b in far if middle == other})
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom("r", x, y), (NamedAtom("s", x, z), NamedAtom("t", z, y)))
    facts = [NamedAtom(predicate, *pair) for predicate, pairs in (("s", near), ("t", far)) for pair in sorted(pairs)]
    test = tuple(NamedAtom("r", *pair) for pair in rng.sample(true, 14))
    graph = KnowledgeGraph("hubs", train=tuple(facts), test=test, rules=(rule,))
    return Run(graph, Limits(max_resolvents=5), SHORTEST, num_queries=14, num_corruptions=8)


FLAWS = ("fact cap", "overflow as proof", "no push-down")


def flawed_pipeline(run: Run, *flaws: str) -> Any:
    """Return an engine that a third party might write, with some flaws."""

    class Flawed(Textbook):
        def clauses_for(self, goal: Any, excluded: Any) -> Any:
            known = [each for each in self.facts if each.head[0] == goal[0][0]]
            capped = known[45:] if "fact cap" in flaws else []
            return [each for each in super().clauses_for(goal, excluded) if each not in capped]

        def close(self, resolvents: Any) -> Any:
            is_proof = len(resolvents) > self.limits.max_resolvents and "overflow as proof" in flaws
            return [resolvents[0]._replace(atoms=(), kind=1)] if is_proof else super().close(resolvents)

    pipeline = make_for(run, Flawed)
    return pipeline._replace(rank=rank_unproved_as_proved) if "no push-down" in flaws else pipeline


def rank_unproved_as_proved(candidates: Any, triples: Any, tolerance: Any) -> Any:
    return rank_candidates(candidates._replace(outcome=np.ones_like(candidates.outcome)), triples, tolerance)


def metric_with(run: Run, *flaws: str) -> float:
    pipeline = flawed_pipeline(run, *flaws)
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    return mean_reciprocal_rank(pipeline.rank(candidates, run.triples, RANK_TOLERANCE))


def split_truly(values: dict[frozenset[str], float]) -> dict[str, float]:
    """Return the exact Shapley value of each repair, from the metric of every set of repairs."""
    num, shares = len(FLAWS), dict.fromkeys(FLAWS, 0.0)
    for repaired, value in values.items():
        for flaw in set(FLAWS) - repaired:
            weight = factorial(len(repaired)) * factorial(num - len(repaired) - 1) / factorial(num)
            shares[flaw] += weight * (values[repaired | {flaw}] - value)
    return shares


def shares_of(report: Report) -> list[float]:
    return sorted((share.share for share in report.attribution.shares), key=lambda share: -abs(share))


@pytest.mark.deep
def test_three_flaws_of_a_foreign_engine_have_their_true_shares_with_engines_and_without():
    run = hubs_run()
    subsets = [set_ for num in range(len(FLAWS) + 1) for set_ in combinations(FLAWS, num)]
    values = {frozenset(FLAWS) - {*flaws}: metric_with(run, *flaws) for flaws in subsets}
    truth = split_truly(values)
    assert len({round(value, 6) for value in values.values()}) >= 6
    assert all(share > CLOSE for share in truth.values())
    assert judge(run, flawed_pipeline(run)).report.verdict.value == "AGREE"
    asked = judge(run, flawed_pipeline(run, *FLAWS))
    recorded = compare_recorded(asked.expected, asked.actual)
    for report in (asked.report, recorded.report):
        shares: dict[str, float] = {}
        for each in report.attribution.shares:
            stage = report.causes[each.cause].stage
            shares[stage] = shares.get(stage, 0.0) + each.share
        assert {"match_facts", "rank"} < set(shares)
        (overflow,) = set(shares) - {"match_facts", "rank"}
        found = dict(zip(FLAWS, (shares["match_facts"], shares[overflow], shares["rank"]), strict=True))
        assert found == pytest.approx(truth, abs=CLOSE)
        assert sum(shares.values()) == pytest.approx(report.attribution.expected - report.attribution.actual, abs=1e-12)
        assert report.attribution.expected == pytest.approx(values[frozenset(FLAWS)])
        assert report.attribution.actual == pytest.approx(values[frozenset()])
    rules = recorded.report.ranking_rules
    assert "100 nats lower unless proved" in rules.expected.rule
    assert "proved or not" in rules.actual.rule
    assert (asked.report.attribution.basis, recorded.report.attribution.basis) == ("engines", "traces")
    assert "actual ranked by the log-probability, proved or not" in str(recorded.report)
    for text in (str(recorded.report), render_html(recorded.report, recorded.expected, recorded.actual)):
        assert "from the expected trace as recorded" in text


@pytest.mark.deep
@pytest.mark.parametrize("fault", ["fact-cap", "no-push-down", "swapped-arguments"])
def test_the_split_from_traces_is_that_with_engines_for_a_fault_of_each_kind(fault: str):
    graph = kv.load_graph("countries")
    run = Run(graph, policy=load_policy("trained", graph, Limits(), 0), num_queries=8, num_corruptions=6)
    asked = judge(run, eager_pipeline(run, faults=[fault]))
    assert abs(asked.report.metrics.expected[MRR] - asked.report.metrics.actual[MRR]) > 1e-12
    splits = [shares_of(asked.report), shares_of(compare_recorded(asked.expected, asked.actual).report)]
    longest = max(map(len, splits))
    left, right = (split + [0.0] * (longest - len(split)) for split in splits)
    assert left == pytest.approx(right, abs=SAME)


COLUMNS = PIPELINE.engine.prove(PIPELINE.draw_for(RUN))
NUM = len(COLUMNS.candidates.query)


def rank(candidates: Any) -> Any:
    return rank_candidates(candidates, RUN.triples)


def trace_with(**changes: Any) -> Trace:
    columns = COLUMNS._replace(candidates=COLUMNS.candidates._replace(**changes))
    return build_trace(RUN, PIPELINE.engine, columns, rank(columns.candidates))


def divergence(candidate: int, cause: int) -> Divergence:
    return Divergence(
        candidate=candidate, atom="", query=0, side="head", step=0, stage="score", field="", level="rank",
        expected="", actual="", cause=cause,
    )  # fmt: skip


def cause() -> Cause:
    return Cause(
        stage="score", kind=DifferenceClass.NUMBER, situation="", num_candidates=1, num_queries=1, num_divergences=1,
        num_later=0, first=0,
    )  # fmt: skip


def split(scores: Any, owners: list[int], num_causes: int) -> Any:
    traces = trace_with(), trace_with(log_probability=np.array(scores, float))
    divergences = tuple(divergence(i, owner) for i, owner in enumerate(owners))
    found = attribute_loss(traces, divergences, tuple(cause() for _ in range(num_causes)), (rank, rank))
    assert (found.expected, found.actual) == tuple(mean_reciprocal_rank(trace.rankings) for trace in traces)
    assert sum(share.share for share in found.shares) == pytest.approx(found.expected - found.actual, abs=1e-12)
    return found


@settings(max_examples=30)
@given(
    st.lists(st.floats(-200, 0), min_size=NUM, max_size=NUM), st.lists(st.integers(0, 4), min_size=NUM, max_size=NUM)
)
def test_the_shares_of_any_causes_add_up_to_the_loss(scores: list[float], owners: list[int]):
    assert split(scores, owners, 5).method == "exact"


def test_many_causes_are_sampled_and_an_unexplained_loss_is_the_share_of_rounding():
    found = split(np.linspace(-150, 0, NUM), [i % 10 for i in range(NUM)], 10)
    assert found.method == "sampled"
    assert 0 < found.error < 0.1
    found = split(COLUMNS.candidates.log_probability + 200.0 * np.arange(NUM), [], 0)
    assert [share.cause for share in found.shares] == [ROUNDING]


def test_a_fault_of_ranking_is_charged_to_rank_alone_or_beside_another():
    def prune_nothing(tables: Any, atoms: Any, query: Any, exclude_query: Any) -> Any:
        is_left = atoms[..., 0] != PAD
        return left_align(atoms, is_left), is_left.sum(1)

    run = countries_run()
    report = judge(run, eager_pipeline(run)._replace(rank=rank_unproved_as_proved)).report
    (share,) = report.attribution.shares
    assert {each.stage for each in report.causes} == {"rank"}
    assert "ranked by the log-probability, proved or not; ties give both bounds" in report.first_divergence.evidence
    assert share.share == pytest.approx(report.metrics.expected[MRR] - report.metrics.actual[MRR], abs=1e-12)
    assert share.repaired == pytest.approx(report.metrics.expected[MRR])
    pruning = staged_pipeline(run, Stages(SCORES["shortest"])._replace(prune=prune_nothing))
    report = judge(run, pruning._replace(rank=rank_unproved_as_proved)).report
    assert {"prune", "rank"} <= {each.stage for each in report.causes}
    lost = report.metrics.expected[MRR] - report.metrics.actual[MRR]
    assert sum(shares_of(report)) == pytest.approx(lost, abs=1e-12)


def lossy_traces() -> list[Trace]:
    """Two traces of which one fails the first candidate of each side, the true one, and proves the others."""
    keys = COLUMNS.candidates.query.astype(int) * 4 + COLUMNS.candidates.side
    is_true = np.append(True, keys[1:] != keys[:-1])
    return [trace_with(), trace_with(outcome=np.where(is_true, FAILED, PROVED).astype(np.int8))]


def report_of(*traces: Any) -> Report:
    return compare_recorded(*traces).report


def test_a_trace_without_ranks_is_ranked_by_kgverifys_rule_and_the_report_says_so():
    traces = lossy_traces()
    ranked = report_of(*traces)
    bare = report_of(*(replace(trace, rankings=None) for trace in traces))
    assert (
        bare.attribution.actual == ranked.attribution.actual < ranked.attribution.expected == bare.attribution.expected
    )
    assert (shares_of(bare), bare.metrics) == (shares_of(ranked), ranked.metrics)
    assert any("are not recorded, and were computed by kgverify's rule" in note for note in bare.notes)
    for side in (0, 1):
        pair = [replace(trace, rankings=None) if i == side else trace for i, trace in enumerate(traces)]
        rules = report_of(*pair).ranking_rules
        assert [rules.expected.is_recorded, rules.actual.is_recorded] == [i != side for i in (0, 1)]
        assert rules.expected.rule == rules.actual.rule


def test_without_log_probabilities_the_loss_is_split_by_outcomes_or_not_at_all():
    traces = [replace(trace, fields=trace.fields - {"candidates.log_probability"}) for trace in lossy_traces()]
    by_outcome = []
    for trace in traces:
        outcome = (trace.columns.candidates.outcome == PROVED).astype(np.float64)
        flat = trace.columns.candidates._replace(log_probability=outcome, outcome=np.ones_like(outcome, np.int8))
        by_outcome.append(replace(trace, rankings=rank(flat)))
    report = report_of(*by_outcome)
    assert report.attribution.expected > report.attribution.actual
    assert "by the outcome alone" in report.ranking_rules.actual.rule
    bare = report_of(*(replace(trace, rankings=None) for trace in traces))
    assert bare.attribution is None
    assert any("log-probabilities of the expected trace are not known" in note for note in bare.notes)


def test_ranks_that_no_rule_explains_are_a_cause_of_their_own():
    expected, actual = lossy_traces()
    worst = actual.rankings.num_ranked.astype(np.float64) - 0.25
    report = report_of(
        expected, replace(actual, rankings=actual.rankings._replace(optimistic=worst, pessimistic=worst))
    )
    assert report.ranking_rules.actual.num_unexplained > 0
    assert "rank" in {cause.stage for cause in report.causes}
    assert "unknown rule" in str(report)
    lost = report.metrics.expected[MRR] - report.metrics.actual[MRR]
    assert sum(shares_of(report)) == pytest.approx(lost, abs=1e-12)


def test_labels_show_the_true_triples_where_the_candidates_do_not(tmp_path):
    traces = []
    for trace in lossy_traces():
        candidates = trace.columns.candidates
        labels = (candidates.atom == RUN.triples[candidates.query]).all(1).astype(np.uint8)
        # With a query for each side, no candidate is on both.
        query = (candidates.query * 2 + candidates.side).astype(np.int32)
        bare = replace(
            trace, columns=trace.columns._replace(candidates=candidates._replace(query=query)), rankings=None
        )
        traces.append((bare, replace(bare, labels=labels)))
    report = report_of(*(bare for bare, _ in traces))
    assert report.attribution is None
    assert any(f"`{LABELS}` would tell" in note for note in report.notes)
    told = report_of(*(labelled for _, labelled in traces))
    assert told.ranking_rules.truth == "as labelled"
    assert told.attribution.expected > told.attribution.actual
    # The labels of either side are enough, in memory and on disk.
    assert report_of(traces[0][1], traces[1][0]).attribution == told.attribution
    paths = [tmp_path / name for name in ("e.h5", "a.h5")]
    for path, (_, labelled) in zip(paths, traces, strict=True):
        write_again(labelled, path)
    assert report_of(*paths).attribution == told.attribution
