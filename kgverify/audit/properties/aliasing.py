"""What shares memory with what, whose address stays, and what is overwritten by later calls."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from kgverify.audit.properties.captured_values import Place, places, restoring
from kgverify.audit.properties.compiled_run import Call, CompiledRun, copied, joint_inputs, make_call, storage
from kgverify.audit.properties.notes import Notes
from kgverify.audit.source_lines import definition_line, return_line
from kgverify.audit.audited_function import Subject, is_same_leaf, leaves

AUDIT = "aliasing"
OVERWRITTEN = "overwritten-outputs"
ADDRESSES = "address-stability"


def tensors(tree: Any, name: str) -> list[tuple[str, Tensor]]:
    """Every tensor with its path."""
    return [(f"{name}{path}", leaf) for path, leaf in leaves(tree) if isinstance(leaf, Tensor)]


def find_aliasing(subject: Subject, run: CompiledRun, found: list[Place], notes: Notes) -> None:
    """Compare which leaves share memory with and without the compiler, and whether that memory is written in place."""
    if not run.calls:
        return
    inputs = joint_inputs(subject, range(1))[0]
    before = [(path, tensor, (copied(tensor), _version(tensor))) for path, tensor in _givens(inputs, found)]
    with restoring(found):
        eager, error = make_call(subject.function, inputs, 0)
        written = {storage(t) for _, t, old in before if _is_written(t, *old)} - {0}
        eager_aliases = _aliases(eager, before)
        eager_shared = _shared(eager)
    if error is not None:
        return
    call = run.calls[0]
    mine = [(path, tensor, None) for path, tensor in _givens(call.inputs, found)]
    aliases, shared = _aliases(call, mine), _shared(call)
    notes.measures["aliased_outputs"] = len(aliases)
    notes.measures["shared_outputs"] = len(shared)
    notes.details["aliased_outputs"] = tuple(f"{out} is or views {given}" for out, given in sorted(aliases.items()))
    notes.details["shared_outputs"] = tuple(" and ".join(pair) for pair in sorted(shared))
    for output, given in eager_aliases.items():
        place = next((path for path, tensor, _ in before if path == given and storage(tensor) in written), None)
        if place is not None:
            notes.find(
                AUDIT,
                mechanism="an output that is an input, or a view of one, changes when that memory is written again",
                finding=f"{output} shares its memory with {given}, which the step writes in place: "
                "an output that was kept changes with the next call",
                where=return_line(subject.function),
                remedy="return a clone, or write into a new tensor",
            )
    for output, given in aliases.items():
        if output not in eager_aliases:
            _report_difference(f"{output} shares memory with {given} only when compiled", subject, notes)
    for output, given in eager_aliases.items():
        if output not in aliases:
            _report_difference(f"{output} shares memory with {given} only when not compiled", subject, notes)
    for pair in shared - eager_shared:
        _report_difference(f"{' and '.join(pair)} share memory only when compiled", subject, notes)


def _report_difference(finding: str, subject: Subject, notes: Notes) -> None:
    notes.find(
        AUDIT,
        mechanism="a write to one of two tensors that share memory is seen in the other",
        finding=finding,
        where=return_line(subject.function),
        remedy="clone one of them in the step",
    )


def _givens(inputs: Any, found: list[Place]) -> list[tuple[str, Tensor]]:
    captured = [(place.path, place.get()) for place in found if isinstance(place.get(), Tensor)]
    return [*tensors(inputs, "argument "), *captured]


def _version(tensor: Tensor) -> int:
    """Counts writes in place; tensors of inference mode count none."""
    return -1 if tensor.is_inference() else tensor._version


def _is_written(tensor: Tensor, old: Tensor | None, version: int) -> bool:
    return _version(tensor) != version or (old is not None and not is_same_leaf(old, tensor.detach()))


def _aliases(call: Call, givens: list[Any]) -> dict[str, str]:
    by_storage = {storage(each[1]): each[0] for each in reversed(givens) if storage(each[1])}
    return {f"output{path}": by_storage[memory] for path, memory in call.memory if memory in by_storage}


def _shared(call: Call) -> set[tuple[str, str]]:
    seen: dict[int, str] = {}
    pairs = set()
    for path, memory in call.memory:
        if memory and memory in seen:
            pairs.add((seen[memory], f"output{path}"))
        seen.setdefault(memory, f"output{path}")
    return pairs


def find_overwritten(subject: Subject, run: CompiledRun, notes: Notes, *, keeps_outputs: bool) -> None:
    """Outputs kept since the first call: whether later calls changed them, or took their memory back.

    keeps_outputs: whether a caller reads an output after the next call; if not, only what the step keeps is a finding
    """
    lost = _lost(run.calls)
    kept_eagerly = _lost(_eager_calls(subject)) if lost else []
    notes.measures["overwritten_outputs"] = len(lost)
    notes.details["overwritten_outputs"] = tuple(f"{path}: {how}" for path, how in lost)
    eager_paths = {path for path, _ in kept_eagerly}
    for path, how in lost:
        if path in eager_paths:
            if any(each.audit == AUDIT and each.finding.startswith(f"{path} shares") for each in notes.findings):
                continue
            notes.find(
                AUDIT,
                mechanism="an output that is an input, or a view of one, changes when that memory is written again",
                finding=f"{path} of a call is changed by a later call, with and without the compiler",
                where=return_line(subject.function),
                remedy="return a clone, or write into a new tensor",
            )
        elif keeps_outputs:
            notes.find(
                OVERWRITTEN,
                mechanism="a captured graph gives its outputs in memory of its own, which the next replay writes again",
                finding=f"{path}, kept across calls: {how}",
                where=return_line(subject.function),
                remedy="clone it before the next call; if nothing reads it after that, say keeps_outputs=False",
            )
    for place, how in _kept_inside(subject, run, eager_paths):
        notes.find(
            OVERWRITTEN,
            mechanism="a captured graph gives its outputs in memory of its own, which the next replay writes again",
            finding=f"the step itself keeps an output in {place.path}: {how}",
            where=place.where,
            remedy="keep a clone of it",
        )


def _eager_calls(subject: Subject) -> list[Call]:
    found = places(subject.function)
    with restoring(found):
        return [
            make_call(subject.function, inputs, number)[0]
            for number, inputs in enumerate(joint_inputs(subject, range(subject.calls)))
        ]


def _lost(calls: list[Call]) -> list[tuple[str, str]]:
    """Of every path the first way in which an output of an earlier call is no longer what it was."""
    lost: dict[str, str] = {}
    for call in calls[:-1]:
        for (path, old), (_, tensor) in zip(call.snapshot, tensors(call.output, ""), strict=True):
            now = copied(tensor)
            if now is None:
                lost.setdefault(f"output{path}", "its memory was taken back")
            elif old is not None and not is_same_leaf(old, now):
                lost.setdefault(f"output{path}", "its values were changed")
    return list(lost.items())


def _kept_inside(subject: Subject, run: CompiledRun, eager_paths: set[str]) -> list[tuple[Place, str]]:
    """What the step keeps of outputs whose memory was taken back or written again, when compiled alone."""
    gone: set[int] = set()
    for call in run.calls[:-1]:
        for (path, old), (_, tensor) in zip(call.snapshot, tensors(call.output, ""), strict=True):
            if f"output{path}" in eager_paths:
                continue
            now = copied(tensor)
            if now is None or (old is not None and not is_same_leaf(old, now)):
                gone.add(id(tensor))
                gone.add(storage(tensor))
    gone.discard(0)
    kept = []
    for place in places(subject.function):
        value = place.get()
        if isinstance(value, Tensor) and (id(value) in gone or storage(value) in gone or copied(value) is None):
            kept.append((place, "its memory is written by later calls"))
    names: dict[str, tuple[Place, str]] = {}
    for place, how in kept:
        names.setdefault(place.name, (place, how))
    return list(names.values())


def find_unstable_addresses(subject: Subject, run: CompiledRun, notes: Notes) -> None:
    """How many leaves change their address between calls; a finding where one is marked as static."""
    if len(run.calls) < 2:
        return
    notes.measures["unstable_inputs"] = _num_unstable(
        run, lambda call: [(path, storage(tensor)) for path, tensor in tensors(call.inputs, "")]
    )
    notes.measures["unstable_outputs"] = _num_unstable(run, lambda call: call.memory)
    for graph in run.graphs:
        for number, given in enumerate(graph.inputs):
            seen = {row[number] for row in graph.addresses if number < len(row)}
            if given is not None and given.is_static and len(seen) > 1:
                notes.find(
                    ADDRESSES,
                    mechanism="a tensor marked as static is read at its address; a new address captures the graph anew",
                    finding=f"{given.source} is marked as static and had {len(seen)} addresses in {len(graph.addresses)} calls",
                    where=given.where or definition_line(subject.function),
                    remedy="write into one tensor with copy_, or take the mark away",
                )


def _num_unstable(run: CompiledRun, pick: Callable[[Call], list[tuple[str, int]]]) -> int:
    seen: dict[str, set[int]] = {}
    for call in run.calls:
        for path, memory in pick(call):
            seen.setdefault(path, set()).add(memory)
    return sum(len(addresses) > 1 for addresses in seen.values())
