"""Small programs, queries and limits drawn from a seed, so that every rare case of a step occurs in some of them."""

import random
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kgverify import Limits
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.outcomes import Side
from kgverify.program.program import NamedRule, Program
from kgverify.trace.model.columns import CandidateSet

ATOM = re.compile(r"\s*(\w+)\(\s*(\w+)\s*,\s*(\w+)\s*\)")

FAN = 70
"""Facts of one constant: more than a match window of 64 holds, and more than the tight limits keep."""

RULE_SHAPES = (
    "{p}(X, Z) <- {q}(X, Y), {p}(Y, Z)",
    "{p}(X, Z) <- {p}(X, Y), {q}(Y, Z)",
    "{p}(X, Z) <- {q}(X, Y), {r}(Y, Z)",
    "{p}(X, Y) <- {q}(X, Y)",
    "{p}(X, Y) <- {q}(Y, X)",
    "{p}(X, Y) <- {p}(Y, X)",
    "{p}(X, Y) <- {p}(X, Y), {q}(Y, Z)",
    "{p}(X, X) <- {q}(X, Y)",
    "{p}(X, X) <- {q}(X, X), {r}(X, Y)",
    "{p}(X, Y) <- {q}(X, X), {r}(Y, Y)",
    "{p}(X, Y) <- {q}(Z, Z)",
    "{p}(X, Y) <- {q}(X, V), {r}(Z, Y)",
    "{p}({a}, Y) <- {q}(Y, {b})",
    "{p}({a}, {b}) <- {q}({b}, {a})",
    "{p}(X, {a}) <- {q}({b}, X), {r}(X, {a})",
    "{p}(X, Y) <- {q}({a}, {b}), {r}(X, Y)",
    "{p}(X, Y) <- {q}(X, V), {r}(V, W), {q}(W, Y)",
    "{p}(X, Y) <- {q}(X, U), {q}(U, V), {r}(V, W), {p}(W, Y)",
    "{p}(X, Y) <- {q}(Y, V), {r}(V, V), {p}(V, X), {r}(W, {a})",
)


class Problem(NamedTuple):
    program: Program
    limits: Limits
    candidates: CandidateSet


def term_of(text: str) -> str | Variable:
    """An upper-case initial makes a variable, as in Prolog."""
    return Variable(text) if text[0].isupper() else text


def atoms_of(text: str) -> list[NamedAtom]:
    return [NamedAtom(p, term_of(first), term_of(second)) for p, first, second in ATOM.findall(text)]


def rule_of(text: str) -> NamedRule:
    clause_head, body = text.split("<-")
    return NamedRule(atoms_of(clause_head)[0], tuple(atoms_of(body)))


def program_of(text: str, queries: str = "", constants: Iterable[str] = ()) -> Program:
    """A program from lines `p(a, b)` and `p(X, Z) <- q(X, Y), r(Y, Z)`."""
    lines = [line for line in text.splitlines() if line.strip()]
    facts = [atom for line in lines if "<-" not in line for atom in atoms_of(line)]
    return Program.from_names(facts, [rule_of(line) for line in lines if "<-" in line], atoms_of(queries), constants)


def candidates_of(program: Program, queries: str | Sequence[NamedAtom]) -> CandidateSet:
    """Queries as candidates outside of a ranking, each the query of its own index."""
    atoms = atoms_of(queries) if isinstance(queries, str) else queries
    rows = np.array([program.symbols.encode(atom) for atom in atoms], np.int32).reshape(-1, 3)
    return CandidateSet(np.arange(len(rows), dtype=np.int32), np.full(len(rows), Side.NONE, np.int8), rows)


def random_problem(seed: int, num_queries: int = 8) -> Problem:
    rng = random.Random(seed)
    program = random_program(rng)
    return Problem(program, random_limits(rng), candidates_of(program, random_queries(rng, program, num_queries)))


def random_program(rng: random.Random, prefix: str = "") -> Program:
    """A program of at most four predicates; the last one has no facts. Names begin with the prefix."""
    predicates = [f"{prefix}p{i}" for i in range(rng.randint(2, 4))]
    constants = [f"{prefix}c{i}" for i in range(rng.choice((2, 3, 6, 12)))]
    facts = [fact for predicate in predicates[:-1] for fact in _random_facts(rng, predicate, constants)]
    facts += rng.sample(facts, min(3, len(facts)))
    shapes = rng.sample(RULE_SHAPES, rng.randint(0, 6))
    rules = [rule_of(_fill(rng, shape, predicates, constants)) for shape in shapes]
    # A join of predicates with facts, so that some steps have many facts to choose from.
    join = _fill(rng, "{p}(X, Z) <- {q}(X, Y), {r}(Y, Z)", predicates[:-1], constants)
    rules.insert(rng.randint(0, len(rules)), rule_of(join.replace(join.split("(")[0], predicates[-1], 1)))
    return Program.from_names(facts, rules, [NamedAtom(p, constants[0], constants[-1]) for p in predicates], constants)


def random_queries(rng: random.Random, program: Program, num_queries: int) -> list[NamedAtom]:
    """Facts, other ground atoms, and every pattern of variables."""
    predicates, constants = program.symbols.predicates, program.symbols.constants[:12]
    x, y = Variable("X"), Variable("Y")

    def draw() -> NamedAtom:
        p, a, b = rng.choice(predicates), rng.choice(constants), rng.choice(constants)
        pattern = rng.randrange(10)
        if pattern < 2 and program.named_facts:
            return rng.choice(program.named_facts)
        return NamedAtom(p, *{6: (a, x), 7: (x, b), 8: (x, y), 9: (x, x)}.get(pattern, (a, b)))

    return [draw() for _ in range(num_queries)]


def random_limits(rng: random.Random) -> Limits:
    if rng.random() < 0.3:
        return Limits(exclude_query=rng.random() < 0.7)
    return Limits(
        max_depth=rng.choice((1, 2, 3, 4, 9)),
        max_atoms=rng.choice((1, 2, 3, 6)),
        max_resolvents=rng.choice((1, 2, 3, 5, 40)),
        exclude_query=rng.random() < 0.7,
    )


def merge(programs: Sequence[Program]) -> Program:
    """All programs in one, their symbols being apart; each keeps the order of its facts and rules."""
    return Program.from_names(
        [fact for program in programs for fact in program.named_facts],
        [rule for program in programs for rule in program.named_rules],
        [query for program in programs for query in program.named_queries],
        [name for program in programs for name in program.symbols.constants],
    )


def _random_facts(rng: random.Random, predicate: str, constants: list[str]) -> list[NamedAtom]:
    shape = rng.choice(("none", "chain", "cycle", "loops", "fan out", "fan in", *["scattered"] * 5))
    others = [f"{constants[0]}x{i}" for i in range(FAN)]
    if shape == "fan out":
        return [NamedAtom(predicate, constants[0], other) for other in others]
    if shape == "fan in":
        return [NamedAtom(predicate, other, constants[-1]) for other in others]
    if shape in ("chain", "cycle"):
        nexts = constants[1:] + constants[:1] if shape == "cycle" else constants[1:]
        return [NamedAtom(predicate, a, b) for a, b in zip(constants, nexts, strict=False)]
    if shape == "loops":
        return [NamedAtom(predicate, a, a) for a in constants]
    num = 0 if shape == "none" else rng.randint(1, 30)
    return [NamedAtom(predicate, rng.choice(constants), rng.choice(constants)) for _ in range(num)]


def _fill(rng: random.Random, shape: str, predicates: list[str], constants: list[str]) -> str:
    """A shape with names drawn for its holes; a rule that calls itself is frequent, since predicates are few."""
    names = {hole: rng.choice(predicates) for hole in "pqr"} | {hole: rng.choice(constants) for hole in "ab"}
    return shape.format(**names)
