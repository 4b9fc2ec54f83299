"""Repairing a trace: its intact shards are linked into a new folder, which replaces the trace once it is safe on disk."""

import os
import shutil
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kgverify.errors import UserError
from kgverify.files.writing import (
    exchange,
    explained,
    make_folder,
    refuse_link,
    renamed_into,
    sync_folder,
)
from kgverify.trace.files.manifest import (
    CODE,
    MANIFEST,
    Manifest,
    Shard,
    check_output_path,
    list_shards,
    lock_trace,
    new_folder,
    new_trace,
    numbers_of,
    read_manifest,
    render_hash,
    replace_shards,
    write_manifest,
)
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.check import UNFINISHED, WHOLE, CheckReport, check_trace
from kgverify.trace.model.codec import lower_arrays
from kgverify.trace.model.schema import Arrays, Packing, TraceLevel, packing_of, parse_level
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile, check_same_run, read_trace
from kgverify.trace.write.writer import encode_trace
from kgverify.version import __version__


class Loss(msgspec.Struct, frozen=True):
    """A loss in one part of the trace; counts are None if they are unknown."""

    name: str
    reason: str
    num_candidates: int | None = None
    num_steps: int | None = None


class RepairReport(msgspec.Struct, frozen=True):
    """The result of a repair.

    is_changed:     False if nothing needed repair, and nothing was written
    num_candidates: candidates kept; `num_steps` likewise
    original:       the path to which the unrepaired trace was moved; empty if nothing was changed
    is_resumable:   whether its recording can be resumed
    """

    path: str
    is_changed: bool
    num_candidates: int
    num_steps: int
    losses: tuple[Loss, ...] = ()
    notes: tuple[str, ...] = ()
    original: str = ""
    is_resumable: bool = False


def repair_trace(path: Path | str) -> RepairReport:
    """Drop the damaged shards of a folder. A trace in one file is one shard: if it is damaged, nothing can be kept.

    UserError, with nothing changed, if there is no trace or nothing can be kept.
    """
    path = Path(path)
    try:
        lock = lock_trace(path)
    except UserError:
        # A trace that needs no repair may be locked by another process, or in a folder that cannot be written to.
        if path.exists() and not _needs_repair(found := check_trace(path)):
            return _unchanged(path, found)
        raise
    with lock, explained(path, kept="nothing was changed"):
        return _repair(path)


def _repair(path: Path) -> RepairReport:
    repaired = _beside(path, "repaired")
    if not path.exists() and repaired.exists() and _beside(path, "unrepaired").exists():
        # An earlier repair was killed between its two renames.
        refuse_link(path)
        os.rename(repaired, path)
        sync_folder(path.parent)
    found = check_trace(path)
    if not _needs_repair(found):
        return _unchanged(path, found)
    for each in (path, repaired, _beside(path, "unrepaired")):
        refuse_link(each)
    if not path.is_dir():
        raise _nothing(path, "; ".join(f"{part.name}: {part.problem}" for part in found.parts if part.problem))
    if repaired.exists():
        shutil.rmtree(repaired)
    make_folder(repaired)
    try:
        new, losses = _select(path, found)
        for shard in new.shards:
            _link(path / shard.name, repaired / shard.name)
        write_manifest(repaired, new)
        if (path / CODE).is_file():
            _link(path / CODE, repaired / CODE)
        sync_folder(repaired)
        TraceFile(repaired)
    except BaseException:
        shutil.rmtree(repaired, ignore_errors=True)
        raise
    return RepairReport(
        str(path),
        True,
        new.num_candidates,
        new.num_steps,
        losses,
        original=_swap(path, repaired),
        is_resumable=path.name.endswith(".partial") and not new.has_gaps,
    )


def _needs_repair(found: CheckReport) -> bool:
    return found.state not in (WHOLE, UNFINISHED)


def _unchanged(path: Path, found: CheckReport) -> RepairReport:
    is_resumable = found.state == UNFINISHED and path.name.endswith(".partial")
    return RepairReport(
        str(path), False, found.num_candidates, found.num_steps, notes=found.notes, is_resumable=is_resumable
    )


def _select(path: Path, found: CheckReport) -> tuple[Manifest, tuple[Loss, ...]]:
    """Return a manifest of the intact shards, and the losses."""
    manifest_state, *parts = found.parts
    if manifest_state.problem:
        shards, losses = _find_shards(path)
        whole = [numbers_of(shard.name)[0] for shard in shards if len(numbers_of(shard.name)) == 1]
        has_gaps = bool(losses) or whole != list(range(len(whole)))
        new = list_shards(shards, is_complete=False, creator="kgverify trace repair", has_gaps=has_gaps)
        return new, (Loss(MANIFEST, manifest_state.problem), *losses)
    old = read_manifest(path)
    is_intact = [not part.problem for part in parts]
    shards = tuple(compress(old.shards, is_intact))
    if not shards:
        raise _nothing(path, "; ".join(part.problem for part in parts))
    has_gaps = old.has_gaps or is_intact != sorted(is_intact, reverse=True)
    new = list_shards(shards, is_complete=False, creator=old.creator, has_gaps=has_gaps)
    return new, tuple(Loss(p.name, p.problem, p.num_candidates, p.num_steps) for p in parts if p.problem)


def _find_shards(folder: Path) -> tuple[tuple[Shard, ...], tuple[Loss, ...]]:
    """Find the shards of a folder without a manifest that are intact by their own checksums; return the rest as losses.

    A piece of a shard is left out if the whole shard was written since.
    """
    shards: list[Shard] = []
    losses: list[Loss] = []
    first: DataFile | None = None
    for path in sorted(folder.glob("shard-*.h5"), key=lambda path: numbers_of(path.name)):
        if numbers_of(path.name)[:1] in [numbers_of(shard.name) for shard in shards]:
            continue
        try:
            refuse_link(path)
            file = DataFile(path, first=None if first is None else lambda first=first: first)  # type: ignore[misc]
            check_same_run(first or file, file)
            trace = file.load()
            if file.small("shard/index").tolist() != [*numbers_of(path.name)]:
                raise UserError("is of another number", where=str(path))
            first = first or file
        except (UserError, KeyError) as error:
            losses.append(Loss(path.name, error.message if isinstance(error, UserError) else "is no shard"))
            continue
        sizes = path.stat().st_size, file.num_candidates, file.num_steps
        shards.append(Shard(path.name, *sizes, file.checksum, render_hash(trace.root)))
    if not shards:
        raise _nothing(folder, f"{MANIFEST} is damaged, and no shard is intact")
    return tuple(shards), tuple(losses)


def _swap(path: Path, repaired: Path) -> str:
    """Replace the original with the repaired trace; return the path to which the original was moved."""
    original = _beside(path, "unrepaired")
    number = 1
    while os.path.lexists(original):
        number += 1
        original = _beside(path, f"unrepaired-{number}")
    os.rename(repaired, original)
    try:
        exchange(path, original)
    except OSError:
        os.rename(original, repaired)
        os.rename(path, original)
        os.rename(repaired, path)
    sync_folder(path.parent)
    return str(original)


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f"{path.name}.{word}")


def _link(path: Path, new: Path) -> None:
    """Link a file under another name; copy it if the file system has no hard links."""
    try:
        os.link(path, new)
    except OSError:
        with renamed_into(new, is_durable=True) as temporary:
            shutil.copyfile(path, temporary)


def _nothing(path: Path, reason: str) -> UserError:
    return UserError(
        f"nothing of it can be kept: {reason}", where=str(path), fix="copy it from its source again, or record it again"
    )


class Conversion(NamedTuple):
    """The result of a conversion.

    num_bytes_read, num_bytes_written: sizes of the files
    """

    num_candidates: int
    num_steps: int
    num_bytes_read: int
    num_bytes_written: int


def convert_trace(
    source: Path,
    target: Path,
    level: TraceLevel | None = None,
    *,
    is_archived: bool = False,
    overwrites: bool = True,
) -> Conversion:
    """Write a copy of a trace at `target`, in another form; convert a folder shard by shard.

    level:      the level of the target; None for that of the source
    overwrites: replace an existing trace at `target`

    Data that the format does not name are left out. UserError for a trace that cannot be read, or is of a lower
    level; nothing appears at `target` then.
    """
    with lock_trace(target, overwrites=overwrites), explained(target, kept="the source is unchanged"):
        check_output_path(target)
        manifest = read_manifest(source) if source.is_dir() else None
        num_bytes = sum(path.stat().st_size for path in ([source] if manifest is None else source.iterdir()))
        shards: list[Shard] = []
        with new_trace(target) if manifest is None else new_folder(target) as place:
            for file, trace in TraceFile(source, is_lazy=True).load_parts():
                arrays, packing = _convert(trace, level, is_archived)
                path = place if manifest is None else place / file.path.name
                creator = trace.header.creator or f"kgverify {__version__}"
                checksum = write_arrays(path, arrays | file.read_group("shard/"), creator, packing)
                # The sequence digests do not change, so neither does the root.
                sizes = path.stat().st_size, file.num_candidates, file.num_steps
                shards.append(Shard(path.name, *sizes, render_hash(checksum), render_hash(trace.root)))
            if manifest is not None:
                write_manifest(place, replace_shards(manifest, tuple(shards)))
                read_trace(place)
    return Conversion(
        sum(shard.num_candidates for shard in shards),
        sum(shard.num_steps for shard in shards),
        num_bytes,
        sum(shard.size for shard in shards),
    )


def _convert(trace: Trace, level: TraceLevel | None, is_archived: bool) -> tuple[Arrays, Packing]:
    """Return the datasets of a trace at another level, and how they are packed."""
    own = parse_level(trace.header.level, trace.source)
    level = level or own
    order = list(TraceLevel)
    if order.index(level) > order.index(own):
        raise UserError(
            f"the trace is of level {own.value!r}; the data that it left out cannot be restored at level {level.value!r}",
            where=trace.source,
            fix="record it again at that level",
        )
    return lower_arrays(encode_trace(trace), level), packing_of(level, is_archived=is_archived)
