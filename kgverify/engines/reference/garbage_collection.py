"""Garbage collection, paused while the reference prover works."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection: the reference makes many small tuples without cycles, and collection takes longer than proofs.

    It saves most around a function that returns little: objects freed inside are never scanned.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def skip_existing_objects() -> None:
    """Move all existing objects to the oldest generation, so that collections of young objects skip them.

    A prover remembers many objects without cycles. Does nothing if the caller has frozen objects.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
