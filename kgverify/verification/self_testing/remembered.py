"""The known answers that a command gives before its own: in each process anew, since only that process runs this code."""

from collections.abc import Callable


def check_once(checks: dict[str, Callable[[], None]]) -> None:
    """Run named checks, each of which raises on failure."""
    for check in checks.values():
        check()
