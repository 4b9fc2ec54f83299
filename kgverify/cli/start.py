"""The import of the command line, which needs packages that may be missing or broken."""

import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def import_command_line() -> Callable[[], int]:
    """Return the function that runs a command; exit with a message if a package that it needs cannot be imported."""
    try:
        from kgverify.cli.app import run
    except Exception as error:
        _explain(error)
    return run


def _explain(error: Exception) -> NoReturn:
    from kgverify.errors import find_missing_dependency

    missing = find_missing_dependency(error)
    if missing is None:
        traceback.print_exception(error)
        sys.exit(70)
    print(f"error: {missing}", file=sys.stderr)
    sys.exit(2)
