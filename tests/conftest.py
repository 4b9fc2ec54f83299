"""Settings made before anything imports Triton or torch, the number of test processes, and fixtures of all folders."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

MOST_PROCESSES = 4
"""Each process imports torch and makes the fixtures of its modules."""

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# The tensors of the tests are too small to share among threads, and few sources are compiled at a time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Tests start many processes, which need not compile every module anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests change the judge in memory: it gives its known answers each time.
os.environ["KGVERIFY_CACHE"] = ""
# The native evaluator takes seconds to compile. It is kept for the next session, and checked when it is loaded.
os.environ.setdefault("KGVERIFY_LIBRARIES", f"{tempfile.gettempdir()}/kgverify-libraries-{os.getuid()}")

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
    """Give the session, its worker processes included, one new cache of compiled code, and Hypothesis no deadlines."""
    any_speed = settings(settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("any-speed", any_speed)
    settings.load_profile("any-speed")
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put evenly spaced cases of each `sample` test into the default and the deep tier, the others into the next one.

    `@pytest.mark.sample(4)` leaves 4 cases in the default tier and marks the others deep; with `deep=16`, of the others 16
    are deep and the rest exhaustive.
    """
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") is not None:
            grids[item.nodeid.partition("[")[0]].append(item)
    for cases in grids.values():
        mark = cases[0].get_closest_marker("sample")
        assert mark is not None
        others = _leave_out_every_nth(cases, *mark.args)
        rest = _leave_out_every_nth(others, mark.kwargs.get("deep", len(others)))
        for item in others:
            item.add_marker("exhaustive" if item in rest else "deep")
    for item in items:
        if item.get_closest_marker("deep") is not None and item.get_closest_marker("exhaustive") is not None:
            raise pytest.UsageError(f"{item.nodeid} is marked both deep and exhaustive")


def _leave_out_every_nth(cases: list[pytest.Item], num: int) -> list[pytest.Item]:
    """Return the cases without `num` of them, which are evenly spaced."""
    left_out = {index * len(cases) // num for index in range(min(num, len(cases)))}
    return [case for index, case in enumerate(cases) if index not in left_out]


def pytest_collection_finish() -> None:
    """Freeze what was imported: scanning it at each garbage collection takes a sixth of the tests' time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_experiments() -> Iterator[None]:
    """Let reports state conditions of causes without the experiments that confirm them, which take most of the time."""
    with mock.patch("kgverify.conditions.confirm.MOST_ROUNDS", 0):
        yield


@pytest.fixture(scope="module")
def experiments() -> Iterator[None]:
    """Let a module's reports have experiments, as those of users."""
    with mock.patch("kgverify.conditions.confirm.MOST_ROUNDS", 8):
        yield


@pytest.fixture
def store() -> Iterator[Any]:
    """An object store in memory, at `memory://` URLs, which is empty before and after the test."""
    found = pytest.importorskip("fsspec").filesystem("memory")
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]


@pytest.fixture
def heeds_signals() -> Iterator[None]:
    """Let the processes that a test starts receive signals that a background job ignores, and has its children ignore."""
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
