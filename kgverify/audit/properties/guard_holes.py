"""Guard holes: what a step closes over is changed, and compiled code gives the old answer."""

import enum
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kgverify.audit.properties.captured_values import Place, restoring
from kgverify.audit.properties.compiled_run import CompileSetting, make_call, quiet_compiler
from kgverify.audit.properties.notes import Notes
from kgverify.audit.audited_function import Function, Subject, same_values

AUDIT = "guard-holes"
_CHANGES: Final = "change in place"


def find_guard_holes(
    subject: Subject, setting: CompileSetting, found: list[Place], notes: Notes, seconds: float
) -> None:
    """Change one place after the other; compare compiled code, which may not be compiled anew, with the function.

    What guards is Dynamo's work, so the graphs themselves are run eagerly, and on a CPU: a changed value that leads an index
    astray ends a CUDA process. seconds: after so long the rest is left.
    """
    with _on_cpu(subject, found) as moved:
        _find_holes(moved, setting, found, notes, seconds)


def _find_holes(subject: Subject, setting: CompileSetting, found: list[Place], notes: Notes, seconds: float) -> None:
    num_tried = num_without = num_holes = num_left = 0
    until = time.monotonic() + seconds
    with quiet_compiler():
        compiled = torch.compile(subject.function, backend="eager", dynamic=setting.dynamic)
        with restoring(found):
            plain, error = _observe(subject, subject.function)
        if error is not None:
            notes.skip(AUDIT, f"the function cannot be run on a CPU, where values are changed: {type(error).__name__}")
            return
        with restoring(found):
            before, error = _observe(subject, compiled)
        if error is not None:
            notes.skip(AUDIT, f"the compiled function raised {type(error).__name__}")
            return
        for place in found:
            holes: list[str] = []
            for change, apply in _perturbations(place):
                if time.monotonic() > until:
                    num_left += 1
                    continue
                verdict = _try(subject, compiled, found, apply, plain, before)
                num_tried += verdict is not None
                num_without += verdict is None
                if verdict:
                    holes.append(f"{change}: {verdict}")
            if holes:
                num_holes += 1
                notes.find(
                    AUDIT,
                    mechanism="compiled code runs on as long as its guards hold; what no guard reads may change unseen",
                    finding=f"{place.path}: {holes[0]}",
                    where=place.where,
                    remedy="pass it as an argument; a value that compiled code was told to take as constant must be one",
                )
    notes.measures["guard_holes"] = num_holes
    notes.measures["guard_perturbations"] = num_tried
    if num_left:
        notes.skip(AUDIT, f"{num_left} of {num_left + num_tried + num_without} changes were left out, for want of time")


@contextmanager
def _on_cpu(subject: Subject, found: list[Place]) -> Iterator[Subject]:
    """The subject with its arguments, and all tensors that it closes over, on a CPU; those are put back afterwards."""

    def move(value: Any) -> Any:
        return value.cpu() if isinstance(value, Tensor) and value.is_cuda else value

    with restoring(found):
        for place in found:
            value = place.get()
            if move(value) is not value:
                place.set(move(value))
        yield replace(subject, make_inputs=lambda call: pytree.tree_map(move, subject.inputs(call)))


def _observe(subject: Subject, function: Function) -> tuple[Any, BaseException | None]:
    inputs = subject.inputs(0)
    call, error = make_call(function, inputs, 0)
    return [[tensor for _, tensor in call.snapshot], _plain_leaves(call.output), inputs], error


def _plain_leaves(output: Any) -> list[Any]:
    from kgverify.audit.audited_function import leaves

    return [leaf for _, leaf in leaves(output) if not isinstance(leaf, Tensor)]


def _try(
    subject: Subject, compiled: Function, found: list[Place], apply: Callable[[], None], plain: Any, before: Any
) -> str | None:
    """None where the change changes nothing or is refused; empty where compiled code saw it; else what it did."""
    with restoring(found):
        try:
            apply()
        except Exception:
            return None
        with restoring(found):
            expected, error = _observe(subject, subject.function)
        if error is not None or same_values(expected, plain):
            return None
        with torch.compiler.set_stance("fail_on_recompile"):
            actual, error = _observe(subject, compiled)
    if error is not None or same_values(expected, actual):
        return ""
    return "compiled code gives the old answer" if same_values(actual, before) else "compiled code gives another answer"


def _perturbations(place: Place) -> Iterator[tuple[str, Callable[[], None]]]:
    value = place.get()
    if isinstance(value, bool):
        yield f"{value} -> {not value}", lambda: place.set(not value)
    elif isinstance(value, enum.Enum):
        members = list(type(value))
        other = members[(members.index(value) + 1) % len(members)]
        yield f"{value} -> {other}", lambda: place.set(other)
    elif isinstance(value, int):
        yield f"{value} -> {value + 1}", lambda: place.set(value + 1)
        if value > 0:
            yield f"{value} -> {value - 1}", lambda: place.set(value - 1)
    elif isinstance(value, float):
        yield f"{value} -> {value + 1.0}", lambda: place.set(value + 1.0)
    elif isinstance(value, str):
        yield f"{value!r} -> {value + '_'!r}", lambda: place.set(value + "_")
    elif isinstance(value, Tensor):
        changed = _changed(value)
        if changed is not None:
            yield _CHANGES, lambda: _fill(value, changed)
            yield "another tensor", lambda: place.set(changed)
    elif isinstance(value, list) and value:
        yield "last item taken", lambda: value.__delitem__(-1)
        yield "last item twice", lambda: value.append(value[-1])
    elif isinstance(value, dict) and value:
        yield "last item taken", lambda: value.__delitem__(list(value)[-1])


def _changed(value: Tensor) -> Tensor | None:
    """Other values of the same kind; integers within those that were there, since they may be indices."""
    with torch.no_grad():
        held = value.detach()
        if held.dtype == torch.bool:
            return ~held
        if held.is_floating_point() or held.is_complex():
            return held + 1
        return held.flatten().flip(0).reshape(held.shape)


def _fill(value: Tensor, changed: Tensor) -> None:
    with torch.no_grad():
        value.detach().copy_(changed)
