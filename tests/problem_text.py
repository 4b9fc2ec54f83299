"""Problems and graphs from text."""

import re
from typing import Any

from kgverify import KnowledgeGraph, NamedAtom, NamedRule, Problem
from kgverify.program.atoms import Variable

ATOM = re.compile(r"(\w+)\((\w+), ?(\w+)\)")


def atoms_of(text: str) -> tuple[NamedAtom, ...]:
    """Return the atoms in a text; upper-case initials are variables."""
    return tuple(
        NamedAtom(name, *(Variable(term) if term[0].isupper() else term for term in terms))
        for name, *terms in ATOM.findall(text)
    )


def problem_of(text: str, **settings: Any) -> Problem:
    """Return a problem from clauses separated by semicolons.

    `p(a, b)` is a fact, `p(X, Y) <- q(Y, X)` a rule, `? p(a, X)` a query, and `! p(a, b)` a query that is ranked.
    """
    facts, rules, queries, unranked = [], [], [], []
    for clause in map(str.strip, text.split(";")):
        atoms = atoms_of(clause)
        if "<-" in clause:
            rules.append(NamedRule(atoms[0], atoms[1:]))
        else:
            {"?": unranked, "!": queries}.get(clause[:1], facts).extend(atoms)
    given = {"facts": facts, "rules": rules, "queries": queries, "unranked": unranked}
    return Problem(**{name: tuple(clauses) for name, clauses in given.items()} | settings)


def graph_of(text: str, name: str = "made up") -> KnowledgeGraph:
    """Return a graph from clauses as in `problem_of`, with the ranked queries as its test triples."""
    made = problem_of(text)
    return KnowledgeGraph(name, train=made.facts, test=made.queries, rules=made.rules)


_NAMES = range(17)
RINGS = graph_of(
    "; ".join(
        (
            *(f"p(n{i}, n{i * 5 % 17})" for i in _NAMES),
            *(f"q(n{i}, n{i * 7 % 17})" for i in _NAMES),
            "r(X, Y) <- q(X, Z), p(Z, W), q(W, Y)",
            "r(X, Y) <- p(X, Z), q(Z, Y)",
            "r(X, Y) <- q(X, Z), q(Z, Y)",
            "p(X, Y) <- q(Y, X)",
            *(f"! r(n{i}, n{i * 3 % 17})" for i in range(1, 9)),
        )
    )
)
"""Two relations that lead from each of 17 constants to another one, and rules that follow them."""
