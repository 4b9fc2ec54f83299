"""The measurements for `scale_model.py`: the costs of a part on this machine, and evaluations that the model has to predict."""

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from scale_model import Costs, Load, simulate

import kgverify as kv
from kgverify.evaluation import evaluate as module
from kgverify.evaluation.parts import PartResult, hash_result, join_results, write_part
from kgverify.evaluation.proving import FullWork, do_part
from kgverify.files.writing import write_file
from kgverify.runs.fan_out import DaskWorkers
from kgverify.runs.run import Part, Run, plan_parts, reference_pipeline

NUM_EMPTY = 400
NUM_STORED = 50
PART_SIZE = 810
TIMES = "SCALE_MEASUREMENT_TIMES"
"""The environment variable that names the folder for the times of parts."""


def do_timed_part(make: bytes, name: str, part: Part) -> PartResult:
    """Do a part on a worker, and write down the seconds that it took."""
    began = time.perf_counter()
    result = do_part(make, name, part)
    write_file(Path(os.environ[TIMES]) / str(part.number), str(time.perf_counter() - began))
    return result


def make_bytes(num: int) -> bytes:
    """Return some bytes, on a worker that has imported what a part needs."""
    return os.urandom(num)


@contextmanager
def started(*words: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program of dask in a process of its own, and end it."""
    here = str(Path(__file__).parent)
    environment = os.environ | {TIMES: str(folder), "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def scheduler_in(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Start a scheduler; yield its process and its address."""
    file = folder / "scheduler.json"
    words = ("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    with started(*words, folder=folder) as process:
        while not file.exists() or not file.read_text().strip().endswith("}"):
            time.sleep(0.05)
        yield psutil.Process(process.pid), str(json.loads(file.read_text())["address"])
    file.unlink(missing_ok=True)


def worker_of(address: str, folder: Path) -> Any:
    words = ("worker", address, "--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard")
    return started(*words, "--local-directory", str(folder), folder=folder)


def wait_for_workers(workers: DaskWorkers, num: int) -> None:
    workers._client.wait_for_workers(num)


class Calls(NamedTuple):
    """The costs of empty calls; the first three in seconds of CPU time. begin: of the first call of a worker."""

    send: float
    fetch: float
    schedule: float
    restart: float
    begin: float


def measure_calls(folder: Path, num_bytes: int) -> Calls:
    """Measure calls whose results have a number of bytes."""
    with scheduler_in(folder) as (scheduler, address), DaskWorkers(address) as workers:
        began = time.perf_counter()
        with worker_of(address, folder):
            wait_for_workers(workers, 1)
            restart = time.perf_counter() - began
            began = time.perf_counter()
            workers.submit(make_bytes, num_bytes).result()
            begin = time.perf_counter() - began
            before, sending = sum(scheduler.cpu_times()[:2]), 0.0
            own = time.process_time()
            left = NUM_EMPTY
            under_way: set[Future[bytes]] = set()
            while left or under_way:
                while left and len(under_way) < 8:
                    began = time.thread_time()
                    under_way.add(workers.submit(make_bytes, num_bytes))
                    sending += time.thread_time() - began
                    left -= 1
                under_way -= wait(under_way, timeout=1, return_when=FIRST_COMPLETED).done
            own = time.process_time() - own
            used = sum(scheduler.cpu_times()[:2]) - before
    return Calls(sending / NUM_EMPTY, (own - sending) / NUM_EMPTY, used / NUM_EMPTY, restart, begin)


def take_median(work: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of some calls."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(seconds: float, workers: Sequence[int]) -> Costs:
    """Measure the costs, and print the predicted and the actual seconds of evaluations by some numbers of workers."""
    run = Run(kv.load_graph("family"), num_queries=2, num_corruptions=200)
    work = FullWork(run, reference_pipeline(run))
    part = plan_parts(run, "cpu", PART_SIZE).parts[0]
    began = time.perf_counter()
    result = work.summarize(part, work.prove(part, work.draw(part), lambda num: None))
    per_part = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / part.name
        store = take_median(lambda: write_part(path, result, ""), NUM_STORED)
        many = [result] * NUM_STORED
        merge = take_median(lambda: (join_results(many), [hash_result(each, "") for each in many]), 5) / NUM_STORED
        path.unlink()
        num_bytes = len(pickle.dumps(result))
        calls = measure_calls(folder, num_bytes)
        costs = Costs(
            calls.send, calls.schedule, calls.fetch, store, 5e-4, calls.begin, calls.restart, merge, num_bytes
        )
        num_queries = max(8, round(2 * seconds / per_part))
        for num in workers:
            check_prediction(costs, num_queries, num, folder)
    return costs


def check_prediction(costs: Costs, num_queries: int, num_workers: int, folder: Path) -> None:
    """Compare an evaluation with its prediction from the seconds that its parts took on their workers."""
    run = Run(kv.load_graph("family"), num_queries=num_queries, num_corruptions=200)
    parts = plan_parts(run, "cpu", PART_SIZE).parts
    times = folder / f"times-{num_workers}"
    times.mkdir()
    module.do_part = do_timed_part  # type: ignore[attr-defined]
    # The model knows whole parts alone.
    num_cut, module.PARTS_CUT = module.PARTS_CUT, 0  # type: ignore[misc]
    try:
        with scheduler_in(times) as (_, address), DaskWorkers(address) as workers, ExitStack() as stack:
            for _ in range(num_workers):
                stack.enter_context(worker_of(address, times))
            wait_for_workers(workers, num_workers)
            pipeline, make = reference_pipeline(run), partial(reference_pipeline, run)
            settings = module.EvaluationSettings(PART_SIZE, folder=times / "parts", workers=workers, make=make)
            found = module.evaluate(run, pipeline, settings)
    finally:
        module.do_part = do_part  # type: ignore[attr-defined]
        module.PARTS_CUT = num_cut  # type: ignore[misc]
    taken = [float((times / str(part.number)).read_text()) for part in parts]
    predicted = simulate(costs, Load(taken, num_workers))
    print(
        f"{num_workers} workers, {len(parts)} parts of {statistics.median(taken):.3f} s: {found.seconds:.2f} s, predicted"
        f" {predicted.seconds:.2f} s ({predicted.seconds / found.seconds - 1:+.1%}); the ideal is"
        f" {sum(taken) / num_workers:.2f} s",
        flush=True,
    )
