"""How the datasets of a file are packed: which filters, and chunks deflated side by side."""

import itertools
import os
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.levels import Packing

_CHUNK_BYTES: Final = 1 << 18
_GZIP: Final = {Packing.SMALL: 1, Packing.ARCHIVE: 6}
_SAMPLE_BYTES: Final = 1 << 16
_MOST_KEPT: Final = 0.5
_MAX_THREADS: Final = 8


def create_packed(group: Any, name: str, array: NDArray[Any], packing: Packing) -> None:
    """Write a dataset in a group of h5py; the same array, the same bytes."""
    options = _storage_options(array, packing)
    if options and packing is Packing.SMALL:
        _write_chunks(group.create_dataset(name, array.shape, array.dtype, **options), array)
    else:
        group.create_dataset(name, data=array, **options)


def _storage_options(array: NDArray[Any], packing: Packing) -> dict[str, Any]:
    if packing is Packing.PLAIN or not array.size:
        return {}
    if packing is Packing.SMALL and not _shrinks(array):
        return {}
    rows = min(len(array), _CHUNK_BYTES // array.dtype.itemsize)
    return {
        # The three parts of atoms apart: alike among themselves, they shrink by a sixth more.
        "chunks": (rows, *(1,) * (array.ndim - 1)),
        "compression": "gzip",
        "compression_opts": _GZIP[packing],
        "shuffle": True,
        "fletcher32": packing is Packing.ARCHIVE,
    }


def _write_chunks(dataset: Any, array: NDArray[Any]) -> None:
    """Fill a dataset of shuffled, deflated chunks; they are deflated side by side, which HDF5 does not do."""
    shape, level = dataset.chunks, dataset.compression_opts
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        indices = list(_indices(array.shape, shape))
        deflated = pool.map(lambda index: zlib.compress(_shuffled(array, index, shape), level), indices)
        for index, content in zip(indices, deflated, strict=True):
            dataset.id.write_direct_chunk(index, content)


def _indices(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Where each chunk begins."""
    return itertools.product(*(range(0, length, step) for length, step in zip(shape, chunk, strict=True)))


def _shuffled(array: NDArray[Any], index: tuple[int, ...], shape: tuple[int, ...]) -> bytes:
    """A chunk, filled up with zeros, first bytes of all elements first."""
    found = array[tuple(slice(low, low + length) for low, length in zip(index, shape, strict=True))].reshape(-1)
    chunk = np.zeros(shape[0], array.dtype)
    chunk[: len(found)] = found
    return chunk.view(np.uint8).reshape(shape[0], -1).T.tobytes()


def _shrinks(array: NDArray[Any]) -> bool:
    """Whether shuffle and gzip save half, by a sample from the middle: what saves less is not worth its time."""
    flat = array.reshape(-1)
    num = max(1, _SAMPLE_BYTES // flat.dtype.itemsize)
    middle = max(0, len(flat) - num) // 2
    sample = np.ascontiguousarray(flat[middle : middle + num])
    shuffled = sample.view(np.uint8).reshape(len(sample), -1).T
    return len(zlib.compress(shuffled.tobytes(), _GZIP[Packing.SMALL])) < _MOST_KEPT * sample.nbytes
