"""What is audited: a function of tensors, and how its inputs are made."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils import _pytree as pytree

from kgverify.errors import UserError

Function: TypeAlias = Callable[..., Any]

Inputs: TypeAlias = tuple[Any, ...]
"""The arguments of one call: any nesting of tuples, lists, dicts and named tuples of tensors and plain values."""

MakeInputs: TypeAlias = Callable[[int], Inputs]
"""(number of the call, from 0) -> its arguments; the same number always gives equal ones."""


@dataclass(frozen=True)
class Subject:
    """A function under audit.

    make_inputs: the arguments of a call. Calls made with one number must find equal arguments
    parts:       functions that it is composed of, each a subject by itself, from the first called to the last
    calls:       as many calls are made of it as have different arguments worth comparing
    read:        of what it returns, what a caller reads; the rest may hold anything
    """

    name: str
    function: Function
    make_inputs: MakeInputs
    parts: Mapping[str, "Subject"] = field(default_factory=dict)
    calls: int = 6
    read: Callable[[Any], Any] = lambda output: output

    def inputs(self, call: int) -> Inputs:
        """The arguments of a call, which share no memory with those of any other. UserError where they are no tuple."""
        inputs = self.make_inputs(call)
        if not isinstance(inputs, tuple):
            raise UserError(
                f"expected a tuple of arguments from make_inputs, found {type(inputs).__name__}",
                where=self.name,
                fix="return (argument,) where there is one",
            )
        return copy_inputs(inputs)


def make_subject(name: str, function: Function, make_inputs: Callable[[], Inputs] | MakeInputs) -> Subject:
    """A subject of a function whose `make_inputs` takes the number of the call, or nothing."""
    if inspect.signature(make_inputs).parameters:
        return Subject(name, function, make_inputs)  # type: ignore[arg-type]
    return Subject(name, function, lambda call: make_inputs())  # type: ignore[call-arg]


def copy_inputs(inputs: Inputs) -> Inputs:
    """The same values in memory of their own; what shared memory shares it again."""
    return copy.deepcopy(inputs)


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """Every leaf of nested containers with its path, such as `[0].goal`, in order."""
    return [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(tree)[0]]


def same_values(first: Any, second: Any) -> bool:
    """Whether two outputs hold the same leaves, by value; NaN is equal to NaN."""
    ones, others = leaves(first), leaves(second)
    if [path for path, _ in ones] != [path for path, _ in others]:
        return False
    return all(is_same_leaf(one, other) for (_, one), (_, other) in zip(ones, others, strict=True))


def is_same_leaf(one: Any, other: Any) -> bool:
    """Whether two leaves are equal, of tensors shape, type, device and values; NaN is equal to NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return bool(one == other) or one != one
