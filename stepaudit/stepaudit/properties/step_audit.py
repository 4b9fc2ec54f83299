"""The audit of one compiled step, property by property."""

import traceback
from collections.abc import Callable
from typing import Final

from stepaudit.audited_function import Subject
from stepaudit.environment import has_cpp_compiler
from stepaudit.errors import UserError, describe_error
from stepaudit.options import AuditOptions
from stepaudit.properties.aliasing import find_aliasing, find_overwritten_outputs, find_unstable_addresses
from stepaudit.properties.captured_values import restoring
from stepaudit.properties.colliding_writes import find_colliding_writes
from stepaudit.properties.compilations import find_graph_breaks, find_recompilations, measure_graphs
from stepaudit.properties.compiled_run import CompiledRun, run_compiled, silencing_compiler
from stepaudit.properties.guard_holes import find_guard_holes
from stepaudit.properties.launches import collecting_messages, find_copied_inputs, measure_launches
from stepaudit.properties.syncs import find_cuda_syncs, find_syncs, watch_eager_reads
from stepaudit.report import ReportBuilder
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
"""The checks of eager calls, of the compilation, and of compiled calls that returned, each in its order."""


def examine_properties(subject: Subject, options: AuditOptions, report: ReportBuilder) -> None:
    """Examine every property of a subject. The caller chooses the folder of the caches, and an empty one for compile times."""
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
    # Afterwards: the graphs are in the caches then, and the time to compile has been measured.
    options.announce("guards")
    find_guard_holes(run)


def _examine(run: CompiledRun, checks: tuple[Callable[[CompiledRun], None], ...]) -> None:
    for check in checks:
        with restoring(run.found):
            check(run)
