"""Planting a mutant in the running process: its code replaces that of the function, for everyone who refers to it."""

import gc
import linecache
import sys
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any

from mutant import MODULE, ROOT, Mutant

NUMBERS = (bool, int, float, tuple)


def plant(mutant: Mutant) -> None:
    """Make this process run the mutant. This cannot be undone, so fork first."""
    module = import_module(module_name(mutant.path))
    code = compile(mutant.source(), str(ROOT / mutant.path), "exec", dont_inherit=True)
    if mutant.function == MODULE:
        _plant_constants(vars(module), code)
        return
    planted = [each for each in _code_objects(code) if each.co_qualname == mutant.function][-1]
    function = _find_function(vars(module), mutant.function)
    _plant_inner(function.__code__, planted)
    function.__code__ = planted
    # Triton's interpreter reads the source of kernels. An entry without a time is not compared with the file.
    name, lines = str(ROOT / mutant.path), mutant.source().splitlines(keepends=True)
    linecache.cache[name] = (len(lines), None, lines, name)


def _plant_inner(before: CodeType, planted: CodeType) -> None:
    """Give the functions that calls of the original have made already, as of a factory, the code of the mutant."""
    gc.unfreeze()
    for old, new in zip(_code_objects(before), _code_objects(planted), strict=False):
        if old.co_name == new.co_name and old.co_freevars == new.co_freevars:
            for each in gc.get_referrers(old):
                if isinstance(each, FunctionType) and each.__code__ is old:
                    each.__code__ = new


def module_name(path: str) -> str:
    """Return the name by which the module of a path is imported."""
    return path.removeprefix("reference/").removesuffix(".py").replace("/", ".")


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _code_objects(constant)


def _find_function(namespace: dict[str, Any], qualified_name: str) -> FunctionType:
    *owners, name = qualified_name.split(".")
    for owner in owners:
        namespace = vars(namespace[owner])
    found = namespace[name]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif hasattr(found, "rewritten_fn"):
        found.rewritten_fn.pop(found.fn, None)
        found = found.fn
    found = getattr(found, "__func__", found)
    found = getattr(found, "__wrapped__", found)
    assert isinstance(found, FunctionType), (qualified_name, found)
    return found


def _plant_constants(namespace: dict[str, Any], code: CodeType) -> None:
    """Give a changed constant its new value in every module that has it under its name."""
    scratch = {"__name__": namespace["__name__"], "__file__": namespace["__file__"]}
    exec(code, scratch)
    changed = {
        name: value
        for name, value in scratch.items()
        if isinstance(value, NUMBERS) and value != namespace.get(name) and isinstance(namespace.get(name), NUMBERS)
    }
    assert changed
    for name, value in changed.items():
        old = namespace[name]
        for module in list(sys.modules.values()):
            held = getattr(module, "__dict__", {})
            if held.get(name) is old:
                held[name] = value
