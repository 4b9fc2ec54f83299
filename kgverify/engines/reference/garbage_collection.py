"""Garbage collection, put off while the reference works."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """The reference makes many small tuples and no cycles; looking for cycles takes longer than the proofs do.

    Around a function that returns little it saves most: what is gone by the end is not looked at when collection is on again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pass_by_what_is_there() -> None:
    """Let all objects made so far count as old without a look at them, so that collections of young ones pass them by.

    What a prover remembers is much and without cycles. Does nothing where the caller has frozen objects.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
