"""What HDF5 writes of a file beside the data, kept in memory until it is written to disk by us."""

import io
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from kgverify.trace.files.disk import Buffer, Placed, opened, sync, write_all, write_placed

_PAGE: Final = 4096
_WRITTEN: Final = re.compile(b"\1+")


class Written(NamedTuple):
    """A file that was written: its bytes, and their xxh3 as 16 hexadecimal digits."""

    size: int
    xxh3: str


class MetadataImage(io.RawIOBase):
    """A file in memory that takes no more room than what is written to it, wherever that is.

    size: where HDF5 says that the file ends
    """

    def __init__(self) -> None:
        super().__init__()
        self.size = 0
        self._position = 0
        # By number: a page's bytes, and a 1 for each that was written.
        self._pages: dict[int, tuple[bytearray, bytearray]] = {}

    def runs(self) -> Iterator[tuple[int, bytes]]:
        """What was written: where, and the bytes, in ascending order."""
        for number, (content, mask) in sorted(self._pages.items()):
            for found in _WRITTEN.finditer(mask):
                yield number * _PAGE + found.start(), bytes(content[found.start() : found.end()])

    def write_out(
        self, descriptor: int, placed: Sequence[Placed], written: "Future[None]", pool: ThreadPoolExecutor
    ) -> Written:
        """Complete a file on the disk, and force it there. placed, written: the data, and when they are in the file."""
        runs: list[Placed] = [(offset, [content]) for offset, content in self.runs()]
        hashed = pool.submit(hash_pieces, [*placed, *runs], self.size)
        written.result()
        os.ftruncate(descriptor, self.size)
        write_placed(descriptor, runs)
        sync(descriptor)
        return Written(self.size, hashed.result())

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go there."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Say where the file ends."""
        self.size = self._position if size is None else size
        return self.size

    def write(self, data: Any) -> int:
        """Keep the bytes."""
        view = memoryview(data).cast("B")
        for begin, number, low, high in self._spans(len(view)):
            content, mask = self._pages.setdefault(number, (bytearray(_PAGE), bytearray(_PAGE)))
            content[low:high] = view[begin : begin + high - low]
            mask[low:high] = b"\1" * (high - low)
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        """Give back what was written; zeros between."""
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self.size - self._position))
        for begin, number, low, high in self._spans(length):
            page = self._pages.get(number)
            view[begin : begin + high - low] = bytes(high - low) if page is None else page[0][low:high]
        self._position += length
        return length

    def _spans(self, length: int) -> Iterator[tuple[int, int, int, int]]:
        begin = 0
        while begin < length:
            number, low = divmod(self._position + begin, _PAGE)
            high = min(_PAGE, low + length - begin)
            yield begin, number, low, high
            begin += high - low


def write_bytes(path: Path, content: Buffer) -> Written:
    """Write a file at once, and force it to disk."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(descriptor, [content], 0)
        sync(descriptor)
    return Written(len(content), hash_pieces([(0, [content])], len(content)))


def hash_pieces(pieces: Sequence[Placed], size: int) -> str:
    """xxh3 of a file of this size with these buffers at these offsets and zeros between, as 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    position = 0
    for offset, buffers in sorted(pieces, key=lambda piece: piece[0]):
        digest.update(bytes(offset - position))
        position = offset
        for buffer in buffers:
            digest.update(buffer)
            position += len(buffer)
    digest.update(bytes(size - position))
    return digest.hexdigest()
