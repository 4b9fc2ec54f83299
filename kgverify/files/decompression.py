"""Packed files: gzip and zstd, recognised by their first bytes, and unpacked no further than an honest file would go."""

import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Final, Protocol

import zstandard

from kgverify.errors import UserError
from kgverify.files.reading import MAX_BYTES, MAX_RATIO, MIN_EXPANDED_BYTES

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP_BITS: Final = 16 + zlib.MAX_WBITS
_MAX_WINDOW: Final = 128 << 20
"""Bytes of memory that a zstd frame may ask for: what `zstd --long` uses."""
_INPUT_BYTES: Final = 4 << 10
"""Bytes that are unpacked at once: at most to 4 MiB by gzip, to 128 MiB by zstd."""


class _Unpacker(Protocol):
    """One packed file: `eof` once its end was read, `unused_data` what followed it then."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def is_packed(content: bytes) -> bool:
    """Return whether bytes begin as gzip or zstd do."""
    return content.startswith((_GZIP, _ZSTD))


def decompress(content: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the unpacked content of gzip or zstd, and anything else as it is.

    UserError for damaged bytes, and before more is unpacked than `max_bytes` or than an honest file holds.
    """
    if not is_packed(content):
        return content
    begin = _begin_gzip if content.startswith(_GZIP) else _begin_zstd
    most = min(max_bytes, max(MIN_EXPANDED_BYTES, MAX_RATIO * len(content)))
    unpacked = BytesIO()
    try:
        for piece in _unpack(content, begin):
            if unpacked.tell() + len(piece) > most:
                raise UserError(
                    f"{len(content):,} packed bytes unpack to more than {most:,}",
                    where=where,
                    fix="unpack the file, look whether it is what it should be, and give the unpacked one",
                )
            unpacked.write(piece)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise UserError(
            f"does not unpack, it is cut off or damaged: {error}", where=where, fix="pack the file again"
        ) from error
    return unpacked.getvalue()


def _unpack(content: bytes, begin: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """Yield the content of packed files, one after the other, in pieces; zeros may follow each."""
    unpacker = begin()
    for position in range(0, len(content), _INPUT_BYTES):
        waiting = content[position : position + _INPUT_BYTES]
        while waiting:
            if unpacker.eof:
                waiting = waiting.lstrip(b"\0")
                if not waiting:
                    break
                unpacker = begin()
            yield unpacker.decompress(waiting)
            waiting = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError("its end is missing")


def _begin_gzip() -> _Unpacker:
    return zlib.decompressobj(_GZIP_BITS)


def _begin_zstd() -> _Unpacker:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
