"""Names of a mapped trace, decoded one by one when they are asked for."""

from collections.abc import Sequence
from typing import Any, overload

from numpy.typing import NDArray


class LazyNames(Sequence[str]):
    """Names behind ids, from bytes and offsets of `docs/trace-format.md`; what is no UTF-8 is shown escaped."""

    def __init__(self, content: NDArray[Any], offsets: NDArray[Any]) -> None:
        self._content = content
        self._offsets = offsets

    def __len__(self) -> int:
        return max(0, len(self._offsets) - 1)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        begin, end = self._offsets[index % len(self) : index % len(self) + 2].tolist()
        return self._content[begin:end].tobytes().decode("utf-8", "backslashreplace")
