"""Mistakes in how a step is given to the audits."""

import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepaudit import UserError, audit_step
from stepaudit.ladder.climb import warm_up_compiler


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
    line = raising_step.__code__.co_firstlineno + 1
    with pytest.raises(UserError, match=rf"test_stepaudit_errors\.py:{line}: raising_step raises"):
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


@pytest.mark.skipif(os.name == "nt", reason="permissions are those of POSIX")
def test_a_folder_of_compiled_code_that_others_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(default_cache_dir())
    folder.mkdir()
    folder.chmod(0o777)
    warm_up_compiler.cache_clear()
    with pytest.raises(UserError, match="belongs to others, or they can write there") as raised:
        audit_step(torch.relu, lambda: (torch.ones(2),))
    assert raised.value.where == str(folder)
