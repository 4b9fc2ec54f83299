"""The values that a shell completes, for options with a finite set of them. Finding them imports neither torch nor an engine.

Where none of an option's values fits, the shell completes the names of files.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias

from kgverify.engines.policy import POLICY_NAMES
from kgverify.faults.catalogue import COMPOSITES, FAULTS
from kgverify.graphs.load import DATA_VARIABLE, list_embedded
from kgverify.testing.checking.engine_makers import COMPILED, REFERENCE
from kgverify.trace.model.levels import TraceLevel

Completer: TypeAlias = Callable[[str], list[tuple[str, str]]]
"""A function from the beginning of a word to the values that begin so, each with a description, which may be empty."""

MODES: Final = ("auto", "eager", "default", "reduce-overhead", "max-autotune", "fused")
DEVICES: Final = ("auto", "cpu", "cuda")
PRECISIONS: Final = ("float32", "bf16x3", "fp16", "bf16")
RUNGS: Final = ("backend-eager", "aot-eager", "aot-eager-decomposed", "default", "reduce-overhead", "max-autotune")
"""The names in the compiled evaluator and its audit, which cannot be imported without torch; a test compares them."""

_PLAIN: Final = re.compile(r"\w[\w.+-]*", re.ASCII)


def one_of(values: Iterable[str]) -> Completer:
    """Return the completer of some values."""
    known = tuple(values)

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [(each, "") for each in known if each.startswith(incomplete)]

    return complete


def several_of(values: Iterable[str]) -> Completer:
    """Return the completer of a list of values, separated by commas, in which each occurs once."""
    known = tuple(values)

    def complete(incomplete: str) -> list[tuple[str, str]]:
        before, comma, last = incomplete.rpartition(",")
        rest = [each for each in known if each not in before.split(",") and each.startswith(last)]
        return [(f"{before}{comma}{each}", "") for each in rest]

    return complete


def complete_fault(incomplete: str) -> list[tuple[str, str]]:
    """Return the faults of the catalogue, with what they break."""
    breaks = {name: fault.breaks for name, fault in FAULTS.items()}
    breaks |= {name: composite.breaks for name, composite in COMPOSITES.items()}
    return [(name, what) for name, what in breaks.items() if name.startswith(incomplete)]


def complete_graph(incomplete: str) -> list[tuple[str, str]]:
    """Return the embedded graphs, and those under `$KGVERIFY_DATA` with names that a shell need not quote.

    Completion scripts evaluate what they are given, and a folder may hold a stranger's names.
    """
    names = dict.fromkeys(list_embedded(), "embedded")
    if folder := os.environ.get(DATA_VARIABLE):
        try:
            under_data = sorted(path.name for path in Path(folder).iterdir() if _PLAIN.fullmatch(path.name))
        except OSError:
            under_data = []
        names |= {name: f"in ${DATA_VARIABLE}" for name in under_data if name not in names}
    return [(name, where) for name, where in names.items() if name.startswith(incomplete)]


complete_engine: Final = one_of((COMPILED, REFERENCE))
complete_mode: Final = one_of(MODES)
complete_device: Final = one_of(DEVICES)
complete_precision: Final = one_of(PRECISIONS)
complete_policy: Final = one_of((*POLICY_NAMES, "trained"))
complete_split: Final = one_of(("train", "valid", "test"))
complete_level: Final = one_of(TraceLevel)
