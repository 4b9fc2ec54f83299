"""The content of a resolvent: its kind and its atoms, whatever the numbers of its variables."""

from collections import Counter
from collections.abc import Iterable

from kgverify.comparison.step_view import ResolventView
from kgverify.step.clauses import Atoms, number_variables

Content = tuple[int, Atoms]
"""The kind of a resolvent, and its atoms in canonical variables."""


def plain(atoms: Iterable[tuple[int, int, int]]) -> Atoms:
    """Return atoms as plain tuples, which are equal to and hash like those of a program."""
    return tuple([(predicate, a, b) for predicate, a, b in atoms])


def content_of(resolvent: ResolventView) -> Content:
    """Return the kind of a resolvent and its atoms, in canonical variables."""
    return resolvent.kind, number_variables(iter(plain(resolvent.atoms)))


def subtract(resolvents: Iterable[ResolventView], others: Iterable[Content]) -> list[ResolventView]:
    """Return the resolvents whose content the others lack, counted with multiplicity."""
    left = Counter(others)
    found = []
    for r in resolvents:
        content = content_of(r)
        if left[content]:
            left[content] -= 1
        else:
            found.append(r)
    return found
