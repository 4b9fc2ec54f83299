"""Engines with tables as large as a graph's vocabulary, each with a fault that only such sizes show."""

from bisect import bisect_left
from collections import defaultdict
from itertools import groupby
from random import Random

import numpy as np

import kgverify as kv

NUM_PREDICATES = 40
PREDICATES = [f"p{i:02}" for i in range(NUM_PREDICATES)]


def make_graph(num_constants: int) -> kv.KnowledgeGraph:
    """Return a graph with facts and rules of 40 predicates, some of whose facts lie at both ends and around powers of two."""
    rng, names = Random(0), [f"e{i}" for i in range(num_constants)]
    ends = [i for at in (2, 1024, 4098, 8192, 32768, num_constants) for i in range(at - 2, at + 2) if i < num_constants]
    starts = [*ends, *rng.sample(range(num_constants), 24)]
    pairs = [(a, rng.choice(ends) if rng.random() < 0.3 else rng.randrange(num_constants)) for a in starts * 2]
    facts = [kv.NamedAtom(p, names[a], names[b]) for p in PREDICATES[20:] for a, b in pairs if rng.random() < 0.9]
    # Numbers by first appearance are then those of the names.
    numbered = [kv.NamedAtom(p, name, name) for p, name in zip(PREDICATES, names, strict=False)]
    numbered += [kv.NamedAtom(PREDICATES[0], a, b) for a, b in zip(names[40::2], names[41::2], strict=False)]
    (chain,) = (kv.load_graph("countries").rules[1],)
    x, z, y = chain.body[0].first, chain.body[0].second, chain.body[1].second
    rules = [
        kv.NamedRule(kv.NamedAtom(head, x, y), (kv.NamedAtom(one, x, z), kv.NamedAtom(two, z, y)))
        for i, head in enumerate(PREDICATES[4:24])
        for one, two in [(PREDICATES[39 - i], PREDICATES[20 + i])]
    ]
    queries = [kv.NamedAtom(PREDICATES[4 + i % 16], names[a], names[rng.choice(ends)]) for i, a in enumerate(starts)]
    return kv.KnowledgeGraph("sized", train=(*numbered, *facts), test=tuple(queries), rules=tuple(rules))


class Table(kv.StagedEngine):
    """Finds facts by one number for each pattern of bound arguments. It is right; its subclasses are not."""

    support = kv.Support(max_new_variables=1, constants_in_rules=False, repeated_variables=False)

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self.number(program.symbols)
        self.rows = [(self.p[p], self.c[a], self.c[b]) for p, a, b in program.facts.tolist()]
        self.index = defaultdict(list)
        for i, (p, a, b) in enumerate(self.rows):
            for pattern in {(p, a, b), (p, a, self.C), (p, self.C, b), (p, self.C, self.C)}:
                self.index[self.pack(*pattern)].append(i)
        self.order = [key for key, _ in groupby(sorted(self.pack(*row) for row in self.rows))]

    def number(self, symbols):
        """Number the symbols as the program does: sizes are those of the program."""
        self.P, self.C = len(symbols.predicates), len(symbols.constants)
        self.p, self.c = range(self.P), range(self.C)

    def pack(self, p, a, b):
        """Return the number of a pattern, with C for a free argument."""
        return (p * (self.C + 1) + a) * (self.C + 1) + b

    def find(self, p, a, b):
        """Return the facts of a pattern."""
        return self.index.get(self.pack(p, a, b), [])

    def has_rules(self, p):
        """Return whether a predicate may have rules."""
        return True

    def resolve(self, goal, excluded):
        p, a, b = goal[0]
        fresh = min([0, *(term for atom in goal for term in atom[1:])]) - 1
        for rule in self.clauses_for(goal, excluded):
            if rule.body and self.has_rules(self.p[p]):
                names = {-1: a, -2: b, -3: fresh}
                yield rule, [(q, names.get(c, c), names.get(d, d)) for q, c, d in rule.body] + list(goal[1:])
        for i in sorted(self.find(self.p[p], *(self.c[term] if term >= 0 else self.C for term in (a, b)))):
            fact = self.facts[i]
            if fact.head == excluded or (a == b < 0 and fact.head[1] != fact.head[2]):
                continue
            names = {term: value for term, value in zip((a, b), fact.head[1:], strict=True) if term < 0}
            yield fact, [(q, names.get(c, c), names.get(d, d)) for q, c, d in goal[1:]]


class Named(Table):
    """Knows the names of one graph, and numbers them by itself. Other names raise KeyError."""

    num_constants = 6000

    def number(self, symbols):
        own = {f"e{i}": i for i in range(self.num_constants)}
        predicates = {name: i for i, name in enumerate(PREDICATES)}
        self.P, self.C = len(predicates), self.num_constants
        self.p, self.c = [predicates[name] for name in symbols.predicates], [own[name] for name in symbols.constants]


class SortedInt32(Named):
    """Searches sorted keys of 32 bits, which overflow."""

    def find(self, p, a, b):
        keys = np.array(self.order).astype(np.int32).tolist()

        def is_found(i):
            key = int(np.int64(self.pack(*self.rows[i])).astype(np.int32))
            at = bisect_left(keys, key)
            return at < len(keys) and keys[at] == key

        return list(filter(is_found, super().find(p, a, b)))

    def pack(self, p, a, b):
        return 3 * super().pack(p, a, b)


class Int16(Named):
    """Stores constants in 16 bits."""

    num_constants = 40_000

    def find(self, p, a, b):
        return [i for i in super().find(p, a, b) if max(self.rows[i][1:]) < 1 << 15]


class Float32(Named):
    """Rounds its keys to floats of 32 bits."""

    def pack(self, p, a, b):
        return float(np.float32(super().pack(p, a, b)))


class PredicateBits(Named):
    """Has five bits for a predicate."""

    def pack(self, p, a, b):
        return super().pack(p & 31, a, b)


class Hash(Table):
    """Has slots for 4,096 constants, and compares no names."""

    def pack(self, p, a, b):
        return super().pack(p, *(term if term == self.C else term & 4095 for term in (a, b)))


class Capacity(Table):
    """Has the less room for the facts of a constant, the more constants there are."""

    def find(self, p, a, b):
        return super().find(p, a, b)[: max(1, 24 - self.C // 256)]


class TableSize(Table):
    """Computes the size of its table in 16 bits."""

    def find(self, p, a, b):
        size = int(np.int64(self.C * 4).astype(np.int16))
        return [i for i in super().find(p, a, b) if size > 0]


class Blocks(Table):
    """Reads a large table in blocks of 1,024 constants, and forgets the rest."""

    def find(self, p, a, b):
        end = self.C // 1024 * 1024 or self.C
        return [i for i in super().find(p, a, b) if self.rows[i][1] < end]


class Shaped(Table):
    """Has weights for a number of symbols, and refuses programs that have another number."""

    num_constants = 6000

    def number(self, symbols):
        super().number(symbols)
        if (NUM_PREDICATES, self.num_constants) != (self.P, self.C):
            raise NotImplementedError(f"weights for {self.num_constants} constants do not fit {self.C}")


class LastRow(Shaped):
    """Lacks a row, and uses the last but one for the last constant."""

    def pack(self, p, a, b):
        return super().pack(p, *(min(term, self.C - 2) if term < self.C else term for term in (a, b)))


class Padding(Shaped):
    """Takes constant 0 for padding if there is any."""

    def find(self, p, a, b):
        return [i for i in super().find(p, a, b) if self.C % 128 == 0 or min(self.rows[i][1:]) > 0]


class Weights(Shaped):
    """Has weights for 32 predicates, and uses them again for others."""

    def score(self, goal, resolvents):
        scores = super().score(goal, resolvents)
        return [s - (r.atoms[0][0] >= 32) for s, r in zip(scores, resolvents, strict=True)]


class RuleBits(Shaped):
    """Marks predicates with rules in 16 bits."""

    def has_rules(self, p):
        return bool((1 << p) & 0xFFFF)


FAULTY = {
    each: max(6000, each.num_constants if issubclass(each, (Named, Shaped)) else 0, 9000 * (each is TableSize))
    for each in (
        SortedInt32,
        Int16,
        Float32,
        PredicateBits,
        Hash,
        Capacity,
        TableSize,
        Blocks,
        LastRow,
        Padding,
        Weights,
        RuleBits,
    )
}
"""The faulty engines, each with the number of constants of its graph."""
