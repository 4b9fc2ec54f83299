"""The table of the evaluator can be made on a CPU, in a tiny form."""

import subprocess
from pathlib import Path

import pytest
from warm_commands import run_script

pytestmark = pytest.mark.exhaustive

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "evaluator.py"


def run_evaluator(*options: str) -> subprocess.CompletedProcess[str]:
    return run_script(SCRIPT, "--device", "cpu", "--mode", "eager", "--tiny", "--repeats", "1", *options)


def test_each_section_adds_its_rows_to_one_table():
    graphs = ("--graph", "countries", "--large-graph", "countries")
    done = run_evaluator(*graphs, "--only", "agreement,family,million,wn18rr,trace,launches,rank-only")
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {9}
    notes = {row[2].strip(): row[7].strip() for row in rows[2:]}
    assert notes["reference against two_tower, float32"].startswith("AGREE")
    assert notes["ours, float32"].endswith("0 outcomes differ, log-probabilities by up to 0.0e+00 where they do not")
    assert notes["baseline, 256 slots"].startswith("0 outcomes differ")
    assert notes["baseline as published, 256 slots"].startswith("0 proved")
    assert notes["ranks of all, shortest"] == notes["ranks of all, two_tower"] == "the same"


def test_an_unknown_section_is_an_error():
    done = run_evaluator("--only", "famly")
    assert done.returncode == 2
    assert "unknown sections famly" in done.stderr
