"""The options of `kgverify audit step` that decide what counts as equal, and its reports."""

import json
import sys
from pathlib import Path

import pytest
from invoked_commands import Invoked, invoke

STEP = """
import torch

def make(call):
    return (torch.full((3,), 0.5),)

def step(values):
    return values + {change} if torch.compiler.is_compiling() else values * 1
"""
WORDS = "audit step search.py:step --inputs search.py:make --rung backend-eager --calls 1 --seconds 0"


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Audit the values of a step that changes them by some number when it is compiled, and nothing else."""
    monkeypatch.setattr("stepaudit.audited_step.examine_properties", lambda *given, **options: None)
    monkeypatch.setattr("stepaudit.audited_step.warm_up_compiler", lambda: None)

    def run(change: str, options: str, **variables: str) -> Invoked:
        (tmp_path / "search.py").write_text(STEP.format(change=change), "utf-8")
        return invoke(f"{WORDS} {options}", tmp_path, **variables)

    return run


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ("1e-3", "", 1),
        ("1e-3", "--tolerance 1e-2", 0),
        ("2e-7", "", 1),
        ("2e-7", "--tolerance 1e-5", 0),
        ("5e-8", "", 0),
        ("5e-8", "--exact", 1),
    ],
)
def test_a_difference_counts_by_the_declared_precision(audit, change: str, options: str, code: int) -> None:
    done = audit(change, options)
    assert done.exit_code == code, done.output


def test_a_tolerance_cannot_be_exact_and_without_stepaudit_the_error_says_how_to_install_it(
    audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = audit("0", "--exact --tolerance 1")
    assert (done.exit_code, "cannot be combined with exact" in done.stderr) == (2, True)
    monkeypatch.setitem(sys.modules, "stepaudit", None)
    done = invoke("audit step step.py:step --inputs step.py:make")
    assert done.exit_code == 2
    assert "need stepaudit, which is not installed" in done.stderr
    assert "fix: pip install ./stepaudit" in done.stderr


def test_the_settings_of_the_compiler_are_options_of_a_run(audit) -> None:
    assert audit("0", "--backend aot_eager --dynamic --fullgraph --signed-zero").exit_code == 0
    done = audit("0", "--backend-option max_fusion_sze=1")
    assert (done.exit_code, "did you mean 'max_fusion_size'?" in done.stderr) == (2, True)
    done = audit("0", "--backend aot_eagr")
    assert (done.exit_code, "did you mean 'aot_eager'?" in done.stderr) == (2, True)


def test_a_report_is_written_in_every_form(audit, tmp_path: Path) -> None:
    files = "--json audit.json --html audit.html --junit audit.xml --github"
    done = audit("1.0", files, GITHUB_STEP_SUMMARY="summary.md")
    assert done.exit_code == 1, done.output
    assert "::error title=values" in done.output
    report = json.loads((tmp_path / "audit.json").read_text("utf-8"))
    assert (report["verdict"], [each["audit"] for each in report["findings"]]) == ("DIVERGE", ["values"])
    assert "on rung backend-eager" in (tmp_path / "audit.html").read_text("utf-8")
    assert 'failures="1"' in (tmp_path / "audit.xml").read_text("utf-8")
    assert (tmp_path / "summary.md").read_text("utf-8").startswith("### stepaudit: DIVERGE step")
