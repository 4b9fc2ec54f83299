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
from mutant_coverage import PASSED, LineRecorder, every_file
from mutant_judges import Crash, NamedRound
from mutant_plant import plant

MOST_SECONDS: Final = 10.0
"""CPU seconds for one round of problems, and for one test beside ten times its own time; beyond, a mutant has timed out."""
NUM_QUICK: Final = 1
"""Rounds tried before the tests, since they kill most; the others come after the tests."""
MORE_MEMORY: Final = 4 << 30
"""Bytes that a mutant may allocate beyond those of the process at its start."""

KILLED: Final = "killed"
TIMED_OUT: Final = "timed out"
SURVIVED: Final = "survived"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial.

    digest, mutant: identity and description of the mutant
    part, line:     the part, and the first line of the statement
    status:         `KILLED`, `TIMED_OUT` or `SURVIVED`
    judge:          the test that killed it, or the number of generated problems tried, or its crash
    seconds:        wall-clock time
    num_covering:   tests that execute its statement
    num_tried:      those of them that fitted into the time of a mutant
    """

    digest: str
    mutant: str
    part: str
    line: int = 0
    status: str
    judge: str
    seconds: float
    num_covering: int = 0
    num_tried: int = 0


class TimedTest(msgspec.Struct, frozen=True):
    """A test, and its time on the original."""

    item: pytest.Item
    seconds: float = 0.0


class _Reports:
    """A plugin that records the first test to fail, and the outcomes of all."""

    def __init__(self) -> None:
        self.first = ""
        self.reason = ""
        self.outcomes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.outcomes.append(report.outcome)
        if report.failed and not self.first:
            self.first = report.nodeid
            self.reason = report.longreprtext.strip()[-200:]


def try_mutant(
    mutant: Mutant | None,
    rounds: Sequence[NamedRound],
    tests: Sequence[TimedTest],
    folder: str,
    answer: "Connection[Any, Any]",
) -> None:
    """Plant a mutant in this process (nothing, for None) and send the judge that killed it; "" if it survives."""
    _prepare_process(folder)
    if mutant is not None:
        try:
            plant(mutant)
        except Exception as error:
            # The module of a mutant with another constant cannot be imported.
            answer.send(f"planting: {type(error).__name__}: {error}")
            os._exit(0)
    few, many = rounds[:NUM_QUICK], rounds[NUM_QUICK:]
    answer.send(_judge(few) or _run_tests(tests) or _judge(many))
    answer.close()
    os._exit(0)


def record_test(item: pytest.Item, most_seconds: float, folder: str, answer: "Connection[Any, Any]") -> None:
    """Run a test of the original; send its status and the lines that it executes. The process ends if it takes longer."""
    _prepare_process(folder)
    signal.setitimer(signal.ITIMER_PROF, most_seconds)
    reports = _Reports()
    item.session.config.pluginmanager.register(reports)
    recorder = LineRecorder(every_file())
    recorder.start()
    try:
        item.session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    finally:
        lines = recorder.stop()
    is_passed = set(reports.outcomes) == {PASSED}
    outcomes = ", ".join(sorted({*reports.outcomes}))
    answer.send((PASSED if is_passed else f"{outcomes} {reports.reason}".strip(), lines))
    answer.close()
    os._exit(0)


def status_of(judge: str | None, exit_code: int | None) -> tuple[str, str]:
    """Return status and judge, from the message of the process, None if it sent nothing, and its exit code."""
    if judge is not None:
        return (KILLED, judge) if judge else (SURVIVED, "")
    if exit_code in (-signal.SIGPROF, -signal.SIGKILL):
        return TIMED_OUT, "time"
    return KILLED, f"the process ended with {exit_code}"


def _prepare_process(folder: str) -> None:
    """Give this process a session, a temporary folder, limits of its own, and no input or output."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY,) * 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = folder


def _start_clock(more: float = 0.0) -> None:
    """Have the process killed unless this is called again in time."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS + more)


def _judge(rounds: Sequence[NamedRound]) -> str:
    for name, detects in rounds:
        _start_clock()
        try:
            if detects():
                return name
        except (Exception, Crash) as error:
            cause = error.__cause__ or error
            return f"{name}: {type(cause).__name__}"
    return ""


def _run_tests(tests: Sequence[TimedTest]) -> str:
    if not tests:
        return ""
    reports = _Reports()
    config = tests[0].item.config
    config.pluginmanager.register(reports)
    following = [each.item for each in tests[1:]]
    for test, after in zip(tests, [*following, None], strict=True):
        _start_clock(10 * test.seconds)
        try:
            config.hook.pytest_runtest_protocol(item=test.item, nextitem=after)
        except BaseException as error:
            return f"{test.item.nodeid}: {type(error).__name__}"
        if reports.first:
            return reports.first
    return ""
