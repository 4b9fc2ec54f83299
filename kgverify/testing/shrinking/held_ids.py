"""Parts of a graph with the ids that its symbols have in all of it: for faults that need certain ids.

What a fault makes of an id depends on how far it is from others; a part of a graph by itself numbers its symbols anew.
Facts of a predicate of their own, which no goal can reach, go in front and keep the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from kgverify.program.atoms import NamedAtom
from kgverify.testing.problems.problem import NO_SPREAD, Problem, Spread, constants_of
from kgverify.testing.shrinking.oracle import Oracle

MOST_FOUND: Final = 6
"""Facts that are looked for, one after the other, beside those that a derivation touched."""


def cut_with_ids(problem: Problem, touched: Iterable[NamedAtom], oracle: Oracle) -> Problem:
    """Few facts of a problem that fails, on which it fails as well if ids stay what they are; else the problem itself.

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
        """In the order of their ids."""
        return list(constants_of(self.problem.atoms()))

    @cached_property
    def predicates(self) -> list[str]:
        """In the order of their ids."""
        return list(dict.fromkeys(atom.predicate for atom in self.problem.atoms()))

    @cached_property
    def fresh(self) -> str:
        """How names begin that the problem has not."""
        fresh = "known"
        while any(name.startswith(fresh) for name in (*self.constants, *self.predicates)):
            fresh += "_"
        return fresh

    @cached_property
    def _declared(self) -> list[NamedAtom]:
        """Facts that number the predicates. Their constant is the first, so that all others are as far apart as before."""
        return [NamedAtom(predicate, f"{self.fresh}c", f"{self.fresh}c") for predicate in self.predicates]

    def with_facts(self, facts: Sequence[NamedAtom]) -> Problem:
        """The problem with these facts alone, all symbols numbered as in the whole."""
        return replace(self.problem, facts=(*self._declared, *self._number(self.constants), *facts))

    def close_up(self, facts: Sequence[NamedAtom], oracle: Oracle) -> Problem:
        """The problem with these facts, and of the constants that no atom needs as few as may be."""
        needed = constants_of([*facts, *self.problem.atoms(with_facts=False)])
        ids = [i for i, name in enumerate(self.constants) if name in needed]
        gaps = [i - before - 1 for before, i in zip([-1, *ids], ids, strict=False)]
        best = self._with_gaps(facts, ids, gaps)
        if not oracle.holds(best):
            return self.with_facts(facts)
        for place in sorted(range(len(gaps)), key=lambda place: -gaps[place]):
            if gaps[place]:
                fewer = [0 if i == place else gap for i, gap in enumerate(gaps)]
                if oracle.holds(attempt := self._with_gaps(facts, ids, fewer)):
                    best, gaps = attempt, fewer
        return best

    def _with_gaps(self, facts: Sequence[NamedAtom], ids: Sequence[int], gaps: Sequence[int]) -> Problem:
        """So many unused constants before each of the constants with these ids; the largest gap is told as a spread."""
        widest = max(range(len(gaps)), key=lambda place: gaps[place], default=0)
        names: list[list[str]] = [[], []]
        for place, (i, gap) in enumerate(zip(ids, gaps, strict=True)):
            side = names[place >= widest]
            if place != widest:
                side += [f"{self.fresh}{place}_{k}" for k in range(gap)]
            side.append(self.constants[i])
        low = set(names[0])
        below = [fact for fact in facts if set(constants_of([fact])) <= low]
        front = [*self._declared, *self._number(names[0]), *below]
        spread = Spread(constants=gaps[widest], after=len(front)) if gaps and gaps[widest] else NO_SPREAD
        above = [fact for fact in facts if fact not in below]
        return replace(self.problem, facts=(*front, *self._number(names[1]), *above), spread=spread)

    def _number(self, constants: Sequence[str]) -> list[NamedAtom]:
        pairs = zip(constants[::2], [*constants[1::2], *constants[-1:]], strict=False)
        return [NamedAtom(self.fresh, first, second) for first, second in pairs]
