"""The journal of a recording: what was appended since its last shard, in frames that vouch for themselves.

A frame is a head of 64 bytes, with a checksum of its own, and a payload with another. The first frame holds what
every shard repeats, a batch the columns of one append, a commit frame nothing but the totals so far: it is written
right before the file is forced to disk. Thus a reader can tell a torn end, which nobody was promised, from damage.
"""

import math
import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash

from kgverify.errors import UserError
from kgverify.trace.files.disk import Buffer, bytes_of, sync, sync_folder, write_all
from kgverify.trace.model.schema import FIELD_OF, Arrays

_MAGIC: Final = b"KGVJRNL1"
_HEAD: Final = struct.Struct("<8sIIQQQQQ")  # magic, kind, 0, number, payload bytes, candidates, steps, payload's xxh3
_SUM: Final = struct.Struct("<Q")
_HEAD_BYTES: Final = _HEAD.size + _SUM.size
_ALIGN: Final = 8


class _Kind(IntEnum):
    START = 0
    BATCH = 1
    COMMIT = 2


class _Entry(msgspec.Struct, frozen=True):
    path: str
    dtype: str
    shape: tuple[int, ...]


class Start(msgspec.Struct, frozen=True):
    """What a journal says of its recording.

    shard:  number of the shard that its batches are to become
    absent: columns that are not written, named as in `Trace.fields`
    is_archived: the shard will be packed as small as HDF5's own filters can
    """

    shard: int
    creator: str
    absent: tuple[str, ...]
    is_archived: bool = False


class _Directory(msgspec.Struct, frozen=True):
    entries: tuple[_Entry, ...]
    start: Start | None = None


class _Head(NamedTuple):
    kind: int
    number: int
    num_bytes: int
    num_candidates: int
    num_steps: int
    checksum: int


class Batch(NamedTuple):
    """The arrays of one append, by path; views of the file."""

    arrays: Arrays
    num_candidates: int
    num_steps: int


@dataclass(frozen=True)
class Damage:
    """Bytes that are no frame.

    was_committed:  a later frame says that these bytes were on disk: they were altered since
    num_candidates: in the batch that was there; None if that cannot be told
    """

    offset: int
    num_bytes: int
    message: str
    was_committed: bool
    num_candidates: int | None = None
    num_steps: int | None = None


@dataclass
class Journal:
    """What could be read of a journal's file.

    start:          None if the first frame is damaged or torn
    shared:         the arrays that every shard repeats
    end:            bytes up to the end of the last good frame
    num_candidates: of all batches up to the last commit frame, as it says; `num_steps` as well
    num_batches:    found up to there
    """

    path: Path
    start: Start | None = None
    shared: Arrays = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    end: int = 0
    num_frames: int = 0
    salt: int = 0
    num_candidates: int = 0
    num_steps: int = 0
    num_batches: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether something that was committed cannot be read."""
        return any(damage.was_committed for damage in self.damages)


def journal_name(shard: int) -> str:
    """The name of the journal whose batches are to become this shard."""
    return f"journal-{shard:05d}"


def list_journals(folder: Path) -> list[Path]:
    """Every journal in a folder."""
    return sorted(path for path in folder.glob("journal-*") if path.name[8:].isdigit())


class JournalWriter:
    """Appends frames to a journal.

    max_seconds, max_bytes: of what was appended since, `append` forces to disk at the latest when so much time has
    passed since the last time, or so many bytes have come. This bounds what a crash of the machine can lose; what
    `append` has returned from, a kill of the process alone does not lose at all.
    """

    def __init__(self, path: Path, *, max_seconds: float, max_bytes: int) -> None:
        self._path = path
        self._max_seconds, self._max_bytes = max_seconds, max_bytes
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._end = self._num_frames = self._salt = 0
        self._num_candidates = self._num_steps = 0
        self._num_unsynced = 0
        self._is_doubtful = False
        self._synced_at = time.monotonic()

    def begin(self, start: Start, shared: Arrays) -> None:
        """Write the first frame, and see the file's name safely on disk."""
        os.ftruncate(self._descriptor, 0)
        payload = _encode(shared, start)
        self._write(_Kind.START, payload)
        sync(self._descriptor)
        sync_folder(self._path.parent)
        self._num_unsynced, self._synced_at = 0, time.monotonic()

    def go_on(self, journal: Journal) -> None:
        """Go on behind the last good frame of a journal that is not damaged."""
        os.ftruncate(self._descriptor, journal.end)
        self._end, self._num_frames, self._salt = journal.end, journal.num_frames, journal.salt
        self._num_candidates = sum(batch.num_candidates for batch in journal.batches)
        self._num_steps = sum(batch.num_steps for batch in journal.batches)
        self._num_unsynced = 1
        self.sync()

    def append(self, arrays: Arrays, num_candidates: int, num_steps: int) -> bool:
        """Write a batch; whether it, and all before, was forced to disk. OSError leaves the journal as it was."""
        self._write(_Kind.BATCH, _encode(arrays), num_candidates, num_steps)
        self._num_candidates += num_candidates
        self._num_steps += num_steps
        is_due = time.monotonic() - self._synced_at >= self._max_seconds
        if is_due or self._num_unsynced >= self._max_bytes:
            self.sync()
            return True
        return False

    def sync(self) -> None:
        """Commit: force all to disk. Nothing if nothing came since the last time."""
        if not self._num_unsynced:
            return
        self._write(_Kind.COMMIT, [], self._num_candidates, self._num_steps)
        self._force()
        self._num_unsynced, self._synced_at = 0, time.monotonic()

    def save(self) -> bool:
        """After a failure: force to disk what is there; whether that could be done."""
        if self._is_doubtful or self._descriptor < 0:
            return False
        try:
            self.sync()
        except OSError:
            # The commit frame found no room. The batches may be there all the same.
            with suppress(OSError):
                self._force()
        return not self._is_doubtful

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, kind: _Kind, payload: Sequence[Buffer], num_candidates: int = 0, num_steps: int = 0) -> None:
        checksum = xxhash.xxh3_64()
        for buffer in payload:
            checksum.update(buffer)
        total = sum(len(buffer) for buffer in payload)
        head = _HEAD.pack(_MAGIC, kind, 0, self._num_frames, total, num_candidates, num_steps, checksum.intdigest())
        salt = 0 if kind is _Kind.START else self._salt
        frame = [head, _SUM.pack(xxhash.xxh3_64_intdigest(head, salt)), *payload]
        try:
            end = write_all(self._descriptor, frame, self._end)
        except BaseException:
            # What has no room leaves no torn end behind, either.
            self._cut()
            raise
        if kind is _Kind.START:
            self._salt = checksum.intdigest()
        self._num_unsynced += end - self._end
        self._end = end
        self._num_frames += 1

    def _force(self) -> None:
        # After a failure a second call may succeed, and says nothing of what the first lost.
        self._is_doubtful = True
        sync(self._descriptor)
        self._is_doubtful = False

    def _cut(self) -> None:
        # A reader drops a torn end in any case.
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._end)


def read_journal(path: Path) -> Journal:
    """Read a journal as far as its checksums vouch for it. UserError if the file cannot be read."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            content: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path), fix="check its permissions") from error
    journal = Journal(path)
    view = memoryview(content)
    damages: list[tuple[Damage, tuple[int, int, int]]] = []
    position = committed_to = 0
    is_lost = False

    def damage(length: int, message: str, head: _Head | None = None) -> None:
        counts = (head.num_candidates, head.num_steps) if head and head.kind == _Kind.BATCH else (None, None)
        here = (len(journal.batches), journal.end, journal.num_frames)
        damages.append((Damage(position, length, message, False, *counts), here))

    while position < size:
        head = _read_head(view, position, journal)
        if head is None and position:
            following = _find_head(content, view, position + 1, journal)
            damage(following - position, "bytes that are no frame")
            position, is_lost = following, True
            continue
        if head is None:
            damage(size, "its first frame is cut off or damaged")
            # The first frame is on disk before anything is appended: only zeros, or less than a head, may be a tear.
            committed_to = size if size >= _HEAD_BYTES and bytes(view).strip(b"\0") else 0
            break
        if head.number > journal.num_frames and not is_lost:
            damage(0, f"frames {journal.num_frames} to {head.number - 1} are gone")
        end = position + _HEAD_BYTES + head.num_bytes
        if end > size:
            damage(size - position, f"a frame of {end - position} bytes, of which {size - position} are there", head)
            break
        payload = view[position + _HEAD_BYTES : end]
        if head.kind == _Kind.START:
            journal.salt = head.checksum
        if xxhash.xxh3_64_intdigest(payload) != head.checksum or not _take(journal, head, payload):
            damage(end - position, "a frame whose checksum does not fit", head)
        else:
            journal.end = end
            if head.kind == _Kind.COMMIT:
                committed_to = end
                journal.num_candidates, journal.num_steps = head.num_candidates, head.num_steps
                journal.num_batches = len(journal.batches)
        journal.num_frames, is_lost = head.number + 1, False
        position = end
    if journal.start is None and journal.batches:
        committed_to = journal.end
    journal.damages = [replace(each, was_committed=each.offset < committed_to) for each, _ in damages]
    for each, (num_batches, end, num_frames) in zip(journal.damages, [here for _, here in damages], strict=True):
        if not each.was_committed:
            # What follows a tear was never promised: after a crash it may have reached the disk by chance.
            journal.batches, journal.end, journal.num_frames = journal.batches[:num_batches], end, num_frames
            break
    return journal


def _read_head(view: memoryview, position: int, journal: Journal) -> _Head | None:
    raw = bytes(view[position : position + _HEAD_BYTES])
    if len(raw) < _HEAD_BYTES:
        return None
    magic, kind, _, *numbers = _HEAD.unpack_from(raw)
    (stored,) = _SUM.unpack_from(raw, _HEAD.size)
    is_first = position == 0
    if magic != _MAGIC or stored != xxhash.xxh3_64_intdigest(raw[: _HEAD.size], 0 if is_first else journal.salt):
        return None
    head = _Head(kind, *numbers)
    if is_first != (kind == _Kind.START) or kind > _Kind.COMMIT or head.number < journal.num_frames:
        return None
    return head


def _find_head(content: Any, view: memoryview, position: int, journal: Journal) -> int:
    while (position := content.find(_MAGIC, position)) >= 0:
        if _read_head(view, position, journal) is not None:
            return position
        position += 1
    return len(view)


def _take(journal: Journal, head: _Head, payload: memoryview) -> bool:
    """Keep what a frame holds; whether it could be decoded."""
    if head.kind == _Kind.COMMIT:
        return True
    decoded = _decode(payload)
    if decoded is None:
        return False
    arrays, start = decoded
    if head.kind == _Kind.BATCH:
        journal.batches.append(Batch(arrays, head.num_candidates, head.num_steps))
    elif start is not None:
        journal.start, journal.shared = start, arrays
    return head.kind == _Kind.BATCH or start is not None


def _encode(arrays: Arrays, start: Start | None = None) -> list[Buffer]:
    """A directory, then the arrays, each on an 8-byte boundary."""
    little = {path: np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for path, a in arrays.items()}
    entries = tuple(_Entry(path, a.dtype.str, a.shape) for path, a in little.items())
    directory = msgspec.json.encode(_Directory(entries, start))
    buffers: list[Buffer] = [_SUM.pack(len(directory)), directory, bytes(-len(directory) % _ALIGN)]
    for array in little.values():
        buffers += [bytes_of(array), bytes(-array.nbytes % _ALIGN)]
    return buffers


def _decode(payload: memoryview) -> tuple[Arrays, Start | None] | None:
    """The reverse of `_encode`; None for what it did not make. Arrays are views of the payload."""
    if len(payload) < _SUM.size:
        return None
    (length,) = _SUM.unpack_from(payload)
    position = _SUM.size + length
    if position > len(payload):
        return None
    try:
        directory = msgspec.json.decode(payload[_SUM.size : position], type=_Directory)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    arrays: Arrays = {}
    for entry in directory.entries:
        known = FIELD_OF.get(entry.path)
        position += -position % _ALIGN
        if known is None or entry.dtype not in [np.dtype(d).str for d in known.dtypes]:
            return None
        if len(entry.shape) != 1 + bool(known.width) or entry.shape[1:] not in ((), (known.width,)):
            return None
        if min(entry.shape) < 0:
            return None
        count = math.prod(entry.shape)
        num_bytes = count * np.dtype(entry.dtype).itemsize
        if num_bytes > len(payload) - position:
            return None
        arrays[entry.path] = np.frombuffer(payload, entry.dtype, count, position).reshape(entry.shape)
        position += num_bytes
    return arrays, directory.start
