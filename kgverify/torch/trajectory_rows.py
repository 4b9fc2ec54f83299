"""The rows of a trajectory on a device: a table that each call fills, with the digests of its rows, and copies of some of them.

N slots, C calls, S slots whose rows are kept. A call returns to each slot at most a STEP row and a RESET row, in this order.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kgverify.torch.host_copy import HostCopy, PendingCopy

MAX_CALLS: Final = 64
"""The maximum number of calls whose rows stay on the device before they are copied to the host."""

_MAX_BYTES: Final = 1 << 26

Call = Mapping[str, Sequence[Tensor]]
"""The columns and groups of one call, by name: tensors [N, ...]. A reset has `which`, bool [N], and no column."""


class Block(NamedTuple):
    """The rows of some calls: tensors, or arrays.

    present: bool or uint8 [C, 2, N]  whether the call returned this row to the slot
    digests: int64 [C, 2, N]
    rows:    float64 [C, 2, S, width]  the columns of steps, then the numbers of each group
    """

    present: Any
    digests: Any
    rows: Any


def to_tensor(value: Any, device: torch.device | None = None) -> Tensor:
    """Return a value as a tensor on a device, by default its own, without its gradient."""
    return torch.as_tensor(value, device=device).detach()


def find_kernel(device: torch.device) -> Callable[..., None] | None:
    """Return the function that computes digests on a device; None if the host must compute them."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from kgverify.torch.trajectory_kernel import digest_rows

    return digest_rows


class _Graph:
    """A CUDA graph of a function of a call, which reads copies of the call's tensors."""

    def __init__(self, function: Callable[[Call], None], call: Call) -> None:
        self._own = {name: tuple(leaf.clone() for leaf in leaves) for name, leaves in call.items()}
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may use the device in the meantime.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            function(self._own)

    def run(self, call: Call) -> None:
        own = [leaf for leaves in self._own.values() for leaf in leaves]
        torch._foreach_copy_(own, [leaf for leaves in call.values() for leaf in leaves])
        self._graph.replay()


class RowRecorder:
    """The recorder of rows on one device.

    columns:    the columns of steps, in the order of the schema; the value says whether a column holds floats
    groups:     the groups of numbers, each with the column that counts them, and their number in a row; 0 if unknown
    autoreset:  the mode, in Gymnasium's words
    chosen:     int64 [S]  the slots whose rows are kept; without a kernel, all are kept, and `has_digests` is False
    num_filled: the calls that the current block holds
    """

    def __init__(
        self,
        columns: Mapping[str, bool],
        groups: Mapping[str, tuple[str, int]],
        autoreset: str,
        num_slots: int,
        chosen: Any,
        device: torch.device,
    ) -> None:
        self._groups, self._autoreset, self._digest = groups, autoreset, find_kernel(device)
        self.has_digests, names = self._digest is not None, list(columns)
        widths = [1] * len(names) + [num for _, num in groups.values()]
        counted = dict(groups.values())
        self._bits = [
            sum(1 << i for i, name in enumerate(names) if is_one(name))
            for is_one in (columns.get, counted.__contains__)
        ]
        with torch.inference_mode(False), device:
            self._chosen = torch.as_tensor(chosen) if self.has_digests else torch.arange(num_slots)
            self._counted = torch.tensor([counted.get(name, 0) for name in names], dtype=torch.int32)
            # The slots whose next episode has not begun.
            self._ended = torch.zeros(num_slots, dtype=torch.bool)
            # First the rows of steps, then those of resets.
            self._table = torch.zeros(2, num_slots, sum(widths), dtype=torch.float64)
            self._views = dict(zip([*names, *groups], torch.split(self._table, widths, 2), strict=True))
            self._views["kind"][0] = 1
            for group, (count, num) in groups.items():
                self._views[count][0 if group in ("actions", "hidden") else slice(None)] = num
            self._present = torch.zeros(2, num_slots, dtype=torch.bool)
            self._words = torch.zeros(2, num_slots, dtype=torch.int64)
            (_, _, width), kept = self._table.shape, len(self._chosen)
            self._num_calls = max(1, min(MAX_CALLS, _MAX_BYTES // (2 * kept * width * 8)))
            shape = self._num_calls, 2
            self._block = Block(
                torch.zeros(*shape, num_slots, dtype=torch.bool),
                torch.zeros(*shape, num_slots, dtype=torch.int64),
                torch.zeros(*shape, kept, width, dtype=torch.float64),
            )
            self._at = torch.zeros(1, dtype=torch.int64)
        self._graphs: dict[tuple[str, ...], _Graph] = {}
        self.num_filled = 0

    def add(self, call: Call) -> bool:
        """Record a call, without waiting for the device; return whether the block is full. Every call has the same columns."""
        if self._table.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a replay of a captured CUDA graph would record nothing: call the recorder outside of it"
            )
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(self._table):  # type: ignore[no-untyped-call]
            graph = self._graphs.get(tuple(call))
            if graph is not None:
                graph.run(call)
            else:
                self._record(call)
                if self._table.is_cuda and self.has_digests:
                    # The first call has compiled the kernel.
                    self._graphs[tuple(call)] = _Graph(self._record, call)
        self.num_filled += 1
        return self.num_filled == self._num_calls

    def _record(self, call: Call) -> None:
        self._fill(call)
        if self._digest is not None:
            self._digest(self._table, self._counted, self._words, *self._bits)
        new = self._present, self._words, self._table.index_select(1, self._chosen)
        for whole, rows in zip(self._block, new, strict=True):
            whole.index_copy_(0, self._at, rows[None])
        self._at += 1

    def _fill(self, call: Call) -> None:
        """Write the rows of a call to the table. A row that is not present may hold anything."""
        observed = {name: call[name] for name in ("observations", "masks", "states") if name in call}
        if "which" in call:
            self._put(1, observed)
            self._present[0], self._present[1] = False, call["which"][0].reshape(-1)
            self._ended &= ~self._present[1]
            return
        self._put(0, {name: call[name] for name in call if name != "observations" or "final" not in call})
        flags = [call[name][0].reshape(-1).bool() for name in ("terminated", "truncated") if name in call]
        ends = torch.stack(flags).any(0)
        self._present[0] = ~self._ended
        is_same_step = self._autoreset == "same_step"
        if self._autoreset == "disabled":
            self._present[1] = False
            self._ended |= ends
        else:
            self._put(1, observed)
            self._present[1] = ends if is_same_step else self._ended
            if not is_same_step:
                torch.logical_and(ends, self._present[0], out=self._ended)
        if "final" in call:
            pairs = zip(call["final"], call["observations"], strict=True)
            merged = [torch.where(ends.reshape(-1, *[1] * (one.ndim - 1)), one, two) for one, two in pairs]
            self._put(0, {"observations": merged})
        # No action follows the observation that ends an episode, so it has neither a mask nor a state.
        for group in observed:
            count, num = self._groups[group]
            is_shown = group == "observations" and ("final" in call or not is_same_step)
            self._views[count][0, :, 0] = num if is_shown else ~ends * num

    def _put(self, row: int, call: Call) -> None:
        for name in call.keys() & self._views.keys():
            sizes = [leaf.numel() // len(leaf) for leaf in call[name]]
            parts = torch.split(self._views[name][row], sizes, 1)
            for part, leaf in zip(parts, call[name], strict=True):
                part.view(leaf.shape).copy_(leaf)

    def take(self) -> PendingCopy[Block]:
        """Begin to copy the rows of the calls so far to the host, and begin another block."""
        copy = HostCopy()
        types = np.uint8, np.int64, np.float64
        with torch.inference_mode(False):
            # The next calls write to the block again.
            rows = [each[: self.num_filled].clone() for each in self._block]
            self._at.zero_()
        found = PendingCopy(Block(*(copy.fetch(*each) for each in zip(rows, types, strict=True))), copy)
        copy.begin()
        self.num_filled = 0
        return found
