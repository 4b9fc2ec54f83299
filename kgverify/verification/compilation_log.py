"""The compilations of torch code during a verification: in which run, how many, and how long they took."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from kgverify.errors import count_of


class CompilationLog:
    """The number of compilations by torch, in each run of an engine and after them."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._end = count_compilations()

    @contextmanager
    def of(self, title: str, part: str) -> Iterator[None]:
        """Count the compilations of a run."""
        before, began = count_compilations(), perf_counter()
        yield
        self._end = count_compilations()
        num, seconds = self._end[0] - before[0], self._end[1] - before[1]
        if num or title in self._lines:
            took = f", {seconds:.1f} of its {perf_counter() - began:.1f} s" if num else ""
            self._lines.setdefault(title, []).append(f"{num} in {part}{took}")

    def describe(self) -> list[str]:
        """Return a note for each engine that compiled, and one on what was compiled afterwards."""
        later = count_compilations()[0] - self._end[0]
        notes = [f"compilations by torch, {title}: {'; '.join(parts)}" for title, parts in self._lines.items()]
        if notes or later:
            notes.append(f"measurements and replays caused {count_of(later, 'compilation')}")
        return notes


def count_compilations() -> tuple[int, float]:
    """Return the compilations by torch in this process, and the seconds that they took."""
    if "torch" not in sys.modules:
        return 0, 0.0
    from kgverify.torch import compilations

    return compilations.count_compilations()
