"""Resuming a recording that did not finish: its shards and pieces, and checks that they are of the same run."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.manifest import MANIFEST, Manifest, Part, numbers_of, read_manifest
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.header import without_recording
from kgverify.trace.model.levels import TraceLevel, columns_kept
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, SEQUENCE, Arrays, decode_columns, encode_columns
from kgverify.trace.read.trace_file import SHARED, TraceFile


class UnfinishedRecording(NamedTuple):
    """The content of a recording that did not finish.

    candidates:  all that were recorded
    score_dtype: type of its scores, if it has any
    pieces:      the columns and digests of each piece of the next shard
    header:      its header, with the id of its recording
    """

    manifest: Manifest
    candidates: Candidates
    score_dtype: "np.dtype[np.floating[Any]] | None"
    pieces: list[Arrays]
    header: NDArray[np.generic]


def read_unfinished(
    partial: Path, part: Part | None, shared: Arrays, absent: frozenset[str], level: TraceLevel
) -> UnfinishedRecording | None:
    """Read the folder of an unfinished recording; None without one. UserError if it is damaged, or of another run.

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
    pieces: list[Arrays] = []
    for file, shard in zip(trace.files, manifest.shards, strict=True):
        if len(numbers_of(shard.name)) > 1:
            arrays = file.load_arrays()
            pieces.append(encode_columns(decode_columns(arrays), absent) | {SEQUENCE: arrays[SEQUENCE]})
    has_scores = "resolvents/score" in first.stored
    score_dtype = first.dtype("resolvents/score") if has_scores else None
    return UnfinishedRecording(manifest, trace.candidate_columns(), score_dtype, pieces, first.small("header"))


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
