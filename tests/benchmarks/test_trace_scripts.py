"""The scripts that damage and measure traces run, with small numbers."""

import os
from pathlib import Path

import pytest
from warm_commands import run_script

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(name: str, *arguments: str) -> str:
    done = run_script(SCRIPTS / name, *arguments)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_a_trace_altered_on_purpose_does_not_agree():
    output = run("altered_traces.py", "--num", "24")
    assert output.startswith("| 24 altered traces |")
    assert output.splitlines()[-1] == "AGREE over a semantic change, bugs, crashes and hangs: 0"


@pytest.mark.deep
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="reads family from KGVERIFY_DATA")
def test_the_sizes_are_measured():
    output = run("trace_sizes.py", "--steps", "2000", "--queries", "1", "--repeats", "1")
    assert output.count("| steps |") == output.count("| digests, archived |") == 2
    assert " 0 of " in output.splitlines()[-1]


@pytest.mark.exhaustive
def test_what_recording_costs_is_measured_and_what_is_recorded_is_right():
    small = ("--queries", "2", "--corruptions", "5", "--mode", "eager", "--repeats", "1")
    output = run("trace_recording.py", *small, "--threads", "1", "2", "--shard-steps", "20")
    rows = [line.split("|")[2:4] for line in output.splitlines() if line.startswith("| float32")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["off", ""],
        *([level, num] for level in ("digests", "compact", "steps") for num in "12"),
    ]
    assert "WRONG" not in output
    assert "ROOTS DIFFER" not in output


@pytest.mark.deep
def test_what_a_shard_costs_is_measured_and_writers_agree_on_the_root():
    output = run("trace_writing.py", "--steps", "2000", "--repeats", "1")
    assert output.count("| shard") == 3
    assert output.count("| 4 shards") == 6
    assert ", " not in output.splitlines()[-1].partition(": ")[2]
