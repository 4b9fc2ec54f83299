"""The rows of a trajectory on a device: the digest of every slot's row, and all numbers of the rows of some slots.

N slots, E rows that one call may return to a slot, C calls, S slots whose numbers are kept. The digests are those of
`kgverify.trace.model.digests`, with splitmix64 (Steele, Lea, Flood 2014) on int64: masks make its shifts unsigned.
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


class Column(NamedTuple):
    """A column of steps. group: the group whose numbers it counts; empty if it is not a column of counts."""

    name: str
    is_float: bool
    group: str


class Plan(NamedTuple):
    """What is recorded.

    columns: the columns of steps, in the order of the schema
    widths:  the numbers of each group
    is_same_step: whether the call that ends an episode also returns the first observation of the next one
    idles:   whether a slot whose episode ended waits for a reset
    """

    columns: tuple[Column, ...]
    widths: Mapping[str, int]
    is_same_step: bool
    idles: bool


class Block(NamedTuple):
    """The rows of some calls: tensors, or arrays.

    present: bool or uint8 [C, E, N]  whether the call returned this row to the slot
    digests: int64 [C, E, N]
    rows:    float64 [C, E, S, width]  the columns of steps, then the numbers of each group
    """

    present: Any
    digests: Any
    rows: Any


class _Numbers(NamedTuple):
    """The numbers of a group: float64 [N, width]; the hash of each row, int64 [N]; and the slots that have them, bool [N]."""

    numbers: Tensor
    hashes: Tensor
    has: Tensor


class _Rows(NamedTuple):
    """Rows of some slots, `present`. `acts`: the slots whose row follows an action; others have the row of a reset."""

    present: Tensor
    acts: Tensor
    groups: Mapping[str, _Numbers]


def _join(leaves: tuple[Tensor, ...], has: Tensor) -> _Numbers:
    numbers = torch.cat([each.reshape(len(has), -1).double() for each in leaves], 1)
    position = torch.arange(numbers.shape[1], device=numbers.device)
    return _Numbers(numbers, _fold(position, _mix(_mix(_bits_of(numbers)))).sum(1), has)


def _find_rows(call: Mapping[str, Any], plan: Plan, ended: Tensor) -> list[_Rows]:
    """Return the rows of one call. ended: bool [N], the slots whose next episode has not begun; it is brought up to date."""
    everyone = torch.ones_like(ended)
    observed = {name: _join(call[name], everyone) for name in ("observations", "masks", "states") if name in call}
    if "terminated" not in call:
        ended.logical_and_(~call["which"])
        return [_Rows(call["which"], ~everyone, observed)]
    acts = ~ended
    ends = acts & (call["terminated"] != 0)
    if "truncated" in call:
        ends = ends | (acts & (call["truncated"] != 0))
    # No action follows the observation that ends an episode, so it has neither a mask nor a state.
    groups = {name: each._replace(has=~ends) for name, each in observed.items()}
    groups |= {name: _join(call[name], acts) for name in ("actions", "hidden") if name in call}
    if "final" in call:
        final, (numbers, hashes, _) = _join(call["final"], everyone), observed["observations"]
        merged = torch.where(ends[:, None], final.numbers, numbers), torch.where(ends, final.hashes, hashes)
        groups["observations"] = _Numbers(*merged, everyone)
    elif not plan.is_same_step:
        groups["observations"] = observed["observations"]
    rows = _Rows(acts if plan.idles else everyone, acts, groups)
    if plan.is_same_step:
        return [rows, _Rows(ends, ~everyone, observed)]
    ended.copy_(ends | ended if plan.idles else ends)
    return [rows]


def _write(call: Mapping[str, Any], plan: Plan, ended: Tensor, chosen: Tensor, block: Block) -> None:
    """Write the rows of one call to a block without the axis of calls. chosen: int64 [S]."""
    block.present.zero_()
    for number, (present, acts, groups) in enumerate(_find_rows(call, plan, ended)):
        zeros = torch.zeros(len(ended), 1, dtype=torch.float64, device=ended.device)
        state, cells = torch.zeros_like(block.digests[number]), []
        for name, is_float, group in plan.columns:
            value = zeros[:, 0]
            if group in groups:
                value = torch.where(groups[group].has, groups[group].numbers.shape[1], value)
            elif name == "kind":
                value = acts.double()
            elif name in call:
                value = torch.where(acts, call[name].reshape(-1).double(), value)
            cells.append(value)
            state = _fold(state, _bits_of(value) if is_float else value.long())
            if group:
                sums = (
                    torch.where(groups[group].has, groups[group].hashes, 0) if group in groups else zeros[:, 0].long()
                )
                state = _fold(state, sums)
        tables = [
            groups[name].numbers if name in groups else zeros.expand(-1, num) for name, num in plan.widths.items()
        ]
        block.present[number].copy_(present)
        block.digests[number].copy_(state)
        block.rows[number].copy_(torch.cat([each[chosen] for each in (torch.stack(cells, 1), *tables)], 1))


def to_tensor(value: Any, device: torch.device | None = None) -> Tensor:
    """Return a value as a tensor on a device, by default its own, without its gradient."""
    return torch.as_tensor(value, device=device).detach()


class RowRecorder:
    """The recorder of rows on one device. On CUDA they are computed by compiled kernels if Triton is installed.

    num_filled: the calls that the current block holds
    """

    def __init__(self, plan: Plan, num_slots: int, chosen: Any, num_calls: int, device: torch.device) -> None:
        self._plan, self._num_slots, self._num_calls = plan, num_slots, num_calls
        with torch.inference_mode(False), device:
            self._chosen = torch.as_tensor(chosen, device=device)
            self._ended = torch.zeros(num_slots, dtype=torch.bool)
        self._write: Any = _write
        if device.type == "cuda" and find_spec("triton") is not None:
            self._write = torch.compile(_write, dynamic=False)
        self._begin()

    def _begin(self) -> None:
        first = self._num_calls, 1 + self._plan.is_same_step
        width = len(self._plan.columns) + sum(self._plan.widths.values())
        with torch.inference_mode(False), self._ended.device:
            self._block = Block(
                torch.empty(*first, self._num_slots, dtype=torch.bool),
                torch.empty(*first, self._num_slots, dtype=torch.int64),
                torch.empty(*first, len(self._chosen), width, dtype=torch.float64),
            )
        self.num_filled = 0

    def add(self, call: Mapping[str, Any]) -> bool:
        """Record a call, without waiting for the device; return whether the block is full.

        call: by name, the tensors [N] of columns, and for each group, `final` included, a tuple of tensors [N, ...]; of a
              reset, `which`, bool [N], and no column
        """
        block = Block(*(each[self.num_filled] for each in self._block))
        with torch.inference_mode(False), torch.no_grad():
            self._write(call, self._plan, self._ended, self._chosen, block)
        self.num_filled += 1
        return self.num_filled == self._num_calls

    def take(self) -> PendingCopy[Block]:
        """Begin to copy the rows of the calls so far to the host, and begin another block."""
        copy = HostCopy()
        types = np.uint8, np.int64, np.float64
        fetched = (copy.fetch(each[: self.num_filled], kind) for each, kind in zip(self._block, types, strict=True))
        found = PendingCopy(Block(*fetched), copy)
        copy.begin()
        self._begin()
        return found
