"""Two pipelines on one run: right engines agree in everything, wrong ones are found out."""

from typing import Any

import numpy as np
import pytest
from run_engines import (
    UNEXPLAINED,
    FlakyEngine,
    ForeignEngine,
    TieBreakingEngine,
    assert_same_columns,
    countries_run,
    eager_pipeline,
    foreign_pipeline,
    needs_data,
)

from kgverify import Equality, Limits, UserError, Verdict, load_graph
from kgverify.comparison.result import Level
from kgverify.engines.protocol import ProbedEngine
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.ranking.rank import MRR, rank_candidates
from kgverify.runs.run import Run, load_policy, reference_pipeline
from kgverify.trace.model.columns import Columns, select_candidates
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.save import save_verification
from kgverify.verification.verify import Verification, verify


def against_foreign(run: Run, engine: ForeignEngine, **equality: Any) -> Verification:
    sides = reference_pipeline(run), foreign_pipeline(run, engine)
    return verify(run, *sides, effort=UNEXPLAINED, equality=Equality(**equality))


def assert_everything_was_compared(verification: Verification) -> None:
    expected, coverage = verification.expected.columns, verification.report.coverage
    assert coverage.candidates == coverage.candidates_expected == coverage.candidates_actual
    assert coverage.candidates == len(expected.candidates.query) > 0
    assert coverage.steps == len(expected.steps.depth) > 0
    assert coverage.resolvents == len(expected.resolvents.kind) > 0
    assert set(coverage.fields) == KNOWLEDGE_GRAPH.compared_names
    assert coverage.not_compared == ()


@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_compiled_evaluator_agrees_with_the_reference_on_countries(policy: str):
    run = countries_run(policy)
    verification = verify(run, reference_pipeline(run), eager_pipeline(run))
    report = verification.report
    assert report.verdict is Verdict.AGREE
    assert (report.divergences, report.first_cause, report.reasons) == ((), None, ())
    assert [note for note in report.notes if "within the bound" not in note and "a hit at" not in note] == []
    assert any("within the bound" in note for note in report.notes) == (policy == "two_tower")
    assert (report.determinism.expected, report.determinism.actual) == (True, True)
    assert_everything_was_compared(verification)
    assert report.metrics.expected == pytest.approx(report.metrics.actual)
    assert 0 < report.metrics.expected[MRR] <= 1
    assert len(report.metrics.expected) == 36
    assert report.level is (None if policy == "shortest" else Level.BITS)


def test_the_compiled_evaluator_agrees_step_by_step_from_the_goals_of_the_reference():
    run = countries_run()
    verification = verify(
        run, reference_pipeline(run), eager_pipeline(run), equality=Equality(lockstep=True, determinism=False)
    )
    report = verification.report
    assert (report.verdict, report.lockstep, report.divergences) == (Verdict.AGREE, True, ())
    num_steps = len(verification.expected.columns.steps.depth)
    assert (report.coverage.candidates, report.coverage.steps) == (num_steps, num_steps)
    assert (report.determinism.expected, report.determinism.actual) == (None, None)


@pytest.mark.deep
@pytest.mark.data
@needs_data
def test_the_compiled_evaluator_agrees_on_wn18rr_where_a_predicate_has_34796_facts():
    graph = load_graph("wn18rr")
    assert np.bincount(graph.program.facts[:, 0]).max() == 34_796
    run = Run(graph, num_queries=2, num_corruptions=2)
    verification = verify(
        run, reference_pipeline(run), eager_pipeline(run, slots=32), equality=Equality(determinism=False)
    )
    assert verification.report.verdict is Verdict.AGREE
    assert_everything_was_compared(verification)


def test_a_nondeterministic_engine_is_inconclusive():
    run = countries_run()
    report = against_foreign(run, FlakyEngine(run)).report
    assert report.verdict is Verdict.INCONCLUSIVE
    (reason,) = report.reasons
    assert reason.startswith(
        "the actual engine is not deterministic: two runs of the same candidates differ in 1 of them, "
    )
    assert "first in steps.choice of candidate 21, locatedInCR(azerbaijan, europe), from step 19 on" in reason
    assert (report.determinism.expected, report.determinism.actual) == (True, False)


def test_a_nondeterministic_expected_engine_is_inconclusive_as_well():
    run = countries_run()
    report = verify(run, foreign_pipeline(run, FlakyEngine(run)), reference_pipeline(run)).report
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "the expected engine is not deterministic" in report.reasons[0]


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_engine_of_two_functions_is_enough(lockstep: bool):
    run = countries_run()
    engine = ForeignEngine(run)
    assert not isinstance(engine, ProbedEngine)
    report = against_foreign(run, engine, lockstep=lockstep).report
    assert (report.verdict, report.environment.actual.name) == (Verdict.AGREE, "foreign")


def lose_last_resolvent_score(columns: Columns) -> Columns:
    score = columns.resolvents.score.copy()
    score[columns.resolvents.kind == 0] -= 1
    return columns._replace(resolvents=columns.resolvents._replace(score=score))


@pytest.mark.parametrize("lockstep", [False, True])
def test_without_a_probe_the_stage_is_inferred_from_the_traces(lockstep: bool):
    run = countries_run()
    verification = against_foreign(run, ForeignEngine(run, lose_last_resolvent_score), lockstep=lockstep)
    report = verification.report
    assert report.verdict is Verdict.DIVERGE
    assert report.first_cause == report.divergences[0]
    assert {(each.stage, each.is_replayed) for each in report.divergences} == {("score", False)}
    num_candidates = len(verification.expected.columns.candidates.query)
    per_candidate = np.bincount([each.candidate for each in report.divergences], minlength=num_candidates)
    assert per_candidate.max() > 1 if lockstep else per_candidate.max() == 1
    assert len(per_candidate) == num_candidates


def test_near_ties_are_followed_from_the_expected_choice():
    run = countries_run()
    verification = against_foreign(run, TieBreakingEngine(run, 1e-3), score_error=1e-3)
    report = verification.report
    assert report.verdict is Verdict.AGREE
    assert report.divergences == ()
    assert report.near_ties
    assert all(0 <= tie.gap <= tie.bound == 2e-3 for tie in report.near_ties)
    assert report.coverage.steps_after_near_ties > 0
    assert sum(tie.compared_after for tie in report.near_ties) > 0
    total = report.coverage.steps + report.coverage.steps_after_near_ties
    assert total == len(verification.expected.columns.steps.depth)


def test_a_fault_behind_a_near_tie_is_found():
    run = countries_run()
    right = against_foreign(run, TieBreakingEngine(run, 1e-3), score_error=1e-3)
    tie = next(tie for tie in right.report.near_ties if tie.compared_after)
    proved = right.expected.columns.steps.depth > tie.step

    def drop_at_depth(columns: Columns) -> Columns:
        counts = columns.steps.dropped_atoms + (columns.steps.depth > tie.step)
        return columns._replace(steps=columns.steps._replace(dropped_atoms=counts.astype(np.uint32)))

    assert proved.any()
    report = against_foreign(run, TieBreakingEngine(run, 1e-3, drop_at_depth), score_error=1e-3).report
    assert report.verdict is Verdict.DIVERGE
    assert any(each.candidate == tie.candidate and each.step > tie.step for each in report.divergences)


def test_an_undeclared_error_excuses_nothing():
    run = countries_run()
    report = against_foreign(run, TieBreakingEngine(run, 1e-3, declared=0.0)).report
    assert report.verdict is Verdict.DIVERGE
    assert report.near_ties == ()


def test_too_few_steps_are_an_error_of_the_engine():
    run = countries_run()

    class Short(TieBreakingEngine):
        def step(self, positions):
            return select_candidates(super().step(positions), np.arange(1))

    with pytest.raises(UserError, match=r"engine foreign: returned 1 step from \d+ positions"):
        against_foreign(run, Short(run, 1e-3), score_error=1e-3)
    report = against_foreign(run, Short(run, 1e-3), lockstep=True, score_error=1e-3).report
    assert report.verdict is Verdict.DIVERGE
    assert "recycle" in {each.stage for each in report.divergences}


def test_a_lost_candidate_is_a_divergence():
    run = countries_run()
    lost = ForeignEngine(run, lambda columns: select_candidates(columns, np.arange(1, len(columns.candidates.query))))
    report = against_foreign(run, lost).report
    assert report.verdict is Verdict.DIVERGE
    assert (report.first_cause.candidate, report.first_cause.stage) == (0, "recycle")


def test_an_engine_that_proves_nothing_is_inconclusive():
    run = countries_run()
    idle = ForeignEngine(run, lambda columns: select_candidates(columns, np.arange(0)))
    report = against_foreign(run, idle).report
    assert report.verdict is Verdict.INCONCLUSIVE


def test_a_nan_log_probability_is_a_divergence_without_ranks():
    run = countries_run()

    def spoil(columns: Columns) -> Columns:
        log_probability = columns.candidates.log_probability.copy()
        log_probability[2:3] = np.nan
        return columns._replace(candidates=columns.candidates._replace(log_probability=log_probability))

    report = against_foreign(run, ForeignEngine(run, spoil)).report
    assert report.verdict is Verdict.DIVERGE
    assert (report.first_cause.candidate, report.first_cause.field) == (2, "candidates.log_probability")
    assert report.first_cause.actual == "nan"
    assert report.metrics.actual == {}


def test_another_draw_is_a_fault_of_corrupt():
    run = countries_run()
    pipeline = reference_pipeline(run)

    def draw_by_another_seed(graph, split, queries, num_corruptions, seed):
        return pipeline.draw(graph, split, queries, num_corruptions, seed + 1)

    report = verify(
        run, pipeline, pipeline._replace(draw=draw_by_another_seed), equality=Equality(determinism=False)
    ).report
    assert report.verdict is Verdict.DIVERGE
    assert "corrupt" in {each.stage for each in report.divergences}


def test_another_rank_is_a_fault_of_rank():
    run = countries_run()
    pipeline = reference_pipeline(run)

    def rank_last(candidates, triples, tolerance):
        ranks = rank_candidates(candidates, triples, tolerance)
        return ranks._replace(optimistic=ranks.num_ranked * 1.0, pessimistic=ranks.num_ranked * 1.0)

    report = verify(run, pipeline, pipeline._replace(rank=rank_last), equality=Equality(determinism=False)).report
    assert (report.verdict, report.level) == (Verdict.DIVERGE, Level.METRIC)
    assert {each.stage for each in report.divergences} == {"rank"}
    assert report.metrics.actual[MRR] < report.metrics.expected[MRR]


def test_a_saved_verification_reads_back_and_compares_as_in_memory(tmp_path):
    run = countries_run("two_tower")
    verification = verify(run, reference_pipeline(run), eager_pipeline(run), equality=Equality(determinism=False))
    save_verification(verification, tmp_path / "run" / "1")
    assert {each.name for each in (tmp_path / "run" / "1").iterdir()} == {"expected.h5", "actual.h5", "report.json"}
    paths = tmp_path / "run" / "1" / "expected.h5", tmp_path / "run" / "1" / "actual.h5"
    for path, trace in zip(paths, (verification.expected, verification.actual), strict=True):
        read = read_trace(path)
        assert_same_columns(trace.columns, read.columns)
        assert read.header == trace.header
        assert read.root == trace.root
    recorded = compare_recorded(*paths).report
    assert (recorded.verdict, recorded.coverage) == (Verdict.AGREE, verification.report.coverage)
    assert recorded.metrics == verification.report.metrics


@pytest.mark.parametrize("num_queries", [0, -3])
def test_a_run_of_no_queries_is_refused(num_queries: int):
    with pytest.raises(UserError, match="queries: expected at least 1 query"):
        Run(load_graph("countries"), num_queries=num_queries)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_outside_64_bits_is_refused(seed: int):
    with pytest.raises(UserError, match="seed: expected a seed"):
        Run(load_graph("countries"), seed=seed)
    with pytest.raises(UserError, match="seed: expected a seed"):
        load_policy("two_tower", load_graph("countries"), Limits(), -1)


def test_more_queries_than_the_split_has_means_all():
    assert countries_run(num_queries=999).queries == range(24)
