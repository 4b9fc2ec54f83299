"""What is known of one trace file, and how its opening and what is wrong with it are told."""

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.hdf5.byte_ranges import Place, read_place
from kgverify.trace.model.header import READABLE_VERSIONS, SCHEMA_VERSION, expected_versions
from kgverify.trace.model.schema import FIELDS, FORMAT, RECORD_AGAIN, Arrays, Field

_MAX_HEADER_BYTES: Final = 64 << 20


class FileContent(NamedTuple):
    """One file: its known datasets and the others by path, and what cannot be kept of it.

    is_archived: packed as small as HDF5's own filters can
    """

    arrays: Arrays
    unknown: Arrays
    dropped: tuple[str, ...]
    is_archived: bool = False


Identity = tuple[int, int, int]
"""Which file it is: its device, its number there, its size."""


class StoredArray(NamedTuple):
    """A dataset that passed every check but that of its checksum.

    checksum: as stored with it; None where a dataset that the schema does not name has none
    """

    place: Place
    checksum: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the dataset."""
        return self.place.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the dataset, little-endian."""
        return self.place.dtype


class StoredFile(NamedTuple):
    """The known datasets of one file by path; what was judged is that very file, of that size."""

    arrays: dict[str, StoredArray]
    identity: Identity


def missing(field: Field, where: str) -> UserError:
    """The error of a file that lacks a dataset."""
    return UserError(
        f"missing, expected a dataset of {' or '.join(np.dtype(d).name for d in field.dtypes)}",
        where=f"{where}:{field.path}",
        fix="write every dataset that docs/trace-format.md requires at this level",
    )


def check_required(required: frozenset[str], found: Collection[str], where: str) -> None:
    """UserError for a required dataset that was not found."""
    for field in FIELDS:
        if field.path in required and field.path not in found:
            raise missing(field, where)


def check_format(found: str | None, where: str) -> None:
    """UserError unless the root attribute `format` is that of a trace."""
    fix = "give a trace that kgverify, or a writer following docs/trace-format.md, made"
    if found is None:
        raise UserError("HDF5, but without the root attribute `format`: not a trace", where=where, fix=fix)
    if found != FORMAT:
        raise UserError(f"the root attribute `format` is {found!r}, expected {FORMAT!r}", where=where, fix=fix)


def check_version(version: int | None, where: str) -> None:
    """UserError for a schema version that cannot be read."""
    if version not in READABLE_VERSIONS:
        newer = version is not None and version > SCHEMA_VERSION
        raise UserError(
            f"schema version is {version}, expected {expected_versions()}",
            where=where,
            fix="read it with a newer kgverify" if newer else "record the trace again with this kgverify",
        )


def check_shape(shape: tuple[int, ...] | None, field: Field, place: str) -> tuple[int, ...]:
    """The shape. UserError unless it is one that the field may have."""
    if shape is None or len(shape) != 1 + bool(field.width) or (field.width and shape[1] != field.width):
        raise UserError(
            f"shape is {list(shape or ())}, expected {field.shape_text}",
            where=place,
            fix=f"write it with shape {field.shape_text}",
        )
    if field.path == "header" and shape[0] > _MAX_HEADER_BYTES:
        raise UserError(
            f"takes {shape[0]} bytes, expected at most {_MAX_HEADER_BYTES}", where=place, fix="write a shorter header"
        )
    return shape


def read_stored(descriptor: int, stored: StoredArray) -> NDArray[Any]:
    """The whole dataset. UserError for data that are cut off, do not unpack, or were altered."""
    with told_as_user_error(stored.place.place):
        array = read_place(descriptor, stored.place)
        check_checksum(xxhash.xxh3_64_intdigest(array.data), stored.checksum, stored.place.place)
        return array


def check_checksum(found: int, stored: int | None, place: str) -> None:
    """UserError unless the two are the same; nothing where none is stored."""
    if stored is not None and found != stored:
        raise UserError(
            f"checksum is {found:016x}, expected {stored:016x}: the data were altered",
            where=place,
            fix=RECORD_AGAIN,
        )


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; a pipe or a device is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise UserError(f"cannot be opened: {error.strerror}", where=str(path), fix="check the path") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError("is not a regular file", where=str(path), fix="give the path of a trace")
        yield descriptor
    finally:
        os.close(descriptor)


def identity_of(descriptor: int) -> Identity:
    """Which file it is that was opened."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size


@contextmanager
def open_again(path: Path, identity: Identity) -> Iterator[int]:
    """A descriptor of the file that was judged. UserError where another has taken its place, or it has another size."""
    with open_regular(path) as descriptor:
        if identity_of(descriptor) != identity:
            raise UserError("was replaced or changed while it was read", where=str(path), fix="read it again")
        yield descriptor


@contextmanager
def told_as_user_error(where: str) -> Iterator[None]:
    """What HDF5 raises on a damaged file becomes a `UserError`."""
    try:
        yield
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"HDF5 cannot read it, it is cut off or damaged: {reason}", where=where, fix=RECORD_AGAIN
        ) from error


@contextmanager
def noting(problems: dict[str, str], name: str) -> Iterator[None]:
    """What is wrong with a dataset is noted, not raised."""
    try:
        with told_as_user_error(name):
            yield
    except UserError as error:
        problems[name] = error.message
