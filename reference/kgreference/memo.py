"""A bounded cache of the results of a pure function."""

from collections.abc import Hashable
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST_ITEMS: Final = 200_000
"""The items that one memo holds; as matching clauses, some 80 MB."""


class Memo(dict[Key, Value]):
    """Values by key. Before it would hold more than ``most`` items, keys included, it forgets all of them."""

    def __init__(self, most: int = MOST_ITEMS) -> None:
        super().__init__()
        self._most = most
        self._num = 0

    def remember(self, key: Key, value: Value, num_items: int) -> None:
        """Store a value of ``num_items`` items; one that alone has too many stays until the next is stored."""
        self._num += 1 + num_items
        if self._num > self._most:
            self.clear()
            self._num = 1 + num_items
        self[key] = value
