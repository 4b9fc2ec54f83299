"""`kgverify audit observer`: the evaluator with its steps recorded and without, compared."""

from typing import Annotated

import typer

from kgverify.cli import options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.options import RunOptions, with_run_options
from kgverify.cli.progress import check_writable, show_phase


@with_run_options()
def audit_observer(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: Annotated[
        list[str] | None,
        typer.Option(help="A mode of the evaluator; repeat for several; those of the device if not given."),
    ] = None,
    precision: options.Precision = "float32",
    slots: Annotated[int, typer.Option(min=1, help="Derivations in flight.")] = 64,
    json_path: options.JsonPath = None,
) -> None:
    """Prove with and without recording in each mode: both must end alike, and as eager does.

    Exit code 0 if they do, 1 if not.
    """
    from kgverify.audit.evaluator.observer import audit_observer as audit

    check_writable(json_path)
    run = run_options.build()
    report = audit(run, modes=mode or None, device=device, slots=slots, precision=precision, phase=show_phase)
    deliver_reports([report], report, json_path)
    raise typer.Exit(0 if report.is_clean else 1)
