"""Engines of a user: a right one, and wrong ones."""

import kgverify as kv


@kv.engine_of
def proves_nothing(goal, clauses):
    return []


@kv.engine_of
def Plain(goal, clauses):
    """Resolve the first atom of a goal with each clause that matches it: kgverify's semantics."""
    for clause in clauses:
        bound = unify(goal[0], rename(clause.head))
        if bound is not None:
            yield clause, [bind(rename(atom), bound) for atom in clause.body] + [bind(atom, bound) for atom in goal[1:]]


def rename(atom):
    return atom[0], *(term if term >= 0 else term - 1000 for term in atom[1:])


def bind(atom, bound):
    terms = atom[1:]
    while any(term in bound for term in terms):
        terms = tuple(bound.get(term, term) for term in terms)
    return atom[0], *terms


def unify(left, right):
    bound = {}
    for i in (1, 2):
        a, b = bind(left, bound)[i], bind(right, bound)[i]
        if a != b and min(a, b) >= 0:
            return None
        if a != b:
            bound[min(a, b)] = max(a, b)
    return bound


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
