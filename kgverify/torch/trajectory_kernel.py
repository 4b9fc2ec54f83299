"""The digests of rows in one Triton kernel, as `kgverify.torch.trajectory_rows` computes them elsewhere."""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.torch.trajectory_rows import Plan


@triton.jit
def _mix(words: Any) -> Any:
    words += 0x9E3779B97F4A7C15
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)


@triton.jit
def _bits_of(numbers: Any) -> Any:
    bits = tl.where(numbers == 0, 0.0, numbers).to(tl.uint64, bitcast=True)
    return tl.where(numbers == numbers, bits, 0x7FF8000000000000)


@triton.jit
def _digest(
    table: Any,
    layout: Any,
    digests: Any,
    num_rows: Any,
    width: Any,
    COLUMNS: tl.constexpr,
    FLOATS: tl.constexpr,
    COUNTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """FLOATS, COUNTS: the columns that hold floats, and those that count numbers, as bits."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    first = table + row.to(tl.int64) * width
    state = tl.zeros([ROWS], tl.uint64)
    for column in tl.static_range(COLUMNS):
        value = tl.load(first + column, is_row, 0.0)
        if (FLOATS >> column) & 1:
            words = _bits_of(value)
        else:
            words = value.to(tl.int64).to(tl.uint64)
        state = _mix(state ^ _mix(words))
        if (COUNTS >> column) & 1:
            total = tl.zeros([ROWS], tl.uint64)
            offset = tl.load(layout + 2 * column)
            for begin in range(0, tl.load(layout + 2 * column + 1), TILE):
                position = begin + tl.arange(0, TILE)
                inside = (position[None, :] < value[:, None]) & is_row[:, None]
                numbers = tl.load(first[:, None] + (offset + position)[None, :], inside, 0.0)
                hashes = _mix(position.to(tl.uint64)[None, :] ^ _mix(_mix(_mix(_bits_of(numbers)))))
                total += tl.sum(tl.where(inside, hashes, 0), 1)
            state = _mix(state ^ _mix(total))
    tl.store(digests + row, state.to(tl.int64, bitcast=True), is_row)


@cache
def _lay_out(columns: tuple[tuple[str, bool], ...], groups: tuple[tuple[str, int], ...], device: torch.device) -> Any:
    """Return the begin and the number of the numbers that each column counts, int32 [columns, 2], and both sets of bits."""
    names = [name for name, _ in columns]
    layout, begin = torch.zeros(len(names), 2, dtype=torch.int32), len(names)
    for count, num in groups:
        layout[names.index(count)] = torch.tensor([begin, num])
        begin += num
    floats = sum(1 << i for i, (_, is_float) in enumerate(columns) if is_float)
    return layout.to(device), floats, sum(1 << i for i, name in enumerate(names) if name.startswith("num_"))


def digest_rows(table: Tensor, plan: Plan, digests: Tensor) -> None:
    """Write the digests of rows. table: float64 [2, N, width]; digests: int64 [2, N]."""
    layout, floats, counts = _lay_out(tuple(plan.columns.items()), tuple(plan.groups.values()), table.device)
    num, width = digests.numel(), table.shape[2]
    _digest[(triton.cdiv(num, 32),)](
        table, layout, digests, num, width, COLUMNS=len(plan.columns), FLOATS=floats, COUNTS=counts, ROWS=32, TILE=16
    )
