"""Packed files: gzip, zstd, bzip2, xz and zip with one file in it.

They are recognised by their first bytes, and unpacked no further than an honest file would go.
"""

import gzip
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Final

from kgverify.errors import UserError
from kgverify.files.reading import MAX_BYTES, MAX_RATIO, MIN_EXPANDED_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAX_WINDOW: Final = 128 << 20
"""Bytes of memory that a zstd frame or an xz stream may ask for: what `zstd --long` uses, and twice what `xz -9` does."""
_INPUT_BYTES: Final = 4 << 10
"""Bytes of a packed file that are read at once."""
_OUTPUT_BYTES: Final = 1 << 20
"""Bytes that are unpacked at once: 4 KiB of bzip2 or zstd may hold gigabytes."""
_ZIP_ENTRY: Final = b"PK\1\2"
_MAX_ZIP_ENTRIES: Final = 1_000
_MAX_LISTED: Final = 5
_MAX_SHOWN: Final = 80


def is_packed(content: bytes) -> bool:
    """Return whether bytes begin as one of the packed formats does."""
    return any(sign.match(content) for sign, _ in _FORMATS)


def decompress(content: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the unpacked content of a packed file, and anything else as it is.

    UserError for damaged bytes, for a zip with other than one file, and before more is unpacked than `max_bytes` or than an
    honest file holds.
    """
    unpack = next((each for sign, each in _FORMATS if sign.match(content)), None)
    if unpack is None:
        return content
    most = min(max_bytes, max(MIN_EXPANDED_BYTES, MAX_RATIO * len(content)))
    unpacked = BytesIO()
    try:
        for piece in unpack(content):
            if unpacked.tell() + len(piece) > most:
                raise UserError(
                    f"{len(content):,} packed bytes unpack to more than {most:,}",
                    where=where,
                    fix="unpack the file, look whether it is what it should be, and give the unpacked one",
                )
            unpacked.write(piece)
    except _Refusal as refusal:
        found, fix = refusal.args
        raise UserError(found, where=where, fix=fix) from None
    except ImportError as error:
        raise UserError(
            f"cannot be unpacked: this Python lacks the module {error.name}", where=where, fix="unpack the file first"
        ) from error
    # An OSError comes from bzip2, the last two from a zip.
    except (zlib.error, zstd.ZstdError, EOFError, OSError, ValueError, struct.error) as error:
        raise UserError(
            f"does not unpack, it is cut off or damaged: {error}", where=where, fix="pack the file again"
        ) from error
    return unpacked.getvalue()


class _Refusal(Exception):
    """A packed file that does not hold exactly one text, with what was found and the advice."""


def _unpack(content: bytes, begin: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of packed files, one after the other, in pieces; zeros may follow each.

    begin: returns a decompressor of the standard library for one packed file
    """
    unpacker = begin()
    for position in range(0, len(content), _INPUT_BYTES):
        waiting = content[position : position + _INPUT_BYTES]
        while waiting:
            if unpacker.eof:
                waiting = waiting.lstrip(b"\0")
                if not waiting:
                    break
                unpacker = begin()
            yield unpacker.decompress(waiting, max_length=_OUTPUT_BYTES)
            while not (unpacker.eof or unpacker.needs_input):
                yield unpacker.decompress(b"", max_length=_OUTPUT_BYTES)
            waiting = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError("its end is missing")


def _unpack_gzip(content: bytes) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=BytesIO(content)) as file:
        while piece := file.read(_OUTPUT_BYTES):
            yield piece


def _unpack_zstd(content: bytes) -> Iterator[bytes]:
    options = {int(zstd.DecompressionParameter.window_log_max): _MAX_WINDOW.bit_length() - 1}
    return _unpack(content, lambda: zstd.ZstdDecompressor(options=options))


def _unpack_bzip2(content: bytes) -> Iterator[bytes]:
    # Some builds of Python lack this module, and the next one.
    import bz2

    return _unpack(content, bz2.BZ2Decompressor)


def _unpack_xz(content: bytes) -> Iterator[bytes]:
    import lzma

    try:
        yield from _unpack(content, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_WINDOW))
    except lzma.LZMAError as error:
        raise EOFError(str(error)) from error


def _unpack_zip(content: bytes) -> Iterator[bytes]:
    import zipfile

    # The list of files is read as a whole before any limit on it can be checked.
    if content.count(_ZIP_ENTRY) > _MAX_ZIP_ENTRIES:
        raise _Refusal(f"is a zip of more than {_MAX_ZIP_ENTRIES:,} files, expected one", "unpack it")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            # macOS adds a description of each file in a folder of its own.
            files = [
                each for each in archive.infolist() if not (each.is_dir() or each.filename.startswith("__MACOSX/"))
            ]
            if len(files) != 1:
                listed = ", ".join(repr(each.filename[:_MAX_SHOWN]) for each in files[:_MAX_LISTED]) or "none"
                more = " ..." * (len(files) > _MAX_LISTED)
                raise _Refusal(
                    f"is a zip of {len(files)} files, expected one: {listed}{more}", "unpack it, and give its folder"
                )
            (member,) = files
            if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                shown = member.filename[:_MAX_SHOWN]
                raise _Refusal(
                    f"{shown!r} in it is encrypted, or packed in an unusual way", "pack it with gzip instead"
                )
            with archive.open(member) as file:
                while piece := file.read(_OUTPUT_BYTES):
                    yield piece
    except (zipfile.BadZipFile, RuntimeError, LookupError) as error:
        raise EOFError(str(error)) from error


_FORMATS: Final[tuple[tuple[re.Pattern[bytes], Callable[[bytes], Iterator[bytes]]], ...]] = (
    (re.compile(rb"\x1f\x8b"), _unpack_gzip),
    (re.compile(rb"\x28\xb5\x2f\xfd"), _unpack_zstd),
    # A text may begin with BZh.
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), _unpack_bzip2),
    (re.compile(rb"\xfd7zXZ\0"), _unpack_xz),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), _unpack_zip),
)
"""The first bytes of each format, and what unpacks it."""
