"""Garbage collection, paused while many small objects without cycles are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: provers and readers of graphs make many tuples without cycles, all of which it would visit.

    It saves most around a function that returns little: objects freed inside are never scanned.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_has_frozen_objects: bool = False
"""True once someone else was seen to have frozen objects. These are counted one by one, which takes long for many."""


def skip_existing_objects() -> None:
    """Move all existing objects to the oldest generation, so that collections of young objects skip them.

    A prover remembers many objects without cycles. Does nothing in a process that has frozen objects itself.
    """
    global _has_frozen_objects
    _has_frozen_objects = _has_frozen_objects or gc.get_freeze_count() > 0
    if not _has_frozen_objects:
        gc.freeze()
        gc.unfreeze()
