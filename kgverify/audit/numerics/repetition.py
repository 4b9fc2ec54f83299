"""Calls with equal arguments: equal bits must come out, eager and compiled, for small and for large shapes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kgverify.audit.audited_function import Function, Inputs, Subject, compile_in_mode
from kgverify.audit.numerics.batch import find_batch_size, tile_rows
from kgverify.audit.report import ReportBuilder
from kgverify.audit.source_lines import find_short_line
from kgverify.audit.values import Difference, copy_values, find_differences, list_device_types, view_bits
from kgverify.errors import describe_error

AUDIT: Final = "repetition"
LARGE: Final = 1 << 20
"""Elements of the largest argument where shapes are large: some kernels divide their work only then."""


class Operation(NamedTuple):
    """An operation: its name, the user's line, and hashes of its arguments and results."""

    name: str
    where: str
    inputs: int
    outputs: int


def audit_repetition(
    subject: Subject,
    report: ReportBuilder,
    *,
    modes: Sequence[str] = ("eager", "default"),
    repetitions: int = 3,
    batch_axis: int | None = 0,
    batched: Sequence[int] | None = None,
    large: int | None = None,
) -> None:
    """Call with equal arguments several times, in each mode, and compare all results and changed arguments.

    modes: `eager`, or modes of `torch.compile`
    large: elements to which arguments are repeated along the batch axis, for further calls; if not given, a million on
           CUDA, and no such calls on a CPU
    """
    inputs = subject.inputs(0)
    calls = sorted({0, subject.calls // 2, subject.calls - 1})
    if large is None and "cuda" in list_device_types(inputs):
        large = LARGE
    variants: list[tuple[str, Callable[[], Inputs]]] = [
        ("" if call == 0 else f", call {call}", partial(subject.inputs, call)) for call in calls
    ]
    if large is not None and batch_axis is not None and find_batch_size(inputs, batch_axis, batched):
        sizes = [leaf.numel() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        factor = -(-large // max(1, *sizes, 1))
        if factor > 1:
            title = f", arguments {factor} times as large"
            variants.append((title, lambda: tile_rows(subject.inputs(0), batch_axis, batched, factor)))
    report.measures["repetitions"] = float(repetitions)
    for mode in modes:
        function = compile_in_mode(subject.function, mode)
        for title, make in variants:
            try:
                results = [call_once(function, make()) for _ in range(repetitions)]
            except Exception as error:  # The user's function and the compiler may raise anything.
                report.skip(AUDIT, f"{subject.name}, mode {mode}{title}: {describe_error(error)}")
                break
            pairs = ((number, find_differences(results[0], each)) for number, each in enumerate(results[1:], 2))
            first = next(((number, found) for number, differences in pairs for found in differences), None)
            if first is not None:
                # One finding of a kind is enough.
                _report_difference(subject, mode, title, make, *first, report)
                break


def call_once(function: Function, inputs: Inputs) -> Any:
    """Return copies of the result and of the arguments after the call."""
    result = function(*inputs)
    return copy_values((result, inputs))


def _report_difference(
    subject: Subject,
    mode: str,
    title: str,
    make: Callable[[], Inputs],
    number: int,
    found: Difference,
    report: ReportBuilder,
) -> None:
    where, operation = subject.name, ""
    if mode == "eager":
        varying = find_varying_operation(subject.function, make)
        if varying is not None:
            where, operation = varying.where, f"; first {varying.name}, whose arguments are equal"
    report.find(
        AUDIT,
        mechanism="atomics and reductions without a fixed order round differently each time; random numbers of a global"
        " generator and unwritten memory differ, too",
        finding=f"{subject.name}, mode {mode}{title}: calls 1 and {number} with equal arguments differ: {found}{operation}",
        where=where,
        remedy="use the deterministic variant of the operation (torch.use_deterministic_algorithms(True) names it),"
        " or give it a generator with a seed",
    )


class OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A log of every operation with hashes of the bits of its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and log it."""
        kwargs = kwargs or {}
        before = _hash((args, kwargs))
        out = func(*args, **kwargs)
        # The contents of unwritten memory are not a difference.
        after = 0 if func.overloadpacket.__name__.startswith(("empty", "new_empty")) else _hash(out)
        self.operations.append(Operation(f"torch.ops.{func}", find_short_line(), before, after))
        return out


def find_varying_operation(function: Function, make: Callable[[], Inputs]) -> Operation | None:
    """Return the first operation, in two eager calls, whose arguments are equal and whose result differs."""
    logs = []
    for _ in range(2):
        inputs = make()
        with OperationLog() as log:
            function(*inputs)
        logs.append(log.operations)
    pairs: Iterator[tuple[Operation, Operation]] = zip(*logs, strict=False)
    return next((a for a, b in pairs if a.inputs == b.inputs and a.outputs != b.outputs), None)


def _hash(tree: Any) -> int:
    """Return a hash of the bits of all tensors in nested values."""
    digest = xxhash.xxh3_64()
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            digest.update(np.ascontiguousarray(view_bits(leaf.detach()).cpu().numpy()).tobytes())
    return digest.intdigest()
