"""Independence of a row's result from the rest of its batch: rows alone and in larger batches, compared."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kgverify.audit.audited_function import Inputs, Subject
from kgverify.audit.report import ReportBuilder
from kgverify.audit.values import copy_values, list_leaves, view_bits
from kgverify.errors import describe_error

AUDIT: Final = "batch-size"
SIZES: Final = (1, 2, 3, 5, 8, 17, 64, 256, 1024)
MOST_ROWS: Final = 4
"""Rows that are computed alone: the first, the last and some between."""
ROUNDINGS: Final = 1000.0
"""Roundings of the largest value of a leaf by which rows may differ where no error is declared."""


def find_batch_size(inputs: Inputs, batch_axis: int, batched: Sequence[int] | None = None) -> int:
    """Return the size of the first tensor that has the axis, among the arguments given by number; 0 if none has."""
    for number, argument in enumerate(inputs):
        if batched is not None and number not in batched:
            continue
        for leaf in pytree.tree_leaves(argument):
            if isinstance(leaf, Tensor) and leaf.dim() > batch_axis:
                return int(leaf.shape[batch_axis])
    return 0


def take_rows(inputs: Inputs, batch_axis: int, batched: Sequence[int] | None, begin: int, end: int) -> Inputs:
    """Return the arguments of some rows: every tensor as long as the batch is cut, contiguous as before."""
    return _map_rows(inputs, batch_axis, batched, lambda leaf: leaf.narrow(batch_axis, begin, end - begin).clone())


def tile_rows(inputs: Inputs, batch_axis: int, batched: Sequence[int] | None, factor: int) -> Inputs:
    """Return the arguments with their rows repeated."""
    return _map_rows(inputs, batch_axis, batched, lambda leaf: torch.cat([leaf] * factor, batch_axis))


def _map_rows(
    inputs: Inputs, batch_axis: int, batched: Sequence[int] | None, change: Callable[[Tensor], Tensor]
) -> Inputs:
    num = find_batch_size(inputs, batch_axis, batched)

    def changed(leaf: Any) -> Any:
        has_rows = isinstance(leaf, Tensor) and leaf.dim() > batch_axis and leaf.shape[batch_axis] == num
        return change(leaf) if has_rows else leaf

    return tuple(
        pytree.tree_map(changed, argument) if batched is None or number in batched else argument
        for number, argument in enumerate(inputs)
    )


def audit_batch(
    subject: Subject,
    report: ReportBuilder,
    *,
    batch_axis: int = 0,
    batched: Sequence[int] | None = None,
    error: float | None = None,
) -> None:
    """Compare every row of the results, in batches of many sizes, with the same row of the whole batch.

    batched: numbers of the arguments that have a batch axis; all those as long as the first if not given
    error:   declared error of a value; rows may differ by twice as much. If not given, by a thousand roundings of the
             leaf's largest value
    """
    inputs = subject.inputs(0)
    num = find_batch_size(inputs, batch_axis, batched)
    if num < 2:
        report.skip(AUDIT, f"{subject.name}: a batch of {num} cannot be made smaller")
        return
    try:
        whole = copy_values(subject.function(*inputs))
        worst = _find_worst(subject, whole, num, batch_axis, batched)
    except Exception as failure:  # A function that requires one shape may raise anything.
        report.skip(AUDIT, f"{subject.name}: {describe_error(failure)}")
        return
    for leaf, value in list_leaves(whole):
        if leaf not in worst:
            continue
        difference, row, size = worst[leaf]
        allowed = _allowed(value, error)
        if difference <= allowed:
            continue
        bound = f"more than {allowed:.3g}" if allowed else "of a value that is not rounded"
        report.find(
            AUDIT,
            mechanism="the kernel depends on the shape, and each adds in a different order; or rows of the batch read one"
            " another",
            finding=f"{subject.name}: row {row} of result{leaf} differs by {difference:.3g} between a batch of {size}"
            f" and one of {num}, {bound}",
            where=subject.name,
            remedy="compute each row only from its own arguments; if it is rounding, declare its error and decide"
            " closer choices in a higher precision",
        )
    largest = max((difference for difference, _, _ in worst.values()), default=0.0)
    report.measures["batch_rows"] = float(num)
    report.measures["batch_largest_difference"] = largest


def _find_worst(
    subject: Subject, whole: Any, num: int, batch_axis: int, batched: Sequence[int] | None
) -> dict[str, tuple[float, int, int]]:
    """Return the largest difference of each leaf that has rows, its row and the size of the batch."""
    found: dict[str, tuple[float, int, int]] = {}
    for begin, end in list_spans(num):
        part = subject.function(*take_rows(subject.inputs(0), batch_axis, batched, begin, end))
        for (path, a), (_, b) in zip(list_leaves(whole), list_leaves(part), strict=True):
            if not isinstance(a, Tensor) or a.dim() <= batch_axis or a.shape[batch_axis] != num:
                continue
            gaps = measure_row_gaps(a.narrow(batch_axis, begin, end - begin), b, batch_axis)
            row = int(gaps.argmax())
            entry = float(gaps[row]), begin + row, end - begin
            found[path] = max(found.get(path, (0.0, 0, end - begin)), entry)
    return found


def list_spans(num: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of the batches that are compared with the whole: some alone, then more of them at a time."""
    last = num - 1
    for row in sorted({last * i // (MOST_ROWS - 1) for i in range(MOST_ROWS)}):
        yield row, row + 1
    for size in SIZES[1:]:
        if size < num:
            yield 0, size
            yield num - size, num


def measure_row_gaps(a: Tensor, b: Tensor, batch_axis: int) -> Tensor:
    """Return the largest difference in each row, float64; inf where a shape, a NaN or an exact value differs."""
    rows = a.shape[batch_axis]
    if a.shape != b.shape or a.dtype != b.dtype:
        return torch.full((rows,), torch.inf, dtype=torch.float64)
    differs = (view_bits(a) != view_bits(b)).reshape(a.shape) if not a.is_complex() else a != b
    if not a.is_floating_point():
        gap = torch.where(differs, torch.inf, 0.0).double()
    else:
        gap = torch.where(differs, (a.double() - b.double()).abs(), 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return gap.movedim(batch_axis, 0).reshape(rows, -1).amax(1).cpu() if gap.numel() else gap.new_zeros(rows).cpu()


def _allowed(value: Tensor, error: float | None) -> float:
    if not value.is_floating_point():
        return 0.0
    if error is not None:
        return 2 * error
    finite = value[value.isfinite()].abs()
    return ROUNDINGS * torch.finfo(value.dtype).eps * (float(finite.max()) if finite.numel() else 0.0)
