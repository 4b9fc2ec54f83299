"""An evaluation on local dask workers, of which one is killed every few seconds, against one process.

python benchmarks/many_machines.py --queries 400 --workers 2 --kill 10
"""

import argparse
import random
import threading
import time
from functools import partial
from typing import Any

import distributed

import kgverify as kv
from kgverify.evaluation.evaluate import evaluate
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.parts import plan_parts
from kgverify.runs.run import Run, reference_pipeline


def kill_workers(cluster: Any, seconds: float, stop: threading.Event, killed: list[float]) -> None:
    while not stop.wait(seconds):
        nannies = list(cluster.workers.values())
        process = random.choice(nannies).process
        if process is not None and process.process is not None:
            process.process._process.kill()
            killed.append(time.monotonic())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="countries")
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--corruptions", type=int, default=200)
    parser.add_argument("--part-size", type=int, default=800)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=float, default=10.0, help="seconds between kills; 0 for none")
    given = parser.parse_args()
    run = Run(kv.load_graph(given.graph), num_queries=given.queries, num_corruptions=given.corruptions)
    parts = plan_parts(run, "cpu", given.part_size).parts
    print(f"{sum(part.num_candidates for part in parts):,} candidates in {len(parts)} parts")
    alone = evaluate(run, reference_pipeline(run), part_size=given.part_size)
    print(f"1 process: {alone.seconds:.1f} s")
    options = {"distributed.scheduler.allowed-failures": 10}
    import dask

    killed: list[float] = []
    with (
        dask.config.set(options),
        distributed.LocalCluster(n_workers=given.workers, threads_per_worker=1, dashboard_address=None) as cluster,
        DaskWorkers(cluster.scheduler_address) as workers,
    ):
        stop = threading.Event()
        killer = threading.Thread(target=kill_workers, args=(cluster, given.kill, stop, killed))
        if given.kill:
            killer.start()
        found = evaluate(
            run,
            reference_pipeline(run),
            part_size=given.part_size,
            workers=workers,
            make=partial(reference_pipeline, run),
        )
        stop.set()
    same = all(
        all((a == b).all() for a, b in zip(alone.results[number], found.results[number], strict=True))
        for number in alone.results
    )
    share = alone.seconds / found.seconds / given.workers
    print(
        f"{given.workers} workers, {len(killed)} killed: {found.seconds:.1f} s, {share:.2f} of linear, "
        f"results {'identical' if same and len(found.results) == len(parts) else 'DIFFER'}"
    )


if __name__ == "__main__":
    main()
