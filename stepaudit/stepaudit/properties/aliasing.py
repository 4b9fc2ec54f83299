"""Shared memory between inputs and outputs, outputs that later calls overwrite, and addresses that change."""

from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from stepaudit.properties.captured_values import CapturedValue, find_captured_values
from stepaudit.properties.compiled_run import Call, CompiledRun, is_overwritten, make_call
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_definition, find_line_in_text, find_return
from stepaudit.values import copy_tensor, count_writes, find_aliases, find_storage, is_same, list_tensors

AUDIT = "aliasing"
OVERWRITTEN = "overwritten-outputs"


def find_aliasing(run: CompiledRun) -> None:
    """Find outputs of eager calls whose memory the step writes in place, in the same call or in a later one."""
    report, last = run.report, find_return(run.function)
    calls: list[Call] = []
    shared: dict[str, str] = {}
    for number, inputs in enumerate(run.all_inputs()):
        given = [*list_tensors(inputs, "argument "), *((each.path, held) for each, held in run.list_captured_tensors())]
        before = [(tensor, copy_tensor(tensor), count_writes(tensor)) for _, tensor in given]
        call, _ = make_call(run.function, inputs, number)
        written = {
            find_storage(tensor)
            for tensor, old, num in before
            if count_writes(tensor) != num or (old is not None and not is_same(old, tensor.detach()))
        }
        outputs = [(f"output{path}", memory) for path, memory in call.memory]
        aliases = find_aliases(((path, find_storage(tensor)) for path, tensor in given), outputs)
        shared = {path: aliases[path] for path, memory in outputs if memory and memory in written} | shared
        if not number:
            _list_aliases(aliases, report)
        calls.append(call)
    for path, first in shared.items():
        shares = f"{path} shares its memory with {first}, which the step writes in place"
        report.find(AUDIT, f"{shares}: an output that was kept changes with the next call", last)
    run.changed_in_eager = set(_find_lost(calls))
    for path in run.changed_in_eager - set(shared):
        report.find(AUDIT, f"{path} of a call is changed by a later call, with and without the compiler", last)


def _list_aliases(aliases: dict[str, str], report: ReportBuilder) -> None:
    shared = {output: first for output, first in aliases.items() if first.startswith("output")}
    aliased = {output: first for output, first in aliases.items() if output not in shared}
    report.measures |= {"aliased_outputs": len(aliased), "shared_outputs": len(shared)}
    report.details["aliased_outputs"] = tuple(f"{output} is or views {first}" for output, first in aliased.items())
    report.details["shared_outputs"] = tuple(f"{first} and {output}" for output, first in shared.items())


def find_overwritten_outputs(run: CompiledRun) -> None:
    """Find outputs of earlier calls that later calls changed, or whose memory later calls took back.

    If the caller reads no output after the next call, only outputs that the step itself keeps count.
    """
    subject, report = run.subject, run.report
    lost = {path: how for path, how in _find_lost(run.calls).items() if path not in run.changed_in_eager}
    last = find_return(subject.function)
    report.measures["overwritten_outputs"] = len(lost)
    report.details["overwritten_outputs"] = tuple(f"{path}: {how}" for path, how in lost.items())
    for path, how in lost.items() if run.options.keeps_outputs else ():
        report.find(OVERWRITTEN, f"{path}, kept across calls: {how}", last)
    kept = _find_kept_inside(run)
    if is_overwritten(run.error) and not kept:
        where = find_line_in_text(str(run.error)) or find_definition(subject.function)
        report.find(
            OVERWRITTEN, "a call reads the output of an earlier one, whose memory a later replay took back", where
        )
    for captured in kept:
        finding = f"the step itself keeps an output in {captured.path}: its memory is written by later calls"
        report.find(OVERWRITTEN, finding, captured.where)


def _list_changed(calls: list[Call]) -> Iterator[tuple[str, Tensor, str]]:
    """Yield the outputs of earlier calls that have changed since: path, tensor and the kind of change."""
    for call in calls[:-1]:
        for (path, old), (_, tensor) in zip(call.snapshot, list_tensors(call.output), strict=True):
            now = copy_tensor(tensor)
            if now is None:
                yield f"output{path}", tensor, "its memory was taken back"
            elif old is not None and not is_same(old, now):
                yield f"output{path}", tensor, "its values were changed"


def _find_lost(calls: list[Call]) -> dict[str, str]:
    """Return the first change of each changed output, by path."""
    lost: dict[str, str] = {}
    for path, _, how in _list_changed(calls):
        lost.setdefault(path, how)
    return lost


def _find_kept_inside(run: CompiledRun) -> list[CapturedValue]:
    """Find captured tensors that are outputs, and whose memory is taken back or overwritten only when compiled."""
    changed = [tensor for path, tensor, _ in _list_changed(run.calls) if path not in run.changed_in_eager]
    gone = {id(tensor) for tensor in changed} | {find_storage(tensor) for tensor in changed} - {0}
    kept: dict[str, CapturedValue] = {}
    for captured in find_captured_values(run.function):
        value = captured.get()
        if isinstance(value, Tensor) and (
            id(value) in gone or find_storage(value) in gone or copy_tensor(value) is None
        ):
            kept.setdefault(captured.name, captured)
    return list(kept.values())


def find_unstable_addresses(run: CompiledRun) -> None:
    """Count the leaves whose address changes between calls, and find those that are marked as static."""
    report = run.report
    if len(run.calls) < 2:
        return
    inputs = [(path, find_storage(tensor)) for call in run.calls for path, tensor in list_tensors(call.inputs)]
    report.measures["unstable_inputs"] = _count_unstable(inputs)
    report.measures["unstable_outputs"] = _count_unstable([each for call in run.calls for each in call.memory])
    for graph in run.graphs:
        for number, given in enumerate(graph.inputs):
            seen = {row[number] for row in graph.addresses if number < len(row)}
            if given is not None and given.is_static and len(seen) > 1 and not seen & run.unmarked:
                moved = f"had {len(seen)} addresses in {len(graph.addresses)} calls"
                where = given.where or find_definition(run.function)
                report.find("address-stability", f"{given.source} is marked as static and {moved}", where)


def _count_unstable(addresses: list[tuple[str, int]]) -> int:
    num = Counter(path for path, _ in set(addresses))
    return sum(each > 1 for each in num.values())
