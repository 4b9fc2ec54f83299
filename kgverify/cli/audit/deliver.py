"""Printing of the audits' reports, and their JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kgverify.cli.progress import make_result_console, write_json

if TYPE_CHECKING:
    from kgverify.audit.report import AuditReport


def deliver_reports(reports: "Sequence[AuditReport]", written: Any, json_path: str | None) -> None:
    """Print reports, and write a value as JSON if a path is given."""
    from kgverify.audit.render import render_audit

    console = make_result_console(json_path)
    for report in reports:
        for part in render_audit(report):
            console.print(part)
    write_json(written, json_path)
