"""A fork server for commands: one process imports everything, and forks for each command.

A new interpreter takes seconds to import torch. A forked command calls `kgverify.cli.main`, as the installed one does, in its
own process with its own folder, environment, input and outputs.
"""

import atexit
import gc
import importlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

IMPORTED = (
    "kgverify.cli",
    "kgverify.prover.engine",
    "kgverify.engines.reference.engine",
    "kgverify.testing.campaigns.campaign",
    "kgverify.evaluation.evaluate",
    "kgverify.verification.verify",
)
"""The modules that commands import when they need them."""

CAN_FORK = sys.platform.startswith("linux")
"""Libraries may not survive a fork on other systems."""

WITHOUT_EXPERIMENTS = "TEST_WITHOUT_EXPERIMENTS"
"""The environment variable with which commands do not confirm conditions by experiments, which take much of their time."""

KINDS = ("kgverify", "python-block")
CLIENT = """#!{python} -IS
import json, os, socket, sys
channel = socket.socket(socket.AF_UNIX)
channel.connect({path!r})
request = json.dumps([{kind!r}, sys.argv, os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(channel, [len(request).to_bytes(8, "big")], [0, 1, 2])
channel.sendall(request)
answer = channel.recv(1)
sys.exit(answer[0] if answer else "the server has exited")
"""


def run_shell(block: str, folder: Path, *, is_warm: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a block of commands in bash. `kgverify` in it is forked, or with `is_warm=False` the installed command."""
    if os.name == "nt" or shutil.which("bash") is None:
        pytest.skip("the commands are for a POSIX shell")
    binaries = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if is_warm and CAN_FORK:
        binaries.insert(0, str(warm_binaries()))
    environment = dict(os.environ, PATH=os.pathsep.join(binaries), OMP_NUM_THREADS="1")
    return subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def run_python(block: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block of Python in a forked process."""
    python = str(warm_binaries() / "python-block") if CAN_FORK else sys.executable
    return subprocess.run([python, "-c", block], cwd=folder, capture_output=True, text=True, timeout=300)


@cache
def warm_binaries() -> Path:
    """Start the server, which ends with this process, and return a folder with commands that ask it to fork."""
    folder = Path(tempfile.mkdtemp(prefix="kgverify-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = str(folder / "socket")
    for kind in KINDS:
        client = folder / kind
        client.write_text(CLIENT.format(python=sys.executable, path=path, kind=kind))
        client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        descriptor = listening.fileno()
        # Nothing is ever written to its input, whose end tells it to exit.
        _process.append(
            subprocess.Popen(
                [sys.executable, __file__, str(descriptor)],
                stdin=subprocess.PIPE,
                pass_fds=[descriptor],
                env=dict(os.environ, OMP_NUM_THREADS="1"),
            )
        )
    return folder


_process: list[subprocess.Popen[bytes]] = []


@atexit.register
def _end() -> None:
    for process in _process:
        process.communicate()


def serve(listening: socket.socket) -> None:
    """Fork for each request until the standard input is closed."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    num_children = 0
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [], 1.0)
        while num_children and os.waitpid(-1, os.WNOHANG)[0]:
            num_children -= 1
        if sys.stdin in ready:
            return
        if listening in ready:
            channel, _ = listening.accept()
            if not os.fork():
                listening.close()
                answer(channel)
            num_children += 1
            channel.close()


def answer(channel: socket.socket) -> NoReturn:
    """Run a request in a new process and send its exit code."""
    head, descriptors, _, _ = socket.recv_fds(channel, 8, 3)
    with channel.makefile("rb") as stream:
        kind, argv, folder, environment = json.loads(stream.read(int.from_bytes(head, "big")))
    child = os.fork()
    if not child:
        channel.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        become(kind, argv)
    for descriptor in descriptors:
        os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    channel.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def become(kind: str, argv: list[str]) -> NoReturn:
    """Run the command or the block of Python, and exit."""
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  open until the process ends
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115  open until the process ends
    code = 0
    if WITHOUT_EXPERIMENTS in os.environ:
        importlib.import_module("kgverify.conditions.confirm").MOST_ROUNDS = 0
    try:
        if kind == "kgverify":
            sys.argv = argv
            from kgverify.cli import main

            main()
        else:
            sys.argv = ["-c"]
            sys.path.insert(0, "")
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(argv[2], "<string>", "exec"), sys.modules["__main__"].__dict__)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    # A command does not have this folder on its path.
    del sys.path[0]
    atexit.unregister(_end)
    serve(socket.socket(fileno=int(sys.argv[1])))
