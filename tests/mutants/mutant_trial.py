"""The trial of one mutant, in a process forked once everything is imported and collected."""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from mutant import Mutant
from mutant_coverage import PASSED, LineRecorder, every_file
from mutant_judges import Crash, NamedRound
from mutant_plant import plant

MOST_SECONDS: Final = 10.0
"""CPU seconds for one round of problems, and for one test beside ten times its own time; beyond, a mutant has timed out."""
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
    judge:          the test or the round that killed it, or its crash
    seconds:        wall-clock time
    num_covering:   tests and rounds that execute its statement
    num_tried:      those of them that were tried, for as long as one of many may take; 0 if the process ended early
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


class TimedJudge(NamedTuple):
    """A test or a round, and its time on the original."""

    judge: pytest.Item | NamedRound
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
    mutant: Mutant,
    judges: Sequence[TimedJudge],
    most_seconds: float,
    folder: str,
    answer: "Connection[Any, Any]",
) -> None:
    """Plant a mutant in this process; send the judge that killed it, "" if it survives, and the number of those tried.

    No further judge begins after some CPU seconds.
    """
    _prepare_process(folder)
    try:
        plant(mutant)
    except Exception as error:
        # The module of a mutant with another constant cannot be imported.
        answer.send((f"planting: {type(error).__name__}: {error}", 0))
        os._exit(0)
    answer.send(find_killer(judges, most_seconds))
    answer.close()
    os._exit(0)


def record_judge(
    judge: pytest.Item | NamedRound, most_seconds: float, folder: str, answer: "Connection[Any, Any]"
) -> None:
    """Run a judge of the original; send its status and the lines that it executes. The process ends if it takes longer."""
    _prepare_process(folder)
    signal.setitimer(signal.ITIMER_PROF, most_seconds)
    recorder = LineRecorder(every_file())
    recorder.start()
    try:
        status = _status_of_round(judge) if isinstance(judge, NamedRound) else _status_of_test(judge)
    finally:
        lines = recorder.stop()
    answer.send((status, lines))
    answer.close()
    os._exit(0)


def _status_of_round(judge: NamedRound) -> str:
    return f"failed {killer}" if (killer := _try_round(judge)) else PASSED


def _status_of_test(item: pytest.Item) -> str:
    reports = _Reports()
    item.session.config.pluginmanager.register(reports)
    item.session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    if set(reports.outcomes) == {PASSED}:
        return PASSED
    return f"{', '.join(sorted({*reports.outcomes}))} {reports.reason}".strip()


def status_of(answer: tuple[str, int] | None, exit_code: int | None) -> tuple[str, str, int]:
    """Return status, judge and number of judges tried, from a process's message, if it sent one, and its exit code."""
    if answer is not None:
        judge, num_tried = answer
        return KILLED if judge else SURVIVED, judge, num_tried
    if exit_code in (-signal.SIGPROF, -signal.SIGKILL):
        return TIMED_OUT, "time", 0
    return KILLED, f"the process ended with {exit_code}", 0


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


def find_killer(judges: Sequence[TimedJudge], most_seconds: float) -> tuple[str, int]:
    """Return the name of the first judge that notices something, "" if none does in time, and the number of those tried."""
    deadline = time.process_time() + most_seconds
    reports = _Reports()
    tests = [each.judge for each in judges if isinstance(each.judge, pytest.Item)]
    if tests:
        tests[0].config.pluginmanager.register(reports)
    following = iter([*tests[1:], None])
    for number, (judge, seconds) in enumerate(judges):
        if time.process_time() > deadline:
            return "", number
        _start_clock(10 * seconds)
        if isinstance(judge, NamedRound):
            killer = _try_round(judge)
        else:
            killer = _try_test(judge, next(following), reports)
        if killer:
            return killer, number + 1
    return "", len(judges)


def _try_round(judge: NamedRound) -> str:
    try:
        return judge.name if judge.detects() else ""
    except (Exception, Crash) as error:
        return f"{judge.name}: {type(error.__cause__ or error).__name__}"


def _try_test(item: pytest.Item, following: pytest.Item | None, reports: _Reports) -> str:
    try:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    except BaseException as error:
        return f"{item.nodeid}: {type(error).__name__}"
    return reports.first
