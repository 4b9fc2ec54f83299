"""`kgverify audit step`: the values and the properties of your own step function under torch.compile."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kgverify.cli import options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.audit.modes import RungNames, announcing, check_reproducer
from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.progress import check_writable, show_phase, write_result
from kgverify.engines.load_engine import load_factory
from kgverify.files.writing import append_to_file


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
    rung: RungNames = None,
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
    check_reproducer(reproducer)
    found = load_factory(function, "FILE.py:FUNCTION", "a function of tensors")
    make = load_factory(inputs, "--inputs", "a function of the number of the call, which returns a tuple of arguments")

    from kgverify.audit.audited_step import RUNG_NAMES, step
    from kgverify.audit.render import render_annotations, render_audit_html, render_audit_junit, render_markdown

    with show_phase("the step", 0) as shown, announcing(shown) as announce:
        report = step(
            found,
            make,
            calls=calls,
            device=device,
            rungs=rung or RUNG_NAMES,
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
    deliver_reports([report], report, json_path)
    if html is not None:
        write_result(render_audit_html(report).encode(), html)
    if junit is not None:
        write_result(render_audit_junit(report), junit)
    if github:
        # Not through the console, which breaks commands of the runner.
        (sys.stderr if json_path == "-" else sys.stdout).write(render_annotations(report))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            append_to_file(summary, render_markdown(report).encode())
    raise typer.Exit(EXIT_CODES[report.verdict])
