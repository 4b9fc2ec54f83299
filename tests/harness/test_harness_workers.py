"""Processes that share long work."""

import os
import signal
import subprocess
import sys
import time

from kgverify.harness.workers import start_workers


def test_a_worker_has_one_thread_and_the_settings_of_this_process_are_left():
    before = dict(os.environ)
    with start_workers(2) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
    assert dict(os.environ) == before


def test_workers_end_when_the_process_that_started_them_is_killed():
    code = (
        "import os, time\n"
        "from kgverify.harness.workers import start_workers\n"
        "if __name__ == '__main__':\n"
        "    with start_workers(1) as executor:\n"
        "        print(executor.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    for _ in range(100):
        if not is_running(worker):
            return
        time.sleep(0.1)
    raise AssertionError("the worker goes on waiting for work")


def is_running(pid: int) -> bool:
    """Not a process that has ended and was not waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
