"""docs/auditing.md: its step is audited, and its budget is one."""

import importlib.util
import itertools
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stepaudit.report import AUDITS as FOUND
from stepaudit.report import KEYS, check_budget

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "auditing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = [(script, printed) for (kind, script), (_, printed) in itertools.pairwise(BLOCKS) if kind == "python"]
(BUDGET,) = (text for kind, text in BLOCKS if kind == "toml")
AUDITS = set(
    re.findall(r"^\| `([a-z-]+)` \|", PAGE.split("| audit | a finding is |")[1].split("\n\n")[0], re.MULTILINE)
)


def test_every_block_is_of_a_kind_that_a_test_here_executes():
    assert [kind for kind, _ in BLOCKS] == ["python", "text", "toml"]
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.deep
@pytest.mark.parametrize("script,printed", SCRIPTS, ids=["step"])
def test_a_script_of_the_page_prints_what_it_shows(
    script: str, printed: str, tmp_path: Path, capsys: Any, monkeypatch: Any
):
    # A file, since findings name its lines.
    path = tmp_path / "step.py"
    path.write_text(script, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("step_of_the_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "step_of_the_page", module)
    spec.loader.exec_module(module)
    assert capsys.readouterr().out == printed


def test_the_budget_of_the_page_is_one():
    limits = check_budget(tomllib.loads(BUDGET))
    assert set(limits) <= set(KEYS)
    assert limits["max_graph_breaks"] == 0


def test_every_audit_has_its_row():
    assert set(FOUND) == AUDITS


def test_every_section_of_a_report_has_its_row():
    sections = set()
    for path in (ROOT / "stepaudit" / "stepaudit").rglob("*.py"):
        sections |= set(re.findall(r'add_section\(\s*"(\w+)"', path.read_text(encoding="utf-8")))
    table = PAGE.split("| section |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sections == {name for row in rows for name in re.findall(r"`(\w+)`", row)}
