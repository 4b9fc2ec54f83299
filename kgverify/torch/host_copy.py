"""Copies of tensors to the host beside the computation: on a separate stream, and without waiting for them."""

from typing import Any, Final, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

T = TypeVar("T")

_SIGNED: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def signed_type(dtype: DTypeLike) -> torch.dtype:
    """Return the tensor type for an array type: for unsigned numbers, the signed type that holds their bits."""
    kind = np.dtype(dtype)
    return torch.float32 if kind == np.float32 else _SIGNED[kind.itemsize]


class PendingCopy(Generic[T]):
    """A value whose arrays are being copied to the host. value: its arrays have their sizes, but no numbers before `wait`."""

    def __init__(self, value: T, copies: "HostCopy | None" = None) -> None:
        self.value, self._sending = value, copies

    def wait(self) -> T:
        """Wait for the copies and return the complete value."""
        if self._sending is not None:
            self._sending.wait()
        return self.value


class HostCopy:
    """Copies of tensors to the host, on a separate stream: `fetch` prepares a copy, and `begin` begins all prepared copies.

    If a tensor will be written again, fetch a clone of it, or call `wait_for_copies` before the write.
    """

    def __init__(self) -> None:
        self._prepared: list[tuple[Tensor, Tensor]] = []
        self._event: torch.cuda.Event | None = None

    def fetch(self, tensor: Tensor, dtype: DTypeLike) -> NDArray[Any]:
        """Return the array that will hold a tensor's values, converted to an integer type; floats keep their type."""
        if tensor.is_floating_point():
            kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        else:
            # Unsigned numbers keep their bits.
            kind, tensor = np.dtype(dtype), tensor.to(signed_type(dtype))
        if not tensor.is_cuda:
            return tensor.contiguous().clone().numpy().view(kind)
        # A user may have chosen another default device.
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._prepared.append((host, tensor))
        return host.numpy().view(kind)

    def begin(self) -> None:
        """Begin the prepared copies."""
        if not self._prepared:
            return
        device = self._prepared[0][1].device
        stream = _side_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for host, tensor in self._prepared:
                host.copy_(tensor, non_blocking=True)
                # The memory of the tensor must not be reused before it has been read.
                tensor.record_stream(stream)
        self._prepared.clear()
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def wait(self) -> None:
        """Wait until every copy that has begun is complete."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def is_complete(self) -> bool:
        """True if every copy that has begun is complete; this does not wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]


def wait_for_copies(device: torch.device) -> None:
    """Let all later launches wait for the copies that have begun."""
    torch.cuda.current_stream(device).wait_stream(_side_stream(device))


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _STREAMS[device]
