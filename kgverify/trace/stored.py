"""What is known of the datasets of a trace file, and what is asked of them whatever library reads them."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.disk import bytes_of
from kgverify.trace.schema import RECORD_AGAIN, TOGETHER, Arrays


class StoredArray(NamedTuple):
    """A dataset that passed every check but that of its checksum.

    dtype, shape: as the format prescribes
    offset:       of its first byte in the file; None where it is chunked or compact, and is read through HDF5
    checksum:     as stored with it
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int | None
    checksum: int


class Examination(NamedTuple):
    """The datasets of a file by path: those that their checksums vouch for, those that could be read, what is wrong."""

    intact: Arrays
    altered: Arrays
    problems: dict[str, str]


def check_together(found: Container[str], path: Path) -> None:
    """UserError where a file holds some of the datasets that it may hold together alone."""
    for group in TOGETHER:
        held = [name for name in group if name in found]
        if held and len(held) < len(group):
            missing = next(name for name in group if name not in found)
            raise UserError(
                f"missing, while {held[0]} is there",
                where=f"{path}:{missing}",
                fix=f"write all of {', '.join(group)}, or none",
            )


def little_endian(given: NDArray[Any] | Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The parts of a dataset as they are written; copies only where they are not so already."""
    pieces = [given] if isinstance(given, np.ndarray) else given
    return [np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")) for piece in pieces]


def hash_rows(pieces: Sequence[NDArray[Any]]) -> int:
    """xxh3 of rows after rows."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(bytes_of(piece))
    return digest.intdigest()


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
