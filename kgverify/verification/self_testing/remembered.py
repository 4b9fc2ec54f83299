"""Successes of the known answers that commands remember from one process to the next, for identical code alone.

A success counts for the same source of kgverify and of the reference, the same compiled code, and the same versions of what it
runs on. Only `kgverify diff` and `kgverify record` ask for it, and only if they run no engine of a third party: such an engine
may change the judge in memory. Each failure to read or to write means that the known answers are checked.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final

from kgverify.errors import UserError
from kgverify.files.cache import find_cache
from kgverify.files.writing import write_file
from kgverify.version import IMPORTED_AT

MOST_KEPT: Final = 64
"""The number of successes kept; the oldest ones are removed."""

_PACKAGES: Final = ("kgverify", "kgreference")
_LIBRARIES: Final = ("numpy", "h5py", "msgspec", "xxhash")
_VARIABLES: Final = ("PYTHON", "NPY_", "HDF5_", "OPENBLAS_")
"""The beginnings of the names of environment variables that may change what the judge computes."""

_is_allowed: ContextVar[bool] = ContextVar("is_allowed", default=False)


@contextmanager
def remembering() -> Iterator[None]:
    """Let successes of earlier processes count, and remember new ones."""
    token = _is_allowed.set(True)
    try:
        yield
    finally:
        _is_allowed.reset(token)


def check_once(checks: dict[str, Callable[[], None]]) -> None:
    """Run named checks, each of which raises on failure; those that succeeded before with this very code are left out."""
    folder = find_folder() if _is_allowed.get() else None
    before = identify_code() if folder is not None else None
    left = dict(checks)
    if folder is not None and before is not None:
        left = {name: check for name, check in checks.items() if not _is_remembered(folder, before, name)}
    for check in left.values():
        check()
    # Code that changed in the meantime is not the code that was checked.
    if folder is not None and left and before is not None and identify_code() == before:
        for name in left:
            _remember(folder, before, name)


def find_folder() -> Path | None:
    """Return the folder in which successes are remembered; None if nothing is."""
    cache = find_cache()
    return None if cache is None else cache / "known-answers"


def _path(folder: Path, code: str, name: str) -> tuple[Path, bytes]:
    content = f"{name} {code}\n".encode()
    return folder / hashlib.sha256(content).hexdigest(), content


def _is_remembered(folder: Path, code: str, name: str) -> bool:
    path, content = _path(folder, code, name)
    try:
        return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def _remember(folder: Path, code: str, name: str) -> None:
    path, content = _path(folder, code, name)
    with suppress(OSError, UserError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, content)
        kept = sorted((each for each in folder.iterdir() if each.is_file()), key=lambda each: each.stat().st_mtime)
        for each in kept[:-MOST_KEPT]:
            each.unlink()


def identify_code() -> str | None:
    """Return a hash of all the code that gives known answers, and of what it runs on; None if it is not certain what runs."""
    digest = hashlib.sha256()
    try:
        for name in _PACKAGES:
            _hash_package(name, digest.update)
        versions = [f"{name} {version(name)}" for name in _LIBRARIES]
    except (ImportError, OSError, ValueError, _UncertainCode):
        return None
    variables = sorted(each for each in os.environ.items() if each[0].startswith(_VARIABLES))
    machine = platform.system(), platform.release(), platform.machine(), platform.node()
    digest.update(repr((sys.version, sys.flags, versions, variables, machine)).encode())
    return digest.hexdigest()


class _UncertainCode(Exception):
    """The loaded code may be another one than that on disk."""


def _hash_package(name: str, update: Callable[[bytes], None]) -> None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise _UncertainCode
    root = Path(spec.origin).parent
    for module in [each for key, each in sys.modules.items() if key.partition(".")[0] == name]:
        file = getattr(module, "__file__", None)
        if file is None or type(module.__loader__) is not SourceFileLoader or not Path(file).is_relative_to(root):
            raise _UncertainCode
    for path in sorted(root.rglob("*")):
        if path.suffix == ".pyc" or not path.is_file():
            continue
        status = path.stat()
        if max(status.st_mtime, status.st_ctime) >= IMPORTED_AT:
            # It may have been changed after it was imported.
            raise _UncertainCode
        content = path.read_bytes()
        update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
        compiled = Path(cache_from_source(str(path))) if path.suffix == ".py" else path
        if compiled != path and compiled.is_file():
            update(compiled.read_bytes())
