"""The journal of a recording: the batches appended since its last shard, in frames with checksums.

A frame is a head of 64 bytes, with its own checksum, and a payload with another. The first frame holds the datasets
that every shard repeats, a batch frame the columns of one append, a commit frame the totals so far: it is written right
before the file is forced to disk. So a reader can distinguish a torn end, which was never confirmed, from damage.
"""

import math
import mmap
import os
import shlex
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
from kgverify.files.decoding import NOT_JSON
from kgverify.files.reading import open_file
from kgverify.files.writing import make_folder, open_in_place, sync_folder
from kgverify.trace.files.disk import Buffer, bytes_of, check_no_link, sync, write_all
from kgverify.trace.model.columns import FIELD_OF, concatenate
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.levels import is_kept, level_of
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, RECORD_AGAIN, SEQUENCE, Arrays, decode_columns, encode_columns

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
    """The description of a recording in the first frame of a journal.

    shard:  number of the shard that its batches will become
    absent: columns that are not written, named as in `Trace.fields`
    is_archived: whether the shard will be packed as small as HDF5's own filters can
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


class JournalBatch(NamedTuple):
    """The arrays of one append, by path; views of the file."""

    arrays: Arrays
    num_candidates: int
    num_steps: int


@dataclass(frozen=True)
class Damage:
    """Bytes that are not a valid frame.

    was_committed:  whether a later frame confirms that these bytes were on disk: they were altered since
    num_candidates: candidates in the batch that was there; None if unknown
    """

    offset: int
    num_bytes: int
    message: str
    was_committed: bool
    num_candidates: int | None = None
    num_steps: int | None = None


@dataclass
class Journal:
    """The readable content of a journal's file.

    start:          None if the first frame is damaged or torn
    shared:         the arrays that every shard repeats
    end:            bytes up to the end of the last good frame
    num_candidates: candidates up to the last commit frame, as it counts them; `num_steps` likewise
    num_batches:    batches found up to there
    """

    path: Path
    start: Start | None = None
    shared: Arrays = field(default_factory=dict)
    batches: list[JournalBatch] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    end: int = 0
    num_frames: int = 0
    salt: int = 0
    num_candidates: int = 0
    num_steps: int = 0
    num_batches: int = 0

    @property
    def is_damaged(self) -> bool:
        """True if committed bytes cannot be read."""
        return any(damage.was_committed for damage in self.damages)

    def count(self, num_batches: int | None = None) -> tuple[int, int]:
        """Count the candidates and steps of the first batches, or of all."""
        batches = self.batches[:num_batches]
        return sum(batch.num_candidates for batch in batches), sum(batch.num_steps for batch in batches)


def journal_name(shard: int) -> str:
    """Return the name of the journal whose batches will become this shard."""
    return f"journal-{shard:05d}"


def list_journals(folder: Path) -> list[Path]:
    """List every journal in a folder."""
    return sorted(path for path in folder.glob("journal-*") if path.name[8:].isdigit())


class JournalWriter:
    """A writer of frames to the journal in a folder, one journal for each shard; opened by the first append.

    start:       the description of the recording
    shared:      the arrays that every shard repeats
    max_seconds: `append` forces to disk, at the latest, when this time has passed since the last time, or
    max_bytes:   when more bytes have been appended since. This bounds the loss in a crash of the machine; if only the
                 process is killed, nothing that `append` has returned from is lost
    """

    def __init__(self, folder: Path, start: Start, shared: Arrays, *, max_seconds: float, max_bytes: int) -> None:
        self._folder, self._start, self._shared = folder, start, shared
        self._max_seconds, self._max_bytes = max_seconds, max_bytes
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        """True if anything was appended since the last shard."""
        return self._descriptor >= 0

    def resume(self, shard: int, journal: Journal) -> None:
        """Continue behind the last good frame of a journal that is not damaged."""
        self._open(shard)
        os.ftruncate(self._descriptor, journal.end)
        self._end, self._num_frames, self._salt = journal.end, journal.num_frames, journal.salt
        self._num_candidates, self._num_steps = journal.count()
        self._num_unsynced = 1
        self.sync()

    def append(self, shard: int, arrays: Arrays, num_candidates: int, num_steps: int) -> bool:
        """Write a batch of a shard; return whether everything so far was forced to disk.

        An OSError leaves the journal as it was.
        """
        if not self.is_open:
            make_folder(self._folder)
            self._open(shard)
            os.ftruncate(self._descriptor, 0)
            self._write(_Kind.START, _encode(self._shared, msgspec.structs.replace(self._start, shard=shard)))
            sync(self._descriptor)
            sync_folder(self._folder)
            self._num_unsynced, self._synced_at = 0, time.monotonic()
        self._write(_Kind.BATCH, _encode(arrays), num_candidates, num_steps)
        self._num_candidates += num_candidates
        self._num_steps += num_steps
        is_due = time.monotonic() - self._synced_at >= self._max_seconds
        if is_due or self._num_unsynced >= self._max_bytes:
            self.sync()
            return True
        return False

    def sync(self) -> bool:
        """Commit: force everything to disk, if there is anything new; return whether the journal is open."""
        if self.is_open and self._num_unsynced:
            self._write(_Kind.COMMIT, [], self._num_candidates, self._num_steps)
            self._force()
            self._num_unsynced, self._synced_at = 0, time.monotonic()
        return self.is_open

    def save(self) -> bool:
        """Force to disk, after a failure, what was written, and close; return whether that succeeded."""
        if not self.is_open:
            return False
        if not self._is_doubtful:
            try:
                self.sync()
            except OSError:
                # The commit frame found no room. The batches may be there all the same.
                with suppress(OSError):
                    self._force()
        self._close()
        return not self._is_doubtful

    def end(self) -> None:
        """Close and delete all journals: their batches are in a shard."""
        self._close()
        for path in list_journals(self._folder):
            path.unlink()

    def _open(self, shard: int) -> None:
        path = self._folder / journal_name(shard)
        self._descriptor = open_in_place(path, os.O_WRONLY | os.O_CREAT)
        self._end = self._num_frames = self._salt = 0
        self._num_candidates = self._num_steps = self._num_unsynced = 0
        self._is_doubtful = False
        self._synced_at = time.monotonic()

    def _close(self) -> None:
        if self.is_open:
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
            # Leave no torn end, if possible; a reader drops one in any case.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        if kind is _Kind.START:
            self._salt = checksum.intdigest()
        self._num_unsynced += end - self._end
        self._end = end
        self._num_frames += 1

    def _force(self) -> None:
        # After a failure a second call may succeed, and hide what the first lost.
        self._is_doubtful = True
        sync(self._descriptor)
        self._is_doubtful = False


def read_journal(path: Path) -> Journal:
    """Read a journal as far as its checksums are right. UserError if the file cannot be read."""
    with open_file(path, purpose="the journal of a recording") as file:
        size = os.fstat(file.fileno()).st_size
        content: Any = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
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
            damage(following - position, "bytes that are not a frame")
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
            # What follows a tear was never confirmed: after a crash it may have reached the disk by chance.
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
    """Keep the content of a frame; return whether it could be decoded."""
    if head.kind == _Kind.COMMIT:
        return True
    decoded = _decode(payload)
    if decoded is None:
        return False
    arrays, start = decoded
    if head.kind == _Kind.BATCH:
        journal.batches.append(JournalBatch(arrays, head.num_candidates, head.num_steps))
    elif start is not None:
        journal.start, journal.shared = start, arrays
    return head.kind == _Kind.BATCH or start is not None


def _encode(arrays: Arrays, start: Start | None = None) -> list[Buffer]:
    """Encode a directory, then the arrays, each on an 8-byte boundary."""
    little = {path: np.ascontiguousarray(a, a.dtype.newbyteorder("<")) for path, a in arrays.items()}
    entries = tuple(_Entry(path, a.dtype.str, a.shape) for path, a in little.items())
    directory = msgspec.json.encode(_Directory(entries, start))
    buffers: list[Buffer] = [_SUM.pack(len(directory)), directory, bytes(-len(directory) % _ALIGN)]
    for array in little.values():
        buffers += [bytes_of(array), bytes(-array.nbytes % _ALIGN)]
    return buffers


def _decode(payload: memoryview) -> tuple[Arrays, Start | None] | None:
    """Decode a payload into views of it; return None for one that `_encode` did not make."""
    if len(payload) < _SUM.size:
        return None
    (length,) = _SUM.unpack_from(payload)
    position = _SUM.size + length
    if position > len(payload):
        return None
    try:
        directory = msgspec.json.decode(payload[_SUM.size : position], type=_Directory)
    except NOT_JSON:
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


def open_journal(folder: Path, shard: int) -> Journal | None:
    """Read the journal of the next shard; None if it does not exist. UserError if committed bytes were altered."""
    path = folder / journal_name(shard)
    check_no_link(path)
    if not path.is_file():
        return None
    journal = read_journal(path)
    if journal.is_damaged:
        found = next(damage for damage in journal.damages if damage.was_committed)
        raise UserError(
            f"damaged: {found.message}, at byte {found.offset}",
            where=str(path),
            fix=f"see what can be recovered: kgverify trace repair {shlex.quote(str(folder))}",
        )
    return journal


def load_journal(folder: Path, shard: int) -> Arrays | None:
    """Read the journal's batches as the datasets of that shard; None without batches. UserError if it is damaged."""
    journal = open_journal(folder, shard)
    if journal is None or not journal.batches:
        return None
    try:
        return gather(journal) | {"shard/index": np.array([shard], np.uint64)}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"holds invalid batches: {error}", where=str(journal.path), fix=RECORD_AGAIN) from error


def gather(journal: Journal) -> Arrays:
    """Join the batches of a journal, with the shared arrays and digests, as far as the level of its header keeps them."""
    batches = [(decode_columns(batch.arrays), batch.arrays.get(SEQUENCE)) for batch in journal.batches]
    absent = {name for name in OPTIONAL_COLUMNS if name.replace(".", "/") not in journal.batches[0].arrays}
    digests = [compute_sequence(columns) if found is None else found for columns, found in batches]
    columns = encode_columns(concatenate([columns for columns, _ in batches]), absent)
    level = level_of(journal.shared["header"], str(journal.path))
    arrays = journal.shared | columns | {SEQUENCE: np.concatenate(digests)}
    return {name: array for name, array in arrays.items() if is_kept(name, level)}
