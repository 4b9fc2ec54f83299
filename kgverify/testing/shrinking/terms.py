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
    terms: dict[Term, Term] = {name: constants[name] for name in constants}

    def change(atoms: Iterable[NamedAtom]) -> tuple[NamedAtom, ...]:
        return tuple([atom.rename(terms, predicates) for atom in atoms])

    facts = change(problem.facts)
    of_terms, of_predicates = list_constants(problem.atoms()), list_predicates(problem)
    images = {constants.get(n, n) for n in of_terms}, {predicates.get(n, n) for n in of_predicates}
    is_injective = (len(images[0]), len(images[1])) == (len(of_terms), len(of_predicates))
    return replace(
        problem,
        facts=facts if is_injective else tuple(dict.fromkeys(facts)),
        rules=tuple([rule.rename(terms, predicates) for rule in problem.rules]),
        queries=change(problem.queries),
        unranked=change(problem.unranked),
        constants=tuple(dict.fromkeys(constants.get(each, each) for each in problem.constants)),
    )


def list_predicates(problem: Problem) -> list[str]:
    """Return the predicates of a problem, in order of first appearance."""
    return list(dict.fromkeys(atom.predicate for atom in problem.atoms()))


def merge_constants(problem: Problem, into: Mapping[str, str]) -> Problem:
    """Return the problem with constants merged into others; `into` may be a chain."""
    return replace_symbols(problem, {name: follow(name, into) for name in into}, {})


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
        rules=tuple(NamedRule(head, tuple(body)) for head, *body in [rename_variables(r.atoms) for r in renamed.rules]),
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
    head, *body = rename_apart(problem.rules[i].atoms)
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
        variables = list_variables(rule.atoms)
        for k, variable in enumerate(variables):
            terms: list[Term] = [*variables[:k], *names]
            for term in terms:
                renamed = rule.rename({variable: term})
                yield problem.with_item("rules", i, NamedRule(renamed.clause_head, renamed.body))


def drop_one(problem: Problem) -> Iterator[Problem]:
    """Yield the problem without one of its facts, rules or body atoms."""
    for i in range(len(problem.facts)):
        yield problem.with_item("facts", i)
    for i, rule in enumerate(problem.rules):
        yield problem.with_item("rules", i)
        for short in shorten(rule):
            yield problem.with_item("rules", i, short)


def shorten(rule: NamedRule) -> list[NamedRule]:
    """Return the rule without each of its body atoms; nothing if it has only one."""
    places = range(len(rule.body) if len(rule.body) > 1 else 0)
    return [replace(rule, body=rule.body[:j] + rule.body[j + 1 :]) for j in places]


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


def rename_apart(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    """Return the atoms with variables that no clause has that was read or renamed plainly."""
    names: dict[Term, Term] = {each: Variable(f"{each.name}'") for each in list_variables(atoms)}
    return [atom.rename(names) for atom in atoms]


def substitute(atom: NamedAtom, bindings: Mapping[Any, Any]) -> NamedAtom:
    """Return the atom under bindings."""
    return NamedAtom(atom.predicate, follow(atom.first, bindings), follow(atom.second, bindings))


def list_variables(atoms: Iterable[NamedAtom]) -> list[Variable]:
    """Return the variables of atoms, in order of first appearance."""
    return list(dict.fromkeys(term for atom in atoms for term in atom[1:] if isinstance(term, Variable)))


def rename_variables(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    """Return the atoms with variables X, Y, Z ... in order of first appearance."""
    names = map(Variable, _names(VARIABLE_NAMES, "V"))
    renamed: dict[Term, Term] = dict(zip(list_variables(atoms), names, strict=False))
    return [atom.rename(renamed) for atom in atoms]


def _names(letters: str, prefix: str) -> Iterator[str]:
    yield from letters
    yield from (f"{prefix}{i}" for i in count(len(letters)))
