"""The rows of a trajectory on a device: the digest of every slot's row, and all numbers of the rows of some slots.

N slots, C calls, S slots whose rows are kept. A call returns to each slot at most a STEP row and a RESET row, in this order.
The digests are those of `kgverify.trace.model.digests`, with splitmix64 (Steele, Lea, Flood 2014) on int64: masks make its
shifts unsigned.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgverify.torch.host_copy import HostCopy, PendingCopy

_GAMMA: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND: Final = 0x94D049BB133111EB - (1 << 64)
_NAN: Final = 0x7FF8000000000000


Columns = Mapping[str, bool]
"""The columns of steps, in the order of the schema; the value says whether a column holds floats."""

Groups = Mapping[str, tuple[str, int]]
"""The groups of numbers, each with the column that counts them, and their number in a row; 0 if they are unknown."""


class Block(NamedTuple):
    """The rows of some calls: tensors, or arrays.

    present: bool or uint8 [C, 2, N]  whether the call returned this row to the slot
    digests: int64 [C, 2, N]
    rows:    float64 [C, 2, S, width]  the columns of steps, then the numbers of each group
    """

    present: Any
    digests: Any
    rows: Any


def _mix(words: Tensor) -> Tensor:
    words = words + _GAMMA
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _FIRST
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _SECOND
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _fold(state: Tensor, words: Tensor) -> Tensor:
    return _mix(state ^ _mix(words))


def _bits_of(numbers: Tensor) -> Tensor:
    """Return the bits of float64 numbers as int64, the same for both zeros, and for every NaN."""
    bits = torch.where(numbers == 0, 0.0, numbers).view(torch.int64)
    return torch.where(torch.isnan(numbers), _NAN, bits)


def digest_rows(table: Tensor, columns: Columns, groups: Groups, digests: Tensor) -> None:
    """Write the digests of rows. table: float64 [2, N, width], as in `Block`; digests: int64 [2, N]."""
    counted = dict(zip((count for count, _ in groups.values()), _split(table, columns, groups), strict=True))
    state = torch.zeros_like(digests)
    for value, (name, is_float) in zip(table.unbind(2), columns.items(), strict=False):
        state = _fold(state, _bits_of(value) if is_float else value.long())
        if name in counted:
            position = torch.arange(counted[name].shape[2], device=table.device)
            hashes = _fold(position, _mix(_mix(_bits_of(counted[name]))))
            state = _fold(state, torch.where(position < value[:, :, None], hashes, 0).sum(2))
    digests.copy_(state)


def _split(table: Tensor, columns: Columns, groups: Groups) -> tuple[Tensor, ...]:
    """Return the numbers of each group, as views of a table."""
    return torch.split(table, [len(columns), *(num for _, num in groups.values())], dim=2)[1:]


def to_tensor(value: Any, device: torch.device | None = None) -> Tensor:
    """Return a value as a tensor on a device, by default its own, without its gradient."""
    return torch.as_tensor(value, device=device).detach()


class RowRecorder:
    """The recorder of rows on the device of `chosen`; on CUDA, with a kernel if Triton is installed.

    autoreset:  the mode, in Gymnasium's words
    chosen:     int64 [S]  the slots whose rows are kept
    num_calls:  the calls of a block
    num_filled: the calls that the current block holds
    """

    def __init__(
        self, columns: Columns, groups: Groups, autoreset: str, num_slots: int, chosen: Tensor, num_calls: int
    ) -> None:
        self._columns, self._groups, self._autoreset, self._num_calls = columns, groups, autoreset, num_calls
        self._chosen, device = chosen, chosen.device
        width = len(columns) + sum(num for _, num in groups.values())
        with torch.inference_mode(False), device:
            # The slots whose next episode has not begun.
            self._ended = torch.zeros(num_slots, dtype=torch.bool)
            # The first row is that of a step, the second that of a reset.
            self._table = torch.zeros(2, num_slots, width, dtype=torch.float64)
            self._cells = dict(zip(columns, self._table.unbind(2), strict=False))
            self._numbers = dict(zip(groups, _split(self._table, columns, groups), strict=True))
            self._cells["kind"][0] = 1
            for group, (count, num) in groups.items():
                self._cells[count][0 if group in ("actions", "hidden") else slice(None)] = num
        self._digest = digest_rows
        if device.type == "cuda" and find_spec("triton") is not None:
            from kgverify.torch.trajectory_kernel import digest_rows as digest_by_kernel

            self._digest = digest_by_kernel
        self._begin()

    def _begin(self) -> None:
        num, slots, width = self._num_calls, *self._table.shape[1:]
        with torch.inference_mode(False), self._table.device:
            self._block = Block(
                torch.empty(num, 2, slots, dtype=torch.bool),
                torch.empty(num, 2, slots, dtype=torch.int64),
                torch.empty(num, 2, len(self._chosen), width, dtype=torch.float64),
            )
        self.num_filled = 0

    def add(self, call: Mapping[str, Any]) -> bool:
        """Record a call, without waiting for the device; return whether the block is full.

        call: by name, the tensors [N] of columns, and for each group, `final` included, a tuple of tensors [N, ...]; of a
              reset, `which`, bool [N], and no column. Each call has the same columns and groups
        """
        if self._table.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a replay of a captured CUDA graph would record nothing: call the recorder outside of it"
            )
        present, digests, rows = (each[self.num_filled] for each in self._block)
        with torch.inference_mode(False), torch.no_grad():
            (self._fill_step if "terminated" in call else self._fill_reset)(call, present)
            self._digest(self._table, self._columns, self._groups, digests)
            torch.index_select(self._table, 1, self._chosen, out=rows)
        self.num_filled += 1
        return self.num_filled == self._num_calls

    def _fill_reset(self, call: Mapping[str, Any], present: Tensor) -> None:
        self._put(1, call, "observations", "masks", "states")
        present[0] = False
        present[1] = call["which"]
        self._ended &= ~call["which"]

    def _fill_step(self, call: Mapping[str, Any], present: Tensor) -> None:
        """Write the rows of a step to the table. A row that is not present may hold anything."""
        self._put(0, call, "actions", "hidden", "observations", "masks", "states")
        for name in call.keys() & self._cells.keys():
            self._cells[name][0] = call[name]
        ends = call["terminated"].bool()
        if "truncated" in call:
            ends = ends | call["truncated"].bool()
        # No action follows the observation that ends an episode, so it has neither a mask nor a state.
        hidden = ["masks", "states"]
        present[0] = ~self._ended
        if self._autoreset == "same_step":
            self._put(1, call, "observations", "masks", "states")
            present[1] = ends
            if "final" in call:
                parts = zip(call["final"], call["observations"], strict=True)
                merged = tuple(torch.where(ends.reshape(-1, *[1] * (one.ndim - 1)), one, two) for one, two in parts)
                self._put(0, {"observations": merged}, "observations")
                self._cells["num_observed"][0] = self._groups["observations"][1]
            else:
                hidden.append("observations")
        elif self._autoreset == "next_step":
            self._put(1, call, "observations", "masks", "states")
            present[1] = self._ended
            torch.logical_and(ends, present[0], out=self._ended)
        else:
            present[1] = False
            self._ended |= ends
        for group in hidden:
            count, num = self._groups[group]
            self._cells[count][0] = torch.where(ends, 0.0, float(num))

    def _put(self, row: int, call: Mapping[str, Any], *groups: str) -> None:
        for group in groups:
            begin = 0
            for leaf in call.get(group, ()):
                flat = leaf.reshape(len(leaf), -1)
                self._numbers[group][row, :, begin : begin + flat.shape[1]] = flat
                begin += flat.shape[1]

    def take(self) -> PendingCopy[Block]:
        """Begin to copy the rows of the calls so far to the host, and begin another block."""
        copy = HostCopy()
        types = np.uint8, np.int64, np.float64
        fetched = (copy.fetch(each[: self.num_filled], kind) for each, kind in zip(self._block, types, strict=True))
        found = PendingCopy(Block(*fetched), copy)
        copy.begin()
        self._begin()
        return found
