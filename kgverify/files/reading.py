"""The one way in: every file that kgverify reads is opened here.

A file may come from a stranger. A named pipe or a terminal would block, a device has no end, a file under `/proc` has no
size, and a sparse file can take a terabyte of memory but no space on disk. All of them are refused before anything is read.
The check uses the descriptor, so nobody can exchange the file after it was checked.
"""

import gzip
import os
import re
import stat
import struct
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from kgverify.errors import UserError

MAX_BYTES: Final = 1 << 30
"""The default maximum size in bytes of a file that is read into memory as a whole."""
MAX_RATIO: Final = 64
"""The maximum ratio of bytes in memory to bytes on disk. Text is rarely packed better than 20 to 1, numbers than 40 to 1."""
MIN_EXPANDED_BYTES: Final = 16 << 20
"""The number of bytes to which any file may expand, however small it is."""

_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
STANDARD_INPUT: Final = "-"
"""The path that a user types for standard input."""

_MAX_EXTENTS: Final = 1 << 10
_PIECE: Final = 1 << 20


_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_file(path: Traversable, *, purpose: str, max_bytes: int = MAX_BYTES, standard_input: bool = False) -> bytes:
    """Return the content of a file.

    Args:
        path: The file, or a resource of a package.
        purpose: What the file should be, such as "a budget", for errors.
        max_bytes: Longer files are refused before they are read.
        standard_input: Whether the user may have typed this path: then `-` is standard input.

    Raises:
        UserError: The file cannot be read, is not a regular file, or is too long.
    """
    if not isinstance(path, Path):
        with _translated(str(path), purpose), path.open("rb") as resource:
            return _read_at_most(cast(BufferedReader, resource), max_bytes, str(path))
    with open_file(path, purpose=purpose, max_bytes=max_bytes, standard_input=standard_input) as file:
        return _read_at_most(file, max_bytes, str(path))


@contextmanager
def open_file(
    path: Path, *, purpose: str, max_bytes: int | None = None, standard_input: bool = False
) -> Iterator[BufferedReader]:
    """Open a file and yield its bytes as a stream.

    Standard input is yielded as it is: it may have no end and no descriptor of a regular file.

    Args:
        path: The file.
        purpose: What the file should be, such as "a trace", for errors.
        max_bytes: Longer files are refused; None for any length.
        standard_input: Whether the user may have typed this path: then `-` is standard input.

    Raises:
        UserError: The file cannot be read, is not a regular file, or is too long.
    """
    where = str(path)
    if standard_input and where == STANDARD_INPUT:
        if sys.stdin is None:
            raise UserError("standard input is closed", where=where, fix=f"give the path of {purpose}")
        yield cast(BufferedReader, sys.stdin.buffer)
        return
    with (
        open_descriptor(path, purpose=purpose, max_bytes=max_bytes) as descriptor,
        os.fdopen(descriptor, "rb", closefd=False) as file,
    ):
        yield file


@contextmanager
def open_descriptor(path: Path, *, purpose: str, max_bytes: int | None = None) -> Iterator[int]:
    """Open a file as `open_file` does, and yield its descriptor."""
    where = str(path)
    with _translated(where, purpose):
        descriptor = os.open(path, _FLAGS)
    try:
        with _translated(where, purpose):
            _check_descriptor(descriptor, where, purpose, max_bytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_descriptor(descriptor: int, where: str, purpose: str, max_bytes: int | None) -> None:
    """Raise a UserError unless an open file is a regular file whose bytes are on disk."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
        raise UserError(f"is {kind}, expected a regular file", where=where, fix=f"give the path of {purpose}")
    if status.st_dev in _devices_without_files() or (not status.st_size and os.pread(descriptor, 1, 0)):
        raise UserError(
            "is made by the system while it is read, expected a file on disk",
            where=where,
            fix=f"give the path of {purpose}",
        )
    if max_bytes is not None and status.st_size > max_bytes:
        raise _too_long(f"{status.st_size:,} bytes", max_bytes, where)
    if status.st_size > MIN_EXPANDED_BYTES and _is_sparse(descriptor, status.st_size):
        raise UserError(
            f"says that it takes {status.st_size:,} bytes, but is almost empty on disk",
            where=where,
            fix=f"give {purpose} that was written as a whole",
        )
    os.lseek(descriptor, 0, os.SEEK_SET)


def _devices_without_files() -> set[int]:
    """Return the devices of file systems whose entries are not real files."""
    found = {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}
    # Without such a file system, the folder, if it exists, is on the disk.
    return found - {os.stat("/").st_dev}


def _is_sparse(descriptor: int, size: int) -> bool:
    """Return whether the ratio of a file's size to its bytes on disk is above `MAX_RATIO`."""
    if not hasattr(os, "SEEK_DATA"):
        return False
    position = stored = 0
    for _ in range(_MAX_EXTENTS):
        try:
            begin = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError:
            # The rest of the file is a hole.
            break
        stored += position - begin
        if stored * MAX_RATIO >= size:
            return False
    return True


def _read_at_most(file: BufferedReader, max_bytes: int, where: str) -> bytes:
    """Read to the end. UserError for more than `max_bytes`."""
    content = BytesIO()
    while piece := file.read(_PIECE):
        if content.tell() + len(piece) > max_bytes:
            raise _too_long(f"more than {max_bytes:,} bytes", max_bytes, where)
        content.write(piece)
    return content.getvalue()


def _too_long(found: str, max_bytes: int, where: str) -> UserError:
    return UserError(
        f"takes {found}, expected at most {max_bytes:,}", where=where, fix="give a shorter file, or split this one"
    )


@contextmanager
def _translated(where: str, purpose: str) -> Iterator[None]:
    """Translate an OSError into a UserError."""
    try:
        yield
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
    except ValueError:
        message = "cannot be read: the path holds the character NUL"
    else:
        return
    raise UserError(message, where=where, fix=f"give the path of {purpose}, and check its permissions")


_Kind = TypeVar("_Kind")

NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The decoder's errors for content that is not JSON, does not have the expected type, or is nested too deeply."""

MAX_JSON_BYTES: Final = 64 << 20
"""The maximum size in bytes of a JSON file, which takes up to twenty times as much memory when decoded."""
_MAX_TOML_BYTES: Final = 1 << 20
_MAX_TOML_LINE: Final = 10_000
"""The maximum length in bytes of a line: the time to parse a dotted key grows with the square of the number of dots."""


def read_json(path: Path, kind: type[_Kind], *, purpose: str, fix: str, max_bytes: int = MAX_JSON_BYTES) -> _Kind:
    """Read a file of JSON that holds one value of a type. UserError for any other file.

    Args:
        path: The file.
        kind: The type of its content.
        purpose: What the file should be, such as "a report", for errors.
        fix: The advice if it is something else.
        max_bytes: Longer files are refused before they are read.
    """
    content = read_file(path, purpose=purpose, max_bytes=max_bytes)
    return decode_json(content, kind, where=str(path), purpose=purpose, fix=fix)


def decode_json(content: bytes, kind: type[_Kind], *, where: str, purpose: str, fix: str) -> _Kind:
    """Decode JSON to a value of a type. UserError for anything else."""
    try:
        return msgspec.json.decode(content, type=kind)
    except NOT_JSON as error:
        raise UserError(f"is not {purpose}: {error}", where=where, fix=fix) from error


def read_toml(path: Path, *, purpose: str, fix: str) -> dict[str, Any]:
    """Read a TOML file. UserError if it cannot be read, or is not TOML."""
    content = read_file(path, purpose=purpose, max_bytes=_MAX_TOML_BYTES)
    longest = max(map(len, content.split(b"\n")))
    if longest > _MAX_TOML_LINE:
        raise UserError(
            f"has a line of {longest:,} bytes, expected at most {_MAX_TOML_LINE:,}",
            where=str(path),
            fix="break the line",
        )
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"is not UTF-8 text: {error}", where=str(path), fix="save the file in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not TOML: {error}", where=str(path), fix=fix) from error


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_MAX_WINDOW: Final = 128 << 20
"""The maximum memory in bytes that a zstd frame or an xz stream may request: as much as `zstd --long`, or twice `xz -9`."""
_INPUT_BYTES: Final = 4 << 10
"""The number of bytes of a packed file that are read at once."""
_OUTPUT_BYTES: Final = 1 << 20
"""The number of bytes that are unpacked at once: 4 KiB of bzip2 or zstd may contain gigabytes."""
_ZIP_ENTRY: Final = b"PK\1\2"
_MAX_ZIP_ENTRIES: Final = 1_000
_MAX_LISTED: Final = 5
_MAX_SHOWN: Final = 80


def is_packed(content: bytes) -> bool:
    """Return whether bytes begin like one of the packed formats."""
    return any(sign.match(content) for sign, _ in _FORMATS)


def decompress(content: bytes, *, where: str, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a packed file; return any other content unchanged.

    UserError for damaged bytes, for a zip that does not contain exactly one file, and before the content exceeds `max_bytes`
    or the size that an honest file could have.
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
    # bzip2 raises OSError, and zip the last two.
    except (zlib.error, zstd.ZstdError, EOFError, OSError, ValueError, struct.error) as error:
        raise UserError(
            f"does not unpack, it is cut off or damaged: {error}", where=where, fix="pack the file again"
        ) from error
    return unpacked.getvalue()


class _Refusal(Exception):
    """A packed file that does not contain exactly one text, with the finding and the advice."""


def _unpack(content: bytes, begin: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of concatenated packed files in pieces; zeros may follow each file.

    begin: returns a standard-library decompressor for one packed file
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
    # Some builds of Python lack this module and the next one.
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

    # The list of files is read as a whole, before any limit on it can be checked.
    if content.count(_ZIP_ENTRY) > _MAX_ZIP_ENTRIES:
        raise _Refusal(f"is a zip of more than {_MAX_ZIP_ENTRIES:,} files, expected one", "unpack it")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            # macOS adds a description of each file in a separate folder.
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
    # A plain text may also begin with BZh.
    (re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), _unpack_bzip2),
    (re.compile(rb"\xfd7zXZ\0"), _unpack_xz),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06)"), _unpack_zip),
)
"""The first bytes of each format, and the function that unpacks it."""
