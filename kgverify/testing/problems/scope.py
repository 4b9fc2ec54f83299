"""The scope `tiny`: every problem of one predicate, two constants, at most one rule and two facts, each once.

Two problems are the same if a step cannot tell them apart: under other names of constants or variables, and with the same
facts in another order.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from types import MappingProxyType
from typing import Final, TypeAlias

from kgverify.comparison.exercise.exercise import Minimum
from kgverify.errors import UserError, suggest
from kgverify.program.atoms import Atom, NamedAtom, Term, Variable, decode_variable, encode_variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule
from kgverify.testing.problems.problem import Problem

Clause: TypeAlias = tuple[Atom, ...]

SCOPES: Final = ("tiny",)

SCOPE_MINIMUM: Final[Minimum] = MappingProxyType({"proved": 1, "rules": 1})
"""The exercise that a scope requires by default: with one rule of one body atom no step has a choice."""

_CONSTANTS: Final = (0, 1)
_MAX_FACTS: Final = 2
_MAX_DEPTH: Final = 2
_MAX_ATOMS: Final = (1, 2)
_MAX_RESOLVENTS: Final = (1, 3)


def check_scope(name: str) -> None:
    """Raise UserError for an unknown scope."""
    if name not in SCOPES:
        raise UserError(f"unknown scope {name!r}", where="scope", fix=suggest(name, SCOPES) or "choose tiny")


@lru_cache(maxsize=2)
def list_scope(name: str, dialect: Dialect = OURS) -> tuple[Problem, ...]:
    """Return every problem of a scope in a dialect, in an order that never changes. UserError for an unknown scope."""
    check_scope(name)
    clauses = {clause: tuple(map(_name_atom, clause)) for size in (1, 2) for clause in _list_clauses(size)}
    programs = [
        (sum((clauses[(fact,)] for fact in facts), ()), [clauses[rule] for rule in rules], clauses[query])
        for facts, rules, query in _enumerate_programs()
    ]
    return tuple(
        Problem(
            facts=facts,
            rules=tuple(NamedRule(head, (body,)) for head, body in rules),
            unranked=query,
            limits=Limits(_MAX_DEPTH, max_atoms, max_resolvents, dialect=dialect),
            num_corruptions=0,
        )
        for max_atoms, max_resolvents in product(_MAX_ATOMS, _MAX_RESOLVENTS)
        for facts, rules, query in programs
    )


def _enumerate_programs() -> Iterator[tuple[Clause, tuple[Clause, ...], Clause]]:
    """Yield the facts, the rules and the query of each problem; of two that differ in the constants' names, the lesser."""
    atoms = [Atom(0, first, second) for first, second in product(_CONSTANTS, repeat=2)]
    fact_sets = [facts for size in range(_MAX_FACTS + 1) for facts in combinations(atoms, size)]
    # Each with its image under the exchange of the two constants.
    every_facts = [(facts, tuple(sorted(_swap_constants(facts)))) for facts in fact_sets]
    every_rules: list[tuple[tuple[Clause, ...], tuple[Clause, ...]]] = [((), ())]
    every_rules += (((rule,), (_swap_constants(rule),)) for rule in _list_clauses(2))
    every_query = [(query, _swap_constants(query)) for query in _list_clauses(1)]
    for (facts, other_facts), (rules, other_rules), (query, other_query) in product(
        every_facts, every_rules, every_query
    ):
        if (facts, rules, query) <= (other_facts, other_rules, other_query):
            yield facts, rules, query


def _list_clauses(num_atoms: int) -> list[Clause]:
    """Return every sequence of atoms, its variables numbered by first appearance."""
    filled: list[tuple[int, ...]] = [()]
    for _ in range(2 * num_atoms):
        filled = [
            (*terms, term)
            for terms in filled
            for num_variables in [-min((*terms, 0))]
            for term in (*map(encode_variable, range(num_variables + 1)), *_CONSTANTS)
        ]
    return [tuple(Atom(0, *terms[i : i + 2]) for i in range(0, len(terms), 2)) for terms in filled]


def _swap_constants(clause: Clause) -> Clause:
    return tuple(Atom(predicate, *(term if term < 0 else 1 - term for term in terms)) for predicate, *terms in clause)


def _name_atom(atom: Atom) -> NamedAtom:
    def name(number: int) -> Term:
        return Variable(f"X{decode_variable(number)}") if number < 0 else f"c{number}"

    return NamedAtom(f"p{atom.predicate}", name(atom.first), name(atom.second))
