"""Work in a separate process, since compiled code may end the process, damage its memory, or never return.

The process is a fork, so the work needs no pickling. Its results come back piece by piece: everything sent before the
process ended is kept. On a machine with CUDA, which does not survive a fork, and on systems other than Linux, the work
runs in this process.
"""

import ctypes
import faulthandler
import gc
import io
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Final

import torch

from stepaudit.errors import UserError
from stepaudit.source_lines import is_user_file

SECONDS: Final = 600.0
"""The limit on the CPU time of one compilation with its calls, not counting the C++ compiler."""
_WALL: Final = 10.0
"""The limit on wall-clock time, as a multiple of the CPU time: a machine may be busy, or a process may wait forever."""
_HARD: Final = 2
"""`omp_pause_hard`."""
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+) in ')
_OWN: Final = str(Path(__file__).parent)
_is_isolated = False


def can_isolate() -> bool:
    """Return whether work can run in a separate process here."""
    return sys.platform == "linux" and not torch.cuda.is_available() and not _is_isolated


def start_autograd() -> None:
    """Start the engine of autograd, which starts no threads now, and would once compiling has made it see a device.

    A build of torch for CUDA on a machine without any sees one from then on, and its threads do not survive a fork.
    """
    torch.ones((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


def is_device_lost() -> bool:
    """Return whether a kernel has failed, after which this process cannot use the device."""
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def run_isolated(
    work: Callable[[Callable[[Any], None]], None],
    receive: Callable[[Any], None],
    *,
    seconds: float = SECONDS,
    is_first: bool = False,
) -> str:
    """Run work in a process of its own.

    Args:
        work: receives a function that sends a value to this process.
        receive: called in this process with each value that the work sends, in order.
        seconds: of CPU time after which the process is ended, or ten times as much on the clock.
        is_first: whether this process has not used torch before, so that the work may use CUDA.

    Returns:
        How the process ended before the work was done, such as `SIGABRT at step.py:12`; empty if it was done.

    Raises:
        UserError: if the work raises it.
        RuntimeError: if the work raises anything else.
    """
    if not can_isolate() and not (is_first and sys.platform == "linux"):
        work(receive)
        return ""
    # Done here, since it would take seconds in each of the processes.
    import torch._inductor.config  # noqa: F401

    _pause_threads()
    forking = multiprocessing.get_context("fork")
    reading, writing = forking.Pipe(duplex=False)
    with tempfile.TemporaryFile() as printed:
        child = forking.Process(target=_work, args=(work, writing, printed.fileno(), seconds))
        with warnings.catch_warnings():
            # Python 3.12 warns of forks while threads run. The threads of OpenMP have ended, and the others hold no
            # locks of torch.
            warnings.simplefilter("ignore")
            child.start()
        writing.close()
        try:
            with reading:
                while (last := _read(reading))[0] == "sent":
                    receive(last[1])
        except BaseException:
            _kill(child.pid or 0)
            raise
        finally:
            child.join()
        if last[0] == "error":
            raise last[1] if isinstance(last[1], UserError) else RuntimeError(str(last[1]))
        return "" if last[0] == "done" else _describe_end(child.exitcode or 0, printed)


@dataclass
class Received:
    """The values that isolated work has sent: the names of its parts, as texts, and its result.

    announce: receives the names; part: the last one
    """

    announce: Callable[[str], None]
    part: str = "starting"
    result: Any = None

    def __call__(self, sent: Any) -> None:
        """Receive a value."""
        if isinstance(sent, str):
            self.part = sent
            self.announce(sent)
        else:
            self.result = sent


def _work(work: Callable[[Callable[[Any], None]], None], writing: Connection, printed: int, seconds: float) -> None:
    """Run the work in the new process, and end it."""
    global _is_isolated
    _is_isolated = True
    # Objects of the parent are not searched for garbage here, which would copy its memory.
    gc.freeze()

    def send(kind: str, value: Any = None) -> None:
        # Not `send`: it would pass tensors through memory that ends with this process. Not `pickle`: it cannot read
        # tensors of unsigned integers back.
        torch.save((kind, value), message := io.BytesIO())
        writing.send_bytes(message.getbuffer())

    try:
        os.dup2(printed, 2)
        faulthandler.enable(file=2, all_threads=False)
        faulthandler.register(signal.SIGPROF, file=2, all_threads=False, chain=True)
        signal.setitimer(signal.ITIMER_PROF, max(0.1, seconds))
        faulthandler.dump_traceback_later(_WALL * max(0.1, seconds), file=2, exit=True)
        # Pools of threads and processes belong to the parent.
        torch._inductor.config.compile_threads = 1
        work(lambda value: send("sent", value))
        send("done")
    except UserError as error:
        send("error", error)
    except BaseException as error:  # A step may raise anything.
        send("error", f"{type(error).__name__}: {error}")
    os._exit(0)


def _read(reading: Connection) -> tuple[str, Any]:
    """Read one message. Return an empty message if the process has ended, even in the middle of writing."""
    try:
        return torch.load(io.BytesIO(reading.recv_bytes()), weights_only=False)  # type: ignore[no-any-return]
    except (EOFError, OSError):
        return "", None


def _kill(pid: int) -> None:
    """Kill a process, and those that it has started, such as a C++ compiler."""
    with suppress(OSError):
        started = [each for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]
        os.kill(pid, signal.SIGKILL)
        for each in map(int, started):
            _kill(each)


def _describe_end(code: int, printed: BinaryIO) -> str:
    """Describe how a process ended, from its exit code and the last output of the process and of Python's faulthandler."""
    printed.seek(0)
    text = printed.read()[-20_000:].decode(errors="replace")
    said, _, stack = text.partition("Fatal Python error: ")
    said, _, late = said.partition("Timeout (")
    if late or code == -signal.SIGPROF:
        how, said, stack = "no return in time", "", late or text
    elif code < 0:
        how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    else:
        how = f"exit code {code}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    how += f", {lines[-1][:200]}" if lines else ""
    frames = ((file, line) for file, line in _FRAME.findall(stack.partition(_OWN)[0]) if is_user_file(file))
    return f"{how} at {':'.join(frame)}" if (frame := next(frames, None)) else how


def _pause_threads() -> None:
    """End the idle threads of OpenMP, since a fork lacks them but would wait for them. They start again when needed."""
    for name in ("libgomp.so.1", "libiomp5.so", None):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD).omp_pause_resource_all(_HARD)
