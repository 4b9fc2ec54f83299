"""The audit of a function's arithmetic: the same input twice, in other batches, under other settings of torch."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.numerics.compile_in_mode import compile_in_mode
from kgverify.prover.execution.device import products_set_to
from stepaudit.audited_function import (
    Function,
    Inputs,
    MakeInputs,
    Subject,
    make_subject,
)
from stepaudit.environment import describe_environment, read_product_settings
from stepaudit.errors import describe_error
from stepaudit.options import COMPILE_MODES, check_names
from stepaudit.properties.colliding_writes import find_dependence, report_dependence
from stepaudit.report import AuditReport, ReportBuilder
from stepaudit.source_lines import find_calling_line
from stepaudit.values import copy_values, find_differences, is_on_cuda, list_leaves, list_tensors, view_bits

LARGE: Final = 1 << 20
"""Elements of the largest argument where shapes are large: some kernels divide their work only then."""
SIZES: Final = (1, 2, 3, 5, 8, 17, 64, 256, 1024)
MOST_ROWS: Final = 4
"""Rows that are computed alone: the first, the last and some between."""
ROUNDINGS: Final = 1000.0
"""Roundings of the largest value of a leaf by which rows may differ where no error is declared."""
SETTINGS: Final = ("highest", "high", "medium")
"""Values of `torch.set_float32_matmul_precision`: on CUDA the last two allow TF32, on some CPUs the last one bfloat16."""


def audit_numerics(
    fn: Function,
    make_inputs: Callable[[], Inputs] | MakeInputs,
    *,
    batch_axis: int | None = 0,
    batched: Sequence[int] | None = None,
    name: str = "",
    modes: Sequence[str] = ("eager", "default"),
    repetitions: int = 3,
    error: float | None = None,
    large: int | None = None,
) -> AuditReport:
    """Examine the arithmetic of a function: equal arguments twice, colliding writes, other batch sizes, TF32.

    Args:
        fn: any function of tensors and plain values.
        make_inputs: returns the arguments of a call, a tuple, the same each time; takes the number of the call, or nothing.
        batch_axis: of arguments and results; None if they have no batch axis.
        batched: the numbers of the arguments that have the axis; every tensor as long as the first one if not given.
        name: the name in the report; the function's own if not given.
        modes: `eager`, and modes of `torch.compile`.
        repetitions: the number of calls with equal arguments.
        error: the declared absolute error of a value; rows may differ by twice as much between batches.
        large: the number of elements to which arguments are repeated for further calls; a million on CUDA if not given.

    Returns:
        The findings and measures. What could not be examined, such as a mode in which the function does not compile, is
        in `unmeasured`.

    Raises:
        UserError: where make_inputs does not return a tuple, or for an unknown mode.
    """
    check_names("mode", modes, ("eager", *COMPILE_MODES))
    subject = make_subject(name, fn, make_inputs)
    device = torch.device("cuda" if is_on_cuda(subject.inputs(0)) else "cpu")
    report = ReportBuilder()
    axis = None if batch_axis is None else BatchAxis(batch_axis, batched)
    audit_repetition(subject, report, modes=modes, repetitions=repetitions, axis=axis, large=large)

    def once() -> Any:
        return _call_once(subject.function, subject.inputs(0))

    def attempt(audit: str, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # The user's function may raise anything.
            report.skip(audit, f"{subject.name}: {describe_error(error)}")

    attempt("duplicate-scatters", lambda: audit_colliding_writes(once, subject.name, report))
    if axis is not None:
        audit_batch(subject, report, axis, error=error)
    attempt("tf32", lambda: audit_settings(once, subject.name, report, device=device))
    return report.build(subject.name, describe_environment(modes=", ".join(modes)))


@dataclass(frozen=True)
class BatchAxis:
    """The axis of arguments and results along which rows lie.

    batched: numbers of the arguments that have the axis; all those as long as the first if not given
    """

    axis: int = 0
    batched: Sequence[int] | None = None

    def count_rows(self, inputs: Inputs) -> int:
        """Return the length of the first tensor that has the axis; 0 if none has."""
        chosen = [each for number, each in enumerate(inputs) if self.batched is None or number in self.batched]
        leaves = (leaf for leaf in pytree.tree_leaves(chosen) if isinstance(leaf, Tensor) and leaf.dim() > self.axis)
        return next((int(leaf.shape[self.axis]) for leaf in leaves), 0)

    def map_rows(self, inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the arguments with every tensor that is as long as the batch changed, as a copy."""
        num = self.count_rows(inputs)

        def changed(leaf: Any) -> Any:
            return change(leaf).clone() if self.has_rows(leaf, num) else leaf

        return tuple(
            pytree.tree_map(changed, argument) if self.batched is None or number in self.batched else argument
            for number, argument in enumerate(inputs)
        )

    def has_rows(self, leaf: Any, num: int) -> bool:
        """Return whether a leaf is a tensor with this number of rows."""
        return isinstance(leaf, Tensor) and leaf.dim() > self.axis and leaf.shape[self.axis] == num


def audit_batch(
    subject: Subject, report: ReportBuilder, axis: BatchAxis = BatchAxis(), *, error: float | None = None
) -> None:
    """Compare every row of the results, in batches of many sizes, with the same row of the whole batch.

    error: declared error of a value; rows may differ by twice as much. If not given, by a thousand roundings of the leaf's
           largest value
    """
    audit = "batch-size"
    num = axis.count_rows(subject.inputs(0))
    if num < 2:
        report.skip(audit, f"{subject.name}: a batch of {num} is too small to divide")
        return
    # The largest difference of each leaf that has rows, with its row and the size of the batch.
    worst: dict[str, tuple[float, int, int]] = {}
    try:
        whole = list_leaves(copy_values(subject.function(*subject.inputs(0))))
        for begin, end in _list_spans(num):
            size = end - begin
            cut = partial(torch.narrow, dim=axis.axis, start=begin, length=size)
            some = list_leaves(subject.function(*axis.map_rows(subject.inputs(0), cut)))
            for (path, a), (_, b) in zip(whole, some, strict=True):
                if axis.has_rows(a, num):
                    gaps = _measure_row_gaps(cut(a), b, axis.axis)
                    row = int(gaps.argmax())
                    worst[path] = max(worst.get(path, (0.0, 0, size)), (float(gaps[row]), begin + row, size))
    except Exception as failure:  # A function that requires one shape may raise anything.
        report.skip(audit, f"{subject.name}: {describe_error(failure)}")
        return
    for leaf, value in whole:
        difference, row, size = worst.get(leaf, (0.0, 0, 0))
        allowed = _find_allowed(value, error)
        if difference <= allowed:
            continue
        bound = f"more than {allowed:.3g}" if allowed else "of a value that is not rounded"
        report.find(
            audit,
            mechanism="the kernel depends on the shape, and each adds in a different order; or rows of the batch read one"
            " another",
            finding=f"{subject.name}: row {row} of result{leaf} differs by {difference:.3g} between a batch of {size}"
            f" and one of {num}, {bound}",
            where=subject.name,
            remedy="compute each row only from its own arguments; if it is rounding, declare its error and decide"
            " closer choices in a higher precision",
        )
    report.measures["batch_rows"] = float(num)
    report.measures["batch_largest_difference"] = max((difference for difference, _, _ in worst.values()), default=0.0)


def _list_spans(num: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of the batches that are compared with the whole: some alone, then more of them at a time."""
    for row in sorted({(num - 1) * i // (MOST_ROWS - 1) for i in range(MOST_ROWS)}):
        yield row, row + 1
    for size in SIZES[1:]:
        if size < num:
            yield 0, size
            yield num - size, num


def _measure_row_gaps(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Return the largest difference in each row, float64; inf where a shape, a NaN or an exact value differs."""
    rows = a.shape[axis]
    if a.shape != b.shape or a.dtype != b.dtype:
        return torch.full((rows,), torch.inf, dtype=torch.float64)
    differs = a != b if a.is_complex() else view_bits(a) != view_bits(b)
    apart = (a.double() - b.double()).abs() if a.is_floating_point() else torch.inf
    gap = torch.where(differs, apart, 0.0).double().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return gap.movedim(axis, 0).reshape(rows, -1).amax(1).cpu() if gap.numel() else gap.new_zeros(rows).cpu()


def _find_allowed(value: Any, error: float | None) -> float:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return 0.0
    if error is not None:
        return 2 * error
    finite = value[value.isfinite()].abs()
    return ROUNDINGS * torch.finfo(value.dtype).eps * (float(finite.max()) if finite.numel() else 0.0)


def audit_repetition(
    subject: Subject,
    report: ReportBuilder,
    *,
    modes: Sequence[str] = ("eager", "default"),
    repetitions: int = 3,
    axis: BatchAxis | None = BatchAxis(),
    large: int | None = None,
) -> None:
    """Call with equal arguments several times, in each mode, and compare all results and changed arguments.

    modes: `eager`, or modes of `torch.compile`
    large: elements to which arguments are repeated along the batch axis, for further calls; if not given, a million on
           CUDA, and no such calls on a CPU
    """
    inputs = subject.inputs(0)
    if large is None and is_on_cuda(inputs):
        large = LARGE
    variants: list[tuple[str, Callable[[], Inputs]]] = [
        (f", call {call}" if call else "", partial(subject.inputs, call))
        for call in sorted({0, subject.calls // 2, subject.calls - 1})
    ]
    if large is not None and axis is not None and axis.count_rows(inputs):
        sizes = [leaf.numel() for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        factor = -(-large // max(1, *sizes, 1))
        if factor > 1:
            tile = partial(axis.map_rows, change=lambda leaf: torch.cat([leaf] * factor, axis.axis))
            variants.append((f", arguments {factor} times as large", lambda: tile(subject.inputs(0))))
    report.measures["repetitions"] = float(repetitions)
    for mode in modes:
        function = compile_in_mode(subject.function, mode)
        for title, make in variants:
            called = f"{subject.name}, mode {mode}{title}"
            try:
                results = [_call_once(function, make()) for _ in range(repetitions)]
            except Exception as error:  # The user's function and the compiler may raise anything.
                report.skip("repetition", f"{called}: {describe_error(error)}")
                break
            pairs = ((number, find_differences(results[0], each)) for number, each in enumerate(results[1:], 2))
            first = next(((number, found) for number, differences in pairs for found in differences), None)
            if first is None:
                continue
            varying = _find_varying_operation(subject.function, make) if mode == "eager" else None
            report.find(
                "repetition",
                mechanism="atomics and reductions without a fixed order round differently each time; random numbers of a"
                " global generator and unwritten memory differ, too",
                finding=f"{called}: calls 1 and {first[0]} with equal arguments differ: {first[1]}"
                + (f"; first {varying.name}, whose arguments are equal" if varying else ""),
                where=varying.where if varying else subject.name,
                remedy="use the deterministic variant of the operation (torch.use_deterministic_algorithms(True) names"
                " it), or give it a generator with a seed",
            )
            # One finding of a kind is enough.
            break


def _call_once(function: Function, inputs: Inputs) -> Any:
    """Return copies of the result and of the arguments after the call."""
    result = function(*inputs)
    return copy_values((result, inputs))


def find_short_line(depth: int = 1) -> str:
    """Return the innermost user line on the stack, with its path relative to the current folder where it lies there.

    depth: of the first frame that counts, from this function
    """
    line = find_calling_line(sys._getframe(depth)) or "unknown"
    try:
        return str(Path(line).relative_to(Path.cwd()))
    except ValueError:
        return line


class _Operation(NamedTuple):
    """An operation: its name, the user's line, and hashes of its arguments and results."""

    name: str
    where: str
    inputs: int
    outputs: int


class _OperationLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A log of every operation with hashes of the bits of its arguments and results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, and log it."""
        kwargs = kwargs or {}
        before = _hash((args, kwargs))
        out = func(*args, **kwargs)
        # The contents of unwritten memory are not a difference.
        after = 0 if func.overloadpacket.__name__.startswith(("empty", "new_empty")) else _hash(out)
        self.operations.append(_Operation(f"torch.ops.{func}", find_short_line(2), before, after))
        return out


def _find_varying_operation(function: Function, make: Callable[[], Inputs]) -> _Operation | None:
    """Return the first operation, in two eager calls, whose arguments are equal and whose result differs."""
    logs = _OperationLog(), _OperationLog()
    for log in logs:
        inputs = make()
        with log:
            function(*inputs)
    pairs = zip(*(log.operations for log in logs), strict=False)
    return next((a for a, b in pairs if a.inputs == b.inputs and a.outputs != b.outputs), None)


def _hash(tree: Any) -> int:
    """Return a hash of the bits of all tensors in nested values."""
    digest = xxhash.xxh3_64()
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            digest.update(np.ascontiguousarray(view_bits(leaf.detach()).cpu().numpy()).tobytes())
    return digest.intdigest()


def audit_settings(run: Callable[[], Any], name: str, report: ReportBuilder, *, device: torch.device) -> None:
    """Find out whether a result depends on the present settings with which torch may round products of float32.

    run: returns the result, the same each time
    Measures: `tf32_largest_difference`, and `settings_differing`, the number of settings that change bits.
    """
    audit = "tf32"
    found = read_product_settings()
    present = ", ".join(f"{key} {value}" for key, value in found.items() if value not in ("False", "none"))
    as_set = f"as it is set ({present})"
    results: dict[str, Any] = {as_set: copy_values(run())}
    for setting in SETTINGS:
        with products_set_to(setting):
            try:
                results[f"set to {setting}"] = copy_values(run())
            except Exception as error:  # A kernel may be missing under a setting.
                report.skip(audit, f"{name}, {setting}: {describe_error(error)}")
    exact = "set to highest"
    compared = results if exact in results else {}
    pairs = ((how, next(find_differences(compared[exact], each), "")) for how, each in compared.items())
    changed = {how: difference for how, difference in pairs if difference}
    for how, difference in changed.items():
        if how == as_set:
            report.find(
                audit,
                mechanism="a setting of the process, or of the environment, allows products of float32 from factors with 10 bits"
                " of mantissa (TF32), or 7 (bfloat16); any imported library can change it",
                finding=f"{name}: {how}, against highest: {difference}",
                where=name,
                remedy='torch.set_float32_matmul_precision("highest") where the scores are made, or declare the precision and'
                " its error",
            )
    if device.type != "cuda":
        report.skip(audit, "TF32 itself needs a CUDA device; the settings of a CPU were tried")
    gaps = [_find_largest_gap(results[exact], results[how]) for how in changed if how != as_set]
    report.measures["settings_differing"] = float(len(gaps))
    report.measures["tf32_largest_difference"] = max(gaps, default=0.0)


def _find_largest_gap(first: Any, second: Any) -> float:
    """Return the largest difference between two results that have the same leaves."""
    pairs = zip(list_tensors(first), list_tensors(second), strict=True)
    return max(float((a.double() - b.double()).abs().amax()) for (_, a), (_, b) in pairs if a.numel())


def audit_colliding_writes(run: Callable[[], Any], name: str, report: ReportBuilder) -> None:
    """Find colliding writes in a function that returns everything read of its results, the same each time.

    Measures: `scatters`, `scatters_repeated` (lines that write an element twice with differing values) and, of these,
    `scatters_read`, on which the result depends.
    """
    seen, read = find_dependence(run, find_short_line)
    report.measures |= {
        "scatters": float(seen.num_scatters),
        "scatters_repeated": float(len(seen.repeated)),
        "scatters_read": float(len(read)),
        "scatters_too_large": float(seen.num_too_large),
    }
    for repeated, difference in read.items():
        report_dependence(f"{name}: ", repeated, difference, report)
