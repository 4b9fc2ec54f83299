"""Several processes that prove a part together get the result of one."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_engines import countries_run, needs_compiler

from kgverify.errors import InternalError
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.parts import PartResult, join_shares, list_columns, pack_result, unpack_result
from kgverify.evaluation.proving import UNITS, ProcessGroup, Share, cut_units
from kgverify.prover.native.engine import NativeEngine
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs import run as runs
from kgverify.runs.run import Pipeline, Run


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


def evaluate_by(
    run: Run, num: int, *, mute: int | None = None, folder: Path | None = None, part_size: int | None = None
) -> EvaluationResult:
    board = Board()

    def work(index: int) -> EvaluationResult | None:
        engine = NativeEngine(run.graph.program, run.limits, run.policy, threads=1)
        pipeline = Pipeline(engine, draw_candidates, rank_candidates)
        group = ThreadGroup(board, index, num, mute=index == mute)
        return evaluate(
            run, pipeline, EvaluationSettings(rank_only=True, group=group, folder=folder, part_size=part_size)
        )

    with ThreadPoolExecutor(num) as threads:
        results = [each.result() for each in [threads.submit(work, index) for index in range(num)]]
    assert results[1:] == [None] * (num - 1)
    assert results[0] is not None
    return results[0]


def assert_same(found: PartResult, expected: PartResult) -> None:
    for (name, left), right in zip(list_columns(found).items(), list_columns(expected).values(), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)
        assert left.dtype == right.dtype, name
        assert left.shape == right.shape, name


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(rank_only, "BLOCK_SIZE", 300)
    # The least model is worth its work although nothing has imported torch.
    monkeypatch.setattr(runs, "WORK_OF_TORCH", 0)
    return replace(countries_run("two_tower", num_queries=8), num_corruptions=ALL)


@needs_compiler
def test_processes_that_share_a_part_get_the_result_of_one(run: Run, tmp_path: Path):
    (expected,) = evaluate_by(run, 1).results.values()
    for num in (2, 3, 5):
        (found,) = evaluate_by(run, num, folder=tmp_path / str(num)).results.values()
        assert_same(found, expected)
    assert expected.num_outcomes.sum() < expected.num_ranked.sum()
    first, other = (next((tmp_path / name).glob("*.npz")).read_bytes() for name in ("2", "5"))
    assert first == other


@needs_compiler
def test_parts_are_not_shared_where_there_is_one_for_each_process(run: Run):
    every = evaluate_by(run, 1, part_size=500).results
    assert len(every) > 2
    for number, found in evaluate_by(run, 2, part_size=500).results.items():
        assert_same(found, every[number])


@needs_compiler
def test_a_part_is_left_out_if_a_process_that_shares_it_is_gone(run: Run):
    result = evaluate_by(run, 3, mute=2)
    assert not result.results
    assert [part.number for part in result.missing] == [0]


def take_all(shares: list[Share], num: int) -> list[range]:
    taken = []
    while any(more := [share.take("units", num) for share in shares]):
        taken += [each for each in more if each]
    return taken


@pytest.mark.parametrize("num", [0, 1, UNITS, 2 * UNITS, 2 * UNITS + 1, 100])
def test_every_unit_is_taken_once(num: int):
    board = Board()
    shared = take_all([Share(ThreadGroup(board, index, 3), 0) for index in range(3)], num)
    whole = take_all([Share(ProcessGroup(), 0)], num)
    for taken in (shared, whole):
        assert [unit for each in taken for unit in each] == list(range(num))
    assert {len(each) for each in shared} <= set(range(1, UNITS + 1))
    if num == 100:
        assert [len(each) for each in (shared[0], shared[-1])] == [UNITS, 1]
        assert [len(each) for each in whole] == [1, 98, 1]


def test_units_grow_smaller_towards_the_end():
    starts = np.arange(0, 30_001, 10)
    bounds = starts[cut_units(starts, 8_000)]
    assert bounds[0] == 0
    assert bounds[-1] == 30_000
    sizes = np.diff(bounds)
    assert sizes[:14].tolist() == [1000] * 14
    assert (np.diff(sizes[:-1]) <= 0).all()
    assert sizes[-5:-1].tolist() == [120] * 4
    # A row with more is a unit by itself.
    assert cut_units(np.array([0, 50, 50, 60]), 8) == [0, 1, 2, 3]
    assert cut_units(np.zeros(1, np.int64), 8) == [0]


@needs_compiler
def test_shares_of_other_true_triples_are_refused(run: Run):
    (result,) = evaluate_by(run, 1).results.values()
    assert_same(unpack_result(pack_result(result)), result)
    with pytest.raises(InternalError, match="do not prove the same true triples alike"):
        join_shares([result, result._replace(log_probability=result.log_probability - 1)])
