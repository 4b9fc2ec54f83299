"""The C++ compilers and the GPU driver of this machine, on which compiled code depends."""

import os
import shutil
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from kgverify.files.code_identity import Code, hash_file

COMPILERS: Final = ("g++", "clang++", "c++")


def find_compiler() -> str | None:
    """Return the path of a C++ compiler; None without one."""
    found = _search(os.environ.get("PATH"))
    if found is None:
        # One may be installed while this process runs.
        _search.cache_clear()
    return found


@lru_cache(maxsize=4)
def _search(folders: str | None) -> str | None:
    """Look for the compilers once for each value of PATH."""
    return next((found for name in COMPILERS if (found := shutil.which(name, path=folders))), None)


def identify_compilers() -> Code:
    """Return the compilers by their content."""
    found = {"compiler": find_compiler(), "$CXX": shutil.which(os.environ.get("CXX", ""))}
    return {name: hash_file(Path(path)) for name, path in found.items() if path}


def read_driver() -> str:
    """Return what the driver of NVIDIA's GPUs says of its version; empty without one."""
    with suppress(OSError), open("/proc/driver/nvidia/version", encoding="utf-8") as file:
        return file.readline()
    return ""
