"""Small scopes: every program up to a size, each once up to renaming.

Two problems are the same if a symmetry of a step maps one to the other:

- The names of a rule's or a query's variables: rules are standardized apart, and goals made canonical.
- The names of predicates and constants.
- The order of the facts of a program, and repeated facts: facts are a set, and each set occurs in one order.

The order of rules and of body atoms, and repeated rules, change steps: rules are sequences.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations, permutations, product
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kgverify.errors import UserError, suggest
from kgverify.program.atoms import Atom, NamedAtom, Term, Variable, decode_variable, encode_variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule
from kgverify.testing.problems.problem import Problem

Clause: TypeAlias = tuple[Atom, ...]
"""A rule, its head first; a query is a clause of one atom."""

_Renaming: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The images of the predicates and of the constants."""


class Count(msgspec.Struct, frozen=True):
    """The number of programs of a scope up to renaming, and of problems: a program, a query and a setting of limits."""

    programs: int
    problems: int


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Every program up to a size, with every query, under every combination of limits.

    count: of its programs and problems, by Burnside's lemma
    predicates, constants: most symbols of either kind
    max_rules, max_body:   most rules of a program, most atoms of a rule's body (at least one each)
    max_facts:             most facts of a program
    max_depth, max_atoms, max_resolvents, exclude_query: the values of each limit
    dialect: of both engines
    """

    name: str
    count: Count
    predicates: int = 1
    constants: int = 2
    max_rules: int = 1
    max_body: int = 2
    max_facts: int = 4
    max_depth: tuple[int, ...] = (1, 2, 4)
    max_atoms: tuple[int, ...] = (1, 2, 3)
    max_resolvents: tuple[int, ...] = (1, 2, 4)
    exclude_query: tuple[bool, ...] = (True,)
    dialect: Dialect = OURS

    @cached_property
    def limits(self) -> tuple[Limits, ...]:
        """Every combination of the limits' values."""
        return tuple(
            Limits(depth, atoms, resolvents, exclude, self.dialect)
            for depth, atoms, resolvents, exclude in product(
                self.max_depth, self.max_atoms, self.max_resolvents, self.exclude_query
            )
        )

    @property
    def digest(self) -> str:
        """A digest of the sizes, the limits and the dialect, of which the default one adds nothing."""
        content = {key: value for key, value in asdict(self).items() if key not in ("name", "count", "dialect")}
        if self.dialect != OURS:
            content["dialect"] = msgspec.to_builtins(self.dialect)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        def many(number: int, noun: str) -> str:
            return f"{number} {noun}{'' if number == 1 else 's'}"

        return (
            f"{many(self.predicates, 'predicate')}, {many(self.constants, 'constant')},"
            f" <= {many(self.max_rules, 'rule')} of <= {many(self.max_body, 'body atom')},"
            f" <= {many(self.max_facts, 'fact')} in one order,"
            f" every query, {many(len(self.limits), 'setting')} of limits"
            + (f", dialect {self.dialect}" if self.dialect != OURS else "")
        )


class ScopedProgram(NamedTuple):
    """A program of a scope in numbers, with its queries, each once up to renamings that leave the program unchanged."""

    facts: tuple[Atom, ...]
    rules: tuple[Clause, ...]
    queries: tuple[Atom, ...]

    def problem(self, limits: Limits) -> Problem:
        """Return the program in names, with all queries, outside of a ranking."""
        return Problem(
            facts=tuple(map(_named, self.facts)),
            rules=tuple(NamedRule(_named(head), tuple(map(_named, body))) for head, *body in self.rules),
            unranked=tuple(map(_named, self.queries)),
            limits=limits,
            num_corruptions=0,
        )


SCOPES: Final = {
    scope.name: scope
    for scope in (
        Scope(
            name="tiny",
            count=Count(860, 33_632),
            max_body=1,
            max_facts=2,
            max_depth=(2,),
            max_atoms=(1, 2),
            max_resolvents=(1, 3),
        ),
        Scope(name="one-rule", count=Count(27_758, 7_400_052)),
        Scope(name="two-rules", count=Count(184_106, 49_604_508), max_rules=2, max_body=1, max_resolvents=(1, 3, 5)),
        Scope(name="three-constants", count=Count(86_077, 38_575_818), constants=3, max_facts=2),
    )
}
"""The scopes by name, the smallest first."""


def find_scope(name: str, dialect: Dialect = OURS) -> Scope:
    """Return a scope of `SCOPES` in a dialect. UserError for an unknown name."""
    if name not in SCOPES:
        raise UserError(
            f"unknown scope {name!r}", where="scope", fix=suggest(name, SCOPES) or f"choose {', '.join(SCOPES)}"
        )
    return replace(SCOPES[name], dialect=dialect)


def enumerate_programs(scope: Scope) -> Iterator[ScopedProgram]:
    """Yield the least program of each class, in an order that never changes."""
    queries = _clauses(scope, 1)
    rules = [rule for body in range(1, scope.max_body + 1) for rule in _clauses(scope, body + 1)]
    group = [
        (predicates, constants)
        for predicates in permutations(range(scope.predicates))
        for constants in permutations(range(scope.constants))
    ]
    # The image of each clause under a renaming: rules are compared by their indices in the list.
    index = {clause: i for i, clause in enumerate(rules)}
    moved = {renaming: [index[_rename(rule, renaming)] for rule in rules] for renaming in group}
    for facts in _fact_sets(scope):
        images = [(tuple(sorted(_rename(facts, renaming))), renaming) for renaming in group]
        if any(image < facts for image, _ in images):
            continue
        stabilizer = [renaming for image, renaming in images if image == facts]
        for length in range(scope.max_rules + 1):
            for chosen in product(range(len(rules)), repeat=length):
                keeping = stabilizer
                if len(stabilizer) > 1:
                    rule_images = [(tuple(moved[each][i] for i in chosen), each) for each in stabilizer]
                    if any(image < chosen for image, _ in rule_images):
                        continue
                    keeping = [each for image, each in rule_images if image == chosen]
                own = [query for query in queries if all(query <= _rename(query, each) for each in keeping)]
                yield ScopedProgram(facts, tuple(rules[i] for i in chosen), tuple(query for (query,) in own))


def _clauses(scope: Scope, num_atoms: int) -> list[Clause]:
    """Return every sequence of `num_atoms` atoms, its variables numbered by first appearance."""
    terms: list[tuple[int, ...]] = [()]
    for _ in range(2 * num_atoms):
        terms = [
            (*begun, term)
            for begun in terms
            for term in (*range(min(begun, default=0), 0), encode_variable(-min((*begun, 0))), *range(scope.constants))
        ]
    return [
        tuple(Atom(predicate, *filled[2 * i : 2 * i + 2]) for i, predicate in enumerate(names))
        for names in product(range(scope.predicates), repeat=num_atoms)
        for filled in terms
    ]


def _fact_sets(scope: Scope) -> Iterator[tuple[Atom, ...]]:
    """Yield every set of facts, ascending."""
    constants = range(scope.constants)
    atoms = [Atom(*row) for row in product(range(scope.predicates), constants, constants)]
    for size in range(min(scope.max_facts, len(atoms)) + 1):
        yield from combinations(atoms, size)


def _rename(clause: Clause, renaming: _Renaming) -> Clause:
    predicates, constants = renaming
    return tuple(Atom(predicates[p], a if a < 0 else constants[a], b if b < 0 else constants[b]) for p, a, b in clause)


def _named(atom: Atom) -> NamedAtom:
    def term(number: int) -> Term:
        return Variable(f"X{decode_variable(number)}") if number < 0 else f"c{number}"

    return NamedAtom(f"p{atom.predicate}", term(atom.first), term(atom.second))
