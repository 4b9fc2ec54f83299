"""An engine under test as it is written down, so that it can be made again: what it is, how it runs, its faults."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify.errors import UserError
from kgverify.fuzz.pipelines import MakePipeline, compiled_maker, engine_maker

COMPILED: Final = "compiled"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)


class EngineSpec(NamedTuple):
    """Which engine: `compiled`, or `MODULE:FUNCTION` that makes one from a program, limits and a policy.

    mode, device, faults: of the compiled evaluator
    """

    name: str = COMPILED
    mode: str = "eager"
    device: str = "cpu"
    faults: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.name != COMPILED:
            return self.name
        return ", ".join([f"{self.name} ({self.mode}, {self.device})", *(f"fault {each}" for each in self.faults)])


EAGER: Final = EngineSpec()
"""The eager evaluator as it is."""


def make_pipeline(spec: EngineSpec, where: str = "--engine") -> MakePipeline:
    """The maker of an engine. UserError for one that kgverify cannot make."""
    if spec.name == COMPILED:
        return compiled_maker(mode=spec.mode, device=spec.device, faults=spec.faults)
    if not _FUNCTION.fullmatch(spec.name):
        raise UserError(
            f"kgverify cannot make the engine {spec.name!r}",
            where=where,
            fix="give `compiled`, or MODULE:FUNCTION, a function of (program, limits, policy) that returns an engine",
        )
    return engine_maker(_import_function(spec.name, where))


def _import_function(name: str, where: str) -> Any:
    module_name, function_name = name.split(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"cannot import {module_name!r}: {error}", where=where, fix="run this where Python finds the module"
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(
            f"{module_name!r} has no function {function_name!r}",
            where=where,
            fix="name a function of (program, limits, policy) that returns an engine",
        )
    return function
