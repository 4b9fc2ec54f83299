"""Changes to the symbols of a problem: replacing and renaming them, and replacing queries by others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.program import NamedRule
from kgverify.step.clauses import follow, is_named_variable, unify
from kgverify.testing.problems.problem import VARIABLE_NAMES, Problem, list_constants

CONSTANT_NAMES: Final = "abcdefghijklmno"
PREDICATE_NAMES: Final = "pqrstuvw"
MOST_IN_COMPANY: Final = 4
"""Queries of which one at a time is replaced."""


def replace_symbols(problem: Problem, constants: Mapping[str, str], predicates: Mapping[str, str]) -> Problem:
    """Return the problem with symbols replaced. Facts that become equal are kept once."""

    def term(each: Term) -> Term:
        return each if isinstance(each, Variable) else constants.get(each, each)

    def change(atom: NamedAtom) -> NamedAtom:
        return NamedAtom(predicates.get(atom.predicate, atom.predicate), term(atom.first), term(atom.second))

    def change_all(atoms: Iterable[NamedAtom]) -> tuple[NamedAtom, ...]:
        return tuple(map(change, atoms))

    facts = change_all(problem.facts)
    names = set(list_constants(problem.atoms())), set(list_predicates(problem))
    images = {constants.get(n, n) for n in names[0]}, {predicates.get(n, n) for n in names[1]}
    return replace(
        problem,
        facts=facts if list(map(len, images)) == list(map(len, names)) else tuple(dict.fromkeys(facts)),
        rules=tuple(
            replace(rule, clause_head=change(rule.clause_head), body=change_all(rule.body)) for rule in problem.rules
        ),
        queries=change_all(problem.queries),
        unranked=change_all(problem.unranked),
        constants=tuple(dict.fromkeys(constants.get(each, each) for each in problem.constants)),
    )


def list_predicates(problem: Problem) -> list[str]:
    """Return the predicates of a problem, in order of first appearance."""
    return list(dict.fromkeys(atom.predicate for atom in problem.atoms()))


def merge_constants(problem: Problem, into: Mapping[str, str]) -> Problem:
    """Return the problem with constants merged into others; `into` may be a chain."""

    def end(name: str) -> str:
        while name in into:
            name = into[name]
        return name

    return replace_symbols(problem, {name: end(name) for name in into}, {})


def merge_predicates(problem: Problem) -> Iterator[Problem]:
    """Yield the problem with two of its predicates merged."""
    names = list_predicates(problem)
    for late in range(len(names) - 1, 0, -1):
        for early in names[:late]:
            yield replace_symbols(problem, {}, {names[late]: early})


def rename_plainly(problem: Problem) -> Problem:
    """Return the problem with constants a, b, c ..., predicates p, q, r ..., variables X, Y, Z ..."""
    renamed = replace_symbols(
        problem,
        dict(zip(problem.domain, _names(CONSTANT_NAMES, "c"), strict=False)),
        dict(zip(list_predicates(problem), _names(PREDICATE_NAMES, "p"), strict=False)),
    )
    return replace(
        renamed,
        rules=tuple(NamedRule(head, tuple(body)) for head, *body in map(rename_variables, map(_atoms, renamed.rules))),
        unranked=tuple(rename_variables([query])[0] for query in renamed.unranked),
    )


def ask_premise(problem: Problem, i: int) -> Iterator[Problem]:
    """Yield the problem without its i-th rule, with an atom of the rule's body in place of its queries."""
    rule = problem.rules[i]
    queries = (*problem.queries, *problem.unranked)
    if len(queries) != 1:
        return
    bindings = unify(rename_apart(queries)[0], rule.clause_head, is_named_variable)
    for atom in rule.body if bindings is not None else ():
        goal = rename_variables([substitute(atom, bindings or {})])[0]
        yield replace(problem.with_item("rules", i), queries=(), unranked=(goal,))


def assert_conclusion(problem: Problem, i: int, most: int) -> Iterator[Problem]:
    """Yield the problem with a fact that its i-th rule may conclude in place of the rule."""
    rule = problem.rules[i]
    names = problem.domain[:most]
    predicate, first, second = rule.clause_head
    for a in [first] if isinstance(first, str) else names:
        for b in [second] if isinstance(second, str) else names:
            if first != second or a == b:
                yield replace(problem.with_item("rules", i), facts=(*problem.facts, NamedAtom(predicate, a, b)))


def unfold_rule(problem: Problem, i: int) -> Iterator[Problem]:
    """Yield the problem without its i-th rule, whose body replaces an atom of another rule that it concludes."""
    last = problem.rules[i]
    head, *body = rename_apart(_atoms(last))
    for k, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.body if k != i else ()):
            if (bindings := unify(atom, head, is_named_variable)) is None:
                continue
            atoms = [rule.clause_head, *rule.body[:j], *body, *rule.body[j + 1 :]]
            new_head, *new_body = rename_variables([substitute(each, bindings) for each in atoms])
            unfolded = problem.with_item("rules", k, NamedRule(new_head, tuple(new_body)))
            yield unfolded.with_item("rules", i)


def merge_variables(problem: Problem, most: int) -> Iterator[Problem]:
    """Yield the problem with a variable of a rule or a query merged into another, or into a constant."""
    names = problem.domain[:most]
    for i, rule in enumerate(problem.rules):
        variables = list(dict.fromkeys(t for a in _atoms(rule) for t in a[1:] if isinstance(t, Variable)))
        for k, variable in enumerate(variables):
            terms: list[Term] = [*variables[:k], *names]
            for term in terms:
                head, *body = [substitute(atom, {variable: term}) for atom in _atoms(rule)]
                yield problem.with_item("rules", i, NamedRule(head, tuple(body)))


def drop_one(problem: Problem) -> Iterator[Problem]:
    """Yield the problem without one of its facts, rules or body atoms."""
    for i in range(len(problem.facts)):
        yield problem.with_item("facts", i)
    for i, rule in enumerate(problem.rules):
        yield problem.with_item("rules", i)
        for j in range(len(rule.body) if len(rule.body) > 1 else 0):
            short = replace(rule, body=rule.body[:j] + rule.body[j + 1 :])
            yield problem.with_item("rules", i, short)


def ask_fact(problem: Problem) -> Iterator[Problem]:
    """Yield the problem without its rules, with a query for one of its facts in which an argument may be a variable.

    The query is alone, or replaces another.
    """
    x = Variable(VARIABLE_NAMES[0])
    queries = [each for p, a, b in reversed(problem.facts) for each in (NamedAtom(p, x, b), NamedAtom(p, a, x))]
    for query in dict.fromkeys(queries):
        yield replace(problem, rules=(), queries=(), unranked=(query,), num_corruptions=0)
        # One of several queries that fail only together.
        for i in range(len(problem.unranked)) if 1 < len(problem.unranked) <= MOST_IN_COMPANY else ():
            yield replace(problem.with_item("unranked", i, query), rules=())


def rename_apart(atoms: Iterable[NamedAtom]) -> list[NamedAtom]:
    """Return the atoms with variables that no clause has that was read or renamed plainly."""
    return [
        NamedAtom(p, *(Variable(f"{t.name}'") if isinstance(t, Variable) else t for t in terms)) for p, *terms in atoms
    ]


def substitute(atom: NamedAtom, bindings: Mapping[Any, Any]) -> NamedAtom:
    """Return the atom under bindings."""
    return NamedAtom(atom.predicate, follow(atom.first, bindings), follow(atom.second, bindings))


def _atoms(rule: NamedRule) -> list[NamedAtom]:
    return [rule.clause_head, *rule.body]


def rename_variables(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    """Return the atoms with variables X, Y, Z ... in order of first appearance."""
    names = _names(VARIABLE_NAMES, "V")
    variables = dict.fromkeys(t for atom in atoms for t in atom[1:] if isinstance(t, Variable))
    renamed: dict[Variable, Term] = {old: Variable(new) for old, new in zip(variables, names, strict=False)}
    return [NamedAtom(p, *(renamed[t] if isinstance(t, Variable) else t for t in terms)) for p, *terms in atoms]


def _names(letters: str, prefix: str) -> Iterator[str]:
    yield from letters
    yield from (f"{prefix}{i}" for i in count(len(letters)))
