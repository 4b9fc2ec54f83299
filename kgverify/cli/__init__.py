"""The command line: each command reads its options, makes one call, prints, and returns an exit code.

Internal: it may change without notice. Users import from `kgverify` itself.
"""

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

__all__ = ["main"]


def main() -> "NoReturn":
    """Run the command line, and exit. A command with a third-party engine runs in a process that another process watches."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, _end_at_once)
    from kgverify.cli.configuration import find_file
    from kgverify.cli.supervise import may_run_foreign_code, supervise

    def command() -> int:
        from kgverify.cli.start import import_command_line

        run = import_command_line()
        if is_usual:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return run()
        except KeyboardInterrupt:
            # It came before or after the command line handles interrupts.
            os.write(2, b"interrupted\n")
            return 128 + signal.SIGINT

    is_foreign = may_run_foreign_code(sys.argv[1:]) or find_file() is not None
    code = supervise(command) if is_foreign else command()
    # Python remembers a KeyboardInterrupt inside code compiled from a text, as in dataclasses, even if it was handled.
    # `python -m` would then end with the signal instead of the exit code. Running another text makes Python forget it.
    exec("")
    sys.exit(code)


def _end_at_once(number: int, frame: "FrameType | None") -> "NoReturn":
    """End the process, since a KeyboardInterrupt in the middle of an import may be lost, and prints a traceback."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)
