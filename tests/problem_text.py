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

_RING = range(13)
LOOPED = graph_of(
    "; ".join(
        (
            *(f"e(n{i:02}, n{i * 5 % 13:02})" for i in _RING),
            *(f"e(n{i:02}, n{(i * 3 + 1) % 13:02})" for i in _RING if i % 3),
            *(f"f(n{i:02}, n{i * 7 % 13:02})" for i in _RING),
            *(f"g(n{i:02}, n{i * 3 % 13:02})" for i in _RING[:9]),
            "f(n03, n03); w(n01, n02); w(n12, n12); w(n02, n05)",
            "r(X, Y) <- e(X, Z), r(Z, Y); r(X, Y) <- r(Y, X); r(X, Y) <- f(X, Z), e(Z, W), f(W, Y); r(X, X) <- f(X, Z)",
            "r(X, Y) <- w(Z, X), e(X, Y); e(X, Y) <- f(Y, X); w(X, n02) <- e(X, Z), f(Z, Z)",
            "r(X, Z) <- w(X, Y), w(Y, Z), e(W, Z); r(X, Y) <- f(n03, n03), g(X, Z), e(Z, Y)",
            "s(X, Y) <- f(n03, n03), e(X, Z), f(Z, Y); g(X, Y) <- f(n03, n03), e(Y, X)",
            "s(X, Y) <- g(Z, W), f(X, Z), e(W, Y); s(X, Y) <- f(X, Z), f(Z, Y), s(Y, X)",
            "s(X, Y) <- g(X, Y), g(Y, X), w(X, Y), f(X, X); g(X, Y) <- e(Y, Z), f(Z, X)",
            *(f"! {'rs'[i % 2]}(n{i:02}, n{(i * 4 + 2) % 13:02})" for i in _RING[1:7]),
        )
    )
)
"""Relations with loops among 13 constants, and rules with repeated variables, facts in their bodies and long bodies."""

BRANCHING = graph_of(
    "; ".join(
        (
            *(f"p(n{i}, n{(i * factor + more) % 13})" for i in _RING for factor, more in ((5, 0), (3, 1), (7, 2))),
            *(f"q(n{i}, n{(i * factor + more) % 13})" for i in _RING for factor, more in ((2, 0), (9, 1))),
            "r(X, Y) <- p(Z, Y), q(X, Z); r(X, Y) <- q(Z, Y), p(Z, X), q(X, Z); r(X, Y) <- p(X, Z), p(Z, Y)",
            "q(X, Y) <- r(Y, X); r(X, Y) <- p(Y, Z), r(X, Z)",
            *(f"! r(n{i}, n{(i * 4 + 2) % 13})" for i in _RING[1:9]),
        )
    )
)
"""Two relations with several facts for each constant, and rules that look for them by either argument."""
