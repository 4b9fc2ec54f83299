"""The script that tries hostile files runs, with a small part of them."""

from pathlib import Path

import pytest
from warm_commands import CAN_FORK, run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "hostile_files.py"


@pytest.mark.deep
@pytest.mark.skipif(not CAN_FORK, reason="the script forks")
def test_hostile_files_are_refused_in_time_and_in_little_memory():
    small = ("--only", "manifest", "--only", "policy", "--only", "known divergences", "--every", "9", "--commands", "1")
    done = run_script(SCRIPT, *small, "--random", "9")
    assert done.returncode == 0, done.stderr
    rows = {
        line.split("|")[1].strip(): line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("| ")
    }
    refused, accepted, *bad = map(int, rows["all"])
    assert refused > 20
    assert accepted < refused
    assert not any(bad)
