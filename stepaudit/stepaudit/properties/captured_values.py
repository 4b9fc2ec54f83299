"""The values that a function captures, in closures, globals and attributes, and how to change and restore them."""

import copy
import enum
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import getitem, setitem
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.eval_frame import OptimizedModule
from torch._library.custom_ops import CustomOpDef

from stepaudit.source_lines import find_code, find_read, list_codes
from stepaudit.values import copy_tensor, is_plain, is_same, is_user_module, list_members, make_digest, name_key

_DEEPEST: Final = 16
_MOST: Final = 5000
_MISSING: Final = object()
"""Stands for a value that no longer exists."""
_UNREAD: Final = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
"""The classes of torch whose objects keep state that the user does not read."""
_FUNCTIONS: Final = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_CONTAINERS: Final = (list, dict, set, deque)
_GENERATORS: Final = (torch.Generator, random.Random, np.random.Generator)
_CONSTANTS: Final = (enum.Enum, torch.dtype, torch.device)
_HOLDERS: Final = (Tensor, np.ndarray, *_GENERATORS, *_CONTAINERS)


@dataclass(frozen=True)
class CapturedValue:
    """A value that a function reads without receiving it as an argument.

    path:     in the user's words: `closure scale`, `global TABLE[3]`, `self.width`
    name:     the name of the variable, global or attribute that is read
    code:     the code that may read the value
    read:     returns the value; set: replaces it
    is_inner: whether it can only be replaced together with the tuple or frozen object around it, which is also captured
    """

    path: str
    name: str
    code: types.CodeType
    read: Callable[[], Any]
    set: Callable[[Any], None]
    is_inner: bool = False

    @property
    def is_settable(self) -> bool:
        """True if the value can be replaced."""
        return self.set is not _refuse

    def get(self) -> Any:
        """Return the value; None if it no longer exists."""
        value = self.read_if_present()
        return None if value is _MISSING else value

    def read_if_present(self) -> Any:
        """Return the value; `_MISSING` if it no longer exists."""
        try:
            return self.read()
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            return _MISSING

    @property
    def where(self) -> str:
        """The line that reads the value."""
        return find_read((self.code,), self.name) or f"{self.code.co_filename}:{self.code.co_firstlineno}"


def _is_data(value: Any) -> bool:
    """Return whether a value is compared after a call. The items of other containers are values themselves."""
    if isinstance(value, (set, frozenset)):
        return all(map(is_plain, value))
    is_array = isinstance(value, np.ndarray) and value.dtype != object
    return is_array or isinstance(value, (Tensor, *_CONSTANTS)) or is_plain(value)


def read_generator(value: torch.Generator | random.Random | np.random.Generator) -> str:
    """Return a digest of the state of a generator of random numbers."""
    if isinstance(value, torch.Generator):
        return make_digest(value.get_state().tolist())
    return make_digest(value.getstate() if isinstance(value, random.Random) else value.bit_generator.state)


def find_captured_values(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> "CapturedState":
    """Find the tensors and plain values that a function can read in closures, globals, attributes and containers.

    arguments: the arguments of a call, whose values the call may change as well
    """
    state = CapturedState()
    state.visit_function(function)
    values = list(state.values)
    code = find_code(function)
    if code is not None:
        state.visit_given("argument [{}]", enumerate(arguments), code)
    state.values = values
    return state


class CapturedState:
    """Everything that a function can read without receiving it. Iterating yields the values.

    holders:     the tensors, containers, objects and generators of random numbers that a call may change
    is_complete: whether the search reached everything
    unrestored:  the iterators and system generators, which a call may advance and nothing can set back
    """

    def __init__(self) -> None:
        self.values: list[CapturedValue] = []
        self.holders: list[Any] = []
        self.is_complete = True
        self.unrestored: list[str] = []
        self._codes: list[types.CodeType] = []
        # By identity. The values are kept alive, since the identity of a deleted value may be reused.
        self._seen: dict[int, Any] = {}

    def __iter__(self) -> Iterator[CapturedValue]:
        return iter(self.values)

    def read_data(self) -> dict[str, Any]:
        """Return the tensors and plain values, by path."""
        held = {captured.path: captured.get() for captured in self.values}
        states = {path: read_generator(value) for path, value in held.items() if isinstance(value, _GENERATORS)}
        return {path: value for path, value in held.items() if _is_data(value)} | states

    def _is_first_visit(self, value: Any) -> bool:
        """Return whether the walk meets a value for the first time and has room for it. Mark the value as met."""
        if id(value) in self._seen:
            return False
        if len(self.values) >= _MOST:
            self.is_complete = False
            return False
        self._seen[id(value)] = value
        return True

    def visit_given(self, path: str, given: Iterable[tuple[Any, Any]], code: types.CodeType) -> None:
        """Walk over values that cannot be replaced. The number or name of each value becomes part of its path."""
        for name, value in given:
            read = partial(lambda value: value, value)
            self._visit_value(CapturedValue(path.format(name), str(name), code, read, _refuse), 0)

    def visit_function(self, function: Any) -> None:
        """Walk over anything callable."""
        if not self._is_first_visit(function):
            return
        code = find_code(function)
        if isinstance(function, types.FunctionType):
            self._visit_plain_function(function)
        elif isinstance(function, types.MethodType):
            owner = function.__self__
            self.visit_function(function.__func__)
            # The state of torch's own objects, such as the context of `no_grad`, does not belong to the user.
            if code is not None and _is_users(owner):
                self._visit_members(owner, "self", code, 0)
        elif hasattr(function, "__wrapped__"):
            if hasattr(function, "cache_clear"):
                self.holders.append(function)
            self.visit_function(function.__wrapped__)
        elif hasattr(function, "func") and hasattr(function, "args"):
            self.visit_function(function.func)
            if code is not None:
                given = [*enumerate(function.args), *(getattr(function, "keywords", None) or {}).items()]
                self.visit_given("argument {} of the partial", given, code)
        elif not isinstance(function, type) and _is_users(function):
            self._visit_call(function)
            if code is not None:
                self._visit_members(function, "self", code, 0)

    def _visit_call(self, function: Any) -> None:
        """Walk over the code that a call of an object runs."""
        call = function.forward if isinstance(function, torch.nn.Module) else type(function).__call__
        self.visit_function(getattr(call, "__func__", call))

    def _visit_plain_function(self, function: types.FunctionType) -> None:
        if not is_user_module(function.__module__):
            return
        code, scope, cells = function.__code__, function.__globals__, function.__closure__ or ()
        if not is_user_module(scope["__name__"]):
            # A decorator of torch has wrapped the user's function, and copied its name.
            for cell in cells:
                # The cell may not be filled yet.
                with suppress(ValueError):
                    if isinstance(cell.cell_contents, types.FunctionType):
                        self.visit_function(cell.cell_contents)
            return
        for name, cell in zip(code.co_freevars, cells, strict=True):
            self._visit_part(cell, "cell_contents", f"closure {name}", name, code, is_item=False)
        for nested, names in list_codes(code):
            self._codes.append(nested)
            for name in names:
                value = scope.get(name)
                if name in scope and not isinstance(value, types.ModuleType):
                    self._visit_part(scope, name, f"global {name}", name, nested)
                elif isinstance(value, types.ModuleType) and is_user_module(value.__name__):
                    for attribute in (each for each in names if each in vars(value)):
                        self._visit_part(vars(value), attribute, f"global {name}.{attribute}", attribute, nested)
        self.visit_given("default {}", enumerate(function.__defaults__ or ()), code)
        for name in function.__kwdefaults__ or {}:
            self._visit_part(function.__kwdefaults__, name, f"default {name}", name, code)

    def _visit_part(
        self, owner: Any, key: Any, path: str, name: str, code: types.CodeType, depth: int = 0, *, is_item: bool = True
    ) -> None:
        """Walk over an item of a container, or an attribute of an object."""
        get, put = (getitem, setitem) if is_item else (getattr, setattr)
        self._visit_value(CapturedValue(path, name, code, partial(get, owner, key), partial(put, owner, key)), depth)

    def _visit_value(self, captured: CapturedValue, depth: int) -> None:
        """Walk over a value that code reads. The cell of a closure may not be filled yet."""
        value = captured.read_if_present()
        if depth > _DEEPEST or len(self.values) >= _MOST:
            self.is_complete = False
        elif is_plain(value) or isinstance(value, _CONSTANTS):
            self.values.append(captured)
        elif isinstance(value, random.SystemRandom):
            self.unrestored.append(f"{captured.path} ({type(value).__name__})")
        elif isinstance(value, (tuple, Mapping, *_HOLDERS)):
            if self._is_first_visit(value):
                self.values.append(captured)
                if isinstance(value, _HOLDERS):
                    self.holders.append(value)
                self._visit_items(value, captured, depth + 1)
        elif isinstance(value, type):
            if is_user_module(value.__module__) and self._is_first_visit(value):
                self._visit_class(value, captured, depth + 1)
        elif isinstance(value, types.ModuleType) or value is Ellipsis or value is _MISSING:
            return
        elif hasattr(value, "__next__"):
            self.unrestored.append(f"{captured.path} ({type(value).__name__})")
        elif callable(value) and (
            isinstance(value, _FUNCTIONS)
            or not (hasattr(value, "__dict__") or hasattr(value, "__struct_fields__"))
            or hasattr(value, "cache_clear")
        ):
            self.values.append(captured)
            self.visit_function(value)
        elif isinstance(value, CustomOpDef):
            self.visit_function(value._init_fn)
        elif isinstance(value, OptimizedModule):
            self.values.append(captured)
            inner = captured.path, captured.name, captured.code, depth + 1
            self._visit_part(value, "_orig_mod", *inner, is_item=False)
        elif _is_users(value):
            if callable(value):
                self._visit_call(value)
            if _is_frozen(value) or isinstance(value, torch.nn.Module):
                self.values.append(captured)
            found = len(self.values)
            self._visit_members(value, captured.path, captured.code, depth + 1, captured)
            if isinstance(value, _UNREAD):
                # What an optimizer keeps is restored; where and in what form it does so is its own affair.
                del self.values[found:]

    def _visit_class(self, kind: type, captured: CapturedValue, depth: int) -> None:
        """Walk over the plain data in a user's class."""
        for name, value in list(vars(kind).items()):
            is_data = is_plain(value) or isinstance(value, (Tensor, *_CONTAINERS))
            if is_data and not name.startswith("_") and not hasattr(kind, "__members__"):
                self._visit_part(kind, name, f"{captured.path}.{name}", name, captured.code, depth, is_item=False)

    def _visit_items(self, value: Any, captured: CapturedValue, depth: int) -> None:
        if isinstance(value, (list, deque, Mapping)):
            for number, key in enumerate(list(value if isinstance(value, Mapping) else range(len(value)))):
                path = f"{captured.path}[{name_key(key, number)}]"
                self._visit_part(value, key, path, captured.name, captured.code, depth)
        elif isinstance(value, tuple):
            fields = getattr(value, "_fields", None)
            for number in range(len(value)):
                inner, name = (f".{fields[number]}", fields[number]) if fields else (f"[{number}]", captured.name)
                self._visit_inner(captured, f"{captured.path}{inner}", name, captured.code, depth, number)

    def _visit_members(
        self, owner: Any, path: str, code: types.CodeType, depth: int, captured: CapturedValue | None = None
    ) -> None:
        """Walk over the attributes of an object. captured: the object itself, replaced as a whole if it is frozen."""
        if not self._is_first_visit(owner) and depth:
            return
        is_frozen = _is_frozen(owner)
        if hasattr(owner, "__dict__") and not is_frozen:
            self.holders.append(owner)
            if isinstance(owner, torch.nn.Module):
                self.holders += [owner._parameters, owner._buffers, owner._modules]
        codes = code, *_list_methods(type(owner)), *self._codes
        if is_frozen and captured is None:
            captured = CapturedValue(path, "self", code, lambda: owner, _refuse)
        for name in list_members(owner):
            reader = next((each for each in codes if name in each.co_names and find_read((each,), name)), code)
            if is_frozen and captured is not None:
                self._visit_inner(captured, f"{path}.{name}", name, reader, depth + 1, name)
            else:
                self._visit_part(owner, name, f"{path}.{name}", name, reader, depth + 1, is_item=False)

    def _visit_inner(
        self, whole: CapturedValue, path: str, name: str, code: types.CodeType, depth: int, key: int | str
    ) -> None:
        """Walk over an item of a tuple, or an attribute of a frozen object, which is replaced as a whole."""
        pick: Any = getitem if isinstance(key, int) else getattr
        put = (lambda new: whole.set(_rebuild(whole.read(), key, new))) if whole.is_settable else _refuse
        self._visit_value(CapturedValue(path, name, code, lambda: pick(whole.read(), key), put, is_inner=True), depth)


def _rebuild(whole: Any, key: int | str, new: Any) -> Any:
    """Return a tuple with an item replaced, or a frozen object with an attribute replaced."""
    if isinstance(key, int):
        items = (*whole[:key], new, *whole[key + 1 :])
        return type(whole)(*items) if hasattr(whole, "_fields") else type(whole)(items)
    other = copy.copy(whole)
    if hasattr(whole, "__struct_fields__"):
        # A frozen Struct of msgspec refuses `object.__setattr__`.
        getattr(type(whole), key).__set__(other, new)
    else:
        object.__setattr__(other, key, new)
    return other


def _is_users(value: Any) -> bool:
    return isinstance(value, (torch.nn.Module, *_UNREAD)) or is_user_module(type(value).__module__)


def _list_methods(kind: type) -> list[types.CodeType]:
    """Return the codes of the methods of a user's class, except its constructor."""
    held = (item for each in kind.__mro__ if is_user_module(each.__module__) for item in vars(each).items())
    codes = (find_code(value) for name, value in held if name != "__init__" and isinstance(value, types.FunctionType))
    return [code for code in codes if code is not None]


def _is_frozen(value: Any) -> bool:
    settings = getattr(value, "__dataclass_params__", None) or getattr(value, "__struct_config__", None)
    return bool(getattr(settings, "frozen", False))


def _refuse(value: Any) -> None:
    raise TypeError("this value cannot be replaced")


@contextmanager
def restoring(state: CapturedState) -> Iterator[None]:
    """Restore captured values afterwards: the objects, the values of tensors, the items of containers."""
    settable = (each for each in state if each.is_settable and not each.is_inner)
    values = [(each, value) for each in settable if (value := each.read_if_present()) is not _MISSING]
    contents = [_keep_contents(holder) for holder in state.holders]
    try:
        yield
    finally:
        # Containers come first, since a removed item has no place to be restored to.
        for restore in contents:
            restore()
        for captured, value in values:
            if captured.read_if_present() is not value:
                captured.set(value)


def _keep_contents(holder: Any) -> Callable[[], object]:
    """Copy what a holder holds now. Return the function that restores it."""
    if isinstance(holder, Tensor):
        grad = holder.grad if holder.is_leaf else None
        grad_values = copy_tensor(grad) if grad is not None else None
        return partial(_restore_tensor, holder, copy_tensor(holder), holder.requires_grad, grad, grad_values)
    if isinstance(holder, torch.Generator):
        return partial(holder.set_state, holder.get_state())
    if isinstance(holder, np.ndarray):
        values = holder.copy()
        return lambda: np.copyto(holder, values) if holder.flags.writeable else None
    if hasattr(holder, "cache_clear"):
        return partial(holder.cache_clear)
    if isinstance(holder, random.Random):
        return partial(holder.setstate, holder.getstate())
    if isinstance(holder, np.random.Generator):
        return partial(setattr, holder.bit_generator, "state", holder.bit_generator.state)
    held = holder if isinstance(holder, _CONTAINERS) else vars(holder)
    return partial(_restore_items, held, copy.copy(held))


def _restore_tensor(
    tensor: Tensor, values: Tensor | None, requires_grad: bool, grad: Tensor | None, grad_values: Tensor | None
) -> None:
    if values is not None:
        set_tensor(tensor, values)
    if tensor.is_leaf and tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)
    if tensor.is_leaf and tensor.grad is not grad:
        tensor.grad = grad
    if grad is not None and grad_values is not None:
        set_tensor(grad, grad_values)


def _restore_items(held: Any, kept: Any) -> None:
    # Unchanged tensors are not written: guards of compiled code may read the number of writes.
    if _identify(held) != _identify(kept):
        held.clear()
        (held.extend if isinstance(held, (list, deque)) else held.update)(kept)


def _identify(container: Any) -> list[int]:
    items = (*container, *container.values()) if isinstance(container, dict) else container
    return [id(each) for each in items]


def set_tensor(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other values in its own memory, or in new memory if the shape has changed."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if tensor.shape != values.shape or tensor.dtype != values.dtype:
            tensor.data = values.clone()
        elif copy_tensor(tensor) is not None and not is_same(tensor.detach(), values):
            held = tensor.detach()
            # Torch refuses to write a dimension of stride 0, which repeats one element, as a whole.
            if held.layout == torch.strided and 0 in held.stride():
                part = tuple(slice(None if step else 1) for step in held.stride())
                held, values = held[part], values[part]
            held.copy_(values)
