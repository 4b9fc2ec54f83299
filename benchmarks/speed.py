"""The prover on CPU cores and on several GPUs, and the first command."""

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.evaluator import LIMITS, PUBLISHED, draw
from benchmarks.shared import make_parser, print_header, print_row
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.proving import join_process_group, prove_candidates
from kgverify.graphs.load import load_graph
from kgverify.prover.evaluator import Evaluator
from kgverify.ranking.draw import ALL
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, describe_work, reference_pipeline

COLUMNS = (
    "graph",
    "policy",
    "prover",
    "slots",
    "candidates",
    "s",
    "µs/candidate",
    "times the reference",
    "recorded: times",
    "log-probabilities differ by",
)
FORMATS = ("", "", "", "", ",", ".2f", ".0f", ".1f", ".1f", ".0e")


def run_cpu(words: list[str]) -> None:
    """The evaluators on this machine's CPU cores against the reference, per candidate, as a Markdown table.

        KGVERIFY_DATA=... python -m benchmarks cpu --graph countries family

    Each evaluator proves all candidates, with every step recorded and without; the reference, on one core, some of
    them. What the evaluator gives for these is compared.
    """
    parser = make_parser(run_cpu)
    parser.add_argument("--graph", nargs="+", default=["countries", "family"])
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--slots", type=int, nargs="+", default=[256], help="of the modes that have slots")
    parser.add_argument(
        "--sample", type=int, default=16, help="one candidate of this number is proved by the reference"
    )
    parser.add_argument("--modes", nargs="+", default=["native", "default"])
    options = parser.parse_args(words)
    print_header(*COLUMNS)

    def show(*cells: object) -> None:
        print_row(*map(format, cells, FORMATS))

    for name in options.graph:
        graph = load_graph(name)
        for label, policy in (
            ("`shortest`", SHORTEST),
            ("`two_tower`, 2 × 64", make_two_tower(graph.program, LIMITS, seed=0)),
            ("`two_tower`, 8 × 256", make_two_tower(graph.program, LIMITS, seed=0, **PUBLISHED)),
        ):
            run = Run(graph, LIMITS, policy, num_queries=options.queries, num_corruptions=50)
            candidates = draw(run)
            num = len(candidates.query)
            some = np.arange(0, num, options.sample)
            reference = reference_pipeline(run).engine
            began = time.perf_counter()
            expected = reference.prove(candidates.take(some)).candidates
            each = (time.perf_counter() - began) / len(some)
            show(name, label, "reference", "", len(some), each * len(some), each * 1e6, 1, 1, 0)
            for mode, slots in ((mode, n) for mode in options.modes for n in options.slots):
                engine = Evaluator(mode=mode, device="cpu", slots=slots)(graph.program, LIMITS, policy)
                prove_candidates(engine, candidates.take(some))
                engine.prove(candidates.take(some))
                began = time.perf_counter()
                results = prove_candidates(engine, candidates)[0]
                seconds = time.perf_counter() - began
                engine.prove(candidates)
                recorded = time.perf_counter() - began - seconds
                assert (results.outcome[some] == expected.outcome).all(), "outcomes differ"
                gap = float(np.abs(results.log_probability[some] - expected.log_probability).max())
                times = [each * num / taken for taken in (seconds, recorded)]
                size = slots if engine.info.layout else ""
                show(name, label, engine.info.mode, size, num, seconds, seconds / num * 1e6, *times, gap)


def run_gpus(words: list[str]) -> None:
    """One large evaluation by several GPUs of one host: the time, and whether the metrics are those of one GPU.

        torchrun --nproc-per-node 1 -m benchmarks gpus --save /tmp/one
        torchrun --nproc-per-node 4 -m benchmarks gpus --save /tmp/four
        torchrun --nproc-per-node 4 -m benchmarks gpus --save /tmp/ranks --rank-only

    Each prints its seconds, after all processes have started and warmed up, and a digest of all ranks and outcomes,
    which must not depend on the number of GPUs.
    """
    parser = make_parser(run_gpus)
    parser.add_argument("--save", type=Path, required=True, help="an empty folder for the parts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--corruptions", type=int, default=900, help="a side; 900 of family are 10 million candidates")
    parser.add_argument("--rank-only", action="store_true", help="every rank, among all corruptions, and no more")
    parser.add_argument("--part-size", type=int, help="candidates of a part")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--tiny", action="store_true", help="two queries and a small policy, to see that it runs")
    options = parser.parse_args(words)
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


FIRST_COMMAND = [sys.executable, "-m", "kgverify", "diff", "--queries", "20"]
NUM_WARM = 3


def time_command(cache: str) -> float:
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, KGVERIFY_CACHE=cache)
    began = time.perf_counter()
    subprocess.run(FIRST_COMMAND, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run_first_run(words: list[str]) -> None:
    """The time of the first command: cold (nothing compiled before) and warm, whole processes.

        python -m benchmarks first-run

    Targets on 2 CPU cores: cold under 15 s, warm under 4 s.
    """
    parser = make_parser(run_first_run)
    parser.parse_args(words)
    with tempfile.TemporaryDirectory() as cache:
        print(f"cold {time_command(cache):.1f} s", flush=True)
        warm = [time_command(cache) for _ in range(NUM_WARM)]
        print(f"warm {statistics.median(warm):.1f} s (median of {NUM_WARM})")
