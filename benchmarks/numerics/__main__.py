"""Examine the arithmetic of the compiled evaluator: order, ties, batch sizes, precisions, settings.

    python -m benchmarks.numerics --graph family --policy two_tower --json numerics.json

Run it in the repository's root. Exit code 0 without findings, 1 with findings, 2 for bad input.
"""

from typing import Annotated

import typer

from benchmarks.numerics.evaluator import audit_evaluator
from benchmarks.typer_script import run_script
from kgverify.cli import options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.options import RunOptions, with_run_options
from kgverify.cli.progress import check_writable, show_phase


@with_run_options()
def main(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: Annotated[
        str, typer.Option(help="Mode of torch.compile, examined beside eager; eager for that alone.")
    ] = "default",
    repetitions: Annotated[int, typer.Option(min=2, help="Calls with equal arguments.")] = 3,
    flips: Annotated[int, typer.Option(min=0, help="Flips to list for each precision.")] = 20,
    json_path: options.JsonPath = None,
) -> None:
    """Examine the arithmetic of the compiled evaluator: order, ties, batch sizes, precisions, settings.

    Exit code 0 without findings, 1 with findings.
    """
    check_writable(json_path)
    run = run_options.build()
    report = audit_evaluator(run, device=device, mode=mode, repetitions=repetitions, most_flips=flips, phase=show_phase)
    deliver_reports([report], report, json_path)
    raise typer.Exit(0 if report.is_clean else 1)


if __name__ == "__main__":
    run_script(main)
