"""Count the programs of a scope up to renaming by Burnside's lemma, without enumerating them.

The number of orbits of a group is the mean number of objects that an element leaves unchanged. An element here
permutes predicates and constants. A rule or a query is unchanged if all its symbols are fixed points, and a set of
facts if it is a union of cycles of ground atoms.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, zip_longest
from math import comb, gcd, perm
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
            facts = _fixed_orders if scope.every_order else _fixed_sets
            fixed = facts(of_predicates, of_constants, scope.max_facts) * sequences
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


def _fixed_orders(of_predicates: Sequence[int], of_constants: Sequence[int], most: int) -> int:
    """Return the number of unchanged sets of facts, each with an order in which a list introduces their constants.

    All of their constants are fixed points, since the order tells them apart.
    """
    fixed = count_fixed(of_constants)
    pair = _union_sizes(_cycle_lengths(of_predicates), most)
    return sum(perm(fixed, used) * sum(_ordered_sets(pair, used, most)) for used in range(fixed + 1))


def _ordered_sets(pair: Polynomial, used: int, most: int) -> Polynomial:
    """Return, by size, the number of sets of facts that can introduce the constants 0, 1, ... in this order.

    pair: the sets of facts of one pair of arguments, by size

    Constant j is introduced by a fact about it and earlier ones, or together with j + 1 by a fact of (j, j + 1). So a
    walk over the constants has two states: j has been introduced, or waits for that fact.
    """
    if not used:
        return (1,)
    some = _less_one(pair)
    has_come: Polynomial = some
    waits: Polynomial = (1,)
    for j in range(1, used):
        others = _power(pair, 2 * j, most)
        linked = _times(some, others, most)
        has_come, waits = (
            _plus(_times(_plus(has_come, waits), linked, most), _times(has_come, _less_one(others), most)),
            has_come,
        )
    return has_come


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
        sizes = _times(sizes, (1, *[0] * (length - 1), 1), most)
    return sizes


def _times(left: Polynomial, right: Polynomial, most: int) -> Polynomial:
    # Python's integers, which do not overflow.
    product = np.convolve(np.array(left, np.object_), np.array(right, np.object_))
    return tuple(product.tolist()[: most + 1])


def _plus(left: Polynomial, right: Polynomial) -> Polynomial:
    return tuple(map(sum, zip_longest(left, right, fillvalue=0)))


def _power(base: Polynomial, exponent: int, most: int) -> Polynomial:
    power: Polynomial = (1,)
    for _ in range(exponent):
        power = _times(power, base, most)
    return power


def _less_one(sizes: Polynomial) -> Polynomial:
    """Return the polynomial without the empty set."""
    return (sizes[0] - 1, *sizes[1:])
