"""What in a graph looks like a mistake but stops nothing; each becomes a warning."""

from collections.abc import Iterator, Mapping, Sequence

from kgverify.errors import suggest
from kgverify.graphs.triples import Triples
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule


def find_repeated_facts(facts: Triples, file: str) -> Iterator[str]:
    """Facts that stand in their file more than once."""
    if num_repeated := len(facts.atoms) - len(set(facts.atoms)):
        seen: set[NamedAtom] = set()
        for atom, line in zip(facts.atoms, facts.lines, strict=True):
            if atom in seen:
                yield f"{file}:{line}: {_count(num_repeated, 'repeated fact')}, the first on this line"
                return
            seen.add(atom)


def find_unprovable_body_atoms(rules: Sequence[NamedRule], fact_predicates: set[str]) -> Iterator[str]:
    """Predicates of a rule's body that no fact has and that no rule concludes."""
    known = fact_predicates | {rule.clause_head.predicate for rule in rules}
    for rule in rules:
        for predicate in dict.fromkeys(atom.predicate for atom in rule.body):
            if predicate not in known:
                name = f"rule {rule.name!r}" if rule.name else "the rule"
                hint = suggest(predicate, known)
                yield (
                    f"{rule.source}: {name} can never apply: no fact and no rule's head has predicate "
                    f"{predicate!r}{'; ' + hint if hint else ''}"
                )


def find_unknown_rule_constants(rules: Sequence[NamedRule], constants: set[str]) -> Iterator[str]:
    """Constants of rules that no triple and no domain has."""
    for rule in rules:
        terms = [term for atom in (rule.clause_head, *rule.body) for term in (atom.first, atom.second)]
        for term in dict.fromkeys(terms):
            if not isinstance(term, Variable) and term not in constants:
                yield f"{rule.source}: no triple and no domain has the constant {term!r}"


def find_domain_strangers(domains: Mapping[str, tuple[str, ...]], constants: set[str], file: str) -> Iterator[str]:
    """Constants of domains that no triple has."""
    strangers = {name for names in domains.values() for name in names} - constants
    if strangers:
        yield f"{file}: {_count(len(strangers), 'constant')} that no triple has, such as {min(strangers)!r}"


def find_leaks(train: Sequence[NamedAtom], test: Sequence[NamedAtom], test_file: str) -> Iterator[str]:
    """Test triples that are facts."""
    if leaks := set(test) & set(train):
        yield f"{test_file}: {_count(len(leaks), 'triple')} also in train"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
