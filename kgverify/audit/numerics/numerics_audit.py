"""The audit of a function's arithmetic: the same input twice, in other batches, under other settings."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from kgverify.audit.audited_function import Function, Inputs, MakeInputs, Subject, check_modes, make_subject
from kgverify.audit.numerics.batch import audit_batch
from kgverify.audit.numerics.repetition import audit_repetition, call_once
from kgverify.audit.numerics.settings import audit_settings
from kgverify.audit.properties.colliding_writes import audit_colliding_writes
from kgverify.audit.report import AuditReport, ReportBuilder
from kgverify.audit.values import list_device_types
from kgverify.errors import describe_error
from kgverify.runs.machine import describe_environment


def audit_numerics(
    fn: Function,
    make_inputs: Callable[[], Inputs] | MakeInputs,
    *,
    batch_axis: int | None = 0,
    batched: Sequence[int] | None = None,
    name: str = "",
    modes: Sequence[str] = ("eager", "default"),
    repetitions: int = 3,
    error: float | None = None,
    large: int | None = None,
) -> AuditReport:
    """Examine the arithmetic of a function: equal arguments twice, colliding writes, other batch sizes, TF32.

    Args:
        fn: any function of tensors and plain values.
        make_inputs: returns the arguments of a call, a tuple, the same each time; takes the number of the call, or nothing.
        batch_axis: of arguments and results; None if they have no batch axis.
        batched: the numbers of the arguments that have the axis; every tensor as long as the first one if not given.
        name: the name in the report; the function's own if not given.
        modes: `eager`, and modes of `torch.compile`.
        repetitions: the number of calls with equal arguments.
        error: the declared absolute error of a value; rows may differ by twice as much between batches.
        large: the number of elements to which arguments are repeated for further calls; a million on CUDA if not given.

    Returns:
        The findings and measures. What could not be examined, such as a mode in which the function does not compile, is
        in `unmeasured`.

    Raises:
        UserError: where make_inputs does not return a tuple, or for an unknown mode.
    """
    check_modes(modes)
    subject = make_subject(name, fn, make_inputs)
    device = torch.device("cuda" if "cuda" in list_device_types(subject.inputs(0)) else "cpu")
    report = ReportBuilder()
    audit_repetition(
        subject, report, modes=modes, repetitions=repetitions, batch_axis=batch_axis, batched=batched, large=large
    )

    def once() -> Any:
        return call_once(subject.function, subject.inputs(0))

    _attempt("duplicate-scatters", subject, report, lambda: audit_colliding_writes(once, subject.name, report))
    if batch_axis is not None:
        audit_batch(subject, report, batch_axis=batch_axis, batched=batched, error=error)
    _attempt("tf32", subject, report, lambda: audit_settings(once, subject.name, report, device=device))
    return report.build(subject.name, describe_environment(device.type, modes=", ".join(modes)))


def _attempt(audit: str, subject: Subject, report: ReportBuilder, run: Callable[[], None]) -> None:
    """Run an audit; report it as unmeasured where the function raises."""
    try:
        run()
    except Exception as error:  # The user's function may raise anything.
        report.skip(audit, f"{subject.name}: {describe_error(error)}")
