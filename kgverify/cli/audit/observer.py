"""`kgverify audit observer`: does the evaluator end as it does when its steps are recorded?"""

from typing import Annotated

import typer

from kgverify.cli import options
from kgverify.cli.audit.numerics import deliver
from kgverify.cli.options import naming_options
from kgverify.cli.progress import check_writable, show_phase
from kgverify.cli.run_options import RunOptions, with_run_options


@with_run_options()
def audit_observer(
    run_options: RunOptions,
    device: options.Device = "auto",
    mode: Annotated[
        list[str] | None,
        typer.Option(help="A mode of the evaluator, as often as wanted; those of the device if not given."),
    ] = None,
    precision: options.Precision = "float32",
    slots: Annotated[int, typer.Option(min=1, help="Derivations in flight.")] = 64,
    json_path: options.JsonPath = None,
) -> None:
    """Prove with and without recording in each mode: both must end alike, and as eager does.

    Exit code 0 if they do, 1 if not.
    """
    from kgverify.audit.evaluator.observer import audit_observer as audit
    from kgverify.audit.render import render_observer

    check_writable(json_path)
    run = run_options.build()
    with naming_options():
        report = audit(run, modes=mode or None, device=device, slots=slots, precision=precision, phase=show_phase)
    deliver(report, render_observer(report), json_path)
