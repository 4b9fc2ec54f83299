"""Parts that workers or several processes prove: the results of one process, whatever is cut, shared, stopped or lost."""

import os
import subprocess
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from run_engines import countries_run, needs_compiler

from kgverify.errors import InternalError
from kgverify.evaluation import evaluate as evaluate_module
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.parts import hash_result, join_shares, pack_result, unpack_result
from kgverify.evaluation.proving import ProcessGroup, do_piece
from kgverify.prover.native.engine import NativeEngine
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs import run as runs
from kgverify.runs.pool import Workers
from kgverify.runs.run import Pipeline, Run, reference_pipeline

RUN = countries_run(num_queries=6, num_corruptions=2)


def hashes(found: EvaluationResult | None) -> dict[int, str]:
    assert found is not None
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
    assert stopped is not None
    assert stopped.missing
    finished = [part for part in stopped.plan.parts if part.number in stopped.results]
    assert stopped.num_candidates == sum(part.num_candidates for part in finished) > 0


# Several processes.


class Board:
    """The counters and messages of a group."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counters: Counter[str] = Counter()
        self.messages: dict[str, bytes] = {}
        self.plan: list[bytes] = []
        self.is_planned = threading.Event()


class ThreadGroup(ProcessGroup):
    """A thread that stands for a process. mute: whether its messages are lost, as if it had been killed before."""

    def __init__(self, board: Board, index: int, size: int, *, mute: bool = False) -> None:
        super().__init__(None, index, size)
        self._board, self._mute = board, mute

    def broadcast(self, message: bytes) -> bytes:
        if self.index == 0:
            self._board.plan.append(message)
            self._board.is_planned.set()
        assert self._board.is_planned.wait(60)
        return self._board.plan[0]

    def add(self, counter: str, num: int) -> int:
        with self._board.lock:
            self._board.counters[counter] += num
            return self._board.counters[counter]

    def send(self, name: str, message: bytes) -> None:
        if not self._mute:
            self._board.messages[name] = message

    def receive(self, name: str) -> bytes | None:
        return self._board.messages.get(name)


def evaluate_by(run: Run, num: int, *, mute: int | None = None, **options: Any) -> EvaluationResult:
    board = Board()

    def work(index: int) -> EvaluationResult | None:
        engine = NativeEngine(run.graph.program, run.limits, run.policy, threads=1)
        pipeline = Pipeline(engine, draw_candidates, rank_candidates)
        group = ThreadGroup(board, index, num, mute=index == mute)
        return evaluate(run, pipeline, EvaluationSettings(rank_only=True, group=group, **options))

    with ThreadPoolExecutor(num) as threads:
        results = [each.result() for each in [threads.submit(work, index) for index in range(num)]]
    assert results[1:] == [None] * (num - 1)
    assert results[0] is not None
    return results[0]


@pytest.fixture
def shared_run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(rank_only, "BLOCK_SIZE", 300)
    # The least model is worth its work although nothing has imported torch.
    monkeypatch.setattr(runs, "WORK_OF_TORCH", 0)
    return replace(countries_run("two_tower", num_queries=8), num_corruptions=ALL)


@needs_compiler
def test_processes_that_share_a_part_get_the_result_of_one(shared_run: Run, tmp_path: Path) -> None:
    expected = evaluate_by(shared_run, 1)
    for num in (2, 5):
        assert hashes(evaluate_by(shared_run, num, folder=tmp_path / str(num))) == hashes(expected)
    (result,) = expected.results.values()
    assert result.num_outcomes.sum() < result.num_ranked.sum()
    first, other = (next((tmp_path / name).glob("*.npz")).read_bytes() for name in ("2", "5"))
    assert first == other
    # Shares with other true triples are refused.
    assert hash_result(unpack_result(pack_result(result)), "") == hash_result(result, "")
    with pytest.raises(InternalError, match="do not prove the same true triples alike"):
        join_shares([result, result._replace(log_probability=result.log_probability - 1)])


@needs_compiler
def test_a_part_is_left_out_if_a_process_that_shares_it_is_gone(shared_run: Run) -> None:
    result = evaluate_by(shared_run, 3, mute=2)
    assert not result.results
    assert [part.number for part in result.missing] == [0]


def test_a_process_has_left_when_it_says_so_or_is_gone() -> None:
    group, stops = ThreadGroup(Board(), 0, 2), [False]
    numbers = group._board.counters
    settings = EvaluationSettings(group=group, should_stop=lambda: stops[0])
    worker = evaluate_module._Worker(cast(Any, None), settings)
    # A process that has not started yet is waited for, unless the evaluation stops.
    assert not worker._has_left(1)
    with subprocess.Popen(["sleep", "60"]) as other:
        numbers["process 1"] = other.pid
        try:
            assert [worker._has_left(1) for _ in range(3)] == [False] * 3
        finally:
            other.kill()
    assert worker._has_left(1)
    numbers["process 1"] = os.getpid()
    assert not worker._has_left(1)
    numbers["left 1"] = 1
    assert worker._has_left(1)
    del numbers["process 1"], numbers["left 1"]
    stops[0] = True
    assert worker._has_left(1)
