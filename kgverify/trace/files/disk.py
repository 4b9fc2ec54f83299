"""Writing many buffers at their offsets in a file; each operation may fail, or be the last."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

Buffer = bytes | memoryview
Placed = tuple[int, Sequence[Buffer]]
"""An offset in a file, and the buffers written there, one after the other."""

_MAX_BYTES: Final = 1 << 30
"""Bytes given to one call; Linux takes 2 GiB less a page."""


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, not copied if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def little_endian(given: NDArray[Any] | Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return an array, or its parts, as they lie on disk."""
    pieces = [given] if isinstance(given, np.ndarray) else given
    return [np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")) for piece in pieces]


def checksum_of(pieces: Sequence[NDArray[Any]]) -> int:
    """Return the xxh3 of the bytes of parts that follow one another."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(bytes_of(piece))
    return digest.intdigest()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file, but no link, and yield its descriptor."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write buffers one after the other from an offset on, without joining them."""
    for buffer in buffers:
        left = memoryview(buffer)
        while left:
            written = os.pwritev(descriptor, [left[:_MAX_BYTES]], offset)
            left, offset = left[written:], offset + written


def write_placed(descriptor: int, placed: Sequence[Placed]) -> None:
    """Write all buffers at their offsets."""
    for offset, buffers in placed:
        write_all(descriptor, buffers, offset)
