"""`kgverify.open_trace`: read a recorded trace."""

from pathlib import Path

from kgverify.trace.read.mapped_trace import MappedTrace


def open_trace(path: str | Path) -> MappedTrace:
    """Open a recorded trace without reading it into memory.

    Args:
        path: A file, or a folder of shards.

    Returns:
        The trace.

    Raises:
        UserError: If the path is no trace, or a damaged one.

    Example:
        >>> import kgverify as kv
        >>> _ = kv.record("countries", "reference.h5", "reference", queries=1, corruptions=2)
        >>> kv.open_trace("reference.h5").num_candidates
        6
    """
    return MappedTrace(path)
