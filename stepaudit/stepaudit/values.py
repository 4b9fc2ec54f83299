"""Nested values: their leaves, copies and differences."""

import copy
import hashlib
import sys
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

USUAL_TENSORS: Final = (Tensor, torch.nn.Parameter, torch.nn.Buffer)
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROOTS: Final = {"[0]": "the result", "[1]": "the arguments", "[2]": "what it closes over"}


_FOREIGN: Final = {"torch", "numpy", "builtins", "triton", "sympy", *sys.stdlib_module_names}
_OF_ANY_MODULE: Final = frozenset(vars(torch.nn.Module()))


def is_user_module(module: str | None) -> bool:
    """Return whether a module belongs neither to Python nor to torch."""
    return module is not None and module.split(".")[0] not in _FOREIGN


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or None."""
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))


def list_members(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object by name; for a torch module, its parameters, buffers and children as well."""
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
    """Return whether a value is an object whose attributes hold data: a torch module, or an object of the user."""
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, types.SimpleNamespace) or (is_dataclass(value) and not isinstance(value, type)):
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
        return [(f"[{name_key(key, number)}]", each) for number, (key, each) in enumerate(value.items())]
    if has_members(value):
        return [(f".{name}", each) for name, each in list_members(value).items()]
    return None


def name_key(key: Any, number: int) -> str:
    """Return the text of a key of a mapping. A tensor, whose values change, has its number."""
    return f"tensor {number}" if isinstance(key, Tensor) else repr(key)


def list_tensors(tree: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """List every tensor of nested containers with its path after a prefix."""
    return [(f"{prefix}{path}", leaf) for path, leaf in list_leaves(tree) if isinstance(leaf, Tensor)]


def is_on_cuda(tree: Any) -> bool:
    """Return whether a tensor of nested containers is on a CUDA device."""
    return any(tensor.is_cuda for _, tensor in list_tensors(tree))


def copy_tensor(tensor: Tensor) -> Tensor | None:
    """Copy a tensor's values; None if a captured graph has taken its memory back."""
    try:
        return tensor.detach().clone()
    except RuntimeError:
        return None


def find_storage(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 for none."""
    try:
        return tensor.untyped_storage().data_ptr() if tensor.numel() else 0
    except RuntimeError:
        return 0


def find_aliases(given: Iterable[tuple[str, int]], later: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return the later leaves that share memory with a given or an earlier leaf, each with the first such leaf.

    Each leaf is given by its path and the address of its memory, 0 for none.
    """
    first: dict[int, str] = {}
    for path, memory in given:
        first.setdefault(memory, path)
    pairs = ((path, first.setdefault(memory, path)) for path, memory in later if memory)
    return {path: earlier for path, earlier in pairs if earlier != path}


def count_writes(tensor: Tensor) -> int:
    """Return the number of writes in place; -1 for tensors of inference mode, which do not count them."""
    return -1 if tensor.is_inference() else tensor._version


def copy_values(tree: Any) -> Any:
    """Copy nested values into memory that nothing else writes."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        return leaf.copy() if isinstance(leaf, (np.ndarray, set)) else leaf

    return pytree.tree_map(copied, tree)


def deepcopy_values(tree: Any) -> Any:
    """Copy nested values as a whole. Tensors that share memory still share it, if `deepcopy` can copy them."""

    def copied(leaf: Tensor) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            made = leaf.detach().clone()
            made = made if type(made) is type(leaf) else made.as_subclass(type(leaf))
            return made.requires_grad_(leaf.requires_grad)

    # `deepcopy` copies only leaves of the autograd graph, and few classes of tensors. Leaves inside tensors that consist
    # of other tensors are copied with those tensors.
    others = (leaf for _, leaf in list_tensors(tree) if not leaf.is_leaf or type(leaf) not in USUAL_TENSORS)
    memo = {id(leaf): copied(leaf) for leaf in others}
    return copy.deepcopy(tree, memo)


def convert_tensors(tree: Any, convert: Callable[[Tensor], Tensor]) -> Any:
    """Copy nested values, also objects, with other tensors; return the values themselves if no tensor changes."""
    memo: dict[int, Any] = {}
    is_same_tensor = True
    for _, leaf in list_tensors(tree):
        other = convert(leaf.detach())
        is_same_tensor &= other.data_ptr() == leaf.data_ptr() and other.device == leaf.device
        made = torch.nn.Parameter(other, leaf.requires_grad) if isinstance(leaf, torch.nn.Parameter) else other
        memo[id(leaf)] = made.requires_grad_(leaf.requires_grad)
    return tree if is_same_tensor else copy.deepcopy(tree, memo)


def view_bits(tensor: Tensor) -> Tensor:
    """Return the same bits as integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return tensor.contiguous().view(_INTEGERS[tensor.element_size()])
    return tensor


def digest_values(tree: Any) -> tuple[int, ...]:
    """Return a number for each leaf of nested values, which differs for other bits."""
    bits = (
        view_bits(make_dense(leaf.detach()).resolve_conj().resolve_neg()).cpu().contiguous().numpy().tobytes()
        if isinstance(leaf, Tensor)
        else repr(leaf).encode() * is_plain(leaf)
        for leaf in pytree.tree_leaves(tree)
    )
    return tuple(map(zlib.crc32, bits))


def make_dense(tensor: Tensor) -> Tensor:
    """Return the elements of a quantized or sparse tensor as a plain tensor, and other tensors unchanged."""
    dense = tensor.dequantize() if tensor.is_quantized else tensor
    return dense if dense.layout == torch.strided else dense.to_dense()


class Precision(NamedTuple):
    """The differences that count.

    tolerance: the largest absolute and relative error of a float; if None, a unit of rounding, relative to the float itself
               and to the largest one beside it
    """

    tolerance: float | None = None
    is_exact: bool = False


USUAL: Final = Precision()
EXACT: Final = Precision(is_exact=True)


class Other(NamedTuple):
    """Stands for a value other than a tensor, an array, a container, or a builtin value. text: its text, if it has one."""

    kind: str
    text: str = ""


def find_differences(expected: Any, actual: Any, precision: Precision = EXACT) -> Iterator[str]:
    """Describe the leaves that differ between two values, in order."""
    one, other = list_leaves(expected), list_leaves(actual)
    if [path for path, _ in one] != [path for path, _ in other]:
        yield "the structure differs"
        return
    for (path, a), (_, b) in zip(one, other, strict=True):
        if found := describe_difference(a, b, precision):
            yield f"{_ROOTS.get(path[:3], path[:3] or 'the result')}{path[3:]} differs: {found}"


def is_same(first: Any, second: Any, precision: Precision = EXACT) -> bool:
    """Return whether two nested values have the same leaves, bit for bit unless a precision is given."""
    return not any(find_differences(first, second, precision))


def describe_difference(expected: Any, actual: Any, precision: Precision = USUAL) -> str:
    """Describe how two leaves differ; empty if they are equal."""
    if isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray) and expected.dtype != object != actual.dtype:
        expected, actual = torch.as_tensor(expected), torch.as_tensor(actual)
    if precision.is_exact and isinstance(expected, float) and isinstance(actual, float):
        expected, actual = (torch.tensor(each, dtype=torch.float64) for each in (expected, actual))
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        return _describe_plain_difference(expected, actual)
    for what in ("dtype", "shape", "device", "requires_grad"):
        if getattr(expected, what) != getattr(actual, what):
            return f"expected {what} {getattr(expected, what)}, found {getattr(actual, what)}"
    is_other = find_other_elements(expected, actual, precision)
    if not bool(is_other.any()):
        return ""
    first = is_other.nonzero()[0].tolist()
    at = f" at {first}" if first else ""
    values = expected[tuple(first)].item(), actual[tuple(first)].item()
    counted = f"{int(is_other.sum()):,} of {is_other.numel():,} elements"
    return f"{counted};{at} expected {values[0]!r}, found {values[1]!r}"


def find_other_elements(expected: Tensor, actual: Tensor, precision: Precision = USUAL) -> Tensor:
    """Return a mask of the unequal elements of two tensors with the same shape and dtype."""
    expected, actual = make_dense(expected), make_dense(actual)
    if not expected.is_floating_point() and not expected.is_complex():
        return expected != actual
    if precision.is_exact:
        is_other = view_bits(expected) != view_bits(actual)
        return is_other.any(-1) if expected.is_complex() else is_other
    relative = absolute = precision.tolerance
    unit = torch.finfo(expected.dtype).eps
    if expected.element_size() == 1:
        expected, actual = expected.float(), actual.float()
    if relative is None or absolute is None:
        relative, absolute = unit, unit * scale_of(expected)
    return ~torch.isclose(actual, expected, relative, absolute, equal_nan=True)


def describe_other_signs(expected: Any, actual: Any) -> str:
    """Describe the zeros of two equal tensors that have different signs; empty for no such zeros."""
    if not isinstance(expected, Tensor) or expected.layout != torch.strided or expected.is_quantized:
        return ""
    if expected.is_complex():
        expected, actual = torch.view_as_real(expected.resolve_conj()), torch.view_as_real(actual.resolve_conj())
    if not expected.is_floating_point():
        return ""
    one, other = (each.detach().double() for each in (expected, actual))
    num = int(((one == 0) & (other == 0) & (one.signbit() != other.signbit())).sum())
    return f"{num:,} zeros have another sign" if num else ""


def make_digest(state: Any) -> str:
    """Return a short text that differs for different values, which must have a complete `repr`."""
    with np.printoptions(threshold=sys.maxsize):
        return hashlib.sha256(repr(state).encode()).hexdigest()[:8]


def scale_of(tensor: Tensor) -> float:
    """Return the largest finite absolute value of a tensor; 0 for none."""
    tensor = tensor.detach().float() if tensor.element_size() == 1 else tensor.detach()
    finite = tensor[tensor.isfinite()].abs()
    return float(finite.amax()) if finite.numel() else 0.0


def _describe_plain_difference(expected: Any, actual: Any) -> str:
    if type(expected) is not type(actual):
        return f"expected a {_name_kind(expected)}, found a {_name_kind(actual)}"
    if isinstance(expected, Other) and expected != actual:
        return f"expected {expected.text or expected.kind}, found {actual.text or actual.kind}"
    same = expected is actual or expected == actual or (expected != expected and actual != actual)
    return "" if same else f"expected {expected!r}, found {actual!r}"


def _name_kind(value: Any) -> str:
    return value.kind if isinstance(value, Other) else type(value).__name__
