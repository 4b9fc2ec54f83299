"""Taps of torch tensors: each is copied to a static buffer, also in compiled code and in captured graphs."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

_Key = tuple[str, torch.Size, torch.dtype, torch.device, torch.Size | None]


class _Buffer(NamedTuple):
    """The copies of a tapped tensor and of its count, and the number of times that it was written: int32 []."""

    value: Tensor
    counts: Tensor | None
    num_written: Tensor


class _Exchange(NamedTuple):
    """A value that may replace a tapped tensor, its counts, and whether it does: bool []."""

    value: Tensor
    counts: Tensor
    is_given: Tensor


_buffers: dict[_Key, _Buffer] = {}
_exchanges: dict[_Key, _Exchange] = {}
"""Captured graphs use these tensors, so that they stay as long as the process."""
_marks: dict[torch.device, Tensor] = {}
_given: Mapping[str, Any] = {}
_mark: Tensor
_keep: Callable[[str, Any, Any], Any]


def may_be_compiled() -> bool:
    """Return whether anything may have been compiled or captured in this process."""
    return "torch._dynamo" in sys.modules or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def run_eagerly() -> AbstractContextManager[Any]:
    """Run compiled functions eagerly. Buffers made then lie outside of the memory of captured graphs, as they must."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def start(device: str, keep: Callable[[str, Any, Any], Any], replaced: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that records taps, or replaces their values. keep: the same for other arrays."""
    global _mark, _keep, _given
    own = torch.device(device)
    if own not in _marks:
        _marks[own] = torch.zeros((), dtype=torch.int32, device=own)
    _mark, _keep = _marks[own], keep
    if may_be_compiled():
        # A graph that writes into an input is captured only if the address of the input is fixed.
        torch._dynamo.mark_static_address(_mark, guard=False)
    _given = replaced
    return replace if replaced else record


def record(name: str, value: Any, count: Any) -> Any:
    """Copy a tensor to its buffer, and return it."""
    if not isinstance(value, Tensor):
        return _keep(name, value, count)
    if count is not None and not isinstance(count, Tensor):
        count = torch.full((1,), count, device=value.device)
    _copy(str(name), value, count, _mark)
    return value


def replace(name: str, value: Any, count: Any) -> Any:
    """Return a tapped tensor, or the tensor that replaces it; then its count is overwritten."""
    if not isinstance(value, Tensor):
        return _keep(name, value, count)
    if count is not None and not isinstance(count, Tensor):
        return value
    return _exchange(str(name), value, _mark if count is None else count)


def clear() -> None:
    """Forget which taps were written, and set the values that replace others."""
    for buffer in _buffers.values():
        buffer.num_written.zero_()
    for (name, *_), exchange in _exchanges.items():
        given = _given.get(name)
        # Other engines in this process may have taps of other shapes.
        fits = given is not None and given.value.shape == exchange.value.shape
        exchange.is_given.fill_(fits)
        if given is not None and fits:
            exchange.value.copy_(torch.from_numpy(given.value))
            if given.counts is not None:
                exchange.counts.copy_(torch.from_numpy(given.counts))


def collect() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the value and the count of each tap that was written since `clear`."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.cuda.synchronize()
    for (name, *_), buffer in _buffers.items():
        for _ in range(int(buffer.num_written)):
            yield name, _to_numpy(buffer.value), None if buffer.counts is None else _to_numpy(buffer.counts)


def _to_numpy(value: Tensor) -> Any:
    host = value.detach().cpu()
    return (host.double() if host.is_floating_point() else host).numpy().copy()


@torch.library.custom_op("kgverify::tap", mutates_args=("mark",))
def _copy(name: str, value: Tensor, count: Tensor | None, mark: Tensor) -> None:
    """Copy a tensor and its count. Writing `mark` keeps the operation, although nothing uses a result of it."""
    key = name, value.shape, value.dtype, value.device, None if count is None else count.shape
    if key not in _buffers:
        _buffers[key] = _Buffer(
            torch.empty_like(value, memory_format=torch.contiguous_format),
            None if count is None else torch.empty_like(count, memory_format=torch.contiguous_format),
            torch.zeros((), dtype=torch.int32, device=value.device),
        )
    buffer = _buffers[key]
    buffer.value.copy_(value)
    if count is not None and buffer.counts is not None:
        buffer.counts.copy_(count)
    buffer.num_written.add_(1)
    mark.add_(1)


@_copy.register_fake
def _(name: str, value: Tensor, count: Tensor | None, mark: Tensor) -> None:
    return None


@torch.library.custom_op("kgverify::exchange", mutates_args=("count",))
def _exchange(name: str, value: Tensor, count: Tensor) -> Tensor:
    """Return a tensor, or the one that replaces it, and overwrite its count."""
    key = name, value.shape, value.dtype, value.device, count.shape
    if key not in _exchanges:
        no = torch.zeros((), dtype=torch.bool, device=value.device)
        _exchanges[key] = _Exchange(torch.zeros_like(value), torch.zeros_like(count), no)
    given = _exchanges[key]
    count.copy_(torch.where(given.is_given, given.counts, count))
    return torch.where(given.is_given, given.value, value)


@_exchange.register_fake
def _(name: str, value: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(value)
