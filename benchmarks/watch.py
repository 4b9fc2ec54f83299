"""The price of a watch, and the number of candidates until its first warning."""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

import kgverify as kv
from benchmarks import ROOT, make_parser, print_header, print_row, time_in_turn
from benchmarks.evaluator import PUBLISHED, draw
from kgverify.api.inputs import make_pipeline
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.prover.evaluator import Evaluator
from kgverify.runs.job import Proofs
from kgverify.runs.run import Run, describe_work
from kgverify.trace.model.columns import CandidateSet

sys.path.insert(0, str(ROOT / "examples" / "padded_engine"))
CLOCKS: Final = {"wall": time.perf_counter, "process": time.process_time}
SLOW: Final = f"{ROOT / 'examples' / 'padded_engine' / 'slow.py'}:Slow"


class Loop:
    """A stranger's evaluation on the padded engine: a batch of states, which takes new candidates where it ended.

    Each state continues with its shortest successor, for at most `depth` steps.
    """

    def __init__(
        self, run: Run, engine: Any, candidates: CandidateSet, device: str, batch: int, depth: int = 10
    ) -> None:
        self.device, self.batch, self.depth = torch.device(device), batch, depth
        self.width, self.encoding = run.limits.max_atoms, engine.encoding
        self.queries = engine.encode(candidates.atom).to(self.device)

    def run(self, expand: Callable[..., Any], num_calls: int) -> int:
        """Make some calls of `expand`; return the number of proofs."""
        with self.device:
            order = torch.arange(self.batch) % len(self.queries)
            states = torch.zeros(self.batch, self.width, 3, dtype=torch.int64)
            states[:, 0] = self.queries[order]
            excluded = self.queries[order][:, None]
            first = self.encoding.first_variable
            free = torch.full((self.batch,), first)
            depth = torch.zeros(self.batch, dtype=torch.int64)
            proofs = torch.zeros((), dtype=torch.int64)
            rows = torch.arange(self.batch)
            for _ in range(num_calls):
                successors, counts, following = expand(states, free, excluded)
                sizes = (successors[:, :, :, 0] != 0).sum(2)
                is_listed = torch.arange(successors.shape[1]) < counts[:, None]
                choice = torch.where(is_listed, sizes, 1 << 20).argmin(1)
                chosen = successors[rows, choice]
                is_proof = chosen[:, 0, 0] == self.encoding.true
                depth += 1
                ends = is_proof | (chosen[:, 0, 0] == self.encoding.false) | (depth >= self.depth)
                ends |= sizes[rows, choice] > self.width
                proofs += is_proof.sum()
                padded = torch.zeros_like(states)
                size = min(self.width, chosen.shape[1])
                padded[:, :size] = chosen[:, :size]
                order = torch.where(ends, (order + self.batch) % len(self.queries), order)
                fresh = torch.zeros_like(states)
                fresh[:, 0] = self.queries[order]
                states = torch.where(ends[:, None, None], fresh, padded)
                excluded = self.queries[order][:, None]
                free = torch.where(ends, first, following)
                depth = torch.where(ends, 0, depth)
            return int(proofs)


def compare_times(
    name: str, plain: Callable[[], Any], watched: Callable[[], Any], watch: Any, options: argparse.Namespace
) -> None:
    """Time both in turn, and print the slow-down. Both must give the same result."""
    assert_alike(plain(), watched())
    # The process of the judge starts once.
    began = time.monotonic()
    while not watch.summary.judged + watch.summary.idle and time.monotonic() < began + 20:
        time.sleep(0.1)
    seconds = time_in_turn({"plain": plain, "watched": watched}, options.repeats, clock=CLOCKS[options.clock])
    again = time_in_turn({"plain": plain, "again": plain}, options.repeats, clock=CLOCKS[options.clock])
    watch.close()
    ratios = sorted(b / a - 1 for a, b in zip(seconds["plain"], seconds["watched"], strict=True))
    noise = sorted(b / a - 1 for a, b in zip(again["plain"], again["again"], strict=True))
    s = watch.summary
    print_row(
        name,
        f"{statistics.median(seconds['plain']):.3f}",
        f"{100 * statistics.median(ratios):+.2f} %",
        f"{100 * float(np.quantile(ratios, 0.95)):+.2f} %",
        f"{100 * statistics.median(noise):+.2f} % / {100 * float(np.quantile(noise, 0.95)):+.2f} %",
        f"{s.seen:,}",
        f"{s.sampled:,}",
        f"{s.judged:,}",
        f"{s.dropped:,}",
        sum(s.divergences.values()),
    )


def assert_alike(first: Any, second: Any) -> None:
    if not all(np.array_equal(a, b) for a, b in zip(np.atleast_2d(first), np.atleast_2d(second), strict=True)):
        raise AssertionError("a watched engine gives another result")


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_evaluator(options: argparse.Namespace, device: str) -> None:
    graph = load_graph(options.graph)
    is_cuda = device == "cuda"
    policy = make_two_tower(graph.program, Limits(), seed=0, **(PUBLISHED if is_cuda else {}))
    num = options.candidates or (1_000_000 if is_cuda else 20_000)
    run = Run(graph, Limits(), policy, num_queries=max(1, num // 200), num_corruptions=100)
    while len(candidates := draw(run).take(slice(num)).query) < num and run.num_queries < len(run.triples):
        run = Run(graph, Limits(), policy, num_queries=2 * run.num_queries, num_corruptions=100)
    drawn = draw(run).take(slice(num))
    maker = Evaluator(device=device, precision="fp16" if is_cuda else "float32")
    engine: Any = make_pipeline(maker, run, work=describe_work(run)).engine
    plainly = engine.evaluate
    size = 1 << 17

    def evaluate(prove: Callable[..., Any]) -> Any:
        parts = [prove(drawn.take(slice(i, i + size))).results for i in range(0, len(candidates), size)]
        wait(device)
        return np.concatenate([part.outcome for part in parts])

    job = kv.Job(kv.Source(graph), proofs=Proofs(Limits(), policy))
    watched = kv.watch(engine, job=job, save=None, share=options.share)
    name = f"evaluator, {engine.info.mode}, {engine.info.precision}, {device}, {len(candidates):,} candidates"
    compare_times(name, lambda: evaluate(plainly), lambda: evaluate(watched.evaluate), watched, options)


def time_padded(options: argparse.Namespace, device: str) -> None:
    from fast import Fast

    graph = load_graph(options.graph)
    run = Run(graph, Limits(max_resolvents=options.resolvents), num_queries=200, num_corruptions=20)
    with torch.device(device):
        kind = type("Fast", (Fast,), {"device": device})
        engine = kind(run.graph.program, run.limits, SHORTEST)
    plainly = engine.expand
    batch = options.batch or (4096 if device == "cuda" else 128)
    loop = Loop(run, engine, draw(run), device, batch)
    with torch.device(device):
        watched = kv.watch(engine, reference=SLOW, save=None, share=options.share)

    def work(expand: Callable[..., Any]) -> int:
        proofs = loop.run(expand, options.calls)
        wait(device)
        return proofs

    name = f"padded engine, {device}, {options.calls} calls of {batch:,} states"
    compare_times(name, lambda: work(plainly), lambda: work(watched.expand), watched, options)


def run_watch(words: list[str]) -> None:
    """The slow-down of a watched engine, against the same engine without a watch; both run in turn.

        KGVERIFY_DATA=... python -m benchmarks watch
        KGVERIFY_DATA=... python -m benchmarks watch --device cpu

    The evaluator proves candidates of a graph; the padded engine of examples/ runs in a loop of its own. The column of noise
    compares the plain engine with itself.
    """
    parser = make_parser(run_watch)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto for both if there is a GPU")
    parser.add_argument("--graph", default="family")
    parser.add_argument("--candidates", type=int, help="of the evaluator; a million on a GPU if not given")
    parser.add_argument("--batch", type=int, help="states in a call of the padded engine")
    parser.add_argument("--calls", type=int, default=200, help="of the padded engine, in a run")
    parser.add_argument("--resolvents", type=int, default=64, help="the most successors of a state")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--share", type=float, default=1 / 4096)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="process: without that of the judge")
    parser.add_argument("--only", choices=("evaluator", "padded"))
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING)
    devices = [options.device]
    if options.device == "auto":
        devices = ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
    print_header(
        "engine", "plain, s", "slow-down, median", "p95", "noise, median / p95", "seen", "sampled", "judged", "dropped",
        "divergences",
    )  # fmt: skip
    for device in devices:
        for name, measure in (("evaluator", time_evaluator), ("padded", time_padded)):
            if options.only in (None, name):
                measure(options, device)
