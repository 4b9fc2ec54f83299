"""The scope `tiny`: every problem once, as many as Burnside's lemma counts, and compared by every entry point."""

from math import comb

import pytest

import kgverify as kv
from kgverify import Problem
from kgverify.program.atoms import NamedAtom
from kgverify.testing.problems.decode import list_scope

BELL = (1, 1, 2, 5, 15)


def count_clauses(positions: int, constants: int) -> int:
    """Count the ways to fill positions with constants and with variables, up to the variables' names."""
    return sum(comb(positions, k) * constants ** (positions - k) * BELL[k] for k in range(positions + 1))


def rename(problem: Problem, names: dict[str, str]) -> tuple[object, ...]:
    """Return a problem's content with other names of constants, its facts as a set."""

    def put(atom: NamedAtom) -> NamedAtom:
        return atom._replace(first=names.get(atom.first, atom.first), second=names.get(atom.second, atom.second))

    rules = tuple((put(rule.clause_head), tuple(map(put, rule.body))) for rule in problem.rules)
    return frozenset(map(put, problem.facts)), rules, tuple(map(put, problem.unranked)), problem.limits


def test_the_scope_has_as_many_problems_as_burnsides_lemma_counts():
    # Every problem is unchanged by the identity; the exchange of two constants moves every atom that has one.
    every = sum(comb(4, size) for size in range(3)) * (1 + count_clauses(4, 2)) * count_clauses(2, 2)
    unchanged = (1 + 2) * (1 + count_clauses(4, 0)) * count_clauses(2, 0)
    assert len(list_scope("tiny")) == 4 * (every + unchanged) // 2 == 33_632


def test_no_problem_is_a_renaming_of_another():
    seen: set[tuple[object, ...]] = set()
    for problem in list_scope("tiny"):
        images = {rename(problem, {}), rename(problem, {"c0": "c1", "c1": "c0"})}
        assert seen.isdisjoint(images)
        seen |= images


@kv.engine_of
def proves_nothing(goal, clauses):
    return []


def test_an_engine_that_is_wrong_in_the_scope_is_not_equivalent():
    with pytest.raises(AssertionError, match="proves_nothing does not conform"):
        kv.assert_equivalent(proves_nothing, scope="tiny")


@pytest.mark.exhaustive
def test_the_evaluator_is_equivalent_in_the_scope():
    kv.assert_equivalent("compiled", scope="tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"scope": "tinny"}, "did you mean 'tiny'"), ({"scope": "tiny", "graph": "countries"}, "a graph or a scope")],
)
def test_mistakes_are_errors(options: dict[str, str], message: str):
    with pytest.raises(kv.UserError, match=message):
        kv.assert_equivalent(proves_nothing, **options)
