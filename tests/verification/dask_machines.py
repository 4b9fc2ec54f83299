"""A dask scheduler and its workers as processes of their own, which tests kill and start again."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Machines:
    """A scheduler on a port of its own of 127.0.0.1, and workers with one thread each."""

    def __init__(self, options: tuple[str, ...] = (), protocol: str = "tcp") -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{port}"
        self._options = ("--host", "127.0.0.1", *options)
        self._port = str(port)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start_scheduler()

    def start_scheduler(self) -> None:
        self.scheduler = self._start("scheduler", "--port", self._port, "--no-dashboard", "--no-show")

    def start_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *words, *self._options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(started)
        return started


@contextmanager
def start_machines(*options: str, protocol: str = "tcp") -> Iterator[Machines]:
    machines = Machines(options, protocol)
    try:
        yield machines
    finally:
        for process in machines.processes:
            process.kill()
        for process in machines.processes:
            process.wait()
