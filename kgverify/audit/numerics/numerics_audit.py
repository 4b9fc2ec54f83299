"""Determinism and precision of a function of tensors: what it gives twice, in other batches, under other settings."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from kgverify.runs.machine import describe_environment
from kgverify.audit.report import AuditReport, Unmeasured, describe_error
from kgverify.audit.numerics.batch import audit_batch
from kgverify.audit.numerics.repetition import audit_repetition
from kgverify.audit.numerics.settings import audit_settings
from kgverify.audit.values import Look, check_modes, devices_of, keep
from kgverify.audit.properties.colliding_writes import audit_scatters
from kgverify.audit.audited_function import Function, Inputs, MakeInputs, Subject, make_subject


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
    """Is it the arithmetic? Equal arguments twice, scatters that write a place twice, batches of other sizes, TF32.

    make_inputs: the arguments, a tuple, of a call, whose number it may take; the same each time
    batch_axis:  of arguments and results; None where there is none
    batched:     numbers of the arguments that have the axis; if not given, every tensor as long as the first one
    modes:       `eager`, and modes of `torch.compile`
    error:       declared of a value of the result, absolute; rows may differ by twice as much between batches
    large:       elements to repeat the arguments to for further calls; a million on CUDA if not given

    What could not be looked at, such as a mode that the function does not compile in, is among `unmeasured`.
    UserError where make_inputs gives no tuple, or for a mode that is none.
    """
    check_modes(modes)
    subject = make_subject(name or getattr(fn, "__name__", type(fn).__name__), fn, make_inputs)
    inputs = subject.inputs(0)
    kinds = devices_of(inputs)
    device = torch.device("cuda" if "cuda" in kinds else "cpu")
    look = audit_repetition(
        subject, modes=modes, repetitions=repetitions, batch_axis=batch_axis, batched=batched, large=large
    )
    once = partial(call_once, subject)
    look = look.join(attempt("duplicate-scatters", subject.name, partial(audit_scatters, once, subject.name)))
    if batch_axis is not None:
        look = look.join(audit_batch(subject, batch_axis=batch_axis, batched=batched, error=error))
    settings = partial(audit_settings, once, subject.name, device=device)
    look = look.join(attempt("tf32", subject.name, settings))
    return AuditReport(
        subject=subject.name,
        findings=look.findings,
        unmeasured=look.unmeasured,
        measures=look.measures,
        environment=describe_environment(device.type, modes=", ".join(modes)),
    )


def attempt(audit: str, name: str, look: Callable[[], Look]) -> Look:
    """What an audit saw; where the function under it raised, that it could not be made."""
    try:
        return look()
    except Exception as error:  # The user's function raises whatever it likes.
        return Look(unmeasured=(Unmeasured(audit=audit, reason=f"{name}: {describe_error(error)}"),))


def call_once(subject: Subject) -> Any:
    """The result of the first call, and the arguments as it left them."""
    inputs = subject.inputs(0)
    result = subject.function(*inputs)
    return keep((result, inputs))
