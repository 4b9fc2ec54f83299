"""Two engines that nobody of kgverify wrote: a fast one, a slow one that agrees with it, and one with a cap on clauses."""

import kgverify as kv


@kv.engine_of
def Fast(goal, clauses):
    """Resolve the first atom of a goal with each clause that matches it."""
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


class Slow(Fast):
    """Looks for visited goals one by one."""

    def revisit(self, resolvents, visited):
        return [each for each in resolvents if all(each.atoms != goal for goal in visited)]


class Capped(Fast):
    """Tries the first clauses of a predicate alone."""

    def clauses_for(self, goal, excluded):
        return super().clauses_for(goal, excluded)[:2]


class CrashesOnRules(Slow):
    """A reference that fails on problems with rules."""

    def prove(self, candidates, progress=lambda num: None):
        if self.rules:
            raise ValueError("rules are not supported")
        return super().prove(candidates, progress)
