"""The digests of rows in one Triton kernel, as `kgverify.trace.model.digests` computes them on the host."""

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
    counted,
    digests,
    num_rows,
    width,
    COLUMNS: tl.constexpr,
    FLOATS: tl.constexpr,
    COUNTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    first = table + row.to(tl.int64) * width
    state = tl.zeros([ROWS], tl.int64)
    offset = COLUMNS
    for column in tl.static_range(COLUMNS):
        value = tl.load(first + column, is_row, 0.0)
        if (FLOATS >> column) & 1:
            state = fold(state, _bits_of(value))
        else:
            state = fold(state, value.to(tl.int64))
        if (COUNTS >> column) & 1:
            total = tl.zeros([ROWS], tl.int64)
            most = tl.load(counted + column)
            for begin in range(0, most, TILE):
                position = begin + tl.arange(0, TILE)
                inside = (position[None, :] < value[:, None]) & is_row[:, None]
                numbers = tl.load(first[:, None] + (offset + position)[None, :], inside, 0.0)
                hashes = fold(position.to(tl.int64)[None, :], mix(mix(_bits_of(numbers))))
                total += tl.sum(tl.where(inside, hashes, 0), 1)
            state = fold(state, total)
            offset += most
    tl.store(digests + row, state, is_row)


def digest_rows(table: Tensor, counted: Tensor, digests: Tensor, floats: int, counts: int) -> None:
    """Write the digests of rows.

    table:   float64 [2, N, width]  columns, then the numbers that the columns of counts count
    counted: int32 [columns]  the maximum value of each column of counts
    digests: int64 [2, N]
    floats, counts: the columns that hold floats, and those of counts, as bits
    """
    num, rows = digests.numel(), 32
    launch = _digest[(triton.cdiv(num, rows),)]
    launch(table, counted, digests, num, table.shape[2], len(counted), floats, counts, ROWS=rows, TILE=16)
