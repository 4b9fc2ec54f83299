"""The native evaluator's library, which is compiled from the sources of this package and kept for later processes.

It is kept under a hash of everything that determines its content: the sources, the compiler, its options and the
processor. It is opened once, and loaded through that descriptor. It is loaded only if it is a file of this user, in a
folder that nobody else can change, and if its content has the hash in its name.
"""

import ctypes
import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from kgverify.engines.table import Built
from kgverify.errors import UserError
from kgverify.files.code_identity import find_cache, find_compiler, hash_file, is_private, make_private, open_private
from kgverify.files.reading import read_file
from kgverify.files.writing import write_file
from kgverify.progress import slow_part

SOURCES: Final = ("prover.cpp", "shared.h", "stages.h", "tower.h")
OPTIONS: Final = ("-O2", "-march=native", "-std=c++17", "-fPIC", "-shared", "-pthread")
MOST_KEPT: Final = 8
"""The number of libraries that are kept; the oldest ones are removed."""
SECONDS: Final = 300
"""The time after which the compiler is stopped."""
UNAVAILABLE: Final = "mode 'native' is not available: "
LIBRARIES: Final = "KGVERIFY_LIBRARIES"
"""The environment variable with the folder of kept libraries, if it is not the one in kgverify's cache."""


def why_not_available() -> str | None:
    """Return the obstacle to compiling the library on this machine; None without one."""
    if os.name != "posix":
        return "it needs Linux or macOS"
    return None if find_compiler() else "no C++ compiler is on the PATH"


@cache
def load_library() -> ctypes.CDLL:
    """Load the library, which is compiled if no earlier process kept it. UserError if it cannot be compiled or loaded."""
    if (obstacle := why_not_available()) is not None:
        raise refuse_native(obstacle)
    compiler = find_compiler()
    assert compiler is not None
    try:
        key, folder = _find_key(compiler), _find_folder()
        if folder is not None and (kept := _load_kept(folder, key)) is not None:
            return kept
        with TemporaryDirectory(prefix="kgverify-") as temporary:
            if not is_private(Path(temporary)):
                raise refuse_native(f"others can replace {temporary}, where it would be compiled: set TMPDIR")
            built = _compile(compiler, Path(temporary))
            if folder is not None:
                _keep(folder, key, built)
            library = _load(built)
            assert library is not None
            return library
    except OSError as error:
        raise refuse_native(f"its library cannot be loaded: {error}") from None


def find_library() -> Built:
    """Return the library that was built on this machine."""
    load_library()
    digest, folder = _loaded[-1], _find_folder()
    return Built("native library", digest, None if folder is None else folder / f"{digest}.tried")


_loaded: Final[list[str]] = []
"""The digests of the libraries that this process loaded."""


def refuse_native(obstacle: str) -> UserError:
    """Return the error for a mode that is not available."""
    return UserError(f"{UNAVAILABLE}{obstacle}", where="mode", fix="use --mode auto, which finds another")


def _find_key(compiler: str) -> str:
    """Return a hash of the sources, the compiler, its options and the processor."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(files(__package__).joinpath(name).read_bytes() + b"\0")
    path = Path(compiler).resolve()
    known = str(path), hash_file(path), OPTIONS, platform.machine(), platform.libc_ver()
    digest.update(repr((*known, _describe_processor())).encode())
    return digest.hexdigest()


def _describe_processor() -> str:
    """Return the processor's name and extensions, for which the library is compiled."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        first = file.read(1 << 16).split("\n\n")[0].splitlines()
        return "\n".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU part")))
    return platform.processor()


def _find_folder() -> Path | None:
    """Return the folder of kept libraries, created if necessary; None unless it belongs to this user only."""
    base, named = find_cache(), os.environ.get(LIBRARIES)
    folder = Path(named) if named else (base or Path()) / "native"
    if not named and base is None:
        return None
    with suppress(OSError):
        make_private(folder)
        if not folder.is_symlink() and is_private(folder):
            return folder
    return None


def _load_kept(folder: Path, key: str) -> ctypes.CDLL | None:
    with suppress(OSError, UserError):
        for path in folder.glob(f"{key}-*.so"):
            if (library := _load(path, key)) is not None:
                return library
    return None


def _load(path: Path, key: str = "") -> ctypes.CDLL | None:
    """Load a library through the checked descriptor; None if its content does not match the hash in its name."""
    with open_private(path, purpose="a library") as descriptor, open(descriptor, "rb", closefd=False) as file:
        digest = hashlib.file_digest(file, hashlib.sha256).hexdigest()
        if key and path.name != f"{key}-{digest}.so":
            return None
        opened = Path(f"/proc/self/fd/{descriptor}")
        # Elsewhere nobody else can replace it: all folders above it belong to this user or to the system.
        library = ctypes.CDLL(str(opened if opened.exists() else path))
    _loaded.append(digest)
    return library


def _keep(folder: Path, key: str, built: Path) -> None:
    """Copy a library to the folder if possible, and remove the oldest ones there."""
    with suppress(OSError, UserError):
        write_file(folder / f"{key}-{hash_file(built)}.so", read_file(built, purpose="a library"))
        for each in sorted(folder.glob("*.so"), key=lambda each: each.lstat().st_mtime)[:-MOST_KEPT]:
            each.unlink()
            (folder / f"{each.stem[len(key) + 1 :]}.tried").unlink(missing_ok=True)


def _compile(compiler: str, folder: Path) -> Path:
    """Compile the library in a folder. UserError if the compiler fails."""
    for name in SOURCES:
        (folder / name).write_bytes(files(__package__).joinpath(name).read_bytes())
    built = folder / "prover.so"
    command = [compiler, *OPTIONS, "-o", str(built), SOURCES[0]]
    try:
        with slow_part("compiling", "about 10 s, once on this machine"):
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise refuse_native(f"the compiler does not run: {error}") from None
    if done.returncode != 0 or not built.is_file():
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise refuse_native(f"{Path(compiler).name} fails: {said}")
    return built
