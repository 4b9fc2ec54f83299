"""Compiles the kernels of fused ticks for a GPU that need not be there, and prints how many for each of some engines."""

import time
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kgverify import Limits, load_graph
from kgverify.engines.policy import make_two_tower
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.fused.ticks import FusedTicks, build_scoring
from kgverify.prover.program.tables import build_tables
from kgverify.prover.tick.tick import empty_derivations, empty_pool, empty_work
from kgverify.prover.tower import hopper, launch

CPU = torch.device("cpu")


class Hopper:
    """The methods of Triton's driver that compiling calls."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def compile_ticks(graph: str, limits: Limits, slots: int, pool: int) -> None:
    """The kernels of a policy in fp16, with those that make close choices again."""
    program = load_graph(graph).program
    policy = make_two_tower(program, limits, seed=0, embedding=50, hidden=256, blocks=8)
    layout = choose_layout(limits, slots=slots, pool=pool)
    buffers = empty_derivations(layout, limits.max_depth, CPU), empty_work(layout, CPU), empty_pool(layout, CPU)
    tables = build_tables(program, layout.atoms, CPU, is_rounded=True)
    FusedTicks(tables, limits, layout, build_scoring("fp16", policy, CPU), buffers).compile()


def main() -> None:
    driver.set_active(Hopper())
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=132)
    launch._find_hopper = lambda _: hopper
    num = 0

    def count(**_: Any) -> None:
        nonlocal num
        num += 1

    knobs.compilation.listener = count
    for graph, limits, slots, pool in (
        ("countries", Limits(), 64, 1000),
        ("random:7", Limits(max_depth=7, max_atoms=5, max_resolvents=100), 96, 333),
        ("random:8", Limits(), 1, 1),
    ):
        began, before = time.perf_counter(), num
        compile_ticks(graph, limits, slots, pool)
        print(graph, num - before, f"{time.perf_counter() - began:.1f}", flush=True)


if __name__ == "__main__":
    main()
