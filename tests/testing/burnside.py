"""Count the programs of a scope up to renaming by Burnside's lemma, without enumerating them.

The number of orbits of a group is the mean number of objects that an element leaves unchanged. An element here
permutes predicates and constants. A rule or a query is unchanged if all its symbols are fixed points, and a set of
facts if it is a union of cycles of ground atoms.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from math import comb, gcd
from typing import TypeAlias

import numpy as np

from kgverify.testing.exhaustive.scope import Count, Scope

Polynomial: TypeAlias = tuple[int, ...]
"""The number of sets by their size: coefficient n counts the sets of n facts."""


def count_programs(scope: Scope) -> Count:
    """Return the number of programs and of problems of a scope, up to renaming."""
    programs = queries = order = 0
    for of_predicates in permutations(range(scope.predicates)):
        for of_constants in permutations(range(scope.constants)):
            order += 1
            names, symbols = count_fixed(of_predicates), count_fixed(of_constants)
            rules = sum(
                names ** (body + 1) * count_patterns(2 * (body + 1), symbols) for body in range(1, scope.max_body + 1)
            )
            sequences = sum(rules**length for length in range(scope.max_rules + 1))
            fixed = _fixed_sets(of_predicates, of_constants, scope.max_facts) * sequences
            programs += fixed
            queries += fixed * names * count_patterns(2, symbols)
    assert programs % order == queries % order == 0
    return Count(programs // order, queries // order * len(scope.limits))


def count_patterns(positions: int, constants: int) -> int:
    """Return the ways to fill argument positions with constants and variables, up to the variables' names.

    It is an r-Bell number: of n positions, k hold variables, and a partition of k says which are the same.
    """
    bell = [1]
    for n in range(positions):
        bell.append(sum(comb(n, k) * bell[k] for k in range(n + 1)))
    return sum(comb(positions, k) * constants ** (positions - k) * bell[k] for k in range(positions + 1))


def count_fixed(permutation: Sequence[int]) -> int:
    """Return the number of fixed points of a permutation."""
    return sum(image == i for i, image in enumerate(permutation))


def _fixed_sets(of_predicates: Sequence[int], of_constants: Sequence[int], most: int) -> int:
    """Return the number of sets of at most `most` facts that stay unchanged."""
    cycles = Counter({1: 1})
    for permutation in (of_predicates, of_constants, of_constants):
        # On pairs, cycles of lengths m and n make gcd(m, n) cycles of length lcm(m, n).
        product: Counter[int] = Counter()
        for m, times in cycles.items():
            for n in _cycle_lengths(permutation):
                product[m * n // gcd(m, n)] += times * gcd(m, n)
        cycles = product
    return sum(_union_sizes(cycles.elements(), most))


def _cycle_lengths(permutation: Sequence[int]) -> Iterator[int]:
    seen: set[int] = set()
    for start in range(len(permutation)):
        length, at = 0, start
        while at not in seen:
            seen.add(at)
            at = permutation[at]
            length += 1
        if length:
            yield length


def _union_sizes(cycles: Iterable[int], most: int) -> Polynomial:
    sizes: Polynomial = (1,)
    for length in cycles:
        # Python's integers, which do not overflow.
        product = np.convolve(np.array(sizes, np.object_), np.array((1, *[0] * (length - 1), 1), np.object_))
        sizes = tuple(product.tolist()[: most + 1])
    return sizes
