"""The rules by which engines go wrong: a fact matches nearly, keys of few bits are shared, variables are captured."""

import numpy as np

from kgverify import Program, Rule, Symbols
from kgverify.program.atoms import Atom
from kgverify.program.outcomes import Origin
from kgverify.step import clauses
from kgverify.step.clauses import Clauses, cut, pack

X, Y, Z = -1, -2, -3
FACTS = np.array([(0, 1, 2), (0, 3, 3), (1, 258, 5)], np.int32)
RULES = (Rule(Atom(0, X, X), (Atom(1, X, X),)), Rule(Atom(0, X, Y), (Atom(1, X, Z), Atom(1, Z, Y))))
SYMBOLS = Symbols(("p", "q"), tuple(f"c{i}" for i in range(300)))
CLAUSES = Clauses(Program(SYMBOLS, FACTS, RULES, (), (), ()), exclude_query=True)


def test_a_fact_matches_nearly():
    def has(name: str, goal: tuple[int, ...], fact: int, *options: int) -> bool:
        return getattr(clauses, name)(*options, (goal,), (Origin.FACT, fact), CLAUSES)

    assert not has("matches", (0, 1, 3), 0)
    assert has("matches_without", (0, 1, 3), 0, 2)
    assert not has("matches_without", (0, 1, 3), 0, 1)
    assert has("matches_apart", (0, X, X), 0)
    assert not has("matches", (0, X, X), 0)
    assert has("matches_in", (1, 2, X), 2, 8)
    assert not has("matches_in", (1, 2, X), 2, 16)


def test_keys_of_few_bits_are_shared():
    facts = CLAUSES.fact_index
    assert facts.has_key(lambda p, a, b: pack(8, p, a, b), (1, 257, 261))
    assert facts.has_key(lambda p, a, b: cut(8, p, a, b), (1, 2, 5))
    assert not facts.has_key(lambda p, a, b: cut(8, p, a, b), (1, 3, 5))
    assert facts.largest_id == 258


def test_variables_are_captured_and_replaced_once():
    rule, repeated = (Origin.RULE, 1), (Origin.RULE, 0)
    assert CLAUSES.resolve(((0, 1, X),), *rule) != clauses.resolve_unrenamed(((0, 1, X),), rule, CLAUSES)
    assert clauses.resolve_unrenamed(((0, 1, 2),), rule, CLAUSES) == ((1, 1, Z), (1, Z, 2))
    assert CLAUSES.resolve(((0, X, 5),), *repeated) == ((1, 5, 5),)
    assert clauses.resolve_unchained(((0, X, 5),), repeated, CLAUSES) == ((1, X, X),)
