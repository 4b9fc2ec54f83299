"""The nearest agreeing neighbour: a failing problem with one change, on which both sides agree."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule, render_named
from kgverify.testing.problems.problem import DEFAULT_SIZES, NO_SPREAD, SHORTEST, Problem
from kgverify.testing.shrinking.oracle import Oracle

MOST_TRIED: Final = 40
"""Neighbours that are run alone, at most, before the search ends."""
MANY_FACTS: Final = 8
"""A larger problem's nearest neighbours have one fact fewer; those of a smaller one have another query."""


class Neighbour(NamedTuple):
    """A problem on which both sides agree, and how it differs from the failing one."""

    problem: Problem
    change: str


def find_neighbour(problem: Problem, oracle: Oracle) -> Neighbour | None:
    """Return the nearest problem, after one change, on which both sides agree; None if none was found."""
    neighbours = list(_neighbours(problem))
    indices = oracle.find_agreeing([each.problem for each in neighbours], problem)
    for i in indices[:MOST_TRIED]:
        if oracle.judge(neighbours[i].problem) is None:
            return neighbours[i]
    return None


def _neighbours(problem: Problem) -> Iterator[Neighbour]:
    yield from _other_numbers(problem)
    if len(problem.unranked) + len(problem.queries) > 1:
        yield from _without(problem, "unranked", "query", range(len(problem.unranked)))
    last_first = range(len(problem.facts))[::-1]
    if len(problem.facts) > MANY_FACTS:
        yield from _without(problem, "facts", "fact", last_first)
    yield from _other_queries(problem)
    yield from _without(problem, "facts", "fact", last_first)
    yield from _shorter_rules(problem)
    yield from _other_terms(problem)
    yield from _more_facts(problem)
    yield from _without(problem, "rules", "rule", range(len(problem.rules)))
    yield from _proved_queries(problem)
    if problem.policy != SHORTEST:
        yield Neighbour(replace(problem, policy=SHORTEST), "the policy is shortest")


def _other_numbers(problem: Problem) -> Iterator[Neighbour]:
    default = Limits()

    def change(part: str, name: str, other: int, text: str) -> Neighbour:
        return Neighbour(problem.with_number(part, name, other), text)

    for name in ("max_depth", "max_atoms", "max_resolvents"):
        value = getattr(problem.limits, name)
        for other in (value + 1, value - 1) if value != getattr(default, name) else ():
            if other >= 1:
                yield change("limits", name, other, f"{name} is {other} instead of {value}")
    if problem.limits.exclude_query != default.exclude_query:
        text = "the query may not serve as a fact in its own derivation"
        yield change("limits", "exclude_query", default.exclude_query, text)
    for name, value in problem.spread._asdict().items():
        unused = "unused symbols come after" if name == "after" else f"unused {name}:"
        for other in (value - 1, value + 1) if problem.spread != NO_SPREAD and value else ():
            yield change("spread", name, other, f"{unused} {other} instead of {value}")
    for name, value in problem.sizes._asdict().items():
        usual = getattr(DEFAULT_SIZES, name)
        for other in dict.fromkeys((value + 1, max(value - 1, usual and 1), usual)) if value != usual else ():
            yield change("sizes", name, other, f"{name.replace('_', ' ')}: {other} instead of {value}")


def _without(problem: Problem, field: str, noun: str, indices: Iterable[int]) -> Iterator[Neighbour]:
    for i in indices:
        item = getattr(problem, field)[i]
        text = str(item) if isinstance(item, NamedRule) else render_named(item)
        yield Neighbour(problem.with_item(field, i), f"without the {noun} {text}")


def _shorter_rules(problem: Problem) -> Iterator[Neighbour]:
    for i, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.body if len(rule.body) > 1 else ()):
            short = replace(rule, body=rule.body[:j] + rule.body[j + 1 :])
            yield Neighbour(problem.with_item("rules", i, short), f"without {render_named(atom)} in the rule {rule}")


def _other_queries(problem: Problem) -> Iterator[Neighbour]:
    terms: list[Term] = [*list(problem.domain)[:4], _fresh(problem)]
    yield from _with_other_terms(problem, "unranked", "query", 4, [*terms, Variable("X"), Variable("Y")])
    yield from _with_other_terms(problem, "queries", "query", 4, terms)


def _other_terms(problem: Problem) -> Iterator[Neighbour]:
    names = list(problem.domain)[:4]
    for i, rule in enumerate(problem.rules):
        atoms = (rule.clause_head, *rule.body)
        terms: list[Term] = [*dict.fromkeys(t for a in atoms for t in a[1:] if isinstance(t, Variable))]
        for j, atom in enumerate(atoms):
            for other in _with_other_term(atom, [*terms, Variable("V"), *names]):
                new = [*atoms[:j], other, *atoms[j + 1 :]]
                changed = problem.with_item("rules", i, replace(rule, clause_head=new[0], body=tuple(new[1:])))
                what = "the body atom" if j else "the head"
                yield Neighbour(changed, f"{_instead(what, other, atom)} of the rule {rule}")
    yield from _with_other_terms(problem, "facts", "fact", 2 * MANY_FACTS, [*names, _fresh(problem)])


def _with_other_terms(problem: Problem, field: str, noun: str, most: int, terms: list[Term]) -> Iterator[Neighbour]:
    items: tuple[NamedAtom, ...] = getattr(problem, field)
    for i, atom in enumerate(items[:most]):
        for other in _with_other_term(atom, terms):
            if field != "facts" or other not in items:
                yield Neighbour(problem.with_item(field, i, other), _instead(f"the {noun}", other, atom))


def _more_facts(problem: Problem) -> Iterator[Neighbour]:
    names = [*list(problem.domain)[:3], _fresh(problem)]
    for predicate in dict.fromkeys(atom.predicate for atom in problem.atoms()):
        for a in names:
            for b in names:
                fact = NamedAtom(predicate, a, b)
                if fact not in problem.facts:
                    more = (*problem.facts, fact)
                    yield Neighbour(replace(problem, facts=more), f"with the fact {render_named(fact)} as well")


def _proved_queries(problem: Problem) -> Iterator[Neighbour]:
    """Yield problems that ask for a fact, which is added, since nothing is proved without facts."""
    for i, (predicate, first, _) in enumerate(problem.unranked[:1]):
        query, fact = NamedAtom(predicate, first, Variable("X")), NamedAtom(predicate, str(first), _fresh(problem))
        if not isinstance(first, Variable):
            text = f"with the fact {render_named(fact)}, and {_instead('the query', query, problem.unranked[i])}"
            changed = problem.with_item("unranked", i, query)
            yield Neighbour(replace(changed, facts=(*problem.facts, fact)), text)


def _with_other_term(atom: NamedAtom, terms: list[Term]) -> Iterator[NamedAtom]:
    for field in ("first", "second"):
        for term in dict.fromkeys(terms):
            if term != getattr(atom, field):
                yield atom._replace(first=term) if field == "first" else atom._replace(second=term)


def _instead(what: str, other: NamedAtom, atom: NamedAtom) -> str:
    return f"{what} {render_named(other)} instead of {render_named(atom)}"


def _fresh(problem: Problem) -> str:
    taken = set(problem.domain)
    return next(name for name in ("d", "e", "f", *(f"c{i}" for i in range(len(taken) + 1))) if name not in taken)
