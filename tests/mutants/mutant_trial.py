"""The trial of one mutant, in a process forked once everything is imported and collected."""

import os
import resource
import signal
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import pytest
from mutant import Mutant
from mutant_judges import Crash, NamedRound
from mutant_plant import plant

MOST_SECONDS: Final = 20
"""CPU seconds for one round of problems or one test; a mutant that takes longer has timed out."""
NUM_QUICK: Final = 3
"""Rounds of problems tried before the tests, since they kill most; the others come after the tests."""
MORE_MEMORY: Final = 4 << 30
"""Bytes that a mutant may allocate beyond those of the process at its start."""

KILLED: Final = "killed"
TIMED_OUT: Final = "timed out"
SURVIVED: Final = "survived"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial.

    digest, mutant: identity and description of the mutant
    status:         `KILLED`, `TIMED_OUT` or `SURVIVED`
    judge:          the test that killed it, or the number of generated problems tried, or its crash
    seconds:        wall-clock time
    """

    digest: str
    mutant: str
    part: str
    status: str
    judge: str
    seconds: float


class _Failures:
    """A plugin that records the first test to fail."""

    def __init__(self) -> None:
        self.first = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.first:
            self.first = report.nodeid


def try_mutant(
    mutant: Mutant | None, rounds: Sequence[NamedRound], session: pytest.Session, answer: "Connection[Any, Any]"
) -> None:
    """Plant a mutant in this process (nothing, for None) and send the judge that killed it; "" if it survives."""
    _prepare_process()
    if mutant is not None:
        plant(mutant)
    few, many = rounds[:NUM_QUICK], rounds[NUM_QUICK:]
    answer.send(_judge(few) or _run_tests(session) or _judge(many))
    answer.close()
    os._exit(0)


def status_of(judge: str | None, exit_code: int | None) -> tuple[str, str]:
    """Return status and judge, from the message of the process, None if it sent nothing, and its exit code."""
    if judge is not None:
        return (KILLED, judge) if judge else (SURVIVED, "")
    if exit_code in (-signal.SIGPROF, -signal.SIGKILL):
        return TIMED_OUT, "time"
    return KILLED, f"the process ended with {exit_code}"


def _prepare_process() -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()


def _start_clock() -> None:
    """Have the process killed unless this is called again in time."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)


def _judge(rounds: Sequence[NamedRound]) -> str:
    for num_problems, detects in rounds:
        _start_clock()
        try:
            if detects():
                return f"{num_problems} problems"
        except (Exception, Crash) as error:
            cause = error.__cause__ or error
            return f"{num_problems} problems: {type(cause).__name__}"
    return ""


def _run_tests(session: pytest.Session) -> str:
    failures = _Failures()
    session.config.pluginmanager.register(failures)
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        _start_clock()
        try:
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException as error:
            return f"{item.nodeid}: {type(error).__name__}"
        if failures.first:
            return failures.first
    return ""
