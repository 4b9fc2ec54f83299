"""A folder with the result of a comparison of environments: both sides, the report, and its page."""

from pathlib import Path

from kgverify.environments.compare import Compared
from kgverify.environments.report import EnvironmentReport
from kgverify.errors import UserError
from kgverify.files.reading import MAX_BYTES, read_json
from kgverify.files.writing import make_folders
from kgverify.report.render.formats import FORMATS
from kgverify.verification.save import ACTUAL, EXPECTED, REPORT


def save_comparison(report: EnvironmentReport, found: Compared, folder: Path) -> None:
    """Write `expected.h5`, `actual.h5`, `report.html`, and then `report.json`. UserError if a file cannot be written."""
    make_folders(folder)
    # A folder without a report is not a run.
    (folder / REPORT).unlink(missing_ok=True)
    for name, side in zip((EXPECTED, ACTUAL), found.sides, strict=True):
        side.write(folder / name)
    report.to_html(folder / FORMATS["html"].file)
    report.to_json(folder / REPORT)


def read_comparison(folder: Path) -> EnvironmentReport:
    """Read the report of a folder that `save_comparison` wrote. UserError for any other folder, or a damaged report."""
    path = folder / REPORT
    report = read_json(
        path,
        EnvironmentReport,
        purpose="a report of `kgverify env diff --save DIR`",
        fix="save the run again",
        max_bytes=MAX_BYTES,
    )
    num = len(report.divergences)
    indices = [*(each.divergence for each in report.windows), *(each.first for each in report.causes)]
    widths = [
        len(cells) in (0, len(window.columns))
        for window in report.windows
        for row in window.rows
        for cells in (row.expected, row.actual)
    ]
    if not all(0 <= index < num for index in indices) or not all(widths):
        raise UserError("its parts contradict each other", where=str(path), fix="save the run again")
    return report
