"""Parts that workers prove: the results of one process, whatever is cut, stopped or lost."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from run_engines import countries_run

import kgverify as kv
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.parts import hash_result
from kgverify.evaluation.proving import do_piece
from kgverify.runs.pool import Workers
from kgverify.runs.run import Run, reference_pipeline

RUN = countries_run(num_queries=6, num_corruptions=2)


def hashes(found: EvaluationResult) -> dict[int, str]:
    return {number: hash_result(result, "") for number, result in found.results.items()}


class Threads(Workers, ThreadPoolExecutor):
    """Workers in threads of this process, which keep the functions called, and the candidates of each piece."""

    def __init__(self, num: int) -> None:
        super().__init__(num)
        self.num = num
        self.calls: list[tuple[str, int]] = []

    def count(self) -> int:
        return self.num

    def submit(self, function: Any, *arguments: Any, **options: Any) -> Future[Any]:
        self.calls.append((function.__name__, len(arguments[-1].query) if function is do_piece else 0))
        return super().submit(function, *arguments, **options)


def evaluate_by_threads(folder: Path | None = None, run: Run = RUN, **options: Any) -> Any:
    with Threads(4) as workers:
        given = {"workers": workers, "make": partial(reference_pipeline, run), "part_size": 6} | options
        found = evaluate(run, reference_pipeline(run), EvaluationSettings(folder=folder, **given))
    return found, workers.calls


def test_results_that_arrived_before_a_stop_are_stored(tmp_path: Path) -> None:
    stored: list[int] = []

    def should_stop() -> bool:
        stored[:] = [int(path.stem[-6:]) for path in (tmp_path / "run").glob("part-*.npz")]
        return len(stored) > 1

    found, _ = evaluate_by_threads(tmp_path / "run", should_stop=should_stop)
    assert set(stored) <= set(found.results)
    again, _ = evaluate_by_threads(tmp_path / "run")
    assert again.num_resumed == len(found.results) >= 2
    assert not again.missing


@pytest.mark.parametrize("part_size", [None, 100])
def test_the_last_parts_are_cut_into_pieces(part_size: int | None) -> None:
    run = countries_run(num_queries=12, num_corruptions=50)
    found, calls = evaluate_by_threads(run=run, part_size=part_size)
    assert hashes(found) == hashes(evaluate(run, reference_pipeline(run), EvaluationSettings(part_size=part_size)))
    num_parts, sizes = len(found.plan.parts), [num for name, num in calls if name == "do_piece"]
    assert len(calls) - len(sizes) == max(0, num_parts - 8)
    # An only part occupies all four.
    assert part_size or (num_parts, len(sizes)) == (1, 16)
    assert min(sizes) >= 32
    assert sum(sizes) == sum(part.num_candidates for part in found.plan.parts[-8:])


def test_a_stopped_evaluation_counts_what_it_finished() -> None:
    turns = iter((False, True, True, True, True))
    settings = EvaluationSettings(part_size=6, should_stop=lambda: next(turns))
    stopped = evaluate(RUN, reference_pipeline(RUN), settings)
    assert stopped.missing
    finished = [part for part in stopped.plan.parts if part.number in stopped.results]
    assert stopped.num_candidates == sum(part.num_candidates for part in finished) > 0


@pytest.mark.parametrize("rank_only", [False, True])
def test_two_processes_leave_the_parts_and_the_metrics_of_one(rank_only: bool, tmp_path: Path) -> None:
    def evaluate_by(jobs: int) -> kv.EvaluationReport:
        options = kv.EvaluationOptions(part_size=30, check=9, rank_only=rank_only, jobs=jobs)
        engine = kv.Evaluator(mode="eager", device="cpu")
        return kv.evaluate("countries", engine, queries=6, corruptions=8, options=options, save=tmp_path / str(jobs))

    one, two = evaluate_by(1), evaluate_by(2)
    assert "by 2 processes" in str(two)
    assert one.metrics == two.metrics
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("part-*")} for name in "12"]
    assert len(files[0]) > 2
    assert files[0] == files[1]


def test_processes_and_a_scheduler_exclude_each_other() -> None:
    with pytest.raises(kv.UserError, match="jobs would start processes here as well"):
        kv.EvaluationOptions(jobs=2, scheduler="tls://127.0.0.1:1")
    with pytest.raises(kv.UserError, match="expected 1 to 1024, found 0"):
        kv.EvaluationOptions(jobs=0)
