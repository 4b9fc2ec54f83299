"""Why eager differs from itself: the first operation that gives another result for the same arguments, with its line."""

import sys
from typing import Any, Final, NamedTuple

import torch

from stepaudit.audited_function import Function, Subject
from stepaudit.ladder.observation import repeat_in_eager
from stepaudit.operations import OperationMode
from stepaudit.source_lines import find_calling_line
from stepaudit.values import digest_values

_ATTEMPTS: Final = 4
"""The number of pairs of runs: an order that the device chooses may be the same twice."""
_UNWRITTEN: Final = ("empty", "new_empty", "resize")
"""The beginnings of the names of operations whose result holds whatever was in memory."""


class Source(NamedTuple):
    """Why eager differs from itself.

    is_order: whether an operation gives another result for the same arguments, as additions in an order that the device
              chooses do
    """

    text: str
    is_order: bool = False


class _Operation(NamedTuple):
    """One operation of a run, with digests of its arguments before it and of everything that it may write after it."""

    name: str
    where: str
    is_random: bool
    given: tuple[int, ...]
    made: tuple[int, ...]


class _Journal(OperationMode):  # type: ignore[no-untyped-call]
    """A record of the operations of a run. Every operation waits for the one before."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self._function = function

    def meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation and record it."""
        given = digest_values((args, kwargs))
        out = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if not name.startswith(_UNWRITTEN):
            where = find_calling_line(sys._getframe(1), self._function)
            is_random = torch.Tag.nondeterministic_seeded in func.tags
            self.operations.append(_Operation(name, where, is_random, given, digest_values((args, kwargs, out))))
        return out


def find_source(subject: Subject, number: int) -> Source:
    """Run a call twice in eager, operation by operation, and say why the results differ."""

    def record() -> list[_Operation]:
        journal = _Journal(subject.function)
        repeat_in_eager(subject, number, lambda inputs: journal)
        return journal.operations

    for _ in range(_ATTEMPTS):
        for one, other in zip(record(), record(), strict=False):
            at = f"{one.name} at {one.where}"
            if one.name != other.name or one.given != other.given:
                return Source(f"{at} receives other values in each run, which no operation of torch made")
            if one.made != other.made and one.is_random:
                return Source(f"{at} draws random numbers that no seed sets")
            if one.made != other.made:
                return Source(f"{at} gives another result for the same arguments, as additions in any order do", True)
    return Source("it repeats itself if each operation waits for the one before: streams race, or memory is unwritten")
