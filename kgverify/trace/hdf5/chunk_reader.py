"""Rows of datasets that are not contiguous in their file: unpacked chunk by chunk, the chunks used last kept."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.hdf5.byte_ranges import Chunk, Place, read_chunk, read_rows
from kgverify.trace.hdf5.stored_file import Identity, open_again

_KEPT_BYTES: Final = 64 << 20


class ChunkCache:
    """The chunks unpacked last, of whatever files of one trace: 64 MiB, or one chunk where that is more.

    num_bytes: of the chunks kept
    """

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[Identity, int], NDArray[Any]] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: tuple[Identity, int], unpack: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The chunk of a file at an offset; `unpack` gives it where it is not kept."""
        found = self._chunks.pop(key, None)
        if found is None:
            found = unpack()
            self.num_bytes += found.nbytes
            while self._chunks and self.num_bytes > _KEPT_BYTES:
                self.num_bytes -= self._chunks.popitem(last=False)[1].nbytes
        self._chunks[key] = found
        return found


class PackedReader:
    """Reads rows of the packed datasets of one file, whose places were checked.

    identity: the file must still be the one that was checked
    """

    def __init__(self, path: Path, identity: Identity, cache: ChunkCache) -> None:
        self._path = path
        self._identity = identity
        self._cache = cache

    def read(self, place: Place, begin: int, end: int) -> NDArray[Any]:
        """The rows from `begin` to `end`. UserError for data that are cut off or do not unpack."""
        with open_again(self._path, self._identity) as descriptor:

            def read(chunk: Chunk) -> NDArray[Any]:
                # No two chunks share bytes, and so the offset tells them apart.
                return self._cache.get((self._identity, chunk.offset), lambda: read_chunk(descriptor, chunk, place))

            return read_rows(descriptor, place, begin, end, read)

    def take(self, place: Place, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows in any order; each chunk is unpacked once."""
        length = place.chunk_shape[0] if place.chunks else max(1, place.shape[0])
        found = np.empty((len(rows), *place.shape[1:]), place.dtype)
        block = rows // length
        order = np.argsort(block, kind="stable")
        bounds = np.flatnonzero(np.diff(block[order], prepend=-1, append=-1))
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            chosen = order[low:high]
            begin = int(block[chosen[0]]) * length
            found[chosen] = self.read(place, begin, min(begin + length, place.shape[0]))[rows[chosen] - begin]
        return found
