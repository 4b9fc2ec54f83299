"""Corruptions of a triple. They are drawn by a key, not from a stream, so that no order or chunking can change them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgreference.program import Program
from kgreference.terms import Atom, Triple

HEAD: Final = 0
TAIL: Final = 1

MASK: Final = 2**64 - 1


def mix(x: int) -> int:
    """Return the splitmix64 step (Steele, Lea and Flood 2014): a permutation of the 64-bit numbers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def mix_all(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix` of each number; 64-bit arithmetic discards the same bits as `MASK`."""
    x = numbers + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Corrupter:
    """The draw of filtered corruptions.

    ``known`` are the triples of train, valid and test: they determine the constants seen in an argument,
    and are never drawn. ``domains`` names the constants of each declared domain.

    Raises KeyError if a domain contains a constant that the program lacks.
    """

    def __init__(
        self, program: Program, known: Iterable[Triple], domains: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self._constants = np.arange(len(program.constants))
        self._domains = [[program.constant_ids[name] for name in names] for names in (domains or {}).values()]
        self._domains_of: defaultdict[int, list[int]] = defaultdict(list)
        for index, members in enumerate(self._domains):
            for constant in members:
                self._domains_of[constant].append(index)
        self._note_known(known)

    def with_known(self, known: Iterable[Triple]) -> "Corrupter":
        """Return a corrupter with the same constants and domains, but other known triples."""
        other = copy(self)
        other._note_known(known)
        return other

    def _note_known(self, known: Iterable[Triple]) -> None:
        # The entities of known triples, by predicate, side, and the entity on the other side.
        self._taken: defaultdict[tuple[int, int, int], set[int]] = defaultdict(set)
        for predicate, first, second in known:
            self._taken[predicate, HEAD, second].add(first)
            self._taken[predicate, TAIL, first].add(second)
        self._seen: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for predicate, side, kept in self._taken:
            self._seen[predicate, TAIL if side == HEAD else HEAD].add(kept)
        self._domain_of: dict[tuple[int, int], NDArray[np.int64]] = {}

    def domain(self, predicate: int, side: int) -> NDArray[np.int64]:
        """Return the entities of an argument, int64 [n], ascending.

        They are the union of the declared domains that contain a constant seen there. They are all constants if no
        domain is declared, or if some seen constant is in no domain.
        """
        key = (predicate, side)
        if key not in self._domain_of:
            self._domain_of[key] = self._find_domain(self._seen.get(key, set()))
        return self._domain_of[key]

    def eligible(self, query: Atom, side: int) -> NDArray[np.int64]:
        """Return the entities of the domain whose triple is neither the query nor known: int64 [n], ascending."""
        kept, own = (query.second, query.first) if side == HEAD else (query.first, query.second)
        taken = sorted(self._taken.get((query.predicate, side, kept), set()) | {own})
        domain = self.domain(query.predicate, side)
        # The position of each taken entity in the domain, if it is there.
        found = np.searchsorted(domain, taken)
        is_there = found < len(domain)
        is_there[is_there] = domain[found[is_there]] == np.array(taken)[is_there]
        is_left = np.ones(len(domain), np.bool_)
        is_left[found[is_there]] = False
        return domain[is_left]

    def draw(self, query: Atom, index: int, side: int, k: int | None, seed: int) -> list[Atom]:
        """Return k corruptions of one side of the query at ``index`` of its split, by ascending entity.

        All for k = None; fewer if fewer entities are eligible.
        """
        entities = self.eligible(query, side)
        if k is not None and k < len(entities):
            key = mix(mix(mix(seed) ^ index) ^ side)
            order = np.argpartition(mix_all(np.uint64(key) ^ entities.astype(np.uint64)), k)
            entities = np.sort(entities[order[:k]])
        return [replace(query, side, entity) for entity in entities.tolist()]

    def candidates(self, query: Atom, index: int, side: int, k: int | None, seed: int) -> list[Atom]:
        """Return the true triple, followed by its corruptions."""
        return [query, *self.draw(query, index, side, k, seed)]

    def _find_domain(self, seen: set[int]) -> NDArray[np.int64]:
        holding = {index for constant in seen for index in self._domains_of.get(constant, ())}
        union = set[int]().union(*(self._domains[index] for index in holding))
        if not self._domains or not seen <= union:
            return self._constants
        return np.array(sorted(union), np.int64)


def replace(triple: Atom, side: int, entity: int) -> Atom:
    """Replace the entity on one side of a triple: HEAD is its first argument, TAIL its second."""
    if side == HEAD:
        return Atom(triple.predicate, entity, triple.second)
    if side == TAIL:
        return Atom(triple.predicate, triple.first, entity)
    raise ValueError(f"a side is {HEAD} or {TAIL}, found {side}")
