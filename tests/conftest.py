"""Settings made before anything imports Triton or torch, the number of test processes, and fixtures of all folders."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MOST_PROCESSES = 4
"""Each process imports torch and makes the fixtures of its modules."""

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# The tensors of the tests are too small to share among threads, and few sources are compiled at a time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

_session_cache = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of cores; 0, for this process alone, when the arguments name files or tests only."""
    folder = config.invocation_params.dir
    if not any((folder / argument.partition("::")[0]).is_dir() for argument in config.args):
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def pytest_configure(config: pytest.Config) -> None:
    """Give the session, its worker processes included, one new cache of compiled code."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="kgverify-inductor-")
    config.stash[_session_cache] = folder
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the cache of the session."""
    folder = config.stash.get(_session_cache, None)
    if folder is not None:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Freeze what was imported: scanning it at each garbage collection takes a sixth of the tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def single_thread() -> Iterator[None]:
    """Keep torch to one thread: the tensors of the tests are too small to share among threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Let the processes that a test starts receive SIGINT, which a background job ignores and passes on ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
