"""Traces: recorded steps in HDF5 files; `docs/trace-format.md` specifies the format.

The names below are loaded when they are first used, and h5py with them.

Internal: it may change without notice. Users import from `kgverify` itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgverify.trace.model.trace import Trace
    from kgverify.trace.read.trace_file import TraceFile, open_trace
    from kgverify.trace.write.loop_writer import LoopWriter
    from kgverify.trace.write.writer import TraceWriter

__all__ = ["LoopWriter", "Trace", "TraceFile", "TraceWriter", "open_trace"]

_MODULES = {
    "LoopWriter": "write.loop_writer",
    "Trace": "model.trace",
    "TraceFile": "read.trace_file",
    "TraceWriter": "write.writer",
    "open_trace": "read.trace_file",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
