"""The type checker as the last judge of a mutant: what it refuses, the project's checks notice."""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from mutant import ROOT, Mutant

JUDGE = "mypy"


def find_type_error(mutant: Mutant, cache: Path) -> str:
    """Return the first error that mypy finds in a mutant; empty if it finds none, or is not installed.

    cache: the folder of mypy's cache, which saves all but the first run most of the time
    """
    if find_spec(JUDGE) is None:
        return ""
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        file.write(mutant.source())
        file.flush()
        command = [sys.executable, "-m", JUDGE, "--follow-imports=silent", f"--cache-dir={cache}"]
        command += ["--shadow-file", mutant.path, file.name, mutant.path]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return next((line for line in done.stdout.splitlines() if ": error: " in line), "")
