"""Running a measurement that takes the options of `kgverify` commands."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter

from kgverify.audit.render import render_audit
from kgverify.audit.report import AuditReport
from kgverify.cli.output import take_settings
from kgverify.cli.progress import make_result_console, write_json
from kgverify.errors import UserError


def run_words(command: Callable[..., Any], words: Sequence[str]) -> int:
    app = App(
        default_parameter=Parameter(negative_iterable="", allow_repeating=True),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    app.default(command)
    code: int = app(take_settings(words))
    return code


def run_script(command: Callable[..., Any]) -> None:
    try:
        sys.exit(run_words(command, sys.argv[1:]))
    except (UserError, CycloptsError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def deliver_report(report: AuditReport) -> int:
    """Print a report, write it as JSON if that is wanted, and return the exit code."""
    console = make_result_console()
    for part in render_audit(report):
        console.print(part)
    write_json(report)
    return 0 if report.is_clean else 1
