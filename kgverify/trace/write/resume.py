"""Resuming a recording that did not finish: its shards, its journal, and checks that they are of the same run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.journal import Journal, list_journals, open_journal
from kgverify.trace.files.manifest import MANIFEST, Manifest, Part, check_shard, read_manifest, shard_name
from kgverify.trace.hdf5.reading import load_arrays, locate_arrays
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.header import without_recording
from kgverify.trace.model.levels import TraceLevel, columns_kept
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, Arrays, decode_columns


class UnfinishedRecording(NamedTuple):
    """The shards and the journal of a recording that did not finish.

    candidates:  candidates of each shard
    score_dtype: type of its scores, if it has shards with scores
    journal:     the batches appended since the last shard, if there are any
    header:      its header, with the id of its recording; None if nothing was recorded
    """

    manifest: Manifest
    candidates: Sequence[Candidates]
    score_dtype: "np.dtype[np.floating[Any]] | None"
    journal: Journal | None
    header: NDArray[np.generic] | None = None


def read_unfinished(
    partial: Path, nothing: Manifest, part: Part | None, shared: Arrays, absent: frozenset[str], level: TraceLevel
) -> UnfinishedRecording:
    """Read the folder of an unfinished recording. UserError if it is damaged, or of another run.

    nothing: the manifest of no shards
    shared:  the datasets that every shard of the run repeats
    """
    if not partial.is_dir() or not any(partial.iterdir()):
        # Killed before anything was appended, or there is nothing to resume.
        return UnfinishedRecording(nothing, [], None, None)
    has_manifest = (partial / MANIFEST).is_file() or bool(list_journals(partial))
    manifest = read_manifest(partial) if has_manifest else nothing
    _check_resumable(manifest, part, partial)
    candidates: list[Candidates] = []
    score_dtype: np.dtype[np.floating[Any]] | None = None
    header: NDArray[np.generic] | None = None
    for shard in manifest.shards:
        check_shard(partial, shard)
        path = partial / shard.name
        arrays, _ = load_arrays(path, locate_arrays(path))
        if shard.name == shard_name(0):
            _check_same_run(arrays, shared, absent, level, path)
            header = arrays["header"]
        columns = decode_columns(arrays)
        candidates.append(columns.candidates)
        if "resolvents/score" in arrays:
            score_dtype = columns.resolvents.score.dtype
    journal = None if manifest.is_complete else open_journal(partial, len(manifest.shards))
    if journal is None or journal.start is None:
        return UnfinishedRecording(manifest, candidates, score_dtype, None, header)
    stated = {name.replace(".", "/"): np.zeros(0) for name in OPTIONAL_COLUMNS - {*journal.start.absent}}
    _check_same_run(journal.shared | stated, shared, absent, level, journal.path)
    return UnfinishedRecording(manifest, candidates, score_dtype, journal, journal.shared["header"])


def _check_resumable(manifest: Manifest, part: Part | None, partial: Path) -> None:
    """Raise a UserError for a recording that has gaps, or is another part."""
    if manifest.has_gaps:
        raise UserError(
            "candidates between those recorded were lost, so that it cannot be resumed",
            where=str(partial),
            fix="keep it under another name, and record again",
        )
    if manifest.shards and manifest.part != part:
        found, wanted = ("no part" if p is None else f"part {p.index} of {p.count}" for p in (manifest.part, part))
        raise UserError(
            f"is {found} of a recording, expected {wanted}",
            where=str(partial),
            fix=f"resume with the same part, or delete {partial}",
        )


def _check_same_run(arrays: Arrays, shared: Arrays, absent: frozenset[str], level: TraceLevel, path: Path) -> None:
    """Raise a UserError unless a file is of the run with these shared arrays, absent columns and level."""
    own = {name for name in arrays if name in shared or name.startswith("program/")}
    for name in sorted(own | shared.keys()):
        found, expected = arrays.get(name), shared.get(name)
        is_same = found is not None and expected is not None and np.array_equal(found, expected)
        if name == "header" and found is not None and expected is not None:
            is_same = without_recording(found.tobytes()) == without_recording(expected.tobytes())
        if not is_same:
            raise UserError(
                "differs from that of the run to be resumed",
                where=f"{path}:{name}",
                fix=f"resume with the same program, options and versions, or delete {path.parent}",
            )
    if odd := sorted(
        name
        for name in OPTIONAL_COLUMNS & columns_kept(level)
        if (name.replace(".", "/") in arrays) == (name in absent)
    ):
        raise UserError(
            f"{odd[0]} is in the shards or in this run, not in both",
            where=str(path),
            fix=f"resume with the same columns, or delete {path.parent}",
        )
