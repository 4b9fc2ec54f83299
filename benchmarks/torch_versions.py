"""Try the evaluator and the known miscompiles on several versions of torch, and print a table.

    python -m benchmarks.torch_versions torch-2.10/bin/python torch-2.12/bin/python

Each interpreter has torch and what kgverify requires. The evaluator is compared with the reference in eager, by default
`torch.compile`, and with the fused kernels in Triton's interpreter. Of each miscompile the first wrong rung is printed.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MODES: Final = ("eager", "default", "fused")
DIFF: Final = ("diff", "--queries", "2", "--corruptions", "4", "--device", "cpu", "--no-determinism", "--quiet")


def run(python: str, words: list[str], **settings: str) -> subprocess.CompletedProcess[str]:
    """Run words of Python in another environment, on its CPU."""
    paths = os.pathsep.join(map(str, (ROOT / "stepaudit", ROOT, ROOT / "reference")))
    environment = {**os.environ, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": "", **settings}
    return subprocess.run([python, *words], capture_output=True, text=True, check=False, env=environment)


def find_rungs(names: list[str]) -> None:
    """Print the first wrong rung of each known miscompile, in this environment."""
    from benchmarks.audit_cases.miscompiles import MISCOMPILES
    from stepaudit.audited_function import Subject
    from stepaudit.ladder.climb import Judge, compiling_without_caches, keeping_caches
    from stepaudit.options import RUNGS, AuditOptions

    for name in names or MISCOMPILES:
        case = MISCOMPILES[name]
        judge = Judge(Subject(name, case.step, case.make, calls=2), AuditOptions(repetitions=0))
        first = "right"
        for rung in RUNGS[1:5]:
            with keeping_caches([rung]), compiling_without_caches():
                if judge.judge(judge.watch(rung))[0]:
                    first = rung.name
                    break
        print(f"{name} {first}", flush=True)


def main() -> None:
    """Print the table of all interpreters."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", default=[sys.executable])
    parser.add_argument("--case", action="append", default=[], help="a miscompile; all if not given")
    parser.add_argument("--rungs", action="store_true", help="print the rungs of this environment alone")
    options = parser.parse_args()
    if options.rungs:
        find_rungs(options.case)
        return
    for python in options.python:
        version = run(python, ["-c", "import torch; print(torch.__version__)"]).stdout.strip()
        print(f"torch {version or 'cannot be imported'}", flush=True)
        for mode in MODES:
            done = run(python, ["-m", "kgverify", *DIFF, "--mode", mode], TRITON_INTERPRET=str(int(mode == "fused")))
            said = (done.stdout + done.stderr).strip().splitlines() or [""]
            print(f"  evaluator, {mode}: exit code {done.returncode}, {said[0][:100]}", flush=True)
        cases = [word for name in options.case for word in ("--case", name)]
        print(
            "  " + "\n  ".join(run(python, ["-m", "benchmarks.torch_versions", "--rungs", *cases]).stdout.splitlines())
        )


if __name__ == "__main__":
    main()
