"""An engine under test as it is written down, so that it can be made again: what it is, how it runs, its faults."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify.errors import UserError
from kgverify.testing.checking.pipelines import MakePipeline, compiled_maker
from kgverify.testing.checking.third_party import as_maker

COMPILED: Final = "compiled"
REFERENCE: Final = "reference"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
_WHAT: Final = "a class, or a function of (program, limits, policy), that makes an engine"


class EngineSpec(NamedTuple):
    """Which engine: `compiled`, `reference`, or `MODULE:NAME` that makes one from a program, limits and a policy.

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
    if spec.name == REFERENCE:
        from kgverify.engines.reference.engine import ReferenceEngine

        return as_maker(ReferenceEngine)
    if not _FUNCTION.fullmatch(spec.name):
        raise UserError(
            f"kgverify cannot make the engine {spec.name!r}",
            where=where,
            fix=f"give `{COMPILED}`, `{REFERENCE}`, or MODULE:NAME, {_WHAT}",
        )
    return as_maker(load_factory(spec.name, where), where)


def load_factory(name: str, where: str) -> Any:
    """What `MODULE:NAME` names, looked for in the current folder too. UserError if it cannot be loaded."""
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        stem, is_file, _ = module_name.rpartition(".py")
        fix = (
            f"give the module without its suffix: {stem}:{path}"
            if is_file
            else "run this where Python finds the module"
        )
        raise UserError(f"cannot import {module_name!r}: {error}", where=where, fix=fix) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(f"{module_name!r} has no function {path!r}", where=where, fix=f"name {_WHAT}")
    return found
