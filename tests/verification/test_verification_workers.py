"""The reference's work over threads and processes: the same traces, in the same order; and the processes themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from run_engines import assert_same_columns, countries_run

from kgverify import Columns, Run, UserError
from kgverify.dialects import ReferenceEngine
from kgverify.engines.protocol import positions_of, take_position
from kgverify.runs.fan_out import CHUNKS_READ, FannedOut, reference_over
from kgverify.runs.pool import Here, Processes, WorkerLost, make_once, send_maker
from kgverify.runs.run import reference_pipeline
from kgverify.trace.model.columns import CandidateSet, concatenate


def maker(run: Run, engine: type[ReferenceEngine] = ReferenceEngine) -> Callable[[], ReferenceEngine]:
    return partial(engine, run.graph.program, run.limits, run.policy)


class RefusesAll(ReferenceEngine):
    def prove(self, *_: object) -> Columns:
        raise UserError("proves nothing", where="here", fix="ask another")


class EndsItsProcess(ReferenceEngine):
    def prove(self, *_: object) -> Columns:
        os._exit(1)


class Inline(Here):
    """Does at once what is submitted, and counts the candidates of each call."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future = super().submit(work, *arguments)
        self.sizes.append(len(future.result().candidates.query))
        return future

    def count(self) -> int:
        return 3


Proved = tuple[Run, CandidateSet, Columns]


@pytest.fixture(scope="module")
def proved() -> Proved:
    run = countries_run("two_tower")
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw_for(run)
    return run, candidates, pipeline.engine.prove(candidates)


def test_processes_give_the_same_columns_and_the_probes_of_the_engine(proved: Proved) -> None:
    run, candidates, columns = proved
    with Processes(2) as executor:
        engine = FannedOut(maker(run), executor, chunk=3)
        for _ in range(2):
            assert_same_columns(columns, engine.prove(candidates))
    reference, position = reference_pipeline(run).engine, take_position(positions_of(columns), 4)
    assert (engine.info, engine.probe(position)) == (reference.info, reference.probe(position))


@pytest.mark.parametrize("chunk", [1, 5, 22, 100])
def test_every_way_to_prove_gives_the_columns_of_the_engine_in_chunks(proved: Proved, chunk: int) -> None:
    run, candidates, columns = proved
    executor, done = Inline(), []
    engine = FannedOut(maker(run), executor, chunk=chunk)
    engine.warm_up()
    assert executor.sizes == [0, 0, 0]

    def sizes(num: int) -> list[int]:
        return [chunk] * (num // chunk) + [num % chunk] * (num % chunk > 0)

    executor.sizes.clear()
    assert_same_columns(columns, engine.prove(candidates, done.append))
    assert (sorted(executor.sizes), sum(done)) == (sorted(sizes(22)), 22)
    executor.sizes.clear()
    positions = positions_of(columns)
    assert_same_columns(ReferenceEngine.step(maker(run)(), positions), engine.step(positions))
    assert executor.sizes == sizes(len(columns.steps.depth))
    parts = [each.read()[0] for each in engine.record(candidates)]
    assert len(parts) == -(-len(sizes(22)) // CHUNKS_READ)
    assert_same_columns(columns, concatenate(parts))
    none = candidates.take(slice(0, 0))
    assert_same_columns(reference_pipeline(run).engine.prove(none), engine.prove(none))


def test_an_empty_chunk_is_refused_and_one_job_is_this_process() -> None:
    run = countries_run()
    with pytest.raises(ValueError, match="found 0"):
        FannedOut(maker(run), Inline(), chunk=0)
    with reference_over(run) as pipeline:
        assert isinstance(pipeline.engine, ReferenceEngine)


def test_the_error_of_a_worker_is_reported_in_full_and_so_is_its_end(proved: Proved) -> None:
    run, candidates, _ = proved
    with Processes(1) as executor:
        with pytest.raises(UserError) as caught:
            FannedOut(maker(run, RefusesAll), executor).prove(candidates)
        assert (caught.value.message, caught.value.where, caught.value.fix) == ("proves nothing", "here", "ask another")
        with pytest.raises(UserError, match="died before its work was done"):
            FannedOut(maker(run, EndsItsProcess), executor).prove(candidates)


def is_ended(pid: int) -> bool:
    """Return whether a process ends within seconds; one that has ended and was not waited for has."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_workers_end_when_the_process_that_started_them_is_killed() -> None:
    code = (
        "import os, time\n"
        "from kgverify.runs.pool import Processes\n"
        "if __name__ == '__main__':\n"
        "    with Processes(1) as executor:\n"
        "        print(executor.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert is_ended(worker)


def test_an_uncaught_ctrl_c_ends_workers_at_once() -> None:
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Processes(1) as executor:  # noqa: PT012 - what runs is what is ended
        worker = executor.submit(os.getpid).result()
        executor.submit(time.sleep, 60)
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 30
    assert is_ended(worker)


def _fail(content: bytes, name: str) -> None:
    raise ValueError(len(content) > 0)


def test_a_process_has_one_thread_and_receives_what_calls_share_once_and_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with Processes(1) as workers:
        assert workers.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
        assert dict(os.environ) == before
        three, four, five = (send_maker(partial(int, text), workers) for text in ("3", "4", "5"))
        sizes = [workers.submit(len, five[0]).result() for _ in range(2)]
        assert sizes[0] > sizes[1] == 0
        for made, value in ((three, 3), (three, 3), (four, 4), (three, 3)):
            assert workers.submit(make_once, *made).result() == value
        for has_content in ("False", "True"):
            with pytest.raises(ValueError, match=has_content):
                workers.submit(_fail, *three).result()
        assert workers.submit(make_once, *four).result() == 4
        with pytest.raises(WorkerLost):
            workers.submit(os._exit, 3).result()
        assert workers.submit(make_once, *four).result() == 4
