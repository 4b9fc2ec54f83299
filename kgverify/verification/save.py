"""A folder with the result of a verification: both traces, the report, and in lockstep the compared steps."""

import shutil
from pathlib import Path

from kgverify.errors import UserError
from kgverify.files.decoding import read_json
from kgverify.files.reading import MAX_BYTES
from kgverify.report.report import Report, encode_report
from kgverify.runs.output_folder import check_output_folder
from kgverify.trace.files.manifest import put_in_place, remove_trace
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.rebuild import rebuild_for_comparison
from kgverify.verification.verify import RecordedComparison, Verification

EXPECTED = "expected.h5"
ACTUAL = "actual.h5"
LOCKSTEP = "lockstep.h5"
REPORT = "report.json"


def save_verification(verification: Verification | RecordedComparison, folder: Path) -> None:
    """Write `expected.h5`, `actual.h5` and `report.json`; in lockstep also `lockstep.h5`, the compared actual steps.

    Traces on disk are copied. UserError if the folder cannot be created or written.
    """
    check_output_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    traces: tuple[Trace | TraceFile, ...] = (
        (verification.expected, verification.actual) if isinstance(verification, Verification) else verification.traces
    )
    for name, trace in zip((EXPECTED, ACTUAL), traces, strict=True):
        path = folder / name
        if isinstance(trace, Trace):
            write_again(trace, path)
        elif not (path.exists() and path.samefile(trace.path)):
            copy = folder / f"{name}.copy"
            remove_trace(copy)
            (shutil.copytree if trace.path.is_dir() else shutil.copyfile)(trace.path, copy)
            put_in_place(copy, path)
    if verification.stepped is not None:
        write_again(verification.stepped, folder / LOCKSTEP)
    else:
        # It would belong to a run that was saved here before.
        (folder / LOCKSTEP).unlink(missing_ok=True)
    (folder / REPORT).write_bytes(encode_report(verification.report))


def read_run(folder: Path) -> Verification:
    """Read a folder that `save_verification` wrote. UserError for any other folder, or a damaged one."""
    path = folder / REPORT
    report = read_json(
        path,
        Report,
        purpose="a report of `kgverify diff --save DIR`",
        fix="save the run again",
        # Every divergence is in it.
        max_bytes=MAX_BYTES,
    )
    _check_indices(report, str(path))
    # Earlier versions did not save the steps of lockstep.
    has_steps = report.lockstep and (folder / LOCKSTEP).is_file()
    # Compact traces were compared with their goals.
    traces = rebuild_for_comparison(read_trace(folder / EXPECTED), read_trace(folder / ACTUAL))
    return Verification(report, *traces, read_trace(folder / LOCKSTEP) if has_steps else None)


def _check_indices(report: Report, where: str) -> None:
    """Raise UserError unless causes, divergences and shares refer to existing ones."""
    num_divergences, num_causes = len(report.divergences), len(report.causes)
    shares = report.attribution.shares if report.attribution else ()
    found = (
        *(("a cause", cause.first, 0, num_divergences) for cause in report.causes),
        *(("a divergence", each.cause, -1, num_causes) for each in report.divergences),
        *(("a share", share.cause, -1, num_causes) for share in shares),
    )
    for name, index, first, end in found:
        if not first <= index < end:
            raise UserError(
                f"{name} points to {index}, expected {first} to {end - 1}", where=where, fix="save the run again"
            )
