"""Steps with which the audit is scored, and their registration: `FILE.py:STEP` and `FILE.py:make_STEP` name both."""

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Make: TypeAlias = Callable[[torch.Generator], tuple[Any, ...]]
"""Draws the arguments of a call."""


def add_make(step: Callable[..., Any], module: str, make: Make) -> Callable[[int], tuple[Any, ...]]:
    """Define `make_STEP(call)` in a module, which draws the arguments of a call by its number."""

    def make_call(call: int) -> tuple[Any, ...]:
        return make(torch.Generator().manual_seed(call))

    setattr(sys.modules[module], f"make_{name_of(step)}", make_call)
    return make_call


def name_of(step: Any) -> str:
    """Return the name of a function, or of the class of a callable object."""
    name: str = getattr(step, "__name__", type(step).__name__)
    return name


def floats(*shapes: tuple[int, ...]) -> Make:
    """Draw small whole numbers as floats, so that no sum rounds."""
    return lambda draw: tuple(torch.randint(-9, 10, shape, generator=draw).float() for shape in shapes)


def normals(*shapes: tuple[int, ...]) -> Make:
    """Draw normal numbers."""
    return lambda draw: tuple(torch.randn(shape, generator=draw) for shape in shapes)


def leaves(*shapes: tuple[int, ...]) -> Make:
    """Draw normal numbers that require gradients."""
    return lambda draw: tuple(each.requires_grad_() for each in normals(*shapes)(draw))


def slots(draw: torch.Generator) -> tuple[Tensor, ...]:
    """Draw goals int64 [8, 4], depths int64 [8], and a table int64 [16, 4]."""
    goal = torch.randint(0, 6, (8, 4), generator=draw)
    return goal, torch.randint(0, 5, (8,), generator=draw), torch.randint(0, 6, (16, 4), generator=draw)
