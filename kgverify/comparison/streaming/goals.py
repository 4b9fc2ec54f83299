"""Goals for compact traces that are compared by streaming: rebuilt block by block, where their digests differ."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xxhash

from kgverify.comparison.streaming.blocks import load_block, shell_of
from kgverify.errors import UserError
from kgverify.trace.maintain.convert import Rebuild
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import TraceFile

Rebuilding = Callable[[Trace], Rebuild]
"""How candidates of a trace are rebuilt by its program. UserError where it holds no clauses or no program."""


class Rebuilds(NamedTuple):
    """How each side, expected and actual, gets its goals; None where it has them, or can have none."""

    expected: Rebuild | None = None
    actual: Rebuild | None = None

    def apply(self, side: int, block: Trace) -> Trace:
        """Some candidates of a side, with goals where these are to be had."""
        rebuild = self[side]
        return block if rebuild is None else rebuild(block)


def find_rebuilds(expected: TraceFile, actual: TraceFile, rebuilding: Rebuilding | None) -> Rebuilds:
    """What is to be rebuilt: compact traces whose clauses lead to all their digests, if the digests of the two differ.

    Where the digests agree there is nothing to look for, and rebuilding takes longer than comparing.
    """
    if rebuilding is None or (expected.has_goals and actual.has_goals):
        return Rebuilds()
    if not any(trace.header.level == TraceLevel.COMPACT for trace in (expected, actual)):
        return Rebuilds()
    if _hash_sequence(expected) == _hash_sequence(actual):
        return Rebuilds()
    return Rebuilds(_find_rebuild(expected, rebuilding), _find_rebuild(actual, rebuilding))


def _find_rebuild(trace: TraceFile, rebuilding: Rebuilding) -> Rebuild | None:
    if trace.header.level != TraceLevel.COMPACT:
        return None
    try:
        rebuild = rebuilding(shell_of(trace))
        for begin, end in trace.split():
            rebuild(_load(trace, begin, end))
    except UserError:
        # Without goals it is compared by its digests, and the comparison says so.
        return None
    return rebuild


def _hash_sequence(trace: TraceFile) -> bytes:
    """A hash of the digests of all steps, in order; computed where they are not stored."""
    hasher: Any = xxhash.xxh3_128()
    for begin, end in trace.split():
        for stored in trace.read_digests(begin, end):
            if "sequence" in stored:
                hasher.update(np.ascontiguousarray(stored["sequence"]).data)
        if "digests.sequence" not in trace.fields:
            hasher.update(_load(trace, begin, end).digests.sequence.data)
    return bytes(hasher.digest())


def _load(trace: TraceFile, begin: int, end: int) -> Trace:
    return load_block(trace, trace.read_candidates(begin, end), np.arange(begin, end))
