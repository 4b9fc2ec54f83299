"""Parts of a graph whose symbols keep the ids that they have in the whole graph, for faults that depend on ids.

Such a fault depends on how far ids are apart, and a part of a graph numbers its symbols anew. Facts of an extra
predicate, which no goal can reach, come first and keep the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kgverify.program.atoms import NamedAtom
from kgverify.testing.problems.problem import NO_SPREAD, Problem, Spread, free_prefix, list_constants
from kgverify.testing.shrinking.oracle import Oracle

MOST_FOUND: Final = 6
"""Facts that are searched one by one, in addition to those that a derivation touched."""


def shrink_keeping_ids(problem: Problem, touched: Iterable[NamedAtom], oracle: Oracle) -> Problem:
    """Remove facts while symbols keep their ids; return the problem unchanged if it no longer fails.

    touched: facts that are likely to be needed; the others are found by halving
    """
    held = _Held(problem)
    chosen = list(dict.fromkeys(touched))
    known = set(chosen)
    rest = [fact for fact in dict.fromkeys(problem.facts) if fact not in known]
    if not oracle.holds(held.with_facts([*chosen, *rest])):
        return problem
    for _ in range(MOST_FOUND):
        if oracle.holds(held.with_facts(chosen)):
            break
        low, high = 0, len(rest)
        while high - low > 1:
            middle = (low + high) // 2
            if oracle.holds(held.with_facts([*chosen, *rest[:middle]])):
                high = middle
            else:
                low = middle
        chosen.append(rest[high - 1])
        rest = rest[: high - 1]
    else:
        chosen += rest
    found = oracle.drop_items(held.with_facts(chosen), chosen, held.with_facts)
    found = oracle.drop_items(found, found.rules, lambda rules: replace(found, rules=rules))
    fewer = replace(held, problem=replace(problem, rules=found.rules))
    return fewer.close_up([fact for fact in chosen if fact in set(found.facts)], oracle)


@dataclass(frozen=True)
class _Held:
    """The symbols of a problem with their numbers."""

    problem: Problem

    @cached_property
    def constants(self) -> list[str]:
        """The constants in the order of their ids."""
        return list(list_constants(self.problem.atoms()))

    @cached_property
    def predicates(self) -> list[str]:
        """The predicates in the order of their ids."""
        return list(dict.fromkeys(atom.predicate for atom in self.problem.atoms()))

    @cached_property
    def fresh(self) -> str:
        """A prefix that no name of the problem has."""
        return free_prefix("known", (*self.constants, *self.predicates), "_")

    @cached_property
    def _declared(self) -> list[NamedAtom]:
        """Facts that number the predicates. Their constant comes first, so that the distances of all others stay."""
        return [NamedAtom(predicate, f"{self.fresh}c", f"{self.fresh}c") for predicate in self.predicates]

    def with_facts(self, facts: Sequence[NamedAtom]) -> Problem:
        """Return the problem with only these facts, all symbols numbered as in the whole."""
        return replace(self.problem, facts=(*self._declared, *self._number(self.constants), *facts))

    def close_up(self, facts: Sequence[NamedAtom], oracle: Oracle) -> Problem:
        """Return the problem with these facts, and with as few constants that no atom needs as possible."""
        needed = list_constants([*facts, *self.problem.atoms(with_facts=False)])
        ids = [i for i, name in enumerate(self.constants) if name in needed]
        gaps = [i - before - 1 for before, i in zip([-1, *ids], ids, strict=False)]
        best = self._with_gaps(facts, ids, gaps)
        if not oracle.holds(best):
            return self.with_facts(facts)
        for at in sorted(range(len(gaps)), key=lambda at: -gaps[at]):
            if gaps[at]:
                fewer = [0 if i == at else gap for i, gap in enumerate(gaps)]
                if oracle.holds(attempt := self._with_gaps(facts, ids, fewer)):
                    best, gaps = attempt, fewer
        return best

    def _with_gaps(self, facts: Sequence[NamedAtom], ids: Sequence[int], gaps: Sequence[int]) -> Problem:
        """Return the problem with unused constants before each needed one; the largest gap becomes a spread."""
        widest = max(range(len(gaps)), key=lambda at: gaps[at], default=0)
        names: list[list[str]] = [[], []]
        for at, (i, gap) in enumerate(zip(ids, gaps, strict=True)):
            side = names[at >= widest]
            if at != widest:
                side += [f"{self.fresh}{at}_{k}" for k in range(gap)]
            side.append(self.constants[i])
        low = set(names[0])
        below = [fact for fact in facts if set(list_constants([fact])) <= low]
        front = [*self._declared, *self._number(names[0]), *below]
        spread = Spread(constants=gaps[widest], after=len(front)) if gaps and gaps[widest] else NO_SPREAD
        above = [fact for fact in facts if fact not in below]
        return replace(self.problem, facts=(*front, *self._number(names[1]), *above), spread=spread)

    def _number(self, constants: Sequence[str]) -> list[NamedAtom]:
        pairs = zip(constants[::2], [*constants[1::2], *constants[-1:]], strict=False)
        return [NamedAtom(self.fresh, first, second) for first, second in pairs]
