"""The audit of one compiled step, property by property."""

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from logging import LogRecord
from typing import Final

import torch

from stepaudit.audited_function import Subject
from stepaudit.environment import has_cpp_compiler
from stepaudit.errors import UserError
from stepaudit.properties.aliasing import find_aliasing, find_overwritten_outputs, find_unstable_addresses
from stepaudit.properties.captured_values import CapturedState, find_captured_values, restoring
from stepaudit.properties.colliding_writes import find_colliding_writes
from stepaudit.properties.compilations import find_graph_breaks, find_recompilations, measure_graphs
from stepaudit.properties.compiled_run import CompileSetting, run_compiled, silencing_compiler
from stepaudit.properties.guard_holes import find_guard_holes
from stepaudit.properties.launches import (
    collecting_messages,
    find_copied_inputs,
    find_missing_replays,
    measure_launches,
    profile_calls,
)
from stepaudit.properties.syncs import Waits, find_cuda_syncs, find_syncs, watch_eager_reads
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_definition, find_stack_line
from stepaudit.values import is_on_cuda

GUARD_SECONDS: Final = 20.0
"""The limit on the CPU time for changing captured values."""

Announce = Callable[[str], None]
"""Receives the name of the work that begins."""


def examine_properties(
    subject: Subject,
    setting: CompileSetting,
    report: ReportBuilder,
    *,
    keeps_outputs: bool,
    announce: Announce,
) -> None:
    """Examine every property of a subject. The caller chooses the folder of the caches, and an empty one for compile times."""
    found = find_captured_values(subject.function)
    is_cuda = is_on_cuda((subject.inputs(0), [captured.get() for captured in found]))
    if not is_cuda and not has_cpp_compiler():
        raise UserError("a CPU backend needs a C++ compiler", where="mode", fix="install g++ or clang")
    announce("reading values, colliding writes")
    waits = _examine_eagerly(subject, found, report)
    announce("compiling")
    with silencing_compiler(), restoring(found):
        _examine_compiled(subject, setting, found, report, waits, is_cuda=is_cuda, keeps_outputs=keeps_outputs)
    # Afterwards: the graphs are in the caches then, and the time to compile has been measured.
    announce("guards")
    find_guard_holes(subject, setting, found, report, GUARD_SECONDS)


def _examine_eagerly(subject: Subject, found: CapturedState, report: ReportBuilder) -> Waits:
    try:
        with restoring(found):
            num_operations, waits = watch_eager_reads(subject)
        find_colliding_writes(subject, found, report)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{subject.name} raises without the compiler: {type(error).__name__}: {error}",
            where=find_stack_line(traceback.extract_tb(error.__traceback__)) or find_definition(subject.function),
            fix="audit a function that returns on these inputs",
        ) from error
    report.measures["aten_calls_per_step"] = num_operations
    return waits


def _examine_compiled(
    subject: Subject,
    setting: CompileSetting,
    found: CapturedState,
    report: ReportBuilder,
    waits: Waits,
    *,
    is_cuda: bool,
    keeps_outputs: bool,
) -> None:
    nothing: AbstractContextManager[list[LogRecord]] = nullcontext([])
    with collecting_messages() if is_cuda and setting.asks_for_graphs else nothing as messages:
        limit = torch._dynamo.config.recompile_limit
        run, compiled = run_compiled(subject, setting, more_calls=max(0, limit + 2 - subject.calls))
        find_syncs(waits, run, report)
        find_graph_breaks(run, report)
        find_recompilations(run, report)
        report.measures |= measure_graphs(run)
        if run.error is not None:
            report.skip("launches", "the compiled function raised")
            return
        with restoring(found):
            find_aliasing(subject, run, found, report)
        find_overwritten_outputs(subject, run, report, keeps_outputs=keeps_outputs)
        find_unstable_addresses(subject, run, report)
        inputs = subject.joint_inputs(range(subject.calls))
        with restoring(found):
            seen = profile_calls(compiled, inputs, is_cuda=is_cuda)
        measure_launches(run, seen, len(inputs), report, is_cuda=is_cuda)
        with restoring(found):
            find_cuda_syncs(subject, compiled, report, is_cuda)
        if is_cuda:
            find_missing_replays(run, seen, messages, len(inputs), report)
            with restoring(found):
                find_copied_inputs(subject, run, compiled, inputs, found, report)
