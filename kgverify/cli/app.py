"""The application: its commands, its exit codes, and its error messages."""

import io
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from enum import IntEnum
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from kgverify.cli.help import GroupedCommand, HelpText
from kgverify.cli.output import describe_write_error, flush_output, keep_output, restore_output, set_quiet
from kgverify.errors import InternalError, UserError, find_missing_dependency
from kgverify.escaping import make_visible
from kgverify.interrupts import is_pressed, watch_interrupts
from kgverify.version import __version__

_START, _LOOK, _MEASURE = "Start here", "Look closer", "Measure and train"


class Entry(NamedTuple):
    """A command in the list of commands, which is imported only when it is used.

    panel:   the group of commands to which it belongs
    place:   the module below `kgverify.cli`, and its function or application; its COMMAND_CLASS, if it has one, parses
    summary: the line about it in the list
    """

    panel: str
    place: str
    summary: str


ENTRIES: Final = {
    "diff": Entry(_START, "commands.diff:diff", "Compare two engines, or two traces, step by step."),
    "record": Entry(_START, "commands.record:record", "Run one engine and write its trace."),
    "show": Entry(_START, "commands.show:show", "Show a trace in names; or step through a saved run."),
    "report": Entry(_START, "commands.report:report", "Render a saved comparison, also as HTML or JUnit."),
    "fuzz": Entry(_START, "commands.fuzz:fuzz", "Try generated problems on two engines; shrink failures."),
    "explain": Entry(_LOOK, "commands.show:explain", "Explain the causes of the differences of a saved run."),
    "dialect": Entry(_LOOK, "commands.dialect:dialect", "Propose the dialect of an engine by experiments."),
    "shrink": Entry(_LOOK, "commands.shrink:shrink", "Shrink a divergence to a minimal reproducer."),
    "replay": Entry(_LOOK, "commands.replay:replay", "Run a reproducer again."),
    "trace": Entry(_LOOK, "commands.trace:app", "Import, check, repair, join, convert, export traces."),
    "faults": Entry(_LOOK, "commands.faults:app", "The catalogue of faults that `--fault` plants."),
    "audit": Entry(_LOOK, "commands.audit:app", "Is it the compiler? Examine a compiled step."),
    "doctor": Entry(_LOOK, "commands.doctor:doctor", "List what is installed, missing or broken."),
    "evaluate": Entry(_MEASURE, "commands.evaluate:evaluate", "Rank the triples of a split by proofs."),
    "bench": Entry(_MEASURE, "commands.bench:bench", "Measure the speed of engines."),
    "train": Entry(_MEASURE, "commands.train:train", "Train a policy to imitate the reference's proofs."),
}
"""The commands by name, in the order of the list."""


class ExitCode(IntEnum):
    """The exit codes besides those of verdicts, 0, 1 and 3 (see `kgverify.cli.commands.diff`)."""

    BAD_INPUT = 2
    BUG = 70
    NOT_WRITTEN = 74
    INTERRUPTED = 130
    CLOSED_PIPE = 141


MOST_COLUMNS: Final = 80
"""The columns of a help text, at most."""

TyperGroup.context_class.formatter_class = HelpText


OPTION_OF: Final = {"layout.slots": "--slots", "faults": "--fault", "overwrite": "--force", "max_calls": "--calls"}
"""The options that are not named as the argument that an error is about."""
ARGUMENTS: Final = frozenset(
    [
        *(
            "engine",
            "reference",
            "queries",
            "corruptions",
            "seed",
            "split",
            "policy",
            "jobs",
            "scheduler",
            "minimum",
            "modulo",
        ),
        *("max_depth", "max_atoms", "max_resolvents", "mode", "device", "precision", "slots", "memory", "level"),
        *("score_error", "rank_only", "divergence", "columns", "rule_variables"),
    ]
)
"""The arguments with options of their names."""


class _ImportedCommands(Mapping[str, Any]):
    """The commands by name, each of which is imported when it is looked up."""

    def __init__(self) -> None:
        self._imported: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)

    def __getitem__(self, name: str) -> Any:
        if name not in self._imported:
            self._imported[name] = _import_command(name, ENTRIES[name])
        return self._imported[name]


def _import_command(name: str, entry: Entry) -> Any:
    module_name, _, attribute = entry.place.partition(":")
    module = import_module(f"kgverify.cli.{module_name}")
    found = getattr(module, attribute)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        return group
    info = CommandInfo(name, callback=found, cls=getattr(module, "COMMAND_CLASS", GroupedCommand))
    return get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)


class Commands(TyperGroup):
    """The group of commands, which ends a command with the exit code of its exception where typer has another one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _ImportedCommands()})

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, and import no command."""
        return list(ENTRIES)

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the options before the command."""
        columns = min(shutil.get_terminal_size().columns, MOST_COLUMNS)
        try:
            return super().make_context(*args, terminal_width=max(20, columns - 2), **settings)
        except Exception as error:
            _escape_usage_error(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(ExitCode.CLOSED_PIPE) from None
        except SystemExit as error:
            # No command ends so: only an exit code that comes with a verdict may be 0.
            raise InternalError(f"SystemExit: {error.code}") from error
        except EOFError as error:
            # Typer takes it for the end of a dialogue and ends with 1, the exit code of DIVERGE.
            raise InternalError(f"EOFError: {error}") from error
        except Exception as error:
            _escape_usage_error(error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, those that people use first at the top."""
        for title in dict.fromkeys(entry.panel for entry in ENTRIES.values()):
            with formatter.section(title):
                formatter.write_dl([(name, each.summary) for name, each in ENTRIES.items() if each.panel == title])


def _escape_usage_error(error: Any) -> None:
    """Escape the message of an error that typer prints by itself: it quotes what was typed, such as a file's name."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return  # Its message is the help text, which quotes nothing.
    if hasattr(error, "format_message") and isinstance(getattr(error, "message", None), str):
        error.message = make_visible(error.message)


app = typer.Typer(
    name="kgverify",
    cls=Commands,
    help="Find the step where a compiled knowledge-graph prover stops agreeing with a reference prover.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 agree or done, 1 diverge, 2 bad input, 3 inconclusive, 70 a bug in kgverify, 74 the result"
    " cannot be written, 128+N ended by signal N, such as 130 by Ctrl-C and 141 by a closed pipe.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kgverify.api.versions import describe_versions

        print(*describe_versions(), sep="\n")  # noqa: T201  versions of installed packages
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the versions of kgverify, Python, torch, CUDA and HDF5.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def run() -> int:
    """Run the command line, and return the exit code. It is 0 only after the whole result was printed."""
    if sys.stdout is None:
        print("error: standard output is closed\nfix: redirect it to a file, or to /dev/null", file=sys.stderr)  # noqa: T201  its own words alone
        return ExitCode.NOT_WRITTEN
    set_quiet(False)
    with watch_interrupts(), keep_output():
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Characters that the terminal's encoding lacks are printed escaped.
                stream.reconfigure(errors="backslashreplace")
        try:
            app(prog_name="kgverify")
        except BaseException as error:
            restore_output()
            code = _end_with(error)
        try:
            flush_output()
        except BaseException as error:
            code = _end_with(error)
        return code


def _name_option(where: str) -> str:
    """Return the option that sets the argument that an error is about; other places unchanged."""
    if where in OPTION_OF:
        return OPTION_OF[where]
    if where.startswith(("engine ", "reference ")):
        # The name of the engine follows.
        return f"--{where}"
    options = {word.split("=")[0] for word in sys.argv[1:]}
    option = f"--{where.replace('_', '-')}"
    return option if where in ARGUMENTS or option in options else where


def _end_with(error: BaseException) -> int:
    """Return the exit code of a command that ended with an exception, and print what it means."""
    if isinstance(error, SystemExit) and isinstance(getattr(error.__context__, "__cause__", None), KeyboardInterrupt):
        # Typer has caught it, while it read the options or ran the command, and says nothing.
        error = KeyboardInterrupt()
    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
        return error.code if isinstance(error.code, int) else ExitCode.BUG
    if isinstance(error, (SystemExit, BrokenPipeError)):
        return ExitCode.CLOSED_PIPE
    # Its import takes as long as all else that a short command needs.
    from kgverify.cli.progress import make_error_console, print_note

    if isinstance(error, KeyboardInterrupt) or (is_pressed() and not isinstance(error, UserError)):
        # What else an exception says is a consequence of the interrupt, for example in the middle of an import.
        make_error_console().print("interrupted")
        return ExitCode.INTERRUPTED
    known = error if isinstance(error, UserError) else find_missing_dependency(error)
    if known is not None:
        where = _name_option(known.where)
        known = UserError(known.message, where=where, fix=known.fix, details=known.details)
        print_note(*f"error: {known}".split("\n"), style="red")
        return ExitCode.BAD_INPUT
    if reason := describe_write_error(error):
        print_note(f"error: output cannot be written: {reason}", style="red")
        return ExitCode.NOT_WRITTEN
    print_note(*"".join(traceback.format_exception(error)).split("\n"))
    print_note(f"This is a bug in kgverify {__version__}: please report it with the lines above.", style="red")
    return ExitCode.BUG
