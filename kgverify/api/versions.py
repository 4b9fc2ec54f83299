"""The versions of kgverify and of the packages that it builds on."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from kgverify.errors import describe_error
from kgverify.version import __version__


def describe_versions() -> list[str]:
    """Return lines with the versions of kgverify, Python, HDF5 and torch."""
    lines = [f"kgverify {__version__}", f"Python {sys.version.split()[0]}"]
    for package, describe in (("h5py", _describe_hdf5), ("torch", _describe_torch)):
        try:
            lines.append(describe())
        except Exception as error:
            lines.append(f"{package}: {describe_error(error)}")
    return lines


def _describe_hdf5() -> str:
    from kgverify.trace.hdf5.reading import describe_hdf5

    return describe_hdf5()


def _describe_torch() -> str:
    """Return the versions of torch and its CUDA, without importing torch, which takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch not installed"
    text = Path(spec.origin).with_name("version.py").read_text("utf-8")
    found = dict(re.findall(r"^(__version__|cuda)\b[^=]*= *'([^']+)'", text, re.MULTILINE))
    return f"torch {found['__version__']}, {f'CUDA {cuda}' if (cuda := found.get('cuda')) else 'without CUDA'}"
