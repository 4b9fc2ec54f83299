"""Damaged files of graphs are refused or read, and written ones are read as they were written."""

from pathlib import Path

import pytest
from fuzzed_graph_files import BAD, TRIALS, judge
from warm_commands import run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "fuzzed_graph_files.py"


def test_few_graphs_are_read_as_written_or_refused_with_a_place() -> None:
    kinds = {way: [judge((way, seed)).kind for seed in range(40)] for way in TRIALS}
    for found in kinds.values():
        assert {"loaded", "refused"} <= set(found)
        assert not set(BAD) & set(found)
    assert kinds["written"].count("loaded") > 25


@pytest.mark.deep
def test_the_script_prints_a_table() -> None:
    done = run_script(SCRIPT, "--num", "4", "--seed", "100")
    assert done.returncode == 0, done.stderr
    assert [line.split("|")[1].strip() for line in done.stdout.splitlines()] == ["graphs", "---", "damaged", "written"]
