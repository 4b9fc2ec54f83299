"""A function compiled in a mode of `torch.compile`."""

import warnings
from typing import Any

import torch

from stepaudit.audited_function import Function


def compile_in_mode(function: Function, mode: str) -> Function:
    """Compile a function in a mode of `torch.compile`; `eager` leaves it unchanged.

    A function that cannot be compiled raises, even where TORCHDYNAMO_SUPPRESS_ERRORS is set: an eager run would be taken for a
    compiled one.
    """
    if mode == "eager":
        return function
    compiled = torch.compile(function, dynamic=False, mode=mode)

    def call(*arguments: Any) -> Any:
        # Even where warnings are errors, those of torch are not a property of the function.
        with warnings.catch_warnings(), torch._dynamo.config.patch(suppress_errors=False):
            warnings.simplefilter("ignore")
            return compiled(*arguments)

    return call
