"""The time of the first command: cold (nothing compiled before) and warm, whole processes.

    python benchmarks/first_run.py

Targets on 2 CPU cores: cold under 15 s, warm under 4 s.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

COMMAND = [sys.executable, "-m", "kgverify", "diff", "--queries", "20"]
NUM_WARM = 3


def seconds(cache: str) -> float:
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=cache, KGVERIFY_CACHE=cache)
    began = time.perf_counter()
    subprocess.run(COMMAND, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        print(f"cold {seconds(cache):.1f} s", flush=True)
        warm = [seconds(cache) for _ in range(NUM_WARM)]
        print(f"warm {statistics.median(warm):.1f} s (median of {NUM_WARM})")


if __name__ == "__main__":
    main()
