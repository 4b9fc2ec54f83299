"""The trials of a part's mutants: one process collects tests and generates problems, and forks for each mutant."""

import contextlib
import gc
import io
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from mutant import ROOT, Mutant
from mutant_judges import DESELECTED, NUM_PROBLEMS, TESTS, NamedRound, make_rounds
from mutant_trial import SURVIVED, Result, status_of, try_mutant

LONGEST: Final = 600.0
"""Seconds of wall-clock time after which the trial of a mutant is ended."""

DEFAULT_TIER: Final = "not deep and not exhaustive"
DEEP_TIER: Final = "not exhaustive"
"""Markers of the tests that judge."""

OnResult = Callable[[Result], None]
"""Called with each result."""


class _Running(NamedTuple):
    mutant: Mutant | None
    process: ForkProcess
    answer: "Connection[Any, Any]"
    begun: float


def read_results(path: Path) -> dict[str, Result]:
    """Read results by the digests of their mutants, ignoring an incomplete last line."""
    results = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with contextlib.suppress(msgspec.DecodeError):
            result = msgspec.json.decode(line, type=Result)
            results[result.digest] = result
    return results


def run_part(
    part: str,
    mutants: Iterable[Mutant],
    num_jobs: int,
    on_result: OnResult,
    *,
    num_problems: int = NUM_PROBLEMS,
    markers: str = DEEP_TIER,
    with_original: bool = True,
) -> None:
    """Try mutants of a part, `num_jobs` at a time.

    The original is tried first: RuntimeError if it does not pass. `num_problems` is 0 where tests alone are to judge.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch reads it
    import torch
    from hypothesis import HealthCheck, Phase, settings

    torch.set_num_threads(1)
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutants")
    tried = [*([None] if with_original else []), *mutants]
    plugin = _Trials(part, tried, num_jobs, on_result, num_problems)
    tests = [str(ROOT / "tests" / path) for path in TESTS[part]]
    arguments = ["-o", "addopts=", "-p", "pytester", "-m", markers, "-s"]
    arguments += ["-p", "no:cacheprovider", "-p", "no:benchmark"]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
    arguments += [f"--deselect=tests/{name}" for name in DESELECTED]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main([f"--rootdir={ROOT}", *arguments, *tests], plugins=[plugin])
    if plugin.failure:
        raise RuntimeError(f"the original does not pass: {plugin.failure}")
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests could not be collected:\n{output.getvalue()}")


class _Trials:
    """A plugin that replaces pytest's loop over the tests."""

    def __init__(
        self, part: str, mutants: Sequence[Mutant | None], num_jobs: int, on_result: OnResult, num_problems: int
    ) -> None:
        self.part = part
        self.mutants = mutants
        self.num_jobs = num_jobs
        self.on_result = on_result
        self.num_problems = num_problems
        self.failure = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        rounds = make_rounds(self.part, self.num_problems)
        gc.collect()
        gc.freeze()
        waiting = list(reversed(self.mutants))
        running: list[_Running] = []
        while (waiting or running) and not self.failure:
            while waiting and len(running) < self.num_jobs:
                running.append(_start(waiting.pop(), rounds, session))
            wait([each.process.sentinel for each in running], timeout=1.0)
            for each in [each for each in running if _has_ended(each)]:
                running.remove(each)
                self._note(each)
        for each in running:
            _kill(each)
        return True

    def _note(self, ended: _Running) -> None:
        judge = None
        if ended.answer.poll():
            with contextlib.suppress(EOFError):
                judge = ended.answer.recv()
        ended.process.join()
        status, judge = status_of(judge, ended.process.exitcode)
        seconds = round(time.monotonic() - ended.begun, 2)
        if ended.mutant is not None:
            mutant = ended.mutant
            self.on_result(
                Result(
                    digest=mutant.digest,
                    mutant=str(mutant),
                    part=self.part,
                    status=status,
                    judge=judge,
                    seconds=seconds,
                )
            )
        elif status != SURVIVED:
            self.failure = f"{status} by {judge}"


def _start(mutant: Mutant | None, rounds: list[NamedRound], session: pytest.Session) -> _Running:
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=try_mutant, args=(mutant, rounds, session, send))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where a library keeps threads
        process.start()
    send.close()
    return _Running(mutant, process, receive, time.monotonic())


def _has_ended(running: _Running) -> bool:
    if time.monotonic() - running.begun > LONGEST:
        _kill(running)
    return not running.process.is_alive()


def _kill(running: _Running) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process.pid or 0, signal.SIGKILL)
    running.process.join()
