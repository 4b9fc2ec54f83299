"""An evaluation by the reference on local dask workers, of which one is killed every few seconds, against one process.

    python benchmarks/many_machines.py --queries 400 --workers 2 --kill 10
    python benchmarks/many_machines.py --queries 400 --workers 8 --repeats 4 --beside

`--beside` runs the single process at the same time as the workers, on a machine with a core more than workers. Linear means
linear in the cores that the workers have, at most one for each.
"""

import argparse
import os
import random
import resource
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import dask
import distributed

import kgverify as kv
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.runs.fan_out import DaskWorkers
from kgverify.runs.run import Run, plan_parts, reference_pipeline

Results = dict[int, Any]

SETTINGS = {
    "distributed.scheduler.allowed-failures": 10,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
}
"""Those of examples/machines/machines.yaml that are not about certificates."""


def build_run(given: argparse.Namespace) -> Run:
    return Run(kv.load_graph(given.graph), num_queries=given.queries, num_corruptions=given.corruptions)


def evaluate_alone(given: argparse.Namespace) -> tuple[Results, float, float]:
    """Return the results of the parts, and the seconds they took in this process: of the clock, and of the processor."""
    run, began = build_run(given), time.process_time()
    found = evaluate(run, reference_pipeline(run), EvaluationSettings(part_size=given.part_size))
    assert found is not None
    return found.results, found.seconds, time.process_time() - began


def read_processor() -> float:
    """Return the seconds of the processor that this process and those that it ended have taken."""
    taken = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in taken)


def kill_workers(cluster: Any, seconds: float, stop: threading.Event, killed: list[str]) -> None:
    """Kill a worker every few seconds, until told to stop."""
    while not stop.wait(seconds):
        name, nanny = random.choice(list(cluster.workers.items()))
        if nanny.process is not None and nanny.process.process is not None:
            nanny.process.process._process.kill()
            killed.append(name)


def evaluate_on_workers(given: argparse.Namespace, num_workers: int) -> tuple[Results, float, float, int]:
    """Return the results of the parts, the seconds as `evaluate_alone` does, and how many workers were killed.

    The seconds of the processor include those to start and end all processes.
    """
    run, stop, began = build_run(given), threading.Event(), read_processor()
    killed: list[str] = []
    with (
        dask.config.set(SETTINGS),
        distributed.LocalCluster(
            n_workers=num_workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
        ) as cluster,
        DaskWorkers(cluster.scheduler_address) as workers,
    ):
        killer = threading.Thread(target=kill_workers, args=(cluster, given.kill, stop, killed))
        if given.kill:
            killer.start()
        try:
            make = partial(reference_pipeline, run)
            found = evaluate(run, make(), EvaluationSettings(part_size=given.part_size, workers=workers, make=make))
        finally:
            stop.set()
    assert found is not None
    return found.results, found.seconds, read_processor() - began, len(killed)


def are_identical(left: Results, right: Results) -> bool:
    """Return whether both have the same parts with the same results."""
    return left.keys() == right.keys() and all(
        all((a == b).all() for a, b in zip(left[number], right[number], strict=True)) for number in left
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="countries")
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--corruptions", type=int, default=200)
    parser.add_argument("--part-size", type=int, default=800)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--kill", type=float, default=10.0, help="seconds between kills; 0 for none")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--beside", action="store_true")
    given = parser.parse_args()
    parts = plan_parts(build_run(given), "cpu", given.part_size).parts
    print(f"{sum(part.num_candidates for part in parts):,} candidates in {len(parts)} parts", flush=True)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        single = pool.submit(evaluate_alone, given)
        if not given.beside:
            single.result()
        rows = [(number, *evaluate_on_workers(given, number)) for number in given.workers for _ in range(given.repeats)]
        expected, alone, processor = single.result()
    print(f"1 process: {alone:.1f} s, processor {processor:.1f} s")
    for number, results, seconds, taken, num_killed in rows:
        num_cores = min(number, len(os.sched_getaffinity(0)))
        print(
            f"{number} workers on {num_cores} cores, {num_killed} killed: {seconds:.1f} s, "
            f"{alone / seconds / num_cores:.2f} of linear, processor {taken:.1f} s ({processor / taken:.2f}), "
            f"results {'identical' if are_identical(results, expected) else 'DIFFER'}"
        )


if __name__ == "__main__":
    main()
