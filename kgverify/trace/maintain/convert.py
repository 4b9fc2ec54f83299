"""Converting a trace: to another level, or to another packing."""

import shutil
from pathlib import Path
from typing import NamedTuple

from kgverify.errors import UserError
from kgverify.files.writing import explained, make_folder, temporary_beside
from kgverify.trace.files.manifest import (
    Shard,
    new_trace,
    put_in_place,
    read_manifest,
    render_hash,
    replace_shards,
    write_manifest,
)
from kgverify.trace.files.output_path import check_output_path, lock_trace
from kgverify.trace.hdf5.writing import Written, write_arrays
from kgverify.trace.model.levels import TraceLevel, lower_arrays, packing_of, parse_level
from kgverify.trace.model.trace import Rebuild, Trace
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write.encode import encode_trace
from kgverify.version import __version__


class Conversion(NamedTuple):
    """The result of a conversion.

    num_bytes_read, num_bytes_written: sizes of the files
    dropped: paths of data in the source that could not be kept
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
    overwrites: bool = True,
) -> Conversion:
    """Write a trace again at `target`; a folder shard by shard.

    level:   the level of the target; None for that of the source
    rebuild: restores the goals that raise a compact trace to level `steps`
    overwrites: replace a trace that exists at `target`

    Data that this version does not know are kept. UserError for a trace that cannot be read, or cannot be raised to the
    level; then nothing appears at `target`.
    """
    job = _Job(level, is_archived, rebuild)
    with lock_trace(target, overwrites=overwrites), explained(target, kept="the source is unchanged"):
        check_output_path(target)
        return _convert_folder(source, target, job) if source.is_dir() else _convert_file(source, target, job)


class _Job(NamedTuple):
    """The options of a conversion, as `convert_trace` takes them."""

    level: TraceLevel | None
    is_archived: bool
    rebuild: Rebuild | None

    def write(self, file: DataFile, trace: Trace, path: Path) -> Written:
        """Convert one file that was loaded, and write it to a path."""
        own = parse_level(trace.header.level, trace.source)
        level = self.level or own
        order = list(TraceLevel)
        if order.index(level) > order.index(own):
            if own is not TraceLevel.COMPACT or level is not TraceLevel.STEPS or self.rebuild is None:
                raise UserError(
                    f"the trace is of level {own.value!r}; the data that it left out cannot be restored at level"
                    f" {level.value!r}",
                    where=trace.source,
                    fix="record it again at that level",
                )
            trace = self.rebuild(trace)
        arrays = lower_arrays(encode_trace(trace), level) | file.read_group("shard/") | dict(trace.unknown.arrays)
        creator = trace.header.creator or f"kgverify {__version__}"
        return write_arrays(path, arrays, creator, packing_of(level, is_archived=self.is_archived))


def _convert_file(source: Path, target: Path, job: _Job) -> Conversion:
    ((file, trace),) = TraceFile(source).load_parts()
    num_bytes = source.stat().st_size
    with new_trace(target) as path:
        written = job.write(file, trace, path)
    candidates, steps, *_ = trace.columns
    return Conversion(len(candidates.query), len(steps.depth), num_bytes, written.size, trace.unknown.dropped)


def _convert_folder(source: Path, target: Path, job: _Job) -> Conversion:
    manifest, opened = read_manifest(source), TraceFile(source, is_lazy=True)
    unfinished = temporary_beside(target)
    make_folder(unfinished)
    try:
        shards: list[Shard] = []
        dropped: set[str] = set()
        for file, trace in opened.load_parts():
            name = file.path.name
            written = job.write(file, trace, unfinished / name)
            counts = len(trace.columns.candidates.query), len(trace.columns.steps.depth)
            # The digests of the sequence do not change, and so the root does not.
            shards.append(Shard(name, written.size, *counts, written.xxh3, render_hash(trace.root)))
            dropped.update(trace.unknown.dropped)
        converted = replace_shards(manifest, tuple(shards))
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
