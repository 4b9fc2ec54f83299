"""The prover's speed: against the published design on a GPU, on several GPUs, and at first."""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import torch

from benchmarks import make_parser, print_header, print_row, time_in_turn
from benchmarks.baseline import PaddedEvaluator
from benchmarks.speed import PUBLISHED, draw
from benchmarks.training import write_policy
from kgverify.engines.policy import make_two_tower
from kgverify.engines.protocol import Results
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.prover.evaluator import Evaluator
from kgverify.prover.execution.device import resolve_device
from kgverify.prover.program.least_model import LeastModel
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet

Result = TypeVar("Result")

LIMITS: Final = Limits()


def run_kgverify(*words: object, launcher: Sequence[str] = (sys.executable,), folder: str) -> Any:
    """Run a command of kgverify, and return the JSON that it writes."""
    path = Path(folder, "result.json")
    command = [*launcher, "-m", "kgverify", *map(str, words), "--json", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return msgspec.json.decode(path.read_bytes())


def write_published(graph: str, folder: str) -> Path:
    """Write a policy of the published sizes for a graph."""
    path = Path(folder, f"{graph}.safetensors")
    write_policy(make_two_tower(load_graph(graph).program, LIMITS, seed=0, **PUBLISHED), path)
    return path


# The published design


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement."""

    device: str
    mode: str
    queries: int
    corruptions: int
    repeats: int
    baseline_slots: tuple[int, ...]

    @property
    def is_cuda(self) -> bool:
        """True if the device is a GPU, which has to be waited for."""
        return self.device.startswith("cuda")

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the policy's products."""
        return ("float32", "bf16", "bf16x3", "fp16") if self.is_cuda else ("float32",)

    def load(self, graph: str) -> Run:
        """Return a run with the published sizes of the policy: 8 blocks of 256, embeddings of 250."""
        loaded = load_graph(graph)
        policy = make_two_tower(loaded.program, LIMITS, seed=0, **PUBLISHED)
        return Run(loaded, LIMITS, policy, num_queries=self.queries, num_corruptions=self.corruptions)

    def build(self, run: Run, precision: str) -> Any:
        """Build our engine, as a user gets it."""
        make = Evaluator(mode=self.mode, device=self.device, precision=precision)
        return make(run.graph.program, run.limits, run.policy)

    def build_baseline(self, run: Run, num: int, slots: int) -> PaddedEvaluator:
        """Build the published design."""
        settings = {"slots": slots, "capacity": num, "mode": self.mode, "device": self.device}
        return PaddedEvaluator(run.graph.program, run.limits, run.policy, **settings)

    def measure(self, work: Callable[[], Result], repeats: int) -> tuple[Result, float]:
        """Return the result of the work and its least time in seconds, waiting for the device. Warm up before."""
        results: list[Result] = []

        def run() -> None:
            results.append(work())
            self.wait()

        self.wait()
        seconds = time_in_turn({"": run}, repeats)[""]
        return results[-1], min(seconds)

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def forget(self) -> None:
        """Free the memory of unused engines, and reset the peak of memory."""
        gc.collect()
        torch._dynamo.reset()
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def add_row(self, name: str, what: str, num: int = 0, seconds: float = 0.0, note: str = "") -> None:
        """Print a row; a number that is 0 is left out."""
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.is_cuda and seconds else 0.0
        print_row(
            name,
            what,
            f"{num:,}" if num else "",
            f"{seconds:.4g}" if seconds else "",
            f"{seconds / num * 1e6:.3g}" if num and seconds else "",
            f"{peak:.2f}" if peak else "",
            note,
        )


def count_outside(bench: Bench, run: Run, candidates: CandidateSet, results: Results) -> int:
    """Count the proofs of what does not follow from the program."""
    model = LeastModel(run.graph.program, device=bench.device)
    return int((~model.contains(candidates.atom[results.outcome == Outcome.PROVED])).sum())


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe the difference of two `Results`."""
    differs = expected.outcome != actual.outcome
    gap = np.abs(expected.log_probability - actual.log_probability)[~differs].max(initial=0.0)
    return f"{int(differs.sum())} outcomes differ, log-probabilities by up to {gap:.1e} where they do not"


def measure_agreement(bench: Bench, graph: str) -> None:
    """Compare every step with the reference by `kgverify diff`, with `shortest` and in every precision of the policy."""
    queries = min(50, bench.queries)
    with tempfile.TemporaryDirectory() as folder:
        published = write_published(graph, folder)
        for policy, precision in (("shortest", "float32"), *((published, each) for each in bench.precisions)):
            words = ["--graph", graph, "--queries", queries, "--corruptions", bench.corruptions, "--policy", policy]
            words += ["--device", bench.device, "--mode", bench.mode, "--tune", f"precision={precision}"]
            found = run_kgverify("diff", *words, "--minimum", "none", folder=folder)
            covered, name = found["coverage"], policy if isinstance(policy, str) else "two_tower"
            note = f"{found['verdict']}: {covered['steps']:,} steps, {len(found['near_ties'])} near-ties"
            bench.add_row(graph, f"reference against {name}, {precision}", covered["candidates"], note=note)


def measure_ours(bench: Bench, run: Run, candidates: CandidateSet) -> tuple[dict[str, float], Results]:
    """Measure our engine in every precision; return the seconds, and the results in float32."""
    num, name = len(candidates.query), run.graph.name
    ours: dict[str, float] = {}
    expected: Results | None = None
    for precision in bench.precisions:
        bench.forget()
        engine = bench.build(run, precision)
        began = time.perf_counter()
        engine.evaluate(candidates)
        note = f"first run {time.perf_counter() - began:.1f} s; "
        evaluation, ours[precision] = bench.measure(partial(engine.evaluate, candidates), bench.repeats)
        if expected is None:
            expected = evaluation.results
            outside = count_outside(bench, run, candidates, expected)
            proved = int((expected.outcome == Outcome.PROVED).sum())
            note += f"{proved:,} proved, {outside} of them outside of the least model"
        else:
            note += f"{describe_difference(expected, evaluation.results)}; "
            note += f"{evaluation.num_rescored:,} choices made again"
        bench.add_row(name, f"ours, {precision}", num, ours[precision], note)
        del engine
    assert expected is not None
    return ours, expected


def measure_against_baseline(bench: Bench, run: Run) -> None:
    """Measure ours in every precision, and the baseline at several numbers of slots."""
    candidates = draw(run)
    num, name = len(candidates.query), run.graph.name
    ours, expected = measure_ours(bench, run, candidates)
    theirs: dict[str, float] = {}

    def measure_baseline(what: str, slots: int) -> None:
        bench.forget()
        evaluator = bench.build_baseline(run, num, slots)
        results = evaluator.evaluate(candidates)
        _, theirs[what] = bench.measure(partial(evaluator.evaluate, candidates), min(2, bench.repeats))
        note = f"{describe_difference(expected, results)}; {evaluator.num_steps} steps"
        bench.add_row(name, what, num, theirs[what], note)

    for slots in bench.baseline_slots:
        measure_baseline(f"baseline, {slots} slots", slots)
    best = min(theirs, key=theirs.__getitem__)
    if bench.is_cuda:
        torch.set_float32_matmul_precision("high")
        measure_baseline(f"{best}, tf32", bench.baseline_slots[list(theirs).index(best)])
        torch.set_float32_matmul_precision("highest")
    for precision, seconds in ours.items():
        bench.add_row(name, f"ratio, {precision}", note=f"{theirs[best] / seconds:.1f} x the baseline at its best")


def run_evaluator(words: list[str]) -> None:
    """Compare the evaluator with the published design on one GPU: first whether it is right, then how fast it is.

        python -m benchmarks evaluator --device cuda
        python -m benchmarks evaluator --device cpu --queries 2 --corruptions 3 --large-graph family

    Both sides of a ratio are measured in the same run, on the same candidates and weights, each warmed up, the best of some
    repeats.
    """
    parser = make_parser(run_evaluator)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mode", default="auto", help="as of the engine")
    parser.add_argument("--only", choices=("agreement", "speed"), help="one of the two")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-slots", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--graph", default="family")
    parser.add_argument("--large-graph", default="wn18rr", help="of the agreement alone")
    parser.add_argument("--queries", type=int, default=100, help="at most 50 of them for the agreement")
    parser.add_argument("--corruptions", type=int, default=100, help="a side")
    options = parser.parse_args(words)
    size, slots = (options.queries, options.corruptions), tuple(options.baseline_slots)
    bench = Bench(resolve_device(options.device).type, options.mode, *size, options.repeats, slots)
    print_header("set", "what", "candidates", "seconds", "µs/candidate", "peak GiB", "note")
    if options.only != "speed":
        for name in (options.graph, options.large_graph):
            measure_agreement(bench, name)
    if options.only != "agreement":
        measure_against_baseline(bench, bench.load(options.graph))


# Several GPUs


def run_gpus(words: list[str]) -> None:
    """One large `kgverify evaluate` by several GPUs of one host: the time, and whether the metrics are those of one GPU.

        python -m benchmarks gpus --processes 1 4
        python -m benchmarks gpus --processes 1 2 --device cpu --precision float32 --queries 2 --corruptions 5

    `torchrun` starts a process for each GPU. The time begins when all processes have warmed up. The metrics
    must be equal for every number of GPUs.
    """
    parser = make_parser(run_gpus)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--queries", type=int, help="all if not given")
    parser.add_argument("--corruptions", default="all", help="a side")
    parser.add_argument("--precision", default="fp16")
    options = parser.parse_args(words)
    queries = options.queries or len(load_graph(options.graph).queries("test"))
    print_header(
        "processes", "candidates, those left out included", "s", "warm-up, s", "MRR", "metrics as with the first"
    )
    first: dict[str, float] = {}
    for num in options.processes:
        with tempfile.TemporaryDirectory() as folder:
            words = [
                "--graph",
                options.graph,
                "--queries",
                queries,
                "--corruptions",
                options.corruptions,
                "--rank-only",
            ]
            words += ["--policy", write_published(options.graph, folder), "--device", options.device]
            words += ["--tune", f"precision={options.precision}", "--check", 0, "--minimum", "none"]
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num)]
            found = run_kgverify("evaluate", *words, "--save", Path(folder, "save"), launcher=launcher, folder=folder)
        first = first or found["metrics"]
        mrr = f"{found['metrics']['both.realistic.mean_reciprocal_rank']:.6f}"
        seconds = f"{found['seconds']:.2f}", f"{found['warm_up_seconds']:.1f}"
        print_row(
            num, f"{found['num_candidates']:,}", *seconds, mrr, "equal" if found["metrics"] == first else "DIFFERENT"
        )


# The first command


NUM_WARM = 3


def time_command(cache: str) -> float:
    command = [sys.executable, "-m", "kgverify", "diff", "--queries", "20"]
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "KGVERIFY_CACHE": cache}
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def run_first_run(words: list[str]) -> None:
    """The time of the first command: cold (nothing compiled before) and warm, whole processes.

    python -m benchmarks first-run
    """
    parser = make_parser(run_first_run)
    parser.parse_args(words)
    with tempfile.TemporaryDirectory() as cache:
        print_header("`kgverify diff --queries 20`", "s")
        print_row("cold", f"{time_command(cache):.1f}")
        warm = [time_command(cache) for _ in range(NUM_WARM)]
        print_row(f"warm, median of {NUM_WARM}", f"{statistics.median(warm):.1f}")
