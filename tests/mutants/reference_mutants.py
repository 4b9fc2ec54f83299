"""Wrong edits of the reference (semantic/reference.toml), tried on the judges of tests/reference/judges alone.

Run it as a script to try all of them: `python tests/mutants/reference_mutants.py --jobs 2`. It prints the first judge that finds
each, and exits with 1 if an edit passes. No mutant runs beside the compiled engine: kgverify is not on the path of the processes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from semantic_edits import ROOT, SemanticEdit, Sources, read_lists

NUM_PROGRAMS: Final = 1200
"""Generated programs on which a mutant is tried."""
MOST_SECONDS: Final = 300


def read_mutants() -> list[SemanticEdit]:
    """Read the list."""
    return [edit for edit in read_lists() if edit.list == "reference"]


@cache
def _sources() -> Sources:
    return Sources()


def judge_reference(mutant: SemanticEdit | None, kept: Path, num: int = NUM_PROGRAMS) -> list[str]:
    """Return the judges that find an edit in a copy of the reference (None: as it is), or "time" if they do not end.

    Prolog's answers are kept in a folder.
    """
    with tempfile.TemporaryDirectory(prefix="kgreference-") as name:
        copy = Path(name)
        shutil.copytree(ROOT / "reference", copy / "reference", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            planted = _sources().plant(mutant)
            (copy / planted.path.relative_to(ROOT)).write_text(planted.text)
        path = [str(copy / "reference"), str(ROOT / "tests" / "reference")]
        command = [sys.executable, "-m", "judges", "--num", str(num), "--kept", str(kept), "--stop"]
        try:
            ended = subprocess.run(
                command,
                cwd=copy,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=MOST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ["time"]
    if ended.returncode not in (0, 1) or "Traceback" in ended.stderr:
        raise RuntimeError(f"the judges broke: {ended.stderr}")
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    return [result["judge"] for result in results if result["wrong"]]


def main() -> int:
    """Try all mutants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--num", type=int, default=NUM_PROGRAMS, help="number of generated programs")
    arguments = parser.parse_args()
    mutants = read_mutants()
    num_caught = 0
    with tempfile.TemporaryDirectory() as kept, ThreadPoolExecutor(arguments.jobs) as pool:
        trials = pool.map(lambda mutant: judge_reference(mutant, Path(kept), arguments.num), mutants)
        for mutant, found_by in zip(mutants, trials, strict=True):
            num_caught += bool(found_by)
            print(f"{', '.join(found_by) or 'NOT FOUND'}: {mutant}", flush=True)
    print(f"{num_caught} of {len(mutants)} caught")
    return 0 if num_caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
