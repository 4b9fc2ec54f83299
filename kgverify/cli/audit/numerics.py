"""`kgverify audit numerics`: does the same input give the same bits, and which choices depend on rounding?"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import RenderableType

from kgverify.cli import options
from kgverify.cli.options import naming_options
from kgverify.cli.progress import check_writable, make_result_console, show_phase, write_json
from kgverify.cli.run_options import RunOptions, with_run_options

if TYPE_CHECKING:
    from kgverify.audit.report import AuditReport


@with_run_options(policy="two_tower")
def audit_numerics(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: Annotated[
        str, typer.Option(help="Of torch.compile, looked at beside eager; eager for that alone.")
    ] = "default",
    repetitions: Annotated[int, typer.Option(min=2, help="Calls with equal arguments.")] = 3,
    flips: Annotated[int, typer.Option(min=0, help="Flips listed of each precision.")] = 20,
    json_path: options.JsonPath = None,
) -> None:
    """Look for what the compiled evaluator's arithmetic leaves open: order, ties, batch sizes, precisions, settings.

    Exit code 0 if nothing was found, 1 if something was.
    """
    from kgverify.audit.evaluator.numerics import audit_evaluator
    from kgverify.audit.render import render_numerics

    check_writable(json_path)
    run = run_options.build()
    with naming_options():
        report = audit_evaluator(
            run, device=device, mode=mode, repetitions=repetitions, most_flips=flips, phase=show_phase
        )
    deliver(report, render_numerics(report), json_path)


def deliver(report: "AuditReport", parts: Iterable[RenderableType], json_path: str | None) -> NoReturn:
    """Print a report's parts, write it as JSON where that is asked for, and end with its exit code."""
    console = make_result_console(json_path)
    for part in parts:
        console.print(part, highlight=False)
    write_json(report, json_path)
    raise typer.Exit(0 if report.is_clean else 1)
