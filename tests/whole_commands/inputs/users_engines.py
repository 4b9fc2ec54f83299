"""Engines of a user: a right one, and wrong ones."""

from two_engines import Fast

import kgverify as kv


@kv.engine_of
def proves_nothing(goal, clauses):
    return []


class Plain(Fast):
    """Takes the steps of kgverify's semantics."""


class Capped(Plain):
    """Tries the first two clauses of a predicate alone."""

    def clauses_for(self, goal, excluded):
        return list(super().clauses_for(goal, excluded))[:2]


class PrunesNothing(Plain):
    """Leaves known facts in goals."""

    def prune(self, resolvents, excluded):
        return list(resolvents)


class Fickle(Plain):
    """Forgets the first clause in every second call of `prove`."""

    calls = 0

    def prove(self, candidates, progress=lambda num: None):
        Fickle.calls += 1
        return super().prove(candidates, progress)

    def clauses_for(self, goal, excluded):
        return list(super().clauses_for(goal, excluded))[Fickle.calls % 2 :]


class Crashing(Plain):
    """Fails in its first step."""

    def clauses_for(self, goal, excluded):
        raise ValueError("no clauses today")


class KnowsFacts(kv.OutcomeEngine):
    """Proves what is a fact, in steps that it does not show."""

    def decide(self, query):
        return query in self.facts
