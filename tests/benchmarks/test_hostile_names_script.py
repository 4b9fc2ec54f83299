"""The script that shows names of strangers through every command runs, with a single name."""

from pathlib import Path

import pytest
from warm_commands import run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "hostile_names.py"


@pytest.mark.exhaustive
def test_a_name_through_every_command_commands_and_hides_nothing():
    done = run_script(SCRIPT, "--first", "20", "--names", "1", "--engines", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    (total,) = (line.split("|")[2:-1] for line in done.stdout.splitlines() if line.startswith("| all |"))
    num_lines, num_outputs, *found = map(int, total)
    assert num_lines == num_outputs > 90
    assert not any(found)
