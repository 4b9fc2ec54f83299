"""Two engines on one run: right ones agree in everything, wrong ones are found out."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
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

import kgverify as kv
from kgverify import Columns, Equality, Report, Run, UserError, Verdict
from kgverify.comparison.result import SCORES_BEFORE
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.report.content import Determinism
from kgverify.runs.run import Pipeline, reference_pipeline
from kgverify.trace.model.columns import select_candidates
from kgverify.verification.verify import Repetition, Verification, _judge_repeated, verify

MRR = "both.realistic.mean_reciprocal_rank"
EAGER = kv.Evaluator(mode="eager", device="cpu", slots=16)
SIZES = {"queries": 2, "corruptions": 5}


def against_foreign(run: Run, engine: ForeignEngine, **equality: Any) -> Verification:
    sides = reference_pipeline(run), foreign_pipeline(run, engine)
    return verify(run, *sides, effort=UNEXPLAINED, equality=Equality(**equality))


def against(change: Callable[[Columns], Columns], **equality: Any) -> Report:
    """The report of an engine whose columns are changed."""
    run = countries_run()
    return against_foreign(run, ForeignEngine(run, change), determinism=False, **equality).report


def assert_everything_was_compared(report: Report) -> None:
    expected, coverage = report.traces.expected.columns, report.coverage
    assert coverage.candidates == coverage.candidates_expected == coverage.candidates_actual
    assert coverage.candidates == len(expected.candidates.query) > 0
    assert coverage.steps == len(expected.steps.depth) > 0
    assert coverage.resolvents == len(expected.resolvents.kind) > 0
    assert (set(coverage.fields), coverage.not_compared) == (KNOWLEDGE_GRAPH.compared_names, ())


@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_compiled_evaluator_agrees_with_the_reference_on_countries(policy: str, tmp_path):
    report = kv.verify("countries", EAGER, **SIZES, policy=policy, save=tmp_path / "run" / "1")
    assert report.verdict is Verdict.AGREE
    assert (report.divergences, report.first_cause, report.reasons) == ((), None, ())
    assert any("within the bound" in note for note in report.notes) == (policy == "two_tower")
    assert (report.determinism.expected, report.determinism.actual) == (True, True)
    assert_everything_was_compared(report)
    assert report.metrics.expected == pytest.approx(report.metrics.actual)
    assert 0 < report.metrics.expected[MRR] <= 1
    assert len(report.metrics.expected) == 36
    assert report.level == (None if policy == "shortest" else "bits")
    # What was saved reads back, and compares as in memory.
    paths = [tmp_path / "run" / "1" / f"{side}.h5" for side in ("expected", "actual")]
    for path, trace in zip(paths, (report.traces.expected, report.traces.actual), strict=True):
        saved = kv.open_trace(path).load()
        assert_same_columns(trace.columns, saved.columns)
        assert (saved.header, saved.root) == (trace.header, trace.root)
    recorded = kv.compare(*paths)
    assert (recorded.verdict, recorded.coverage) == (Verdict.AGREE, report.coverage)
    assert recorded.metrics == report.metrics
    # An engine declares less than the judge's bound.
    bounds = report.policy.score_errors
    assert report.environment.actual.score_error <= bounds.get("float32", 0.0)
    assert policy == "shortest" or bounds["float64"] <= bounds["float32"] < bounds["bf16x3"] < bounds["tf32"]


@pytest.mark.deep
@pytest.mark.data
@needs_data
def test_the_compiled_evaluator_agrees_on_wn18rr_where_a_predicate_has_34796_facts():
    graph = kv.load_graph("wn18rr")
    assert np.bincount(graph.program.facts[:, 0]).max() == 34_796
    engine = replace(EAGER, slots=32)
    report = kv.verify(graph, engine, queries=2, corruptions=2, equality=Equality(determinism=False))
    assert report.verdict is Verdict.AGREE
    assert_everything_was_compared(report)


@pytest.mark.parametrize("role", ["expected", "actual"])
def test_a_nondeterministic_engine_is_inconclusive(role: str):
    run = countries_run()
    sides = [reference_pipeline(run), foreign_pipeline(run, FlakyEngine(run))]
    report = verify(run, *(sides if role == "actual" else sides[::-1]), effort=UNEXPLAINED).report
    assert report.verdict is Verdict.INCONCLUSIVE
    start = f"the {role} engine is not deterministic: two runs of the same candidates differ in 1 of "
    assert report.reasons[0].startswith(start)
    assert (
        "first in steps.choice of candidate 21, locatedInCR(azerbaijan, europe), from step 19 on" in report.reasons[0]
    )
    assert (report.determinism.expected, report.determinism.actual) == (role == "actual", role == "expected")


def test_an_engine_that_alternates_between_two_results_is_not_said_to_depend_on_its_batch():
    class Alternating(FlakyEngine):
        def prove(self, *arguments: Any) -> Columns:
            columns = super().prove(*arguments)
            self.num_calls %= 2
            return columns

    run = countries_run()
    report = verify(run, reference_pipeline(run), foreign_pipeline(run, Alternating(run)), effort=UNEXPLAINED).report
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "not deterministic" in report.reasons[0]


def test_scores_of_the_call_before_excuse_only_an_actual_engine_that_does_not_repeat_itself():
    trace = kv.verify("countries", "reference", queries=1, corruptions=2).traces.expected
    stale = SimpleNamespace(situation=SCORES_BEFORE)
    for is_right, verdict in ((True, Verdict.AGREE), (False, Verdict.INCONCLUSIVE)):
        repetition = Repetition(Determinism(is_right, False, "", ""), ("an engine is not deterministic",), ())
        assert _judge_repeated(kv.kinds.compare(trace, trace), [stale], repetition).verdict is verdict


def lower_scores(columns: Columns) -> Columns:
    score = columns.resolvents.score.copy()
    score[columns.resolvents.kind == 0] -= 1
    return columns._replace(resolvents=columns.resolvents._replace(score=score))


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_engine_of_two_functions_is_enough_and_its_wrong_stage_is_inferred(lockstep: bool):
    report = against(lambda columns: columns, lockstep=lockstep)
    assert (report.verdict, report.environment.actual.name) == (Verdict.AGREE, "foreign")
    report = against(lower_scores, lockstep=lockstep)
    assert report.verdict is Verdict.DIVERGE
    assert report.first_cause == report.divergences[0]
    assert {(each.stage, each.is_replayed) for each in report.divergences} == {("score", False)}
    per_candidate = np.bincount([each.candidate for each in report.divergences], minlength=22)
    assert len(per_candidate) == 22
    assert bool(per_candidate.max() > 1) is lockstep


class Short(TieBreakingEngine):
    def step(self, positions: Any) -> Columns:
        return select_candidates(super().step(positions), np.arange(1))


def test_too_few_steps_are_an_error_of_the_engine():
    run = countries_run()
    with pytest.raises(UserError, match=r"engine foreign: returned 1 step from \d+ positions"):
        against_foreign(run, Short(run, 1e-3), score_error=1e-3)
    report = against_foreign(run, Short(run, 1e-3), lockstep=True, score_error=1e-3).report
    assert report.verdict is Verdict.DIVERGE
    assert "recycle" in {each.stage for each in report.divergences}


def test_lost_candidates_are_a_divergence_and_no_candidates_at_all_decide_nothing():
    report = against(lambda columns: select_candidates(columns, np.arange(1, len(columns.candidates.query))))
    assert report.verdict is Verdict.DIVERGE
    assert (report.first_cause.candidate, report.first_cause.stage) == (0, "recycle")
    assert against(lambda columns: select_candidates(columns, np.arange(0))).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_log_probability_of_nan_or_infinity_is_a_divergence_without_ranks(value: float):
    def spoil(columns: Columns) -> Columns:
        log_probability = columns.candidates.log_probability.copy()
        # A sample that is proved again may have fewer.
        log_probability[2:3] = value
        return columns._replace(candidates=columns.candidates._replace(log_probability=log_probability))

    report = against(spoil)
    assert report.verdict is Verdict.DIVERGE
    found = (report.first_cause.candidate, report.first_cause.field, report.first_cause.actual)
    assert found == (2, "candidates.log_probability", str(value))
    assert report.metrics.actual == {}


class Boaster:
    """An engine that declares a larger error than another one, and is the same otherwise."""

    def __init__(self, pipeline: Pipeline, factor: float) -> None:
        self._engine, self._factor = pipeline.engine, factor

    @property
    def info(self) -> kv.EngineInfo:
        info = self._engine.info
        return msgspec.structs.replace(info, score_error=self._factor * info.score_error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.mark.parametrize(("factor", "declares_more"), [(1, False), (1000, True)])
def test_an_engine_cannot_excuse_a_fault_by_a_large_error(factor: float, declares_more: bool):
    run = countries_run("two_tower", num_queries=2, num_corruptions=4)
    judged = eager_pipeline(run, faults=["tf32-scores"])
    judged = judged._replace(engine=Boaster(judged, factor))

    def judge(**equality: Any) -> Report:
        options = Equality(determinism=False, **equality)
        return verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=options).report

    report = judge()
    assert (report.verdict, report.first_cause.stage) == (Verdict.DIVERGE, "score")
    notes = [note for note in report.notes if "which is not accepted" in note]
    assert bool(notes) is declares_more
    if declares_more:
        declared, bound = judged.engine.info.score_error, run.policy.info.score_errors["float32"]
        assert f"{declared:.3g}" in notes[0]
        assert f"{bound:.3g}" in notes[0]
        accepting = judge(score_error=declared)
        assert accepting.verdict is Verdict.AGREE
        assert any("the user accepts" in note for note in accepting.notes)


def test_scores_of_shortest_have_no_error_to_declare():
    run = countries_run()
    report = against_foreign(run, ForeignEngine(run, score_error=0.5), determinism=False).report
    assert {rule.field: rule.rule for rule in report.equality}["resolvents.score"] == "equal"
    assert any("since the scores of `shortest` are exact" in note for note in report.notes)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queries": 0}, "queries: expected at least 1 query"),
        ({"queries": -3}, "queries: expected at least 1 query"),
        ({"seed": -1}, "seed: expected a seed"),
        ({"seed": 2**64}, "seed: expected a seed"),
    ],
)
def test_a_run_without_queries_or_with_a_seed_outside_64_bits_is_refused(options: dict[str, int], text: str):
    with pytest.raises(UserError, match=text):
        kv.verify("countries", "reference", **options)
