"""Races between CUDA streams: one stream reads or writes memory that another has written or read, and neither waits."""

from contextlib import ExitStack
from typing import Any, Final
from unittest.mock import patch

import torch
from torch._utils import CallbackRegistry

from stepaudit.properties.captured_values import restoring
from stepaudit.properties.compiled_run import CompiledRun, make_call
from stepaudit.source_lines import find_definition, find_stack_line

AUDIT: Final = "stream-races"


def find_stream_races(run: CompiledRun) -> None:
    """Make an eager call under torch's sanitizer of streams, and report each pair of lines that race."""
    report = run.report
    if not run.is_cuda:
        report.skip(AUDIT, "streams need a CUDA device")
        return
    races: dict[tuple[str, str], str] = {}
    from torch.cuda import _gpu_trace

    registries = [each for each in vars(_gpu_trace).values() if isinstance(each, CallbackRegistry)]
    with ExitStack() as stack, restoring(run.found):
        # The sanitizer, which torch keeps for good, is not to hear of the calls after these.
        for each in registries:
            stack.enter_context(patch.object(each, "callback_list", []))
        mode = _make_sanitizer(races, find_definition(run.function))
        inputs = run.subject.inputs(0)
        torch.cuda.synchronize()
        stack.enter_context(mode)
        _, error = make_call(run.function, inputs, 0)
    if error is not None:
        report.skip(AUDIT, f"the step raises {type(error).__name__} under torch's sanitizer of streams")
    report.measures["stream_races"] = len(races)
    for (where, _), finding in races.items():
        report.find(AUDIT, finding, where)


def _make_sanitizer(races: dict[tuple[str, str], str], elsewhere: str) -> Any:
    """Return torch's sanitizer of streams, which adds each race to those found and lets the call go on."""
    from torch.cuda._sanitizer import CUDASanitizerDispatchMode

    mode: Any = CUDASanitizerDispatchMode()
    launch = mode.event_handler._handle_kernel_launch

    def keep(*launched: Any) -> list[Any]:
        # What a graph of the user's own captures runs later, in the order of the graph.
        for error in () if torch.cuda.is_current_stream_capturing() else launch(*launched):
            now, before = error.current_access, error.previous_access
            where, earlier = (find_stack_line(each.stack_trace) or elsewhere for each in (now, before))
            names = [str(each.operator).partition("(")[0] for each in (now, before)]
            races[where, earlier] = (
                f"{names[0]}, {now.type} memory, does not wait for {names[1]}, {before.type} it on another stream at {earlier}"
            )
        return []

    mode.event_handler._handle_kernel_launch = keep
    return mode
