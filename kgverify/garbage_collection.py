"""Garbage collection, paused while many small objects without cycles are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which would visit the many tuples without cycles that provers and readers of graphs make.

    This saves most around a function that returns little, since objects freed inside are never scanned.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_has_frozen_objects: bool = False
"""True once other code was found to have frozen objects. Counting them takes long if there are many."""


def skip_existing_objects() -> None:
    """Move all existing objects to the oldest generation, so that collections of young objects skip them.

    A prover keeps many objects without cycles. Do nothing if other code in this process has frozen objects.
    """
    global _has_frozen_objects
    _has_frozen_objects = _has_frozen_objects or gc.get_freeze_count() > 0
    if not _has_frozen_objects:
        gc.freeze()
        gc.unfreeze()
