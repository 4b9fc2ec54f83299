"""The parts of a run, the blocks of a search, the start of workers, the events of a profile, and the names of a machine."""

import os
import signal
import threading
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from run_engines import countries_run

from kgverify import bench
from kgverify.ranking.draw import ALL, count_candidates
from kgverify.runs import run
from kgverify.runs.delta_debugging import _count_fitting, count_down
from kgverify.runs.pool import _environment, _start_process, describe_end
from kgverify.runs.run import SCORE_SUMS, describe_ranking, plan_parts


def test_the_size_of_parts_follows_from_the_device_and_from_what_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SIZES", {"cpu": (101, 101), "cuda": (102, 102)})
    monkeypatch.setattr(run, "RANKED_SIZES", {"cpu": (103, 103), "cuda": (104, 104)})
    for device, rank_only, num in product(("cpu", "cuda", "other"), (False, True), (9, ALL)):
        plan = plan_parts(countries_run(num_queries=2, num_corruptions=num), device, rank_only=rank_only)
        assert plan.size == 101 + (device == "cuda") + 2 * (rank_only and num == ALL)


def test_parts_divide_the_queries_by_their_candidates() -> None:
    run = countries_run(num_queries=7, num_corruptions=3)
    counts = count_candidates(run.graph, run.split, run.queries, 3)
    most = int(counts.max())
    for size in (1, most, 2 * most, 7 * most):
        parts = plan_parts(run, "cpu", size).parts
        assert [query for part in parts for query in part.queries] == list(run.queries)
        assert [part.num_candidates for part in parts] == [counts[part.queries].sum() for part in parts]
        assert [part.number for part in parts] == list(range(len(parts)))
        assert all(part.num_candidates <= size or len(part.queries) == 1 for part in parts)
        assert all(a.num_candidates + counts[b.queries[0]] > size for a, b in pairwise(parts))
    assert len(parts) == 1


def test_the_counts_of_blocks_go_down_from_all_to_one() -> None:
    for num in range(1, 400):
        counts = count_down(num)
        assert counts[0] == num
        assert counts[-1] == 1
        assert all(left > right >= left * 7 // 8 for left, right in pairwise(counts))
    assert len(count_down(10_000)) < 100


@pytest.mark.parametrize(("capacity", "num"), [(0, 1), (1, 1), (2, 1), (3, 2), (6, 2), (7, 3), (14, 3), (15, 4)])
def test_as_many_sizes_of_blocks_are_tried_together_as_fit(capacity: int, num: int) -> None:
    # 1, 2, 4 and 8 blocks.
    assert _count_fitting([8, 4, 2, 1], 8, capacity) == num


class _Noting:
    """An executor that notes what becomes of an interrupt while processes start."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, bool]] = []

    def submit(self, work: Any) -> None:
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self.seen.append((signal.getsignal(signal.SIGINT), is_blocked))


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (("a", "b"), "a and b give no scores"),
        (("a", "a"), "a gives no scores"),
        (("", "b"), "b gives no scores"),
        (("", ""), ""),
    ],
)
def test_sides_without_scores_are_named(names: tuple[str, str], note: str) -> None:
    engines = [SimpleNamespace(name=name, unknown=(SCORE_SUMS,) if name else ()) for name in names]
    found = describe_ranking([SimpleNamespace(header=SimpleNamespace(engine=each)) for each in engines])  # type: ignore[misc]
    assert found == ([f"{note}: both sides are ranked by PROVED or not alone"] if note else [])


def test_processes_are_started_without_interrupts() -> None:
    before, executor = signal.getsignal(signal.SIGINT), _Noting()
    _start_process(executor)  # type: ignore[arg-type]
    assert executor.seen == [(signal.SIG_IGN, False)]
    assert signal.getsignal(signal.SIGINT) is before
    executor = _Noting()
    thread = threading.Thread(target=_start_process, args=(executor,))
    thread.start()
    thread.join()
    assert executor.seen == [(before, True)]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_the_end_of_a_process_is_named_by_its_signal() -> None:
    assert [describe_end(code) for code in (0, 3, -9, -200)] == ["exit code 0", "exit code 3", "SIGKILL", "signal 200"]


def test_environment_variables_get_their_values_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGVERIFY_ONE", "5")
    monkeypatch.delenv("KGVERIFY_TWO", raising=False)
    names = ("KGVERIFY_ONE", "KGVERIFY_TWO")
    with _environment(names):
        assert [os.environ.get(name) for name in names] == ["1", "1"]
    assert [os.environ.get(name) for name in names] == ["5", None]


@pytest.mark.parametrize(
    ("lines", "processor", "name"),
    [
        ("flags: x\nmodel name\t: Abacus 3\nmodel name: Other\n", "p", "Abacus 3"),
        ("flags: x\n", "p", "p"),
        (None, "p", "p"),
        (None, "", "m"),
    ],
)
def test_the_processor_is_named_by_what_there_is(
    lines: str | None, processor: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Path) -> str:
        if lines is None:
            raise OSError
        return lines

    monkeypatch.setattr(bench.Path, "read_text", read)
    monkeypatch.setattr(bench.platform, "processor", lambda: processor)
    monkeypatch.setattr(bench.platform, "machine", lambda: "m")
    assert bench.read_processor() == name
