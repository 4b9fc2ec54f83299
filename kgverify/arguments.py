"""Type checks for arguments: an error for a wrong type names the argument and says how to fix it."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from kgverify.errors import UserError, keep_users_frames, suggest

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_ENGINES: Final = frozenset({"engine", "reference", "factory"})
"""The arguments that are checked when the engine is made, since any object with the right methods may be an engine."""

_FIXES: Final[Mapping[str, str]] = {
    "graph": "give a name, a path, or kgverify.KnowledgeGraph(name, triples)",
    "spec": "give a name, a path, or a dataset or triples factory of PyKEEN",
    "queries": "give a whole number without quotes, or kgverify.Queries(...)",
    "policy": "give 'shortest', 'two_tower', 'trained', the path of a safetensors file, or a function of (goal, resolvents)",
    "run": "give the report of kgverify.verify, or the folder that its `save` wrote",
}
"""The fix for a wrong argument, if its types are not clear enough."""

_WORDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "True or False",
    NoneType: "None",
}


def checked(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Make a function raise UserError, naming the argument, for arguments that do not have the types of its signature."""
    names = [*inspect.signature(function).parameters]

    @wraps(function)
    def check_and_call(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        __tracebackhide__ = True  # of pytest, which would show this function's source instead of the test
        try:
            _check(_list_kinds(function), dict(zip(names, given, strict=False)) | named)
            return function(*given, **named)
        except UserError as error:
            raise keep_users_frames(error)  # noqa: B904  the same error

    return check_and_call


def check_fields(record: Any) -> None:
    """Raise UserError, naming the field, for fields of a record that do not have their declared types."""
    kinds = _list_kinds(record.__class__)
    _check(kinds, {name: getattr(record, name) for name in kinds})


@cache
def _list_kinds(of: Any) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {name: kind for name, kind in hints.items() if name not in _ENGINES and get_origin(kind) is not ClassVar}


def _check(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in kinds and not _is_of(kinds[name], value):
            shown = repr(value)
            found = shown if len(shown) <= 40 else f"an object of type {type(value).__name__}"
            raise UserError(
                f"expected {_describe_all(_list_options(kinds[name]))}, found {found}",
                where=name,
                fix=_FIXES.get(name) or _suggest(kinds[name], value),
            )


def _suggest(kind: Any, value: object) -> str:
    options = [each for each in _list_options(kind) if each is not NoneType]
    choices = [choice for each in options if get_origin(each) is Literal for choice in get_args(each)]
    if isinstance(value, str) and (close := suggest(value, choices)):
        return close
    records = [each for each in options if getattr(each, "__module__", "").startswith("kgverify")]
    if records and isinstance(value, Mapping):
        given = ", ".join(f"{key}={item!r}" for key, item in value.items())
        return f"give kgverify.{records[0].__name__}({given})"
    return f"give {_describe_all(options)}"


def _list_options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _describe_all(options: Iterable[Any]) -> str:
    *others, last = dict.fromkeys(map(_describe, options))
    return f"{', '.join(others)} or {last}" if others else last


def _describe(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if kind in _WORDS:
        return _WORDS[kind]
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if origin is Callable:
        return "a function"
    if not isinstance(origin, type):
        return str(kind)
    if issubclass(origin, os.PathLike):
        return "a path"
    if origin.__module__.startswith("kgverify"):
        return f"kgverify.{origin.__name__}"
    return "a dictionary" if issubclass(origin, Mapping) else "a list"


def _is_of(kind: Any, value: object) -> bool:
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return any(_is_of(each, value) for each in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if origin is Callable:
        return callable(value)
    if origin is bool:
        return isinstance(value, bool)
    if origin in (int, float):
        # NumPy numbers count as numbers, but True does not.
        return isinstance(value, Integral if origin is int else Real) and not isinstance(value, bool)
    # `Any` is a class since Python 3.11.
    if origin is Any or not isinstance(origin, type):
        return True
    if getattr(origin, "_is_protocol", False) and not getattr(origin, "_is_runtime_protocol", False):
        return all(hasattr(value, name) for name in origin.__annotations__)
    if origin is str or not get_args(kind):
        return isinstance(value, os.PathLike if issubclass(origin, os.PathLike) else origin)
    return isinstance(value, origin) and not isinstance(value, str)
