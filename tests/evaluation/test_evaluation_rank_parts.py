"""An evaluation for ranks alone gives the ranks of the complete one, part by part, and says what it left out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_engines import ForeignEngine, countries_run, eager_pipeline, foreign_pipeline, needs_data

from kgverify import Limits, UserError, load_graph
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.judge import report_evaluation
from kgverify.evaluation.proving import may_stop
from kgverify.program.outcomes import Outcome
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, load_policy
from kgverify.trace.model.columns import CandidateSet, Columns

EXACT = ("query", "side", "num_ranked", "optimistic", "pessimistic", "outcome", "log_probability")


def evaluate_all(run: Run, pipeline: Pipeline, **options: object) -> EvaluationResult:
    found = evaluate(run, pipeline, EvaluationSettings(**options))
    assert found is not None
    return found


def count_left_out(found: EvaluationResult) -> int:
    return sum(int(part.num_ranked.sum()) - int(part.num_outcomes.sum()) for part in found.results.values())


def assert_same_ranks(run: Run, pipeline: Pipeline, part_size: int) -> int:
    """Compare the ranks with a complete evaluation, and count the candidates left out."""
    every = evaluate_all(run, pipeline, part_size=part_size)
    ranked = evaluate_all(run, pipeline, part_size=part_size, rank_only=True)
    assert every.results.keys() == ranked.results.keys()
    for number, part in every.results.items():
        other = ranked.results[number]
        for name in EXACT:
            np.testing.assert_array_equal(getattr(other, name), getattr(part, name), err_msg=name)
        assert (other.num_outcomes <= part.num_outcomes).all()
        assert (other.num_limited <= part.num_limited).all()
        of_all = other.num_outcomes.sum(1) == other.num_ranked
        is_stopping = may_stop(pipeline.engine) and run.num_corruptions == ALL
        needs_all = other.outcome != Outcome.PROVED
        assert is_stopping or of_all[needs_all].all(), "all are needed where the true triple is not proved"
        np.testing.assert_array_equal(other.num_outcomes[of_all], part.num_outcomes[of_all])
        np.testing.assert_array_equal(other.num_limited[of_all], part.num_limited[of_all])
        sample = np.column_stack(other.sample.candidates[:3])
        assert len(np.unique(sample, axis=0)) == len(sample), "a candidate is kept once"
    assert count_left_out(every) == 0
    return count_left_out(ranked)


@pytest.fixture
def narrow_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_only, "BLOCK_SIZE", 150)


@pytest.mark.sample(2, deep=2)
@pytest.mark.parametrize("policy", ["shortest", "two_tower", "trained"])
@pytest.mark.parametrize("num_corruptions", [ALL, 12])
def test_the_ranks_of_countries_are_those_of_the_complete_evaluation(policy: str, num_corruptions: int):
    run = countries_run(policy, num_queries=4, num_corruptions=num_corruptions)
    left_out = assert_same_ranks(run, eager_pipeline(run, slots=256), 600 if num_corruptions == ALL else 40)
    assert left_out > 0


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("num_corruptions", [ALL, 30])
def test_the_ranks_of_random_graphs_are_those_of_the_complete_evaluation(num_corruptions: int, narrow_blocks: None):
    left_out = []
    for seed in (0, 1, 3):
        run = Run(load_graph(f"random:{seed}"), Limits(max_depth=6), num_queries=7, num_corruptions=num_corruptions)
        size = 1200 if num_corruptions == ALL else 100
        left_out.append(assert_same_ranks(run, eager_pipeline(run, slots=256), size))
    assert sum(left_out) > 0


def test_queries_that_share_their_corruptions_are_proved_once(narrow_blocks: None):
    """The graph has few predicates and entities, and at this depth little is proved."""
    run = replace(countries_run(num_queries=24, num_corruptions=ALL), limits=Limits(max_depth=1))
    told: list[int] = []

    class Counting(ForeignEngine):
        def prove(self, candidates: CandidateSet, progress=lambda num: None) -> Columns:
            told.append(len(candidates.query))
            return super().prove(candidates, progress)

    pipeline = Pipeline(Counting(run), draw_candidates, rank_candidates)
    reported: list[int] = []

    class Phase:
        def __init__(self, title: str, total: int) -> None:
            self.total = total

        def __enter__(self) -> Callable[[int], None]:
            return reported.append

        def __exit__(self, *error: object) -> None:
            assert sum(reported) == self.total

    ranked = evaluate_all(run, pipeline, rank_only=True, part_size=10**6, phase=Phase)
    (part,) = ranked.results.values()
    is_all = part.num_outcomes.sum(1) == part.num_ranked
    assert is_all.all()
    assert sum(told) < 0.8 * part.num_outcomes.sum()
    every = evaluate_all(run, pipeline, part_size=10**6).results[0]
    for name in (*EXACT, "num_outcomes", "num_limited"):
        np.testing.assert_array_equal(getattr(part, name), getattr(every, name), err_msg=name)


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_corruptions", [ALL, 20])
def test_a_stopped_evaluation_for_ranks_resumes_and_ends_with_the_same_files(tmp_path: Path, num_corruptions: int):
    run = countries_run(num_queries=4, num_corruptions=num_corruptions)
    pipeline = eager_pipeline(run, slots=256)
    turns = iter([False, False, True])
    options = {"part_size": 1, "rank_only": True}
    stopped = evaluate_all(run, pipeline, folder=tmp_path / "resumed", should_stop=lambda: next(turns, True), **options)
    assert 0 < len(stopped.results) < 4
    resumed = evaluate_all(run, pipeline, folder=tmp_path / "resumed", **options)
    assert (resumed.num_resumed, resumed.missing) == (len(stopped.results), [])
    evaluate_all(run, eager_pipeline(run, slots=64), folder=tmp_path / "whole", **options)
    files = [{each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in ("resumed", "whole")]
    assert files[0] == files[1]


def test_the_folder_of_a_complete_evaluation_is_refused(tmp_path: Path):
    run = countries_run(num_queries=1)
    pipeline = eager_pipeline(run)
    evaluate_all(run, pipeline, folder=tmp_path, part_size=100)
    with pytest.raises(UserError, match="rank_only is False there and True here"):
        evaluate_all(run, pipeline, folder=tmp_path, part_size=100, rank_only=True)


def test_the_report_counts_the_candidates_left_out_and_checks_the_others():
    run = countries_run(num_queries=4, num_corruptions=ALL)
    pipeline = eager_pipeline(run, slots=256)
    every, ranked = (evaluate_all(run, pipeline, rank_only=rank_only) for rank_only in (False, True))
    complete, found = (report_evaluation(run, each, pipeline, num_checked=300) for each in (every, ranked))
    assert found.metrics == complete.metrics
    assert found.num_candidates == complete.num_candidates
    assert found.true_outcomes == complete.true_outcomes
    assert (complete.rank_only, complete.num_left_out) == (False, 0)
    assert found.rank_only
    assert found.num_left_out == count_left_out(ranked) > 0
    assert sum(found.outcomes.values()) == found.num_candidates - found.num_left_out
    assert found.is_sound
    assert found.check is not None
    assert found.check.num_checked > 100


def prove_all(columns: Columns) -> Columns:
    outcome = np.full_like(columns.candidates.outcome, Outcome.PROVED)
    return columns._replace(candidates=columns.candidates._replace(outcome=outcome))


@pytest.mark.parametrize("num_corruptions", [ALL, 50])
def test_proofs_of_what_does_not_follow_are_found_by_the_check(num_corruptions: int):
    run = countries_run(num_queries=3, num_corruptions=num_corruptions)
    pipeline = Pipeline(ForeignEngine(run, prove_all), draw_candidates, rank_candidates)
    ranked = evaluate_all(run, pipeline, rank_only=True)
    assert count_left_out(ranked) > 0
    found = report_evaluation(run, ranked, pipeline, num_checked=256)
    assert found.check is not None
    assert any(each.expected.startswith("failed") for each in found.check.differences)
    assert not found.is_sound


def test_a_fault_of_the_engine_is_found_and_one_of_the_draw_or_the_ranks_refused():
    run = countries_run(num_queries=4, num_corruptions=ALL)
    pipeline = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu", slots=64)
    found = report_evaluation(run, evaluate_all(run, pipeline, rank_only=True), pipeline, num_checked=200)
    assert not found.is_sound
    with pytest.raises(UserError, match="draws and ranks by itself") as caught:
        evaluate_all(run, foreign_pipeline(run, ForeignEngine(run)), rank_only=True)
    assert (caught.value.where, "leave --rank-only out" in caught.value.fix) == ("rank_only", True)


def test_a_model_that_does_not_fit_is_given_up(monkeypatch: pytest.MonkeyPatch):
    from kgverify.prover.program import least_model

    monkeypatch.setattr(
        least_model.LeastModel.__init__, "__kwdefaults__", {"device": "auto", "memory_budget": 64, "most_rows": None}
    )
    run = countries_run(num_queries=1)
    assert count_left_out(evaluate_all(run, eager_pipeline(run), rank_only=True)) == 0


@pytest.mark.parametrize("num_corruptions", [ALL, 5])
def test_nan_log_probabilities_are_refused_for_ranks_as_well(num_corruptions: int):
    run = countries_run(num_queries=1, num_corruptions=num_corruptions)

    def spoil(columns: Columns) -> Columns:
        log_probability = np.full_like(columns.candidates.log_probability, np.nan)
        return columns._replace(candidates=columns.candidates._replace(log_probability=log_probability))

    pipeline = Pipeline(ForeignEngine(run, spoil), draw_candidates, rank_candidates)
    with pytest.raises(UserError, match="is not finite"):
        evaluate_all(run, pipeline, rank_only=True)


@pytest.mark.exhaustive
@needs_data
@pytest.mark.data
@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_ranks_of_family_among_all_entities_are_those_of_the_complete_evaluation(policy: str):
    graph = load_graph("family")
    run = Run(graph, policy=load_policy(policy, graph, Limits(), 0), num_queries=3, num_corruptions=ALL)
    assert assert_same_ranks(run, eager_pipeline(run, slots=512), 10_000) > 0


@pytest.mark.sample(1)
@needs_data
@pytest.mark.data
@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_ranks_of_family_among_drawn_corruptions_are_those_of_the_complete_evaluation(policy: str):
    graph = load_graph("family")
    run = Run(graph, policy=load_policy(policy, graph, Limits(), 0), num_queries=6, num_corruptions=20)
    left_out = assert_same_ranks(run, eager_pipeline(run, slots=128), 10_000)
    assert left_out > 0 or policy == "two_tower"
