"""The parts of a run, the blocks of a search, the start of workers, the events of a profile, and the names of a machine."""

import os
import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_engines import countries_run

from kgverify.engines.sent_maker import SentMaker, make_once
from kgverify.errors import UserError
from kgverify.ranking.corrupt import ALL, count_candidates
from kgverify.runs import dask_workers, machine, parts
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.delta_debugging import _count_fitting, count_down
from kgverify.runs.parts import plan_parts
from kgverify.runs.profiling import _REGION, _count_events, _find_peak, _silent_stderr, take_profile
from kgverify.runs.retake import describe_left
from kgverify.runs.run import MOST, SCORE_SUMS, Run, describe_ranking, reference_pipeline
from kgverify.runs.separate_workers import MOST_REPEATS, RepeatingWorkers, describe_end
from kgverify.runs.workers import _environment, _start_processes, start_workers


def test_the_size_of_parts_follows_from_the_device_and_from_what_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "SIZES", {"cpu": (101, 101), "cuda": (102, 102)})
    monkeypatch.setattr(parts, "RANKED_SIZES", {"cpu": (103, 103), "cuda": (104, 104)})
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
    _start_processes(executor, 3)  # type: ignore[arg-type]
    assert executor.seen == [(signal.SIG_IGN, False)] * 3
    assert signal.getsignal(signal.SIGINT) is before
    executor = _Noting()
    thread = threading.Thread(target=_start_processes, args=(executor, 2))
    thread.start()
    thread.join()
    assert executor.seen == [(before, True)] * 2
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_the_events_of_a_profile_are_counted() -> None:
    def event(name: str, kind: str, ts: float = 5.0, dur: float = 2.0) -> dict[str, Any]:
        return {"name": name, "cat": kind, "ts": ts, "dur": dur}

    found = _count_events(
        [
            event(_REGION, "user_annotation", 4.0, 10.0),
            event("add", "kernel", 1.0),
            event("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
            event("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy"),
            event("Memset (Device)", "gpu_memset"),
            event("cudaLaunchKernel", "cuda_runtime", 3.9),
            event("cudaLaunchKernel", "cuda_runtime", 4.0),
            event("cuLaunchKernel", "cuda_driver", 14.0),
            event("cudaGraphLaunch", "cuda_runtime"),
            event("cudaStreamSynchronize", "cuda_runtime"),
            event("aten::equal", "cpu_op"),
            event("aten::add", "cpu_op"),
            event("other", "python_function"),
        ]
    )
    assert (found.num_device_operations, found.num_kernels, found.device_seconds) == (4, 1, pytest.approx(8e-6))
    assert dict(found.copies) == {"Memcpy HtoD": 2}
    assert (found.num_launches, found.num_replays, found.num_reads) == (2, 1, 1)
    assert dict(found.waits) == {"cudaStreamSynchronize": 1}


def test_the_peak_of_memory_is_found_in_the_order_of_time() -> None:
    def event(ts: int, num_bytes: int, name: str = "[memory]") -> dict[str, Any]:
        return {"name": name, "ts": str(ts), "args": {"Bytes": num_bytes}}

    # 3, 8, 1 and 5 bytes are held.
    events = [event(10, 4), event(1, 3), event(2, 5), event(9, -7), {"name": "add"}, event(0, 99, "other")]
    assert _find_peak(events) == 8
    assert _find_peak([]) == 0


def test_errors_are_printed_again_after_a_profile() -> None:
    def identify() -> tuple[int, int, int]:
        status = os.fstat(2)
        return status.st_dev, status.st_ino, status.st_rdev

    before = identify()
    with _silent_stderr():
        assert identify()[2] == os.stat(os.devnull).st_rdev
    assert identify() == before


def test_the_end_of_a_process_is_named_by_its_signal() -> None:
    assert [describe_end(code) for code in (0, 3, -9, -200)] == ["exit code 0", "exit code 3", "SIGKILL", "signal 200"]


def test_environment_variables_get_their_values_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGVERIFY_ONE", "5")
    monkeypatch.delenv("KGVERIFY_TWO", raising=False)
    names = ("KGVERIFY_ONE", "KGVERIFY_TWO")
    with _environment(names):
        assert [os.environ.get(name) for name in names] == ["1", "1"]
    assert [os.environ.get(name) for name in names] == ["5", None]


@pytest.mark.deep
def test_work_on_a_cpu_is_profiled_with_its_memory() -> None:
    torch = pytest.importorskip("torch")
    found = take_profile(lambda: torch.ones(1 << 20).sum().item(), is_cuda=False)
    assert found.peak_memory >= 4 << 20
    assert found.num_reads == 1
    assert found.wall_seconds > 0
    assert found.num_device_operations == 0


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

    monkeypatch.setattr(machine.Path, "read_text", read)
    monkeypatch.setattr(machine.platform, "processor", lambda: processor)
    monkeypatch.setattr(machine.platform, "machine", lambda: "m")
    assert machine.read_processor() == name


def test_the_settings_of_the_compiler_are_those_that_were_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import torch._inductor.config as config

    for name in ("TORCHINDUCTOR_X", "TRITON_CACHE_DIR", "OTHER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TRITON_ANY", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "somewhere")
    with config.patch(max_autotune=not config.max_autotune):
        changed = machine.read_compiler_settings()
    assert [name in changed for name in ("TORCHINDUCTOR_X", "TRITON_CACHE_DIR", "OTHER")] == [True, False, False]
    assert changed["TRITON_ANY"] == "1"
    assert "TRITON_CACHE_DIR" not in changed
    name = "torch._inductor.config.max_autotune"
    assert changed[name] == str(not config.max_autotune)
    own = [each for each in changed if each.startswith("torch._inductor.config.")]
    entries = config._config
    assert all(entries[each.rpartition("config.")[2]].default != changed[each] for each in own)
    assert len(own) < len(entries) / 4


def test_a_run_may_ask_for_as_many_queries_as_ids_can_count() -> None:
    assert MOST == 2**31 - 1
    run = countries_run()
    assert Run(run.graph, num_queries=MOST).num_queries == MOST
    with pytest.raises(UserError):
        Run(run.graph, num_queries=MOST + 1)


def test_one_log_probability_that_is_not_finite_leaves_no_ranks() -> None:
    run = countries_run(num_queries=1, num_corruptions=3)
    pipeline = reference_pipeline(run)
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    assert pipeline.rank_finite(run, candidates) is not None
    for value in (np.nan, np.inf):
        scores = candidates.log_probability.copy()
        scores[-1] = value
        assert pipeline.rank_finite(run, candidates._replace(log_probability=scores)) is None


class _Calls(DaskWorkers):
    """The workers of a scheduler that answers only after some attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, num_refused: int = 0) -> None:
        self._client: Any = SimpleNamespace(close=lambda timeout: None, status="running")
        self._address, self._is_closing, self._changing = "", False, threading.Lock()
        self._calls, self._num_ended, self.attempts, self.sent = set(), 0, num_refused, []
        self._last_end = self._began = time.monotonic()
        monkeypatch.setattr(dask_workers, "_connect", self._try_to_connect)
        monkeypatch.setattr(dask_workers, "_RETRY_SECONDS", 0.0)

    def _try_to_connect(self, address: str) -> str:
        self.attempts -= 1
        if self.attempts >= 0:
            raise UserError("no scheduler")
        return "client"

    def _send(self, call: Any) -> None:
        self.sent.append(call)
        call.sent.append(object())

    def count_threads(self) -> int:
        return 2


def _call(workers: _Calls) -> Any:
    call = dask_workers._Call(int, (), {})
    workers._calls.add(call)
    return call


def test_the_threads_of_all_workers_are_counted_from_time_to_time() -> None:
    threads: dict[str, int] = {}
    workers: Any = SimpleNamespace(_client=SimpleNamespace(nthreads=lambda: threads), _num_threads=1, _counted=-1e9)
    assert DaskWorkers.count_threads(workers) == 1
    threads.update(a=2, b=3)
    assert DaskWorkers.count_threads(workers) == 1
    workers._counted = -1e9
    assert DaskWorkers.count_threads(workers) == 5


def test_an_error_in_a_result_is_that_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    workers: Any = _Calls(monkeypatch)
    call, sent = _call(workers), object()
    call.sent[:] = [sent]

    def get(timeout: float) -> Any:
        workers._is_closing = True
        return call, sent

    def fail(*given: object) -> None:
        raise ValueError("no result")

    workers._ended, workers._handle = SimpleNamespace(get=get), fail
    workers._watch()
    assert str(call.future.exception(timeout=0)) == "no result"


@pytest.mark.parametrize(
    ("code", "message"),
    [(-9, f"a worker died {MOST_REPEATS} times before"), (1, "a worker died before its work was done \\(exit code 1")],
)
def test_a_call_that_ends_its_processes_is_an_error(code: int, message: str) -> None:
    def submit(*given: object) -> Future[int]:
        ended: Future[int] = Future()
        ended.set_exception(BrokenProcessPool("ended"))
        return ended

    restarted: list[int] = []
    worker = SimpleNamespace(executor=SimpleNamespace(submit=submit), restart=lambda: restarted.append(code) or code)
    workers: Any = SimpleNamespace(_free=SimpleQueue(), _restarts=threading.Lock(), _is_ending=False)
    workers._free.put(worker)
    with pytest.raises(UserError, match=message):
        RepeatingWorkers._do(workers, int, (), {})
    assert restarted == [code] * (MOST_REPEATS if code < 0 else 1)
    workers._is_ending = True
    workers._free.put(worker)
    with pytest.raises(BrokenProcessPool):
        RepeatingWorkers._do(workers, int, (), {})
    assert restarted == [code] * (MOST_REPEATS if code < 0 else 1)


def test_steps_that_were_not_judged_are_described() -> None:
    assert [describe_left(num).split(" from ")[0] for num in (1, 2)] == [
        "1 recorded step starts",
        "2 recorded steps start",
    ]
    assert [describe_left(num).split(", and ")[1] for num in (1, 2)] == ["was not judged", "were not judged"]


def test_results_of_an_earlier_connection_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_known in (False, True):
        workers: Any = _Calls(monkeypatch)
        call, sent, handled = _call(workers), object(), []
        call.sent[:] = [sent] if is_known else [object()]
        workers._handle = lambda *ended, handled=handled: handled.append(ended)

        def get(timeout: float, workers: Any = workers, ended: Any = (call, sent)) -> Any:
            workers._is_closing = True
            return ended

        workers._ended = SimpleNamespace(get=get)
        workers._watch()
        assert handled == [(call, sent)] * is_known


def test_workers_that_cannot_be_counted_are_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(status="running", close=lambda timeout: None)
    monkeypatch.setattr(dask_workers, "_connect", lambda address: client)
    monkeypatch.setattr(dask_workers, "_POLL_SECONDS", 0.01)
    with DaskWorkers("tcp://localhost:1") as workers:
        assert workers.count_threads() == 1


def test_a_scheduler_that_is_away_for_a_short_time_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = _Calls(monkeypatch, num_refused=3)
    call = _call(workers)
    workers._reconnect()
    assert (workers._client, workers.sent, call.future.done()) == ("client", [call], False)
    monkeypatch.setattr(dask_workers, "RECONNECT_SECONDS", -1.0)
    workers = _Calls(monkeypatch, num_refused=3)
    call = _call(workers)
    workers._reconnect()
    assert (workers.sent, call.future.done()) == ([], True)


def test_calls_are_sent_again_once_nothing_else_is_left_and_they_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "STRAGGLER_SECONDS", 0.0)
    for num_calls, num_ended, silence in product((0, 1, 2, 3), (0, 4), (0.0, 1e6)):
        workers = _Calls(monkeypatch)
        for call in [_call(workers) for _ in range(num_calls)]:
            call.sent.append(object())
        workers._num_ended, workers._last_end = num_ended, workers._began + 1
        workers._began, workers._last_end = workers._began - silence - 1, workers._last_end - silence
        workers._send_stragglers_again()
        assert len(workers.sent) == (num_calls if num_calls <= 2 and num_ended and silence else 0)


@pytest.mark.parametrize("allowed", [0, 3, 10])
def test_a_call_whose_workers_die_is_repeated_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    class Killed(Exception):
        """The scheduler's, after the failures that it allows and one more."""

        allowed_failures = allowed

    monkeypatch.setattr(
        dask_workers.importlib,
        "import_module",
        lambda name: SimpleNamespace(scheduler=SimpleNamespace(KilledWorker=Killed)),
    )
    workers = _Calls(monkeypatch)
    call = _call(workers)
    most = -(-MOST_REPEATS // (allowed + 1))
    for number in range(most):
        assert len(workers.sent) == number
        assert not call.future.done()
        call.sent[:] = [SimpleNamespace(status="error", exception=Killed)]
        workers._handle(call, call.sent[0])
    assert len(workers.sent) == most - 1
    with pytest.raises(UserError, match=f"{most * (allowed + 1)} times, workers died"):
        call.future.result()


def test_a_worker_uses_one_thread_and_this_process_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with start_workers(1) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert os.environ["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize("size", [10, (1 << 24) + 1])
def test_what_workers_need_arrives_as_it_was_sent(size: int) -> None:
    made = SentMaker(partial(bytes, size)).arguments
    assert make_once(*made) == bytes(size)
