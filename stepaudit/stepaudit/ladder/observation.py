"""All effects of a call: outputs, changes of arguments and of captured state, gradients, layouts, shared memory, errors."""

import enum
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepaudit.audited_function import Function, Inputs, Subject, call_with, seeding
from stepaudit.errors import describe_error
from stepaudit.operations import OperationMode
from stepaudit.properties.captured_values import CapturedState, find_captured_values, restoring, set_tensor
from stepaudit.properties.compiled_run import is_overwritten
from stepaudit.source_lines import find_line_in_text
from stepaudit.values import (
    USUAL,
    USUAL_TENSORS,
    Other,
    Precision,
    copy_values,
    describe_difference,
    describe_other_signs,
    find_aliases,
    find_storage,
    is_plain,
    list_leaves,
    make_digest,
)

VALUES: Final = ("output", "argument", "captured", "gradient")
"""The kinds of effects whose leaves are compared as values. The others are `class`, `aliasing`, `stride` and `random`."""
SIGNED_ZERO: Final = "signed zero"
OVERWRITTEN: Final = "reads memory of an earlier output that a replay of CUDA graphs has overwritten, made"
_OF_TORCH: Final = "torch"
"""The name of torch's own generators of random numbers."""
_COMPILER: Final = ("torch._dynamo", "torch._inductor", "torch._functorch")
_OF_STEPS: Final = ("TorchRuntimeError", "UserError", "ObservedException")
"""The compiler's classes for errors of the step."""


@dataclass(frozen=True)
class Observation:
    """The effects of one call.

    effects: by kind, then by path: copies of the leaves of outputs, arguments and captured values after the call, and
             of their `.grad`; gradients of the outputs, with fixed weights, for the tensors that require them; classes
             of tensors that are not plain tensors; for every leaf that shares memory with an earlier leaf, the first
             such leaf; strides of dimensions longer than 1; digests of the states of generators of random numbers
    error:   the type of the error and the first line of its message; empty if nothing was raised
    end:     how the call ended the process, such as `SIGABRT`; empty if it did not
    draws:   whether the call drew random numbers
    is_of_compiler: whether the error is a failure of the compiler itself
    num_operations: the number of operations that ran in the mode of the call
    """

    effects: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""
    end: str = ""
    draws: bool = False
    is_of_compiler: bool = False
    num_operations: int = 0

    @property
    def kind_of_error(self) -> str:
        """The type of the error; empty if nothing was raised."""
        return self.error.partition(":")[0]

    def leaves(self, kind: str) -> dict[str, Any]:
        """Return the leaves of a kind, by path."""
        return self.effects.get(kind, {})

    def put_into(self, inputs: Inputs, state: CapturedState) -> None:
        """Give arguments and captured values the values that they had after this call."""
        captured = {captured.path: captured.get() for captured in state}
        for kind, leaves in ("argument", name_leaves("argument", inputs)), ("captured", captured):
            for path, leaf in with_grads(leaves).items():
                value = self.leaves(kind).get(path)
                if isinstance(leaf, Tensor) and isinstance(value, Tensor):
                    set_tensor(leaf, value.detach())


class Deviation(NamedTuple):
    """A way in which a call differs from the expected one.

    call:  the name of the call, such as `repeated call 2`
    kind:  `output`, `argument` or `captured` (changed by the call), `gradient`, `class`, `aliasing`, `stride`,
           `random`, `signed zero`, `error`, `end` or `structure`
    where: the path of the leaf; empty for errors
    """

    call: str
    kind: str
    where: str
    detail: str


@contextmanager
def restored(subject: Subject, number: int) -> Iterator[tuple[Inputs, CapturedState]]:
    """Make the arguments of a call. Afterwards restore them, and everything else that the function can reach."""
    with seeding(subject.first + number):
        inputs = subject.shared_inputs(number)
    state = find_captured_values(subject.function, inputs)
    with restoring(state):
        yield inputs, state


def repeat_in_eager(
    subject: Subject, number: int, watching: Callable[[Inputs], AbstractContextManager[Any]], repeats: int = 1
) -> None:
    """Make a call again in eager, a number of times on the same arguments, the last time in a context made from these.

    An exception ends the call.
    """
    with restored(subject, number) as (inputs, _), torch.compiler.set_stance("force_eager"):
        for repeat in range(1, repeats + 1):
            around = watching(inputs) if repeat == repeats else nullcontext()
            with seeding(subject.first + number + repeat - 1), around, suppress(Exception):
                call_with(subject.function, inputs)


def observe(
    function: Function,
    inputs: Inputs,
    *,
    captures: Function | None = None,
    mode: OperationMode | None = None,
    draws_as_eager: bool = True,
) -> Observation:
    """Call a function and record its effects, including errors.

    captures: the function whose captured state is read, instead of that of `function`
    mode:     runs the operations of the call, and says which value of a leaf is recorded
    draws_as_eager: whether the function must leave torch's own generators in the state in which eager leaves them
    RuntimeError if a kernel has failed, after which nothing can be recorded.
    """
    states, convert, num_operations = _read_generators(), mode.shadow_of if mode else lambda leaf: leaf, 0
    try:
        with mode or nullcontext():
            try:
                output = call_with(function, inputs)
            finally:
                num_operations = mode.num_operations if mode else 0
            left = _read_generators()
            outputs, arguments = name_leaves("output", output), with_grads(name_leaves("argument", inputs))
            captured = _read_captured(captures)
            others = {f"captured {path}": leaf for path, leaf in captured.items()} | outputs
            classes = {
                path: type(leaf).__qualname__
                for path, leaf in (arguments | outputs).items()
                if isinstance(leaf, Tensor) and type(leaf) not in USUAL_TENSORS
            }
            effects = {
                "output": _copy(outputs, convert),
                "argument": _copy(arguments, convert),
                "captured": _copy(captured, convert),
                "aliasing": find_aliases(_locate(arguments), _locate(others)),
                "class": classes,
                "stride": _list_strides(outputs | arguments | captured),
                "random": {name: state for name, state in left.items() if draws_as_eager or name != _OF_TORCH},
                "gradient": _differentiate(outputs, arguments | captured, convert),
            }
            # The failure of a kernel is reported by the call that launched it.
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.synchronize()
            return Observation(effects, draws=states != left, num_operations=num_operations)
    except Exception as raised:
        error = describe_error(_find_error_of_step(raised))
        if is_overwritten(raised):
            error = f"{type(raised).__name__}: {OVERWRITTEN} at {find_line_in_text(str(raised))}"
        given = {"argument": with_grads(name_leaves("argument", inputs)), "captured": _read_captured(captures)}
        effects = {kind: _copy(leaves, lambda leaf: leaf) for kind, leaves in given.items()}
        kind = type(raised)
        is_of_compiler = kind.__module__.startswith(_COMPILER) and kind.__name__ not in _OF_STEPS
        return Observation(effects, error=error, is_of_compiler=is_of_compiler, num_operations=num_operations)


def _find_error_of_step(error: BaseException) -> BaseException:
    """Return the step's own error if the compiler has met it while it traced the step, and wrapped it."""
    inner: BaseException | None = error if type(error).__name__ in _OF_STEPS else None
    while inner is not None and type(inner).__module__.startswith(_COMPILER):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def _read_generators() -> dict[str, str]:
    """Return digests of the states of Python's, NumPy's and torch's own generators of random numbers, by their names."""
    held: Any = np.random.get_state()
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": [held[1].tolist(), *held[2:]]}
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    states |= {_OF_TORCH: [state.tolist() for state in (torch.get_rng_state(), *cuda)]}
    return {name: make_digest(state) for name, state in states.items()}


def with_grads(leaves: dict[str, Any]) -> dict[str, Any]:
    """Add the gradients that leaves of the autograd graph hold."""
    tensors = [(path, leaf) for path, leaf in leaves.items() if isinstance(leaf, Tensor) and leaf.is_leaf]
    return leaves | {f"{path}.grad": leaf.grad for path, leaf in tensors if leaf.grad is not None}


def _read_captured(captures: Function | None) -> dict[str, Any]:
    return with_grads(find_captured_values(captures).read_data()) if captures is not None else {}


def _list_strides(leaves: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the strides of tensors whose elements have addresses, without those of dimensions of size 1."""
    return {
        path: tuple(step for size, step in zip(leaf.shape, leaf.stride(), strict=True) if size > 1)
        for path, leaf in leaves.items()
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.numel() > 1
    }


def _copy(leaves: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    copied = {}
    for path, leaf in leaves.items():
        try:
            copied[path] = _describe_other(copy_values(convert(leaf)))
        except RuntimeError as error:
            if not is_overwritten(error):
                raise
            copied[path] = Other("tensor whose memory a replay has overwritten")
            continue
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
    """Yield the deviations. Integers and booleans must be equal, and floats as near as the precision requires.

    Zeros with different signs are a deviation of their own, and so is the state of a generator that both sides report.
    """
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
            elif detail := describe_other_signs(leaf, found[path]):
                yield Deviation(call, SIGNED_ZERO, path, detail)
    for kind, usual, text in (
        ("class", "Tensor", "expected a {}, found a {}"),
        ("aliasing", "nothing", "shares memory with {1}, expected {0}"),
        ("stride", None, "expected strides {}, found {}"),
        ("random", None, "other random numbers were drawn: {}, {}"),
    ):
        leaves, found = expected.leaves(kind), actual.leaves(kind)
        for path in sorted(leaves.keys() | found.keys()):
            pair: tuple[Any, Any] = leaves.get(path, usual), found.get(path, usual)
            # Strides and generators are compared where both sides have them; strides differ where shapes do.
            is_of_both = None not in pair and (kind != "stride" or len(pair[0]) == len(pair[1]))
            if is_of_both and pair[0] != pair[1]:
                yield Deviation(call, kind, path, text.format(*pair))


def name_leaves(kind: str, tree: Any) -> dict[str, Any]:
    """Return the leaves of nested values by their paths, such as `argument[0]`."""
    return {f"{kind}{path}": leaf for path, leaf in list_leaves(tree)}
