"""The rules by which engines go wrong."""

import numpy as np

from kgverify.program.atoms import Atom
from kgverify.program.outcomes import Origin
from kgverify.program.program import Program, Rule, Symbols
from kgverify.step.clauses import (
    Clauses,
    cut,
    matches,
    matches_apart,
    matches_in,
    matches_without,
    pack,
    resolve_unchained,
    resolve_unrenamed,
)

X, Y, Z = -1, -2, -3
FACTS = np.array([(0, 1, 2), (0, 3, 3), (1, 258, 5)], np.int32)
RULES = (Rule(Atom(0, X, X), (Atom(1, X, X),)), Rule(Atom(0, X, Y), (Atom(1, X, Z), Atom(1, Z, Y))))
CLAUSES = Clauses(
    Program(Symbols(("p", "q"), tuple(f"c{i}" for i in range(300))), FACTS, RULES, (), (), ()), exclude_query=True
)


def fact(i: int) -> tuple[int, int]:
    return Origin.FACT, i


def test_a_fact_matches_nearly():
    assert not matches(((0, 1, 3),), fact(0), CLAUSES)
    assert matches_without(2, ((0, 1, 3),), fact(0), CLAUSES)
    assert not matches_without(1, ((0, 1, 3),), fact(0), CLAUSES)
    assert matches_apart(((0, X, X),), fact(0), CLAUSES)
    assert not matches(((0, X, X),), fact(0), CLAUSES)
    assert matches_in(8, ((1, 2, X),), fact(2), CLAUSES)
    assert not matches_in(16, ((1, 2, X),), fact(2), CLAUSES)


def test_keys_of_few_bits_are_shared():
    facts = CLAUSES.fact_index
    assert facts.has_key(lambda p, a, b: pack(8, p, a, b), (1, 257, 261))
    assert facts.has_key(lambda p, a, b: cut(8, p, a, b), (1, 2, 5))
    assert not facts.has_key(lambda p, a, b: cut(8, p, a, b), (1, 3, 5))
    assert facts.largest_id == 258


def test_variables_are_captured_and_replaced_once():
    rule = Origin.RULE, 1
    assert CLAUSES.resolve(((0, 1, X),), *rule) != resolve_unrenamed(((0, 1, X),), rule, CLAUSES)
    assert resolve_unrenamed(((0, 1, 2),), rule, CLAUSES) == ((1, 1, Z), (1, Z, 2))
    repeated = Origin.RULE, 0
    assert CLAUSES.resolve(((0, X, 5),), *repeated) == ((1, 5, 5),)
    assert resolve_unchained(((0, X, 5),), repeated, CLAUSES) == ((1, X, X),)
