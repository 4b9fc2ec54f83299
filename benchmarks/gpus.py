"""One large evaluation by several GPUs of one host: the time, and whether the metrics are those of one GPU.

    torchrun --nproc-per-node 1 benchmarks/gpus.py --save /tmp/one
    torchrun --nproc-per-node 4 benchmarks/gpus.py --save /tmp/four
    torchrun --nproc-per-node 4 benchmarks/gpus.py --save /tmp/ranks --rank-only

Each prints its seconds, after all processes have started and warmed up, and a digest of all ranks and outcomes, which must not
depend on the number of GPUs.
"""

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
import torch
from workloads import LIMITS, PUBLISHED

from kgverify.engines.policy import make_two_tower
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.proving import join_process_group
from kgverify.graphs.load import load_graph
from kgverify.ranking.draw import ALL
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, describe_work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, required=True, help="an empty folder for the parts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--corruptions", type=int, default=900, help="a side; 900 of family are 10 million candidates")
    parser.add_argument("--rank-only", action="store_true", help="every rank, among all corruptions, and no more")
    parser.add_argument("--part-size", type=int, help="candidates of a part")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--tiny", action="store_true", help="two queries and a small policy, to see that it runs")
    options = parser.parse_args()
    team = join_process_group()
    graph = load_graph(options.graph)
    sizes = {"embedding": 16, "hidden": 32, "blocks": 1} if options.tiny else PUBLISHED
    policy = make_two_tower(graph.program, LIMITS, seed=0, **sizes)
    num_queries = 2 if options.tiny else len(graph.queries("test"))
    num_corruptions = ALL if options.rank_only else options.corruptions
    run = Run(graph, LIMITS, policy, num_queries=num_queries, num_corruptions=num_corruptions)
    work = describe_work(run, options.part_size, rank_only=options.rank_only)
    pipeline = evaluator_pipeline(run, device=options.device, work=work, precision=options.precision)
    # Processes start one after the other; the evaluation's time begins when all have.
    team.add("started", 1)
    while team.add("started", 0) < team.size:
        time.sleep(0.001)
    harvest = evaluate(
        run,
        pipeline,
        EvaluationSettings(folder=options.save, group=team, part_size=options.part_size, rank_only=options.rank_only),
    )
    if harvest is None:
        return
    digest = hashlib.sha256()
    results = [harvest.results[part.number] for part in harvest.plan.parts]
    columns = list(zip(*(result.rankings for result in results), strict=True))
    # With ranks alone, what is proved beyond them depends on the parts.
    columns += [] if options.rank_only else [tuple(result.num_outcomes for result in results)]
    for column in columns:
        digest.update(np.concatenate(column).tobytes())
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        f"{team.size} x {where}: {harvest.num_candidates:,} candidates in {harvest.seconds:.2f} s, after"
        f" {harvest.warm_up_seconds:.1f} s of warming up; digest {digest.hexdigest()[:16]}",
        flush=True,
    )


if __name__ == "__main__":
    main()
