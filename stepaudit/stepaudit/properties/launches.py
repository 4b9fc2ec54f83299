"""The launches, replays of captured graphs, copies before replays, device time and memory of compiled calls."""

import json
import logging
import math
import os
import re
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from stepaudit.errors import first_line
from stepaudit.properties.compiled_run import CompiledRun, logging_from, repeat_calls
from stepaudit.source_lines import find_definition, find_line_in_text
from stepaudit.values import list_tensors

REPLAYS: Final = "cuda-graphs"
COPIES: Final = "copied-inputs"
_WARM_UPS: Final = 3
"""The number of warm-up calls: a graph first runs uncaptured, is then captured, and is replayed afterwards."""
_COPY_INPUTS: Final = "_copy_inputs_and_remove_from_src"
_REGION: Final = "stepaudit: profiled work"
_MESSAGES: Final = ("__perf_hints", "__cudagraphs")
_REASON: Final = re.compile(r"cudagraphs? due to|reason=|fast path of CUDAGraphs")
_STACK: Final = " " * 9
"""The indentation of the lines of a stack among the messages."""
_LAUNCHES: Final = (
    *("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel"),
    *("hipLaunchKernel", "hipExtLaunch"),
)
_REPLAYS: Final = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


@dataclass
class Profile:
    """The sums over all profiled calls; times in seconds, memory in bytes.

    launches: kernels that the host launched one by one; replays: captured graphs that the host launched
    kernels:  all kernels that ran on the device
    copies:   copies on, from or to the device
    """

    launches: int = 0
    replays: int = 0
    kernels: int = 0
    copies: int = 0
    device_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_memory: int = 0


def take_profile(work: Callable[[], object], *, is_cuda: bool) -> Profile:
    """Profile some work. Launches before or after it, and the final wait for the device, do not count."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    with _silencing_stderr(), profile(activities=activities, profile_memory=not is_cuda) as profiler:
        began = time.perf_counter()
        with record_function(_REGION):
            work()
        if is_cuda:
            torch.cuda.synchronize()
        wall_seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8", "replace"))["traceEvents"]
    found = _count_events(events)
    found.wall_seconds = wall_seconds
    found.peak_memory = torch.cuda.max_memory_allocated() if is_cuda else _find_peak(events)
    return found


@contextmanager
def _silencing_stderr() -> Iterator[None]:
    """Discard the output of the profiler's own library."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _count_events(events: list[dict[str, Any]]) -> Profile:
    regions = (each for each in events if each.get("name") == _REGION and each.get("cat") == "user_annotation")
    region = next(regions, {"ts": 0.0, "dur": math.inf})
    first, last = float(region["ts"]), float(region["ts"]) + float(region["dur"])
    found = Profile()
    for event in events:
        name, kind = str(event.get("name", "")), event.get("cat")
        if kind in ("kernel", "gpu_memcpy", "gpu_memset"):
            found.device_seconds += float(event.get("dur", 0)) * 1e-6
            found.kernels += kind == "kernel"
            found.copies += kind == "gpu_memcpy"
        elif kind in ("cuda_runtime", "cuda_driver") and first <= float(event.get("ts", 0)) <= last:
            found.launches += name.startswith(_LAUNCHES)
            found.replays += name.startswith(_REPLAYS)
    return found


def _find_peak(events: list[dict[str, Any]]) -> int:
    """Return the peak of the memory allocated since the start."""
    in_order = sorted((each for each in events if each.get("name") == "[memory]"), key=lambda each: float(each["ts"]))
    return max(accumulate((int(each["args"].get("Bytes", 0)) for each in in_order), initial=0))


def measure_launches(run: CompiledRun) -> None:
    """Measure the launches, time and memory of a call.

    Find out why calls replay no captured graphs if the mode requests them.
    """
    report, inputs = run.report, run.all_inputs()
    for _ in range(_WARM_UPS if run.is_cuda else 1):
        repeat_calls(run.compiled, inputs)
    seen = take_profile(partial(repeat_calls, run.compiled, inputs), is_cuda=run.is_cuda)
    later = [call.seconds for call in run.calls[1:] or run.calls]
    report.measures["call_seconds"] = statistics.median(later) if later else 0.0
    report.measures["peak_memory_bytes"] = seen.peak_memory
    if not run.is_cuda:
        report.skip("launches", "launches and device time need a CUDA device; here only the calls of aten are counted")
        if run.options.asks_for_graphs:
            report.skip(REPLAYS, "CUDA graphs need a CUDA device")
        report.skip(COPIES, "inputs are copied only before replays of CUDA graphs")
        return
    names = "launches", "replays", "device_seconds", "wall_seconds", "copies"
    sums = {name: getattr(seen, name) for name in names} | {"device_kernels": seen.kernels}
    report.measures |= {f"{name}_per_step": value / len(inputs) for name, value in sums.items()}
    if not run.options.asks_for_graphs or seen.replays >= len(inputs):
        return
    counted = f"{seen.replays} replays and {seen.launches} kernel launches in {len(inputs)} calls"
    texts = [each.getMessage() for each in run.messages] + [str(each.message) for each in run.warned]
    for text in _list_reasons(texts) or [""]:
        where = find_line_in_text(text) or find_definition(run.function)
        report.find(REPLAYS, f"{counted}: {first_line(text) or 'the compiler gives no reason'}", where)


def _list_reasons(messages: Iterable[str]) -> list[str]:
    """Return the compiler's reasons for capturing no graph, each with the lines of the stack that follows it."""
    found: list[str] = []
    for message in messages:
        if _REASON.search(message):
            found.append(message.strip())
        elif found and message.startswith(_STACK):
            found[-1] += f"\n{message}"
    return list(dict.fromkeys(found))


@contextmanager
def collecting_messages(run: CompiledRun) -> Iterator[None]:
    """Collect the compiler's messages and warnings, among them the reasons why it did not capture a graph."""
    handler = BufferingHandler(sys.maxsize)
    names = logging.root.manager.loggerDict if run.is_cuda and run.options.asks_for_graphs else ()
    chosen = [each for each in names if each.startswith("torch._inductor") and each.endswith(_MESSAGES)]
    run.messages = handler.buffer
    with (
        logging_from(logging.DEBUG, chosen, handler, is_quiet=True),
        warnings.catch_warnings(record=True) as run.warned,
    ):
        warnings.simplefilter("always")
        yield


def _name_tensors(run: CompiledRun) -> list[dict[int, tuple[str, str]]]:
    """Return the captured tensors and the inputs of graphs by address, each with its name and its line."""
    captured = {tensor.data_ptr(): (each.path, each.where) for each, tensor in run.list_captured_tensors()}
    rows = ((row, graph.inputs) for graph in run.graphs for row in graph.addresses)
    pairs = (pair for row in rows for pair in zip(*row, strict=True))
    return [captured, {address: (each.source, each.where) for address, each in pairs if each is not None}]


def find_copied_inputs(run: CompiledRun) -> None:
    """Find captured tensors that are copied before each replay, and measure the copies of arguments."""
    from torch._inductor.cudagraph_trees import CUDAGraphNode

    report = run.report
    if not (run.is_cuda and run.options.asks_for_graphs):
        return
    copy_inputs = getattr(CUDAGraphNode, _COPY_INPUTS, None)
    if copy_inputs is None:
        report.skip(COPIES, f"this torch copies inputs in an unknown way: {torch.__version__}")
        return
    inputs = run.all_inputs()
    # The address and the size in bytes of each tensor that is copied.
    copies: list[tuple[int, int]] = []

    def watched(self: Any, targets: list[Any], sources: list[Any]) -> Any:
        given = [sources[number] for number in self.non_static_input_idx]
        copies.extend((each.data_ptr(), each.nbytes) for each in given if isinstance(each, Tensor))
        return copy_inputs(self, targets, sources)

    with patch.object(CUDAGraphNode, _COPY_INPUTS, watched):
        repeat_calls(run.compiled, inputs)
    report.measures["copied_inputs_per_step"] = len(copies) / len(inputs)
    report.measures["copied_bytes_per_step"] = sum(size for _, size in copies) / len(inputs)
    copied = dict(copies)
    arguments = {t.data_ptr(): path for given in inputs for path, t in list_tensors(given, "argument ")}
    captured, sources = _name_tensors(run)
    report.details["copied_inputs"] = tuple(
        f"{arguments.get(address) or captured.get(address, ('tensor', ''))[0]}: {size} bytes"
        for address, size in copied.items()
    )
    for address, size in copied.items():
        known = [held[address] for held in (captured, sources) if address in held]
        if address in arguments or not known:
            continue
        where = known[-1][1] or known[0][1] or find_definition(run.function)
        report.find(COPIES, f"{known[0][0]}, {size} bytes, is copied before each replay", where)
