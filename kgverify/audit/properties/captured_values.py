"""What a function closes over: every value that it can read without being given it, and how to change and restore it."""

import copy
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from kgverify.audit.source_lines import code_of, reading_line
from kgverify.audit.audited_function import is_same_leaf

_DEEPEST: Final = 5
_MOST: Final = 2000
_MISSING: Final = object()
"""Stands for what has gone from its place."""
_FOREIGN: Final = {"torch", "numpy", "builtins", "triton", "sympy", *sys.stdlib_module_names}


@dataclass(frozen=True)
class Place:
    """One value that a function reads of what surrounds it.

    path: as one would write it: `closure scale`, `global TABLE[3]`, `self.width`
    name: what is read: a variable's, a global's or an attribute's
    code: that may read it
    is_inner: whether it is put there by replacing the tuple or frozen object around it, which is a place as well
    """

    path: str
    name: str
    code: types.CodeType
    read: Callable[[], Any]
    set: Callable[[Any], None]
    is_inner: bool = False

    @property
    def is_settable(self) -> bool:
        """Whether something else can be put there."""
        return self.set is not _refuse

    def get(self) -> Any:
        """What is there now; None where nothing is."""
        value = self.look()
        return None if value is _MISSING else value

    def look(self) -> Any:
        """What is there now; a value of its own where nothing is."""
        try:
            return self.read()
        except (KeyError, IndexError, AttributeError, ValueError, TypeError):
            return _MISSING

    @property
    def where(self) -> str:
        """The line that reads it."""
        return reading_line((self.code,), self.name) or f"{self.code.co_filename}:{self.code.co_firstlineno}"


def places(function: Callable[..., Any]) -> list[Place]:
    """Every place that a function can read: tensors and plain values in closures, globals, attributes, containers."""
    walk = _Walk()
    walk.function(function, "")
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found: list[Place] = []
        self._seen: set[int] = set()
        # An identity says nothing of a value that is gone.
        self._alive: list[Any] = []

    def _is_first_visit(self, value: Any) -> bool:
        """Whether the walk has not come to it yet, and has room for it; it has come to it from then on."""
        if id(value) in self._seen or len(self.found) >= _MOST:
            return False
        self._seen.add(id(value))
        self._alive.append(value)
        return True

    def function(self, function: Any, name: str) -> None:
        """Whatever can be called."""
        if not self._is_first_visit(function):
            return
        if isinstance(function, types.MethodType):
            code = code_of(function)
            self.function(function.__func__, name)
            if code is not None:
                self._members(function.__self__, "self", code, 0)
        elif isinstance(function, types.FunctionType):
            self._plain(function)
        elif hasattr(function, "__wrapped__"):
            self.function(function.__wrapped__, name)
        elif hasattr(function, "func") and hasattr(function, "args"):
            self.function(function.func, name)
            code = code_of(function)
            if code is not None:
                for number, value in enumerate(function.args):
                    path = f"argument {number} of the partial"
                    self._value(Place(path, str(number), code, _constant(value), _refuse), 0)
        elif not isinstance(function, type) and _is_own(type(function).__module__):
            code = code_of(function)
            call = function.forward if isinstance(function, torch.nn.Module) else type(function).__call__
            self.function(getattr(call, "__func__", call), name)
            if code is not None:
                self._members(function, "self", code, 0)

    def _plain(self, function: types.FunctionType) -> None:
        if not _is_own(function.__module__):
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            place = Place(f"closure {name}", name, code, _cell_reader(cell), _cell_setter(cell))
            try:
                place.read()
            except ValueError:
                # Not filled yet.
                continue
            self._value(place, 0)
        for nested, names in _codes(code):
            for name in names:
                if name not in function.__globals__:
                    continue
                value = function.__globals__[name]
                if isinstance(value, types.ModuleType):
                    if _is_own(value.__name__):
                        self._module(value, name, nested, names)
                    continue
                self._item(function.__globals__, name, f"global {name}", name, nested, 0)
        for name in function.__kwdefaults__ or {}:
            self._item(function.__kwdefaults__, name, f"default {name}", name, code, 0)

    def _item(self, container: Any, key: Any, path: str, name: str, code: types.CodeType, depth: int) -> None:
        self._value(Place(path, name, code, lambda: container[key], _item_setter(container, key)), depth)

    def _module(self, module: types.ModuleType, name: str, code: types.CodeType, names: tuple[str, ...]) -> None:
        for attribute in names:
            if attribute in vars(module):
                self._item(vars(module), attribute, f"global {name}.{attribute}", attribute, code, 0)

    def _value(self, place: Place, depth: int) -> None:
        """What a code reads."""
        value = place.read()
        if depth > _DEEPEST or len(self.found) >= _MOST:
            return
        if isinstance(value, (bool, int, float, str)) or value is None:
            if place.is_settable:
                self.found.append(place)
        elif isinstance(value, Tensor):
            if self._is_first_visit(value):
                self.found.append(place)
        elif isinstance(value, (list, tuple, Mapping)):
            if self._is_first_visit(value):
                self.found.append(place)
                self._items(value, place, depth)
        elif isinstance(value, (types.ModuleType, type)) or value is Ellipsis:
            return
        elif callable(value) and not _has_state(value):
            self.function(value, place.name)
        elif _is_own(type(value).__module__):
            if callable(value):
                self.function(value, place.name)
            if _is_frozen(value):
                self.found.append(place)
            self._members(value, place.path, place.code, depth + 1, place)

    def _items(self, value: Any, place: Place, depth: int) -> None:
        if isinstance(value, (list, Mapping)):
            for key in list(value if isinstance(value, Mapping) else range(len(value))):
                self._item(value, key, f"{place.path}[{key!r}]", place.name, place.code, depth + 1)
            return
        fields = getattr(value, "_fields", None)
        for number in range(len(value)):
            inner = f"{place.path}.{fields[number]}" if fields else f"{place.path}[{number}]"

            def rebuild(new: Any, number: int = number) -> None:
                whole = place.read()
                items = [*whole[:number], new, *whole[number + 1 :]]
                place.set(type(value)(*items) if fields else type(value)(items))

            def pick(number: int = number) -> Any:
                return place.read()[number]

            called = fields[number] if fields else place.name
            put = rebuild if place.is_settable else _refuse
            self._value(Place(inner, called, place.code, pick, put, is_inner=True), depth + 1)

    def _members(self, owner: Any, path: str, code: types.CodeType, depth: int, place: Place | None = None) -> None:
        """The attributes of an object. place: its own, where one that is frozen is replaced."""
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
                elif place is not None and place.is_settable:
                    other = copy.copy(place.read())
                    _force(other, name, new)
                    place.set(other)
                else:
                    raise TypeError("a frozen object cannot be replaced here")

            def pick(name: str = name) -> Any:
                return getattr(place.read() if is_frozen and place is not None else owner, name)

            self._value(Place(f"{path}.{name}", name, code, pick, put, is_inner=is_frozen), depth + 1)


def _codes(code: types.CodeType) -> Iterator[tuple[types.CodeType, tuple[str, ...]]]:
    yield code, code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_own(module: str | None) -> bool:
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


def _item_setter(container: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        container[key] = value

    return put


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _cell_reader(cell: types.CellType) -> Callable[[], Any]:
    return lambda: cell.cell_contents


def _cell_setter(cell: types.CellType) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        cell.cell_contents = value

    return put


def _refuse(value: Any) -> None:
    raise TypeError("nothing else can be put there")


@contextmanager
def restoring(found: list[Place]) -> Iterator[None]:
    """What is in the places is afterwards what it was: the values of tensors, the items of containers, what stands where."""
    held: list[tuple[Place, Any, Any]] = []
    for place in found:
        value = place.look()
        kept = (
            _clone(value)
            if isinstance(value, Tensor)
            else copy.copy(value)
            if isinstance(value, (list, dict))
            else value
        )
        held.append((place, value, kept))
    try:
        yield
    finally:
        for place, value, kept in held:
            if value is _MISSING:
                continue
            put_back(place, value, kept)


def put_back(place: Place, value: Any, kept: Any) -> None:
    """The object that stood in a place, with what it held."""
    if place.set is not _refuse and not place.is_inner:
        place.set(value)
    if isinstance(value, Tensor):
        with torch.no_grad():
            if kept is not None and value.shape == kept.shape and not is_same_leaf(value, kept):
                value.detach().copy_(kept)
    elif isinstance(value, list):
        value[:] = kept
    elif isinstance(value, dict):
        value.clear()
        value.update(kept)


def _clone(value: Tensor) -> Tensor | None:
    """None where a captured graph has taken the memory back."""
    try:
        return value.detach().clone()
    except RuntimeError:
        return None
