"""Policies that need no weights."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from kgreference.resolvent import Kind, Resolvent
from kgreference.terms import Goal, first_free_variable

SCORE_OF_STOPPING: Final = -64.0
"""The score that `Shortest` gives to stopping, below that of any goal with fewer than 63 atoms."""


class Policy(Protocol):
    """A policy, which chooses between resolvents."""

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one finite score for each resolvent; the highest wins.

        The goal and the resolvents are canonical. All resolvents are of kind GOAL, unless a dialect offers STOP or
        leaves TRUE among them.
        """
        ...


class PreparedPolicy(Policy, Protocol):
    """A policy that scores several steps in less time if it knows them in advance."""

    def prepare(self, steps: Iterable[tuple[Goal, Sequence[Resolvent]]]) -> None:
        """Prepare to score steps, each a goal with its resolvents. This changes no score."""
        ...


class Shortest:
    """The policy that prefers the fewest atoms, and then the fewest variables.

    A goal of n atoms with v distinct variables scores ``-(n + v / 64)``. Stopping, which is always last, scores less
    than any goal.
    """

    def scores(self, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
        """Return one score for each resolvent, each a multiple of 1/64."""
        scores = [-(len(resolvent.atoms) + first_free_variable(resolvent.atoms) / 64) for resolvent in resolvents]
        if resolvents[-1].kind is Kind.STOP:
            scores[-1] = SCORE_OF_STOPPING
        return scores
