"""Taps of torch tensors: each is copied to a static buffer, also in compiled code and in captured graphs."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _Buffer(NamedTuple):
    """A copy of a tapped tensor and of its counts, or what replaces them; a number says how often, or whether: int32 []."""

    value: Tensor
    counts: Tensor | None
    number: Tensor


_Buffers = dict[tuple[Any, ...], _Buffer]
_written: _Buffers = {}
_exchanged: _Buffers = {}
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
    for buffer in _written.values():
        buffer.number.zero_()
    for (name, *_), buffer in _exchanged.items():
        given = _given.get(name)
        # Other engines in this process may have taps of other shapes.
        fits = given is not None and given.value.shape == buffer.value.shape
        buffer.number.fill_(fits)
        for own, new in zip(buffer, given or (), strict=False) if fits else ():
            if own is not None and new is not None:
                own.copy_(torch.from_numpy(new))


def collect() -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the value and the count of each tap that was written since `clear`."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch does not annotate it
        torch.cuda.synchronize()
    for (name, *_), buffer in _written.items():
        for _ in range(int(buffer.number)):
            yield name, _to_numpy(buffer.value), None if buffer.counts is None else _to_numpy(buffer.counts)


def _to_numpy(value: Tensor) -> Any:
    host = value.detach().cpu()
    return (host.double() if host.is_floating_point() else host).numpy().copy()


def _make_empty(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _find_buffer(buffers: _Buffers, name: str, value: Tensor, count: Tensor | None) -> _Buffer:
    key = name, value.shape, value.dtype, value.device, None if count is None else count.shape
    if key not in buffers:
        counts = None if count is None else _make_empty(count)
        buffers[key] = _Buffer(_make_empty(value), counts, torch.zeros((), dtype=torch.int32, device=value.device))
    return buffers[key]


@torch.library.custom_op("kgverify::tap", mutates_args=("mark",))
def _copy(name: str, value: Tensor, count: Tensor | None, mark: Tensor) -> None:
    """Copy a tensor and its count. Writing `mark` keeps the operation, although nothing uses a result of it."""
    buffer = _find_buffer(_written, name, value, count)
    buffer.value.copy_(value)
    if count is not None and buffer.counts is not None:
        buffer.counts.copy_(count)
    buffer.number.add_(1)
    mark.add_(1)


@_copy.register_fake
def _(name: str, value: Tensor, count: Tensor | None, mark: Tensor) -> None:
    return None


@torch.library.custom_op("kgverify::exchange", mutates_args=("count",))
def _exchange(name: str, value: Tensor, count: Tensor) -> Tensor:
    """Return a tensor, or the one that replaces it, and overwrite its count."""
    other, counts, number = _find_buffer(_exchanged, name, value, count)
    if counts is not None:
        count.copy_(torch.where(number > 0, counts, count))
    return torch.where(number > 0, other, value).contiguous()


@_exchange.register_fake
def _(name: str, value: Tensor, count: Tensor) -> Tensor:
    return _make_empty(value)
