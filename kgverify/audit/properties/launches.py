"""Launches, replays of captured graphs, copies before them, device time and memory of compiled calls."""

import logging
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from kgverify.audit.properties.aliasing import tensors
from kgverify.audit.properties.captured_values import Place
from kgverify.audit.properties.compiled_run import CompiledRun
from kgverify.audit.properties.notes import Notes
from kgverify.runs.profiling import Profile, take_profile
from kgverify.audit.source_lines import definition_line, text_line
from kgverify.audit.audited_function import Function, Inputs, Subject

REPLAYS: Final = "cuda-graphs"
COPIES: Final = "copied-inputs"
_WARM_UPS: Final = 3
"""Captured graphs run once as they are, are captured, and are replayed from then on."""


def profile_calls(subject: Subject, compiled: Function, inputs: list[Inputs], *, is_cuda: bool) -> Profile:
    """Profile the calls when all is compiled and captured."""

    def work() -> None:
        for number, given in enumerate(inputs):
            torch.manual_seed(number)
            compiled(*given)

    for _ in range(_WARM_UPS if is_cuda else 1):
        work()
    return take_profile(work, is_cuda=is_cuda)


def measure_launches(run: CompiledRun, seen: Profile, num_calls: int, notes: Notes, *, is_cuda: bool) -> None:
    """Launches, time and memory of a call; whether captured graphs were replayed, if the mode asks for them."""
    later = [call.seconds for call in run.calls[1:]] or [call.seconds for call in run.calls]
    notes.measures["call_seconds"] = statistics.median(later) if later else 0.0
    notes.measures["peak_memory_bytes"] = seen.peak_memory
    if not is_cuda:
        notes.skip(
            "launches", "launches and device time are those of a CUDA device; here the calls of aten are counted"
        )
        if run.setting.asks_for_graphs:
            notes.skip(REPLAYS, "CUDA graphs need a CUDA device")
        notes.skip(COPIES, "inputs are copied before replays of CUDA graphs alone")
        return
    notes.measures["launches_per_step"] = seen.num_launches / num_calls
    notes.measures["replays_per_step"] = seen.num_replays / num_calls
    notes.measures["device_kernels_per_step"] = seen.num_kernels / num_calls
    notes.measures["device_seconds_per_step"] = seen.device_seconds / num_calls
    notes.measures["wall_seconds_per_step"] = seen.wall_seconds / num_calls
    notes.measures["copies_per_step"] = sum(seen.copies.values()) / num_calls


def find_missing_replays(run: CompiledRun, seen: Profile, skips: list[str], num_calls: int, notes: Notes) -> None:
    """Whether each call replays captured graphs, as the mode asks; if not, what the compiler says of it."""
    if not run.setting.asks_for_graphs or seen.num_replays >= num_calls:
        return
    skips = list(dict.fromkeys(skips))
    mechanism = "what cannot be captured is launched kernel by kernel; the counters may stay silent, launches do not"
    counted = f"{seen.num_replays} replays and {seen.num_launches} kernel launches in {num_calls} calls"
    for text in skips or [""]:
        first = text.strip().splitlines()[0] if text.strip() else "the compiler gives no reason"
        notes.find(
            REPLAYS,
            mechanism=mechanism,
            finding=f"{counted}: {first}",
            where=text_line(text) or definition_line(run.function),
            remedy="keep all tensors on the device, mutate no input that is not static, and read no value in the step",
        )


@contextmanager
def hearing_skips() -> Iterator[list[str]]:
    """What the compiler says of graphs that it did not capture."""

    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cudagraph" in (text := record.getMessage()).lower():
                said.append(text)

    ear = Ear(logging.DEBUG)
    names = [n for n in logging.root.manager.loggerDict if n.endswith(("__perf_hints", "__cudagraphs"))]
    loggers = [logging.getLogger(name) for name in names if name.startswith("torch._inductor")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(ear)
        logger.setLevel(logging.DEBUG)
    try:
        yield said
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(ear)
            logger.setLevel(level)


def find_copied_inputs(
    subject: Subject, run: CompiledRun, compiled: Function, inputs: list[Inputs], found: list[Place], notes: Notes
) -> None:
    """What is copied before each replay: a finding for what the step closes over, a measure for its arguments."""
    from torch._inductor import cudagraph_trees

    if not run.setting.asks_for_graphs:
        return
    node: Any = cudagraph_trees.CUDAGraphNode
    name = "_copy_inputs_and_remove_from_src"
    if not hasattr(node, name):
        notes.skip(COPIES, f"this torch copies inputs in a way that is not known: {torch.__version__}")
        return
    # (address, bytes)
    copies: list[tuple[int, int]] = []
    copy_inputs = getattr(node, name)

    def watched(self: Any, targets: list[Any], sources: list[Any]) -> Any:
        given = [sources[number] for number in self.non_static_input_idx]
        copies.extend((each.data_ptr(), each.nbytes) for each in given if isinstance(each, Tensor))
        return copy_inputs(self, targets, sources)

    setattr(node, name, watched)
    try:
        for number, given in enumerate(inputs):
            torch.manual_seed(number)
            compiled(*given)
    finally:
        setattr(node, name, copy_inputs)
    notes.measures["copied_inputs_per_step"] = len(copies) / len(inputs)
    notes.measures["copied_bytes_per_step"] = sum(size for _, size in copies) / len(inputs)
    copied = dict(copies)
    arguments = {t.data_ptr(): path for given in inputs for path, t in tensors(given, "argument ")}
    closed_over = {place.get().data_ptr(): place for place in found if isinstance(place.get(), Tensor)}
    sources = {
        address: given
        for graph in run.graphs
        for row in graph.addresses
        for address, given in zip(row, graph.inputs, strict=True)
        if given is not None
    }
    notes.details["copied_inputs"] = tuple(
        f"{arguments.get(address) or (closed_over[address].path if address in closed_over else 'tensor')}: {size} bytes"
        for address, size in copied.items()
    )
    for address, size in copied.items():
        told, place = sources.get(address), closed_over.get(address)
        if address in arguments or (told is None and place is None):
            continue
        what = place.path if place is not None else told.source if told is not None else ""
        where = (told.where if told is not None else "") or (place.where if place is not None else "")
        notes.find(
            COPIES,
            mechanism="a tensor of a closure, a global or an attribute is no static input: it is copied before each replay",
            finding=f"{what}, {size} bytes, is copied before each replay",
            where=where or definition_line(subject.function),
            remedy="torch._dynamo.mark_static_address(tensor) before compiling, or a buffer or parameter of a module",
        )
