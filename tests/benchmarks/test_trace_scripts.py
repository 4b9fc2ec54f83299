"""The scripts that damage and measure traces run, with small numbers."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / name), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


def test_damaged_traces_are_refused_or_read_as_they_were():
    output = run("trace_damage.py", "--flips", "60", "--fuzzed", "80", "--seed", "5")
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in output.splitlines() if line.startswith("| ")}
    for title in ("60 files, one bit flipped", "80 files, fuzzed"):
        refused, unchanged, *bad = map(int, rows[title])
        assert refused > 20
        assert refused + unchanged == int(title.split()[0])
        assert not any(bad)
    (constructs,) = (cells for title, cells in rows.items() if title.endswith("hostile constructs"))
    assert not any(map(int, constructs[1:]))


def test_the_sizes_are_measured():
    output = run("trace_sizes.py", "--steps", "2000", "--queries", "1", "--repeats", "1")
    assert output.count("| steps |") == output.count("| digests, archived |") == 2
    assert " 0 of " in output.splitlines()[-1]
