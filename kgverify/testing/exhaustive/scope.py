"""Small scopes: every program up to a size, each once up to renaming.

Two problems are the same if a symmetry of a step maps one to the other:

- The names of a rule's or a query's variables: rules are standardized apart, and goals made canonical.
- The names of predicates and constants, together with the order in which the facts introduce constants. Facts
ascend by the numbers of their constants, and that order is the order of resolvents.
- The order of the facts of a program beyond that, and repeated facts: facts are a set.

The order of rules and of body atoms, and repeated rules, change steps: rules are sequences. With `every_order` each set
of facts occurs in every order that introduces its constants differently; without it, in one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations, permutations, product
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kgverify.errors import UserError, suggest
from kgverify.program.atoms import Atom, NamedAtom, Term, Variable, decode_variable, encode_variable
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule
from kgverify.testing.problems.problem import Problem

Clause: TypeAlias = tuple[Atom, ...]
"""A rule, its head first; a query is a clause of one atom."""

Facts: TypeAlias = tuple[tuple[int, ...], tuple[Atom, ...]]
"""The constants in the order in which the facts bring them in (empty if it is one for each set), and the facts."""

_Renaming: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The images of the predicates and of the constants."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Every program up to a size, with every query, under every combination of limits. UserError for an empty scope.

    predicates, constants: most symbols of either kind
    max_rules, max_body:   most rules of a program, most atoms of a rule's body (at least one each)
    max_facts:             most facts of a program
    every_order:           whether a set of facts occurs in every order that introduces its constants differently
    max_depth, max_atoms, max_resolvents, exclude_query: the values of each limit
    """

    name: str
    predicates: int = 1
    constants: int = 2
    max_rules: int = 1
    max_body: int = 2
    max_facts: int = 4
    every_order: bool = False
    max_depth: tuple[int, ...] = (1, 2, 4)
    max_atoms: tuple[int, ...] = (1, 2, 3)
    max_resolvents: tuple[int, ...] = (1, 2, 4)
    exclude_query: tuple[bool, ...] = (True,)

    def __post_init__(self) -> None:
        for name in ("predicates", "constants", "max_body"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, expected 1 or more", where="scope", fix="give 1")
        for name in ("max_rules", "max_facts"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} is {getattr(self, name)}, expected 0 or more", where="scope", fix="give 0")
        if not self.limits:
            raise UserError("expected a value or more of each limit, found none", where="scope", fix="give a value")

    @cached_property
    def limits(self) -> tuple[Limits, ...]:
        """Every combination of the limits' values."""
        return tuple(
            Limits(max_depth=depth, max_atoms=atoms, max_resolvents=resolvents, exclude_query=exclude)
            for depth, atoms, resolvents, exclude in product(
                self.max_depth, self.max_atoms, self.max_resolvents, self.exclude_query
            )
        )

    @property
    def digest(self) -> str:
        """A digest that distinguishes scopes; the name does not count."""
        content = {key: value for key, value in asdict(self).items() if key != "name"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        def many(number: int, noun: str) -> str:
            return f"{number} {noun}{'' if number == 1 else 's'}"

        return (
            f"{many(self.predicates, 'predicate')}, {many(self.constants, 'constant')},"
            f" <= {many(self.max_rules, 'rule')} of <= {many(self.max_body, 'body atom')},"
            f" <= {many(self.max_facts, 'fact')} in {'every order' if self.every_order else 'one order'},"
            f" every query, {many(len(self.limits), 'setting')} of limits"
        )


class Count(msgspec.Struct, frozen=True):
    """The number of programs of a scope up to renaming, and of problems: a program, a query and a setting of limits."""

    programs: int
    problems: int


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


TINY: Final = Scope(name="tiny", max_body=1, max_facts=2, max_depth=(2,), max_atoms=(1, 2), max_resolvents=(1, 3))
ONE_RULE: Final = Scope(name="one-rule")
SCOPES: Final = {
    scope.name: scope
    for scope in (
        TINY,
        ONE_RULE,
        Scope(name="one-rule-ordered", every_order=True),
        Scope(name="two-rules", max_rules=2, max_body=1, max_resolvents=(1, 3, 5)),
        Scope(name="three-constants", constants=3, max_facts=2),
    )
}
"""The scopes by name, the smallest first."""


def find_scope(name: str) -> Scope:
    """Return a scope of `SCOPES`. UserError for an unknown name."""
    if name not in SCOPES:
        raise UserError(
            f"unknown scope {name!r}", where="scope", fix=suggest(name, SCOPES) or f"choose {', '.join(SCOPES)}"
        )
    return SCOPES[name]


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
    for facts in _fact_lists(scope):
        images = [(_rename_facts(facts, renaming), renaming) for renaming in group]
        if any(image < facts for image, _ in images):
            continue
        stabilizer = [renaming for image, renaming in images if image == facts]
        listed = _listed(facts)
        for length in range(scope.max_rules + 1):
            for chosen in product(range(len(rules)), repeat=length):
                keeping = stabilizer
                if len(stabilizer) > 1:
                    rule_images = [(tuple(moved[each][i] for i in chosen), each) for each in stabilizer]
                    if any(image < chosen for image, _ in rule_images):
                        continue
                    keeping = [each for image, each in rule_images if image == chosen]
                own = [query for query in queries if all(query <= _rename(query, each) for each in keeping)]
                yield ScopedProgram(listed, tuple(rules[i] for i in chosen), tuple(query for (query,) in own))


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


def _fact_lists(scope: Scope) -> Iterator[Facts]:
    """Yield every set of facts, with each order of its constants that matters."""
    constants = range(scope.constants)
    atoms = [Atom(*row) for row in product(range(scope.predicates), constants, constants)]
    for size in range(min(scope.max_facts, len(atoms)) + 1):
        for chosen in combinations(atoms, size):
            if not scope.every_order:
                yield (), chosen
                continue
            used = sorted({constant for atom in chosen for constant in atom[1:]})
            for order in permutations(used):
                if _introductions(_listed((order, chosen))) == order:
                    yield order, chosen


def _listed(facts: Facts) -> tuple[Atom, ...]:
    """Return the facts in a list that introduces the constants in their order, if there is such a list."""
    order, atoms = facts
    if not order:
        return atoms
    rank = {constant: i for i, constant in enumerate(order)}
    left = sorted(atoms, key=lambda atom: (max(rank[atom.first], rank[atom.second]), rank[atom.first]))
    listed: list[Atom] = []
    known = 0
    while left:
        # If no fact about known constants and the next one is left, take one about the next two.
        ready = [atom for atom in left if max(rank[atom.first], rank[atom.second]) <= known]
        pair = [atom for atom in left if (rank[atom.first], rank[atom.second]) == (known, known + 1)]
        following = (ready or pair or left)[0]
        left.remove(following)
        listed.append(following)
        known = max(known, 1 + max(rank[following.first], rank[following.second]))
    return tuple(listed)


def _introductions(atoms: Sequence[Atom]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(constant for atom in atoms for constant in atom[1:]))


def _rename(clause: Clause, renaming: _Renaming) -> Clause:
    predicates, constants = renaming
    return tuple(Atom(predicates[p], a if a < 0 else constants[a], b if b < 0 else constants[b]) for p, a, b in clause)


def _rename_facts(facts: Facts, renaming: _Renaming) -> Facts:
    order, atoms = facts
    return tuple(renaming[1][constant] for constant in order), tuple(sorted(_rename(atoms, renaming)))


def _named(atom: Atom) -> NamedAtom:
    def term(number: int) -> Term:
        return Variable(f"X{decode_variable(number)}") if number < 0 else f"c{number}"

    return NamedAtom(f"p{atom.predicate}", term(atom.first), term(atom.second))
