"""The digests of rows in one Triton kernel, as `kgverify.torch.trajectory_rows` computes them elsewhere."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kgverify.torch.splitmix_kernels import fold, mix


@triton.jit
def _bits_of(numbers):
    """Return the bits of float64 numbers, the same for both zeros, and for every NaN."""
    bits = tl.where(numbers == 0, 0.0, numbers).to(tl.int64, bitcast=True)
    return tl.where(numbers == numbers, bits, 0x7FF8000000000000)


@triton.jit
def _digest(
    table,
    layout,
    digests,
    num_rows,
    width,
    COLUMNS: tl.constexpr,
    FLOATS: tl.constexpr,
    COUNTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """FLOATS, COUNTS: the columns that hold floats, and those that count numbers, as bits."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    first = table + row.to(tl.int64) * width
    state = tl.zeros([ROWS], tl.int64)
    for column in tl.static_range(COLUMNS):
        value = tl.load(first + column, is_row, 0.0)
        if (FLOATS >> column) & 1:
            words = _bits_of(value)
        else:
            words = value.to(tl.int64)
        state = fold(state, words)
        if (COUNTS >> column) & 1:
            total = tl.zeros([ROWS], tl.int64)
            offset = tl.load(layout + 2 * column)
            for begin in range(0, tl.load(layout + 2 * column + 1), TILE):
                position = begin + tl.arange(0, TILE)
                inside = (position[None, :] < value[:, None]) & is_row[:, None]
                numbers = tl.load(first[:, None] + (offset + position)[None, :], inside, 0.0)
                hashes = fold(position.to(tl.int64)[None, :], mix(mix(_bits_of(numbers))))
                total += tl.sum(tl.where(inside, hashes, 0), 1)
            state = fold(state, total)
    tl.store(digests + row, state, is_row)


@cache
def _lay_out(columns: tuple[tuple[str, bool], ...], groups: tuple[tuple[str, int], ...], device: torch.device) -> Any:
    """Return the begin and the number of the numbers that each column counts, int32 [columns, 2], and both sets of bits."""
    names = [name for name, _ in columns]
    layout, begin = torch.zeros(len(names), 2, dtype=torch.int32), len(names)
    for count, num in groups:
        layout[names.index(count)] = torch.tensor([begin, num])
        begin += num
    floats = sum(1 << i for i, (_, is_float) in enumerate(columns) if is_float)
    return layout.to(device), floats, sum(1 << names.index(count) for count, _ in groups)


def digest_rows(
    table: Tensor, columns: Mapping[str, bool], groups: Mapping[str, tuple[str, int]], digests: Tensor
) -> None:
    """Write the digests of rows, as `kgverify.torch.trajectory_rows.digest_rows` does."""
    layout, floats, counts = _lay_out(tuple(columns.items()), tuple(groups.values()), table.device)
    num, width = digests.numel(), table.shape[2]
    _digest[(triton.cdiv(num, 32),)](
        table, layout, digests, num, width, COLUMNS=len(columns), FLOATS=floats, COUNTS=counts, ROWS=32, TILE=16
    )
