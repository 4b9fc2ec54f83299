"""Large evaluations: the parts are those of the run, are kept as they end, and together say what one proof of all says."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from run_engines import ForeignEngine, TieBreakingEngine, countries_run, eager_pipeline, foreign_pipeline

from kgverify import Limits, UserError
from kgverify.evaluation import evaluate as evaluate_module
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.judge import report_evaluation
from kgverify.evaluation.parts import PartResult, list_columns
from kgverify.program.outcomes import Outcome
from kgverify.progress import Progress
from kgverify.ranking.rank import RANK_TOLERANCE, compute_metrics
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, plan_parts

SIZE = 30


def small_run(**options: int) -> Run:
    return countries_run(num_queries=6, num_corruptions=9, **options)


def evaluate_all(run: Run, pipeline: Pipeline, **options: object) -> EvaluationResult:
    found = evaluate(run, pipeline, EvaluationSettings(part_size=SIZE, **options))
    assert found is not None
    return found


def report(run: Run, pipeline: Pipeline, found: EvaluationResult, num_checked: int = 40) -> EvaluationReport:
    return report_evaluation(run, found, pipeline, num_checked=num_checked)


def assert_same_results(expected: dict[int, PartResult], actual: dict[int, PartResult]) -> None:
    assert expected.keys() == actual.keys()
    for number, result in expected.items():
        found = list_columns(actual[number])
        for name, column in list_columns(result).items():
            np.testing.assert_array_equal(found[name], column, err_msg=name)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_each_candidate_counts_once_as_progress():
    told: list[int] = []
    totals: list[int] = []

    @contextmanager
    def phase(title: str, total: int) -> Iterator[Progress]:
        totals.append(total)
        yield told.append

    run = small_run()
    found = evaluate_all(run, eager_pipeline(run), phase=phase)
    assert totals == [sum(part.num_candidates for part in found.plan.parts)]
    assert min(told) >= 0
    assert sum(told) == totals[0]


class Counters:
    """The numbers that the processes of a group share."""

    index, size = 0, 2

    def __init__(self) -> None:
        self.numbers: Counter[str] = Counter()

    def add(self, name: str, number: int) -> int:
        self.numbers[name] += number
        return self.numbers[name]


def test_a_process_has_left_when_it_says_so_or_is_gone():
    group, stops = Counters(), [False]
    settings = EvaluationSettings(group=cast(Any, group), should_stop=lambda: stops[0])
    worker = evaluate_module._Worker(cast(Any, None), settings)
    # A process that has not started yet is waited for, unless the evaluation stops.
    assert not worker._has_left(1)
    with subprocess.Popen(["sleep", "60"]) as other:
        group.numbers["process 1"] = other.pid
        try:
            assert [worker._has_left(1) for _ in range(3)] == [False] * 3
        finally:
            other.kill()
    assert worker._has_left(1)
    group.numbers["process 1"] = os.getpid()
    assert not worker._has_left(1)
    group.numbers["left 1"] = 1
    assert worker._has_left(1)
    del group.numbers["process 1"], group.numbers["left 1"]
    stops[0] = True
    assert worker._has_left(1)


def test_the_parts_are_consecutive_queries_of_no_more_candidates_than_the_size():
    run = small_run()
    plan = plan_parts(run, "cpu", SIZE)
    assert [query for part in plan.parts for query in part.queries] == list(run.queries)
    assert len(plan.parts) > 2
    assert all(0 < part.num_candidates <= SIZE for part in plan.parts)
    drawn = eager_pipeline(run).draw_for(run)
    assert sum(part.num_candidates for part in plan.parts) == len(drawn.query)
    assert plan_parts(run, "cpu", 1).parts[0].num_candidates > 1, "a query is never divided"


def test_an_evaluation_in_parts_reports_the_same_as_one_proof_of_all_candidates():
    run = small_run()
    pipeline = eager_pipeline(run)
    found = report(run, pipeline, evaluate_all(run, pipeline))
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    assert found.metrics == compute_metrics(pipeline.rank(candidates, run.triples, RANK_TOLERANCE))
    assert found.num_candidates == len(candidates.query)
    for outcome in Outcome:
        assert found.outcomes[outcome.name.lower()] == (candidates.outcome == outcome).sum()
    assert found.outcomes["proved"] > 0
    assert found.num_limited == candidates.is_limited.sum()
    assert sum(found.true_outcomes.values()) == found.num_rankings == 12
    assert found.check is not None
    assert (found.check.num_checked, found.check.num_equal, found.is_sound) == (20, 20, True)


def test_an_engine_that_can_only_prove_is_evaluated_as_well():
    run = small_run()
    pipeline = foreign_pipeline(run, ForeignEngine(run))
    assert_same_results(evaluate_all(run, eager_pipeline(run)).results, evaluate_all(run, pipeline).results)


def test_a_stopped_evaluation_resumes_and_ends_with_the_same_files(tmp_path: Path):
    run = small_run()
    pipeline = eager_pipeline(run)
    turns = iter([False, False, True])
    stopped = evaluate_all(run, pipeline, folder=tmp_path / "resumed", should_stop=lambda: next(turns, True))
    assert 0 < len(stopped.results) < len(stopped.plan.parts)
    assert len(stopped.missing) + len(stopped.results) == len(stopped.plan.parts)
    resumed = evaluate_all(run, pipeline, folder=tmp_path / "resumed")
    assert (resumed.num_resumed, resumed.missing) == (len(stopped.results), [])
    at_once = evaluate_all(run, pipeline, folder=tmp_path / "whole")
    assert at_once.num_resumed == 0
    assert files_of(tmp_path / "resumed") == files_of(tmp_path / "whole")
    assert_same_results(evaluate_all(run, pipeline).results, at_once.results)


def test_the_layout_does_not_change_the_files(tmp_path: Path):
    run = small_run()
    for folder, slots in (("few", 3), ("many", 64)):
        evaluate_all(run, eager_pipeline(run, slots=slots), folder=tmp_path / folder)
    assert files_of(tmp_path / "few") == files_of(tmp_path / "many")


@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", ["cut", "altered", "of another part", "no zip"])
def test_a_damaged_part_is_repeated_with_a_warning(tmp_path: Path, damage: str):
    run = small_run()
    pipeline = eager_pipeline(run)
    evaluate_all(run, pipeline, folder=tmp_path)
    whole = files_of(tmp_path)
    path = tmp_path / "part-000001.npz"
    content = path.read_bytes()
    place = content.index(b"optimistic.npy") + 170
    altered = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    path.write_bytes(
        {"cut": content[:-9], "altered": altered, "of another part": whole["part-000000.npz"], "no zip": b"?"}[damage]
    )
    said: list[str] = []
    found = evaluate_all(run, pipeline, folder=tmp_path, warn=said.append)
    assert len(said) == 1
    assert "part-000001.npz" in said[0]
    assert "the part is repeated" in said[0]
    assert found.num_resumed == len(found.plan.parts) - 1
    assert files_of(tmp_path) == whole


def test_a_value_altered_under_a_valid_zip_is_found_by_the_checksum(tmp_path: Path):
    run = small_run()
    pipeline = eager_pipeline(run)
    evaluate_all(run, pipeline, folder=tmp_path)
    whole = files_of(tmp_path)
    path = tmp_path / "part-000000.npz"
    arrays = dict(np.load(path))
    arrays["optimistic"] = arrays["optimistic"] + 1
    np.savez(path, **arrays)
    said: list[str] = []
    evaluate_all(run, pipeline, folder=tmp_path, warn=said.append)
    assert "checksum" in said[0]
    assert files_of(tmp_path) == whole


def test_the_folder_of_another_evaluation_is_refused_with_the_differences(tmp_path: Path):
    run = small_run()
    evaluate_all(run, eager_pipeline(run), folder=tmp_path)
    other = replace(run, seed=1, limits=Limits(max_depth=5))
    with pytest.raises(UserError) as caught:
        evaluate_all(other, eager_pipeline(other), folder=tmp_path)
    assert "seed is 0 there and 1 here" in caught.value.message
    assert "limits.max_depth is 20 there and 5 here" in caught.value.message
    assert "another --save folder" in caught.value.fix


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    run = small_run()
    with pytest.raises(UserError, match=r"no run\.json"):
        evaluate_all(run, eager_pipeline(run), folder=tmp_path)
    assert files_of(tmp_path) == {"notes.txt": b"mine"}


def test_an_invalid_run_file_is_refused(tmp_path: Path):
    (tmp_path / "run.json").write_text("{}")
    run = small_run()
    with pytest.raises(UserError, match=r"run\.json"):
        evaluate_all(run, eager_pipeline(run), folder=tmp_path)


def test_a_fault_is_found_by_the_candidates_that_the_reference_proves_as_well():
    run = small_run()
    pipeline = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu", slots=16)
    found = report(run, pipeline, evaluate_all(run, pipeline))
    assert found.check is not None
    assert not found.is_sound
    # The sample depends on the code that made the results.
    lost = [each for each in found.check.differences if each.expected.startswith("proved")]
    assert lost
    assert all(each.actual.startswith("failed") for each in lost)
    assert found.check.num_equal < found.check.num_checked == 20
    assert found.check.rankings.num_equal < found.check.rankings.num_checked


@pytest.mark.parametrize(
    ("declared", "bound", "is_sound"), [(1e-6, 1e-6, True), (0.0, 1e-6, False), (1e-6, 0.0, False)]
)
def test_a_derivation_that_differs_within_the_accepted_error_is_a_near_tie(
    monkeypatch: pytest.MonkeyPatch, declared: float, bound: float, is_sound: bool
):
    """Scores of `shortest` are exact, so that its bound is 0 but in this test."""
    if bound:
        monkeypatch.setattr("kgverify.trace.model.score_tolerance.bound_score_error", lambda policy, precision: bound)
    run = replace(small_run(), num_corruptions=40)
    pipeline = foreign_pipeline(run, TieBreakingEngine(run, 1e-6, declared=declared))
    found = report(run, pipeline, evaluate_all(run, pipeline), num_checked=400)
    assert found.check is not None
    assert found.is_sound == is_sound
    assert (found.check.num_near_ties > 0) == is_sound
