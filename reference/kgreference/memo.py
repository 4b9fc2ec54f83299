"""What a pure function gave, remembered within bounds."""

from collections.abc import Hashable
from typing import Final, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST_ITEMS: Final = 200_000
"""Items that one memo holds; as clauses that match, some 80 MB."""


class Memo(dict[Key, Value]):
    """Values by key. It forgets all before it would hold more than ``most`` items, a key counting as one."""

    def __init__(self, most: int = MOST_ITEMS) -> None:
        super().__init__()
        self._most = most
        self._num = 0

    def remember(self, key: Key, value: Value, num_items: int) -> None:
        """Hold a value of so many items, even one of too many all by itself, until the next is remembered."""
        self._num += 1 + num_items
        if self._num > self._most:
            self.clear()
            self._num = 1 + num_items
        self[key] = value
