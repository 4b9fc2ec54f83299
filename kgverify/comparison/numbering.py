"""Bringing two traces, or parts of them, into one numbering of names."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.fields import SymbolMap
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.trace import Trace

Convert = Callable[[NDArray[np.int32]], NDArray[np.int32]]
"""Atoms of one trace in the ids of the other."""


class Numbering:
    """How the ids of two traces become the same; made once, whatever parts of the traces are compared.

    The actual trace takes the expected one's ids. But digests of goals that are not kept cannot be renumbered: where the
    actual trace has no goals it is the expected one that takes the other's ids, and where neither has any, the digests of
    the two cannot be compared, which `reasons` says.
    """

    def __init__(self, expected: Trace, actual: Trace) -> None:
        traces = expected, actual
        is_kept = [has_goals(trace.header.level) for trace in traces]
        self._side = 0 if is_kept == [True, False] else 1
        self._map: SymbolMap | None = None
        self.reasons: tuple[str, ...] = ()
        if expected.symbols == actual.symbols:
            return
        self._map = SymbolMap(traces[1 - self._side], traces[self._side])
        if not any(is_kept):
            self.reasons = (
                "the traces number their names differently, and digests of goals not kept cannot be renumbered",
            )

    @property
    def is_same(self) -> bool:
        """Whether the two number their names alike as they are."""
        return self._map is None

    def converter(self, side: int) -> Convert | None:
        """How atoms of a side, 0 the expected one, are converted; None where they stay."""
        return self._map.convert_atoms if self._map is not None and side == self._side else None

    def convert(self, side: int, trace: Trace) -> Trace:
        """A trace of that side, or some candidates of it, in the common ids."""
        if self._map is None or side != self._side:
            return trace
        converted = self._map.convert(trace)
        return converted if has_goals(trace.header.level) else replace(converted, digests=trace.digests)
