"""Waits of the host for the device: reads of values, and results whose shape depends on values."""

import sys
import warnings
from collections import Counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepaudit.audited_function import Function
from stepaudit.operations import OperationMode
from stepaudit.properties.compiled_run import CompiledRun, make_call, repeat_calls
from stepaudit.source_lines import find_calling_line, find_definition

AUDIT = "syncs"
_READ: Final = "a value is read (item, bool, int or float of a tensor)"
_TO_HOST: Final = {Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}
_TRANSFERS: Final = {*(each.__name__ for each in _TO_HOST), "to('cpu')", "aten._to_copy.default", "aten.copy_.default"}
_ON_CALLER: Final = {"index.Tensor", "index_put.default", "index_put_.default", "_unsafe_index_put.default"}


class Reads(OperationMode):  # type: ignore[no-untyped-call]
    """A record of the lines of operations that need values on the host, and of the kernels that a call would launch."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.lines: Counter[tuple[str, str]] = Counter()
        self.num_kernels = 0
        self._function = function

    def meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation and record it."""
        output = func(*args, **kwargs)
        name = str(func).removeprefix("aten.")
        self.num_kernels += func.namespace == "aten" and not func.is_view
        if _needs_values(func, name, args, kwargs, output):
            self.record(_READ if name == "_local_scalar_dense.default" else f"aten.{name}")
        return output

    def record(self, what: str) -> None:
        """Record one wait, at the line that is running."""
        self.lines[find_calling_line(sys._getframe(2), self._function), what] += 1


class HostReads(TorchFunctionMode):
    """A record of reads that need no operation on a CPU tensor, but a wait on a GPU tensor."""

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function and record it."""
        output = func(*args, **(kwargs or {}))
        if func in _TO_HOST and args[0].device.type == "cpu":
            self._reads.record(func.__name__)
        elif func is Tensor.to and args[0].device.type == "cpu":
            asked = (*args[1:], *(kwargs or {}).values())
            if any(str(each) == "cpu" for each in asked if isinstance(each, (str, torch.device))):
                self._reads.record("to('cpu')")
        return output


def _needs_values(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
    if name in _ON_CALLER:
        return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1] if i is not None)
    if name == "repeat_interleave.Tensor":
        return (kwargs.get("output_size") if len(args) < 2 else args[1]) is None
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags):
        return True
    if name in ("_to_copy.default", "copy_.default"):
        target, source = (output, args[0]) if name.startswith("_to") else args[:2]
        is_waited_for = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
        return isinstance(source, Tensor) and source.device.type != target.device.type and is_waited_for
    return False


def watch_eager_reads(run: CompiledRun) -> None:
    """Run the calls without the compiler. Count the kernels of a call, and its waits with their lines.

    Exceptions of a call are passed on.
    """
    num_kernels = 0
    for number in range(run.subject.calls):
        reads = Reads(run.function)

        def watched(*arguments: Any, reads: Reads = reads, **keywords: Any) -> Any:
            with HostReads(reads), reads:
                return run.function(*arguments, **keywords)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, error = make_call(watched, run.subject.inputs(number), number)
        if error is not None:
            raise error
        num_kernels = max(num_kernels, reads.num_kernels)
        run.waits.append(reads.lines)
    run.report.measures["aten_calls_per_step"] = num_kernels


def find_syncs(run: CompiledRun) -> None:
    """Find the waits of eager calls that remain when the function is compiled.

    An operation that reads values only in eager, such as `one_hot`, becomes part of a graph.
    """
    traced = {line for graph in run.graphs for line in graph.lines} - {line for _, line in run.breaks}
    is_left = {key for each in run.waits for key in each if key[0] not in traced or key[1] in _TRANSFERS}
    left = [Counter({key: num for key, num in each.items() if key in is_left}) for each in run.waits]
    seen: Counter[tuple[str, str]] = Counter()
    for each in left:
        seen |= each
    run.report.measures["syncs_per_step"] = max(sum(each.values()) for each in left)
    for (where, what), num in seen.items():
        run.report.find(AUDIT, f"{what}, {num} times in a call" if num > 1 else what, where)


def find_cuda_syncs(run: CompiledRun) -> None:
    """Run the compiled function on CUDA, and find each wait that was not found before.

    Only a wait in every call is a property of the step: the library and the compiler also wait when they start something.
    """
    report = run.report
    if not run.is_cuda:
        report.skip(
            "syncs",
            "waits inside of compiled code are visible on CUDA alone; those of the function itself were examined",
        )
        return
    inputs = [run.subject.inputs(number) for number in range(run.subject.calls)]
    lines: Counter[str] = Counter()

    def show(message: Any, *rest: Any, **more: Any) -> None:
        if "synchroniz" in str(message):
            lines[find_calling_line(sys._getframe(1), run.function)] += 1

    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        # Torch warns of each wait at its line.
        torch.cuda.set_sync_debug_mode("warn")
        try:
            repeat_calls(run.compiled, inputs)
        finally:
            torch.cuda.set_sync_debug_mode(before)
    known = {each.where for each in report.findings if each.audit == AUDIT}
    steady = {where: num for where, num in lines.items() if num >= len(inputs)}
    report.measures["syncs_per_step"] = max(report.measures["syncs_per_step"], sum(steady.values()) / len(inputs))
    report.details["occasional_waits"] = tuple(
        f"{where}: {num} in {len(inputs)} calls" for where, num in lines.items() if where not in steady
    )
    unknown = find_definition(run.function)
    for where, num in steady.items():
        # The wait of a line that is known may have no line in compiled code.
        if where not in known and not (where == unknown and known):
            report.find(AUDIT, f"compiled code waits here, {num / len(inputs):g} times in a call", where)
