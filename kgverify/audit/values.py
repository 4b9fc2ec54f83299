"""Nested values: their leaves, copies of them, and comparison bit by bit."""

import copy
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROOTS: Final = {"[0]": "the result", "[1]": "the arguments", "[2]": "what it closes over"}


_FOREIGN: Final = {"torch", "numpy", "builtins", "triton", "sympy", *sys.stdlib_module_names}
_OF_ANY_MODULE: Final = frozenset(vars(torch.nn.Module()))


def is_user_module(module: str | None) -> bool:
    """Return whether a module belongs neither to Python nor to torch."""
    return module is not None and module.split(".")[0] not in _FOREIGN


def list_members(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object by name; of a module of torch its parameters, buffers and children as well."""
    members = dict(vars(owner)) if hasattr(owner, "__dict__") else {}
    members |= {name: getattr(owner, name) for name in getattr(owner, "__struct_fields__", ())}
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(owner, name):
                members[name] = getattr(owner, name)
    if isinstance(owner, torch.nn.Module):
        for name in _OF_ANY_MODULE - {"training"}:
            members.pop(name, None)
        members |= {**owner._parameters, **owner._buffers, **owner._modules}
    return {name: value for name, value in members.items() if not name.startswith("__")}


def has_members(value: Any) -> bool:
    """Return whether a value is an object whose attributes hold data: a module of torch, or an object of the user's."""
    if isinstance(value, torch.nn.Module):
        return True
    has_any = hasattr(value, "__dict__") or hasattr(value, "__struct_fields__") or hasattr(value, "__slots__")
    return has_any and not callable(value) and is_user_module(type(value).__module__)


def list_leaves(tree: Any) -> list[tuple[str, Any]]:
    """List every leaf of nested containers, objects and modules with its path, such as `[0].goal`, in order."""
    found: list[tuple[str, Any]] = []
    _add_leaves("", tree, found, {})
    return found


def _add_leaves(path: str, value: Any, found: list[tuple[str, Any]], around: dict[int, Any]) -> None:
    children = _list_children(value)
    if children is None:
        found.append((path, value))
    elif id(value) not in around:
        around[id(value)] = value
        for name, child in children:
            _add_leaves(f"{path}{name}", child, found, around)
        del around[id(value)]


def _list_children(value: Any) -> list[tuple[str, Any]] | None:
    if isinstance(value, Tensor):
        if type(value) is Tensor or not hasattr(value, "__tensor_flatten__"):
            return None
        names, _ = value.__tensor_flatten__()
        return [(f".{name}", getattr(value, name)) for name in names]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", each) for name, each in zip(value._fields, value, strict=True)]
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if has_members(value):
        return [(f".{name}", each) for name, each in list_members(value).items()]
    return None


def list_tensors(tree: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """List every tensor of nested containers with its path after a prefix."""
    return [(f"{prefix}{path}", leaf) for path, leaf in list_leaves(tree) if isinstance(leaf, Tensor)]


def list_device_types(tree: Any) -> set[str]:
    """List the types of the devices on which the tensors are."""
    return {leaf.device.type for _, leaf in list_tensors(tree)}


def copy_tensor(tensor: Tensor) -> Tensor | None:
    """Copy a tensor's values; None where a captured graph has taken its memory back."""
    try:
        return tensor.detach().clone()
    except RuntimeError:
        return None


def copy_values(tree: Any) -> Any:
    """Copy nested values into memory that nothing else writes."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        return leaf.copy() if isinstance(leaf, (np.ndarray, set)) else leaf

    return pytree.tree_map(copied, tree)


def deepcopy_values(tree: Any) -> Any:
    """Copy nested values as a whole; tensors that share memory still do, where `deepcopy` can copy them."""

    def is_uncopyable(leaf: Tensor) -> bool:
        # `deepcopy` copies leaves of the autograd graph alone, and few classes of tensors.
        return not leaf.is_leaf or type(leaf) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer)

    def copied(leaf: Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            made = leaf.detach().clone()
            made = made if type(made) is type(leaf) else made.as_subclass(type(leaf))
            return made.requires_grad_(leaf.requires_grad)

    # Leaves inside of tensors that consist of others are copied with these.
    memo = {id(leaf): copied(leaf) for _, leaf in list_tensors(tree) if is_uncopyable(leaf)}
    return copy.deepcopy(tree, memo)


def view_bits(tensor: Tensor) -> Tensor:
    """Return the same bits as integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.contiguous().view(_INTEGERS[tensor.element_size()])
    return tensor


class Difference(NamedTuple):
    """A leaf whose bits differ between two values.

    num:     elements that differ, out of size; both 0 where shape, type or device differ
    largest: absolute difference; NaN where a NaN stands on one side alone
    """

    leaf: str
    num: int
    size: int
    largest: float

    def __str__(self) -> str:
        root = _ROOTS.get(self.leaf[:3])
        name = f"{root}{self.leaf[3:]}" if root else self.leaf or "the result"
        if self.size == 0:
            return f"{name} has another shape or type"
        by = f", by up to {self.largest:.3g}" if np.isfinite(self.largest) else ""
        return f"{self.num:,} of {self.size:,} elements of {name} differ{by}"


def find_differences(first: Any, second: Any) -> Iterator[Difference]:
    """Yield the leaves whose bits differ, in order."""
    one, other = list_leaves(first), list_leaves(second)
    if [path for path, _ in one] != [path for path, _ in other]:
        yield Difference("the structure", 0, 0, np.nan)
        return
    for (path, a), (_, b) in zip(one, other, strict=True):
        if (found := _compare_leaves(path, a, b)) is not None:
            yield found


def is_same(first: Any, second: Any) -> bool:
    """Return whether two nested values have the same leaves, bit for bit."""
    return next(find_differences(first, second), None) is None


def _compare_leaves(path: str, a: Any, b: Any) -> Difference | None:
    if not isinstance(a, Tensor | np.ndarray) or not isinstance(b, Tensor | np.ndarray):
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            return Difference(path, 0, 0, np.nan)
        if isinstance(a, float) and isinstance(b, float):
            same = np.float64(a).tobytes() == np.float64(b).tobytes()
            return None if same else Difference(path, 1, 1, abs(a - b))
        return None if a is b or a == b else Difference(path, 1, 1, np.nan)
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return Difference(path, 0, 0, np.nan)
    differs = view_bits(a) != view_bits(b)
    num = int(differs.sum())
    if num == 0:
        return None
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    gap = (a.double() - b.double()).abs()[differs]
    return Difference(path, num, a.numel(), float(gap.amax()))
