"""The place of a trace that is being written: what may be there before, what is left there, whether it is gone on with."""

from pathlib import Path

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.files.journal import list_journals
from kgverify.trace.files.manifest import MANIFEST, Manifest, Part, read_manifest
from kgverify.trace.model.levels import TraceLevel, optional_columns_of
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, Arrays
from kgverify.trace.write.uncommitted import open_journal


def check_place(path: Path) -> None:
    """UserError where no trace can come to stand at a path."""
    if not path.parent.is_dir():
        raise UserError("its folder does not exist", where=str(path), fix=f"create {path.parent} first")
    if path.is_dir() and not (path / MANIFEST).is_file():
        raise UserError(
            "a folder that is not a trace is in the way",
            where=str(path),
            fix="move it, or choose another path",
        )


def check_no_partial(partial: Path) -> None:
    """UserError if a recording was left behind."""
    if partial.exists():
        raise UserError(
            "a recording that did not finish is in the way",
            where=str(partial),
            fix="resume it, or delete this folder",
        )


def check_resumable(manifest: Manifest, part: Part | None, partial: Path) -> None:
    """UserError for a recording that has gaps, or is another part."""
    if manifest.has_gaps:
        raise UserError(
            "candidates in its midst were lost, so that it cannot be gone on with",
            where=str(partial),
            fix="keep what there is under another name, and record again",
        )
    if manifest.shards and manifest.part != part:
        found, wanted = ("no part" if p is None else f"part {p.index} of {p.count}" for p in (manifest.part, part))
        raise UserError(
            f"is {found} of a recording, expected {wanted}",
            where=str(partial),
            fix=f"resume with the same part, or delete {partial}",
        )


def check_same_run(arrays: Arrays, shared: Arrays, absent: frozenset[str], level: TraceLevel, path: Path) -> None:
    """UserError unless the arrays of a file are of the run with these shared arrays, absent columns and level."""
    own = {name for name in arrays if name in shared or name.startswith("program/")}
    for name in sorted(own | shared.keys()):
        found, expected = arrays.get(name), shared.get(name)
        if found is None or expected is None or not np.array_equal(found, expected):
            raise UserError(
                "differs from that of the run to be resumed",
                where=f"{path}:{name}",
                fix=f"resume with the same program, options and versions, or delete {path.parent}",
            )
    if odd := sorted(
        name
        for name in optional_columns_of(level, OPTIONAL_COLUMNS)
        if (name.replace(".", "/") in arrays) == (name in absent)
    ):
        raise UserError(
            f"{odd[0]} is in the shards or in this run, not in both",
            where=str(path),
            fix=f"resume with the same columns, or delete {path.parent}",
        )


def cannot_write(what: str, error: OSError, num_safe: int, partial: Path, where: str) -> UserError:
    """What a failure to write is told as."""
    return UserError(
        f"{what} cannot be written: {error.strerror or error}; {describe_safe(num_safe, partial)}",
        where=where,
        fix="make room, or see to the permissions; then resume the recording"
        + (f", or keep what there is: kgverify trace repair {partial}" if num_safe else ""),
    )


def describe_safe(num_candidates: int, partial: Path) -> str:
    """What a failure did not touch."""
    if not num_candidates:
        return "nothing was safe yet"
    return f"the first {num_candidates:,} candidates are safe in {partial}"


def count_safe(partial: Path) -> tuple[int, int]:
    """Candidates and steps in the shards and the journal of a recording that did not finish."""
    try:
        manifest = read_manifest(partial)
        journal = None if manifest.is_complete else open_journal(partial, len(manifest.shards))
    except UserError:
        return 0, 0
    batches = [] if journal is None else journal.batches
    return (
        manifest.num_candidates + sum(batch.num_candidates for batch in batches),
        manifest.num_steps + sum(batch.num_steps for batch in batches),
    )


def remove_left_over(folder: Path) -> None:
    """Remove what no finished trace has: journals, and files that were given no name."""
    for path in [*list_journals(folder), *folder.glob("*.tmp")]:
        path.unlink(missing_ok=True)


def remove_partial(partial: Path) -> None:
    """Remove the folder of a recording that became one file."""
    if partial.is_dir():
        remove_left_over(partial)
        for path in partial.glob("shard-*.h5"):
            # Written by a process that was killed before the manifest listed it.
            path.unlink()
        partial.rmdir()
