"""The torch-less installation: its features, tested in a new environment in which torch is not installed.

    python tests/run_without_torch.py                # with this Python
    python tests/run_without_torch.py PYTHON...      # with others

Each environment gets the wheel of this checkout and what the tests need. Prints the seconds of the installation and its size,
without pip and without the packages of the tests. The exit code is 1 if a test fails, and 0 with a note where no package
index can be reached.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTERS = ("pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.112")
FOLDERS = ("comparison", "files", "foreign", "graphs", "program", "ranking", "reference", "security", "step", "trace")
FILES = (
    "cli/test_cli_trace.py",
    "cli/test_cli_without_torch.py",
    "conditions/test_conditions_search.py",
    "engines/test_term_engine.py",
    "examples/test_other_language.py",
    "examples/test_recorded_steps.py",
    "laws/test_third_party_engines.py",
    "plugin",
    "testing/test_testing_delta_debugging.py",
    "testing/test_testing_killed_workers.py",
    "testing/test_testing_ledger.py",
    "testing/test_testing_problem.py",
    "testing/test_testing_strategies.py",
    "verification/test_verification_dialects.py",
    "verification/test_verification_fan_out.py",
    "judge/test_verification_known_traces.py",
    "verification/test_verification_recorded_loss.py",
    "judge/test_verification_self_test.py",
    "verification/test_verification_unknown.py",
    "verification/test_verification_workers.py",
)
"""The tests of what needs no torch."""
WITH_TORCH = (
    "comparison/test_comparison_modulo.py",
    "files/test_files_outputs.py",
    "program/test_dialect.py",
    "trace/test_trace_deep.py",
    "trace/test_trace_loop.py",
)
"""The files in these folders that compare with the compiled evaluator or read tensors."""


def main() -> int:
    """Test with each Python that is named, or with this one."""
    codes = [test_with(Path(python)) for python in sys.argv[1:] or [sys.executable]]
    return int(any(codes))


def test_with(python: Path) -> int:
    """Install into a new environment and run the tests there. Return pytest's exit code; 0 without a package index."""
    with tempfile.TemporaryDirectory(prefix="without-torch-") as folder:
        own, environment = Path(folder) / "venv", {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        subprocess.run([python, "-m", "venv", "--without-pip", own], check=True, env=environment)
        inside = own / ("Scripts" if os.name == "nt" else "bin") / "python"
        started = time.perf_counter()
        if install(inside, str(ROOT)):
            print(f"{python}: not tested, since no package index can be reached")
            return 0
        seconds = time.perf_counter() - started
        size = sum(path.lstat().st_size for path in own.rglob("*") if path.is_file()) / (1 << 20)
        version = subprocess.run([inside, "-VV"], capture_output=True, text=True, check=True).stdout.strip()
        print(f"{version}: installed in {seconds:.0f} s, {size:.0f} MiB", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "--python", inside, "check"], check=True)
        assert install(inside, *TESTERS) == 0
        assert subprocess.run([inside, "-c", "import torch"], capture_output=True, check=False).returncode == 1
        wanted = [f"tests/{name}" for name in (*FOLDERS, *FILES)]
        left = [f"--ignore=tests/{name}" for name in WITH_TORCH]
        command = [own / "bin" / "pytest", "-q", "-p", "no:cacheprovider", *left]
        usual = subprocess.run([*command, *wanted], cwd=ROOT, env=environment, check=False).returncode
        deep = [*command, "-n", "0", "-m", "deep", "tests/cli/test_cli_without_torch.py"]
        return usual or subprocess.run(deep, cwd=ROOT, env=environment, check=False).returncode


def install(python: Path, *what: str) -> int:
    """Install packages with this interpreter's pip. Return its exit code."""
    words = [sys.executable, "-m", "pip", "--python", python, "install", "-q", *what]
    return subprocess.run(words, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
