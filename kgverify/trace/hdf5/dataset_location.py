"""Where the data of a dataset lie in a file, judged before a byte of them is read."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.hdf5.byte_ranges import DEFLATE, FLETCHER32, SHUFFLE, Chunk, Place, check_extents
from kgverify.trace.model.schema import RECORD_AGAIN

MAX_BYTES: Final = 64 << 30
MAX_RATIO: Final = 64
"""All datasets of a file together take at most this times its size in memory, or `MIN_TOTAL_BYTES` if that is more."""
MIN_TOTAL_BYTES: Final = 64 << 20
_MAX_CHUNK_BYTES: Final = 1 << 30
_MAX_CHUNKS: Final = 1 << 20
_MAX_DEFLATE_RATIO: Final = 1100  # deflate cannot do better than 1032 to 1
_FILTERS: Final = (DEFLATE, SHUFFLE, FLETCHER32)

# HDF5's own numbers of the layouts.
_COMPACT: Final = 0
_CONTIGUOUS: Final = 1
_CHUNKED: Final = 2


def locate(dataset: Any, dtype: np.dtype[Any], shape: tuple[int, ...], place: str, file_size: int) -> Place:
    """UserError unless the data lie in this very file, whole, and can be as large as the shape says."""
    num_bytes = dtype.itemsize * prod(shape)
    plan = dataset.get_create_plist()
    layout = plan.get_layout()
    if layout not in (_CONTIGUOUS, _CHUNKED, _COMPACT) or plan.get_external_count():
        raise UserError(
            "is a virtual dataset, or keeps its data in another file",
            where=place,
            fix="copy the data into the file",
        )
    filters = tuple(int(plan.get_filter(i)[0]) for i in range(plan.get_nfilters()))
    if any(f not in _FILTERS for f in filters) or len(set(filters)) < len(filters):
        raise UserError(
            f"uses the HDF5 filters {list(filters)}, expected none, or one each of gzip, shuffle and fletcher32",
            where=place,
            fix="repack it without filters, e.g. h5repack -f NONE",
        )
    stored = min(dataset.get_storage_size(), file_size)
    chunk_shape = tuple(int(n) for n in plan.get_chunk()) if layout == _CHUNKED else ()
    chunk_bytes = dtype.itemsize * prod(chunk_shape) if chunk_shape else 0
    if chunk_bytes > _MAX_CHUNK_BYTES:
        raise UserError(
            f"a chunk takes {chunk_bytes} bytes, expected at most {_MAX_CHUNK_BYTES}",
            where=place,
            fix="write it contiguous",
        )
    offset = dataset.get_offset() if layout == _CONTIGUOUS else None
    most = stored * (_MAX_DEFLATE_RATIO if DEFLATE in filters else 1)
    if layout == _CONTIGUOUS:
        most = max(0, min(stored, file_size - offset)) if offset is not None else 0
    if num_bytes > min(most, MAX_BYTES):
        raise UserError(
            f"its shape asks for {num_bytes} bytes, but the file holds {stored} for it"
            f" and a dataset may have {MAX_BYTES}",
            where=place,
            fix=RECORD_AGAIN,
        )
    if layout == _COMPACT:
        # Inside the metadata, of which there is never much.
        content = np.empty(shape, dtype)
        if num_bytes:
            space = dataset.get_space()
            dataset.read(space, space, content)
        return Place(place, dtype, shape, content=content)
    if layout == _CONTIGUOUS or not num_bytes:
        return Place(place, dtype, shape, -1 if offset is None else int(offset))
    chunks = _locate_chunks(dataset, shape, chunk_shape, place, file_size)
    return Place(place, dtype, shape, -1, None, chunk_shape, filters, chunks)


def _locate_chunks(
    dataset: Any, shape: tuple[int, ...], chunk_shape: tuple[int, ...], place: str, file_size: int
) -> tuple[Chunk, ...]:
    counts = tuple(-(-whole // part) for whole, part in zip(shape, chunk_shape, strict=True))
    # A chunk that is stored takes a byte at least, whatever the index says.
    if prod(counts) > min(_MAX_CHUNKS, file_size) or dataset.get_num_chunks() < prod(counts):
        raise UserError(
            f"its shape asks for {prod(counts)} chunks, but the file does not hold as many, or they are more than"
            f" {_MAX_CHUNKS}",
            where=place,
            fix="write it contiguous",
        )
    chunks = []
    for number in np.ndindex(counts):
        index = tuple(int(i) * part for i, part in zip(number, chunk_shape, strict=True))
        info = dataset.get_chunk_info_by_coord(index)
        if info.byte_offset is None or not 0 < info.size <= file_size:
            raise UserError(f"the chunk at {list(index)} is missing", where=place, fix=RECORD_AGAIN)
        chunks.append(Chunk(int(info.byte_offset), int(info.size), int(info.filter_mask), index))
    return tuple(chunks)


def most_bytes(file_size: int) -> int:
    """What all datasets of a file of this size may take together in memory."""
    return min(MAX_BYTES, max(MIN_TOTAL_BYTES, MAX_RATIO * file_size))


def check_total(places: Sequence[Place], file_size: int) -> None:
    """UserError where the datasets together unpack to more than such a file may."""
    total = sum(place.memory_bytes for place in places)
    if total > most_bytes(file_size):
        largest = max(places, key=lambda place: place.memory_bytes)
        raise UserError(
            f"the datasets together ask for {total} bytes, expected at most {most_bytes(file_size)} of a file of"
            f" {file_size}",
            where=largest.place,
            fix="repack it without filters, e.g. h5repack -f NONE",
        )


def drop_refused(found: dict[str, Place], file_size: int, problems: dict[str, str]) -> None:
    """Take out, one by one, what lies where it may not, or asks for too much, until nothing does."""
    while found:
        places = list(found.values())
        try:
            check_extents(places, file_size)
            check_total(places, file_size)
        except UserError as error:
            name = next(name for name, place in found.items() if place.place == error.where)
            problems[name] = error.message
            del found[name]
        else:
            return


def is_archived(places: Iterable[Place]) -> bool:
    """Whether a file with these datasets is packed as archives are."""
    return any(FLETCHER32 in place.filters for place in places)
