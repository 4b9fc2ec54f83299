"""Problems from text, and the failure of a problem on a faulty evaluator."""

import re
from typing import Any

from kgverify import NamedAtom, NamedRule, Problem
from kgverify.laws import compiled_maker
from kgverify.program.atoms import Variable
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure

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
    return Problem(
        **{
            "facts": tuple(facts),
            "rules": tuple(rules),
            "queries": tuple(queries),
            "unranked": tuple(unranked),
            **settings,
        }
    )


def failure_of(problem: Problem, fault: str = "last-fact-lost") -> Failure:
    """Return the failure of a problem that a faulty evaluator shows."""
    failure = Checker(compiled_maker(faults=[fault])).judge(problem)
    assert failure is not None
    return failure
