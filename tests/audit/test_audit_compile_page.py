"""docs/auditing.md: its step is audited, and its budget is one."""

import re
import tomllib
from pathlib import Path
from typing import Any

from kgverify.audit.budget import KEYS, check_budget

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "auditing.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL))
AUDITS = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))


def test_every_block_is_of_a_kind_that_a_test_here_executes():
    assert set(BLOCKS) == {"python", "text", "toml"}
    assert PAGE.count("```") == 2 * len(BLOCKS)


def test_the_step_of_the_page_has_the_findings_that_it_shows(tmp_path: Path, capsys: Any):
    # A file, since a line is told of it.
    script = tmp_path / "step.py"
    script.write_text(BLOCKS["python"], encoding="utf-8")
    exec(compile(BLOCKS["python"], str(script), "exec"), {"__name__": "step"})
    assert capsys.readouterr().out == BLOCKS["text"]


def test_the_budget_of_the_page_is_one():
    limits = check_budget(tomllib.loads(BLOCKS["toml"]))
    assert set(limits) <= set(KEYS)
    assert limits["max_graph_breaks"] == 0


def test_every_audit_has_its_row():
    told = set()
    for path in (ROOT / "kgverify" / "audit").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        told |= set(
            re.findall(
                r'^(?:AUDIT|FALLBACK|OVERWRITTEN|ADDRESSES|REPLAYS|COPIES)(?:: Final)? = "([\w-]+)"$',
                text,
                re.MULTILINE,
            )
        )
    assert told & AUDITS == AUDITS
    assert {"graph-breaks", "recompilations", "guard-holes", "syncs", "copied-inputs", "cuda-graphs"} <= AUDITS
