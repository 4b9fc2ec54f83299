"""The script that tries hostile files runs, with a small part of them."""

from pathlib import Path

import pytest
from warm_commands import CAN_FORK, run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "hostile_files.py"


def count(printed: str) -> list[int]:
    """Return the last row of the table: how many were refused, accepted, and bad in each way."""
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in printed.splitlines() if line.startswith("| ")}
    return list(map(int, rows["all"]))


@pytest.mark.exhaustive
@pytest.mark.skipif(not CAN_FORK, reason="the script forks")
def test_hostile_files_are_refused_in_time_and_in_little_memory():
    small = ("--only", "manifest", "--only", "policy", "--only", "known divergences", "--every", "9", "--commands", "1")
    done = run_script(SCRIPT, *small, "--random", "9")
    assert done.returncode == 0, done.stderr
    refused, accepted, *bad = count(done.stdout)
    assert refused > 20
    assert accepted < refused
    assert not any(bad)


@pytest.mark.exhaustive
@pytest.mark.skipif(not CAN_FORK, reason="the script forks")
def test_every_command_ends_soon_on_a_megabyte_of_tiny_chunks_and_one_that_inflates_to_a_gigabyte():
    bombs = ("60,000 growing chunks", "100,000 packed chunks", "inflates to a gigabyte")
    kinds = (word for kind in ("trace", "evaluation part") for word in ("--only", kind))
    done = run_script(SCRIPT, "--every-command", *kinds, *(word for bomb in bombs for word in ("--change", bomb)))
    assert done.returncode == 0, done.stderr
    refused, accepted, *bad = count(done.stdout)
    # Ten commands read the one trace, three the other, and one a part: `trace check` reports the damage of both traces,
    # and `evaluate` proves a damaged part again.
    assert (refused, accepted) == (2 * 11, 2 * 2 + 1)
    assert not any(bad)
