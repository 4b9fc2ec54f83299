"""The bytes of datasets, read from the file by their places: HDF5 is asked where they lie, never to fetch or unpack them.

HDF5 allocates what a chunk's stored size claims, and inflates a chunk without any bound. Here every extent is checked
against the file and against the others before a byte is read, and inflating stops at the size of the chunk.
"""

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.model.schema import RECORD_AGAIN

SHUFFLE: Final = 2
DEFLATE: Final = 1
FLETCHER32: Final = 3
_FLETCHER_BYTES: Final = 4
_UNDEFINED: Final = (1 << 64) - 1

# A read of this many bytes at a time; the system may not take more than 2 GiB at once.
_READ_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Chunk:
    """A stored chunk.

    offset:      where it lies in the file, bytes
    size:        stored bytes
    filter_mask: bit i is set where filter i was skipped
    index:       element at which it begins, one number for each axis
    """

    offset: int
    size: int
    filter_mask: int
    index: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a dataset's bytes lie.

    place:     how errors name it
    dtype:     little-endian
    offset:    of a contiguous dataset, in the file; -1 for others
    content:   the bytes themselves, where they stand inside HDF5's own metadata
    filters:   HDF5's numbers of the filters, in the order in which they were applied
    chunks:    in the order of their indices
    """

    place: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = -1
    content: NDArray[Any] | None = None
    chunk_shape: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = field(default=(), repr=False)

    @property
    def num_bytes(self) -> int:
        """Of the dataset in memory."""
        return self.dtype.itemsize * prod(self.shape)

    @property
    def memory_bytes(self) -> int:
        """What reading it takes: the dataset, or one chunk where that is more."""
        return max(self.num_bytes, self.dtype.itemsize * prod(self.chunk_shape) if self.chunk_shape else 0)

    def chunks_of(self, begin: int, end: int) -> Sequence[Chunk]:
        """The chunks that hold some rows."""
        length = self.chunk_shape[0]
        abreast = prod(-(-whole // part) for whole, part in zip(self.shape[1:], self.chunk_shape[1:], strict=True))
        return self.chunks[begin // length * abreast : -(-end // length) * abreast]

    @property
    def extents(self) -> list[tuple[int, int]]:
        """(begin, end) of everything stored."""
        if self.chunks:
            return [(chunk.offset, chunk.offset + chunk.size) for chunk in self.chunks]
        return [(self.offset, self.offset + self.num_bytes)] if self.offset >= 0 and self.num_bytes else []


ReadChunk = Callable[[Chunk], NDArray[Any]]


def check_extents(places: Sequence[Place], file_size: int) -> None:
    """UserError for bytes beyond the end of the file, or that two datasets or two chunks share."""
    extents = sorted((begin, end, place.place) for place in places for begin, end in place.extents)
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


def read_place(descriptor: int, place: Place) -> NDArray[Any]:
    """The dataset at a place that was checked. UserError for data that are cut off or do not unpack."""
    return read_rows(descriptor, place, 0, place.shape[0], lambda chunk: read_chunk(descriptor, chunk, place))


def read_rows(descriptor: int, place: Place, begin: int, end: int, read: ReadChunk) -> NDArray[Any]:
    """Some rows of the dataset at a place that was checked. UserError as by `read_place`.

    read: gives the elements of a chunk, as `read_chunk` does
    """
    if place.content is not None:
        return place.content[begin:end]
    array = np.empty((end - begin, *place.shape[1:]), place.dtype)
    if not array.size:
        return array
    if not place.chunks:
        first = place.offset + begin * (place.num_bytes // place.shape[0])
        _read_into(descriptor, array.reshape(-1).view(np.uint8), first, place.place)
        return array
    for chunk in place.chunks_of(begin, end):
        unpacked = read(chunk)
        low, high = max(begin, chunk.index[0]), min(end, chunk.index[0] + place.chunk_shape[0])
        # A chunk at the edge reaches beyond it.
        columns = tuple(
            slice(first, min(first + length, whole))
            for first, length, whole in zip(chunk.index[1:], place.chunk_shape[1:], place.shape[1:], strict=True)
        )
        inside = tuple(slice(0, each.stop - each.start) for each in columns)
        array[(slice(low - begin, high - begin), *columns)] = unpacked[
            (slice(low - chunk.index[0], high - chunk.index[0]), *inside)
        ]
    return array


def read_chunk(descriptor: int, chunk: Chunk, place: Place) -> NDArray[Any]:
    """The elements of a chunk. UserError for data that are cut off or do not unpack."""
    raw = np.empty(chunk.size, np.uint8)
    _read_into(descriptor, raw, chunk.offset, place.place)
    return _unpack(raw, chunk, place)


def _read_into(descriptor: int, target: NDArray[np.uint8], offset: int, where: str) -> None:
    view = target.data
    done = 0
    while done < len(view):
        num = os.preadv(descriptor, [view[done : done + _READ_BYTES]], offset + done)
        if num == 0:
            raise UserError("the file ends before its data do", where=where, fix=RECORD_AGAIN)
        done += num


def _unpack(raw: NDArray[np.uint8], chunk: Chunk, place: Place) -> NDArray[Any]:
    """A chunk's elements: its filters undone, last first."""
    num_bytes = place.dtype.itemsize * prod(place.chunk_shape)
    for position in reversed(range(len(place.filters))):
        if chunk.filter_mask >> position & 1:
            continue
        kind = place.filters[position]
        if kind == FLETCHER32:
            if len(raw) < _FLETCHER_BYTES or _fletcher32(raw[:-_FLETCHER_BYTES]) != _stored_sum(raw):
                raise _damaged(chunk, place, "its fletcher32 sum is another")
            raw = raw[:-_FLETCHER_BYTES]
        elif kind == DEFLATE:
            # A fletcher32 sum that was taken before deflating is inside.
            is_summed = FLETCHER32 in place.filters[:position]
            raw = _inflate(raw, num_bytes + _FLETCHER_BYTES * is_summed, chunk, place)
        elif kind == SHUFFLE and len(raw) == num_bytes and place.dtype.itemsize > 1:
            raw = np.ascontiguousarray(raw.reshape(place.dtype.itemsize, -1).T).reshape(-1)
    if len(raw) != num_bytes:
        raise _damaged(chunk, place, f"it holds {len(raw)} bytes, expected {num_bytes}")
    return np.ascontiguousarray(raw).view(place.dtype).reshape(place.chunk_shape)


def _inflate(raw: NDArray[np.uint8], most: int, chunk: Chunk, place: Place) -> NDArray[np.uint8]:
    """The bytes of a zlib stream, of which there may be `most`."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(raw.data, most)
        if not inflater.eof:
            content += inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error as error:
        raise _damaged(chunk, place, f"it does not inflate: {error}") from error
    if not inflater.eof or len(content) > most:
        raise _damaged(chunk, place, f"it inflates to another size than {most} bytes")
    return np.frombuffer(content, np.uint8)


def _fletcher32(content: NDArray[np.uint8]) -> int:
    """HDF5's Fletcher sum: over big-endian 16-bit words, an odd last byte counting as the high one."""
    num_words = len(content) // 2
    words = content[: 2 * num_words].view(">u2")
    first = second = 0
    block = 1 << 16
    for low in range(0, num_words, block):
        part = words[low : low + block].astype(np.uint64)
        weights = np.arange(len(part), 0, -1, dtype=np.uint64)
        second = (second + len(part) * first + int((part * weights).sum())) % 65535
        first = (first + int(part.sum())) % 65535
    if len(content) % 2:
        first = (first + (int(content[-1]) << 8)) % 65535
        second = (second + first) % 65535
    return second << 16 | first


def _stored_sum(raw: NDArray[np.uint8]) -> int:
    """The sum at the end of a chunk, with 65535 taken for the 0 that it is congruent to."""
    stored = int.from_bytes(raw[-_FLETCHER_BYTES:].tobytes(), "little")
    return (stored >> 16) % 65535 << 16 | (stored & 0xFFFF) % 65535


def _damaged(chunk: Chunk, place: Place, what: str) -> UserError:
    return UserError(f"the chunk at {list(chunk.index)} is damaged: {what}", where=place.place, fix=RECORD_AGAIN)
