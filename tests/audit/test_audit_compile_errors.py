"""Mistakes in how a step is given to the audits."""

import pytest
import torch
from torch import Tensor

from kgverify.audit import step
from kgverify.errors import UserError


def raising_step(values: Tensor) -> Tensor:
    return values @ values.view(2, 2)


def test_inputs_other_than_a_tuple_are_reported():
    with pytest.raises(UserError, match="expected a tuple of arguments"):
        step(lambda values: values, lambda: torch.ones(2))


def test_an_unknown_mode_is_reported():
    with pytest.raises(UserError, match="unknown mode 'fast'"):
        step(lambda values: values, lambda: (torch.ones(2),), mode="fast")


def test_a_step_that_raises_without_the_compiler_is_reported_with_its_line():
    with pytest.raises(UserError, match=r"test_audit_compile_errors\.py:12: raising_step raises"):
        step(raising_step, lambda: (torch.ones(4),), rungs=())


def test_no_calls_are_a_mistake():
    with pytest.raises(UserError, match="expected at least 1 call"):
        step(raising_step, lambda: (torch.ones(4),), calls=0)
