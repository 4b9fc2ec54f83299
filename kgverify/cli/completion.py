"""The values that a shell completes, for options with a finite set of them.

Where none of an option's values fits, the shell completes the names of files. A shell waits for each completion, so that
the values of the commonest options are found without the import of the commands, which takes longer than all else.
"""

import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from kgverify.graphs.embedded import list_embedded

Completer: TypeAlias = Callable[[str], list[tuple[str, str]]]
"""A function from the beginning of a word to the values that begin so, each with a description, which may be empty."""

MODES: Final = ("auto", "native", "eager", "default", "reduce-overhead", "max-autotune", "fused", "plain")
DEVICES: Final = ("auto", "cpu", "cuda")
PRECISIONS: Final = ("float32", "bf16x3", "fp16", "bf16")
RUNGS: Final = ("backend-eager", "aot-eager", "aot-eager-decomposed", "default", "reduce-overhead", "max-autotune")
POLICIES: Final = ("shortest", "two_tower", "trained")
ENGINES: Final = ("compiled", "reference")
LEVELS: Final = ("digests", "compact", "steps", "deep")
DATA_VARIABLE: Final = "KGVERIFY_DATA"
"""The names of the modules that define them, whose import takes too long; tests compare them."""

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
    catalogue = tomllib.loads(files("kgverify.prover.faults").joinpath("catalogue.toml").read_text("utf-8"))
    breaks = {each["name"]: each["breaks"] for each in (*catalogue["faults"], *catalogue["composites"])}
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


complete_engine: Final = one_of(ENGINES)
complete_mode: Final = one_of(MODES)
complete_device: Final = one_of(DEVICES)
complete_precision: Final = one_of(PRECISIONS)
complete_policy: Final = one_of(POLICIES)
complete_split: Final = one_of(("train", "valid", "test"))
complete_level: Final = one_of(LEVELS)

OF_EVERY_COMMAND: Final[dict[str, Completer]] = {
    "--fault": complete_fault,
    "--graph": complete_graph,
    "--policy": complete_policy,
    "--engine": complete_engine,
    "--reference": complete_engine,
    "--precision": complete_precision,
    "--split": complete_split,
    "--level": complete_level,
    "--mode": complete_mode,
    "--device": complete_device,
}
OTHER_VALUES: Final = {"fuzz": ("--mode", "--device")}
"""Options that have other values in a command."""


def find_completion() -> Callable[[], int] | None:
    """Return the function that completes what a shell asks for; None if the commands themselves are needed for it."""
    text = os.environ.get("_TYPER_COMPLETE_ARGS", os.environ.get("COMP_WORDS", ""))
    words = [*text.split(), *[""] * text[-1:].isspace()]
    if os.environ.get("COMP_CWORD", "").isdecimal():
        words = words[: int(os.environ["COMP_CWORD"]) + 1]
    if len(words) < 2 or words[-2] not in OF_EVERY_COMMAND or words[-1].startswith("-"):
        return None
    option = words[-2]
    if any(command in words and option in others for command, others in OTHER_VALUES.items()):
        return None
    return lambda: _complete(option)


def _complete(option: str) -> int:
    """Complete by a command that has this option and takes any other word."""
    import typer

    def command(**_: Any) -> None:
        pass

    kinds = {
        "words": Annotated[list[str] | None, typer.Argument()],
        "value": Annotated[str | None, typer.Option(option, autocompletion=OF_EVERY_COMMAND[option])],
    }
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads the options from it
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    command.__annotations__ = kinds
    app = typer.Typer()
    app.command(context_settings={"ignore_unknown_options": True})(command)
    try:
        app(prog_name="kgverify")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
