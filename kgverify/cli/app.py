"""The application: its commands, its exit codes, and its error messages."""

import io
import shutil
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from kgverify.cli.audit import app as audit
from kgverify.cli.commands import faults, trace
from kgverify.cli.commands.bench import bench
from kgverify.cli.commands.dialect import dialect
from kgverify.cli.commands.diff import diff
from kgverify.cli.commands.doctor import doctor
from kgverify.cli.commands.evaluate import evaluate
from kgverify.cli.commands.fuzz import fuzz
from kgverify.cli.commands.record import record
from kgverify.cli.commands.replay import replay
from kgverify.cli.commands.report import ReportCommand, report
from kgverify.cli.commands.show import explain, show
from kgverify.cli.commands.shrink import shrink
from kgverify.cli.commands.train import train
from kgverify.cli.options import OPTION_OF
from kgverify.cli.output import describe_write_error, flush_output, keep_output, restore_output
from kgverify.cli.progress import make_error_console, print_note, set_quiet
from kgverify.errors import InternalError, UserError, find_missing_dependency
from kgverify.escaping import make_visible
from kgverify.runs.interrupts import is_pressed, watch_interrupts
from kgverify.version import __version__


class ExitCode(IntEnum):
    """The exit codes besides those of verdicts, 0, 1 and 3 (see `kgverify.cli.commands.diff`)."""

    BAD_INPUT = 2
    BUG = 70
    NOT_WRITTEN = 74
    INTERRUPTED = 130
    CLOSED_PIPE = 141


_PlainHelp: Any = TyperGroup.context_class.formatter_class


class _Help(_PlainHelp):  # type: ignore[misc]  # a value of Any
    """The help of a command, as wide as the terminal."""

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names beside their descriptions, or above them where a description would be narrower than its name."""
        is_narrow = max(len(name) for name, _ in rows) > self.width // 2
        super().write_dl(rows, _INDENT if is_narrow else col_max, col_spacing)


_INDENT: Final = 4
MOST_COLUMNS: Final = 80
"""The columns of a help text, at most."""

TyperGroup.context_class.formatter_class = _Help


class Commands(TyperGroup):
    """The group of commands, which ends a command with the exit code of its exception where typer has another one."""

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
        named = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        width = formatter.width - 6 - max(len(name) for name, _ in named)
        for title in dict.fromkeys(command.rich_help_panel for _, command in named):  # type: ignore[attr-defined]  # typer sets it
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name, command.get_short_help_str(width))
                        for name, command in named
                        if command.rich_help_panel == title  # type: ignore[attr-defined]  # typer sets it
                    ]
                )


def _escape_usage_error(error: Any) -> None:
    """Escape the message of an error that typer prints by itself: it quotes what was typed, such as a file's name."""
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
_START, _LOOK, _MEASURE = "Start here", "Look closer", "Measure and train"
app.command(rich_help_panel=_START)(diff)
app.command(rich_help_panel=_START)(record)
app.command(rich_help_panel=_START)(show)
app.command(cls=ReportCommand, rich_help_panel=_START)(report)
app.command(rich_help_panel=_START)(fuzz)
app.command(rich_help_panel=_LOOK)(explain)
app.command(rich_help_panel=_LOOK)(dialect)
app.command(rich_help_panel=_LOOK)(shrink)
app.command(rich_help_panel=_LOOK)(replay)
app.add_typer(trace.app, name="trace", rich_help_panel=_LOOK)
app.add_typer(faults.app, name="faults", rich_help_panel=_LOOK)
app.add_typer(audit.app, name="audit", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(doctor)
app.command(rich_help_panel=_MEASURE)(evaluate)
app.command(rich_help_panel=_MEASURE)(bench)
app.command(rich_help_panel=_MEASURE)(train)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kgverify.api.doctor import describe_versions

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


def _end_with(error: BaseException) -> int:
    """Return the exit code of a command that ended with an exception, and print what it means."""
    if isinstance(error, SystemExit) and isinstance(getattr(error.__context__, "__cause__", None), KeyboardInterrupt):
        # Typer has caught it, while it read the options or ran the command, and says nothing.
        error = KeyboardInterrupt()
    if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
        return error.code if isinstance(error.code, int) else ExitCode.BUG
    if isinstance(error, (SystemExit, BrokenPipeError)):
        return ExitCode.CLOSED_PIPE
    if isinstance(error, KeyboardInterrupt) or (is_pressed() and not isinstance(error, UserError)):
        # What else an exception says is a consequence of the interrupt, for example in the middle of an import.
        make_error_console().print("interrupted")
        return ExitCode.INTERRUPTED
    known = error if isinstance(error, UserError) else find_missing_dependency(error)
    if known is not None:
        known = UserError(known.message, where=OPTION_OF.get(known.where, known.where), fix=known.fix)
        print_note(*f"error: {known}".split("\n"), style="red")
        return ExitCode.BAD_INPUT
    if reason := describe_write_error(error):
        print_note(f"error: output cannot be written: {reason}", style="red")
        return ExitCode.NOT_WRITTEN
    print_note(*"".join(traceback.format_exception(error)).split("\n"))
    print_note(f"This is a bug in kgverify {__version__}: please report it with the lines above.", style="red")
    return ExitCode.BUG
