"""Taking up a recording that did not finish: its shards, and what it appended since."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgverify.trace.files.journal import Journal, list_journals
from kgverify.trace.files.manifest import MANIFEST, Manifest, Part, check_shard, read_manifest, shard_name
from kgverify.trace.files.output_path import check_resumable, check_same_run
from kgverify.trace.hdf5.datasets import read_arrays
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, Arrays, decode_columns
from kgverify.trace.write.uncommitted import open_journal


class TakenUp(NamedTuple):
    """What a recording left.

    candidates:  of each shard
    score_dtype: of its scores, if it has shards with scores
    journal:     with what was appended since the last shard, if there is any
    """

    manifest: Manifest
    candidates: Sequence[Candidates]
    score_dtype: "np.dtype[np.floating[Any]] | None"
    journal: Journal | None


def take_up(
    partial: Path, nothing: Manifest, part: Part | None, shared: Arrays, absent: frozenset[str], level: TraceLevel
) -> TakenUp:
    """Look at what a recording left in its folder. UserError if that is damaged, or of another run.

    nothing: the manifest of no shards
    shared:  what every shard of the run repeats
    """
    if not partial.is_dir() or not any(partial.iterdir()):
        # Killed before anything was appended, or there is nothing to resume.
        return TakenUp(nothing, [], None, None)
    has_manifest = (partial / MANIFEST).is_file() or bool(list_journals(partial))
    manifest = read_manifest(partial) if has_manifest else nothing
    check_resumable(manifest, part, partial)
    candidates: list[Candidates] = []
    score_dtype: np.dtype[np.floating[Any]] | None = None
    for shard in manifest.shards:
        check_shard(partial, shard)
        arrays = read_arrays(partial / shard.name)
        if shard.name == shard_name(0):
            check_same_run(arrays, shared, absent, level, partial / shard.name)
        columns = decode_columns(arrays)
        candidates.append(columns.candidates)
        if "resolvents/score" in arrays:
            score_dtype = columns.resolvents.score.dtype
    journal = None if manifest.is_complete else open_journal(partial, len(manifest.shards))
    if journal is None or journal.start is None:
        return TakenUp(manifest, candidates, score_dtype, None)
    stated = {name.replace(".", "/"): np.zeros(0) for name in OPTIONAL_COLUMNS - {*journal.start.absent}}
    check_same_run(journal.shared | stated, shared, absent, level, journal.path)
    return TakenUp(manifest, candidates, score_dtype, journal)
