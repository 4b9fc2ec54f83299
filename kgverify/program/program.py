"""A program in ids: symbols, facts and rules, numbered and ordered as the semantics prescribes."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.program.atom_table import AtomTable, sort_rows
from kgverify.program.atoms import (
    Atom,
    NamedAtom,
    Term,
    Variable,
    decode_variable,
    encode_variable,
    is_variable,
    parse_atoms,
)


class Source(NamedTuple):
    """The file and line of an input; line 0 means unknown."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


UNKNOWN_SOURCE = Source("", 0)


@dataclass(frozen=True)
class NamedRule:
    """A definite clause in names: `head <- body`, with at least one body atom.

    counts: the number of its predictions in the data that it was mined from, and how many of them are right
    """

    clause_head: NamedAtom
    body: tuple[NamedAtom, ...]
    name: str = ""
    confidence: float | None = None
    source: Source = UNKNOWN_SOURCE
    counts: tuple[int, int] | None = None

    @property
    def atoms(self) -> tuple[NamedAtom, ...]:
        """The head, followed by the body."""
        return self.clause_head, *self.body

    def with_atoms(self, atoms: Iterable[NamedAtom]) -> "NamedRule":
        """Return the rule with another head and body."""
        head, *body = atoms
        return replace(self, clause_head=head, body=tuple(body))

    def rename(self, terms: Mapping[Term, Term], predicates: Mapping[str, str] | None = None) -> "NamedRule":
        """Return the rule with terms replaced, and predicates if given."""
        return self.with_atoms(atom.rename(terms, predicates) for atom in self.atoms)

    def __str__(self) -> str:
        return f"{render_named(self.clause_head)} <- {', '.join(map(render_named, self.body))}"


def parse_rules(text: str) -> tuple[NamedRule, ...]:
    """Parse rules separated by semicolons, each a head followed by its body: `p(X,Z) q(X,Y) p(Y,Z); p(X,Y) q(X,Y)`."""
    clauses = map(parse_atoms, filter(str.strip, text.split(";")))
    return tuple([NamedRule(head, tuple(body)) for head, *body in clauses])


class Rule(NamedTuple):
    """A definite clause in ids; its variables are numbered by first appearance, head first."""

    clause_head: Atom
    body: tuple[Atom, ...]


@dataclass(frozen=True)
class Symbols:
    """The names behind the ids: `predicates[i]` and `constants[i]` are the names of id i."""

    predicates: tuple[str, ...]
    constants: tuple[str, ...]

    @classmethod
    def of(cls, predicate_ids: dict[str, int], constant_ids: dict[str, int]) -> "Symbols":
        """Return the symbols with these ids, which count from 0 in the order of the names."""
        symbols = cls(tuple(predicate_ids), tuple(constant_ids))
        # A graph has many constants, so the dictionary of their names is built once.
        vars(symbols).update(predicate_ids=predicate_ids, constant_ids=constant_ids)
        return symbols

    @cached_property
    def predicate_ids(self) -> dict[str, int]:
        """The id of each predicate name."""
        return {name: i for i, name in enumerate(self.predicates)}

    @cached_property
    def constant_ids(self) -> dict[str, int]:
        """The id of each constant name."""
        return {name: i for i, name in enumerate(self.constants)}

    def encode(self, atom: NamedAtom) -> Atom:
        """Encode an atom; variables are numbered by first appearance. KeyError for an unknown name."""
        return encode_atoms((atom,), self.predicate_ids, self.constant_ids)[0]

    def decode(self, atom: Iterable[int], name_variable: Callable[[int], str] = "X{}".format) -> NamedAtom:
        """Decode an atom; `name_variable` returns the name of a variable by its number."""
        predicate, *arguments = atom
        first, second = (
            Variable(name_variable(decode_variable(i))) if is_variable(i) else self.constants[i] for i in arguments
        )
        return NamedAtom(self.predicates[predicate], first, second)


NO_SYMBOLS: Final = Symbols((), ())


@dataclass(frozen=True, eq=False)
class Program:
    """Facts and rules in ids.

    facts:        int32 [F, 3]  predicate, first, second; unique, ascending in that order; read-only
    rules:        in file order
    named_rules:  the same rules in names, with their sources
    named_facts, named_queries: the facts and queries in names; their order determines the numbers of the symbols
    first_symbols: the symbols that were numbered before all others
    fact_lines:   int32 [F]     line of each fact in `facts_file` (0: unknown)
    """

    symbols: Symbols
    facts: NDArray[np.int32]
    rules: tuple[Rule, ...]
    named_rules: tuple[NamedRule, ...]
    named_facts: Sequence[NamedAtom]
    named_queries: tuple[NamedAtom, ...]
    facts_file: str = ""
    fact_lines: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    first_symbols: Symbols = NO_SYMBOLS

    @classmethod
    def from_names(
        cls,
        facts: Sequence[NamedAtom],
        rules: Sequence[NamedRule] = (),
        queries: Iterable[NamedAtom] = (),
        constants: Iterable[str] = (),
        *,
        facts_file: str = "",
        fact_lines: Sequence[int] | None = None,
        first_symbols: Symbols = NO_SYMBOLS,
    ) -> "Program":
        """Build a program: number symbols by first appearance (facts, rules, queries, further constants), order the facts.

        first_symbols: symbols that are numbered before all of these
        """
        table = AtomTable.of(facts)
        predicates, constants_of_facts = table.names_by_appearance()
        # Names read from files are already numbered this way.
        is_numbered = predicates is table.predicates and constants_of_facts is table.constants
        if first_symbols != NO_SYMBOLS:
            is_numbered = False
            predicates = tuple(dict.fromkeys((*first_symbols.predicates, *predicates)))
            constants_of_facts = tuple(dict.fromkeys((*first_symbols.constants, *constants_of_facts)))
        predicate_ids = dict(zip(predicates, count(), strict=False))
        constant_ids = (
            table.constant_ids.copy() if is_numbered else dict(zip(constants_of_facts, count(), strict=False))
        )
        named_queries = tuple(queries)
        of_rules = (atom for rule in rules for atom in (rule.clause_head, *rule.body))
        for predicate, first, second in chain(of_rules, named_queries):
            if predicate not in predicate_ids:
                predicate_ids[predicate] = len(predicate_ids)
            for term in (first, second):
                if term not in constant_ids and not isinstance(term, Variable):
                    constant_ids[term] = len(constant_ids)
        for name in constants:
            if name not in constant_ids:
                constant_ids[name] = len(constant_ids)

        unique, first_row = table.distinct if is_numbered else sort_rows(table.encode(predicate_ids, constant_ids))
        if fact_lines is None:
            lines = np.zeros(len(first_row), np.int32)
        elif isinstance(fact_lines, range):
            lines = (fact_lines.start + first_row * fact_lines.step).astype(np.int32)
        else:
            lines = np.asarray(fact_lines, np.int32)[first_row]
        unique.setflags(write=False)
        return cls(
            symbols=Symbols.of(predicate_ids, constant_ids),
            facts=unique,
            rules=tuple(_encode_rule(rule, predicate_ids, constant_ids) for rule in rules),
            named_rules=tuple(rules),
            named_facts=facts,
            named_queries=named_queries,
            facts_file=facts_file,
            fact_lines=lines,
            first_symbols=first_symbols,
        )

    @cached_property
    def rule_texts(self) -> tuple[str, ...]:
        """The rules as text."""
        return tuple(map(str, self.named_rules))

    @cached_property
    def rule_sources(self) -> tuple[str, ...]:
        """The source of each rule, as text."""
        return tuple(str(rule.source) for rule in self.named_rules)

    @cached_property
    def sha256(self) -> str:
        """A digest of everything that can influence a derivation: the symbols in order, the facts and the rules."""
        digest = hashlib.sha256()
        for names in (self.symbols.predicates, self.symbols.constants):
            digest.update(len(names).to_bytes(8, "little"))
            digest.update(_encode_names(names).data)
        digest.update(len(self.facts).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(self.facts, "<i4").data)
        for head, body in self.rules:
            # numpy takes several times as long for so few numbers.
            digest.update(struct.pack(f"<q{3 + 3 * len(body)}i", len(body), *head, *chain.from_iterable(body)))
        return digest.hexdigest()


def _encode_names(names: Sequence[str]) -> NDArray[np.uint8]:
    """Return the bytes of names in UTF-8, each after the number of its bytes in 8 bytes, little-endian."""
    encoded = "".join(names).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, names), "<i8", len(names))
    if len(encoded) != lengths.sum():
        lengths = np.fromiter((len(name.encode("utf-8", "surrogatepass")) for name in names), "<i8", len(names))
    counts = np.stack((np.full(len(names), 8), lengths), 1).ravel()
    is_length = np.repeat(np.tile((True, False), len(names)), counts)
    content = np.empty(len(is_length), np.uint8)
    content[is_length] = lengths.view(np.uint8)
    content[~is_length] = np.frombuffer(encoded, np.uint8)
    return content


def encode_atoms(
    atoms: Sequence[NamedAtom], predicate_ids: dict[str, int], constant_ids: dict[str, int]
) -> tuple[Atom, ...]:
    """Encode atoms that share their variables; variables are numbered by first appearance."""
    variables: dict[str, int] = {}

    def encode(term: Term) -> int:
        if isinstance(term, Variable):
            return encode_variable(variables.setdefault(term.name, len(variables)))
        return constant_ids[term]

    return tuple([Atom(predicate_ids[predicate], encode(a), encode(b)) for predicate, a, b in atoms])


def _encode_rule(rule: NamedRule, predicate_ids: dict[str, int], constant_ids: dict[str, int]) -> Rule:
    head, *body = encode_atoms((rule.clause_head, *rule.body), predicate_ids, constant_ids)
    return Rule(head, tuple(body))


def render_named(atom: NamedAtom) -> str:
    """Render an atom as `p(a, X)`; a variable is shown by its name."""
    predicate, first, second = atom
    if isinstance(first, Variable):
        first = first.name
    if isinstance(second, Variable):
        second = second.name
    return f"{predicate}({first}, {second})"
