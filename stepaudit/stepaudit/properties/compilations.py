"""Graph breaks, recompilations, the silent return to eager, and the cost of compiling."""

import re
import sys
import traceback
from collections.abc import Iterable
from itertools import dropwhile
from pathlib import Path
from typing import Final

import torch

from stepaudit.errors import describe_error, first_line
from stepaudit.properties.compiled_run import Compilation, CompiledRun, is_overwritten
from stepaudit.source_lines import find_code, find_definition, find_line_in_text, find_read, find_stack_line

_NAME: Final = re.compile(r"(?:tensor )?'?(?:[LG]\[')?([A-Za-z_]\w*)")
_OF_TENSORS: Final = "give it tensors of one dtype, layout and requires_grad"
_OF_STATE: Final = "call it under one grad mode, number of threads and default dtype"
_REMEDIES: Final = {
    "size": "give it one shape (pad), or torch._dynamo.mark_dynamic where nothing in the step depends on the size",
    **dict.fromkeys(("dtype", "requires_grad", "stride"), _OF_TENSORS),
    **dict.fromkeys(("GLOBAL_STATE", "grad_mode"), _OF_STATE),
}
"""The remedies of recompilations, by a word of their reasons."""
_SIZE: Final = re.compile(r"size mismatch at index (\d+). expected (\d+)")


def measure_graphs(run: CompiledRun) -> None:
    """Measure the graphs, their nodes, the seconds spent in compiling, and the generated kernels."""
    run.report.measures |= {
        "graphs": len(run.graphs),
        "graph_nodes": max((graph.num_nodes for graph in run.graphs), default=0),
        # The time of a frame includes the frames that are compiled within it.
        "compile_seconds": sum(each.seconds for each in run.compilations),
        "kernels_generated": run.num_kernels,
    }


def find_graph_breaks(run: CompiledRun) -> None:
    """Find every break with its line, a function without any compiled part, and a failed compilation."""
    report, error = run.report, run.error
    if error is not None and not is_overwritten(error):
        report_raised(run, error, describe_error(error))
    reasons = [each for each in _list_breaks(run) if error is None or first_line(str(error)) not in each[1]]
    for where, reason in reasons:
        where = where or find_definition(run.function)
        report.find("graph-breaks", first_line(reason) or "unknown", where, remedy=_fix_break(reason))
    has_run = error is not None or any(call.num_runs for call in run.calls)
    if is_skipped := not (reasons or has_run or report.measures["aten_calls_per_step"] == 0):
        report.find("graph-breaks", "no compiled graph ran in any call", find_definition(run.function))
    report.measures["graph_breaks"] = len(reasons) + is_skipped


def report_raised(run: CompiledRun, error: BaseException, finding: str) -> None:
    """Report that a call of compiled code raised, at the line that its error names."""
    line = find_stack_line(traceback.extract_tb(error.__traceback__))
    run.report.find("compilation", finding, find_line_in_text(str(error)) or line or find_definition(run.function))


def _list_breaks(run: CompiledRun) -> list[tuple[str, str]]:
    """List the breaks, and the frames that failed to compile at other lines, each with its line and its reason."""
    seen: dict[tuple[str, str], str] = {}
    for reason, where in run.breaks:
        seen.setdefault((where, first_line(reason)), reason)
    lines = {where for where, _ in seen}
    for each in run.compilations:
        where = each.fail_where or find_line_in_text(each.fail_reason) or each.function
        if each.fail_reason and not each.is_past_limit and where not in lines:
            lines.add(where)
            seen[where, ""] = each.fail_reason
    return [(where, reason) for (where, _), reason in seen.items()]


def _fix_break(reason: str) -> str:
    hints = [line.partition("Hint:")[2].strip() for line in reason.splitlines() if "Hint:" in line]
    if "generic_jump" in reason:
        return "a branch on a tensor's value: use torch.where, or decide outside of the step"
    if "Tensor.item" in reason or "aten._local_scalar_dense" in reason:
        return "keep the value on the device as a tensor"
    return hints[0] if hints else "do it outside of the step, or replace it by tensor operations"


def find_recompilations(run: CompiledRun) -> None:
    """Find frames that were recompiled, grouped by line, and calls past the recompile limit that ran eagerly."""
    report = run.report
    again = [each for each in run.compilations if each.number > 0 and not each.fail_reason]
    groups: dict[str, list[Compilation]] = {}
    for each in again:
        groups.setdefault(_locate_guard(each, run), []).append(each)
    for where, group in groups.items():
        reason = _shorten_reason(group[-1])
        calls = ", ".join(str(each.call + 1) for each in group)
        counted = f"{len(group)} recompilations (calls" if len(group) > 1 else "1 recompilation (call"
        report.find("recompilations", f"{counted} {calls}): {reason}", where, **_fix_recompilation(reason))
    report.measures["recompilations"] = len(again)
    report.details["recompilations"] = tuple(f"call {each.call + 1}: {_shorten_reason(each)}" for each in again)
    _find_fallback(run, groups)


def _find_fallback(run: CompiledRun, groups: dict[str, list[Compilation]]) -> None:
    report = run.report
    given_up = [each for each in run.compilations if each.is_past_limit]
    # The calls before the first that ran a graph do not count.
    later = [*dropwhile(lambda call: not call.num_runs, run.calls)] if report.measures["aten_calls_per_step"] else []
    num_silent = sum(not call.num_runs for call in later)
    report.measures["calls_run_eagerly"] = num_silent
    if not given_up and not num_silent:
        return
    limit = torch._dynamo.config.recompile_limit
    frame = given_up[0].frame if given_up else ""
    lines = [where for where, group in groups.items() if any(each.frame == frame for each in group)] or list(groups)
    code = (given_up[0].function if given_up else "") or find_definition(run.function)
    finding = f"{code}: compiled {limit} times, then given up" if given_up else "compiled code no longer runs"
    first = next((each.call for each in given_up), None)
    finding += f"; {num_silent} of {len(run.calls)} calls ran no compiled graph"
    finding += f", from call {first + 1} on" if first is not None else ""
    report.find("eager-fallback", finding, lines[-1] if lines else code)


def _shorten_reason(each: Compilation) -> str:
    first = re.sub(r"^\S+?/\d+\S*: ", "", first_line(each.reason) or "torch gives no reason")
    return re.sub(r"\s+", " ", first.partition("  #")[0]).strip()


def _locate_guard(each: Compilation, run: CompiledRun) -> str:
    """Return the line of a guard: named by torch, refusing the earlier size, or the first to read the changed value."""
    files = {line.rpartition(":")[0] for line in (each.function, find_definition(run.function)) if line}
    named = find_line_in_text(each.reason, files)
    if named:
        return named
    size = _SIZE.search(each.reason)
    if each.graph is not None and size and (refusal := each.graph.find_refusal(int(size[1]), int(size[2]))):
        return _complete_path(refusal, files)
    name = _NAME.match(_shorten_reason(each))
    source = name[1] if name else ""
    for graph in (each.graph, *run.graphs):
        for given in graph.inputs if graph else ():
            if given is not None and given.where and source and re.search(rf"\b{source}\b", given.source):
                return given.where
    code = find_code(run.function)
    if code is not None and source and (line := find_read((code,), source)):
        return line
    return each.function or find_definition(run.function)


def _fix_recompilation(reason: str) -> dict[str, str]:
    """Return the remedy of a failed guard, if it is not the usual one."""
    return next(({"remedy": remedy} for word, remedy in _REMEDIES.items() if word in reason), {})


def _complete_path(line: str, files: Iterable[str]) -> str:
    """Complete a line with only the end of a file's name, using these files and the files of loaded modules."""
    ending, _, number = line.rpartition(":")
    if Path(ending).is_absolute():
        return line
    modules = [file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    return next((f"{file}:{number}" for file in (*files, *modules) if file.endswith(ending)), line)
