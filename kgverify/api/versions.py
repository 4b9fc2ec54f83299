"""The versions of kgverify and the packages that it builds on, found without importing them."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from kgverify.errors import describe_error
from kgverify.version import __version__


def describe_versions() -> list[str]:
    """Return lines with the versions of kgverify, Python, HDF5 and torch. Import neither h5py nor torch."""
    lines = [f"kgverify {__version__}", f"Python {sys.version.split()[0]}"]
    for package, describe in (("h5py", _describe_hdf5), ("torch", _describe_torch)):
        try:
            lines.append(describe())
        except Exception as error:
            lines.append(f"{package}: {describe_error(error)}")
    return lines


def _find(package: str) -> tuple[Path, str] | None:
    """Return the folder of a package's modules, and its version; None if it is not installed."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    for described in folder.parent.glob(f"{package}-*.dist-info"):
        return folder, described.name.removesuffix(".dist-info").removeprefix(f"{package}-")
    # This import takes as long as everything else.
    from importlib.metadata import version

    return folder, version(package)


def _describe_hdf5() -> str:
    """Return the versions of HDF5 and h5py, from the library inside h5py's wheel if there is one."""
    h5py = _find("h5py")
    if h5py is None:
        return "HDF5 not found, h5py not installed"
    folder, version = h5py
    wheels = {
        "h5py.libs/libhdf5-*.so*": folder.parent,
        ".dylibs/libhdf5.*.dylib": folder,
        "hdf5.dll": folder,
    }
    libraries = [path for pattern, folder in wheels.items() for path in folder.glob(pattern)]
    if len(libraries) != 1:
        from kgverify.trace.hdf5.reading import describe_hdf5

        return describe_hdf5()
    import ctypes

    numbers = [ctypes.c_uint() for _ in range(3)]
    ctypes.CDLL(str(libraries[0])).H5get_libversion(*map(ctypes.byref, numbers))
    return f"HDF5 {'.'.join(str(each.value) for each in numbers)}, h5py {version}"


def _describe_torch() -> str:
    torch = _find("torch")
    if torch is None:
        return "torch not installed"
    folder, version = torch
    stated = re.search(r"^cuda\b[^=]*= *'([\d.]+)'", (folder / "version.py").read_text("utf-8"), re.MULTILINE)
    return f"torch {version}, {f'CUDA {stated[1]}' if stated else 'without CUDA'}"
