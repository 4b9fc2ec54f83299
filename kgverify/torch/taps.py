"""Taps of torch tensors: each is copied to a static buffer, also in compiled code and in captured graphs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_Key = tuple[str, torch.Size, torch.dtype, torch.device, torch.Size | None]


class _Buffer(NamedTuple):
    """The copies of a tapped tensor and of its count, and the number of times that it was written: int32 []."""

    value: Tensor
    count: Tensor | None
    num_written: Tensor


_buffers: dict[_Key, _Buffer] = {}
"""Captured graphs write into these buffers, so that they stay as long as the process."""
_marks: dict[torch.device, Tensor] = {}
_given: dict[str, tuple[Tensor, Tensor | None]] = {}
_mark: Tensor
_keep: Callable[[str, Any, Any], Any]


def start(device: str, keep: Callable[[str, Any, Any], Any], replaced: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function that records taps, or replaces their values. keep: the same for other arrays."""
    global _mark, _keep
    own = torch.device(device)
    if own not in _marks:
        mark = torch.zeros((), dtype=torch.int32, device=own)
        # A graph that writes into an input is captured only if the address of the input is fixed.
        torch._dynamo.mark_static_address(mark, guard=False)
        _marks[own] = mark
    _mark, _keep = _marks[own], keep
    for buffer in _buffers.values():
        buffer.num_written.zero_()
    if not replaced:
        return record
    _given.clear()
    for name, (value, count) in replaced.items():
        _given[name] = torch.from_numpy(value).to(own), None if count is None else torch.from_numpy(count).to(own)
    return replace


def record(name: str, value: Any, count: Any) -> Any:
    """Copy a tensor to its buffer, and return it."""
    if not isinstance(value, Tensor):
        return _keep(name, value, count)
    if count is not None and not isinstance(count, Tensor):
        count = torch.full((1,), count, device=value.device)
    _copy(str(name), value, count, _mark)
    return value


def replace(name: str, value: Any, count: Any) -> Any:
    """Return the tensor that replaces a tapped one, and overwrite its count; return other tensors unchanged."""
    if not isinstance(value, Tensor):
        return _keep(name, value, count)
    if name not in _given:
        return value
    return _exchange(str(name), value, count if isinstance(count, Tensor) else _mark)


def collect() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the value and the count of each tap that was written, and forget that it was."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for (name, *_), buffer in _buffers.items():
        for _ in range(int(buffer.num_written)):
            yield name, _to_numpy(buffer.value), None if buffer.count is None else _to_numpy(buffer.count)
        buffer.num_written.zero_()


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
    if count is not None and buffer.count is not None:
        buffer.count.copy_(count)
    buffer.num_written.add_(1)
    mark.add_(1)


@_copy.register_fake
def _(name: str, value: Tensor, count: Tensor | None, mark: Tensor) -> None:
    return None


@torch.library.custom_op("kgverify::exchange", mutates_args=("count",))
def _exchange(name: str, value: Tensor, count: Tensor) -> Tensor:
    """Return the tensor that replaces another one, and overwrite its count."""
    given, given_count = _given[name]
    if given_count is not None:
        count.copy_(given_count)
    return given.to(value.dtype, copy=True)


@_exchange.register_fake
def _(name: str, value: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(value)
