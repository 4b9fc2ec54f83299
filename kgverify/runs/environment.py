"""This environment: whether kgverify's self-test passed here, and which versions kgverify's CI does not test."""

import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from kgverify.files.code_identity import find_cache, find_compiler, has_mark, read_driver
from kgverify.version import __version__

TESTED: Final = {"Python": "3.11", "torch": "2.13", "C++ compiler": "g++ 12"}
"""The versions that CI tests. It has no GPU."""
SELF_TEST: Final = "kgverify doctor --self-test"
SECONDS: Final = 10
"""The time limit for a compiler to report its version."""


def note_self_test() -> str:
    """Return whether the self-test passed in this environment, and what this process uses without being tested in CI."""
    passed = "passed here" if has_mark(find_result()) else "has not passed here"
    untested = [f"{name} {found}" for name, found in _list_used() if not f"{found}.".startswith(f"{TESTED[name]}.")]
    if "torch" in sys.modules and read_driver():
        untested.append("a GPU")
    beyond = f"; CI does not test {' and '.join(untested)}" if untested else ""
    return f"{SELF_TEST} {passed}{beyond}"


def _list_used() -> Iterator[tuple[str, str]]:
    """Yield the items of `TESTED` that this process uses, with their versions."""
    yield "Python", platform.python_version()
    if "torch" in sys.modules:
        yield "torch", _find_version("torch")
    compiler = find_compiler() if "kgverify.prover.native.engine" in sys.modules else None
    if compiler is not None:
        yield "C++ compiler", f"{Path(compiler).name} {_ask_version(compiler)}"


# Each verdict names the version, and reading a package's metadata is slow.
_find_version = lru_cache(version)


@lru_cache(maxsize=4)
def _ask_version(compiler: str) -> str:
    """Return the version that a compiler reports; empty if it does not run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = [compiler, "-dumpversion"]
        return subprocess.run(asked, capture_output=True, text=True, errors="replace", timeout=SECONDS).stdout.strip()
    return ""


@lru_cache(maxsize=1)
def find_result() -> Path | None:
    """Return the file that records that the self-test passed with these versions, this processor and this driver."""
    folder = find_cache()
    if folder is None:
        return None
    known = [__version__, platform.platform(), platform.machine(), platform.python_version(), read_driver()]
    for package in ("torch", "numpy", "triton"):
        with suppress(PackageNotFoundError):
            known.append(f"{package} {version(package)}")
    return folder / f"self-test-{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}"
