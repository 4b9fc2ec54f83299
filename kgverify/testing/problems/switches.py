"""Problems in another dialect, and clauses with a query for which a switch of the dialect matters.

Each of these is made for the limits of a drawn problem, which keeps its settings, so that it can share a run with others.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from string import ascii_lowercase
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.limits import Limits
from kgverify.program.program import NamedRule
from kgverify.testing.problems.problem import SHORTEST, Problem

SWITCHED_EVERY: Final = 2
"""The distance, in another dialect than the default one, between two problems with such clauses."""
DEEPEST: Final = 20
"""The most depth of a derivation that may take as many uncounted steps as counted ones, at each of these."""
MOST_CROWDED: Final = 8
"""The most resolvents of a step that a crowd exceeds."""

_MANY: Final = ascii_lowercase[-16:]
"""The letters of constants of which there are many."""


class _Clauses(NamedTuple):
    """Facts, rules and a query as text: `a(X,b)` has the predicate `sa`, the variable X and the constant `kb`."""

    facts: str
    rules: list[str]
    query: str = "a(i,j)"
    is_ranked: bool = False


_Shape: TypeAlias = Callable[[Limits, int], _Clauses]
"""A function of the limits and a number of choice."""


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
    facts = tuple(_atoms(shape.facts))
    rules = tuple(NamedRule(head, tuple(body)) for head, *body in map(_atoms, shape.rules))
    (query,) = _atoms(shape.query)
    before = choice & 1
    queries = (*problem.queries, query) if shape.is_ranked else problem.queries
    return replace(
        problem,
        facts=(*facts, *problem.facts) if before else (*problem.facts, *facts),
        rules=(*rules, *problem.rules) if before else (*problem.rules, *rules),
        queries=queries,
        unranked=problem.unranked if shape.is_ranked else (*problem.unranked, query),
    )


def _atoms(text: str) -> list[NamedAtom]:
    def term(letter: str) -> Variable | str:
        return Variable(letter) if letter.isupper() else f"k{letter}"

    return [NamedAtom(f"s{word[0]}", term(word[2]), term(word[4])) for word in text.split()]


def _repeat(atom: str, num: int) -> str:
    return " ".join([atom] * num)


def _many(pattern: str, num: int) -> list[str]:
    """Return a pattern with each of many constants in place of `*`."""
    return [pattern.replace("*", letter) for letter in _MANY[:num]]


def _crowd(limits: Limits, pattern: str, rule: str) -> list[str]:
    """Return a rule behind as many others as a step may have, and as many behind it."""
    num = min(limits.max_resolvents, MOST_CROWDED)
    others = _many(pattern, 2 * num)
    return [*others[:num], rule, *others[num:]]


def _one_pass(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("b(i,i)", ["a(X,X) b(X,X)"], ("a(i,Y)", "a(Y,i)", "a(X,Y)", "a(X,X)")[choice % 4])


def _rules_and_facts(limits: Limits, choice: int) -> _Clauses:
    """Return a rule and a fact whose resolvents score alike; one of them leads to a proof."""
    rules = ["a(X,Y) b(X,Z) c(Z,Z)", "b(X,k) d(k,k)", "c(X,X) e(X,X)"]
    return _Clauses(f"b(i,j) d(k,k) e({'jk'[choice % 2]},{'jk'[choice % 2]})", rules)


def _two_rules(limits: Limits, choice: int) -> _Clauses:
    """Return two rules whose resolvents score alike; one of them leads to a proof."""
    rules = ["a(X,Y) c(k,k)", "a(X,Y) c(j,j)", "c(X,X) e(X,X)"]
    return _Clauses(f"e({'jk'[choice % 2]},{'jk'[choice % 2]})", rules)


def _own_fact(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("a(i,j) b(i,j)", [["a(X,Y) a(Y,X)"], ["a(X,Y) c(X,Y)"]][choice % 2], is_ranked=choice % 4 < 2)


def _pruned(limits: Limits, choice: int) -> _Clauses:
    """Return a body that is too long by one atom unless facts are deleted, behind or before a shorter one."""
    rules = [f"a(X,Y) {_repeat('b(X,Y)', limits.max_atoms)} c(X,Y)", "a(X,Y) d(X,Y)", "c(X,Y) b(X,Y)"]
    return _Clauses("b(i,j)", rules if choice % 2 else [rules[1], rules[0], rules[2]])


def _pruned_to_visited(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("b(i,j) b(j,i)", ["a(X,Y) a(X,Y) b(X,Y)", "a(X,Y) c(Y,X)", "c(X,Y) a(X,Y) b(Y,X)"])


def _proof_among_others(limits: Limits, choice: int) -> _Clauses:
    """Return two rules that prove, and others that do not, one of them with too many atoms."""
    rules = ["a(X,Y) c(X,Y)", "a(X,Y) b(X,Y)", "a(X,Y) b(Y,X)", f"a(X,Y) {_repeat('d(X,Y)', limits.max_atoms + 1)}"]
    return _Clauses("b(i,j) b(j,i)", rules)


def _proof_beyond(limits: Limits, choice: int) -> _Clauses:
    """Return a rule that proves, at once or in the next step, among rules that do not, as many as a step may have."""
    rules = _crowd(limits, "a(X,Y) c(X,*)", "a(X,Y) b(X,Y)")
    return _Clauses("b(i,j)", rules) if choice % 2 else _Clauses("d(i,j)", [*rules, "b(X,Y) d(X,Y)"])


def _visited_before(limits: Limits, choice: int) -> _Clauses:
    """Return a rule that leads to a proof among rules that lead back, as many as a step may have."""
    return _Clauses("c(i,j)", [*_crowd(limits, "a(X,Y) a(X,Y)", "a(X,Y) b(X,Y)"), "b(X,Y) c(X,Y)"])


def _long_before(limits: Limits, choice: int) -> _Clauses:
    """Return a rule that leads to a proof among rules of too many atoms, as many as a step may have."""
    long = f"a(X,Y) d(X,*) {_repeat('d(X,Y)', limits.max_atoms)}"
    return _Clauses("c(i,j)", [*_crowd(limits, long, "a(X,Y) b(X,Y)"), "b(X,Y) c(X,Y)"])


def _cut(limits: Limits, choice: int) -> _Clauses:
    """Return a body whose first atoms follow and whose last one, beyond the limit, does not."""
    provable = _many("b(*,*)", limits.max_atoms)
    facts = " ".join(_many("c(*,*)", limits.max_atoms))
    return _Clauses(facts, [f"a(X,Y) {' '.join(provable)} d(X,Y)", "b(X,X) c(X,X)"])


def _cut_to_visited(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("", [f"a(X,Y) {_repeat('a(X,Y)', limits.max_atoms + choice % 2)}"])


def _same_set(limits: Limits, choice: int) -> _Clauses:
    """Return rules that lead back to the same atoms, repeated or in another order."""
    if choice % 2:
        return _Clauses("", ["a(X,Y) a(X,Y) a(X,Y)", "a(X,Y) b(X,Y) c(X,Y)"])
    return _Clauses("", ["a(X,Y) b(X,Z) c(Z,Y)", "b(X,Y) b(X,Y) c(Y,Z)", "b(X,Y) c(W,Z) b(X,W)"])


def _turned(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("", ["a(X,Y) a(Y,X)"], ("a(i,j)", "a(i,X)", "a(i,i)")[choice % 3])


def _new_variable(limits: Limits, choice: int) -> _Clauses:
    return _Clauses("", ["a(X,Y) a(X,Z)" if choice % 2 else "a(X,Y) a(Z,Y)"], ("a(i,j)", "a(X,j)")[choice // 2 % 2])


def _chain(limits: Limits, choice: int) -> _Clauses:
    """Return rules with one atom each, more of them than the depth allows, that lead to a fact or to nothing."""
    num = min(limits.max_depth + choice % 3, 16)
    letters = "a" + "lmnopqrstuvwxyzbc"[:num]
    rules = [f"{one}(X,Y) {other}(X,Y)" for one, other in pairwise(letters)]
    return _Clauses(f"{letters[-1]}(i,j)" if choice // 3 % 4 else "", rules)


def _alike(limits: Limits, choice: int) -> _Clauses:
    """Return a ranked query that is proved with the log-probability with which its corruptions fail."""
    return _Clauses("c(i,j)", ["a(X,Y) b(X,Y)", "a(X,Y) d(X,Y)", "b(X,Y) c(X,Y)"], is_ranked=True)


def _alike_twice(limits: Limits, choice: int) -> _Clauses:
    """Return two rules with equal resolvents."""
    rules = ["a(X,Y) b(X,Y)", "a(X,Z) b(X,Z)", "a(X,Y) d(Y,X)", "b(X,Y) c(X,Y)"]
    return _Clauses("c(i,j)", rules)


SHAPES: Final[tuple[_Shape, ...]] = (
    _one_pass,
    _rules_and_facts,
    _two_rules,
    _own_fact,
    _pruned,
    _pruned_to_visited,
    _proof_among_others,
    _proof_beyond,
    _visited_before,
    _long_before,
    _cut,
    _cut_to_visited,
    _same_set,
    _turned,
    _new_variable,
    _chain,
    _alike,
    _alike_twice,
)
"""The shapes, which are taken in turn."""
