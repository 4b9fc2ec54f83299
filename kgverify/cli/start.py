"""The import of the command line, which needs packages that may be missing or broken."""

import sys
import traceback
from collections.abc import Callable


def import_command_line() -> Callable[[], int]:
    """Return the function that runs a command, or a function that returns an exit code if a package cannot be imported."""
    try:
        # Commands lock their files; Windows lacks this module.
        import fcntl  # noqa: F401

        from kgverify.cli.app import run
    except Exception as error:
        code = _explain(error)
        return lambda: code
    return run


def _explain(error: Exception) -> int:
    from kgverify.errors import find_missing_dependency

    missing = find_missing_dependency(error)
    if missing is None:
        traceback.print_exception(error)
        return 70
    print(f"error: {missing}", file=sys.stderr)  # noqa: T201  the text of the error is escaped
    return 2
