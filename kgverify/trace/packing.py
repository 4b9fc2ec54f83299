"""How the datasets of a file are packed."""

import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.levels import Packing

_CHUNK_BYTES: Final = 1 << 18
_GZIP: Final = {Packing.SMALL: 4, Packing.ARCHIVE: 6}
_SAMPLE_BYTES: Final = 1 << 16
_MOST_KEPT: Final = 0.9


def storage_options(array: NDArray[Any], packing: Packing) -> dict[str, Any]:
    """What `h5py.Group.create_dataset` is told of an array; the same array, the same options."""
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


def _shrinks(array: NDArray[Any]) -> bool:
    """Whether shuffle and gzip save a tenth, by a sample from the middle."""
    flat = array.reshape(-1)
    num = max(1, _SAMPLE_BYTES // flat.dtype.itemsize)
    middle = max(0, len(flat) - num) // 2
    sample = np.ascontiguousarray(flat[middle : middle + num])
    shuffled = sample.view(np.uint8).reshape(len(sample), -1).T
    return len(zlib.compress(shuffled.tobytes(), 1)) < _MOST_KEPT * sample.nbytes
