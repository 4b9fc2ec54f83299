"""A run folder: both traces and the report."""

from pathlib import Path

from kgverify.errors import UserError
from kgverify.harness.verify import Verification
from kgverify.report.report import encode_report
from kgverify.trace.trace import Trace
from kgverify.trace.writer import write_trace

EXPECTED = "expected.h5"
ACTUAL = "actual.h5"
REPORT = "report.json"


def save_verification(verification: Verification, folder: Path) -> None:
    """Write `expected.h5`, `actual.h5` and `report.json`. UserError if the folder cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot be made a folder: {error.strerror}", where=str(folder), fix="give a path that is free or a folder"
        ) from None
    for name, trace in ((EXPECTED, verification.expected), (ACTUAL, verification.actual)):
        save_trace(trace, folder / name)
    (folder / REPORT).write_bytes(encode_report(verification.report))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace that is in memory."""
    write_trace(
        path,
        trace.header,
        trace.symbols,
        trace.columns,
        trace.rankings,
        facts=trace.facts,
        fact_lines=trace.fact_lines,
    )
