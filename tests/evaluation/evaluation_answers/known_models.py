"""Least models of small programs, each compared with the reference's.

The rules are drawn, make a chain grow by one atom, or keep the one of several pairs that is in another relation.

Each is derived three times: with joins in parts of two rows, with products of matrices, and with its constants as the last of
100,000, where keys of two need more than 32 bits.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np
from evaluation_answers.reference_model import derive_least_model

from kgverify.errors import InternalError
from kgverify.program.atoms import Atom
from kgverify.program.program import Program, Rule, Symbols

if TYPE_CHECKING:
    from kgverify.prover.program.least_model import LeastModel

NUM_DRAWN: Final = 16
NUM_QUERIED: Final = 4
"""The programs whose models with many constants are asked for atoms as well."""
NUM_PREDICATES: Final = 3
NUM_CONSTANTS: Final = 7
NUM_DRAWN_CONSTANTS: Final = 4
"""The last of the constants, which are in drawn programs; few, so that bodies hold."""
MANY_CONSTANTS: Final = 100_000

Clauses = tuple[list[Atom], list[Rule]]
"""Facts and rules."""


def check_known_models(device: str) -> None:
    """Compare least models on a device with the reference's. InternalError if one differs."""
    from kgverify.prover.program.least_model import LeastModel

    for number, (facts, rules) in enumerate(list_programs()):
        expected = derive_least_model(NUM_PREDICATES, NUM_CONSTANTS, facts, rules)
        # A variable of the head alone would stand for all of the many constants.
        is_open = any(set(_variables([rule.clause_head])) - set(_variables(rule.body)) for rule in rules)
        sizes: list[tuple[int, int | None]] = [(NUM_CONSTANTS, 2), (NUM_CONSTANTS, None), (MANY_CONSTANTS, None)]
        for size, most_rows in sizes[: 2 if is_open else 3]:
            shift = size - NUM_CONSTANTS
            model = LeastModel(build_program(facts, rules, size), device=device, most_rows=most_rows)
            keys = sorted((p * size + a + shift) * size + b + shift for p, a, b in expected)
            if model.keys.tolist() != keys:
                raise InternalError(f"the least model of known program {number} with {size:,} constants is wrong")
            if number < NUM_QUERIED or most_rows:
                _check_queries(model, expected, shift)


def _check_queries(model: "LeastModel", expected: set[tuple[int, int, int]], shift: int) -> None:
    """Ask a model for atoms with and without variables, and for the entities of every predicate and constant."""
    constants = range(NUM_CONSTANTS)
    atoms = [Atom(p, a, b) for p in range(NUM_PREDICATES) for a in constants for b in constants]
    rows = np.array(atoms, np.int32) + np.array([0, shift, shift], np.int32)
    is_right = model.contains(rows).tolist() == [atom in expected for atom in atoms]
    by_first, by_second = ({(each[0], each[column]) for each in expected} for column in (1, 2))
    loops = {p for p, a, b in expected if a == b}
    for p in range(NUM_PREDICATES):
        wanted = [(p, c) in found for c in constants for found in (by_first, by_second)] + [p in loops]
        open_atoms = [each for c in constants for each in ((p, c + shift, -1), (p, -1, c + shift))] + [(p, -1, -1)]
        is_right &= model.contains(np.array(open_atoms, np.int32)).tolist() == wanted
    for side in (0, 1):
        num, entities = model.select_entities(rows, side)
        those = [[c for c in constants if ((p, c, b), (p, a, c))[side] in expected] for p, a, b in atoms]
        is_right &= num.tolist() == [len(each) for each in those]
        is_right &= entities.tolist() == [shift + c for each in those for c in each]
    if not is_right:
        raise InternalError("a least model with the right atoms answers wrongly which atoms it has")


def list_programs() -> Iterator[Clauses]:
    """Yield the facts and rules of the known programs."""
    x, y, z = -1, -2, -3
    links = [Atom(1, i, i + 1) for i in range(NUM_CONSTANTS - 1)]
    yield [Atom(0, 0, 0), *links], [Rule(Atom(0, x, y), (Atom(0, x, z), Atom(1, z, y)))]
    pairs = [Atom(1, *pair) for pair in ((3, 4), (3, 5), (4, 5), (6, 4))]
    yield [*pairs, Atom(2, 3, 4)], [Rule(Atom(0, x, y), (Atom(1, x, y), Atom(2, x, y)))]
    for seed in range(NUM_DRAWN):
        yield _draw_program(Random(seed), is_open=seed % 4 == 3)


def _draw_program(random: Random, *, is_open: bool) -> Clauses:
    """Return drawn facts and rules; is_open: whether rules may have variables in their heads alone."""

    def draw(terms: list[int]) -> Atom:
        first, second = (
            random.choice(terms)
            if terms and random.random() < 0.8
            else random.randrange(NUM_CONSTANTS - NUM_DRAWN_CONSTANTS, NUM_CONSTANTS)
            for _ in range(2)
        )
        return Atom(random.randrange(NUM_PREDICATES), first, second)

    facts = sorted({draw([]) for _ in range(8)})
    rules = []
    for _ in range(5):
        body = tuple(draw([-1, -2, -3]) for _ in range(random.randint(1, 3)))
        rules.append(Rule(draw([-1, -2, -4] if is_open else _variables(body)), body))
    return facts, rules


def _variables(atoms: Sequence[Atom]) -> list[int]:
    return sorted({term for atom in atoms for term in atom[1:] if term < 0})


def build_program(facts: list[Atom], rules: list[Rule], num_constants: int) -> Program:
    """Return a program without names, its constants the last ones of a number."""
    shift = num_constants - NUM_CONSTANTS

    def move(atom: Atom) -> Atom:
        first, second = (term if term < 0 else term + shift for term in atom[1:])
        return Atom(atom.predicate, first, second)

    return Program(
        symbols=Symbols(("",) * NUM_PREDICATES, ("",) * num_constants),
        facts=np.array([move(fact) for fact in facts], np.int32).reshape(-1, 3),
        rules=tuple(Rule(move(rule.clause_head), tuple(map(move, rule.body))) for rule in rules),
        named_rules=(),
        named_facts=(),
        named_queries=(),
    )
