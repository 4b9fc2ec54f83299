"""The audit of a step function: its values on every rung of the compiler, and the properties that it can lose."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache
from torch.utils import _pytree as pytree

from stepaudit import isolation
from stepaudit.audited_function import COMPILE_MODES, Function, Inputs, MakeInputs, check_names, make_subject
from stepaudit.environment import describe_environment
from stepaudit.errors import UserError, first_line
from stepaudit.ladder.climb import RUNGS, USUALLY, LadderOptions, warm_up_compiler
from stepaudit.ladder.values_audit import audit_values
from stepaudit.properties.compiled_run import CompileSetting
from stepaudit.properties.step_audit import examine_properties
from stepaudit.report import AuditReport, ReportBuilder, check_budget, read_budget
from stepaudit.values import Precision

RUNG_NAMES: Final = tuple(rung.name for rung in RUNGS[1:])


def audit_step(
    function: Function,
    make_inputs: Callable[[], Inputs] | MakeInputs,
    *,
    name: str = "",
    calls: int = 6,
    device: str = "auto",
    rungs: Sequence[str] = RUNG_NAMES,
    tolerance: float | None = None,
    exact: bool = False,
    mode: str = "default",
    dynamic: bool | None = None,
    keeps_outputs: bool = True,
    budget: Path | str | Mapping[str, float] | None = None,
    seconds: float = USUALLY.seconds,
    patience: float = isolation.SECONDS,
    reproducer: Path | str | None = None,
    announce: Callable[[str], None] = lambda what: None,
) -> AuditReport:
    """Audit a step function under `torch.compile`: is it still right, and which property was lost?

    Everything that this process has compiled before is compiled again at its next call. The function's arguments and captured
    state are restored after each call.

    Args:
        function: any function of tensors, modules and plain values, nested in containers and objects.
        make_inputs: returns the arguments, a tuple; takes the number of the call, from 0, or nothing.
        name: the name in the report; the function's own if not given.
        calls: the number of different calls to make.
        device: the device to which the inputs are moved; `auto` leaves them where they are.
        rungs: the ways to compile that are compared with eager; none leaves the values out.
        tolerance: the largest absolute and relative error of a float. If not given, a float may differ as far as another
            rounding of the same operations allows.
        exact: whether all bits must be equal.
        mode: of `torch.compile`, for the properties: default, reduce-overhead or max-autotune.
        dynamic: of `torch.compile`; None lets a shape that changes become symbolic.
        keeps_outputs: whether the caller reads an output after the next call.
        budget: limits on the measures, or a file of them.
        seconds: limit on the CPU time of the searches for the cause and the line of a deviation.
        patience: CPU seconds that the calls of one rung may take, with compilation; what takes longer counts as a call that
            does not return.
        reproducer: the Python file to write where a value deviates.
        announce: receives the name of the work that begins.

    Returns:
        The findings with their lines, the measures, and what could not be examined.

    Raises:
        UserError: for arguments that do not fit, and for a function that raises without the compiler.
    """
    if calls < 1:
        raise UserError(f"expected at least 1 call, found {calls}", where="calls", fix="give 1 or more")
    if tolerance is not None and not tolerance >= 0:
        raise UserError(f"expected 0 or more, found {tolerance}", where="tolerance", fix="give an error such as 1e-5")
    if tolerance is not None and exact:
        raise UserError("cannot be combined with exact", where="tolerance", fix="give one of the two")
    path = Path(reproducer) if reproducer is not None else None
    if path is not None and (path.suffix != ".py" or path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        raise UserError("is not a Python file in a folder that exists", where=f"reproducer {path}", fix="give wrong.py")
    check_names("mode", (mode,), COMPILE_MODES)
    check_names("rung", rungs, RUNG_NAMES)
    limits = read_budget(Path(budget)) if isinstance(budget, (str, Path)) else check_budget(budget or {})
    subject = replace(make_subject(name, function, make_inputs), calls=calls)
    if device != "auto":
        subject = replace(subject, make_inputs=_moving_to(device, subject.make_inputs))
    report = ReportBuilder()
    options = LadderOptions(
        rungs=[rung for rung in RUNGS if rung.options is None or rung.name in rungs],
        reproducer=path,
        seconds=seconds,
        precision=Precision(tolerance, exact),
        patience=patience,
        announce=announce,
    )
    is_conclusive = not rungs or audit_values(subject, report, options)

    def examine(send: Callable[[str | ReportBuilder], None]) -> None:
        with fresh_cache():
            setting = CompileSetting(mode, dynamic)
            examine_properties(subject, setting, report, keeps_outputs=keeps_outputs, announce=send)
        send(report)

    def receive(sent: str | ReportBuilder) -> None:
        if isinstance(sent, str):
            doing.append(sent)
            announce(sent)
        else:
            vars(report).update(vars(sent))

    doing: list[str] = []
    try:
        with report.timing("properties"):
            warm_up_compiler()
            end = isolation.run_isolated(examine, receive, seconds=patience)
        if end:
            report.skip("properties", f"the process ended: {end}, while {doing[-1] if doing else 'starting'}")
            is_conclusive = is_conclusive and bool(report.findings)
    except UserError as error:
        if not rungs:
            raise
        report.skip("properties", str(error))
    environment = describe_environment(mode=mode, dynamic=str(dynamic))
    return report.build(subject.name, environment, budget=limits, is_conclusive=is_conclusive)


def _moving_to(device: str, make_inputs: MakeInputs) -> MakeInputs:
    """Return what makes the same arguments on a device. UserError for a device that does not exist here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no such device: {first_line(str(error))}", where="device", fix="give cpu or cuda") from None

    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    return lambda call: pytree.tree_map(move, make_inputs(call))
