"""Running one audit in a test."""

from collections.abc import Callable
from typing import Any

from stepaudit.report import ReportBuilder


def report_of(audit: Callable[..., Any], subject: Any, *arguments: Any, **options: Any) -> ReportBuilder:
    """The builder to which an audit has added."""
    report = ReportBuilder()
    audit(subject, *arguments, report, **options)
    return report
