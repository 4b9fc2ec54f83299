"""The nearest agreeing neighbour: a failing problem with one change, on which both sides agree."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from kgverify.program.atoms import NamedAtom, Term, Variable
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule, render_named
from kgverify.testing.problems.problem import DEFAULT_SIZES, NO_SPREAD, SHORTEST, Problem
from kgverify.testing.shrinking.oracle import Oracle
from kgverify.testing.shrinking.terms import list_predicates, list_variables, shorten

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
        yield from _without(problem, "unranked", "query")
    if len(problem.facts) > MANY_FACTS:
        yield from _without(problem, "facts", "fact")
    names, fresh = list(problem.domain), _fresh(problem)
    terms: list[Term] = [*names[:4], fresh]
    yield from _other_items(problem, "unranked", "query", 4, [*terms, Variable("X"), Variable("Y")])
    yield from _other_items(problem, "queries", "query", 4, terms)
    yield from _without(problem, "facts", "fact")
    for i, rule in enumerate(problem.rules):
        for atom, short in zip(rule.body, shorten(rule), strict=False):
            yield Neighbour(problem.with_item("rules", i, short), f"without {render_named(atom)} in the rule {rule}")
    for i, rule in enumerate(problem.rules):
        for j, atom in enumerate(rule.atoms):
            for other in _with_other_term(atom, [*list_variables(rule.atoms), Variable("V"), *names[:4]]):
                changed = rule.with_atoms([*rule.atoms[:j], other, *rule.atoms[j + 1 :]])
                text = f"{_instead('the body atom' if j else 'the head', other, atom)} of the rule {rule}"
                yield Neighbour(problem.with_item("rules", i, changed), text)
    yield from _other_items(problem, "facts", "fact", 2 * MANY_FACTS, terms)
    for predicate, a, b in product(list_predicates(problem), *[[*names[:3], fresh]] * 2):
        if (fact := NamedAtom(predicate, a, b)) not in problem.facts:
            more = replace(problem, facts=(*problem.facts, fact))
            yield Neighbour(more, f"with the fact {render_named(fact)} as well")
    yield from _without(problem, "rules", "rule")
    for atom in problem.unranked[:1]:
        # A query for a fact that is added, since nothing is proved without facts.
        if isinstance(atom.first, str):
            query, fact = atom._replace(second=Variable("X")), atom._replace(second=fresh)
            text = f"with the fact {render_named(fact)}, and {_instead('the query', query, atom)}"
            yield Neighbour(replace(problem.with_item("unranked", 0, query), facts=(*problem.facts, fact)), text)
    if problem.policy != SHORTEST:
        yield Neighbour(replace(problem, policy=SHORTEST), "the policy is shortest")


def _other_numbers(problem: Problem) -> Iterator[Neighbour]:
    default, limits, spread, sizes = Limits(), problem.limits, problem.spread, problem.sizes
    others: list[tuple[str, str, str, list[int]]] = []
    for name in ("max_depth", "max_atoms", "max_resolvents"):
        value = getattr(limits, name)
        near = [value + 1, value - 1] if value != getattr(default, name) else []
        others.append(("limits", name, f"{name} is {{}} instead of {value}", [each for each in near if each >= 1]))
    if limits.exclude_query != default.exclude_query:
        text = "the query may not serve as a fact in its own derivation"
        others.append(("limits", "exclude_query", text, [default.exclude_query]))
    for name, value in spread._asdict().items():
        title = "unused symbols come after" if name == "after" else f"unused {name}:"
        near = [value - 1, value + 1] if spread != NO_SPREAD and value else []
        others.append(("spread", name, f"{title} {{}} instead of {value}", near))
    for name, value in sizes._asdict().items():
        usual = getattr(DEFAULT_SIZES, name)
        near = list(dict.fromkeys((value + 1, max(value - 1, usual and 1), usual))) if value != usual else []
        others.append(("sizes", name, f"{name.replace('_', ' ')}: {{}} instead of {value}", near))
    for part, name, text, near in others:
        for value in near:
            yield Neighbour(problem.with_number(part, name, value), text.format(value))


def _without(problem: Problem, field: str, noun: str) -> Iterator[Neighbour]:
    """Yield the problem without each item of a field, facts from the last one on."""
    for i, item in list(enumerate(getattr(problem, field)))[:: -1 if field == "facts" else 1]:
        text = str(item) if isinstance(item, NamedRule) else render_named(item)
        yield Neighbour(problem.with_item(field, i), f"without the {noun} {text}")


def _other_items(problem: Problem, field: str, noun: str, most: int, terms: list[Term]) -> Iterator[Neighbour]:
    items: tuple[NamedAtom, ...] = getattr(problem, field)
    for i, atom in enumerate(items[:most]):
        for other in _with_other_term(atom, terms):
            if field != "facts" or other not in items:
                yield Neighbour(problem.with_item(field, i, other), _instead(f"the {noun}", other, atom))


def _with_other_term(atom: NamedAtom, terms: list[Term]) -> Iterator[NamedAtom]:
    for term in dict.fromkeys(terms):
        if term != atom.first:
            yield atom._replace(first=term)
    for term in dict.fromkeys(terms):
        if term != atom.second:
            yield atom._replace(second=term)


def _instead(what: str, other: NamedAtom, atom: NamedAtom) -> str:
    return f"{what} {render_named(other)} instead of {render_named(atom)}"


def _fresh(problem: Problem) -> str:
    names = ("d", "e", "f", *(f"c{i}" for i in range(len(problem.domain) + 1)))
    return next(name for name in names if name not in problem.domain)
