"""The values that a function captures, in closures, globals and attributes, and how to change and restore them."""

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import getitem, setitem
from typing import Any, Final

import torch
from torch import Tensor

from stepaudit.source_lines import find_code, find_read, list_codes
from stepaudit.values import copy_tensor, has_members, is_same, is_user_module, list_members

_DEEPEST: Final = 16
_MOST: Final = 5000
_MISSING: Final = object()
"""Stands for a value that no longer exists."""
_CONTAINERS: Final = (list, dict, set, deque)


@dataclass(frozen=True)
class CapturedValue:
    """A value that a function reads without receiving it as an argument.

    path:     in the user's words: `closure scale`, `global TABLE[3]`, `self.width`
    name:     of the variable, global or attribute that is read
    code:     the code that may read it
    read:     returns the value; set: replaces it
    is_inner: whether replacing it means replacing the tuple or frozen object around it, which is captured as well
    """

    path: str
    name: str
    code: types.CodeType
    read: Callable[[], Any]
    set: Callable[[Any], None]
    is_inner: bool = False

    @property
    def is_settable(self) -> bool:
        """True if another value can be put there."""
        return self.set is not _refuse

    def get(self) -> Any:
        """Return the value; None where there is no longer one."""
        value = self.read_if_present()
        return None if value is _MISSING else value

    def read_if_present(self) -> Any:
        """Return the value; `_MISSING` where there is no longer one."""
        try:
            return self.read()
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            return _MISSING

    @property
    def where(self) -> str:
        """The line that reads the value."""
        return find_read((self.code,), self.name) or f"{self.code.co_filename}:{self.code.co_firstlineno}"


@dataclass(frozen=True)
class CapturedState:
    """Everything that a function can read without receiving it. Iterating yields the values.

    holders:     the tensors, containers, objects and generators of random numbers that a call may change
    is_complete: whether the search reached everything
    """

    values: list[CapturedValue] = field(default_factory=list)
    holders: list[Any] = field(default_factory=list)
    is_complete: bool = True

    def __iter__(self) -> Iterator[CapturedValue]:
        return iter(self.values)

    def read_data(self) -> dict[str, Any]:
        """Return the tensors and plain values, by path."""
        held = ((captured.path, captured.get()) for captured in self.values)
        return {path: value for path, value in held if isinstance(value, Tensor) or is_plain(value)}


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or nothing."""
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))


def find_captured_values(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> CapturedState:
    """Find the tensors and plain values that a function can read in closures, globals, attributes and containers.

    arguments: of a call, to find what the call may change in them as well
    """
    walk = _Walk()
    walk.visit_function(function)
    values = list(walk.found)
    code = find_code(function)
    if code is not None:
        walk.visit_given("argument [{}]", enumerate(arguments), code)
    return CapturedState(values, walk.holders, walk.is_complete)


class _Walk:
    """A walk over everything that a function can reach."""

    def __init__(self) -> None:
        self.found: list[CapturedValue] = []
        self.holders: list[Any] = []
        self.is_complete = True
        self._codes: list[types.CodeType] = []
        # By identity; the values stay alive, since an identity says nothing of a value that is gone.
        self._seen: dict[int, Any] = {}

    def _is_first_visit(self, value: Any) -> bool:
        """Return whether the walk meets a value for the first time, and has room for it; marks it as met."""
        if id(value) in self._seen:
            return False
        if len(self.found) >= _MOST:
            self.is_complete = False
            return False
        self._seen[id(value)] = value
        return True

    def visit_given(self, path: str, given: Iterable[tuple[Any, Any]], code: types.CodeType) -> None:
        """Walk over values that cannot be replaced, each with its number or name, which takes its place in the path."""
        for name, value in given:
            read = partial(lambda value: value, value)
            self.visit_value(CapturedValue(path.format(name), str(name), code, read, _refuse), 0)

    def visit_function(self, function: Any) -> None:
        """Walk over anything callable."""
        if not self._is_first_visit(function):
            return
        code = find_code(function)
        if isinstance(function, types.MethodType):
            owner = function.__self__
            self.visit_function(function.__func__)
            # The state of torch's own objects, such as the context of `no_grad`, is not the user's.
            is_users = isinstance(owner, torch.nn.Module) or is_user_module(type(owner).__module__)
            if code is not None and is_users:
                self._visit_members(owner, "self", code, 0)
        elif isinstance(function, types.FunctionType):
            self._visit_plain_function(function)
        elif hasattr(function, "__wrapped__"):
            self.visit_function(function.__wrapped__)
        elif hasattr(function, "func") and hasattr(function, "args"):
            self.visit_function(function.func)
            if code is not None:
                given = [*enumerate(function.args), *(getattr(function, "keywords", None) or {}).items()]
                self.visit_given("argument {} of the partial", given, code)
        elif isinstance(function, torch.nn.Module) or (
            not isinstance(function, type) and is_user_module(type(function).__module__)
        ):
            self._visit_call(function)
            if code is not None:
                self._visit_members(function, "self", code, 0)

    def _visit_call(self, function: Any) -> None:
        """Walk over what a call of an object runs."""
        call = function.forward if isinstance(function, torch.nn.Module) else type(function).__call__
        self.visit_function(getattr(call, "__func__", call))

    def _visit_plain_function(self, function: types.FunctionType) -> None:
        if not is_user_module(function.__module__):
            return
        if not is_user_module(function.__globals__["__name__"]):
            # A decorator of torch's made it around the user's function, and gave it the name of that one.
            for cell in function.__closure__ or ():
                # It may not be filled yet.
                with suppress(ValueError):
                    if isinstance(cell.cell_contents, types.FunctionType):
                        self.visit_function(cell.cell_contents)
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            read, put = partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents")
            captured = CapturedValue(f"closure {name}", name, code, read, put)
            # It may not be filled yet.
            if captured.read_if_present() is not _MISSING:
                self.visit_value(captured, 0)
        for nested, names in list_codes(code):
            self._codes.append(nested)
            for name in names:
                if name not in function.__globals__:
                    continue
                value = function.__globals__[name]
                if not isinstance(value, types.ModuleType):
                    self._visit_item(function.__globals__, name, f"global {name}", name, nested, 0)
                elif is_user_module(value.__name__):
                    for attribute in (each for each in names if each in vars(value)):
                        self._visit_item(vars(value), attribute, f"global {name}.{attribute}", attribute, nested, 0)
        self.visit_given("default {}", enumerate(function.__defaults__ or ()), code)
        for name in function.__kwdefaults__ or {}:
            self._visit_item(function.__kwdefaults__, name, f"default {name}", name, code, 0)

    def _visit_item(self, container: Any, key: Any, path: str, name: str, code: types.CodeType, depth: int) -> None:
        self.visit_value(
            CapturedValue(path, name, code, partial(getitem, container, key), partial(setitem, container, key)), depth
        )

    def visit_value(self, captured: CapturedValue, depth: int) -> None:
        """Walk over a value that code reads."""
        value = captured.read()
        if depth > _DEEPEST or len(self.found) >= _MOST:
            self.is_complete = False
            return
        if is_plain(value):
            self.found.append(captured)
        elif isinstance(value, (Tensor, torch.Generator)):
            if self._is_first_visit(value):
                self.found.append(captured)
                self.holders.append(value)
        elif isinstance(value, (tuple, Mapping, *_CONTAINERS)):
            if self._is_first_visit(value):
                self.found.append(captured)
                if isinstance(value, _CONTAINERS):
                    self.holders.append(value)
                self._visit_items(value, captured, depth)
        elif isinstance(value, type):
            if is_user_module(value.__module__) and self._is_first_visit(value):
                self._visit_class(value, captured, depth)
        elif isinstance(value, types.ModuleType) or value is Ellipsis:
            return
        elif callable(value) and not _has_state(value):
            self.found.append(captured)
            self.visit_function(value)
        elif isinstance(value, torch.nn.Module) or is_user_module(type(value).__module__):
            if callable(value):
                self._visit_call(value)
            if _is_frozen(value) or isinstance(value, torch.nn.Module):
                self.found.append(captured)
            self._visit_members(value, captured.path, captured.code, depth + 1, captured)

    def _visit_class(self, kind: type, captured: CapturedValue, depth: int) -> None:
        """Walk over the plain data that a class of the user's holds."""
        for name, value in list(vars(kind).items()):
            is_data = is_plain(value) or isinstance(value, (Tensor, *_CONTAINERS))
            if is_data and not name.startswith("_") and not hasattr(kind, "__members__"):
                read, put = partial(getattr, kind, name), partial(setattr, kind, name)
                self.visit_value(CapturedValue(f"{captured.path}.{name}", name, captured.code, read, put), depth + 1)

    def _visit_items(self, value: Any, captured: CapturedValue, depth: int) -> None:
        if isinstance(value, (set, deque)):
            return
        if isinstance(value, (list, Mapping)):
            for key in list(value if isinstance(value, Mapping) else range(len(value))):
                self._visit_item(value, key, f"{captured.path}[{key!r}]", captured.name, captured.code, depth + 1)
            return
        fields = getattr(value, "_fields", None)
        for number in range(len(value)):
            inner = f"{captured.path}.{fields[number]}" if fields else f"{captured.path}[{number}]"

            def rebuild(new: Any, number: int = number) -> None:
                whole = captured.read()
                items = [*whole[:number], new, *whole[number + 1 :]]
                captured.set(type(value)(*items) if fields else type(value)(items))

            def pick(number: int = number) -> Any:
                return captured.read()[number]

            called = fields[number] if fields else captured.name
            put = rebuild if captured.is_settable else _refuse
            self.visit_value(CapturedValue(inner, called, captured.code, pick, put, is_inner=True), depth + 1)

    def _visit_members(
        self, owner: Any, path: str, code: types.CodeType, depth: int, captured: CapturedValue | None = None
    ) -> None:
        """Walk over the attributes of an object. captured: the object itself, replaced as a whole where it is frozen."""
        if not self._is_first_visit(owner) and depth:
            return
        is_frozen = _is_frozen(owner)
        if hasattr(owner, "__dict__") and not is_frozen:
            self.holders.append(owner)
            if isinstance(owner, torch.nn.Module):
                self.holders += [owner._parameters, owner._buffers, owner._modules]
        codes = code, *_list_methods(type(owner)), *self._codes
        for name in list_members(owner):

            def put(new: Any, name: str = name) -> None:
                if not is_frozen:
                    setattr(owner, name, new)
                elif captured is not None and captured.is_settable:
                    other = copy.copy(captured.read())
                    _force(other, name, new)
                    captured.set(other)
                else:
                    raise TypeError("a frozen object cannot be replaced here")

            def pick(name: str = name) -> Any:
                return getattr(captured.read() if is_frozen and captured is not None else owner, name)

            reader = next((each for each in codes if name in each.co_names and find_read((each,), name)), code)
            self.visit_value(CapturedValue(f"{path}.{name}", name, reader, pick, put, is_inner=is_frozen), depth + 1)


def _list_methods(kind: type) -> list[types.CodeType]:
    """Return the codes of the methods of a user's class, without the one that makes an object."""
    held = (item for each in kind.__mro__ if is_user_module(each.__module__) for item in vars(each).items())
    codes = (find_code(value) for name, value in held if name != "__init__" and isinstance(value, types.FunctionType))
    return [code for code in codes if code is not None]


def _is_frozen(value: Any) -> bool:
    settings = getattr(value, "__dataclass_params__", None) or getattr(value, "__struct_config__", None)
    return bool(getattr(settings, "frozen", False))


def _force(value: Any, name: str, new: Any) -> None:
    if hasattr(value, "__struct_fields__"):
        # A frozen Struct of msgspec refuses `object.__setattr__`.
        getattr(type(value), name).__set__(value, new)
    else:
        object.__setattr__(value, name, new)


def _has_state(value: Any) -> bool:
    return not isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)) and (
        has_members(value) or hasattr(value, "__dict__") or hasattr(value, "__struct_fields__")
    )


def _refuse(value: Any) -> None:
    raise TypeError("this value cannot be replaced")


class Snapshot:
    """The present contents of a captured state, which can be restored any number of times."""

    def __init__(self, state: CapturedState) -> None:
        settable = (each for each in state if each.is_settable and not each.is_inner)
        self._values = [(each, value) for each in settable if (value := each.read_if_present()) is not _MISSING]
        self._contents = [(holder, _copy_contents(holder)) for holder in state.holders]

    def restore(self) -> None:
        """Put back the objects, the items of containers, the attributes, and the values of tensors."""
        # Containers first: an item that is gone has no place to be put back.
        for holder, kept in self._contents:
            _put_contents(holder, kept)
        for captured, value in self._values:
            if captured.read_if_present() is not value:
                captured.set(value)


def _copy_contents(holder: Any) -> Any:
    if isinstance(holder, Tensor):
        grad = holder.grad if holder.is_leaf else None
        return copy_tensor(holder), holder.requires_grad, grad, copy_tensor(grad) if grad is not None else None
    if isinstance(holder, torch.Generator):
        return holder.get_state()
    return copy.copy(holder) if isinstance(holder, _CONTAINERS) else dict(vars(holder))


def _put_contents(holder: Any, kept: Any) -> None:
    if isinstance(holder, Tensor):
        values, requires_grad, grad, grad_values = kept
        if values is not None:
            set_tensor(holder, values)
        if holder.is_leaf:
            if holder.requires_grad != requires_grad:
                holder.requires_grad_(requires_grad)
            if holder.grad is not grad:
                holder.grad = grad
            if grad is not None and grad_values is not None:
                set_tensor(grad, grad_values)
    elif isinstance(holder, torch.Generator):
        holder.set_state(kept)
    elif isinstance(holder, (list, deque)):
        if not _has_same_items(holder, kept):
            holder.clear()
            holder.extend(kept)
    elif isinstance(holder, set):
        holder &= kept
        holder |= kept
    else:
        held = holder if isinstance(holder, dict) else vars(holder)
        if not _has_same_items(held, kept) or not _has_same_items(held.values(), kept.values()):
            held.clear()
            held.update(kept)


def _has_same_items(one: Iterable[Any], other: Iterable[Any]) -> bool:
    held, kept = list(one), list(other)
    return len(held) == len(kept) and all(a is b for a, b in zip(held, kept, strict=True))


def set_tensor(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor other values in its own memory, or other memory where the shape has changed."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if tensor.shape != values.shape or tensor.dtype != values.dtype:
            tensor.data = values.clone()
        elif not is_same(tensor.detach(), values):
            tensor.detach().copy_(values)


@contextmanager
def restoring(state: CapturedState) -> Iterator[None]:
    """Restore captured values afterwards: the objects, the values of tensors, the items of containers."""
    snapshot = Snapshot(state)
    try:
        yield
    finally:
        snapshot.restore()
