"""The processes that share an evaluation, and the units of a part that they prove together."""

import os
from collections import Counter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.table import COMPILED, make_entry
from kgverify.trace.model.columns import find_end

UNITS: Final = 8
"""Maximum number of units that are proved at once."""

_LONG: Final = 4 * UNITS
"""The units of a list that takes long to prove: more than fit into one block."""

_CLAIMS: Final = 4
"""The claims by which each process takes the units that are left, if they stay as large."""

_PIECE: Final = 1 << 21
"""The bytes of a message that are sent at once: the store takes no more than four times as many."""


class _Store(Protocol):
    """The key-value store of torch by which the processes found each other."""

    def add(self, key: str, num: int) -> int: ...
    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class ProcessGroup:
    """The processes that share an evaluation. Process 0 leads: it chooses the parts and collects the results.

    store: of the processes; None for a single process
    index: the number of this process; size: the number of processes
    """

    def __init__(self, store: _Store | None = None, index: int = 0, size: int = 1) -> None:
        self._store, self.index, self.size = store, index, size
        self._counters: Counter[str] = Counter()

    def broadcast(self, message: bytes) -> bytes:
        """Return the leader's message in every process, in the order of the calls."""
        if self._store is None:
            return message
        self._counters["shared"] += 1
        key = f"kgverify/shared {self._counters['shared']}"
        if self.index == 0:
            self._store.set(key, message.hex())
        return bytes.fromhex(self._store.get(key).decode())

    def add(self, counter: str, num: int) -> int:
        """Add to a counter that all processes share, and return its new value."""
        if self._store is not None:
            return int(self._store.add(f"kgverify/{counter}", num))
        self._counters[counter] += num
        return self._counters[counter]

    def send(self, name: str, message: bytes) -> None:
        """Send a message to the leader."""
        assert self._store is not None
        key = f"kgverify/message {name}"
        pieces = [message[i : i + _PIECE] for i in range(0, len(message), _PIECE)]
        for i, piece in enumerate(pieces):
            self._store.set(f"{key} {i}", piece.hex())
        self._store.set(key, str(len(pieces)))

    def receive(self, name: str) -> bytes | None:
        """Return the message of a name, if it has arrived."""
        assert self._store is not None
        key = f"kgverify/message {name}"
        if not self._store.check([key]):
            return None
        num_pieces = int(self._store.get(key))
        return b"".join(bytes.fromhex(self._store.get(f"{key} {i}").decode()) for i in range(num_pieces))


def join_process_group() -> ProcessGroup:
    """Join the processes that `torchrun` started with this one; else return a single process. UserError as in `join_team`."""
    # A single process may not need torch.
    joined = None if os.environ.get("WORLD_SIZE", "1") == "1" else make_entry(COMPILED).join_processes()
    return ProcessGroup(*joined or ())


class Share:
    """The units of a part that one process of a group proves, of the part with a number.

    leads: whether it also counts the true triples, which every process proves
    """

    def __init__(self, group: ProcessGroup, number: int) -> None:
        self._group, self._number, self.leads = group, number, group.index == 0
        self._is_new = True

    def take(self, name: str, num: int) -> range:
        """Return the next units to prove of a list of `num`; none if none is left.

        Several processes take several units of a long list, and fewer towards the end, so that all end alike. A single process
        takes the last unit of a long list alone, and the first one if it is the part's first: the engine waits until the first
        is drawn, and the end until the last is compared.
        """
        counter = f"{name} of part {self._number}"
        wanted = num - self._group.add(counter, 0)
        if self._group.size > 1:
            wanted = max(1, min(UNITS, wanted // (_CLAIMS * self._group.size)))
        elif num > _LONG:
            wanted = 1 if self._is_new else max(wanted - 1, min(wanted, 1))
        self._is_new &= not num
        begin = self._group.add(counter, wanted) - wanted
        return range(min(begin, num), min(begin + wanted, num))


def cut_units(starts: NDArray[np.int64], block_size: int) -> list[int]:
    """Return the bounds of units of ragged rows, which have an eighth of a block's elements, and less towards the end."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        begin = bounds[-1]
        left = int(starts[-1] - starts[begin])
        size = max(block_size // UNITS**2, min(left // (2 * UNITS), block_size // UNITS))
        bounds.append(find_end(starts, begin, size))
    return bounds
