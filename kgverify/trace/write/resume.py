"""Resuming a recording that did not finish: checks that its shards and pieces are of the same run."""

from pathlib import Path

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.files.manifest import MANIFEST, Manifest, Part, read_manifest
from kgverify.trace.model.header import without_recording
from kgverify.trace.model.levels import TraceLevel, columns_kept
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, Arrays
from kgverify.trace.read.trace_file import SHARED, TraceFile


def open_unfinished(
    partial: Path, part: Part | None, shared: Arrays, absent: frozenset[str], level: TraceLevel
) -> tuple[Manifest, TraceFile] | None:
    """Open the folder of an unfinished recording; None without one. UserError if it is damaged, or of another run.

    shared: the datasets that every shard of the run repeats
    """
    if not (partial / MANIFEST).is_file() and len(list(partial.glob("shard-*.h5"))) < 2:
        # Killed before anything was committed, or there is nothing to resume.
        return None
    manifest = read_manifest(partial)
    _check_resumable(manifest, part, partial)
    trace = TraceFile(partial, is_lazy=True)
    trace.verify()
    first = trace.files[0]
    _check_same_run(first.read_group(*SHARED), frozenset(first.stored), shared, absent, level, first.path)
    return manifest, trace


def _check_resumable(manifest: Manifest, part: Part | None, partial: Path) -> None:
    """Raise a UserError for a recording that has gaps, or is another part."""
    if manifest.has_gaps:
        raise UserError(
            "candidates between those recorded were lost, so that it cannot be resumed",
            where=str(partial),
            fix="keep it under another name, and record again",
        )
    if manifest.part != part:
        found, wanted = ("no part" if p is None else f"part {p.index} of {p.count}" for p in (manifest.part, part))
        raise UserError(
            f"is {found} of a recording, expected {wanted}",
            where=str(partial),
            fix=f"resume with the same part, or delete {partial}",
        )


def _check_same_run(
    found: Arrays, stored: frozenset[str], shared: Arrays, absent: frozenset[str], level: TraceLevel, path: Path
) -> None:
    """Raise a UserError unless a file that stores these datasets is of the run with these shared arrays and columns."""
    for name in sorted(found.keys() | shared.keys()):
        own, expected = found.get(name), shared.get(name)
        is_same = own is not None and expected is not None and np.array_equal(own, expected)
        if name == "header" and own is not None and expected is not None:
            is_same = without_recording(own.tobytes()) == without_recording(expected.tobytes())
        if not is_same:
            raise UserError(
                "differs from that of the run to be resumed",
                where=f"{path}:{name}",
                fix=f"resume with the same program, options and versions, or delete {path.parent}",
            )
    if odd := sorted(
        name
        for name in OPTIONAL_COLUMNS & columns_kept(level)
        if (name.replace(".", "/") in stored) == (name in absent)
    ):
        raise UserError(
            f"{odd[0]} is in the shards or in this run, not in both",
            where=str(path),
            fix=f"resume with the same columns, or delete {path.parent}",
        )
