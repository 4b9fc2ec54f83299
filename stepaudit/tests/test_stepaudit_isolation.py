"""Compiled code that ends its process, or never returns, is a finding, and the audit goes on."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stepaudit import UserError, audit_step
from stepaudit.isolation import can_isolate, run_isolated
from stepaudit.ladder import reproducer

pytestmark = pytest.mark.skipif(not can_isolate(), reason="needs Linux without CUDA")


def make(call: int) -> tuple[Tensor]:
    return (torch.ones(3) * call,)


def abort(values: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        os.abort()  # here
    return values + 1


def leave(values: Tensor) -> Tensor:
    os._exit(0)


def never_return(values: Tensor) -> Tensor:
    while torch.compiler.is_compiling():
        pass
    return values + 1


@pytest.mark.deep
def test_compiled_code_that_aborts_is_a_finding_with_its_signal_and_line() -> None:
    report = audit_step(abort, make, calls=1, rungs=("backend-eager",), seconds=0)
    (found,) = report.findings
    assert "the process ended: SIGABRT" in found.finding
    lines = Path(__file__).read_text("utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# here"))
    assert found.where == f"{__file__}:{line}"
    assert [each.audit for each in report.unmeasured if each.audit == "properties"]


@pytest.mark.deep
def test_compiled_code_that_never_returns_is_a_finding() -> None:
    report = audit_step(never_return, make, calls=1, rungs=("backend-eager",), seconds=0, patience=1)
    assert "no return in time" in report.findings[0].finding


def test_a_step_that_ends_the_process_in_eager_is_bad_input() -> None:
    with pytest.raises(UserError, match="ends the process without the compiler: exit code 0"):
        audit_step(leave, make, calls=1, rungs=("backend-eager",), seconds=0)


@pytest.mark.parametrize(
    ("act", "end"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: torch.ones(100_000).exp().sum(), ""),
    ],
)
def test_what_was_sent_before_the_end_is_kept(act: Callable[[], Any], end: str) -> None:
    # OpenMP's threads are not in the other process.
    torch.ones(100_000).exp()
    received: list[int] = []

    def work(send: Callable[[int], None]) -> None:
        send(1)
        act()

    assert run_isolated(work, received.append).startswith(end)
    assert received == [1]


def test_an_error_of_the_work_is_raised_here() -> None:
    def work(send: Callable[[int], None]) -> None:
        raise UserError("no", where="here", fix="other")

    with pytest.raises(UserError, match="no"):
        run_isolated(work, lambda value: None)


@pytest.mark.exhaustive
def test_a_script_may_take_long_on_a_busy_machine_but_not_much_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducer, "SECONDS", 5)
    monkeypatch.setattr(reproducer, "_WALL", 100)
    waiting, looping = tmp_path / "waiting.py", tmp_path / "looping.py"
    waiting.write_text("import time\ntime.sleep(6)\nraise AssertionError('DIFFERS')\n", "utf-8")
    looping.write_text("while True:\n    pass\n", "utf-8")
    assert reproducer._run(waiting) == ("", False)
    assert reproducer._run(looping) == ("it ran for more than 5 s", False)


def test_an_interrupted_audit_ends_what_its_processes_have_started() -> None:
    started: list[int] = []

    def work(send: Callable[[Any], None]) -> None:
        send(subprocess.Popen(["sleep", "60"]).pid)
        time.sleep(60)

    def interrupt(pid: int) -> None:
        started.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_isolated(work, interrupt)
    end = time.monotonic() + 5
    while time.monotonic() < end and is_running(started[0]):
        time.sleep(0.01)
    assert not is_running(started[0])


def is_running(pid: int) -> bool:
    """Return whether a process exists that is not a zombie, which a container without an init process never removes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
