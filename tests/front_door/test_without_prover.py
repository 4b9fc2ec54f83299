"""The harness without the prover, stepaudit and torch: it compares and evaluates, and tests of it pass."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engines", "program", "runs")
USE = """
import without_prover
import kgverify as kv

print(kv.verify("countries", "reference", queries=2, corruptions=5).verdict.value)
print(kv.evaluate("countries", "reference", queries=2, corruptions=5).verdict.value)
try:
    kv.verify("countries", queries=2, corruptions=5)
except kv.UserError as error:
    print(error)
"""


def run_python(*arguments: str) -> str:
    paths = map(str, (ROOT, ROOT / "reference", ROOT / "tests"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_harness_compares_and_evaluates_and_names_what_is_missing() -> None:
    first, second, error, fix = run_python("-c", USE).splitlines()
    assert (first, second) == ("AGREE", "AGREE")
    assert error == "engine: the engine 'compiled' cannot be loaded: kgverify.prover is blocked"
    assert fix == "fix: install its package: pip install -e ."


@pytest.mark.deep
def test_tests_of_its_parts_pass() -> None:
    folders = [f"tests/{name}" for name in FOLDERS]
    printed = run_python("-m", "pytest", "-q", "-n", "0", "-p", "without_prover", "-p", "no:cacheprovider", *folders)
    found = re.search(r"(\d+) passed", printed)
    assert found is not None
    assert int(found[1]) > 30
