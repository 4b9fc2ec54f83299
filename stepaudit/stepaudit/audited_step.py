"""The audit of a step function: its values on every rung of the compiler, and the properties that compiling can lose."""

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache
from torch.utils import _pytree as pytree

from stepaudit.audited_function import Function, Inputs, MakeInputs, Subject, make_subject
from stepaudit.environment import describe_environment, has_cpp_compiler
from stepaudit.errors import UserError, describe_error, first_line
from stepaudit.isolation import run_isolated
from stepaudit.ladder.climb import warm_up_compiler
from stepaudit.ladder.values_audit import audit_values
from stepaudit.options import USUALLY, AuditOptions
from stepaudit.properties.aliasing import find_aliasing, find_overwritten_outputs, find_unstable_addresses
from stepaudit.properties.captured_values import restoring
from stepaudit.properties.colliding_writes import find_colliding_writes
from stepaudit.properties.compilations import find_graph_breaks, find_recompilations, measure_graphs
from stepaudit.properties.compiled_run import CompiledRun, run_compiled, silencing_compiler
from stepaudit.properties.guard_holes import find_guard_holes
from stepaudit.properties.launches import collecting_messages, find_copied_inputs, measure_launches
from stepaudit.properties.syncs import find_cuda_syncs, find_syncs, watch_eager_reads
from stepaudit.report import AuditReport, ReportBuilder, check_budget, read_budget
from stepaudit.source_lines import find_definition, find_stack_line

_EAGER: Final = (watch_eager_reads, find_colliding_writes)
_COMPILING: Final = (find_syncs, find_graph_breaks, find_recompilations, measure_graphs)
_CALLS: Final = (
    find_aliasing,
    find_overwritten_outputs,
    find_unstable_addresses,
    measure_launches,
    find_cuda_syncs,
    find_copied_inputs,
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
        function: any function of tensors, modules and plain values, nested in containers and objects.
        make_inputs: returns the arguments, a tuple; takes the number of the call, from 0, or nothing.
        options: the calls, rungs, precision, settings of the compiler, limits and files of the audit.
        changes: options by their names, such as `calls=2`, instead of those in `options`.

    Returns:
        The findings with their lines, the measures, and what could not be examined.

    Raises:
        UserError: for arguments that do not fit, and for a function that raises without the compiler.
    """
    options = replace(options, **changes)
    given = options.budget
    budget = read_budget(Path(given)) if isinstance(given, (str, Path)) else check_budget(given or {})
    subject = replace(make_subject(options.name, function, make_inputs), calls=options.calls)
    if options.device != "auto":
        subject = replace(subject, make_inputs=_moving_to(options.device, subject.make_inputs))
    report = ReportBuilder()
    is_conclusive = not options.rungs or audit_values(subject, report, options)
    work = "starting"

    def examine(send: Callable[[str | ReportBuilder], None]) -> None:
        with fresh_cache():
            examine_properties(subject, replace(options, announce=send), report)
        send(report)

    def receive(sent: str | ReportBuilder) -> None:
        nonlocal work
        if isinstance(sent, str):
            work = sent
            options.announce(sent)
        else:
            vars(report).update(vars(sent))

    try:
        with report.timing("properties"):
            warm_up_compiler()
            end = run_isolated(examine, receive, seconds=options.patience)
        if end:
            report.skip("properties", f"the process ended: {end}, while {work}")
            is_conclusive = is_conclusive and bool(report.findings)
    except UserError as error:
        if not options.rungs:
            raise
        report.skip("properties", str(error))
    environment = describe_environment(mode=options.mode, dynamic=str(options.dynamic))
    return report.build(subject.name, environment, budget=budget, is_conclusive=is_conclusive)


def examine_properties(subject: Subject, options: AuditOptions, report: ReportBuilder) -> None:
    """Examine every property of a subject. The caller chooses the folder of the caches; compile times need an empty folder."""
    run = CompiledRun(subject, options, report)
    if not run.is_cuda and not has_cpp_compiler():
        raise UserError("a CPU backend needs a C++ compiler", where="mode", fix="install g++ or clang")
    options.announce("reading values, colliding writes")
    try:
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
        else:
            report.skip("launches", "the compiled function raised")
    # This comes last: the graphs are in the caches by then, and the time to compile has been measured.
    options.announce("guards")
    find_guard_holes(run)


def _examine(run: CompiledRun, checks: tuple[Callable[[CompiledRun], None], ...]) -> None:
    for check in checks:
        with restoring(run.found):
            check(run)


def _moving_to(device: str, make_inputs: MakeInputs) -> MakeInputs:
    """Return a function that makes the same arguments on a device. UserError for a device that does not exist here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no such device: {first_line(str(error))}", where="device", fix="give cpu or cuda") from None

    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    return lambda call: pytree.tree_map(move, make_inputs(call))
