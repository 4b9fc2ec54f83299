"""Converting a trace: to another level, to another packing, or from an earlier version of the schema."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kgverify import __version__
from kgverify.errors import UserError
from kgverify.trace.files.disk import make_folder
from kgverify.trace.files.manifest import (
    Manifest,
    Shard,
    check_shard,
    list_shards,
    put_in_place,
    read_manifest,
    render_hash,
    shard_name,
    write_at_once,
    write_manifest,
)
from kgverify.trace.hdf5.datasets import read_file, write_arrays
from kgverify.trace.hdf5.metadata_image import Written
from kgverify.trace.hdf5.stored_file import FileContent
from kgverify.trace.model.levels import TraceLevel, lower_arrays, packing_of, parse_level
from kgverify.trace.model.schema import Arrays
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.reader import decode_trace, read_trace
from kgverify.trace.write.rewrite import encode_trace
from kgverify.trace.write.uncommitted import read_pending

Rebuild = Callable[[Trace], Trace]
"""Gives a compact trace, or some candidates of it, its goals. UserError where its clauses do not lead to its digests."""


class Conversion(NamedTuple):
    """What was converted.

    num_bytes_read, num_bytes_written: of the files
    dropped: what the source held that could not be kept, by path
    """

    num_candidates: int
    num_steps: int
    num_bytes_read: int
    num_bytes_written: int
    dropped: tuple[str, ...]


def convert_trace(
    source: Path,
    target: Path,
    level: TraceLevel | None = None,
    *,
    is_archived: bool = False,
    rebuild: Rebuild | None = None,
) -> Conversion:
    """Write a trace again at `target`, in this version of the schema; a folder shard by shard.

    level:   None for its own
    rebuild: for raising a compact trace to `steps`

    What this version does not know of the trace is kept. UserError for a trace that cannot be read, or cannot be raised to
    the level; nothing appears at `target` then.
    """
    try:
        if source.is_dir():
            return _convert_folder(source, target, level, is_archived, rebuild)
        return _convert_file(source, target, level, is_archived, rebuild)
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror or error}; what was to be converted is untouched",
            where=str(target),
            fix="make room, or see to the permissions, then convert again",
        ) from error


def _convert_file(
    source: Path, target: Path, level: TraceLevel | None, is_archived: bool, rebuild: Rebuild | None
) -> Conversion:
    if not source.is_file():
        read_trace(source)  # says what is wrong with the path
    content = read_file(source)
    trace = decode_trace(content, str(source))
    num_bytes = source.stat().st_size
    arrays, own = _convert(content, trace, level, is_archived, rebuild)
    write_at_once(target, lambda path: _write(path, arrays, trace, own, is_archived))
    candidates, steps, *_ = trace.columns
    return Conversion(len(candidates.query), len(steps.depth), num_bytes, target.stat().st_size, trace.unknown.dropped)


def _convert(
    content: FileContent, trace: Trace, level: TraceLevel | None, is_archived: bool, rebuild: Rebuild | None
) -> tuple[Arrays, TraceLevel]:
    own = parse_level(trace.header.level, trace.source)
    level = level or own
    order = list(TraceLevel)
    if order.index(level) > order.index(own):
        if own is not TraceLevel.COMPACT or level is not TraceLevel.STEPS or rebuild is None:
            raise UserError(
                f"the trace is of level {own.value!r}, and what it left out cannot be had back at level {level.value!r}",
                where=trace.source,
                fix="record it again at that level",
            )
        trace = rebuild(trace)
    arrays = lower_arrays(encode_trace(trace), level)
    if "shard/index" in content.arrays:
        arrays["shard/index"] = content.arrays["shard/index"]
    return arrays | dict(trace.unknown.arrays), level


def _write(path: Path, arrays: Arrays, trace: Trace, level: TraceLevel, is_archived: bool) -> Written:
    creator = trace.header.creator or f"kgverify {__version__}"
    return write_arrays(path, arrays, creator, packing_of(level, is_archived=is_archived))


def _convert_folder(
    source: Path, target: Path, level: TraceLevel | None, is_archived: bool, rebuild: Rebuild | None
) -> Conversion:
    manifest = read_manifest(source)
    unfinished = target.with_name(target.name + ".converting")
    if unfinished.exists():
        raise UserError(
            "a conversion that did not finish is in the way", where=str(unfinished), fix="delete this folder"
        )
    make_folder(unfinished)
    try:
        shards: list[Shard] = []
        dropped: set[str] = set()
        for index, content in enumerate(_contents(source, manifest)):
            name = shard_name(index)
            trace = decode_trace(content, str(source / name))
            arrays, own = _convert(content, trace, level, is_archived, rebuild)
            written = _write(unfinished / name, arrays, trace, own, is_archived)
            candidates, steps, *_ = trace.columns
            counts = len(candidates.query), len(steps.depth)
            # The digests of the sequence stay, and so does the root.
            shards.append(Shard(name, written.size, *counts, written.xxh3, render_hash(trace.root)))
            dropped.update(trace.unknown.dropped)
        converted = list_shards(
            tuple(shards),
            is_complete=manifest.is_complete,
            creator=manifest.creator,
            part=manifest.part,
            has_gaps=manifest.has_gaps,
        )
        write_manifest(unfinished, converted)
        read_trace(unfinished)
        put_in_place(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return Conversion(
        converted.num_candidates,
        converted.num_steps,
        sum(path.stat().st_size for path in source.iterdir()),
        sum(shard.size for shard in shards),
        tuple(sorted(dropped)),
    )


def _contents(folder: Path, manifest: Manifest) -> Iterator[FileContent]:
    """The shards of a folder, one by one, then what its recording appended since the last."""
    for shard in manifest.shards:
        check_shard(folder, shard)
        yield read_file(folder / shard.name)
    pending = None if manifest.is_complete else read_pending(folder, len(manifest.shards))
    if pending is not None:
        yield FileContent(pending, {}, ())
