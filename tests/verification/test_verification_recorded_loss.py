"""The loss between two recorded traces, split over its causes without an engine, against the same split with engines."""

import random
from dataclasses import replace
from itertools import combinations

import msgspec
import numpy as np
import pytest
from padded_engine import FAULTS, padded_pipeline, split_truly
from run_engines import UNEXPLAINED, countries_run, needs_data

from kgverify import Equality, KnowledgeGraph, Limits, load_graph
from kgverify.comparison.rankings import mean_reciprocal_rank
from kgverify.engines.policy import SHORTEST
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Outcome
from kgverify.program.program import NamedRule
from kgverify.prover.faults.plant import FAULTS as CATALOGUE
from kgverify.ranking.rank import MRR, RANK_TOLERANCE
from kgverify.report.render.html import render_html
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, build_trace, load_policy, reference_pipeline
from kgverify.trace.model.columns import LABELS
from kgverify.trace.model.trace import Unknown
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify

CLOSE = 0.02
SAME = 0.005
OF_CATALOGUE = ("fact-cap", "no-push-down", "step-budget", "swapped-arguments")


def hubs_run(seed=2):
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


def true_values(run, fact_cap):
    """The metric of the padded engine with every set of its faults repaired."""
    values = {}
    for num in range(len(FAULTS) + 1):
        for repaired in combinations(FAULTS, num):
            pipeline = padded_pipeline(run, [each for each in FAULTS if each not in repaired], fact_cap)
            candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
            ranks = pipeline.rank(candidates, run.triples, RANK_TOLERANCE)
            values[frozenset(repaired)] = mean_reciprocal_rank(ranks)
    return values


def shares_of(report):
    return sorted((share.share for share in report.attribution.shares), key=lambda share: -abs(share))


def are_same(left, right):
    """Compare the shares of two splits; one that is missing is 0."""
    num = max(len(left), len(right))
    pairs = zip([*left, *[0.0] * (num - len(left))], [*right, *[0.0] * (num - len(right))], strict=True)
    return all(abs(a - b) <= SAME for a, b in pairs)


def test_three_faults_of_a_foreign_engine_have_their_true_shares_with_engines_and_without():
    run, fact_cap = hubs_run(), 45
    values = true_values(run, fact_cap)
    truth = split_truly(values)
    assert len({round(value, 6) for value in values.values()}) >= 6
    assert all(share > CLOSE for share in truth.values())
    sound = verify(
        run, reference_pipeline(run), padded_pipeline(run), effort=UNEXPLAINED, equality=Equality(determinism=False)
    )
    assert sound.report.verdict.value == "AGREE"
    wrong = padded_pipeline(run, FAULTS, fact_cap)
    asked = verify(run, reference_pipeline(run), wrong, effort=UNEXPLAINED, equality=Equality(determinism=False))
    told = compare_recorded(asked.expected, asked.actual)
    for report in (asked.report, told.report):
        stages = [report.causes[share.cause].stage for share in report.attribution.shares]
        shares = dict(zip(stages, (share.share for share in report.attribution.shares), strict=True))
        assert {"match_facts", "rank"} < set(shares)
        (overflow,) = set(stages) - {"match_facts", "rank"}
        found = dict(zip(FAULTS, (shares["match_facts"], shares[overflow], shares["rank"]), strict=True))
        assert found == pytest.approx(truth, abs=CLOSE)
        assert sum(shares.values()) == pytest.approx(report.attribution.expected - report.attribution.actual, abs=1e-12)
        assert report.attribution.expected == pytest.approx(values[frozenset(FAULTS)])
        assert report.attribution.actual == pytest.approx(values[frozenset()])
    rules = told.report.ranking_rules
    assert "100 nats lower unless proved" in rules.expected.rule
    assert "proved or not" in rules.actual.rule
    assert (asked.report.attribution.basis, told.report.attribution.basis) == ("engines", "traces")
    text = str(told.report)
    assert "from the expected trace as recorded" in text
    assert "actual ranked by the log-probability, proved or not" in text
    page = render_html(told.report, told.expected, told.actual)
    assert "from the expected trace as recorded" in page
    assert "proved or not" in page


def compare_splits(run, name):
    """Return the splits with engines and from the traces; None for a fault that does not change the metric."""
    actual = evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=16)
    asked = verify(run, reference_pipeline(run), actual, effort=UNEXPLAINED, equality=Equality(determinism=False))
    metrics = asked.report.metrics
    if MRR not in metrics.actual or abs(metrics.expected[MRR] - metrics.actual[MRR]) < 1e-12:
        return None
    return shares_of(asked.report), shares_of(compare_recorded(asked.expected, asked.actual).report)


def catalogue_run(name, num_queries):
    graph = load_graph(name)
    policy = load_policy("trained" if name == "countries" else "two_tower", graph, Limits(), 0)
    return Run(graph, policy=policy, num_queries=num_queries, num_corruptions=6)


@pytest.mark.deep
def test_the_split_from_traces_is_that_with_engines_for_a_fault_of_each_kind():
    run = catalogue_run("countries", 8)
    splits = [compare_splits(run, name) for name in OF_CATALOGUE]
    assert all(split is not None and are_same(*split) for split in splits)


@pytest.mark.data
@pytest.mark.exhaustive
@needs_data
def test_the_split_from_traces_is_that_with_engines_for_nine_of_ten_faults():
    splits = {
        (graph, name): compare_splits(run, name)
        for graph, run in (("countries", catalogue_run("countries", 8)), ("family", catalogue_run("family", 4)))
        for name in CATALOGUE
    }
    changing = {name: split for name, split in splits.items() if split is not None}
    for name, (asked, told) in changing.items():
        print(*name, [round(each, 4) for each in asked], [round(each, 4) for each in told], are_same(asked, told))
    num_same = sum(are_same(*split) for split in changing.values())
    print(f"{num_same} of {len(changing)} the same within {SAME}")
    assert num_same >= 0.9 * len(changing) > 20


def countries_traces(change=lambda candidates: candidates):
    """Two traces of which one loses proofs: `change` is what is wrong with its candidates."""
    run = countries_run(num_corruptions=4)
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw_for(run))
    other = columns._replace(candidates=change(columns.candidates))
    return [
        build_trace(run, pipeline.engine, each, pipeline.rank(each.candidates, run.triples, RANK_TOLERANCE))
        for each in (columns, other)
    ]


def lose_true_proofs(candidates):
    """Fail the first candidate of each side, which is the true one, and prove the others."""
    keys = candidates.query.astype(int) * 4 + candidates.side
    is_true = np.append(True, keys[1:] != keys[:-1])
    outcome = np.where(is_true, Outcome.FAILED, Outcome.PROVED).astype(np.int8)
    return candidates._replace(outcome=outcome)


def without(trace, *fields):
    return replace(trace, fields=trace.fields - set(fields))


def test_a_trace_without_ranks_is_ranked_by_kgverifys_rule_and_the_report_says_so():
    traces = countries_traces(lose_true_proofs)
    told = compare_recorded(*traces).report
    bare = compare_recorded(*(replace(trace, rankings=None) for trace in traces)).report
    assert bare.attribution.actual == told.attribution.actual < told.attribution.expected == bare.attribution.expected
    assert shares_of(bare) == shares_of(told)
    assert any("are not recorded, and were computed by kgverify's rule" in note for note in bare.notes)
    assert not bare.ranking_rules.actual.is_recorded
    assert bare.metrics == told.metrics


def test_without_log_probabilities_the_loss_is_split_by_outcomes_or_not_at_all():
    traces = [without(trace, "candidates.log_probability") for trace in countries_traces(lose_true_proofs)]
    report = compare_recorded(*traces).report
    if report.attribution is None:
        assert any("the loss is not split" in note and "outcomes alone" in note for note in report.notes)
    by_outcome = []
    for trace in traces:
        outcome = (trace.columns.candidates.outcome == Outcome.PROVED).astype(np.float64)
        run = countries_run(num_corruptions=4)
        flat = trace.columns.candidates._replace(log_probability=outcome, outcome=np.ones_like(outcome, np.int8))
        ranks = reference_pipeline(run).rank(flat, run.triples, RANK_TOLERANCE)
        by_outcome.append(replace(trace, rankings=ranks))
    report = compare_recorded(*by_outcome).report
    assert report.attribution.expected > report.attribution.actual
    assert "by the outcome alone" in report.ranking_rules.actual.rule
    bare = compare_recorded(*(replace(trace, rankings=None) for trace in traces)).report
    assert bare.attribution is None
    assert any("log-probabilities of the expected trace are not known" in note for note in bare.notes)


def test_ranks_that_no_rule_explains_are_a_cause_of_their_own():
    expected, actual = countries_traces(lose_true_proofs)
    worst = actual.rankings.num_ranked.astype(np.float64)
    odd = replace(actual, rankings=actual.rankings._replace(optimistic=worst - 0.25, pessimistic=worst - 0.25))
    report = compare_recorded(expected, odd).report
    assert report.ranking_rules.actual.num_unexplained > 0
    assert "rank" in {cause.stage for cause in report.causes}
    assert "unknown rule" in str(report)
    lost = report.metrics.expected[MRR] - report.metrics.actual[MRR]
    assert sum(shares_of(report)) == pytest.approx(lost, abs=1e-12)


def test_labels_tell_the_true_triples_where_the_candidates_do_not(tmp_path):
    run = countries_run(num_corruptions=4)
    traces = []
    for trace in countries_traces(lose_true_proofs):
        candidates = trace.columns.candidates
        labels = (candidates.atom == run.triples[candidates.query]).all(1).astype(np.uint8)
        # With a query for each side, no candidate is on both.
        query = candidates.query * 2 + candidates.side
        alone = trace.columns._replace(candidates=candidates._replace(query=query.astype(np.int32)))
        bare = replace(trace, columns=alone, rankings=None, header=msgspec.structs.replace(trace.header))
        traces.append((bare, replace(bare, unknown=Unknown({LABELS: labels}, {}))))
    report = compare_recorded(*(bare for bare, _ in traces)).report
    assert report.attribution is None
    assert any(f"`{LABELS}` would tell" in note for note in report.notes)
    told = compare_recorded(*(labelled for _, labelled in traces)).report
    assert told.ranking_rules.truth == "as labelled"
    assert told.attribution.expected > told.attribution.actual
    paths = [tmp_path / name for name in ("e.h5", "a.h5")]
    for path, (_, labelled) in zip(paths, traces, strict=True):
        write_again(labelled, path)
    assert compare_recorded(*paths).report.attribution == told.attribution
