"""The options of `kgverify audit step` that decide what counts as equal."""

import json
import sys
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
    monkeypatch.setattr("stepaudit.audited_step.examine_properties", lambda *given, **options: None)
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)
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


def test_without_stepaudit_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stepaudit", None)
    done = invoke(["audit", "step", "step.py:step", "--inputs", "step.py:make"])
    assert done.exit_code == 2
    assert "need stepaudit, which is not installed" in done.stderr
    assert "fix: pip install ./stepaudit" in done.stderr


def test_a_report_is_written_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stepaudit.audited_step.examine_properties", lambda *given, **options: None)
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    Path("search.py").write_text(STEP.format(change="1.0"), "utf-8")
    words = ["audit", "step", "search.py:step", "--inputs", "search.py:make", "--rung", "backend-eager", "--calls", "1"]
    files = ["--json", "audit.json", "--html", "audit.html", "--junit", "audit.xml", "--github"]
    done = invoke([*words, "--seconds", "0", *files])
    assert done.exit_code == 1, done.output
    assert "::error title=values" in done.output
    report = json.loads(Path("audit.json").read_text("utf-8"))
    assert (report["verdict"], [each["audit"] for each in report["findings"]]) == ("DIVERGE", ["values"])
    assert "on rung backend-eager" in Path("audit.html").read_text("utf-8")
    assert 'failures="1"' in Path("audit.xml").read_text("utf-8")
    assert Path("summary.md").read_text("utf-8").startswith("### stepaudit: DIVERGE step")
