"""Mistakes in how a step is given to the audits."""

import pickle

import pytest
import torch
from torch import Tensor

from stepaudit import UserError, audit_step


@pytest.fixture(autouse=True)
def _compiler_stays_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake is found without the compiler, which takes seconds to warm up."""
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)


def raising_step(values: Tensor) -> Tensor:
    return values @ values.view(2, 2)


def test_inputs_other_than_a_tuple_are_reported():
    with pytest.raises(UserError, match="expected a tuple of arguments"):
        audit_step(lambda values: values, lambda: torch.ones(2), rungs=())


def test_an_unknown_mode_is_reported():
    with pytest.raises(UserError, match="unknown mode 'fast'"):
        audit_step(lambda values: values, lambda: (torch.ones(2),), mode="fast")


def test_a_step_that_raises_without_the_compiler_is_reported_with_its_line():
    with pytest.raises(UserError, match=r"test_stepaudit_errors\.py:19: raising_step raises"):
        audit_step(raising_step, lambda: (torch.ones(4),), rungs=())


def test_no_calls_are_a_mistake():
    with pytest.raises(UserError, match="expected at least 1 call"):
        audit_step(raising_step, lambda: (torch.ones(4),), calls=0)


@pytest.mark.parametrize("path", ["wrong.txt", "absent/wrong.py"])
def test_a_reproducer_that_cannot_be_written_is_a_mistake_before_the_audit(path: str):
    with pytest.raises(UserError, match="not a Python file in a folder that exists"):
        audit_step(raising_step, lambda: (torch.ones(4),), reproducer=path)


def test_an_unknown_device_is_a_mistake():
    with pytest.raises(UserError, match="no such device"):
        audit_step(raising_step, lambda: (torch.ones(4),), device="cup")


def test_an_error_shows_hidden_characters_as_escapes_and_survives_pickling():
    error = pickle.loads(pickle.dumps(UserError("found '\u202e'\n::error::", where="a\x1b.py:1", fix="##[x]")))
    assert str(error) == "a\\x1b.py:1: found '\\u202e'\\n::error::\nfix: #\\x23[x]"
