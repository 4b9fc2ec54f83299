"""The options of `kgverify audit step` that decide what counts as equal."""

from pathlib import Path

import pytest
from invoked_commands import invoke

STEP = """
import torch

def make(call):
    return (torch.full((3,), 0.5),)

def step(values):
    return values + {change} if torch.compiler.is_compiling() else values * 1
"""


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ("1e-3", [], 1),
        ("1e-3", ["--tolerance", "1e-2"], 0),
        ("1e-3", ["--tolerance", "1e-4"], 1),
        ("2e-7", [], 0),
        ("2e-7", ["--exact"], 1),
        ("0.0", ["--exact"], 0),
    ],
)
def test_a_difference_counts_by_the_declared_precision(
    change: str, options: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The options concern values alone.
    monkeypatch.setattr("kgverify.audit.audited_step.examine_properties", lambda *given, **options: None)
    path = tmp_path / "search.py"
    path.write_text(STEP.format(change=change), "utf-8")
    words = ["audit", "step", f"{path}:step", "--inputs", f"{path}:make", "--rung", "backend-eager", "--calls", "1"]
    done = invoke([*words, "--seconds", "0", *options])
    assert done.exit_code == code, done.output


def test_a_tolerance_cannot_be_exact(tmp_path: Path) -> None:
    path = tmp_path / "search.py"
    path.write_text(STEP.format(change="0"), "utf-8")
    words = ["audit", "step", f"{path}:step", "--inputs", f"{path}:make", "--exact", "--tolerance", "1"]
    done = invoke(words)
    assert done.exit_code == 2
    assert "cannot be combined with exact" in done.stderr
