"""Small random graphs, with and without domains."""

import random

from kgverify import KnowledgeGraph
from kgverify.program.atoms import NamedAtom


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
