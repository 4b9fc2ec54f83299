"""The script that judges engines of other dialects runs, with a small part of them."""

from pathlib import Path

import pytest
from warm_commands import CAN_FORK, run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "dialect_false_alarms.py"
pytestmark = pytest.mark.skipif(not CAN_FORK, reason="the script forks")


@pytest.mark.exhaustive
def test_correct_engines_raise_no_alarm():
    done = run_script(SCRIPT, "--dialects", "2", "--problems", "16", "--laws", "4", "--planted", "0", "--shares", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "false alarms: 0 in 2 dialects" in done.stdout
    assert "without shapes" in done.stdout


@pytest.mark.exhaustive
def test_single_differences_are_found():
    done = run_script(SCRIPT, "--problems", "0", "--laws", "0", "--planted", "64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("problems until it is found") == 2
    assert "NOT FOUND" not in done.stdout
