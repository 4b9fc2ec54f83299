"""The manifest of a trace in shards, and the file operations that survive a kill at any moment."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.files.reading import NOT_JSON, read_file
from kgverify.files.writing import (
    OutputLock,
    describe_write_error,
    exchange,
    lock_beside,
    make_folder,
    name_error,
    refuse_link,
    remove_temporary,
    remove_tree,
    renamed_into,
    sync_folder,
    temporary_beside,
    write_file,
)
from kgverify.trace.model.header import SCHEMA_VERSION, check_version
from kgverify.trace.model.schema import FORMAT, RECORD_AGAIN

Buffer = bytes | memoryview
Placed = tuple[int, Sequence[Buffer]]
"""An offset in a file, and the buffers written there, one after the other."""

_MAX_BYTES: Final = 1 << 30
"""The most bytes passed to one call; Linux accepts at most 2 GiB minus one page."""


def bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def little_endian(given: NDArray[Any] | Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return an array, or its parts, as a list of contiguous little-endian arrays, the form on disk."""
    pieces = [given] if isinstance(given, np.ndarray) else given
    return [np.ascontiguousarray(piece, piece.dtype.newbyteorder("<")) for piece in pieces]


def checksum_of(pieces: Sequence[NDArray[Any]]) -> int:
    """Return the xxh3 checksum of the bytes of consecutive parts."""
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(bytes_of(piece))
    return digest.intdigest()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file and yield its descriptor; refuse a symbolic link."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write buffers one after the other, starting at an offset, without joining them."""
    for buffer in buffers:
        left = memoryview(buffer)
        while left:
            written = os.pwritev(descriptor, [left[:_MAX_BYTES]], offset)
            left, offset = left[written:], offset + written


def write_placed(descriptor: int, placed: Sequence[Placed]) -> None:
    """Write all buffers at their offsets."""
    for offset, buffers in placed:
        write_all(descriptor, buffers, offset)


MANIFEST: Final = "manifest.json"
CODE: Final = "code.json"
"""The file in the folder of an unfinished recording that identifies the code that records."""
_MAX_MANIFEST_BYTES: Final = 64 << 20


class Shard(msgspec.Struct, frozen=True):
    """One file of the folder.

    size: bytes of the file
    xxh3: the checksum of the file, 16 hexadecimal digits
    root: root digest of its steps, 16 hexadecimal digits
    """

    name: str
    size: int
    num_candidates: int
    num_steps: int
    xxh3: str
    root: str


class ShardError(UserError):
    """The error for a shard that does not match the manifest.

    name:   the shard's file
    reason: `missing`, `altered` or `misplaced`
    stated: the name that a misplaced shard states; empty if it states none
    """

    def __init__(
        self,
        message: str,
        *,
        name: str,
        reason: str,
        where: str,
        fix: str = RECORD_AGAIN,
        stated: str = "",
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.name, self.reason, self.stated = name, reason, stated


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a folder of shards; a file missing from this list does not belong to the trace.

    has_gaps: candidates between those recorded were lost, so the recording cannot be resumed
    """

    is_complete: bool
    num_candidates: int
    num_steps: int
    root: str
    shards: tuple[Shard, ...]
    format: str
    schema_version: int
    creator: str = ""
    has_gaps: bool = False


def list_shards(shards: tuple[Shard, ...], *, is_complete: bool, creator: str, has_gaps: bool = False) -> Manifest:
    """Make the manifest of these shards."""
    return Manifest(
        is_complete=is_complete,
        num_candidates=sum(s.num_candidates for s in shards),
        num_steps=sum(s.num_steps for s in shards),
        root=render_hash(sum(int(s.root, 16) for s in shards) % (1 << 64)),
        shards=shards,
        format=FORMAT,
        schema_version=SCHEMA_VERSION,
        creator=creator,
        has_gaps=has_gaps,
    )


def replace_shards(manifest: Manifest, shards: tuple[Shard, ...]) -> Manifest:
    """Make a manifest that lists other shards of the same recording, in this version of the schema."""
    facts: dict[str, Any] = {name: getattr(manifest, name) for name in ("is_complete", "creator", "has_gaps")}
    return list_shards(shards, **facts)


def render_hash(value: int) -> str:
    """Return 16 hexadecimal digits."""
    return f"{value:016x}"


def shard_name(*numbers: int) -> str:
    """Return the name of a shard's file. A piece of the shard being recorded has its own number appended."""
    return f"shard-{'-'.join(f'{number:05d}' for number in numbers)}.h5"


def numbers_of(name: str) -> tuple[int, ...]:
    """Parse the numbers of a shard, and of a piece of it, from the name of its file; return none for another name."""
    if not re.fullmatch(r"shard-[0-9]{5,19}(-[0-9]{5,19})?\.h5", name):
        return ()
    numbers = tuple(map(int, name[6:-3].split("-")))
    return numbers if shard_name(*numbers) == name else ()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a folder, and check that it is consistent.

    UserError if the manifest is missing or contradicts itself.
    """
    path = folder / MANIFEST
    refuse_link(path)
    if not path.is_file():
        raise UserError(
            f"no {MANIFEST} in this folder, expected a trace",
            where=str(folder),
            fix="give the path of a trace",
        )
    content = read_file(path, purpose="the manifest of a trace", max_bytes=_MAX_MANIFEST_BYTES)
    try:
        raw = msgspec.json.decode(content)
        if isinstance(raw, dict) and raw.get("format") == FORMAT:
            check_version(raw.get("schema_version"), str(path))
        manifest = msgspec.convert(raw, Manifest)
        problem = next(_find_problems(manifest), "")
    except NOT_JSON as error:
        problem = f"not a manifest: {error}"
    if problem:
        raise UserError(problem, where=str(path), fix=RECORD_AGAIN)
    return manifest


def _find_problems(manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with the content of a manifest."""
    if manifest.format != FORMAT:
        yield f"format is {manifest.format!r}, expected {FORMAT!r}"
    names = [shard.name for shard in manifest.shards]
    for name in names:
        if not numbers_of(name):
            yield f"a shard is named {name!r}, expected a name such as {shard_name(0)!r}"
    for name, later in pairwise(names):
        if numbers_of(later) <= numbers_of(name):
            yield f"a shard is named {later!r}, expected a number above that of the shard before it"
    for index, shard in enumerate(manifest.shards):
        if not all(re.fullmatch("[0-9a-f]{16}", digits, re.ASCII) for digits in (shard.xxh3, shard.root)):
            yield f"shard {index} has hashes that are not 16 hexadecimal digits"
    total = replace_shards(manifest, manifest.shards)
    if total != manifest:
        yield (
            f"says {manifest.num_candidates} candidates, {manifest.num_steps} steps and root {manifest.root},"
            f" but its shards add up to {total.num_candidates}, {total.num_steps} and {total.root}"
        )


def find_shard(folder: Path, shard: Shard) -> Path:
    """Return the path of the shard's file. ShardError if it is missing, or not a regular file."""
    path = folder / shard.name
    refuse_link(path)
    if not path.is_file():
        message, reason = (
            ("is not a regular file", "altered")
            if path.exists()
            else ("missing, expected because the manifest lists it", "missing")
        )
        raise ShardError(message, name=shard.name, reason=reason, where=str(path))
    return path


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the folder's manifest atomically."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    with renamed_into(folder / MANIFEST, is_durable=True) as path, opened(path, os.O_WRONLY) as descriptor:
        write_all(descriptor, [content], 0)


@contextmanager
def new_trace(path: Path) -> Iterator[Path]:
    """Yield a path for a trace in one file that replaces any trace at `path`; after an error, the old trace stays."""
    with renamed_into(path, is_durable=True, rename=put_in_place) as temporary:
        yield temporary


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder for a trace that replaces any trace at `path`; after an error, the old trace stays."""
    folder = temporary_beside(path)
    make_folder(folder)
    try:
        yield folder
        put_in_place(folder, path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def put_in_place(new: Path, path: Path) -> None:
    """Rename a finished file or folder to `path`, replacing any trace there: after a kill, one of the two is there, whole."""
    if new.is_dir() and not (new / CODE).exists():
        write_file(new / CODE, "{}")
    if path.is_dir() or (path.exists() and new.is_dir()):
        # A single rename cannot replace a folder that is not empty.
        check_replaceable(path)
        old = new
        try:
            exchange(new, path)
        except OSError:
            old = replaced_of(path)
            path.rename(old)
            new.rename(path)
        sync_folder(path.parent)
        _remove_aside(old, path)
    else:
        new.replace(path)
    if path.is_dir():
        (path / CODE).unlink(missing_ok=True)
    sync_folder(path.parent)


def replaced_of(path: Path) -> Path:
    """Return the name that the old trace has during its replacement if the file system cannot exchange names."""
    return path.with_name(path.name + ".replaced")


def finish_replacing(path: Path, new: Path) -> None:
    """Finish the work of `put_in_place` in a process that was killed. The caller holds the lock of the trace."""
    aside = replaced_of(path)
    if aside.exists() and not path.exists():
        aside.rename(path)
    elif aside.exists():
        check_replaceable(aside)
        _remove_aside(aside, path)
    if (path / CODE).is_file():
        # CODE came with the new trace, so `new` may be the name of the old trace.
        with suppress(UserError):
            if new.is_file() or (not (new / CODE).exists() and read_manifest(new).is_complete):
                _remove_aside(new, path)
        (path / CODE).unlink()


def _remove_aside(aside: Path, path: Path) -> None:
    """Delete a trace that was at `path`, under a temporary name, so that the rest is found and deleted after a kill."""
    removed = temporary_beside(path)
    aside.rename(removed)
    remove_tree(removed)


def check_replaceable(path: Path) -> None:
    """Raise a UserError for a folder that is not a trace."""
    if path.is_dir() and not (path / MANIFEST).is_file():
        raise UserError(
            "a folder that is not a trace is in the way", where=str(path), fix="move it, or choose another path"
        )


def copy_trace(source: Path, target: Path) -> None:
    """Copy a trace to a path where nothing exists. Links inside a folder stay links, which no reader follows."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        with renamed_into(target) as temporary:
            shutil.copyfile(source, temporary)


def partial_of(path: Path) -> Path:
    """Return the folder that holds the shards of a trace until it is complete."""
    return path.with_name(path.name + ".partial")


def lock_trace(path: Path, *, overwrites: bool = True) -> OutputLock:
    """Lock a trace, or an unfinished recording, and delete the temporary files that killed writers left behind.

    UserError if another process holds the lock or, unless `overwrites`, if the trace exists already.
    """
    path = path.with_name(path.name.removesuffix(".partial"))
    if not path.parent.is_dir():
        raise UserError("its folder does not exist", where=str(path), fix=f"create {path.parent} first")
    lock = lock_beside(path, "this trace")
    remove_temporary(path.parent, path)
    finish_replacing(path, partial_of(path))
    if path.exists() and not overwrites:
        lock.release()
        raise UserError("already exists", where=str(path), fix="choose another path, or overwrite it with --overwrite")
    return lock


def check_output_path(path: Path) -> None:
    """Raise a UserError if no trace can be written to a path."""
    refuse_link(path)
    refuse_link(partial_of(path))
    check_replaceable(path)


def check_no_partial(partial: Path) -> None:
    """Raise a UserError if an unfinished recording exists."""
    if partial.exists():
        raise UserError(
            "a recording that did not finish is in the way",
            where=str(partial),
            fix="resume it, or delete this folder",
        )


def explain_failed_write(what: str, error: OSError, num_safe: int, partial: Path, where: str) -> UserError:
    """Make the error for a failed write, which states how many candidates are safe."""
    reason = describe_write_error(error, partial.parent)
    safe = f"the first {num_safe:,} candidates are safe in {partial}" if num_safe else "nothing was safe yet"
    return name_error(error)(
        f"{what} cannot be written: {reason}; {safe}",
        where=where,
        fix="make room, or see to the permissions; then resume the recording"
        + (f", or keep what there is: kgverify trace repair {shlex.quote(str(partial))}" if num_safe else ""),
    )


def count_safe(partial: Path) -> tuple[int, int]:
    """Count the candidates and steps that are committed in an unfinished recording."""
    try:
        manifest = read_manifest(partial)
    except UserError:
        return 0, 0
    return manifest.num_candidates, manifest.num_steps


def remove_left_over(folder: Path, manifest: Manifest | None = None) -> None:
    """Remove temporary files and shards that the manifest does not list: they do not belong in a finished trace."""
    listed = () if manifest is None else tuple(shard.name for shard in manifest.shards)
    for path in [*folder.glob("*.tmp"), *folder.glob("shard-*.h5")]:
        if path.name not in listed:
            path.unlink(missing_ok=True)


def remove_partial(partial: Path) -> None:
    """Remove the folder of a recording that was finished as one file."""
    if partial.is_dir():
        for name in (MANIFEST, CODE):
            (partial / name).unlink(missing_ok=True)
        remove_left_over(partial)
        partial.rmdir()
