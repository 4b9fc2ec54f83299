"""What must be settled before anything imports Triton or torch, and how many processes share the tests."""

import gc
import os
from pathlib import Path

import pytest

MOST_PROCESSES = 4
"""Each imports torch, and makes the fixtures of the modules that it gets."""

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# The tensors of the tests are too small to share among threads, and few sources are compiled at a time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core; none but this one for a few files or tests that are named: they end sooner so."""
    folder = config.invocation_params.dir
    if not any((folder / argument.partition("::")[0]).is_dir() for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def pytest_collection_finish() -> None:
    """What was imported stays; to look it through at each garbage collection is a sixth of the tests' work."""
    gc.collect()
    gc.freeze()
