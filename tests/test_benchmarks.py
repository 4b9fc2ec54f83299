"""The driver of the benchmarks lists them, and can import each."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, load

ROOT = Path(__file__).resolve().parents[1]


def run_driver(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_driver_lists_every_benchmark_with_a_line_of_help():
    done = run_driver()
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("  ")}
    assert all(text in lines[name] for name, (_, text) in BENCHMARKS.items())


@pytest.mark.deep
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_imported_and_describes_its_options(name: str, capsys: pytest.CaptureFixture[str]):
    benchmark = load(name)
    with pytest.raises(SystemExit) as end:
        benchmark(["--help"])
    assert end.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out
