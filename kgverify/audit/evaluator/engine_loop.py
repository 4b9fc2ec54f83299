"""The audit of the evaluator's loop around the tick: launches, replays, copies and waits of a whole run."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from torch._dynamo import utils as dynamo_utils

from kgverify.audit.report import AuditReport, ReportBuilder
from kgverify.errors import UserError
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.tick.tick_loop import TICKS_PER_REPLAY, TickLoop
from kgverify.runs.machine import describe_environment
from kgverify.runs.profiling import Profile, take_profile
from kgverify.trace.model.columns import CandidateSet

_WAITS_OF_A_POOL: Final = 16
"""Limit on the waits for filling a pool and for reading its results."""
_LOOP: Final = "kgverify/prover/tick/tick_loop.py"


def audit_loop(
    engine: Any,
    candidates: CandidateSet,
    *,
    budget: Mapping[str, float] | None = None,
    announce: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Evaluate candidates twice, to warm up and under a profiler, and examine the second run.

    UserError for an engine that is not the compiled evaluator, and where there are no candidates.
    """
    if not isinstance(engine, CompiledEngine):
        raise UserError("the loop of this engine is unknown", where="--fault", fix="audit the compiled evaluator")
    if len(candidates.query) == 0:
        raise UserError("there is nothing to prove", where="--queries", fix="give more")
    info = engine.info
    is_cuda = info.device == "cuda"
    report = ReportBuilder()
    announce("warming up the engine's loop")
    with _counting_ticks():
        began = time.perf_counter()
        engine.evaluate(candidates)
        report.measures["first_run_seconds"] = time.perf_counter() - began
    compiled_before = len(dynamo_utils.get_compilation_metrics())
    announce("profiling the engine's loop")
    with _counting_ticks() as ticks:
        seen = take_profile(lambda: engine.evaluate(candidates), is_cuda=is_cuda)
    num_compiled = len(dynamo_utils.get_compilation_metrics()) - compiled_before
    num_ticks = ticks["ticks"] or seen.num_replays * TICKS_PER_REPLAY
    _measure(seen, num_ticks, ticks["looks"], len(candidates.query), report, is_cuda=is_cuda)
    report.measures["recompilations"] = num_compiled
    if num_compiled:
        report.find(
            "recompilations",
            mechanism="a guard on what the graph was made for fails, and the frame is compiled again",
            finding=f"{num_compiled} compilations in a run that had run before",
            where=_LOOP,
            remedy="see the report on the tick",
        )
    if is_cuda:
        num_pools = -(-len(candidates.query) // engine.layout.pool)
        _check_waits(seen, ticks["looks"], num_pools, info.mode, report)
    else:
        report.skip("loop", "replays, device time and waits are those of a CUDA device")
    environment = describe_environment(
        info.device, mode=info.mode, dynamic="False", cache="the process's own", precision=info.precision
    )
    return report.build("loop", environment, budget=budget)


@contextmanager
def _counting_ticks() -> Iterator[dict[str, int]]:
    """Count the ticks that the host runs in loops, and its looks at the device."""
    counts = {"ticks": 0, "looks": 0}
    run = TickLoop.run

    def count(what: str, call: Callable[[], Any]) -> Any:
        counts[what] += 1
        return call()

    def count_run(loop: TickLoop) -> Iterator[int]:
        take = partial(count, "ticks", loop._take_tick_)
        look = partial(count, "looks", loop._look)
        with patch.multiple(loop, _take_tick_=take, _look=look):
            yield from run(loop)

    with patch.object(TickLoop, "run", count_run):
        yield counts


def _measure(seen: Profile, num_ticks: int, num_looks: int, num: int, report: ReportBuilder, *, is_cuda: bool) -> None:
    measures = report.measures
    measures["candidates"] = num
    measures["ticks"] = num_ticks
    measures["looks"] = num_looks
    measures["wall_seconds"] = seen.wall_seconds
    measures["wall_seconds_per_candidate"] = seen.wall_seconds / num
    measures["reads_per_tick"] = seen.num_reads / max(1, num_ticks)
    measures["peak_memory_bytes"] = seen.peak_memory
    if not is_cuda:
        return
    measures["replays"] = seen.num_replays
    measures["launches_per_step"] = seen.num_launches / max(1, num_ticks)
    measures["launches_per_candidate"] = (seen.num_launches + seen.num_replays) / num
    measures["device_kernels_per_step"] = seen.num_kernels / max(1, num_ticks)
    measures["device_seconds"] = seen.device_seconds
    measures["device_share"] = seen.device_seconds / seen.wall_seconds
    measures["copies_per_replay"] = sum(seen.copies.values()) / max(1, seen.num_replays or num_ticks)
    measures["waits_per_replay"] = sum(seen.waits.values()) / max(1, seen.num_replays or num_ticks)
    report.details["waits"] = tuple(f"{name}: {count}" for name, count in seen.waits.items())
    report.details["copies"] = tuple(f"{name}: {count}" for name, count in seen.copies.items())


def _check_waits(seen: Profile, num_looks: int, num_pools: int, mode: str, report: ReportBuilder) -> None:
    """Find waits beyond one for each look, and a few for the end of a pool and the reading of its results."""
    num_edge = _WAITS_OF_A_POOL * num_pools
    num_waits = sum(seen.waits.values())
    if num_waits > num_looks + num_edge:
        report.find(
            "syncs",
            mechanism="the host waits for the device more often than the one look that each replay is allowed",
            finding=f"{num_waits} waits for {num_looks} looks: "
            + ", ".join(f"{name} {count}" for name, count in seen.waits.items()),
            where=_LOOP,
            remedy="find the stage that reads a value: the report on the tick names the line",
        )
    if mode not in ("eager", "default") and seen.num_replays == 0:
        report.find(
            "cuda-graphs",
            mechanism="ticks are captured once and replayed; ticks that are not replayed are launched kernel by kernel",
            finding=f"no graph was replayed in mode {mode}, {seen.num_launches} kernels were launched",
            where=_LOOP,
            remedy="see whether the capture failed",
        )
