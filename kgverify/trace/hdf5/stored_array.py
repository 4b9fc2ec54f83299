"""Datasets whose location in a file was checked, and the code that reads their bytes: HDF5 only says where they lie.

HDF5 itself would allocate as much as a chunk's stored size claims, and inflate a chunk without any bound. This module
checks every extent against the file and the other extents before it reads a byte, and stops inflating at the size of
the chunk.
"""

import mmap
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.files.reading import open_descriptor
from kgverify.trace.model.schema import RECORD_AGAIN

SHUFFLE: Final = 2
DEFLATE: Final = 1
FLETCHER32: Final = 3
_FLETCHER_BYTES: Final = 4
_UNDEFINED: Final = (1 << 64) - 1
_KEPT_BYTES: Final = 64 << 20
_MAPPED_BYTES: Final = 32 << 20
_LEAST_MAPPED: Final = 1 << 20
"""The bytes to assume for a small view: the system maps the pages around it, up to megabytes."""
_HDF5_ERRORS: Final = (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError)

# The bytes of one read; some systems accept at most 2 GiB.
_READ_BYTES: Final = 1 << 30


class Identity(NamedTuple):
    """The identity of a file."""

    device: int
    inode: int
    size: int


@dataclass(frozen=True)
class Chunk:
    """A stored chunk.

    offset:      first byte in the file
    size:        stored bytes
    filter_mask: bit i is set if filter i was skipped
    index:       the element at which it begins, one number for each axis
    """

    offset: int
    size: int
    filter_mask: int
    index: tuple[int, ...]


@dataclass(frozen=True)
class StoredArray:
    """A dataset that passed every check except that of its checksum.

    where:     its name in errors
    dtype:     little-endian
    offset:    first byte in the file of a contiguous dataset; -1 for others
    content:   the elements, if they are in memory already
    filters:   HDF5's numbers of the filters, in the order in which they were applied
    chunks:    in the order of their indices
    checksum:  the xxh3 stored with it; None for a dataset that the schema does not name, if it has none
    """

    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = -1
    content: NDArray[Any] | None = None
    chunk_shape: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = field(default=(), repr=False)
    checksum: int | None = None

    @property
    def num_bytes(self) -> int:
        """The size of the dataset in memory."""
        return self.dtype.itemsize * prod(self.shape)

    @property
    def memory_bytes(self) -> int:
        """The memory that reading it takes: the size of the dataset, or of one chunk if that is larger."""
        return max(self.num_bytes, self.dtype.itemsize * prod(self.chunk_shape) if self.chunk_shape else 0)

    @property
    def extents(self) -> list[tuple[int, int]]:
        """The (begin, end) of each stored piece of data in the file."""
        if self.chunks:
            return [(chunk.offset, chunk.offset + chunk.size) for chunk in self.chunks]
        return [(self.offset, self.offset + self.num_bytes)] if self.offset >= 0 and self.num_bytes else []

    def chunks_of(self, begin: int, end: int) -> Sequence[Chunk]:
        """Return the chunks that hold the rows from `begin` to `end`."""
        length = self.chunk_shape[0]
        abreast = prod(-(-whole // part) for whole, part in zip(self.shape[1:], self.chunk_shape[1:], strict=True))
        return self.chunks[begin // length * abreast : -(-end // length) * abreast]

    def check_checksum(self, found: int) -> None:
        """Raise a UserError if a checksum is stored with the dataset and differs from this one."""
        if self.checksum is not None and found != self.checksum:
            raise UserError(
                f"checksum is {found:016x}, expected {self.checksum:016x}: the data were altered",
                where=self.where,
                fix=RECORD_AGAIN,
            )


ReadChunk = Callable[[Chunk], NDArray[Any]]


def identity_of(descriptor: int) -> Identity:
    """Return the identity of an open file."""
    status = os.fstat(descriptor)
    return Identity(status.st_dev, status.st_ino, status.st_size)


@contextmanager
def open_again(path: Path, identity: Identity) -> Iterator[int]:
    """Open a file that was checked before. UserError if it was replaced or its size changed."""
    with open_descriptor(path, purpose="a trace") as descriptor:
        if identity_of(descriptor) != identity:
            raise UserError("was replaced or changed while it was read", where=str(path), fix="read it again")
        yield descriptor


@contextmanager
def translate_hdf5_errors(where: str) -> Iterator[None]:
    """Turn the errors that HDF5 raises for a damaged file into a UserError."""
    try:
        yield
    except _HDF5_ERRORS as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        message = f"HDF5 cannot read it, it is cut off or damaged: {reason}"
        raise UserError(message, where=where, fix=RECORD_AGAIN) from error


def check_extents(arrays: Sequence[StoredArray], file_size: int) -> None:
    """Raise a UserError if data lie beyond the end of the file, or if two datasets or chunks share bytes."""
    extents = sorted((begin, end, array.where) for array in arrays for begin, end in array.extents)
    last_end, last_place = 0, ""
    for begin, end, place in extents:
        if begin >= _UNDEFINED or end > file_size:
            raise UserError(f"its data end at byte {end}, but the file has {file_size}", where=place, fix=RECORD_AGAIN)
        if begin < last_end:
            raise UserError(
                f"its data overlap with those of {last_place.rpartition(':')[2]}, at byte {begin}",
                where=place,
                fix=RECORD_AGAIN,
            )
        last_end, last_place = end, place


def load_array(descriptor: int, stored: StoredArray) -> NDArray[Any]:
    """Read a whole dataset and verify its checksum. UserError for data that are truncated, altered or cannot be unpacked."""
    with translate_hdf5_errors(stored.where):
        array = read_rows(descriptor, stored, 0, stored.shape[0], lambda chunk: read_chunk(descriptor, chunk, stored))
    stored.check_checksum(xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).data))
    return array


def read_rows(descriptor: int, stored: StoredArray, begin: int, end: int, read: ReadChunk) -> NDArray[Any]:
    """Read some rows of a dataset. UserError as for `load_array`.

    read: a function that returns the elements of a chunk, as `read_chunk` does
    """
    if stored.content is not None:
        return stored.content[begin:end]
    array = np.empty((end - begin, *stored.shape[1:]), stored.dtype)
    if not array.size:
        return array
    if not stored.chunks:
        first = stored.offset + begin * (stored.num_bytes // stored.shape[0])
        _read_into(descriptor, array.reshape(-1).view(np.uint8), first, stored.where)
        return array
    for chunk in stored.chunks_of(begin, end):
        unpacked = read(chunk)
        low, high = max(begin, chunk.index[0]), min(end, chunk.index[0] + stored.chunk_shape[0])
        # A chunk at the edge reaches beyond the dataset.
        columns = tuple(
            slice(first, min(first + length, whole))
            for first, length, whole in zip(chunk.index[1:], stored.chunk_shape[1:], stored.shape[1:], strict=True)
        )
        inside = tuple(slice(0, each.stop - each.start) for each in columns)
        array[(slice(low - begin, high - begin), *columns)] = unpacked[
            (slice(low - chunk.index[0], high - chunk.index[0]), *inside)
        ]
    return array


def read_chunk(descriptor: int, chunk: Chunk, stored: StoredArray) -> NDArray[Any]:
    """Read the elements of a chunk. UserError for data that are truncated or cannot be unpacked."""
    raw = np.empty(chunk.size, np.uint8)
    _read_into(descriptor, raw, chunk.offset, stored.where)
    return _unpack(raw, chunk, stored)


def _read_into(descriptor: int, target: NDArray[np.uint8], offset: int, where: str) -> None:
    view = target.data
    done = 0
    while done < len(view):
        num = os.preadv(descriptor, [view[done : done + _READ_BYTES]], offset + done)
        if num == 0:
            raise UserError("the file ends before its data do", where=where, fix=RECORD_AGAIN)
        done += num


def _unpack(raw: NDArray[np.uint8], chunk: Chunk, stored: StoredArray) -> NDArray[Any]:
    """Undo the filters of a chunk, the last one first, and return its elements."""
    num_bytes = stored.dtype.itemsize * prod(stored.chunk_shape)
    for position in reversed(range(len(stored.filters))):
        if chunk.filter_mask >> position & 1:
            continue
        kind = stored.filters[position]
        if kind == FLETCHER32:
            # The checksum of the dataset covers the same bytes as this sum.
            raw = raw[:-_FLETCHER_BYTES]
        elif kind == DEFLATE:
            # If the fletcher32 sum was computed before deflating, it is inside the stream.
            is_summed = FLETCHER32 in stored.filters[:position]
            raw = _inflate(raw, num_bytes + _FLETCHER_BYTES * is_summed, chunk, stored)
        elif kind == SHUFFLE and len(raw) == num_bytes and stored.dtype.itemsize > 1:
            raw = np.ascontiguousarray(raw.reshape(stored.dtype.itemsize, -1).T).reshape(-1)
    if len(raw) != num_bytes:
        raise _damaged(chunk, stored, f"it holds {len(raw)} bytes, expected {num_bytes}")
    return np.ascontiguousarray(raw).view(stored.dtype).reshape(stored.chunk_shape)


def _inflate(raw: NDArray[np.uint8], most: int, chunk: Chunk, stored: StoredArray) -> NDArray[np.uint8]:
    """Inflate a zlib stream to exactly `most` bytes, and no further."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(raw.data, most)
    except zlib.error as error:
        raise _damaged(chunk, stored, f"it does not inflate: {error}") from error
    if not inflater.eof:
        raise _damaged(chunk, stored, f"it inflates to another size than {most} bytes")
    return np.frombuffer(content, np.uint8)


def _damaged(chunk: Chunk, stored: StoredArray, what: str) -> UserError:
    return UserError(f"the chunk at {list(chunk.index)} is damaged: {what}", where=stored.where, fix=RECORD_AGAIN)


class ReadMemory:
    """The memory that reading the files of one trace takes.

    Of unpacked chunks, it keeps the most recent 64 MiB, or one chunk if that is larger. Of mapped files, the pages of about
    32 MiB stay in memory, or those of the last view if that is larger.

    num_bytes: bytes of the chunks kept
    """

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[Identity, int], NDArray[Any]] = OrderedDict()
        self._viewed: set[mmap.mmap] = set()
        self._num_viewed = 0
        self.num_bytes = 0

    def view(self, mapped: mmap.mmap, num_bytes: int) -> mmap.mmap:
        """Return a mapped file, some bytes of which are viewed next; let the system reclaim the pages of earlier views.

        The system reads a page again when a view of it is used again.
        """
        num_bytes = max(num_bytes, _LEAST_MAPPED)
        if self._num_viewed + num_bytes > _MAPPED_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            for each in self._viewed:
                each.madvise(mmap.MADV_DONTNEED)
            self._viewed.clear()
            self._num_viewed = 0
        self._viewed.add(mapped)
        self._num_viewed += num_bytes
        return mapped

    def get(self, key: tuple[Identity, int], unpack: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return the chunk at an offset of a file; call `unpack` if it is not in the cache."""
        found = self._chunks.pop(key, None)
        if found is None:
            found = unpack()
            self.num_bytes += found.nbytes
            while self._chunks and self.num_bytes > _KEPT_BYTES:
                self.num_bytes -= self._chunks.popitem(last=False)[1].nbytes
        self._chunks[key] = found
        return found


def take_rows(stored: StoredArray, rows: NDArray[np.int64], read: Callable[[int, int], NDArray[Any]]) -> NDArray[Any]:
    """Return rows of a dataset in any order; unpack each chunk once.

    read: a function that returns the rows of a range
    """
    length = stored.chunk_shape[0] if stored.chunks else max(1, stored.shape[0])
    found = np.empty((len(rows), *stored.shape[1:]), stored.dtype)
    block = rows // length
    order = np.argsort(block, kind="stable")
    bounds = np.flatnonzero(np.diff(block[order], prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        chosen = order[low:high]
        begin = int(block[chosen[0]]) * length
        found[chosen] = read(begin, min(begin + length, stored.shape[0]))[rows[chosen] - begin]
    return found
