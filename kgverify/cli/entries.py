"""The list of commands, which can be printed before anything else is imported."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

MOST_COLUMNS: Final = 80
"""The maximum width of a help text."""
HELP: Final = Path(__file__).with_name("help")
"""The folder of the help texts in this width, which `tools/write_help.py` writes."""
SUMMARY: Final = "Find the step where a compiled knowledge-graph prover stops agreeing with a reference prover."
EPILOG: Final = (
    "Exit codes: 0 agree or done, 1 diverge, 2 bad input, 3 inconclusive, 70 a bug in kgverify, 74 the result cannot be"
    " written, 128+N ended by signal N, such as 130 by Ctrl-C and 141 by a closed pipe."
)
FOR_EVERY_COMMAND: Final = (
    ("--json PATH", "Write the result as JSON; - for standard output."),
    ("--quiet, -q", "Print the line of the verdict alone, and no progress."),
    ("--log FILE", "Append everything that is printed, and the notes, to a file."),
    ("--verbose, -v", "Print notes, such as the configuration file that was read."),
    ("--help, -h", "Show the help of a command."),
)
"""The options of every command."""
ALONE: Final = (
    ("--version", "Print the versions of kgverify, Python, torch, CUDA and HDF5."),
    ("--install-completion", "Install the completion of commands and options for this shell."),
)
"""The options that need no command."""

_START, _LOOK, _MEASURE = "Start here", "Look closer", "Measure"


class Entry(NamedTuple):
    """A command in the list of commands, imported only when it is used.

    panel:    the group of commands to which it belongs
    place:    the module below `kgverify.cli`, and its function or its table of functions by name
    summary:  its line in the list
    without_json: the words with which it has no result as JSON: its own name, those of its parts, or options
    compares: whether it takes the options that a configuration file sets outside the sections of commands
    """

    panel: str
    place: str
    summary: str
    without_json: tuple[str, ...] = ()
    compares: bool = False


ENTRIES: Final = {
    "diff": Entry(_START, "commands.diff:diff", "Compare two engines, or two traces, step by step.", compares=True),
    "golden": Entry(
        _START, "commands.golden:golden", "Compare an engine with a small file of digests in git.", compares=True
    ),
    "record": Entry(_START, "commands.record:record", "Run one engine and write its trace.", compares=True),
    "show": Entry(
        _START,
        "commands.show:show",
        "Show a trace in names; or step through a saved run.",
    ),
    "report": Entry(_START, "commands.report:report", "Render a saved comparison, also as HTML or JUnit."),
    "env": Entry(
        _START,
        "commands.env:COMMANDS",
        "Compare two environments, or record one.",
        without_json=("record",),
    ),
    "fuzz": Entry(
        _START, "commands.fuzz:fuzz", "Try generated problems on two engines; shrink failures.", compares=True
    ),
    "bisect": Entry(
        _LOOK, "commands.bisect:bisect", "Find the commit at which an engine began to diverge.", compares=True
    ),
    "why": Entry(_LOOK, "commands.why:why", "Show the proofs of a triple, or the facts that are lacking."),
    "dialect": Entry(
        _LOOK, "commands.dialect:dialect", "Propose the dialect of an engine, or name that of a trace.", compares=True
    ),
    "shrink": Entry(
        _LOOK, "commands.reproducers:shrink", "Shrink a divergence to a minimal reproducer.", without_json=("--python",)
    ),
    "replay": Entry(_LOOK, "commands.reproducers:replay", "Run a reproducer again.", without_json=("replay",)),
    "trace": Entry(
        _LOOK,
        "commands.trace:COMMANDS",
        "Import, check, repair, join, convert, export traces.",
        without_json=("import", "convert", "export"),
    ),
    "audit": Entry(_LOOK, "commands.audit:COMMANDS", "Is it the compiler? Examine a compiled step."),
    "doctor": Entry(_LOOK, "commands.doctor:doctor", "List what is installed, missing or broken."),
    "evaluate": Entry(_MEASURE, "commands.evaluate:evaluate", "Rank the triples of a split by proofs.", compares=True),
}
"""The commands by name, in the order of the list."""


def find_width() -> int:
    """Return the width of a help text in columns."""
    return max(20, min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 2)


def render_help() -> str:
    """Return the list of commands."""
    width = find_width()
    sections = {
        title: [(name, each.summary) for name, each in ENTRIES.items() if each.panel == title]
        for title in (_START, _LOOK, _MEASURE)
    }
    sections |= {"Options": list(ALONE), "Options of every command": list(FOR_EVERY_COMMAND)}
    lines = [*textwrap.wrap("Usage: kgverify [OPTIONS] COMMAND [ARGS]...", width), "", *textwrap.wrap(SUMMARY, width)]
    for title, rows in sections.items():
        lines += ["", f"{title}:", *render_rows(rows, width)]
    return "\n".join([*lines, "", *textwrap.wrap(EPILOG, width)])


def read_help(words: Sequence[str]) -> str | None:
    """Return the stored help of a command, without importing it; None for other words, or on a narrow screen."""
    if words[-1] not in ("--help", "-h") or find_width() < MOST_COLUMNS - 2:
        return None
    stored = {path.stem: path for path in HELP.glob("*.txt")}.get("-".join(words[:-1]))
    return None if stored is None else stored.read_text(encoding="utf-8").rstrip()


def render_rows(rows: list[tuple[str, str]], width: int, most: int = 30) -> Iterator[str]:
    """Yield lines of names beside their descriptions, or above them if a name is too long."""
    column = min(most, max((len(name) for name, _ in rows), default=0) + 4, max(6, width // 2))
    for name, text in rows:
        folded = textwrap.wrap(text, max(10, width - column)) or [""]
        if len(name) + 4 > column:
            yield f"  {name}"
        else:
            yield f"  {name:{column - 2}}{folded.pop(0)}".rstrip()
        yield from (f"{'':{column}}{line}" for line in folded if line)
