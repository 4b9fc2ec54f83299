"""A random graph of binary chain rules for the evaluation of compiled engines."""

import random
from collections import Counter

import kgverify as kv
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule

NUM_ENTITIES, NUM_STORED, NUM_DERIVED = 120, 8, 4
NUM_FACTS, MAX_DEGREE = 360, 14
"""The facts of a stored predicate, and the most facts that share a predicate and an argument."""


def make_graph(seed: int = 0) -> kv.KnowledgeGraph:
    """Draw the graph of a seed.

    Stored predicates have facts only. Derived ones follow from two stored predicates or from a stored and an earlier
    derived one. Of the derived triples a part is stored as facts, and every fourth query is such a fact.
    """
    rng = random.Random(seed)
    entities = [f"e{i:03d}" for i in range(NUM_ENTITIES)]
    stored = [f"stored{i}" for i in range(NUM_STORED)]
    derived = [f"derived{i}" for i in range(NUM_DERIVED)]
    pairs = {predicate: _draw_pairs(rng) for predicate in stored}
    rules, derived_pairs = [], {}
    for i, predicate in enumerate(derived):
        pairs[predicate] = set()
        for second in (rng.choice(stored), rng.choice(derived[:i] or stored)):
            first = rng.choice(stored)
            rules.append(_chain(predicate, first, second))
            pairs[predicate] |= {(a, c) for a, b in pairs[first] for b2, c in pairs[second] if b == b2 and a != c}
        derived_pairs[predicate] = sorted(pairs[predicate])
        # The rules of later predicates see a part of the consequences, so that each proof stays short.
        pairs[predicate] = _thin(rng, derived_pairs[predicate])
    facts = [NamedAtom(name, entities[a], entities[b]) for name in pairs for a, b in sorted(pairs[name])]
    new = [
        NamedAtom(name, entities[a], entities[b])
        for name, all_pairs in derived_pairs.items()
        for a, b in all_pairs
        if (a, b) not in pairs[name]
    ]
    rng.shuffle(new)
    known = [fact for fact in facts if fact.predicate in derived]
    rng.shuffle(known)
    queries = [query for i, one in enumerate(known[: len(new) // 3]) for query in (*new[3 * i : 3 * i + 3], one)]
    return kv.KnowledgeGraph(f"chains-{seed}", train=tuple(facts), test=tuple(queries), rules=tuple(rules))


def _draw_pairs(rng):
    pairs = []
    for _ in range(3 * NUM_FACTS):
        a = min(rng.randrange(NUM_ENTITIES), rng.randrange(NUM_ENTITIES))
        pairs.append((a, (a + rng.randrange(1, 25)) % NUM_ENTITIES))
    return _thin(rng, sorted(set(pairs)))


def _thin(rng, pairs):
    """Return at most `NUM_FACTS` pairs, no more than `MAX_DEGREE` of which share an argument."""
    kept, degrees = set(), Counter()
    for a, b in rng.sample(pairs, len(pairs)):
        ends = ("first", a), ("second", b)
        if len(kept) < NUM_FACTS and max(degrees[end] for end in ends) < MAX_DEGREE:
            kept.add((a, b))
            degrees.update(ends)
    return kept


def _chain(head, first, second):
    x, y, z = Variable("X"), Variable("Y"), Variable("Z")
    return NamedRule(NamedAtom(head, x, y), (NamedAtom(first, x, z), NamedAtom(second, z, y)))
