"""`kgverify audit step`: stepaudit's audit of your own step function under torch.compile."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kgverify.cli import completion, options
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import (
    check_writable,
    make_error_console,
    make_result_console,
    show_phase,
    write_json,
    write_result,
)
from kgverify.comparison.result import Verdict
from kgverify.engines.load_engine import load_factory
from kgverify.errors import MissingDependency, UserError, find_missing_dependency
from kgverify.files.writing import append_to_file

app = typer.Typer(
    help="Is it the compiler? Examine your own step, value by value and property by property.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _options() -> None:
    pass


@app.command("step", short_help="Compare your compiled step with eager on every rung.")
def audit_step(
    function: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="The step, also as MODULE:FUNCTION. Its file is imported.")
    ],
    inputs: Annotated[
        str,
        typer.Option(
            metavar="FILE.py:MAKE", help="MAKE(call: int) returns the tuple of arguments of a call, numbered from 0."
        ),
    ],
    calls: Annotated[int, typer.Option(min=1, help="Different calls to make.")] = 6,
    device: options.Device = "auto",
    mode: Annotated[
        str,
        typer.Option(
            "--torch-mode", help="Of torch.compile, for the properties: default, reduce-overhead or max-autotune."
        ),
    ] = "default",
    rung: Annotated[
        list[str] | None,
        typer.Option(
            "--rung",
            metavar="NAME",
            help=f"Only these: {', '.join(completion.RUNGS)}.",
            autocompletion=completion.one_of(completion.RUNGS),
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest absolute and relative error of a float. If not given, as far as another rounding allows.",
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="All bits must be equal.")] = False,
    keeps_outputs: Annotated[
        bool, typer.Option("--keeps-outputs/--drops-outputs", help="Whether outputs are read after the next call.")
    ] = True,
    budget: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Limits, as TOML: max_graph_breaks = 0 and the like.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="CPU seconds of the searches for the cause and the line.")
    ] = 120.0,
    patience: Annotated[
        float, typer.Option(min=1, help="CPU seconds after which a rung counts as one that does not return.")
    ] = 600.0,
    reproducer: Annotated[
        Path | None, typer.Option(metavar="FILE.py", help="Write a deviation as a script that needs only torch.")
    ] = None,
    json_path: options.JsonPath = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Write the report as a page.")] = None,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write the report as JUnit XML.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.")
    ] = False,
) -> None:
    """Compare your step with eager on every rung of torch.compile, and examine the properties that it can lose.

    Exit codes: 0 clean, 1 with findings or over budget, 2 bad input, 3 inconclusive: eager differs from itself.
    """
    check_writable(json_path)
    stepaudit = _import_stepaudit()
    found = load_factory(function, "FILE.py:FUNCTION", "a function of tensors")
    make = load_factory(inputs, "--inputs", "a function of the number of the call, which returns a tuple of arguments")
    with show_phase("the step", 0) as shown, _announcing(shown) as announce:
        try:
            report = stepaudit.audit_step(
                found,
                make,
                calls=calls,
                device=device,
                rungs=rung or stepaudit.RUNG_NAMES,
                tolerance=tolerance,
                exact=exact,
                mode=mode,
                keeps_outputs=keeps_outputs,
                budget=budget,
                seconds=seconds,
                patience=patience,
                reproducer=reproducer,
                announce=announce,
            )
        except stepaudit.UserError as error:
            raise UserError(error.message, where=error.where, fix=error.fix) from error
    console = make_result_console(json_path)
    for part in stepaudit.render_audit(report):
        console.print(part)
    write_json(report, json_path)
    if html is not None:
        write_result(stepaudit.render_html(report).encode(), html)
    if junit is not None:
        write_result(stepaudit.render_junit(report), junit)
    if github:
        # Not through the console, which breaks commands of the runner.
        (sys.stderr if json_path == "-" else sys.stdout).write(stepaudit.render_annotations(report))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            append_to_file(summary, stepaudit.render_markdown(report).encode())
    raise typer.Exit(EXIT_CODES[Verdict(report.verdict)])


def _import_stepaudit() -> Any:
    """Import stepaudit. MissingDependency if it, or torch, is not installed."""
    try:
        import stepaudit

        # Without an installation, its folder in a checkout is an empty package.
        _ = stepaudit.audit_step
    except AttributeError:
        missing = None
    except ImportError as error:
        missing = None if error.name == "stepaudit" else find_missing_dependency(error) or error
    else:
        return stepaudit
    raise missing or MissingDependency(
        "audits need stepaudit, which is not installed",
        where="kgverify audit",
        fix="pip install ./stepaudit in a checkout of kgverify",
    )


@contextmanager
def _announcing(shown: Any) -> Iterator[Callable[[str], None]]:
    """Announce work in the progress bar of a terminal, else as lines on standard error."""
    console = make_error_console()

    def announce(what: str) -> None:
        if console.is_terminal:
            shown.rename(what)
        elif "attempt" not in what:
            console.print(what)

    yield announce
