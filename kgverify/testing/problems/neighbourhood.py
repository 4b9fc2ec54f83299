"""Problems cut from a graph: a query with the rules that lead from it, and the facts around it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kgverify.graphs.graph import KnowledgeGraph
from kgverify.program.atoms import NamedAtom, Term
from kgverify.program.limits import OURS, Dialect
from kgverify.testing.problems.decode import put_in_dialect
from kgverify.testing.problems.problem import Problem

NEAREST: Final = 24
"""The number of facts of a problem: those nearest to its query."""
NUM_CORRUPTIONS: Final = 2


def cut_problems(graph: KnowledgeGraph, dialect: Dialect = OURS) -> Iterator[Problem]:
    """Yield a problem for each test query, in order. UserError if the graph has none."""
    bodies: dict[str, set[str]] = {}
    for rule in graph.rules:
        bodies.setdefault(rule.clause_head.predicate, set()).update(atom.predicate for atom in rule.body)
    facts, incident = list(dict.fromkeys(graph.train)), dict[Term, list[NamedAtom]]()
    numbers = {fact: i for i, fact in enumerate(facts)}
    for fact in facts:
        for term in dict.fromkeys(fact[1:]):
            incident.setdefault(term, []).append(fact)
    for row in graph.queries("test").tolist():
        query = graph.program.symbols.decode(row)
        predicates = _find_reached(query.predicate, bodies)
        problem = Problem(
            facts=tuple(sorted(_find_nearest(query, incident, predicates), key=numbers.__getitem__)),
            rules=tuple(
                [replace(r, name="", confidence=None) for r in graph.rules if r.clause_head.predicate in predicates]
            ),
            queries=(query,),
            num_corruptions=NUM_CORRUPTIONS,
        )
        yield put_in_dialect(problem, dialect)


def _find_reached(predicate: str, bodies: dict[str, set[str]]) -> set[str]:
    """Return the predicates that rules reach from a predicate, and the predicate itself."""
    found, waiting = {predicate}, [predicate]
    while waiting:
        new = bodies.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _find_nearest(query: NamedAtom, incident: dict[Term, list[NamedAtom]], predicates: set[str]) -> set[NamedAtom]:
    """Return the facts of some predicates nearest to a query. Each constant reached adds one fact in turn."""
    near: set[NamedAtom] = set()
    seen = set(query[1:])
    waiting = {term: iter(incident.get(term, ())) for term in query[1:]}
    while waiting and len(near) < NEAREST:
        for term, facts in list(waiting.items()):
            fact = next((each for each in facts if each.predicate in predicates and each not in near), None)
            if fact is None:
                del waiting[term]
            elif len(near) < NEAREST:
                near.add(fact)
                for other in fact[1:]:
                    if other not in seen:
                        seen.add(other)
                        waiting[other] = iter(incident[other])
    return near
