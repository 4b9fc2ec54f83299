"""`kgverify audit numerics` and `kgverify audit observer`: the compiled evaluator's arithmetic, and its recording of steps."""

from typing import Annotated

import typer

from kgverify.cli import options
from kgverify.cli.audit.deliver import deliver_reports
from kgverify.cli.options import RunOptions, with_run_options
from kgverify.cli.progress import check_writable, show_phase


@with_run_options(policy="two_tower")
def audit_numerics(
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
    from kgverify.audit.evaluator.numerics import audit_evaluator

    check_writable(json_path)
    run = run_options.build()
    report = audit_evaluator(run, device=device, mode=mode, repetitions=repetitions, most_flips=flips, phase=show_phase)
    deliver_reports([report], report, json_path)
    raise typer.Exit(0 if report.is_clean else 1)


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
