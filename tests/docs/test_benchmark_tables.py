"""The page of measured figures is what the committed results give; pages name benchmarks that exist."""

import re
from pathlib import Path

import pytest

from benchmarks import OUTPUTS, ROOT, TABLES, read_results, render_tables, save_results
from benchmarks.__main__ import BENCHMARKS, TITLES

PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_the_page_of_tables_is_what_the_results_give() -> None:
    entries = read_results()
    assert entries
    assert OUTPUTS[1].read_text(encoding="utf-8") == render_tables(entries, TITLES), "run: python -m benchmarks tables"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_benchmark_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"python -m benchmarks ([a-z][a-z-]*)", page.read_text(encoding="utf-8")))
    assert named <= {*BENCHMARKS, "tables"}


def test_saved_results_replace_those_of_the_same_command_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.json"
    for command, seconds in (("cpu", 1), ("growth", 2), ("cpu", 3)):
        monkeypatch.setattr("benchmarks.TABLES", [*TABLES, {"columns": ["s"], "rows": [[str(seconds)]]}])
        save_results(path, command, seconds=seconds)
    assert {command: entry["seconds"] for command, entry in read_results(path).items()} == {"cpu": 3, "growth": 2}
