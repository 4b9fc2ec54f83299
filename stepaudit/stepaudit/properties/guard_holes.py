"""Guard holes: a captured value changes, and compiled code still gives the old answer."""

import enum
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stepaudit.audited_function import Function
from stepaudit.environment import read_cpu_seconds
from stepaudit.properties.captured_values import CapturedValue, restoring
from stepaudit.properties.compiled_run import CompiledRun, compile_anew, make_call, silencing_compiler
from stepaudit.values import USUAL, convert_tensors, is_same, list_leaves

AUDIT = "guard-holes"
_SECONDS: Final = 20.0
"""The limit on the CPU time of the changes."""
_MANY: Final = 1000
"""A number of compilations of one frame that is never reached here."""


def find_guard_holes(run: CompiledRun) -> None:
    """Change one captured value after another, and compare compiled code, which must not recompile, with the function.

    The whole compiler takes part, since AOTAutograd and Inductor also read values while they compile. On a CUDA device, a
    number is changed only if the function returns with it on a CPU, since a wrong index would end the use of the device.
    If time runs out, the remaining changes are skipped.
    """
    num_tried = num_without = num_holes = num_left = 0
    found, report = run.found, run.report
    unlimited = torch._dynamo.config.patch(recompile_limit=_MANY, accumulated_recompile_limit=_MANY)
    with restoring(found), silencing_compiler(), unlimited:
        trials = _Trials(run)
        if trials.problem:
            report.skip(AUDIT, trials.problem)
            return
        until = read_cpu_seconds() + _SECONDS
        for captured in found:
            holes: list[str] = []
            for change, apply in _perturbations(captured):
                if read_cpu_seconds() > until:
                    num_left += 1
                    continue
                is_risky = run.is_cuda and isinstance(captured.get(), int)
                verdict = None if is_risky and not _returns_on_cpu(run, apply) else trials.attempt(apply)
                num_tried += verdict is not None
                num_without += verdict is None
                if verdict:
                    holes.append(f"{change}: {verdict}")
            if holes:
                num_holes += 1
                report.find(AUDIT, f"{captured.path}: {holes[0]}", captured.where)
    report.measures |= {"guard_holes": num_holes, "guard_perturbations": num_tried}
    if num_left:
        report.skip(AUDIT, f"{num_left} of {num_left + num_tried + num_without} changes were skipped for lack of time")


def _returns_on_cpu(run: CompiledRun, apply: Callable[[], object]) -> bool:
    """Return whether a function returns after a change if its arguments and all captured tensors are on a CPU."""
    with restoring(run.found):
        try:
            for captured, value in run.list_captured_tensors():
                if captured.is_settable:
                    captured.set(convert_tensors(value, Tensor.cpu))
            apply()
        except Exception:
            return False
        return make_call(run.function, convert_tensors(run.subject.inputs(0), Tensor.cpu), 0)[1] is None


class _Trials:
    """Calls of a function, with and without the compiler, before and after changes.

    problem: the reason why no call can be made; empty if calls can be made
    """

    def __init__(self, run: CompiledRun) -> None:
        self._run, self._compiled = run, compile_anew(run)
        self.problem = ""
        self._plain, error = self._observe(run.function)
        if error is not None:
            self.problem = f"the function raised {type(error).__name__}"
            return
        self._before, error = self._observe(self._compiled)
        if error is not None:
            self.problem = f"the compiled function raised {type(error).__name__}"

    def _observe(
        self, function: Function, apply: Callable[[], object] = lambda: None
    ) -> tuple[Any, BaseException | None]:
        """Change something, make a call, and restore everything. The function may write into the changed value."""
        with restoring(self._run.found):
            apply()
            inputs = self._run.subject.inputs(0)
            call, error = make_call(function, inputs, 0)
            plain = [leaf for _, leaf in list_leaves(call.output) if not isinstance(leaf, Tensor)]
            return [[tensor for _, tensor in call.snapshot], plain, inputs], error

    def attempt(self, apply: Callable[[], object]) -> str | None:
        """Return None if the change has no effect or is refused, an empty text if compiled code saw it, else a description."""
        try:
            expected, error = self._observe(self._run.function, apply)
        except Exception:
            return None
        if error is not None or is_same(expected, self._plain):
            return None
        with torch.compiler.set_stance("fail_on_recompile"):
            actual, error = self._observe(self._compiled, apply)
        if error is not None or is_same(expected, actual):
            return ""
        if is_same(actual, self._before):
            return "compiled code gives the old answer"
        if is_same(expected, actual, USUAL):
            return ""
        # Code compiled after the change differs, too, if it rounds otherwise, draws other random numbers, or is wrong.
        anew, error = self._observe(compile_anew(self._run), apply)
        return "" if error is not None or is_same(anew, actual) else "compiled code gives another answer"


def _list_other_values(value: Any) -> list[Any]:
    """List other values of the same kind as a plain value; none for values that are not plain."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, enum.Enum):
        members = list(type(value))
        return [members[(members.index(value) + 1) % len(members)]]
    if isinstance(value, int):
        return [value + 1, *([value - 1] if value > 0 else [])]
    if isinstance(value, float):
        return [value + 1.0]
    return [value + "_"] if isinstance(value, str) else []


def _perturbations(captured: CapturedValue) -> Iterator[tuple[str, Callable[[], object]]]:
    value = captured.get()
    show = repr if isinstance(value, str) and not isinstance(value, enum.Enum) else str
    for other in _list_other_values(value):
        yield f"{show(value)} -> {show(other)}", partial(captured.set, other)
    if isinstance(value, Tensor):
        changed = _change(value)
        yield "change in captured", lambda: value.detach().copy_(changed)
        is_parameter = isinstance(value, torch.nn.Parameter)
        yield "another tensor", lambda: captured.set(torch.nn.Parameter(changed) if is_parameter else changed.clone())
    elif isinstance(value, torch.nn.Module):
        yield "another module", partial(captured.set, _replace(value))
    elif callable(value) and captured.is_settable:
        yield "another function", partial(captured.set, _replace(value))
    elif isinstance(value, list) and value:
        yield "last item removed", lambda: value.__delitem__(-1)
        yield "last item repeated", lambda: value.append(value[-1])
    elif isinstance(value, dict) and value:
        yield "last item removed", lambda: value.__delitem__(list(value)[-1])


def _replace(function: Function) -> Function:
    """Return a function with other results; a module for a module."""

    def other(*arguments: Any, **options: Any) -> Any:
        return pytree.tree_map_only(Tensor, change, function(*arguments, **options))

    def change(result: Tensor) -> Tensor:
        return result + 1 if result.is_floating_point() else result

    if not isinstance(function, torch.nn.Module):
        return other
    module = torch.nn.Module()
    module.forward = other
    return module


def _change(value: Tensor) -> Tensor:
    """Return other values of the same kind. Integers are chosen from the present ones, since they may be indices."""
    held = value.detach()
    if held.dtype == torch.bool:
        return ~held
    if held.is_floating_point() or held.is_complex():
        return held + 1
    return held.flatten().flip(0).reshape(held.shape)
