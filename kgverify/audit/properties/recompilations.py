"""Recompilations with their reasons, and the silent return to eager past the limit."""

import re

import torch

from kgverify.audit.properties.compiled_run import Compilation, CompiledRun
from kgverify.audit.properties.notes import Notes
from kgverify.audit.source_lines import code_of, definition_line, reading_line, text_line, whole_path

AUDIT = "recompilations"
FALLBACK = "eager-fallback"
_NAME = re.compile(r"(?:tensor ')?(?:[LG]\[')?([A-Za-z_]\w*)'?\]?")


def find_recompilations(run: CompiledRun, num_eager_calls: int, notes: Notes) -> None:
    """Frames that were compiled again, grouped by line; calls past the limit, by counters and by what ran."""
    again = [each for each in run.compilations if each.number > 0 and not each.fail_reason]
    groups: dict[str, list[Compilation]] = {}
    for each in again:
        groups.setdefault(_place(each, run), []).append(each)
    for where, group in groups.items():
        reason = _reason(group[-1])
        calls = ", ".join(str(each.call + 1) for each in group)
        notes.find(
            AUDIT,
            mechanism="a guard on what the graph was made for fails, and the frame is compiled again",
            finding=f"{len(group)} recompilations (calls {calls}): {reason}"
            if len(group) > 1
            else f"1 recompilation (call {calls}): {reason}",
            where=where,
            remedy=_remedy(reason),
        )
    notes.measures["recompilations"] = len(again)
    notes.details["recompilations"] = tuple(f"call {each.call + 1}: {_reason(each)}" for each in again)
    _find_fallback(run, num_eager_calls, groups, notes)


def _find_fallback(run: CompiledRun, num_eager_calls: int, groups: dict[str, list[Compilation]], notes: Notes) -> None:
    given_up = [each for each in run.compilations if each.is_past_limit]
    has_run = False
    num_silent = 0
    for call in run.calls:
        num_silent += bool(has_run and call.num_runs == 0 and num_eager_calls)
        has_run |= call.num_runs > 0
    notes.measures["calls_run_eagerly"] = num_silent
    if not given_up and not num_silent:
        return
    limit = torch._dynamo.config.recompile_limit
    frame = given_up[0].frame if given_up else ""
    lines = [where for where, group in groups.items() if any(each.frame == frame for each in group)] or list(groups)
    code = (given_up[0].function if given_up else "") or definition_line(run.function)
    finding = f"{code}: compiled {limit} times, then given up" if given_up else "compiled code no longer runs"
    first = next((each.call for each in given_up), None)
    notes.find(
        FALLBACK,
        mechanism="past the recompile limit a frame runs without the compiler and says so in a log at most",
        finding=f"{finding}; {num_silent} of {len(run.calls)} calls ran no compiled graph"
        + (f", from call {first + 1} on" if first is not None else ""),
        where=lines[-1] if lines else code,
        remedy="remove the cause of the recompilations; torch._dynamo.config.fail_on_recompile_limit_hit makes it an error",
    )


def _reason(each: Compilation) -> str:
    first = each.reason.strip().splitlines()[0] if each.reason.strip() else "no reason is told"
    first = re.sub(r"^\S+?/\d+\S*: ", "", first)
    return re.sub(r"\s+", " ", first.partition("  #")[0]).strip()


def _place(each: Compilation, run: CompiledRun) -> str:
    """The line that the guard comes from: told; or that bound a size; or that reads first what changed."""
    files = {line.rpartition(":")[0] for line in (each.function, definition_line(run.function)) if line}
    told = text_line(each.reason, files)
    if told:
        return told
    if each.graph is not None and "mismatch" in each.reason and each.graph.guard_lines:
        return whole_path(each.graph.guard_lines[-1], files)
    name = _NAME.match(_reason(each).removeprefix("tensor "))
    source = name[1] if name else ""
    for graph in (each.graph, *run.graphs):
        for given in graph.inputs if graph else ():
            if given is not None and given.where and source and re.search(rf"\b{source}\b", given.source):
                return given.where
    code = code_of(run.function)
    if code is not None and source and (line := reading_line((code,), source)):
        return line
    return each.function or definition_line(run.function)


def _remedy(reason: str) -> str:
    if "size mismatch" in reason or "size" in reason:
        return "give it one shape (pad), or torch._dynamo.mark_dynamic where nothing in the step depends on the size"
    if "dtype" in reason or "requires_grad" in reason or "stride" in reason:
        return "give it tensors of one dtype, layout and requires_grad"
    if "GLOBAL_STATE" in reason or "grad_mode" in reason:
        return "call it under one grad mode, number of threads and default dtype"
    return "pass what changes as a tensor, or keep it the same between calls"
