"""Unification, substitution and canonical numbering."""

import itertools

import pytest

from kgreference import Atom, canonical, substitute, unify, variable
from kgreference.terms import first_free_variable, is_ground, variables

X, Y, Z, W = (variable(number) for number in range(4))
A, B = 0, 1


def test_a_variable_is_bound_to_a_constant_on_either_side():
    assert unify(Atom(0, X, B), Atom(0, A, Y)) == {X: A, Y: B}


def test_different_predicates_or_constants_do_not_unify():
    assert unify(Atom(0, X, Y), Atom(1, X, Y)) is None
    assert unify(Atom(0, A, X), Atom(0, B, Y)) is None


def test_a_repeated_variable_takes_one_value():
    assert unify(Atom(0, X, X), Atom(0, A, B)) is None
    assert unify(Atom(0, X, X), Atom(0, A, A)) == {X: A}
    assert unify(Atom(0, X, X), Atom(0, Y, B)) == {X: B, Y: B}
    assert unify(Atom(0, A, B), Atom(0, Y, Y)) is None


def test_every_unifier_is_fully_resolved_and_most_general():
    terms = [A, B, X, Y, Z, W]
    for left, right in itertools.product(itertools.product(terms, repeat=2), repeat=2):
        left_atom, right_atom = Atom(0, *left), Atom(0, *right)
        unifier = unify(left_atom, right_atom)
        ground = [dict(zip([X, Y, Z, W], values, strict=True)) for values in itertools.product([A, B], repeat=4)]
        solutions = [s for s in ground if substitute((left_atom,), s) == substitute((right_atom,), s)]
        if unifier is None:
            assert not solutions
            continue
        assert not set(unifier) & set(unifier.values())
        assert substitute((left_atom,), unifier) == substitute((right_atom,), unifier)
        # Most general: each solution is the unifier followed by a substitution, here by itself.
        for solution in solutions:
            assert all(solution[v] == solution.get(term, term) for v, term in unifier.items())
        assert solutions


def test_a_substitution_replaces_all_variables_at_once():
    assert substitute((Atom(0, X, Y),), {X: Y, Y: A}) == (Atom(0, Y, A),)
    assert substitute((Atom(0, X, Y),), {X: Y, Y: X}) == (Atom(0, Y, X),)


def test_variables_are_numbered_by_first_appearance():
    goal = (Atom(0, W, A), Atom(1, Y, W), Atom(0, B, Z))
    assert canonical(goal) == (Atom(0, X, A), Atom(1, Y, X), Atom(0, B, Z))
    assert canonical(canonical(goal)) == canonical(goal)


@pytest.mark.parametrize(
    ("goal", "num_variables", "first_free"),
    [((), 0, 0), ((Atom(0, A, B),), 0, 0), ((Atom(0, Z, A), Atom(0, Z, Z)), 1, 3), ((Atom(0, X, Y),), 2, 2)],
)
def test_variables_are_counted_once_and_the_next_one_is_free(goal, num_variables, first_free):
    assert len(variables(goal)) == num_variables
    assert first_free_variable(goal) == first_free


def test_an_atom_with_a_variable_in_either_argument_is_not_ground():
    assert is_ground(Atom(0, A, B))
    assert not any(is_ground(atom) for atom in (Atom(0, X, B), Atom(0, A, X), Atom(0, X, Y)))
