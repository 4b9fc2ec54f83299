"""Parts of the reference: unification, indexes of facts, scores, refusals, and queries that are derived together."""

import itertools
import math
import random
from array import array

import pytest
from reference_programs import goal_of, program_of, random_atom, random_program, situation_of

from kgreference import (
    FALSE,
    Atom,
    Kind,
    Limits,
    OriginKind,
    Program,
    Resolvent,
    Rule,
    Shortest,
    Stages,
    Variable,
    canonical,
    derive,
    derive_together,
    substitute,
    take_step,
    unify,
    variable,
)
from kgreference.facts import FactColumns, ListedFacts
from kgreference.program import Memo
from kgreference.step import log_softmax
from kgreference.terms import first_free_variable, variables

X, Y, Z, W = (variable(number) for number in range(4))
A, B = 0, 1


def test_different_predicates_or_constants_do_not_unify():
    assert unify(Atom(0, X, Y), Atom(1, X, Y)) is None
    assert unify(Atom(0, A, X), Atom(0, B, Y)) is None


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


@pytest.mark.parametrize("kind", ["ascending", "columns", "listed"])
def test_the_index_finds_every_fact_that_unifies_in_ascending_order(kind):
    rng = random.Random(2)
    for _ in range(100):
        program = random_program(rng)
        if kind == "listed":
            shuffled = rng.sample(program.facts, len(program.facts))
            program = Program(program.predicates, program.constants, ListedFacts(shuffled), program.rules)
            assert list(program.facts) == shuffled
        if kind == "columns":
            listed, columns = program, zip(*program.facts, strict=True) if program.facts else ((), (), ())
            facts = FactColumns(*(array("i", column) for column in columns))
            program = Program(listed.predicates, listed.constants, facts, listed.rules)
            assert list(program.facts) == listed.facts
            assert all(program.facts.find(fact) == number for number, fact in enumerate(listed.facts))
        terms = [*range(len(program.constants)), -1, -2]
        for atom in (Atom(p, f, s) for p in range(len(program.predicates)) for f in terms for s in terms):
            found = program.facts_like(atom)
            assert found == sorted(found)
            unifying = [number for number, fact in enumerate(program.facts) if unify(atom, fact) is not None]
            assert set(unifying) <= set(found)
            if atom.first != atom.second or atom.first >= 0:
                assert found == unifying
            assert list(zip(*program.facts_matching(atom), strict=True)) == [
                (number, *program.facts[number][1:], (), variable(0)) for number in unifying
            ]


def test_a_memo_never_holds_more_items_than_it_may_but_for_a_single_entry():
    memo = Memo(5)
    memo.remember("a", "of two", 2)
    memo.remember("b", "of none", 0)
    assert memo == {"a": "of two", "b": "of none"}
    memo.remember("c", "of one", 1)
    assert memo == {"c": "of one"}
    memo.remember("d", "of nine", 9)
    assert memo == {"d": "of nine"}
    memo.remember("e", "of none", 0)
    assert memo == {"e": "of none"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: program_of("p(a, X)"), "must not hold a variable"),
        (lambda: program_of("p(X, a)"), "must not hold a variable"),
        (lambda: Program.from_names([], [(("p", "a", "b"), [])]), "must have a body"),
        (lambda: Program(["p"], ["a"], [Atom(1, 0, 0)], []), "the predicate of"),
        (lambda: Program(["p"], ["a"], [], [Rule(Atom(0, 0, -1), (Atom(0, 1, -1),))]), "a constant of"),
    ],
)
def test_an_invalid_program_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_what_is_not_in_the_program_has_no_number():
    program = program_of("p(a, b)")
    assert program.decode(program.encode(("p", Variable("U"), "b"))) == ("p", Variable("X0"), "b")
    with pytest.raises(KeyError):
        program.encode(("p", "a", "z"))


def test_the_log_softmax_is_that_of_the_definition_in_any_order():
    assert log_softmax([2.0, 2.0], 1) == pytest.approx(-math.log(2))
    assert log_softmax([5.0], 0) == log_softmax([-1e4, 0.0], 1) == 0.0
    scores = [0.1, -3.7, 2.9, 2.8999999, -0.3, 1e-9]
    assert len({log_softmax(scores[n:] + scores[:n], (2 - n) % 6) for n in range(6)}) == 1


PROGRAM = program_of("p(a, b)")
GOAL = goal_of(PROGRAM, "p(a, X)")


def test_a_step_starts_from_an_open_goal_above_the_depth_limit():
    for goal, depth, found in (((), 0, "none"), (GOAL, 20, "20")):
        with pytest.raises(ValueError, match=f"must start.*found {found}"):
            take_step(situation_of(PROGRAM, goal, depth=depth))


def test_what_stands_alone_gets_no_score_of_the_policy():
    class Loud:
        def scores(self, goal, resolvents):
            return [float(len(goal)) for _ in resolvents]

    situation, stages = situation_of(PROGRAM, GOAL, policy=Loud()), Stages()
    assert stages.score(situation, [FALSE]) == stages.score(situation, [FALSE._replace(kind=Kind.TRUE)]) == [0.0]
    assert stages.score(situation, [Resolvent(Kind.GOAL, GOAL, OriginKind.RULE, 0)] * 2) == [1.0, 1.0]


@pytest.mark.parametrize("limit", ["max_depth", "max_atoms", "max_resolvents"])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match="1 or more"):
        derive(PROGRAM, Limits(**{limit: 0}), Shortest(), GOAL[0])


class PreparedShortest(Shortest):
    """The policy `Shortest`, which notes for how many steps it prepares."""

    def __init__(self):
        self.prepared, self.known = [], set()

    def prepare(self, steps):
        self.prepared.append(len(steps))
        self.known |= {goal for goal, _ in steps}

    def scores(self, goal, resolvents):
        assert goal in self.known
        return super().scores(goal, resolvents)


def test_queries_derived_together_are_derived_as_each_alone():
    for seed in range(30):
        rng = random.Random(seed)
        program = random_program(rng)
        limits = Limits(rng.choice((1, 3, 8)), rng.choice((2, 3, 6)), rng.choice((2, 5, 120)))
        terms = [*range(len(program.constants)), -1, -2]
        queries = [random_atom(rng, len(program.predicates), terms) for _ in range(12)]
        policy = PreparedShortest()
        expected = [derive(program, limits, Shortest(), query) for query in queries]
        assert derive_together(program, limits, policy, queries) == expected
        assert policy.prepared[0] == 12
        assert sum(policy.prepared) == sum(len(each.steps) for each in expected)
    assert derive_together(program, limits, policy, []) == []
