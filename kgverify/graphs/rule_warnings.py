"""Warnings about rules that load and probably contain a mistake: a name that only they have.

Every kind is one warning for each name, at its first rule; of each kind the first are listed and the others counted.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from kgverify.errors import count_of, suggest
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule

_MAX_LISTED = 20
_LIKE_CONSTANT = re.compile(r"[^\W\d_][^\W\d]\w*")  # Not `X`, `X1`, `_x` or `?x`.


def find_rule_warnings(
    rules: Sequence[NamedRule], *, facts: Collection[str], triples: Collection[str], constants: Collection[str]
) -> Iterator[str]:
    """Warn about names of rules that lead nowhere.

    Args:
        rules: The rules of the graph.
        facts: The predicates of train.
        triples: The predicates of all splits.
        constants: The constants of the triples and the domains.
    """
    proved = {*facts, *(rule.clause_head.predicate for rule in rules)}
    asked = {*triples, *(atom.predicate for rule in rules for atom in rule.body)}

    def describe_body(predicate: str, rule: NamedRule) -> str:
        name = f"rule {rule.name!r}" if rule.name else "the rule"
        reason = f"{name} can never apply: no fact and no rule's head has predicate {predicate!r}"
        return _add_hint(reason, predicate, proved)

    def describe_clause_head(predicate: str, rule: NamedRule) -> str:
        reason = f"nothing asks for the rule's head: no triple and no rule's body has predicate {predicate!r}"
        return _add_hint(reason, predicate, asked)

    def describe_constant(constant: str, _: NamedRule) -> str:
        return f"no triple and no domain has the constant {constant!r}: it is no candidate"

    yield from _list_first(rules, _body_predicates, proved, describe_body, "predicate")
    yield from _list_first(rules, lambda rule: (rule.clause_head.predicate,), asked, describe_clause_head, "predicate")
    yield from _list_first(rules, _constants, constants, describe_constant, "constant")
    yield from _find_likely_constants(rules, constants)
    yield from _find_single_variables(rules)


def _find_single_variables(rules: Sequence[NamedRule]) -> Iterator[str]:
    """Warn about variables that occur once in a rule or only in its head, and may be constants by their length."""
    doubtful = [(rule, name) for rule in rules if (name := next(_single_variables(rule), ""))]
    if doubtful:
        rule, name = doubtful[0]
        number = f"{count_of(len(doubtful), 'rule')} with a variable that occurs once, or only in the head"
        yield f"{rule.source}: {number}, such as {name!r} here; for a constant, write it in quotes"


def _single_variables(rule: NamedRule) -> Iterator[str]:
    terms = [term for atom in (*rule.body, rule.clause_head) for term in (atom.first, atom.second)]
    names = [term.name for term in terms if isinstance(term, Variable)]
    in_body = {term.name for term in terms[:-2] if isinstance(term, Variable)}
    long = (name for name in names if len(name) > 1 and name[0] != "_" and len(name.removeprefix("?")) > 1)
    return (name for name in long if names.count(name) == 1 or name not in in_body)


def _find_likely_constants(rules: Sequence[NamedRule], constants: Collection[str]) -> Iterator[str]:
    """Warn about variables that have the name of a constant, but for upper and lower case."""
    firsts: dict[str, NamedRule] = {}
    for rule in rules:
        for atom in (rule.clause_head, *rule.body):
            for term in (atom.first, atom.second):
                if isinstance(term, Variable) and _LIKE_CONSTANT.fullmatch(term.name):
                    firsts.setdefault(term.name, rule)
    folded = {constant.casefold(): constant for constant in constants} if firsts else {}
    likely = [(name, rule) for name, rule in firsts.items() if name.casefold() in folded]
    for name, rule in likely[:_MAX_LISTED]:
        constant = folded[name.casefold()]
        yield f"{rule.source}: {name!r} is a variable; for the constant {constant!r}, write it in quotes"


def _body_predicates(rule: NamedRule) -> Iterable[str]:
    return (atom.predicate for atom in rule.body)


def _constants(rule: NamedRule) -> Iterable[str]:
    atoms: Iterable[NamedAtom] = (rule.clause_head, *rule.body)
    return (term for atom in atoms for term in (atom.first, atom.second) if not isinstance(term, Variable))


def _list_first(
    rules: Sequence[NamedRule],
    names_of: Callable[[NamedRule], Iterable[str]],
    known: Collection[str],
    describe: Callable[[str, NamedRule], str],
    noun: str,
) -> Iterator[str]:
    """Describe the names that are not known, each at its first rule."""
    firsts: dict[str, NamedRule] = {}
    for rule in rules:
        for name in names_of(rule):
            if name not in known:
                firsts.setdefault(name, rule)
    for name, rule in islice(firsts.items(), _MAX_LISTED):
        yield f"{rule.source}: {describe(name, rule)}"
    if (num_more := len(firsts) - _MAX_LISTED) > 0:
        file = next(iter(firsts.values())).source.file
        yield f"{file}: the same of {count_of(num_more, f'more {noun}')}"


def _add_hint(text: str, name: str, known: Collection[str]) -> str:
    hint = suggest(name, known)
    return f"{text}; {hint}" if hint else text
