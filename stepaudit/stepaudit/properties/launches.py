"""Launches, replays of captured graphs, copies before them, device time and memory of compiled calls."""

import logging
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor

from stepaudit.audited_function import Function, Inputs, Subject
from stepaudit.errors import first_line
from stepaudit.properties.captured_values import CapturedState
from stepaudit.properties.compiled_run import CompiledRun
from stepaudit.properties.profile import Profile, take_profile
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_definition, find_line_in_text
from stepaudit.values import list_tensors

REPLAYS: Final = "cuda-graphs"
COPIES: Final = "copied-inputs"
_WARM_UPS: Final = 3
"""Captured graphs run once uncaptured, are then captured, and are replayed afterwards."""
_COPY_INPUTS: Final = "_copy_inputs_and_remove_from_src"


def profile_calls(compiled: Function, inputs: list[Inputs], *, is_cuda: bool) -> Profile:
    """Profile calls after everything has been compiled and captured."""

    def work() -> None:
        for number, given in enumerate(inputs):
            torch.manual_seed(number)
            compiled(*given)

    for _ in range(_WARM_UPS if is_cuda else 1):
        work()
    return take_profile(work, is_cuda=is_cuda)


def measure_launches(run: CompiledRun, seen: Profile, num_calls: int, report: ReportBuilder, *, is_cuda: bool) -> None:
    """Measure launches, time and memory of a call, from the profile of some calls."""
    later = [call.seconds for call in run.calls[1:]] or [call.seconds for call in run.calls]
    report.measures["call_seconds"] = statistics.median(later) if later else 0.0
    report.measures["peak_memory_bytes"] = seen.peak_memory
    if not is_cuda:
        report.skip("launches", "launches and device time need a CUDA device; here only the calls of aten are counted")
        if run.setting.asks_for_graphs:
            report.skip(REPLAYS, "CUDA graphs need a CUDA device")
        report.skip(COPIES, "inputs are copied only before replays of CUDA graphs")
        return
    names = "launches", "replays", "device_seconds", "wall_seconds", "copies"
    sums = {name: getattr(seen, name) for name in names} | {"device_kernels": seen.kernels}
    report.measures |= {f"{name}_per_step": value / num_calls for name, value in sums.items()}


def find_missing_replays(
    run: CompiledRun, seen: Profile, messages: list[logging.LogRecord], num_calls: int, report: ReportBuilder
) -> None:
    """Find out why calls do not replay captured graphs although the mode asks for them."""
    if not run.setting.asks_for_graphs or seen.replays >= num_calls:
        return
    counted = f"{seen.replays} replays and {seen.launches} kernel launches in {num_calls} calls"
    texts = dict.fromkeys(each.getMessage() for each in messages)
    for text in [text for text in texts if "cudagraph" in text.lower()] or [""]:
        report.find(
            REPLAYS,
            mechanism="what cannot be captured is launched kernel by kernel; the compiler's counters may not show it",
            finding=f"{counted}: {first_line(text) or 'the compiler gives no reason'}",
            where=find_line_in_text(text) or find_definition(run.function),
            remedy="keep all tensors on the device, mutate no input that is not static, and read no value in the step",
        )


@contextmanager
def collecting_messages() -> Iterator[list[logging.LogRecord]]:
    """Collect the compiler's messages, among them the reasons why it did not capture a graph."""
    handler = BufferingHandler(sys.maxsize)
    names = [n for n in logging.root.manager.loggerDict if n.endswith(("__perf_hints", "__cudagraphs"))]
    loggers = [logging.getLogger(name) for name in names if name.startswith("torch._inductor")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield handler.buffer
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextmanager
def _recording_copies() -> Iterator[list[tuple[int, int]]]:
    """Record the address and the bytes of each tensor that is copied before a replay."""
    from torch._inductor import cudagraph_trees

    node: Any = cudagraph_trees.CUDAGraphNode
    copies: list[tuple[int, int]] = []
    copy_inputs = getattr(node, _COPY_INPUTS)

    def watched(self: Any, targets: list[Any], sources: list[Any]) -> Any:
        given = [sources[number] for number in self.non_static_input_idx]
        copies.extend((each.data_ptr(), each.nbytes) for each in given if isinstance(each, Tensor))
        return copy_inputs(self, targets, sources)

    with patch.object(node, _COPY_INPUTS, watched):
        yield copies


def find_copied_inputs(
    subject: Subject,
    run: CompiledRun,
    compiled: Function,
    inputs: list[Inputs],
    found: CapturedState,
    report: ReportBuilder,
) -> None:
    """Find captured tensors that are copied before each replay; measure the copies of arguments."""
    from torch._inductor import cudagraph_trees

    if not run.setting.asks_for_graphs:
        return
    if not hasattr(cudagraph_trees.CUDAGraphNode, _COPY_INPUTS):
        report.skip(COPIES, f"this torch copies inputs in an unknown way: {torch.__version__}")
        return
    with _recording_copies() as copies:
        for number, given in enumerate(inputs):
            torch.manual_seed(number)
            compiled(*given)
    report.measures["copied_inputs_per_step"] = len(copies) / len(inputs)
    report.measures["copied_bytes_per_step"] = sum(size for _, size in copies) / len(inputs)
    copied = dict(copies)
    arguments = {t.data_ptr(): path for given in inputs for path, t in list_tensors(given, "argument ")}
    captured = {value.data_ptr(): each for each in found if isinstance(value := each.get(), Tensor)}
    sources = {
        address: each
        for graph in run.graphs
        for row in graph.addresses
        for address, each in zip(row, graph.inputs, strict=True)
        if each is not None
    }
    report.details["copied_inputs"] = tuple(
        f"{arguments.get(address) or (captured[address].path if address in captured else 'tensor')}: {size} bytes"
        for address, size in copied.items()
    )
    for address, size in copied.items():
        source, value = sources.get(address), captured.get(address)
        if address in arguments or (source is None and value is None):
            continue
        name = value.path if value is not None else source.source if source is not None else ""
        where = (source.where if source is not None else "") or (value.where if value is not None else "")
        report.find(
            COPIES,
            mechanism="a tensor of a closure, a global or an attribute is not a static input: each replay copies it first",
            finding=f"{name}, {size} bytes, is copied before each replay",
            where=where or find_definition(subject.function),
            remedy="torch._dynamo.mark_static_address(tensor) before compiling, or a buffer or parameter of a module",
        )
