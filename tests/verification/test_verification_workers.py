"""Processes that share long work."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from kgverify.runs.pool import Processes, WorkerLost, make_once, send_maker


def test_a_worker_has_one_thread_and_this_process_keeps_its_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = dict(os.environ)
    with Processes(2) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
    assert dict(os.environ) == before


def test_workers_end_when_the_process_that_started_them_is_killed():
    code = (
        "import os, time\n"
        "from kgverify.runs.pool import Processes\n"
        "if __name__ == '__main__':\n"
        "    with Processes(1) as executor:\n"
        "        print(executor.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    assert is_ended(worker)


def is_ended(pid: int) -> bool:
    """Return whether a process ends within seconds."""
    for _ in range(100):
        if not is_running(pid):
            return True
        time.sleep(0.1)
    return False


def is_running(pid: int) -> bool:
    """Not a process that has ended and was not waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_uncaught_ctrl_c_ends_workers_at_once():
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Processes(1) as executor:  # noqa: PT012 - what runs is what is ended
        worker = executor.submit(os.getpid).result()
        executor.submit(time.sleep, 60)
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 30
    assert is_ended(worker)


def _fail(content: bytes, name: str) -> None:
    raise ValueError(len(content) > 0)


def test_a_process_receives_what_calls_share_once_and_again_after_a_failure() -> None:
    with Processes(1) as workers:
        three, four, five = (send_maker(partial(int, text), workers) for text in ("3", "4", "5"))
        sizes = [workers.submit(len, five[0]).result() for _ in range(2)]
        assert sizes[0] > sizes[1] == 0
        for made, value in ((three, 3), (three, 3), (four, 4), (three, 3)):
            assert workers.submit(make_once, *made).result() == value
        with pytest.raises(ValueError, match="False"):
            workers.submit(_fail, *three).result()
        with pytest.raises(ValueError, match="True"):
            workers.submit(_fail, *three).result()
        assert workers.submit(make_once, *four).result() == 4
        with pytest.raises(WorkerLost):
            workers.submit(os._exit, 3).result()
        assert workers.submit(make_once, *four).result() == 4
