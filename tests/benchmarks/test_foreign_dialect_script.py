"""The script that judges recorded steps of other people's engines finds the known numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
from foreign_folder import FOLDER, needs_records


@needs_records
@pytest.mark.exhaustive
def test_every_recorded_engine_is_judged_as_its_description_says():
    command = [sys.executable, "-m", "benchmarks.foreign_dialect", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 12
