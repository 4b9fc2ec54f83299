"""The script that measures the report page runs, with a single divergence."""

from pathlib import Path

import pytest
from warm_commands import run_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "report_page.py"


@pytest.mark.exhaustive
def test_a_page_of_one_divergence_is_measured():
    done = run_script(SCRIPT, "--sizes", "1", "--paint-ms", "1e6", "--step-ms", "1e6")
    if "no chromium" in done.stdout:
        pytest.skip("no chromium is installed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[2].startswith("| 1 | ")
