"""Graphs to draw from: small random ones, with and without domains, and one with numbers beyond 16 bits."""

import random
from collections.abc import Sequence
from functools import cache

from kgverify import KnowledgeGraph, NamedAtom


def make_graph(seed: int) -> KnowledgeGraph:
    """A graph of few constants, so that many corruptions are known triples; every third has no domains."""
    rng = random.Random(seed)
    constants = [f"c{i}" for i in range(rng.randint(2, 12))]
    predicates = [f"p{i}" for i in range(rng.randint(1, 3))]

    def triples(most: int) -> tuple[NamedAtom, ...]:
        return tuple(
            NamedAtom(rng.choice(predicates), rng.choice(constants), rng.choice(constants))
            for _ in range(rng.randint(1, most))
        )

    domains = {f"d{i}": tuple(rng.sample(constants, rng.randint(1, len(constants)))) for i in range(rng.randint(1, 3))}
    return KnowledgeGraph(
        f"random {seed}",
        train=triples(30),
        valid=triples(5),
        test=triples(5),
        domains=domains if seed % 3 else {},
    )


@cache
def make_large_graph(queries: Sequence[int], num_constants: int = 70_003) -> KnowledgeGraph:
    """A graph with some queries among 70,001: of two predicates that are one modulo 2^8, the last of a wide one.

    The arguments of the two are a few entities: small numbers, and those on both sides of the sizes of types.
    """
    names = [f"c{i}" for i in range(num_constants)]
    few = [
        names[i]
        for i in (*range(12), *(n + i for n in (1 << 8, 1 << 15, 1 << 16, num_constants - 3) for i in range(-3, 3)))
    ]
    wide = [NamedAtom("wide", names[i], names[min(i + 1, num_constants - 1)]) for i in range(0, num_constants, 2)]
    predicates = [NamedAtom(f"p{i}", names[0], names[1]) for i in range(1, 400)]
    test = [wide[0]] * (queries[-1] + 1)
    known = []
    for i, query in enumerate(queries[:-1]):
        test[query] = triple = NamedAtom(("p72", "p328")[i % 2], few[-1 - i], few[3 * i % len(few)])
        known += [triple._replace(first=name) for name in few[::3]] + [
            triple._replace(second=name) for name in few[1::4]
        ]
    test[queries[-1]] = NamedAtom("wide", few[-2], few[-2])
    return KnowledgeGraph("large", tuple(wide + predicates + known), test=tuple(test), domains={"few": tuple(few)})
