"""The budget file: limits, overruns, and mistakes in it."""

import os
from pathlib import Path

import pytest
import torch

from stepaudit import UserError, audit_step
from stepaudit.report import KEYS, find_overruns, read_budget


def write(folder: Path, text: str) -> Path:
    path = folder / "budget.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.exhaustive
def test_an_exceeded_limit_is_reported_with_the_measure(tmp_path: Path):
    path = write(tmp_path, "max_graph_nodes = 1\nmax_graph_breaks = 0\nmax_launches_per_step = 3\n")
    report = audit_step(lambda values: values * 2 + 1, lambda: (torch.ones(3),), calls=2, budget=path, rungs=())
    assert [(each.key, each.measured, each.allowed) for each in report.overruns] == [("max_graph_nodes", 2.0, 1.0)]
    assert (report.findings, report.is_clean) == ((), False)
    if not torch.cuda.is_available():
        assert ("budget", "max_launches_per_step: launches_per_step was not measured") in [
            (each.audit, each.reason) for each in report.unmeasured
        ]


def test_every_limit_can_be_exceeded_and_kept():
    for key, (measure, unit) in KEYS.items():
        if measure == "findings":
            continue
        overruns, unmeasured = find_overruns({key: 3.0}, {measure: 4 * unit})
        assert [(each.key, each.measured) for each in overruns] == [(key, pytest.approx(4.0))], key
        assert unmeasured == ()
        # A limit is the largest measure that is allowed.
        for allowed in (4.0, 5.0):
            assert find_overruns({key: allowed}, {measure: allowed * unit}) == ((), ())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_graph_break = 0", "did you mean 'max_graph_breaks'?"),
        ("max_graph_breaks = -1", "expected a number of 0 or more"),
        ("max_graph_breaks = true", "expected a number of 0 or more"),
        ("max_graph_breaks 0", "is not TOML"),
    ],
)
def test_a_mistake_in_a_budget_is_reported_with_its_fix(tmp_path: Path, text: str, says: str):
    with pytest.raises(UserError, match=r"budget\.toml") as raised:
        read_budget(write(tmp_path, text))
    assert says in str(raised.value)


def test_a_budget_that_is_not_there_is_a_mistake(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        read_budget(tmp_path / "none.toml")


def test_a_pipe_a_device_and_a_long_file_are_no_budgets(tmp_path: Path):
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_text("# a comment\n" * 10_000)
    for path in (pipe, Path("/dev/zero"), long):
        with pytest.raises(UserError, match="cannot be read: not a regular file of at most 65,536 bytes"):
            read_budget(path)
