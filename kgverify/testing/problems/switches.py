"""Problems in another dialect, and clauses with a query for which a switch of the dialect matters.

Each of these is made for the limits of a drawn problem, which keeps its settings, so that it can share a run with others.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from string import ascii_lowercase
from typing import Final, NamedTuple

import msgspec

from kgverify.program.atoms import Term, parse_atoms
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.program.program import parse_rules
from kgverify.testing.problems.problem import SHORTEST, Problem

SWITCHED_EVERY: Final = 2
"""The distance, in another dialect than the default one, between two problems with such clauses."""
DEEPEST: Final = 20
"""The most depth of a derivation that may take as many uncounted steps as counted ones, at each of these."""
MOST_CROWDED: Final = 8
"""The most resolvents of a step that a crowd exceeds."""

_PREDICATES: Final = {letter: f"s{letter}" for letter in ascii_lowercase}
_CONSTANTS: Final[dict[Term, Term]] = {letter: f"k{letter}" for letter in ascii_lowercase}


class _Clauses(NamedTuple):
    """Facts, rules and a query as text: `a(X,b)` has the predicate `sa`, the variable X and the constant `kb`."""

    facts: str
    rules: str
    query: str = "a(i,j)"
    is_ranked: bool = False


def put_in_dialect(problem: Problem, dialect: Dialect) -> Problem:
    """Return the problem in a dialect, with a policy that it defines and a depth that keeps derivations short."""
    limits = msgspec.structs.replace(problem.limits, dialect=dialect)
    if dialect.skips_unary or "max_atoms" not in dialect.filters:
        limits = msgspec.structs.replace(limits, max_depth=min(limits.max_depth, DEEPEST))
    return replace(problem, limits=limits, policy=problem.policy if scores_networks(dialect) else SHORTEST)


def scores_networks(dialect: Dialect) -> bool:
    """Return whether `two_tower` scores every resolvent: it embeds the variables of at most `max_atoms` atoms."""
    return "max_atoms" in dialect.filters


def adapt_problem(problem: Problem, dialect: Dialect, seed: int, index: int) -> Problem:
    """Return the drawn problem at an index of a seed's sequence in a dialect; in the default one, as it is.

    Every second one gets clauses and a query for which a switch matters, each switch in turn.
    """
    if dialect == OURS:
        return problem
    problem = put_in_dialect(problem, dialect)
    if index % SWITCHED_EVERY:
        return problem
    choice = int.from_bytes(hashlib.shake_128(f"{seed}:{index}:switch".encode()).digest(4))
    return add_switch(problem, index // SWITCHED_EVERY, choice)


def add_switch(problem: Problem, number: int, choice: int) -> Problem:
    """Return the problem with the clauses and the query of a shape, which follow its own or precede them."""
    shape = SHAPES[number % len(SHAPES)](problem.limits, choice >> 1)
    facts, (query,) = (
        tuple([atom.rename(_CONSTANTS, _PREDICATES) for atom in parse_atoms(text)])
        for text in (shape.facts, shape.query)
    )
    rules = tuple([rule.rename(_CONSTANTS, _PREDICATES) for rule in parse_rules(shape.rules)])
    before = choice & 1
    return replace(
        problem,
        facts=(*facts, *problem.facts) if before else (*problem.facts, *facts),
        rules=(*rules, *problem.rules) if before else (*problem.rules, *rules),
        queries=problem.queries + (query,) * shape.is_ranked,
        unranked=problem.unranked + (query,) * (not shape.is_ranked),
    )


def _many(pattern: str, num: int) -> list[str]:
    """Return a pattern with each of many constants in place of `*`."""
    return [pattern.replace("*", letter) for letter in ascii_lowercase[10 : 10 + num]]


def _crowd(limits: Limits, pattern: str, rule: str) -> str:
    """Return a rule between others, on either side the number that a step may have."""
    num = min(limits.max_resolvents, MOST_CROWDED)
    others = _many(pattern, 2 * num)
    return "; ".join([*others[:num], rule, *others[num:]])


def _chain(limits: Limits, choice: int) -> _Clauses:
    """Return rules with one atom each, more of them than the depth allows, that lead to a fact or to nothing."""
    letters = "a" + "lmnopqrstuvwxyzbc"[: min(limits.max_depth + choice % 3, 16)]
    rules = "; ".join([f"{one}(X,Y) {other}(X,Y)" for one, other in pairwise(letters)])
    return _Clauses(f"{letters[-1]}(i,j)" if choice // 3 % 4 else "", rules)


SHAPES: Final[tuple[Callable[[Limits, int], _Clauses], ...]] = (
    # Unification in one pass.
    lambda limits, choice: _Clauses("b(i,i)", "a(X,X) b(X,X)", ("a(i,Y)", "a(Y,i)", "a(X,Y)", "a(X,X)")[choice % 4]),
    # A rule and a fact whose resolvents score alike; one of them leads to a proof.
    lambda limits, choice: _Clauses(
        f"b(i,j) d(k,k) {('e(j,j)', 'e(k,k)')[choice % 2]}", "a(X,Y) b(X,Z) c(Z,Z); b(X,k) d(k,k); c(X,X) e(X,X)"
    ),
    # Two rules whose resolvents score alike; one of them leads to a proof.
    lambda limits, choice: _Clauses(("e(j,j)", "e(k,k)")[choice % 2], "a(X,Y) c(k,k); a(X,Y) c(j,j); c(X,X) e(X,X)"),
    # The query is a fact.
    lambda limits, choice: _Clauses(
        "a(i,j) b(i,j)", ("a(X,Y) a(Y,X)", "a(X,Y) c(X,Y)")[choice % 2], is_ranked=choice % 4 < 2
    ),
    # A body that is too long by one atom unless facts are deleted, behind or before a shorter one.
    lambda limits, choice: _Clauses(
        "b(i,j)",
        "; ".join([f"a(X,Y){' b(X,Y)' * limits.max_atoms} c(X,Y)", "a(X,Y) d(X,Y)"][:: 1 if choice % 2 else -1])
        + "; c(X,Y) b(X,Y)",
    ),
    # A goal that was visited, once facts are deleted.
    lambda limits, choice: _Clauses("b(i,j) b(j,i)", "a(X,Y) a(X,Y) b(X,Y); a(X,Y) c(Y,X); c(X,Y) a(X,Y) b(Y,X)"),
    # Two rules that prove, and others that do not, one of them with too many atoms.
    lambda limits, choice: _Clauses(
        "b(i,j) b(j,i)",
        f"a(X,Y) c(X,Y); a(X,Y) b(X,Y); a(X,Y) b(Y,X); a(X,Y){' d(X,Y)' * (limits.max_atoms + 1)}",
    ),
    # A rule that proves, in the next step or at once, in a crowd of rules that do not.
    lambda limits, choice: _Clauses(
        ("d(i,j)", "b(i,j)")[choice % 2],
        _crowd(limits, "a(X,Y) c(X,*)", "a(X,Y) b(X,Y)") + ("; b(X,Y) d(X,Y)", "")[choice % 2],
    ),
    # A rule that leads to a proof in a crowd of rules that lead back.
    lambda limits, choice: _Clauses("c(i,j)", _crowd(limits, "a(X,Y) a(X,Y)", "a(X,Y) b(X,Y)") + "; b(X,Y) c(X,Y)"),
    # A rule that leads to a proof in a crowd of rules of too many atoms.
    lambda limits, choice: _Clauses(
        "c(i,j)",
        _crowd(limits, f"a(X,Y) d(X,*){' d(X,Y)' * limits.max_atoms}", "a(X,Y) b(X,Y)") + "; b(X,Y) c(X,Y)",
    ),
    # A body whose first atoms follow and whose last one, beyond the limit, does not.
    lambda limits, choice: _Clauses(
        " ".join(_many("c(*,*)", limits.max_atoms)),
        f"a(X,Y) {' '.join(_many('b(*,*)', limits.max_atoms))} d(X,Y); b(X,X) c(X,X)",
    ),
    # A goal that was visited, once atoms beyond the limit are cut off.
    lambda limits, choice: _Clauses("", f"a(X,Y){' a(X,Y)' * (limits.max_atoms + choice % 2)}"),
    # Rules that lead back to the same atoms, in another order or repeated.
    lambda limits, choice: _Clauses(
        "",
        (
            "a(X,Y) b(X,Z) c(Z,Y); b(X,Y) b(X,Y) c(Y,Z); b(X,Y) c(W,Z) b(X,W)",
            "a(X,Y) a(X,Y) a(X,Y); a(X,Y) b(X,Y) c(X,Y)",
        )[choice % 2],
    ),
    # The same goal with its arguments swapped.
    lambda limits, choice: _Clauses("", "a(X,Y) a(Y,X)", ("a(i,j)", "a(i,X)", "a(i,i)")[choice % 3]),
    # The same goal with a new variable.
    lambda limits, choice: _Clauses(
        "", ("a(X,Y) a(Z,Y)", "a(X,Y) a(X,Z)")[choice % 2], ("a(i,j)", "a(X,j)")[choice // 2 % 2]
    ),
    _chain,
    # A ranked query that is proved with the log-probability with which its corruptions fail.
    lambda limits, choice: _Clauses("c(i,j)", "a(X,Y) b(X,Y); a(X,Y) d(X,Y); b(X,Y) c(X,Y)", is_ranked=True),
    # Two rules with equal resolvents.
    lambda limits, choice: _Clauses("c(i,j)", "a(X,Y) b(X,Y); a(X,Z) b(X,Z); a(X,Y) d(Y,X); b(X,Y) c(X,Y)"),
)
"""The shapes, which are taken in turn: functions of the limits and a number of choice."""
