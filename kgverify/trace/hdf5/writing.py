"""Writing one trace file as HDF5. HDF5 itself lays out the file, but in memory; our code writes the bytes to disk."""

import errno
import io
import itertools
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

import h5py
import numpy as np
from h5py import h5d, h5p
from numpy.typing import NDArray

from kgverify.trace.files.manifest import (
    Placed,
    bytes_of,
    checksum_of,
    little_endian,
    opened,
    write_all,
    write_placed,
)
from kgverify.trace.hdf5.reading import most_bytes
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH
from kgverify.trace.model.header import SCHEMA_VERSION
from kgverify.trace.model.schema import Packing, Schema, file_checksum

_MAX_CREATOR_BYTES: Final = 1 << 10
_PAGE: Final = 4096
# Since version 1.10, HDF5 adds checksums to its own metadata.
_BOUNDS: Final = ("v110", "v110")

_CHUNK_BYTES: Final = 1 << 18
_GZIP: Final = {Packing.SMALL: 1, Packing.ARCHIVE: 6}
_SAMPLE_BYTES: Final = 1 << 16
_MOST_KEPT: Final = 0.5
_MAX_THREADS: Final = 8

ArrayParts = Mapping[str, Sequence[NDArray[Any]]]
"""Datasets by path, each as a sequence of consecutive parts."""


def write_arrays(
    path: Path,
    arrays: Mapping[str, NDArray[Any] | Sequence[NDArray[Any]]],
    creator: str,
    packing: Packing = Packing.PLAIN,
    schema: Schema = KNOWLEDGE_GRAPH,
) -> int:
    """Write one file with checksums, force it to disk, and return its checksum. The same input gives the same bytes.

    A plain file has contiguous datasets on page boundaries. A dataset may come in consecutive parts, which are not copied.
    A packed file is made in memory first. If it would unpack to more than a reader accepts, it is written plain instead.
    """
    order = {path: number for number, path in enumerate(schema.column_of)}
    names = sorted(arrays, key=lambda name: (order.get(name, len(order)), name))
    parts = {name: little_endian(arrays[name]) for name in names}
    if packing is not Packing.PLAIN:
        packed, checksum = _pack(parts, creator, packing, schema)
        total = sum(piece.nbytes for pieces in parts.values() for piece in pieces)
        if total <= most_bytes(len(packed)):
            with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
                write_all(descriptor, [packed], 0)
                os.fsync(descriptor)
            return checksum
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor, ThreadPoolExecutor(1) as pool:
        with _memory_file() as image, _naming_limit():
            with h5py.File(image, "w", libver=_BOUNDS, alignment_threshold=_PAGE, alignment_interval=_PAGE) as file:
                placed = _lay_out(file, parts)
                written = pool.submit(write_placed, descriptor, placed)
                checksum = _sign(file, parts, creator, schema)
            size = image.seek(0, os.SEEK_END)
            metadata = _read_gaps(image, placed, size)
        written.result()
        os.ftruncate(descriptor, size)
        write_placed(descriptor, metadata)
        os.fsync(descriptor)
        return checksum


@contextmanager
def _naming_limit() -> Iterator[None]:
    """Raise an OSError if the limit on file sizes (ulimit -f) refused the file in memory: h5py hides that error."""
    try:
        yield
    except AttributeError as error:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from error


def _memory_file() -> IO[bytes]:
    """Open a sparse file for the metadata that HDF5 writes around the data; on Linux it is in memory."""
    if sys.platform == "linux":
        return open(os.memfd_create("metadata", os.MFD_CLOEXEC), "w+b", buffering=0)
    return TemporaryFile(buffering=0)


def _read_gaps(image: IO[bytes], placed: Sequence[Placed], size: int) -> list[Placed]:
    """Return everything except the data in a file of this size, with its offsets."""
    gaps: list[Placed] = []
    position = 0
    for offset, buffers in [*sorted(placed, key=itemgetter(0)), (size, [])]:
        image.seek(position)
        gaps.append((position, [image.read(offset - position)]))
        position = offset + sum(len(buffer) for buffer in buffers)
    return gaps


def _lay_out(file: Any, parts: ArrayParts) -> list[Placed]:
    """Create the datasets without their data; return the data with their offsets."""
    plan = h5p.create(h5p.DATASET_CREATE)
    plan.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5d.FILL_TIME_NEVER)
    placed: list[Placed] = []
    for name, pieces in parts.items():
        shape = (sum(len(piece) for piece in pieces), *pieces[0].shape[1:])
        dataset = file.create_dataset(name, shape, pieces[0].dtype, dcpl=plan)
        if (offset := dataset.id.get_offset()) is not None:
            placed.append((offset, [bytes_of(piece) for piece in pieces]))
    return placed


def _pack(parts: ArrayParts, creator: str, packing: Packing, schema: Schema) -> tuple[memoryview, int]:
    """Return the bytes of a packed file and its checksum. It has no pages: they would take more room than small datasets."""
    content = io.BytesIO()
    with h5py.File(content, "w", libver=_BOUNDS) as file:
        for name, pieces in parts.items():
            array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            options = _storage_options(array, packing)
            if options and packing is Packing.SMALL:
                _write_chunks(file.create_dataset(name, array.shape, array.dtype, **options), array)
            else:
                file.create_dataset(name, data=array, **options)
        checksum = _sign(file, parts, creator, schema)
    # If both become garbage at once, a view of the buffer itself could outlive the buffer.
    return memoryview(content.getvalue()), checksum


def _sign(file: Any, parts: ArrayParts, creator: str, schema: Schema) -> int:
    """Write the checksums of all datasets and the root attributes of a trace; return the file's checksum."""
    known: dict[str, int] = {}
    for name, pieces in parts.items():
        checksum = checksum_of(pieces)
        file[name].attrs["xxh3"] = np.uint64(checksum)
        if name in schema.column_of:
            known[name] = checksum
    file.attrs["format"] = np.bytes_(schema.format)
    file.attrs["schema_version"] = np.uint32(SCHEMA_VERSION)
    file.attrs["creator"] = np.bytes_(creator.encode("ascii", "replace")[:_MAX_CREATOR_BYTES])
    whole = file_checksum(known)
    file.attrs["xxh3"] = np.uint64(whole)
    return whole


def _storage_options(array: NDArray[Any], packing: Packing) -> dict[str, Any]:
    if not array.size or (packing is Packing.SMALL and not _shrinks(array)):
        return {}
    rows = min(len(array), _CHUNK_BYTES // array.dtype.itemsize)
    return {
        # Keep the three parts of atoms apart: each is uniform in itself, which saves a sixth more.
        "chunks": (rows, *(1,) * (array.ndim - 1)),
        "compression": "gzip",
        "compression_opts": _GZIP[packing],
        "shuffle": True,
        "fletcher32": packing is Packing.ARCHIVE,
    }


def _write_chunks(dataset: Any, array: NDArray[Any]) -> None:
    """Fill a dataset with shuffled, deflated chunks; unlike HDF5, deflate them in parallel."""
    shape, level = dataset.chunks, dataset.compression_opts
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        firsts = (range(0, length, step) for length, step in zip(array.shape, shape, strict=True))
        indices = list(itertools.product(*firsts))
        deflated = pool.map(lambda index: zlib.compress(_shuffled(array, index, shape), level), indices)
        for index, content in zip(indices, deflated, strict=True):
            dataset.id.write_direct_chunk(index, content)


def _shuffled(array: NDArray[Any], index: tuple[int, ...], shape: tuple[int, ...]) -> bytes:
    """Return a chunk, padded with zeros, as bytes: the first bytes of all elements, then the second bytes, and so on."""
    found = array[tuple(slice(low, low + length) for low, length in zip(index, shape, strict=True))].reshape(-1)
    chunk = np.zeros(shape[0], array.dtype)
    chunk[: len(found)] = found
    return chunk.view(np.uint8).reshape(shape[0], -1).T.tobytes()


def _shrinks(array: NDArray[Any]) -> bool:
    """Return whether shuffle and gzip save half of a sample from the middle; a smaller saving is not worth the time."""
    flat = array.reshape(-1)
    num = max(1, _SAMPLE_BYTES // flat.dtype.itemsize)
    middle = max(0, len(flat) - num) // 2
    sample = np.ascontiguousarray(flat[middle : middle + num])
    shuffled = sample.view(np.uint8).reshape(len(sample), -1).T
    return len(zlib.compress(shuffled.tobytes(), _GZIP[Packing.SMALL])) < _MOST_KEPT * sample.nbytes
