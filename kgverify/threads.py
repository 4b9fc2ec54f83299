"""The threads that this process may use."""

import os


def count_threads() -> int:
    """Return `$OMP_NUM_THREADS`, or the cores that this process may use."""
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named):
        return int(named)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
