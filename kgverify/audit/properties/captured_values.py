"""The values that a function captures, in closures, globals and attributes, and how to change and restore them."""

import copy
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import getitem, setitem
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from kgverify.audit.source_lines import find_code, find_read, list_codes
from kgverify.audit.values import copy_tensor, is_same

_DEEPEST: Final = 5
_MOST: Final = 2000
_MISSING: Final = object()
"""Stands for a value that no longer exists."""
_FOREIGN: Final = {"torch", "numpy", "builtins", "triton", "sympy", *sys.stdlib_module_names}


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


def find_captured_values(function: Callable[..., Any]) -> list[CapturedValue]:
    """Find the tensors and plain values that a function can read in closures, globals, attributes and containers."""
    walk = _Walk()
    walk.visit_function(function)
    return walk.found


class _Walk:
    """A walk over everything that a function can reach."""

    def __init__(self) -> None:
        self.found: list[CapturedValue] = []
        # By identity; the values stay alive, since an identity says nothing of a value that is gone.
        self._seen: dict[int, Any] = {}

    def _is_first_visit(self, value: Any) -> bool:
        """Return whether the walk meets a value for the first time, and has room for it; marks it as met."""
        if id(value) in self._seen or len(self.found) >= _MOST:
            return False
        self._seen[id(value)] = value
        return True

    def visit_function(self, function: Any) -> None:
        """Walk over anything callable."""
        if not self._is_first_visit(function):
            return
        if isinstance(function, types.MethodType):
            code = find_code(function)
            self.visit_function(function.__func__)
            if code is not None:
                self._visit_members(function.__self__, "self", code, 0)
        elif isinstance(function, types.FunctionType):
            self._visit_plain_function(function)
        elif hasattr(function, "__wrapped__"):
            self.visit_function(function.__wrapped__)
        elif hasattr(function, "func") and hasattr(function, "args"):
            self.visit_function(function.func)
            code = find_code(function)
            if code is not None:
                for number in range(len(function.args)):
                    path, read = f"argument {number} of the partial", partial(getitem, function.args, number)
                    self._visit_value(CapturedValue(path, str(number), code, read, _refuse), 0)
        elif not isinstance(function, type) and _is_user_module(type(function).__module__):
            code = find_code(function)
            call = function.forward if isinstance(function, torch.nn.Module) else type(function).__call__
            self.visit_function(getattr(call, "__func__", call))
            if code is not None:
                self._visit_members(function, "self", code, 0)

    def _visit_plain_function(self, function: types.FunctionType) -> None:
        if not _is_user_module(function.__module__):
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            read, put = partial(getattr, cell, "cell_contents"), partial(setattr, cell, "cell_contents")
            captured = CapturedValue(f"closure {name}", name, code, read, put)
            # It may not be filled yet.
            if captured.read_if_present() is not _MISSING:
                self._visit_value(captured, 0)
        for nested, names in list_codes(code):
            for name in names:
                if name not in function.__globals__:
                    continue
                value = function.__globals__[name]
                if not isinstance(value, types.ModuleType):
                    self._visit_item(function.__globals__, name, f"global {name}", name, nested, 0)
                elif _is_user_module(value.__name__):
                    for attribute in (each for each in names if each in vars(value)):
                        self._visit_item(vars(value), attribute, f"global {name}.{attribute}", attribute, nested, 0)
        for name in function.__kwdefaults__ or {}:
            self._visit_item(function.__kwdefaults__, name, f"default {name}", name, code, 0)

    def _visit_item(self, container: Any, key: Any, path: str, name: str, code: types.CodeType, depth: int) -> None:
        self._visit_value(
            CapturedValue(path, name, code, partial(getitem, container, key), partial(setitem, container, key)), depth
        )

    def _visit_value(self, captured: CapturedValue, depth: int) -> None:
        """Walk over a value that code reads."""
        value = captured.read()
        if depth > _DEEPEST or len(self.found) >= _MOST:
            return
        if isinstance(value, (bool, int, float, str)) or value is None:
            if captured.is_settable:
                self.found.append(captured)
        elif isinstance(value, Tensor):
            if self._is_first_visit(value):
                self.found.append(captured)
        elif isinstance(value, (list, tuple, Mapping)):
            if self._is_first_visit(value):
                self.found.append(captured)
                self._visit_items(value, captured, depth)
        elif isinstance(value, (types.ModuleType, type)) or value is Ellipsis:
            return
        elif callable(value) and not _has_state(value):
            self.visit_function(value)
        elif _is_user_module(type(value).__module__):
            if callable(value):
                self.visit_function(value)
            if _is_frozen(value):
                self.found.append(captured)
            self._visit_members(value, captured.path, captured.code, depth + 1, captured)

    def _visit_items(self, value: Any, captured: CapturedValue, depth: int) -> None:
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
            self._visit_value(CapturedValue(inner, called, captured.code, pick, put, is_inner=True), depth + 1)

    def _visit_members(
        self, owner: Any, path: str, code: types.CodeType, depth: int, captured: CapturedValue | None = None
    ) -> None:
        """Walk over the attributes of an object. captured: the object itself, replaced as a whole where it is frozen."""
        if not self._is_first_visit(owner) and depth:
            return
        is_frozen = _is_frozen(owner)
        members = dict(vars(owner)) if hasattr(owner, "__dict__") else {}
        members |= {name: getattr(owner, name) for name in getattr(owner, "__struct_fields__", ())}
        if isinstance(owner, torch.nn.Module):
            members |= {**owner._parameters, **owner._buffers, **owner._modules}
        for name in members:
            if name.startswith("__") or (isinstance(owner, torch.nn.Module) and name.startswith("_")):
                continue

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

            self._visit_value(CapturedValue(f"{path}.{name}", name, code, pick, put, is_inner=is_frozen), depth + 1)


def _is_user_module(module: str | None) -> bool:
    return module is not None and module.split(".")[0] not in _FOREIGN


def _is_frozen(value: Any) -> bool:
    settings = getattr(value, "__dataclass_params__", None) or getattr(value, "__struct_config__", None)
    return bool(getattr(settings, "frozen", False))


def _force(value: Any, name: str, new: Any) -> None:
    if hasattr(value, "__struct_fields__"):
        msgspec.structs.force_setattr(value, name, new)
    else:
        object.__setattr__(value, name, new)


def _has_state(value: Any) -> bool:
    return not isinstance(value, (types.FunctionType, types.MethodType, types.BuiltinFunctionType)) and (
        hasattr(value, "__dict__") or hasattr(value, "__struct_fields__")
    )


def _refuse(value: Any) -> None:
    raise TypeError("this value cannot be replaced")


@contextmanager
def restoring(found: list[CapturedValue]) -> Iterator[None]:
    """Restore captured values afterwards: the objects, the values of tensors, the items of containers."""
    held: list[tuple[CapturedValue, Any, Any]] = []
    for captured in found:
        value = captured.read_if_present()
        if isinstance(value, Tensor):
            kept: Any = copy_tensor(value)
        else:
            kept = copy.copy(value) if isinstance(value, (list, dict)) else value
        if value is not _MISSING:
            held.append((captured, value, kept))
    try:
        yield
    finally:
        for captured, value, kept in held:
            if captured.is_settable and not captured.is_inner:
                captured.set(value)
            if isinstance(value, Tensor):
                if kept is not None and value.shape == kept.shape and not is_same(value, kept):
                    value.detach().copy_(kept)
            elif isinstance(value, list):
                value[:] = kept
            elif isinstance(value, dict):
                value.clear()
                value.update(kept)
