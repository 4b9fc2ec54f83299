"""Repairing a trace: its intact part is written beside it, and replaces it only when it is safe on disk."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.files.writing import (
    exchange,
    explained,
    make_folder,
    refuse_link,
    remove_tree,
    renamed_into,
    sync_folder,
)
from kgverify.trace.files.journal import Journal, gather, list_journals, read_journal
from kgverify.trace.files.manifest import (
    CODE,
    MANIFEST,
    Manifest,
    Shard,
    check_shard,
    list_shards,
    read_manifest,
    shard_name,
    write_manifest,
)
from kgverify.trace.files.output_path import lock_trace
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.check import UNFINISHED, WHOLE, check_trace
from kgverify.trace.maintain.salvage import Salvage, salvage
from kgverify.trace.model.levels import Packing, level_of, packing_of
from kgverify.trace.model.schema import Arrays
from kgverify.trace.read.data_file import DataFile, open_shard
from kgverify.trace.read.trace_file import SHARED, check_root, check_same_run, read_trace
from kgverify.trace.write.shards import write_shard


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
    original:       path to which the unrepaired trace was moved; empty if nothing was lost
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
    """Recover the part of a file or a folder that its checksums prove intact, up to the last commit of a recording.

    UserError if there is no trace, or nothing can be kept; then nothing is changed.
    """
    path = Path(path)
    try:
        lock = lock_trace(path)
    except UserError:
        # A trace that needs no repair may be another process's, or in a folder where nothing can be written.
        if path.exists() and (unchanged := _check(path)):
            return unchanged
        raise
    with lock, explained(path, kept="nothing was changed"):
        return _repair(path)


def _repair(path: Path) -> RepairReport:
    repaired, exists = _beside(path, "repaired"), path.exists()
    if exists and (unchanged := _check(path)):
        return unchanged
    for each in (path, repaired, _beside(path, "unrepaired")):
        refuse_link(each)
    if not exists:
        if repaired.exists() and _beside(path, "unrepaired").exists():
            # A repair was killed between its two renames.
            os.rename(repaired, path)
            sync_folder(path.parent)
        if unchanged := _check(path):
            return unchanged
    return _repair_folder(path, repaired) if path.is_dir() else _repair_file(path, repaired)


def _check(path: Path) -> RepairReport | None:
    """Return the report of a trace that needs no repair; None for any other."""
    found = check_trace(path)
    has_leftovers = path.is_dir() and (list_journals(path) or any(path.glob("*.tmp")))
    if found.state not in (WHOLE, UNFINISHED) or has_leftovers:
        return None
    is_resumable = found.state == UNFINISHED and path.name.endswith(".partial")
    return RepairReport(
        str(path), False, found.num_candidates, found.num_steps, notes=found.notes, is_resumable=is_resumable
    )


def _repair_file(path: Path, repaired: Path) -> RepairReport:
    found = salvage(path)
    if not found.arrays or (not len(found.rows) and found.num_candidates):
        raise _nothing(path, found.reason)
    loss = _loss_of(path.name, found)
    arrays: dict[str, Any] = dict(found.arrays)
    if loss is not None and loss.num_candidates and "shard/index" not in arrays:
        # A file that lacks candidates is not a whole trace.
        arrays["shard/index"] = np.zeros(1, np.uint64)
    creator = "kgverify trace repair"
    with renamed_into(repaired, is_durable=True) as temporary:
        write_arrays(temporary, arrays, creator, found.packing)
    read_trace(repaired)
    losses = () if loss is None else (loss,)
    original = _swap(path, repaired, has_losses=True)
    num_steps = int(found.arrays["candidates/num_steps"].sum(dtype=np.int64))
    return RepairReport(str(path), True, len(found.rows), num_steps, losses, (found.reason,), original)


@dataclass
class _Rebuilt:
    """The repaired folder so far.

    first: the first file kept, with which the others must agree
    """

    source: Path
    folder: Path
    creator: str
    first: DataFile | None = None
    shards: list[Shard] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_lost: bool = False
    has_gaps: bool = False

    def lose(self, loss: Loss) -> None:
        """Add a loss; if it lost candidates, the next shard follows a gap."""
        self.losses.append(loss)
        self.has_lost = self.has_lost or loss.num_candidates != 0

    def link(self, path: Path, shard: Shard) -> None:
        """Keep an intact shard under its number: link the same file."""
        self.has_gaps |= self.has_lost
        _link(path, self.folder / shard.name)
        self.shards.append(shard)

    def keep(self, path: Path, arrays: Arrays, packing: Packing) -> None:
        """Keep arrays as the next shard. UserError if they are of another run."""
        file = DataFile(path, arrays=arrays)
        check_same_run(self.first or file, file)
        file.load()
        self.first = self.first or file
        self.has_gaps |= self.has_lost
        parts = {name: [array] for name, array in arrays.items() if name != "shard/index"}
        self.shards.append(write_shard(self.folder, len(self.shards), parts, self.creator, packing))


def _repair_folder(path: Path, repaired: Path) -> RepairReport:
    try:
        manifest: Manifest | None = read_manifest(path)
    except UserError as error:
        manifest, reason = None, error.message
    if repaired.exists():
        # A repair that did not finish left it.
        shutil.rmtree(repaired)
    make_folder(repaired)
    try:
        rebuilt = _Rebuilt(path, repaired, (manifest.creator if manifest else "") or "kgverify trace repair")
        if manifest is None:
            rebuilt.lose(Loss(MANIFEST, f"{reason}; what shards there were is known from their files alone", 0, 0))
            _rebuild_from_files(rebuilt)
        else:
            for index, shard in enumerate(manifest.shards):
                _rebuild_shard(rebuilt, index, path / shard.name, shard)
            if not manifest.is_complete:
                _rebuild_journal(rebuilt, len(manifest.shards))
        if not rebuilt.shards and rebuilt.losses:
            raise _nothing(path, "; ".join(f"{loss.name}: {loss.reason}" for loss in rebuilt.losses))
        new = list_shards(
            tuple(rebuilt.shards),
            is_complete=manifest is not None and manifest.is_complete and not rebuilt.has_lost,
            creator=rebuilt.creator,
            part=manifest.part if manifest else None,
            has_gaps=rebuilt.has_gaps or (manifest is not None and manifest.has_gaps),
        )
        if new.shards:
            write_manifest(repaired, new)
            for shard in new.shards:
                check_shard(repaired, shard)
        if (path / CODE).is_file():
            _link(path / CODE, repaired / CODE)
        sync_folder(repaired)
    except BaseException:
        shutil.rmtree(repaired, ignore_errors=True)
        raise
    original = _swap(path, repaired, has_losses=bool(rebuilt.losses))
    return RepairReport(
        str(path),
        True,
        new.num_candidates,
        new.num_steps,
        tuple(rebuilt.losses),
        tuple(rebuilt.notes),
        original,
        is_resumable=path.name.endswith(".partial") and not new.has_gaps,
    )


def _rebuild_shard(rebuilt: _Rebuilt, index: int, path: Path, shard: Shard | None) -> None:
    """Keep the intact part of a shard, which is this one in the manifest; None without a manifest."""
    reason = ""
    if shard is not None:
        try:
            check_shard(rebuilt.source, shard)
            file = open_shard(rebuilt.source, index, shard)
            check_same_run(rebuilt.first or file, file)
            check_root(file.load().root, shard, path)
            rebuilt.first = rebuilt.first or file
        except UserError as error:
            reason = error.message
        if not reason and index == len(rebuilt.shards):
            rebuilt.link(path, shard)
            return
    is_missing = path.is_symlink() or not path.exists()
    found = Salvage({}, reason or "missing") if is_missing else salvage(path)
    counts = (found.num_candidates, found.num_steps) if shard is None else (shard.num_candidates, shard.num_steps)
    lost_all = Loss(path.name, found.reason or reason or "of another number", *counts)
    if not found.arrays or (reason and not len(found.rows)) or (found.number != index and shard is None):
        rebuilt.lose(lost_all)
    elif shard is not None and (found.number != index or found.num_candidates != shard.num_candidates):
        where = "of no shard" if found.number is None else f"of shard {found.number}"
        rebuilt.lose(msgspec.structs.replace(lost_all, reason=f"the file is {where}, or not the one committed"))
    else:
        if (loss := _loss_of(path.name, found)) is not None:
            rebuilt.lose(loss)
        elif reason:
            rebuilt.lose(
                Loss(path.name, f"{found.reason or reason}; by its own checksums it is intact, and kept", 0, 0)
            )
        try:
            rebuilt.keep(path, found.arrays, found.packing)
        except UserError as error:
            rebuilt.lose(msgspec.structs.replace(lost_all, reason=error.message))


def _rebuild_journal(rebuilt: _Rebuilt, index: int) -> None:
    """Turn the journal of the next shard into a shard."""
    for path in list_journals(rebuilt.source):
        if int(path.name[8:]) != index:
            rebuilt.notes.append(f"{path.name} is in the shards already")
            continue
        journal = read_journal(path)
        # The counts of the last commit, less what was found up to it, less the losses whose counts are known.
        rest = _missing(journal)
        for damage in journal.damages:
            counts = damage.num_candidates, damage.num_steps
            if damage.was_committed:
                if counts[0] is None:
                    counts, rest = rest, (0, 0)
                rebuilt.lose(Loss(path.name, f"{damage.message}, at byte {damage.offset}", *counts))
            else:
                what = "" if counts[0] is None else f": {counts[0]} candidates, {counts[1]} steps"
                rebuilt.notes.append(
                    f"{path.name}: a batch at byte {damage.offset} that was never confirmed is dropped{what}"
                )
        if journal.batches:
            if journal.start is not None:
                is_archived = journal.start.is_archived
            elif rebuilt.shards:
                # A shard that was kept repeats what the first frame held.
                found = salvage(rebuilt.folder / rebuilt.shards[0].name)
                is_archived = found.is_archived
                journal.shared = {n: array for n, array in found.arrays.items() if n.startswith(SHARED)}
            else:
                raise UserError(
                    "its first frame is damaged, and no shard holds a copy of it", where=str(rebuilt.source)
                )
            try:
                level = level_of(journal.shared["header"], str(path))
                rebuilt.keep(path, gather(journal), packing_of(level, is_archived=is_archived))
            except (UserError, ValueError, LookupError, TypeError) as error:
                rebuilt.lose(Loss(path.name, str(error), *journal.count()))


def _missing(journal: Journal) -> tuple[int, int]:
    num_candidates, num_steps = journal.count(journal.num_batches)
    known = [damage for damage in journal.damages if damage.was_committed]
    return (
        max(0, journal.num_candidates - num_candidates - sum(damage.num_candidates or 0 for damage in known)),
        max(0, journal.num_steps - num_steps - sum(damage.num_steps or 0 for damage in known)),
    )


def _rebuild_from_files(rebuilt: _Rebuilt) -> None:
    """Rebuild without a manifest: shards in order of their numbers, then the journal of the one after the last."""
    files = {int(p.stem[6:]): p for p in rebuilt.source.glob("shard-*.h5") if p.stem[6:].isdigit()}
    num_files = max(files, default=-1) + 1
    journals = {int(p.name[8:]) for p in list_journals(rebuilt.source)}
    for index in range(num_files):
        path = files.get(index, rebuilt.source / shard_name(index))
        if index in journals and path.is_file() and not path.is_symlink() and salvage(path).number != index:
            # The file was not finished; the journal has its batches.
            _rebuild_journal(rebuilt, index)
            return
        _rebuild_shard(rebuilt, index, path, None)
    _rebuild_journal(rebuilt, num_files)


def _loss_of(name: str, found: Salvage) -> Loss | None:
    """Return the loss in a salvaged file; None if there is no loss."""
    if found.num_candidates is None or found.num_steps is None:
        return Loss(name, found.reason)
    kept_steps = int(found.arrays["candidates/num_steps"].sum(dtype=np.int64))
    lost = found.num_candidates - len(found.rows), found.num_steps - kept_steps
    columns = [path for path in found.dropped if not path.startswith("digests/")]
    if not lost[0] and not columns:
        return None
    reason = found.reason + (f"; dropped for all candidates: {', '.join(columns)}" if columns else "")
    return Loss(name, reason, *lost)


def _swap(path: Path, repaired: Path, *, has_losses: bool) -> str:
    """Replace the original by the repaired trace; return the path to which the original was moved, if it is kept."""
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
    if has_losses:
        return str(original)
    # The new one holds everything.
    remove_tree(original)
    return ""


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f"{path.name}.{word}")


def _link(path: Path, new: Path) -> None:
    """Link the same file under another name; copy it if the file system has no hard links."""
    try:
        os.link(path, new)
    except OSError:
        with renamed_into(new, is_durable=True) as temporary:
            shutil.copyfile(path, temporary)


def _nothing(path: Path, reason: str) -> UserError:
    return UserError(
        f"nothing of it can be kept: {reason}", where=str(path), fix="copy it from its source again, or record it again"
    )
