"""The application: its commands, its exit codes, and its error messages."""

import io
import sys
import traceback
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from kgverify.cli.audit import app as audit
from kgverify.cli.commands import faults, trace
from kgverify.cli.commands.bench import bench
from kgverify.cli.commands.diff import diff
from kgverify.cli.commands.evaluate import evaluate
from kgverify.cli.commands.fuzz import fuzz
from kgverify.cli.commands.record import record
from kgverify.cli.commands.replay import replay
from kgverify.cli.commands.report import ReportCommand, report
from kgverify.cli.commands.show import show
from kgverify.cli.commands.shrink import shrink
from kgverify.cli.commands.train import train
from kgverify.cli.options import OPTION_OF
from kgverify.errors import UserError
from kgverify.version import __version__


class ExitCode(IntEnum):
    """The exit codes besides those of verdicts, 0, 1 and 3 (see `kgverify.cli.commands.diff`)."""

    BAD_INPUT = 2
    BUG = 70
    INTERRUPTED = 130


class Commands(TyperGroup):
    """The group of commands, which prints a line and sets the exit code when a command is interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    name="kgverify",
    cls=Commands,
    help="Find the step where a compiled knowledge-graph prover stops agreeing with a reference prover.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 agree or done, 1 diverge, 2 bad input, 3 inconclusive, 70 a bug in kgverify.",
)
app.command()(diff)
app.command()(evaluate)
app.command()(record)
app.command(cls=ReportCommand)(report)
app.command()(show)
app.command()(shrink)
app.command()(replay)
app.command()(fuzz)
app.command()(train)
app.command()(bench)
app.add_typer(faults.app, name="faults")
app.add_typer(audit.app, name="audit")
app.add_typer(trace.app, name="trace")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kgverify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command line, and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal's encoding lacks are printed escaped.
            stream.reconfigure(errors="backslashreplace")
    errors = Console(stderr=True)
    try:
        app(prog_name="kgverify")
    except UserError as error:
        error = UserError(error.message, where=OPTION_OF.get(error.where, error.where), fix=error.fix)
        errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(ExitCode.BAD_INPUT)
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception:
        traceback.print_exc()
        errors.print(f"\nThis is a bug in kgverify {__version__}: please report it with the lines above.", style="red")
        sys.exit(ExitCode.BUG)
    sys.exit(0)
