"""Joining the traces of several writers (processes, ranks or machines) into one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kgverify.errors import UserError, count_of
from kgverify.files.writing import explained
from kgverify.trace.files.manifest import (
    Manifest,
    Shard,
    check_no_partial,
    check_output_path,
    list_shards,
    lock_trace,
    new_folder,
    partial_of,
    shard_name,
    write_manifest,
)
from kgverify.trace.maintain.check import find_duplicates, name_candidate
from kgverify.trace.model.schema import packing_of
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write.writer import encode_trace, write_shard
from kgverify.version import __version__

_SHOWN = 10
"""A message names at most this many candidates."""


def unite(
    paths: Sequence[Path | str],
    output: Path | str,
    *,
    drop_rankings: bool = False,
    overwrites: bool = True,
) -> Manifest:
    """Join several complete traces of one run into one folder of shards, in the order of their ranks, or of `paths`.

    overwrites:    replace an existing trace at `output`
    drop_rankings: leave out the rankings; otherwise only one of the traces may rank each query and side

    One shard is in memory at a time. UserError for a rank that is missing, a candidate that is doubled, traces of
    different runs, or a trace that cannot be read.
    """
    output = Path(output)
    if not paths:
        raise UserError("no trace to join", fix="give the paths of complete traces")
    opened = TraceFile(paths[0], is_lazy=True, members=[Path(path) for path in paths])
    with lock_trace(output, overwrites=overwrites), explained(output, kept="the traces to join are unchanged"):
        check_output_path(output)
        check_no_partial(partial_of(output))
        with new_folder(output) as folder:
            return _write(opened, folder, drop_rankings)


def _write(opened: TraceFile, folder: Path, drop_rankings: bool) -> Manifest:
    there = opened.candidate_columns()
    if doubled := find_duplicates(there):
        names = [name_candidate(there, first) for first, _ in doubled[:_SHOWN]]
        raise UserError(
            f"found {count_of(len(doubled), 'candidate')} more than once: {'; '.join(names)}",
            where=opened.source,
            fix="give every writer its own candidates",
        )
    creator = f"kgverify {__version__}"
    shards: list[Shard] = []
    last = max((i for i, file in enumerate(opened.files) if file.num_candidates), default=0)
    for index, (file, trace) in enumerate(opened.load_parts()):
        if not file.num_candidates and index != last:
            continue
        header = msgspec.structs.replace(trace.header, part=None)
        rankings = opened.join_rankings() if index == last and not drop_rankings else None
        arrays = encode_trace(replace(trace, header=header, rankings=rankings))
        packing = packing_of(file.level, is_archived=file.is_archived)
        pieces = {name: [array] for name, array in arrays.items()}
        shards.append(write_shard(folder, shard_name(len(shards)), pieces, creator, packing))
    manifest = list_shards(tuple(shards), is_complete=True, creator=creator)
    write_manifest(folder, manifest)
    return manifest
