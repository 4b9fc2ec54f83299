"""A folder with the result of a verification: both traces, the report, the run time and, in lockstep, the compared steps."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from kgverify.comparison.exercise.exercise import ITEMS
from kgverify.comparison.modulo import MEANINGS
from kgverify.errors import UserError, check_known
from kgverify.files.reading import MAX_BYTES, read_file, read_json
from kgverify.files.writing import (
    STAGED,
    check_writable,
    explained,
    locked_folder,
    make_folders,
    remove_tree,
    staging_folder,
    write_file,
)
from kgverify.report.report import Report, encode_report
from kgverify.trace.files.manifest import check_output_path, copy_trace, put_in_place
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import RecordedComparison
from kgverify.verification.verify import Verification

EXPECTED = "expected.h5"
ACTUAL = "actual.h5"
LOCKSTEP = "lockstep.h5"
REPORT = "report.json"
TIMES = "times.json"
_READY = "ready"
"""The file with the names of a staged run's files, written when all of them are on disk."""


class RunTimes(msgspec.Struct, frozen=True, tag_field="format", tag="kgverify run times 1"):
    """The seconds that a verification took. They are not in the report, so that equal runs have equal reports.

    total:  the time from reading the graph to the report
    phases: the time of each phase, by title, such as `actual: compiled`
    """

    total: float
    phases: dict[str, float] = {}


@contextmanager
def locked_run(folder: str | Path | None) -> Iterator[None]:
    """Create the folder of a run and lock it while the run is made; do nothing for None. UserError as for `locked_folder`."""
    with nullcontext() if folder is None else locked_folder(Path(folder), "this run"):
        yield


def save_verification(
    verification: Verification | RecordedComparison, folder: Path, times: RunTimes | None = None
) -> None:
    """Write `expected.h5`, `actual.h5` and `report.json`; in lockstep also `lockstep.h5`, the compared actual steps.

    times: the run time, to be written as `times.json`

    Traces on disk are copied. Nothing is changed before all files are on disk. The caller must hold the lock of the folder
    if other processes could write to it. UserError if the folder cannot be created or written.
    """
    make_folders(folder)
    _finish(folder)
    traces: tuple[Trace | TraceFile, ...] = (
        (verification.expected, verification.actual) if isinstance(verification, Verification) else verification.traces
    )
    check_writable(folder / REPORT)
    for name in (EXPECTED, ACTUAL, LOCKSTEP, TIMES):
        check_output_path(folder / name)
    kept = "the run that was there is unchanged" if (folder / REPORT).is_file() else ""
    with explained(folder / EXPECTED, kept=kept), staging_folder(folder) as staged:
        for name, trace in zip((EXPECTED, ACTUAL), traces, strict=True):
            path = folder / name
            if isinstance(trace, Trace):
                write_again(trace, staged / name)
            elif not (path.exists() and path.samefile(trace.path)):
                copy_trace(trace.path, staged / name)
        if verification.stepped is not None:
            write_again(verification.stepped, staged / LOCKSTEP)
        if times is not None:
            write_file(staged / TIMES, msgspec.json.encode(times))
        write_file(staged / REPORT, encode_report(verification.report))
        write_file(staged / _READY, "\n".join(path.name for path in staged.iterdir()))
        _exchange(staged, folder)


def finish_saving(folder: Path) -> None:
    """Finish putting a run's files in place for a process that was killed. UserError if another process writes the run."""
    if not (folder / REPORT).is_file() and any(folder.glob(f"{STAGED}*/{_READY}")):
        with locked_run(folder):
            _finish(folder)


def _finish(folder: Path) -> None:
    """Put staged files in place, as `finish_saving` does. The caller holds the lock of the folder."""
    for ready in [] if (folder / REPORT).is_file() else [*folder.glob(f"{STAGED}*/{_READY}")]:
        new = read_file(ready, purpose="the files of a staged run").decode().split("\n")
        for name in (EXPECTED, ACTUAL, LOCKSTEP, TIMES, REPORT):
            if name in (LOCKSTEP, TIMES) and name not in new:
                remove_tree(folder / name)
            if (ready.parent / name).exists():
                put_in_place(ready.parent / name, folder / name)
        remove_tree(ready.parent)


def _exchange(staged: Path, folder: Path) -> None:
    """Move the files of a run to its folder, and the files of an older run away; after an error, the older files stay."""
    moved: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        source.rename(target)
        moved.append((target, source))

    try:
        # A folder without a report is not a run. If the process is killed here, `finish_saving` finishes its work.
        for name in (REPORT, EXPECTED, ACTUAL, LOCKSTEP, TIMES):
            is_stale = (staged / name).exists() or name in (LOCKSTEP, TIMES)
            if is_stale and (folder / name).exists():
                move(folder / name, staged / f"{name}.before")
        for name in (EXPECTED, ACTUAL, LOCKSTEP, TIMES, REPORT):
            if (staged / name).exists():
                move(staged / name, folder / name)
    except BaseException:
        for target, source in reversed(moved):
            target.rename(source)
        raise


def read_run(folder: Path) -> Verification:
    """Read a folder that `save_verification` wrote. UserError for any other folder, or a damaged one."""
    report = read_saved_report(folder)
    # Earlier versions did not save the steps of lockstep.
    has_steps = report.lockstep and (folder / LOCKSTEP).is_file()
    expected, actual = read_trace(folder / EXPECTED), read_trace(folder / ACTUAL)
    return Verification(report, expected, actual, read_trace(folder / LOCKSTEP) if has_steps else None)


def read_saved_report(folder: Path) -> Report:
    """Read the report of a folder that `save_verification` wrote, without its traces. UserError as for `read_run`."""
    finish_saving(folder)
    path = folder / REPORT
    report = read_json(
        path,
        Report,
        purpose="a report of `kgverify diff --save DIR`",
        fix="save the run again; `kgverify env show DIR` shows a comparison of environments",
        # The report contains every divergence.
        max_bytes=MAX_BYTES,
    )
    _check_indices(report, str(path))
    _check_words(report, str(path))
    return report


def _check_indices(report: Report, where: str) -> None:
    """Raise a UserError unless causes, divergences and shares refer to valid indices, and the first cause is in the list."""
    num_divergences, num_causes = len(report.divergences), len(report.causes)
    shares = report.attribution.shares if report.attribution else ()
    found = (
        *(("a cause", cause.first, 0, num_divergences) for cause in report.causes),
        *(
            ("a divergence", cause, -1, num_causes)
            for each in report.divergences
            for cause in (each.cause, each.other_cause)
        ),
        *(("a share", share.cause, -1, num_causes) for share in shares),
    )
    for name, index, first, end in found:
        if not first <= index < end:
            raise UserError(
                f"{name} points to {index}, expected {first} to {end - 1}", where=where, fix="save the run again"
            )
    if report.first_cause is not None and report.first_cause not in report.divergences:
        raise UserError("its first cause is not among its divergences", where=where, fix="save the run again")


def _check_words(report: Report, where: str) -> None:
    """Raise a UserError for an item of evidence or a kind of benign difference that is unknown."""
    exercise = report.exercise
    sides = () if exercise is None else (exercise.expected, exercise.actual)
    for name in (*report.minimum, *(name for side in sides for name in side.inferred)):
        check_known(name, ITEMS, "item of evidence", where)
    for kind in (*report.modulo, *(each.kind for each in report.benign)):
        check_known(kind, MEANINGS, "benign difference", where)
