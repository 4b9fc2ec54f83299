"""Shared memory between inputs and outputs, outputs that later calls overwrite, and addresses that change."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from stepaudit.properties.captured_values import CapturedValue, find_captured_values, restoring
from stepaudit.properties.compiled_run import Call, CompiledRun, is_overwritten, make_call
from stepaudit.source_lines import find_definition, find_line_in_text, find_return
from stepaudit.values import copy_tensor, count_writes, find_aliases, find_storage, is_same, list_tensors

AUDIT = "aliasing"
OVERWRITTEN = "overwritten-outputs"


def find_aliasing(run: CompiledRun) -> None:
    """Compare which leaves share memory with and without the compiler, and whether the shared memory is written in place."""
    if not run.calls:
        return
    subject, report, inputs = run.subject, run.report, run.subject.inputs(0)
    given = _list_inputs(inputs, run)
    before = [(tensor, copy_tensor(tensor), count_writes(tensor)) for _, tensor in given]
    with restoring(run.found):
        eager, error = make_call(subject.function, inputs, 0)
        written = {
            find_storage(tensor)
            for tensor, old, num in before
            if count_writes(tensor) != num or (old is not None and not is_same(old, tensor.detach()))
        } - {0}
        expected = _find_aliases(given, eager)
    if error is not None:
        return
    call = run.calls[0]
    actual = _find_aliases(_list_inputs(call.inputs, run), call)
    shared = {output: first for output, first in actual.items() if first.startswith("output")}
    aliased = {output: first for output, first in actual.items() if output not in shared}
    report.measures |= {"aliased_outputs": len(aliased), "shared_outputs": len(shared)}
    report.details["aliased_outputs"] = tuple(
        f"{output} is or views {first}" for output, first in sorted(aliased.items())
    )
    report.details["shared_outputs"] = tuple(f"{first} and {output}" for output, first in sorted(shared.items()))
    last = find_return(subject.function)
    for path, memory in eager.memory:
        if memory in written:
            shares = f"output{path} shares its memory with {expected[f'output{path}']}, which the step writes in place"
            report.find(AUDIT, f"{shares}: an output that was kept changes with the next call", last)
    for one, other, when in ((actual, expected, "when compiled"), (expected, actual, "when not compiled")):
        for output in (path for path in one if path not in other):
            report.find(AUDIT, f"{output} shares memory with {one[output]} only {when}", last)


def _list_inputs(inputs: Any, run: CompiledRun) -> list[tuple[str, Tensor]]:
    captured = [(each.path, tensor) for each, tensor in run.list_captured_tensors()]
    return [*list_tensors(inputs, "argument "), *captured]


def _find_aliases(given: list[tuple[str, Tensor]], call: Call) -> dict[str, str]:
    """Return the outputs that share memory with an input or an earlier output, each with the first such leaf."""
    held = [(path, find_storage(tensor)) for path, tensor in given]
    return find_aliases(held, [(f"output{path}", memory) for path, memory in call.memory])


def find_overwritten_outputs(run: CompiledRun) -> None:
    """Find outputs of earlier calls that later calls changed, or whose memory later calls took back.

    If the caller reads no output after the next call, only outputs that the step itself keeps count.
    """
    subject, report = run.subject, run.report
    lost = _find_lost(run.calls)
    eager_paths: set[str] = set()
    if lost:
        with restoring(run.found):
            eager = [make_call(subject.function, given, number)[0] for number, given in enumerate(run.all_inputs())]
        eager_paths = set(_find_lost(eager))
    last = find_return(subject.function)
    report.measures["overwritten_outputs"] = len(lost)
    report.details["overwritten_outputs"] = tuple(f"{path}: {how}" for path, how in lost.items())
    for path, how in lost.items():
        if path in eager_paths:
            if any(each.audit == AUDIT and each.finding.startswith(f"{path} shares") for each in report.findings):
                continue
            report.find(AUDIT, f"{path} of a call is changed by a later call, with and without the compiler", last)
        elif run.options.keeps_outputs:
            report.find(OVERWRITTEN, f"{path}, kept across calls: {how}", last)
    kept = _find_kept_inside(run, eager_paths)
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


def _find_kept_inside(run: CompiledRun, eager_paths: set[str]) -> list[CapturedValue]:
    """Find captured tensors that are outputs, and whose memory is taken back or overwritten only when compiled."""
    changed = [tensor for path, tensor, _ in _list_changed(run.calls) if path not in eager_paths]
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
