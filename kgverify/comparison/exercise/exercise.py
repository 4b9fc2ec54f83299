"""The exercise of a side of a comparison, as data: the evidence that its verdict rests on."""

from collections.abc import Mapping
from typing import Final

import msgspec

from kgverify.program.outcomes import Outcome

MOST_UNUSED: Final = 20
"""The unused rules that are listed; further ones are counted."""


class Exercise(msgspec.Struct, frozen=True, kw_only=True):
    """The exercise of one side: counts of its candidates, stages, limits and clauses.

    None means unknown, and so does a stage or limit that is missing.

    outcomes:     outcome to candidates
    steps:        steps recorded
    counted:      the steps in which everything below was counted; fewer than all of them in a large trace
    choices:      steps with more than one resolvent
    stages:       stage to steps in which it acted. `match_rules`, `match_facts`: a resolvent of such a clause is left;
                  `resolve`: a goal or TRUE is; `prune`: an atom was deleted; `rename`: a resolvent has a variable;
                  `revisit`, `limit`: something was dropped; `close`: TRUE or FALSE stands alone; `score`: two scores differ;
                  `choose`: there was more than one resolvent. The other stages act in every step.
    limits:       limit to steps in which it dropped something; `max_depth` to derivations that it ended
    largest:      limit to the largest number seen of what it limits
    enough:       limit that dropped something to a value with which it would have dropped nothing in these steps
    rules, facts: those that made a resolvent; num_rules, num_facts: all of them
    inferred:     the items of evidence that the side does not know, and that follow from equal steps of the other side
    unused_rules: the first rules that made no resolvent, as text
    """

    outcomes: dict[str, int] | None = None
    steps: int | None = None
    counted: int = 0
    choices: int | None = None
    stages: dict[str, int] = {}
    limits: dict[str, int] = {}
    largest: dict[str, int] = {}
    enough: dict[str, int] = {}
    rules: int | None = None
    num_rules: int | None = None
    facts: int | None = None
    num_facts: int | None = None
    unused_rules: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @property
    def proved(self) -> int | None:
        """The candidates that ended PROVED; None if the outcomes are unknown."""
        return None if self.outcomes is None else self.outcomes.get(Outcome.PROVED.name, 0)

    def plus(self, other: "Exercise") -> "Exercise":
        """Return the exercise of two comparisons of different programs together, without the names of unused rules.

        What one of them does not know is that of the other one.
        """
        largest = {
            name: max(self.largest.get(name, 0), other.largest.get(name, 0)) for name in (*self.largest, *other.largest)
        }
        both = (self.outcomes, other.outcomes)
        return Exercise(
            outcomes=None if both == (None, None) else _add_counts(both[0] or {}, both[1] or {}),
            steps=_add(self.steps, other.steps),
            counted=self.counted + other.counted,
            choices=_add(self.choices, other.choices),
            stages=_add_counts(self.stages, other.stages),
            limits=_add_counts(self.limits, other.limits),
            largest=largest,
            enough={
                name: max(self.enough.get(name, 0), other.enough.get(name, 0)) for name in (*self.enough, *other.enough)
            },
            rules=_add(self.rules, other.rules),
            num_rules=_add(self.num_rules, other.num_rules),
            facts=_add(self.facts, other.facts),
            num_facts=_add(self.num_facts, other.num_facts),
        )


NOT_EXERCISED: Final = Exercise()
"""The exercise of nothing."""


class Exercised(msgspec.Struct, frozen=True):
    """The exercise of both sides."""

    expected: Exercise
    actual: Exercise


def _add(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else first + second


def _add_counts(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in dict.fromkeys((*first, *second))}
