"""The workloads of `evaluator.py`: graphs with candidates and weights, engines in their best layout, and a stopwatch."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import torch
from baseline.evaluator import PaddedEvaluator

from kgverify.engines.policy import Policy, make_two_tower
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import CandidateSet

Result = TypeVar("Result")

SLOTS: Final = 65536
MATCHED_PER_SLOT: Final = 64
SCORED_PER_SLOT: Final = 32
LIMITS: Final = Limits()


@dataclass(frozen=True)
class Bench:
    """The settings of a measurement.

    tiny:    everything is small, to check on a CPU that it runs; the times then mean nothing
    seconds: the times of our engine in each precision on 100 queries x 100 corruptions, once measured
    """

    device: str
    mode: str
    tiny: bool
    repeats: int
    baseline_slots: tuple[int, ...]
    graph: str
    large_graph: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        """True if the device is a GPU, which has to be waited for."""
        return self.device.startswith("cuda")

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the policy's products."""
        return ("float32", "bf16", "bf16x3", "fp16") if self.is_cuda else ("float32",)

    def load(self, graph: str, num_queries: int, num_corruptions: int) -> Run:
        """Return a run with the published sizes of the policy: 8 blocks of 256, embeddings of 250."""
        loaded = load_graph(graph)
        sizes = {"embedding": 16, "hidden": 32, "blocks": 2} if self.tiny else PUBLISHED
        policy = make_two_tower(loaded.program, LIMITS, seed=0, **sizes)
        if self.tiny:
            num_queries, num_corruptions = 2, 3
        return Run(loaded, LIMITS, policy, num_queries=num_queries, num_corruptions=num_corruptions)

    def build(self, run: Run, num: int, precision: str = "float32") -> CompiledEngine:
        """Build our engine for pools of a number of candidates."""
        slots = 16 if self.tiny else min(SLOTS, num)
        layout = choose_layout(
            run.limits,
            slots=slots,
            match_window=MATCHED_PER_SLOT * slots,
            score_window=max(run.limits.max_resolvents, SCORED_PER_SLOT * slots),
            pool=num,
        )
        return CompiledEngine(
            run.graph.program,
            run.limits,
            run.policy,
            mode=self.mode,
            device=self.device,
            layout=layout,
            precision=precision,
        )

    def build_baseline(self, run: Run, num: int, slots: int, *, recomputes: bool = True) -> PaddedEvaluator:
        """Build the published design."""
        return PaddedEvaluator(
            run.graph.program,
            run.limits,
            run.policy,
            slots=8 if self.tiny else slots,
            capacity=num,
            recomputes=recomputes,
            mode=self.mode,
            device=self.device,
        )

    def measure(self, work: Callable[[], Result], repeats: int | None = None) -> tuple[Result, float]:
        """Return the result of the work and its least time in seconds, waiting for the device. Warm up before."""
        times = []
        for _ in range(self.repeats if repeats is None else repeats):
            self.wait()
            began = time.perf_counter()
            result = work()
            self.wait()
            times.append(time.perf_counter() - began)
        return result, min(times)

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

    def peak(self) -> float:
        """Return the peak of device memory since `forget`, in GiB."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.is_cuda else 0.0


PUBLISHED: Final = {"embedding": 250, "hidden": 256, "blocks": 8}


def draw(run: Run) -> CandidateSet:
    """Draw the candidates of a run."""
    return draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)


def count_flops(policy: Policy, num_rows: int) -> float:
    """Count the operations of the blocks' products on a number of rows."""
    hidden = len(policy.weights["input.bias"])
    return num_rows * policy.num_blocks * 2.0 * hidden**2


def describe_difference(expected: Any, actual: Any) -> str:
    """Describe the difference of two `Results`."""
    differs = expected.outcome != actual.outcome
    gap = np.abs(expected.log_probability - actual.log_probability)[~differs]
    return (
        f"{int(differs.sum())} outcomes differ, log-probabilities by up to {gap.max(initial=0.0):.1e} where they do not"
    )


class MarkdownTable:
    """Printed row by row, so that what was measured is there even if the rest is not."""

    COLUMNS: Final = ("set", "what", "candidates", "seconds", "µs/candidate", "peak GiB", "note")

    def __init__(self) -> None:
        print(f"| {' | '.join(self.COLUMNS)} |\n|{'---|' * len(self.COLUMNS)}", flush=True)

    def add(
        self, name: str, what: str, num: int = 0, seconds: float = 0.0, *, peak: float = 0.0, note: str = ""
    ) -> None:
        """One row; a number that is 0 is left out."""
        cells = (
            name,
            what,
            f"{num:,}" if num else "",
            f"{seconds:.4g}" if seconds else "",
            f"{seconds / num * 1e6:.3g}" if num and seconds else "",
            f"{peak:.2f}" if peak else "",
            note,
        )
        print(f"| {' | '.join(cells)} |", flush=True)
