"""The audit of a step function: its values on every rung of the compiler, and the properties that compiling can lose."""

import copy
import shutil
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch._inductor.utils import fresh_cache

from stepaudit.audited_function import Function, Inputs, MakeInputs, Subject, make_subject
from stepaudit.compiled_step import calling_plainly, refuse_distributed, unwrap_compiled
from stepaudit.environment import describe_environment
from stepaudit.errors import UserError, describe_error, first_line
from stepaudit.isolation import Received, is_device_lost, run_isolated, start_autograd
from stepaudit.ladder.climb import warm_up_compiler
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import USUALLY, AuditOptions
from stepaudit.properties.aliasing import find_aliasing, find_overwritten_outputs, find_unstable_addresses
from stepaudit.properties.captured_values import restoring
from stepaudit.properties.colliding_writes import find_colliding_writes
from stepaudit.properties.compilations import find_graph_breaks, find_recompilations, measure_graphs, report_raised
from stepaudit.properties.compiled_run import (
    CompiledRun,
    RepeatedCallError,
    is_overwritten,
    run_compiled,
    silencing_compiler,
)
from stepaudit.properties.guard_holes import find_guard_holes
from stepaudit.properties.launches import collecting_messages, find_copied_inputs, measure_launches
from stepaudit.properties.speed import measure_speed
from stepaudit.properties.stream_races import AUDIT as RACES
from stepaudit.properties.stream_races import find_stream_races
from stepaudit.properties.syncs import find_cuda_syncs, find_syncs, watch_eager_reads
from stepaudit.report import AuditReport, ReportBuilder, check_budget, read_budget
from stepaudit.source_lines import find_definition, find_stack_line
from stepaudit.values import convert_tensors

_EAGER: Final = (watch_eager_reads, find_colliding_writes, find_aliasing)
_COMPILING: Final = (find_syncs, find_graph_breaks, find_recompilations, measure_graphs)
_CALLS: Final = (
    find_overwritten_outputs,
    find_unstable_addresses,
    measure_launches,
    find_cuda_syncs,
    find_copied_inputs,
    measure_speed,
)
"""The checks of eager calls, of the compilation, and of compiled calls that returned, each group in order."""


def audit_step(
    function: Function,
    make_inputs: Callable[[], Inputs] | MakeInputs,
    options: AuditOptions = USUALLY,
    **changes: Any,
) -> AuditReport:
    """Audit a step function under `torch.compile`: is it still right, and which property was lost?

    Everything that this process has compiled before is compiled again at its next call. The function's arguments and captured
    state are restored after each call.

    Args:
        function: any function or module that takes tensors, modules and plain values, nested in containers and objects.
            If it is compiled already, the function inside is audited, with the settings that it is compiled with.
        make_inputs: returns the arguments, a tuple, or a dict of keyword arguments; the last item of the tuple may be
            `Keywords`. It takes the number of the call, from 0, or nothing.
        options: the calls, rungs, precision, settings of the compiler, limits and files of the audit.
        changes: options by their names, such as `calls=2`, instead of those in `options`.

    Returns:
        The findings with their lines, the measures, and what could not be examined.

    Raises:
        UserError: for arguments that do not fit, for a function that raises without the compiler, and for modules that
            run in several processes.
    """
    function, settings = unwrap_compiled(function)
    options = replace(options, **changes)
    usual = (name for name in settings if getattr(options, name) == getattr(USUALLY, name))
    options = replace(options, **{name: settings[name] for name in usual})
    given = options.budget
    budget = read_budget(Path(given)) if isinstance(given, (str, Path)) else check_budget(given or {})
    subject = replace(make_subject(options.name, function, make_inputs), calls=options.calls)
    if options.device != "auto":
        subject = replace(subject, make_inputs=_moving_to(options.device, subject.make_inputs))
    refuse_distributed(subject)
    start_autograd()
    with calling_plainly(function):
        return _audit(subject, options, budget)


def _audit(subject: Subject, options: AuditOptions, budget: dict[str, float]) -> AuditReport:
    report = ReportBuilder()
    try:
        is_conclusive = not options.rungs or audit_values(subject, report, options)
    except RuntimeError as error:
        if not is_device_lost():
            raise
        # The rungs report the loss of the device themselves.
        raise UserError(
            f"the device is lost without the compiler: {describe_error(error)}",
            where=subject.name,
            fix="audit a step whose kernels succeed in eager; CUDA_LAUNCH_BLOCKING=1 shows the line of the one that fails",
        ) from error
    if is_device_lost():
        report.skip("properties", "the device was lost on a rung")
    else:
        is_conclusive &= _examine_apart(subject, options, report)
    # A race is why such a function differs from itself.
    is_conclusive = is_conclusive or any(each.audit == RACES for each in report.findings)
    environment = describe_environment(mode=options.mode, dynamic=str(options.dynamic))
    return report.build(subject.name, environment, budget=budget, is_conclusive=is_conclusive)


def _examine_apart(subject: Subject, options: AuditOptions, report: ReportBuilder) -> bool:
    """Examine every property, where possible in a process of its own; return whether the audit may be conclusive."""
    received = Received(options.announce)

    def examine(send: Callable[[str | ReportBuilder], None]) -> None:
        with fresh_cache():
            examine_properties(subject, replace(options, announce=send), report)
        send(report)

    try:
        with report.timing("properties"):
            warm_up_compiler()
            end = run_isolated(examine, received, seconds=options.patience)
            vars(report).update(vars(received.result or report))
        if end:
            report.skip("properties", f"the process ended: {end}, while {received.part}")
            return bool(report.findings)
    except UserError as error:
        if not options.rungs:
            raise
        report.skip("properties", str(error))
    except RuntimeError as error:
        if not is_device_lost():
            raise
        report.skip("properties", f"the device was lost while {received.part}: {describe_error(error)}")
        return bool(report.findings)
    return True


def examine_properties(subject: Subject, options: AuditOptions, report: ReportBuilder) -> None:
    """Examine every property of a subject. The caller chooses the folder of the caches; compile times need an empty folder."""
    run = CompiledRun(subject, options, report)
    if not run.is_cuda and options.backend == "inductor" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise UserError("a CPU backend needs a C++ compiler", where="mode", fix="install g++ or clang")
    options.announce("reading values, colliding writes")
    try:
        # In eager, also what the step compiles itself runs without the compiler.
        with torch.compiler.set_stance("force_eager"):
            _examine(run, _EAGER)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{subject.name} raises without the compiler: {describe_error(error)}",
            where=find_stack_line(traceback.extract_tb(error.__traceback__)) or find_definition(subject.function),
            fix="audit a function that returns on these inputs",
        ) from error
    options.announce("compiling")
    with silencing_compiler(), restoring(run.found), collecting_messages(run):
        run_compiled(run)
        _examine(run, _COMPILING)
        if run.error is None:
            _examine(run, _CALLS)
        elif is_overwritten(run.error):
            _examine(run, (find_overwritten_outputs,))
        else:
            report.skip("launches", "the compiled function raised")
    # This comes last: the graphs are in the caches by then, and the time to compile has been measured.
    options.announce("guards")
    find_guard_holes(run)
    # The sanitizer slows every later call down.
    options.announce("streams")
    find_stream_races(run)


def _examine(run: CompiledRun, checks: tuple[Callable[[CompiledRun], None], ...]) -> None:
    for check in checks:
        try:
            with restoring(run.found):
                check(run)
        except RepeatedCallError as error:
            _report_repeated(run, check, error)


def _report_repeated(run: CompiledRun, check: Callable[[CompiledRun], None], error: RepeatedCallError) -> None:
    """Report a repeated call that raised only when compiled: the check returns with the function in place of compiled code."""
    eager = copy.copy(run)
    eager.compiled, eager.report = run.function, ReportBuilder()
    try:
        with restoring(run.found):
            check(eager)
    except RepeatedCallError as expected:
        if str(expected) == str(error):
            run.report.skip("launches", f"{error}, without the compiler as well")
            return
    report_raised(run, error.__cause__ or error, f"{error}, which it does not without the compiler")


def _moving_to(device: str, make_inputs: MakeInputs) -> MakeInputs:
    """Return a function that makes the same arguments on a device. UserError for a device that does not exist here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no such device: {first_line(str(error))}", where="device", fix="give cpu or cuda") from None

    return lambda call: convert_tensors(make_inputs(call), lambda tensor: tensor.to(device))
