"""The prover in C: its lines become a trace that agrees with the reference, and its fault is found at the right stage."""

import re
import shutil
from pathlib import Path

import pytest
from warm_commands import run_shell

import kgverify as kv

EXAMPLE = Path(__file__).parents[2] / "examples" / "other_language"

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@needs_compiler
@pytest.mark.deep
def test_the_commands_of_the_page_find_the_fault_and_nothing_else(tmp_path):
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    right, faulty = re.findall(r"```console\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    agreeing = run_shell(right, folder)
    assert agreeing.returncode == 0, agreeing.stderr
    assert "AGREE   6 candidates, 18 steps, 20 resolvents" in agreeing.stdout
    report = kv.compare(folder / "reference.h5", folder / "c.h5")
    unknown = {
        "rankings",
        "candidates.is_limited",
        "candidates.log_probability",
        "steps.dropped_atoms",
        "steps.dropped_resolvents",
    }
    assert set(report.coverage.not_compared) == unknown
    diverging = run_shell(faulty, folder)
    assert diverging.returncode == 1, diverging.stderr
    report = kv.compare(folder / "reference.h5", folder / "faulty.h5")
    first = report.divergences[0]
    assert (first.stage, first.goal) == ("match_facts", "parent(dan, X0), parent(X0, ann)")
    assert "parent(dan, gus)" in str(first.expected)


@needs_compiler
def test_the_prover_compiles_without_warnings(tmp_path):
    done = run_shell(f"gcc -Wall -Wextra -Werror -Wno-format-security -o prover {EXAMPLE / 'prover.c'}", tmp_path)
    assert done.returncode == 0, done.stderr
