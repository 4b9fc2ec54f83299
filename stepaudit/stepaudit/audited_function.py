"""A function under audit, how its arguments are made, and how it is compiled."""

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from stepaudit.errors import UserError, describe_error
from stepaudit.values import deepcopy_values

Function: TypeAlias = Callable[..., Any]

Inputs: TypeAlias = tuple[Any, ...]
"""The arguments of one call: any nesting of containers and objects of tensors and plain values; `Keywords` come last."""

MakeInputs: TypeAlias = Callable[[int], Inputs | dict[str, Any]]
"""(number of the call, from 0) -> its arguments. The same number always gives equal arguments."""


class Keywords(dict[str, Any]):
    """Keyword arguments, the last item in the tuple of a call's arguments: `(values, Keywords(scale=2.0))`."""


@contextmanager
def seeding(number: int) -> Iterator[None]:
    """Give torch, numpy and Python the same random numbers each time. Restore their generators afterwards."""
    before = random.getstate(), np.random.get_state()
    # To read the generators of devices would start CUDA in a process that does not use it.
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices):
        random.seed(number)
        np.random.seed(number)
        torch.manual_seed(number)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def call_with(function: Function, inputs: Inputs) -> Any:
    """Call a function with its arguments."""
    if inputs and isinstance(inputs[-1], Keywords):
        return function(*inputs[:-1], **inputs[-1])
    return function(*inputs)


@dataclass(frozen=True)
class Subject:
    """A function under audit.

    make_inputs: makes the arguments of a call; the same number must give equal arguments
    calls:       the number of calls with different arguments worth comparing
    first:       the number of the first call, which seeds random numbers
    """

    name: str
    function: Function
    make_inputs: MakeInputs
    calls: int = 6
    first: int = 0

    def inputs(self, call: int) -> Inputs:
        """Make the arguments of a call, which share no memory with those of other calls."""
        return self.joint_inputs(range(call, call + 1))[0]

    def joint_inputs(self, calls: range) -> list[Inputs]:
        """Make copies of the arguments of several calls.

        The copies share memory as the originals do.

        UserError if `make_inputs` returns neither a tuple nor a dict.
        """
        made = [self.shared_inputs(call) for call in calls]
        result: list[Inputs] = deepcopy_values(made)
        return result

    def shared_inputs(self, call: int) -> Inputs:
        """Make the arguments of a call, which may share memory with captured values or with arguments of other calls.

        UserError if `make_inputs` raises, or returns neither a tuple nor a dict.
        """
        try:
            inputs = self.make_inputs(call)
        except Exception as error:
            raise UserError(
                f"make_inputs raised {describe_error(error)}, for call {call}",
                where=self.name,
                fix="return a tuple of arguments for every number of a call, from 0",
            ) from error
        if type(inputs) is dict:
            return (Keywords(inputs),)
        if not isinstance(inputs, tuple):
            raise UserError(
                f"expected a tuple of arguments from make_inputs, or a dict of keyword arguments, found {type(inputs).__name__}",
                where=self.name,
                fix="return (argument,) for one argument",
            )
        return inputs


def make_subject(name: str, function: Function, make_inputs: Callable[[], Inputs] | MakeInputs) -> Subject:
    """Describe a function for an audit.

    Args:
        name: its name in the report; the function's own if empty.
        function: any function of tensors and plain values.
        make_inputs: returns the arguments of a call, a tuple or a dict; takes the number of the call, from 0, or nothing.

    Returns:
        The subject of an audit.
    """
    name = name or getattr(function, "__name__", type(function).__name__)
    try:
        takes_number = bool(inspect.signature(make_inputs).parameters)
    except ValueError:
        # A builtin without a signature, such as `__getitem__` of a list.
        takes_number = True
    if takes_number:
        return Subject(name, function, make_inputs)  # type: ignore[arg-type]
    return Subject(name, function, lambda call: make_inputs())  # type: ignore[call-arg]
