"""A definite program: symbols, facts and rules, with the indexes that a resolution step needs."""

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from itertools import chain, count
from typing import Any, Final, NamedTuple, TypeVar

from kgreference.facts import FactColumns, FactList, Facts, ListedFacts
from kgreference.resolvent import NO_MATCHES, Matches
from kgreference.terms import (
    Atom,
    Triple,
    canonical,
    first_free_variable,
    is_ground,
    substitute,
    unify,
    variable,
)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MOST_ITEMS: Final = 200_000
"""The largest number of items in a memo: for matching clauses, about 80 MB."""


class Memo(dict[Key, Value]):
    """A cache of values by key. Before it would exceed ``most`` items, including keys, it forgets all of them."""

    def __init__(self, most: int = MOST_ITEMS) -> None:
        super().__init__()
        self._most = most
        self._num = 0

    def remember(self, key: Key, value: Value, num_items: int) -> None:
        """Store a value of ``num_items`` items. A value with too many items is kept until the next one is stored."""
        self._num += 1 + num_items
        if self._num > self._most:
            self.clear()
            self._num = 1 + num_items
        self[key] = value


class Variable(NamedTuple):
    """A variable of named input. The scope of its name is one rule or one query."""

    name: str


Name = str | Variable
"""A term of named input: a constant is a str."""

NamedAtom = tuple[str, Name, Name]
"""An atom of named input: (predicate, first, second)."""

NamedRule = tuple[NamedAtom, Sequence[NamedAtom]]
"""A rule of named input: (clause head, clause body)."""


class NumberedFacts(NamedTuple):
    """Facts whose names were numbered by first appearance, in the order given, with the name of each number."""

    predicates: Sequence[str]
    constants: Sequence[str]
    columns: FactColumns


class Rule(NamedTuple):
    """A definite clause with at least one body atom."""

    head: Triple
    body: tuple[Triple, ...]


class Program:
    """Facts and rules by id, indexed.

    ``predicates`` and ``constants`` give the names by id. ``facts`` are unique, and ascend by (predicate, first,
    second). ``rules`` keep their order. ``FactColumns`` and ``ListedFacts`` are used unchanged.

    Raises ValueError for a fact with a variable, a rule without a body, or an id without a name.
    """

    def __init__(
        self,
        predicates: Sequence[str],
        constants: Sequence[str],
        facts: Iterable[Triple],
        rules: Iterable[Rule],
    ) -> None:
        self.predicates = tuple(predicates)
        self.constants = tuple(constants)
        self.facts: Facts = facts if isinstance(facts, (FactColumns, ListedFacts)) else FactList(facts)
        self.rules = list(rules)
        self._check()

        self._rules_by_predicate: dict[int, list[int]] = {}
        for number, rule in enumerate(self.rules):
            self._rules_by_predicate.setdefault(rule.head[0], []).append(number)
        self._constants_of_heads: dict[int, set[int]] = {}
        for rule in self.rules:
            for term in rule.head[1:]:
                if term >= 0:
                    self._constants_of_heads.setdefault(rule.head[0], set()).add(term)
        self._rules_apart: dict[tuple[int, int], list[tuple[int, Rule]]] = {}
        self._rules_matching: Memo[Triple, Matches] = Memo()
        self._facts_matching: Memo[Triple, Matches] = Memo()

    @classmethod
    def from_names(
        cls,
        facts: "Iterable[NamedAtom] | NumberedFacts",
        rules: Iterable[NamedRule] = (),
        queries: Iterable[NamedAtom] = (),
        constants: Iterable[str] = (),
        first_symbols: tuple[Iterable[str], Iterable[str]] = ((), ()),
    ) -> "Program":
        """Build a program with symbols numbered by first appearance: facts, rules (head first), queries, other constants.

        ``first_symbols`` are predicates and constants that are numbered before all of these.
        A rule's variables are numbered by first appearance, head first. Raises ValueError like the class.
        """
        predicate_ids, constant_ids = (_Numbering(zip(names, count(), strict=False)) for names in first_symbols)
        encoded_facts: Iterable[Triple]
        if isinstance(facts, NumberedFacts):
            predicate_ids.update(zip(facts.predicates, count(), strict=False))
            constant_ids.update(zip(facts.constants, count(), strict=False))
            encoded_facts = facts.columns
        else:
            encoded_facts = [(predicate_ids[name], constant_ids[one], constant_ids[two]) for name, one, two in facts]
            if variables := [name for name in constant_ids if not isinstance(name, str)]:
                raise ValueError(f"a fact must not hold a variable, found {variables[0]}")
        clauses = [_encode([head, *body], predicate_ids, constant_ids) for head, body in rules]
        _encode(queries, predicate_ids, constant_ids)
        for name in constants:
            constant_ids[name]
        encoded_rules = [Rule(head, tuple(body)) for head, *body in clauses]
        return cls(tuple(predicate_ids), tuple(constant_ids), encoded_facts, encoded_rules)

    @cached_property
    def predicate_ids(self) -> dict[str, int]:
        """The id of each predicate."""
        return {name: number for number, name in enumerate(self.predicates)}

    @cached_property
    def constant_ids(self) -> dict[str, int]:
        """The id of each constant."""
        return {name: number for number, name in enumerate(self.constants)}

    def rules_matching(self, atom: Triple) -> Matches:
        """Return the rules, in order, whose heads unify with an atom, standardized apart from it."""
        if atom[0] not in self._rules_by_predicate:
            return NO_MATCHES
        found = self._rules_matching.get(atom)
        if found is None:
            pattern, meant = self._pattern(atom)
            found = self._rules_matching.get(pattern)
            if found is None:
                found = self._match_rules(pattern)
                self._rules_matching.remember(pattern, found, len(found.origins))
            if pattern != atom:
                if found.origins:
                    origins, firsts, seconds, bodies, free_variables = found
                    get = meant.get
                    found = Matches(
                        origins,
                        tuple([get(term, term) for term in firsts]),
                        tuple([get(term, term) for term in seconds]),
                        tuple([substitute(body, meant) for body in bodies]),
                        free_variables,
                    )
                self._rules_matching.remember(atom, found, len(found.origins))
        return found

    def _pattern(self, atom: Triple) -> tuple[Triple, dict[int, int]]:
        """Replace the atom's constants by unknown ones.

        Return the pattern and the meaning of its terms. The same rules match both. A constant is kept if some clause
        head of the predicate contains it.
        """
        predicate, first, second = atom
        named = self._constants_of_heads.get(predicate, ())
        one, other = len(self.constants), len(self.constants) + 1
        first_meant = first if first < 0 or first in named else one
        second_meant = second if second < 0 or second in named else first_meant if second == first else other
        return (predicate, first_meant, second_meant), {first_meant: first, second_meant: second}

    def _match_rules(self, atom: Triple) -> Matches:
        matches = []
        for origin, rule in self.rules_apart(atom[0], first_free_variable((atom,))):
            unifier = unify(atom, rule.head)
            if unifier is not None:
                instance = canonical(substitute((*rule.body, rule.head), unifier))
                *body, (_, first, second) = instance
                matches.append((origin, first, second, tuple(body), variable(first_free_variable(instance))))
        return Matches.of(matches)

    def facts_matching(self, atom: Triple) -> Matches:
        """Return the facts, in order, that unify with an atom."""
        if atom[1] >= 0 <= atom[2] and self.facts.find(atom) < 0:
            return NO_MATCHES
        found = self._facts_matching.get(atom)
        if found is None:
            origins = self.facts_like(atom)
            if atom[1] == atom[2]:
                origins = [origin for origin in origins if self.facts[origin][1] == self.facts[origin][2]]
            num, facts = len(origins), [self.facts[origin] for origin in origins]
            firsts, seconds = tuple([first for _, first, _ in facts]), tuple([second for _, _, second in facts])
            found = Matches(tuple(origins), firsts, seconds, ((),) * num, (variable(0),) * num)
            self._facts_matching.remember(atom, found, num)
        return found

    def encode(self, atom: NamedAtom) -> Atom:
        """Encode an atom by id, its variables numbered by first appearance. Raises KeyError for an unknown name."""
        return _encode([atom], self.predicate_ids, self.constant_ids)[0]

    def decode(self, atom: Triple) -> NamedAtom:
        """Decode an atom to names; variable number v is named ``Xv``."""
        predicate, *terms = atom
        first, second = (self.constants[term] if term >= 0 else Variable(f"X{-1 - term}") for term in terms)
        return (self.predicates[predicate], first, second)

    def rules_apart(self, predicate: int, first_variable: int) -> list[tuple[int, Rule]]:
        """Return a predicate's rules and their indices, in order. Variable v becomes ``first_variable`` + v."""
        key = (predicate, first_variable)
        if key not in self._rules_apart:
            numbers = self._rules_by_predicate.get(predicate, [])
            self._rules_apart[key] = [(number, _shift(self.rules[number], first_variable)) for number in numbers]
        return self._rules_apart[key]

    def facts_like(self, atom: Triple) -> list[int]:
        """Return the ascending indices of the facts with the predicate and the constants of an atom.

        These facts need not unify with the atom: repeated variables are not compared.
        """
        predicate, first, second = atom
        if first >= 0 and second >= 0:
            found = self.facts.find(atom)
            return [found] if found >= 0 else []
        if second >= 0 and first < 0:
            return list(self.facts.with_second(predicate, second))
        return list(self.facts.with_first(predicate, first) if first >= 0 else self.facts.with_predicate(predicate))

    def _check(self) -> None:
        for rule in self.rules:
            if not rule.body:
                raise ValueError(f"a rule must have a body, found none for {rule.head}; give it as a fact")
        rule_atoms = chain.from_iterable((rule.head, *rule.body) for rule in self.rules)
        # Their extremes show whether any fact is invalid.
        facts = self.facts.find_extremes() if self.facts else ()
        num_predicates, num_constants = len(self.predicates), len(self.constants)
        for fact in facts:
            if not is_ground(fact):
                raise ValueError(f"a fact must not hold a variable, found {fact}")
        for predicate, first, second in chain(facts, rule_atoms):
            if not 0 <= predicate < num_predicates:
                raise ValueError(f"the predicate of {(predicate, first, second)} has no name")
            if first >= num_constants or second >= num_constants:
                raise ValueError(f"a constant of {(predicate, first, second)} has no name")


class _Numbering(dict[Any, int]):
    """The number of each name. A name that is looked up for the first time gets the next number."""

    def __missing__(self, name: Any) -> int:
        number = self[name] = len(self)
        return number


def _encode(atoms: Iterable[NamedAtom], predicate_ids: dict[str, int], constant_ids: dict[str, int]) -> list[Atom]:
    """Encode atoms by id. They share one scope of variables, numbered by first appearance."""
    variables: dict[Variable, int] = {}

    def encode_term(name: Name) -> int:
        if isinstance(name, Variable):
            return variables.setdefault(name, variable(len(variables)))
        return constant_ids[name]

    return [
        Atom(predicate_ids[predicate], encode_term(first), encode_term(second)) for predicate, first, second in atoms
    ]


def _shift(rule: Rule, first_variable: int) -> Rule:
    """Add ``first_variable`` to the number of each variable."""
    if first_variable == 0:
        return rule
    atoms = (rule.head, *rule.body)
    variables = {term for atom in atoms for term in atom[1:] if term < 0}
    head, *body = substitute(atoms, {term: term - first_variable for term in variables})
    return Rule(head, tuple(body))
