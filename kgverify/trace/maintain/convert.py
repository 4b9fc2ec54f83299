"""Converting a trace: to another level, or to another packing."""

from pathlib import Path
from typing import NamedTuple

from kgverify.errors import UserError
from kgverify.files.writing import explained
from kgverify.trace.files.manifest import (
    Shard,
    new_folder,
    new_trace,
    read_manifest,
    render_hash,
    replace_shards,
    write_manifest,
)
from kgverify.trace.files.output_path import check_output_path, lock_trace
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.levels import Packing, TraceLevel, lower_arrays, packing_of, parse_level
from kgverify.trace.model.schema import Arrays
from kgverify.trace.model.trace import Rebuild, Trace
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
    with lock_trace(target, overwrites=overwrites), explained(target, kept="the source is unchanged"):
        check_output_path(target)
        manifest = read_manifest(source) if source.is_dir() else None
        num_bytes = sum(path.stat().st_size for path in ([source] if manifest is None else source.iterdir()))
        shards: list[Shard] = []
        dropped: set[str] = set()
        with new_trace(target) if manifest is None else new_folder(target) as place:
            for file, trace in TraceFile(source, is_lazy=True).load_parts():
                arrays, packing = _convert(trace, level, is_archived, rebuild)
                path = place if manifest is None else place / file.path.name
                creator = trace.header.creator or f"kgverify {__version__}"
                checksum = write_arrays(path, arrays | file.read_group("shard/"), creator, packing)
                # The digests of the sequence do not change, and so the root does not.
                sizes = path.stat().st_size, file.num_candidates, file.num_steps
                shards.append(Shard(path.name, *sizes, render_hash(checksum), render_hash(trace.root)))
                dropped.update(trace.unknown.dropped)
            if manifest is not None:
                write_manifest(place, replace_shards(manifest, tuple(shards)))
                read_trace(place)
    return Conversion(
        sum(shard.num_candidates for shard in shards),
        sum(shard.num_steps for shard in shards),
        num_bytes,
        sum(shard.size for shard in shards),
        tuple(sorted(dropped)),
    )


def _convert(
    trace: Trace, level: TraceLevel | None, is_archived: bool, rebuild: Rebuild | None
) -> tuple[Arrays, Packing]:
    """Return the datasets of a trace at another level, and how they are packed."""
    own = parse_level(trace.header.level, trace.source)
    level = level or own
    order = list(TraceLevel)
    if order.index(level) > order.index(own):
        if own is not TraceLevel.COMPACT or level is not TraceLevel.STEPS or rebuild is None:
            raise UserError(
                f"the trace is of level {own.value!r}; the data that it left out cannot be restored at level"
                f" {level.value!r}",
                where=trace.source,
                fix="record it again at that level",
            )
        trace = rebuild(trace)
    arrays = lower_arrays(encode_trace(trace), level) | dict(trace.unknown.arrays)
    return arrays, packing_of(level, is_archived=is_archived)
