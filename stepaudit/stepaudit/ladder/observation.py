"""All effects of a call: outputs, changes of arguments and of captured state, gradients, shared memory, errors."""

import enum
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepaudit.audited_function import Function, Inputs
from stepaudit.errors import describe_error
from stepaudit.properties.captured_values import find_captured_values, is_plain
from stepaudit.values import (
    USUAL,
    Other,
    Precision,
    copy_values,
    describe_difference,
    find_aliases,
    find_storage,
    list_leaves,
)

VALUES: Final = ("output", "argument", "captured", "gradient")
"""The kinds of effects whose leaves are compared as values. The other kinds are `class` and `aliasing`."""
_COMPILER: Final = ("torch._dynamo", "torch._inductor", "torch._functorch")
_OF_STEPS: Final = ("TorchRuntimeError", "UserError", "ObservedException")
"""The compiler's classes for errors of the step."""
_USUAL: Final = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True)
class Observation:
    """The effects of one call.

    effects: by kind, then by path: copies of the leaves of outputs, arguments and captured values after the call;
             gradients of the outputs, with fixed weights, for the tensors that require them; classes of tensors that
             are not plain tensors; for every leaf that shares memory with an earlier leaf, the first such leaf
    error:   the type of the error and the first line of its message; empty if nothing was raised
    end:     how the call ended the process, such as `SIGABRT`; empty if it did not
    draws:   whether the call drew random numbers
    is_of_compiler: whether the error is a failure of the compiler itself
    """

    effects: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""
    end: str = ""
    draws: bool = False
    is_of_compiler: bool = False

    def leaves(self, kind: str) -> dict[str, Any]:
        """Return the leaves of a kind, by path."""
        return self.effects.get(kind, {})


class Deviation(NamedTuple):
    """A way in which a call differs from the expected one.

    call:  the name of the call, such as `repeated call 2`
    kind:  `output`, `argument` or `captured` (changed by the call), `gradient`, `class`, `aliasing`,
           `error`, `end` or `structure`
    where: the path of the leaf; empty for errors
    """

    call: str
    kind: str
    where: str
    detail: str


class DeviceLost(Exception):
    """A kernel failed, and the device cannot be used again in this process."""


@contextmanager
def seeding(number: int) -> Iterator[None]:
    """Give torch, numpy and Python the same random numbers each time. Restore their generators afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def observe(
    function: Function,
    inputs: Inputs,
    *,
    captures: Function | None = None,
    around: AbstractContextManager[Any] = nullcontext(),  # noqa: B008  it has no state
    convert: Callable[[Any], Any] = lambda leaf: leaf,
) -> Observation:
    """Call a function and record its effects, including errors.

    captures: the function whose captured state is read, instead of that of `function`
    around:   the context of the call; convert: maps a leaf to the value that is recorded
    DeviceLost if nothing can be recorded any more.
    """
    states = _read_generators()
    try:
        with around:
            output = function(*inputs)
            draws = states != _read_generators()
            outputs, arguments = _name_leaves("output", output), _name_leaves("argument", inputs)
            captured = find_captured_values(captures).read_data() if captures is not None else {}
            others = {f"captured {path}": leaf for path, leaf in captured.items()} | outputs
            classes = {
                path: type(leaf).__qualname__
                for path, leaf in (arguments | outputs).items()
                if isinstance(leaf, Tensor) and type(leaf) not in _USUAL
            }
            effects = {
                "output": _copy(outputs, convert),
                "argument": _copy(arguments, convert),
                "captured": _copy(captured, convert),
                "aliasing": find_aliases(_locate(arguments), _locate(others)),
                "class": classes,
                "gradient": _differentiate(outputs, arguments | captured, convert),
            }
            # The failure of a kernel is reported by the call that launched it.
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            return Observation(effects, draws=draws)
    except Exception as raised:
        error = describe_error(raised)
        try:
            held = find_captured_values(captures).read_data() if captures is not None else {}
            given = {"argument": _name_leaves("argument", inputs), "captured": held}
            effects = {kind: _copy(leaves, lambda leaf: leaf) for kind, leaves in given.items()}
            return Observation(effects, error=error, is_of_compiler=_is_of_compiler(raised))
        except RuntimeError:
            raise DeviceLost(error) from raised


def _is_of_compiler(error: Exception) -> bool:
    """Return whether the compiler failed, and not the step that it compiles."""
    kind = type(error)
    return kind.__module__.startswith(_COMPILER) and kind.__name__ not in _OF_STEPS


def _read_generators() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # type: ignore[index]


def _copy(leaves: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    copied = {path: _describe_other(copy_values(convert(leaf))) for path, leaf in leaves.items()}
    for path, leaf in leaves.items():
        if _is_differentiable(leaf):
            copied[path].requires_grad_()
    return copied


def _describe_other(leaf: Any) -> Any:
    """Return a form of a leaf that other processes can receive: a plain tensor, or the kind and text of a user's value."""
    if isinstance(leaf, Tensor):
        return leaf if type(leaf) is Tensor else leaf.as_subclass(Tensor)
    kind = type(leaf)
    if kind.__module__ in ("builtins", "numpy") and (is_plain(leaf) or isinstance(leaf, (set, frozenset, np.ndarray))):
        return leaf
    # Objects without a value, such as functions, may be made anew for each call.
    has_text = is_plain(leaf) or isinstance(leaf, (torch.dtype, torch.device, enum.Enum))
    return Other(f"{kind.__module__}.{kind.__qualname__}", repr(leaf) if has_text else "")


def _locate(leaves: dict[str, Any]) -> list[tuple[str, int]]:
    return [(path, find_storage(leaf)) for path, leaf in leaves.items() if isinstance(leaf, Tensor)]


def _differentiate(outputs: dict[str, Any], given: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the gradients of the outputs. If this raises, also in eager, the error becomes a leaf."""
    roots = [leaf for leaf in outputs.values() if _is_differentiable(leaf) and leaf.grad_fn is not None]
    leaves = {path: leaf for path, leaf in given.items() if _is_differentiable(leaf) and leaf.is_leaf}
    if not roots or not leaves or not torch.is_grad_enabled():
        return {}
    weights = [
        torch.linspace(0.5, 1.5, max(1, root.numel()))[: root.numel()].reshape(root.shape).to(root) for root in roots
    ]
    try:
        found = torch.autograd.grad(roots, list(leaves.values()), weights, allow_unused=True)
    except RuntimeError as error:
        return {"": f"raises {type(error).__name__}"}
    return {path: copy_values(convert(each)) for path, each in zip(leaves, found, strict=True) if each is not None}


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point()


def compare_observations(
    expected: Observation, actual: Observation, call: str = "", precision: Precision = USUAL
) -> Iterator[Deviation]:
    """Yield the deviations. Integers and booleans must be equal, and floats as near as the precision requires."""
    if actual.end:
        yield Deviation(call, "end", "", f"the process ended: {actual.end}")
        return
    if bool(expected.error) != bool(actual.error) or expected.is_of_compiler != actual.is_of_compiler:
        before, after = (each or "no error" for each in (expected.error, actual.error))
        yield Deviation(call, "error", "", f"expected {before}, found {after}")
        return
    for kind in VALUES:
        leaves, found = expected.leaves(kind), actual.leaves(kind)
        if list(leaves) != list(found):
            only = [path for path in (*leaves, *found) if (path in leaves) != (path in found)]
            named = f", such as {only[0]}" if only else ", in another order"
            yield Deviation(call, "structure", kind, f"expected {len(leaves)} leaves, found {len(found)}{named}")
            continue
        for path, leaf in leaves.items():
            if detail := describe_difference(leaf, found[path], precision):
                yield Deviation(call, kind, path, detail)
    for kind, usual, text in (
        ("class", "Tensor", "expected a {}, found a {}"),
        ("aliasing", "nothing", "shares memory with {1}, expected {0}"),
    ):
        leaves, found = expected.leaves(kind), actual.leaves(kind)
        for path in sorted(leaves.keys() | found.keys()):
            pair = leaves.get(path, usual), found.get(path, usual)
            if pair[0] != pair[1]:
                yield Deviation(call, kind, path, text.format(*pair))


def _name_leaves(kind: str, tree: Any) -> dict[str, Any]:
    return {f"{kind}{path}": leaf for path, leaf in list_leaves(tree)}
