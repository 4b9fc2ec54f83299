"""Policies that need no weights."""

from collections.abc import Sequence
from typing import Protocol

from kgreference.resolvent import Resolvent
from kgreference.terms import Goal, first_free_variable


class Policy(Protocol):
    """The choice between resolvents."""

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one finite score for each resolvent; the highest wins. All resolvents are of kind GOAL."""
        ...


class Shortest:
    """The policy that prefers fewest atoms, then fewest variables.

    n atoms with v distinct variables score ``-(n + v / 64)``.
    """

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one score for each resolvent, each a multiple of 1/64."""
        return [-(len(resolvent.atoms) + first_free_variable(resolvent.atoms) / 64) for resolvent in resolvents]
