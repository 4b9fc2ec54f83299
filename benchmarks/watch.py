"""The price of a watch, and the number of candidates until its first warning."""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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


class InTurn:
    """A function that passes its calls on to several sides in turn, a block of them to each, and adds up the time of each.

    The time includes all that the caller does between the calls of a block. Drift of the clock and neighbours meet all sides.
    """

    def __init__(
        self, sides: Sequence[Callable[..., Any]], block: int, device: str, clock: Callable[[], float]
    ) -> None:
        self.sides, self.block, self.device, self.clock = sides, block, device, clock
        self.seconds, self.num_calls, self.began = [0.0] * len(sides), 0, 0.0

    def __call__(self, *given: Any) -> Any:
        if not self.num_calls % self.block:
            self.end_block()
        side = self.sides[self.num_calls // self.block % len(self.sides)]
        self.num_calls += 1
        return side(*given)

    def end_block(self) -> None:
        """Add the time of the last block to its side."""
        wait(self.device)
        now = self.clock()
        if self.num_calls:
            self.seconds[(self.num_calls - 1) // self.block % len(self.sides)] += now - self.began
        self.began = now


def print_times(name: str, seconds: Sequence[Sequence[float]], summary: kv.WatchSummary) -> None:
    """Print the slow-down of each run. seconds: of the plain engine, of the plain engine again, and of the watched one."""
    cells = []
    for other in (seconds[2], seconds[1]):
        ratios = [b / a - 1 for a, b in zip(seconds[0], other, strict=True)]
        cells += [f"{100 * statistics.median(ratios):+.2f} %", f"{100 * float(np.quantile(ratios, 0.95)):+.2f} %"]
    counts = (f"{each:,}" for each in (summary.seen, summary.sampled, summary.judged, summary.dropped))
    num = sum(summary.divergences.values())
    print_row(name, f"{statistics.median(seconds[0]):.3f}", *cells[:2], " / ".join(cells[2:]), *counts, num)


def wait_for_judge(watched: Any) -> None:
    """Wait until the judge's process has started, for at most some seconds."""
    began = time.monotonic()
    while not watched.summary.judged + watched.summary.idle and time.monotonic() < began + 20:
        time.sleep(0.1)


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
    assert_alike(evaluate(plainly), evaluate(watched.evaluate))
    wait_for_judge(watched)
    sides = {"plain": partial(evaluate, plainly), "again": partial(evaluate, plainly)}
    found = time_in_turn(
        {**sides, "watched": partial(evaluate, watched.evaluate)}, options.repeats, clock=CLOCKS[options.clock]
    )
    watched.close()
    name = f"evaluator, {engine.info.mode}, {engine.info.precision}, {device}, {len(candidates):,} candidates"
    print_times(name, list(found.values()), watched.summary)


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

    calls = 3 * options.block * max(1, options.calls // (3 * options.block))
    assert_alike(loop.run(plainly, options.block), loop.run(watched.expand, options.block))
    seconds: list[list[float]] = [[], [], []]
    for number in range(-1, options.repeats):
        in_turn = InTurn((plainly, plainly, watched.expand), options.block, device, CLOCKS[options.clock])
        loop.run(in_turn, calls)
        in_turn.end_block()
        if number < 0:
            wait_for_judge(watched)
        for side, sums in zip(seconds if number >= 0 else (), in_turn.seconds, strict=number >= 0):
            side.append(sums)
    watched.close()
    name = f"padded engine, {device}, {calls // 3} calls of {batch:,} states to each, in blocks of {options.block}"
    print_times(name, seconds, watched.summary)


def plant_faults() -> dict[str, type]:
    """Return engines with a fault each, which shows in some steps only."""
    from fast import Fast
    from prover import PaddedProver

    class CappedProver(PaddedProver):  # type: ignore[misc, no-any-unimported]
        def match_facts(self, goals: Any, excluded: Any) -> Any:
            state, fact = super().match_facts(goals, excluded)
            predicate = self.facts[:, 0].contiguous()
            is_kept = (torch.arange(len(predicate)) - torch.searchsorted(predicate, predicate))[fact] < 50
            return state[is_kept], fact[is_kept]

    class OverflowingProver(PaddedProver):  # type: ignore[misc, no-any-unimported]
        def close(self, num: int, state: Any, atoms: Any) -> Any:
            overflows = torch.bincount(state, minlength=num) > self.cap
            return super().close(num, state, torch.where(overflows[state][:, None, None], 0, atoms))

    class StaleBuffer(Fast):  # type: ignore[misc, no-any-unimported]
        """Every 13th call returns rows of the previous one, where they fit."""

        calls, buffer = 0, None

        def expand(self, *given: Any) -> Any:
            result = super().expand(*given)
            self.calls += 1
            before, self.buffer = self.buffer, result
            if self.calls % 13 or before is None:
                return result
            return tuple(torch.cat((old[:8], new[8:])) if old.shape == new.shape else new
                         for old, new in zip(before, result, strict=True))  # fmt: skip

    class RecycledSlot(Fast):  # type: ignore[misc, no-any-unimported]
        """A slot that takes a new candidate keeps the second atom of the last one."""

        before = None

        def expand(self, states: Any, free: Any, excluded: Any) -> Any:
            given = states.clone()
            if self.before is not None and self.before[1].shape == excluded.shape:
                is_new = (excluded != self.before[1]).flatten(1).any(1)
                given[is_new, 1] = self.before[0][is_new, 1]
            self.before = states.clone(), excluded.clone()
            return super().expand(given, free, excluded)

    return {
        "the cap of 50 facts": type("Capped", (Fast,), {"make": CappedProver}),
        "the overflow read as a proof": type("Overflowing", (Fast,), {"make": OverflowingProver}),
        "a stale buffer": StaleBuffer,
        "a recycled slot": RecycledSlot,
    }


def time_detection(options: argparse.Namespace) -> None:
    """Print the number of steps until the first step that is wrong is sampled, over some seeds, and by sampling theory."""
    graph = load_graph("countries")
    run = Run(graph, Limits(max_resolvents=options.cap), num_queries=24, num_corruptions=50)
    drawn = draw(run)
    print_header(
        "fault", "wrong steps", "share", "steps until the first warning, median", "quartiles", "by theory", "ratio"
    )
    for name, kind in plant_faults().items():

        def watch_loop(seed: int, share: float, calls: int, raises: bool, kind: type = kind) -> tuple[Any, Any]:
            found: list[Any] = []
            engine = kind(run.graph.program, run.limits, SHORTEST)
            loop = Loop(run, engine, drawn.take(np.random.default_rng(seed).permutation(len(drawn.query))), "cpu", 64)
            given = {"share": share, "seed": seed, "raises": raises, "save": None, "on_divergence": found.append}
            watched = kv.watch(engine, reference=SLOW, **given)
            with suppress(AssertionError), watched:
                loop.run(watched.expand, calls)
            return watched.summary, min((each.call for each in found), default=calls)

        summary, _ = watch_loop(0, 1 / 16, 400, False)
        rate = sum(summary.divergences.values()) / max(1, summary.judged)
        share = min(1 / 512, max(1 / 4096, 1 / (20_000 * max(rate, 1e-9))))
        theory = 1 / (rate * share) if rate else float("inf")
        found = [64 * watch_loop(seed, share, 20_000, True)[1] for seed in range(1, 1 + options.seeds)]
        low, median, high = np.quantile(found, (0.25, 0.5, 0.75))
        quartiles = f"{low:,.0f} to {high:,.0f}"
        print_row(
            name, f"{rate:.3%}", f"{share:.3g}", f"{median:,.0f}", quartiles, f"{theory:,.0f}", f"{median / theory:.2f}"
        )


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
    parser.add_argument("--block", type=int, default=7, help="calls of the padded engine after which the sides change")
    parser.add_argument("--calls", type=int, default=900, help="of the padded engine, in a run")
    parser.add_argument("--resolvents", type=int, default=64, help="maximum number of successors of a state")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--share", type=float, default=1 / 4096)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="process: without that of the judge")
    parser.add_argument("--only", choices=("evaluator", "padded", "detection"))
    parser.add_argument("--cap", type=int, default=8, help="maximum number of successors of a state in the detection")
    parser.add_argument("--seeds", type=int, default=30, help="of the detection")
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING)
    if options.only == "detection":
        logging.disable()
        return time_detection(options)
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
