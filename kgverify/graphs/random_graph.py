"""Graphs drawn from a seed, `random:SEED`: small, recursive, and full of situations that provers get wrong.

One predicate has more facts than any plausible cap, and one constant has many facts of the same predicate. Rules repeat
variables, contain constants, lead back to their heads and have long bodies. Test triples are drawn from the consequences of
train.
"""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import NamedAtom, Term
from kgverify.program.program import NamedRule, parse_rules
from kgverify.step.clauses import is_named_variable, unify

PREFIX: Final = "random:"

NUM_CONSTANTS: Final = 280
"""More constants than an 8-bit number can count."""

CHAINS: Final = (
    "p(X,Z) q(X,Y) p(Y,Z)",
    "p(X,Z) p(X,Y) q(Y,Z)",
    "p(X,Z) q(X,Y) r(Y,Z)",
    "p(X,Z) q(Y,X) r(Y,Z)",
)
SHAPES: Final = (
    "p(X,Y) q(X,Y)",
    "p(X,Y) q(Y,X)",
    "p(X,Y) p(Y,X)",
    "p(X,Y) p(X,Y) q(Y,Z)",
    "p(X,X) q(X,Y)",
    "p(X,X) q(X,X) r(X,Y)",
    "p(X,Y) q(X,X) r(Y,Y)",
    "p(X,Y) q(Z,Z)",
    "p(X,Y) q(X,V) r(Z,Y)",
    "p(a,Y) q(Y,b)",
    "p(X,a) q(b,X) r(X,a)",
    "p(X,Y) q(a,b) r(X,Y)",
    "p(X,Y) q(X,Z) r(Y,X)",
    "p(X,Y) r(Y,X) q(X,Z)",
    "p(X,Y) q(X,V) r(V,W) q(W,Y)",
    "p(X,Y) q(X,U) q(U,V) r(V,W) p(W,Y)",
    "p(X,Y) q(Y,V) r(V,V) p(V,X) r(W,a)",
)
"""Shapes of rules, each with its head and body; the letters for predicates and constants are placeholders."""

GADGETS: Final = (
    # A selected atom whose first argument is free meets a head with a repeated variable.
    "g0(X,Y) g1(Z,Y) g2(X,Z); g1(X,X) g3(X,X)",
    # A goal leads to a goal with the same atoms in another order.
    "g4(X,Y) g2(X,Z) g5(X,Y); g5(X,Y) g5(X,Y) g2(X,Z)",
    # A selected atom has a repeated variable.
    "g6(X,Y) e0(Z,Z)",
)
"""Rules that force situations that random rules rarely reach. The query has the predicate of the first rule's head."""


def parse_seed(spec: str) -> int:
    """Parse the seed of `random:SEED`. UserError if it is not a number."""
    if not (text := spec.removeprefix(PREFIX)).isdecimal():
        raise UserError(f"expected a seed of 0 or more, found {text!r}", where=spec, fix=f"write {PREFIX}7, say")
    return int(text)


def draw_graph(seed: int) -> KnowledgeGraph:
    """Draw the graph of a seed, the same on every machine."""
    rng = random.Random(seed)
    constants = [f"c{i}" for i in range(NUM_CONSTANTS)]
    few = constants[:12]
    stored = [f"e{i}" for i in range(4)]
    derived = [f"d{i}" for i in range(3)]
    train = [fact for predicate in (*stored, *derived) for fact in _draw_facts(rng, predicate, few)]
    train += [NamedAtom("next", a, b) for a, b in pairwise(constants)]
    train += [NamedAtom(stored[0], few[0], constant) for constant in constants[12:82]]
    rng.shuffle(train)
    texts = [*CHAINS, *rng.sample(SHAPES, 14), rng.choice(CHAINS), rng.choice(CHAINS)]
    rules = [_fill(rng, text, derived, [*stored, *derived, "next"], few) for text in texts]
    rules += [_fill(rng, "p(X,Y) q(X,Y)", [predicate], stored, few) for predicate in derived]
    gadgets = [parse_rules(text) for text in GADGETS]
    rules += [rule for gadget in gadgets for rule in gadget]
    train.append(NamedAtom("g2", few[1], few[2]))
    rng.shuffle(rules)
    queries = [*_draw_queries(rng, train, rules), *rng.sample([f for f in train if f.predicate in derived], 6)]
    rng.shuffle(queries)
    queries[:0] = [NamedAtom(gadget[0].clause_head.predicate, few[1], few[3]) for gadget in gadgets]
    return KnowledgeGraph(
        f"{PREFIX}{seed}",
        train=tuple(train),
        test=tuple(queries),
        rules=tuple(rules),
        domains={"near": (*few, *constants[256:268]), "far": tuple(constants[12:256] + constants[268:])},
    )


def _draw_facts(rng: random.Random, predicate: str, constants: list[str]) -> Iterator[NamedAtom]:
    for _ in range(rng.choice((6, 15, 40))):
        first = rng.choice(constants)
        yield NamedAtom(predicate, first, first if rng.random() < 0.1 else rng.choice(constants))


def _fill(rng: random.Random, text: str, heads: list[str], bodies: list[str], constants: list[str]) -> NamedRule:
    predicates = {"p": rng.choice(heads)}
    terms: dict[Term, Term] = {name: rng.choice(constants) for name in "ab"}
    predicates |= {name: rng.choice(bodies) for name in "qr"}
    return parse_rules(text)[0].rename(terms, predicates)


def _draw_queries(rng: random.Random, train: list[NamedAtom], rules: list[NamedRule]) -> list[NamedAtom]:
    """Draw atoms that follow from train; some follow from atoms drawn before."""
    known = dict.fromkeys(train)
    drawn: dict[NamedAtom, None] = {}
    for _ in range(4000):
        found = _apply(rng, rng.choice(rules), list(known))
        if found is not None and found not in known:
            drawn[found] = None
            known[found] = None
        if len(drawn) >= 40:
            break
    return list(drawn)


def _apply(rng: random.Random, rule: NamedRule, known: list[NamedAtom]) -> NamedAtom | None:
    """Match a rule's body, atom by atom, with random known atoms; return its head, or None if that fails."""
    bindings: dict[Term, Term] = {}
    for atom in rule.body:
        wanted = atom.rename(bindings)
        matches = [unify(other, wanted, is_named_variable) for other in known if other.predicate == atom.predicate]
        matching = [each for each in matches if each is not None]
        if not matching:
            return None
        bindings |= rng.choice(matching)
    head = rule.clause_head.rename(bindings)
    return head if head.is_ground else None
