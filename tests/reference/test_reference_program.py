"""Symbols, the order of facts, and indexes."""

import random
from array import array

import pytest
from reference_programs import program_of, random_program

from kgreference import Atom, Program, Rule, Variable, canonical, substitute, unify, variable
from kgreference.facts import FactColumns, ListedFacts
from kgreference.program import Memo
from kgreference.terms import variables


def test_symbols_are_numbered_by_first_appearance_in_facts_rules_queries_constants():
    X, Y = Variable("X"), Variable("Y")
    program = Program.from_names(
        facts=[("p", "b", "a")],
        rules=[(("r", X, "c"), [("q", "d", X), ("p", X, Y)])],
        queries=[("s", "e", "a")],
        constants=["f", "a"],
    )
    assert program.predicates == ("p", "r", "q", "s")
    assert program.constants == ("b", "a", "c", "d", "e", "f")


def test_facts_are_unique_and_ascend_by_id():
    program = program_of("p(b, a)\nq(b, b)\np(b, b)\np(a, b)\np(b, b)")
    assert [program.decode(fact) for fact in program.facts] == [
        ("p", "b", "b"),
        ("p", "b", "a"),
        ("p", "a", "b"),
        ("q", "b", "b"),
    ]
    assert program.facts == sorted(program.facts)
    assert [program.facts.find(fact) for fact in program.facts] == [0, 1, 2, 3]


def test_a_rule_numbers_its_variables_head_first():
    program = program_of("p(X, Y) <- q(Z, Y), q(X, Z)")
    assert program.rules == [Rule(Atom(0, -1, -2), (Atom(1, -3, -2), Atom(1, -1, -3)))]


def test_rules_apart_share_no_variable_below_the_first():
    program = program_of("p(X, Y) <- p(X, Z), p(Z, Y)\nq(X, a) <- p(X, X)\np(a, X) <- q(X, X)")
    assert program.rules_apart(0, 2) == [
        (0, Rule(Atom(0, -3, -4), (Atom(0, -3, -5), Atom(0, -5, -4)))),
        (2, Rule(Atom(0, 0, -3), (Atom(1, -3, -3),))),
    ]
    assert program.rules_apart(0, 0)[0][1] == program.rules[0]


def test_a_rule_about_the_first_constant_matches_that_constant_alone():
    program = program_of("q(b, a)\np(X, b) <- q(b, X)")
    assert program.rules == [Rule(Atom(1, -1, 0), (Atom(0, 0, -1),))]
    assert [len(program.rules_matching(Atom(1, 1, second)).origins) for second in (1, 0)] == [0, 1]


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


def test_a_matching_rule_is_given_under_the_most_general_unifier():
    rng = random.Random(3)
    num_matches = 0
    for _ in range(100):
        program = random_program(rng)
        terms = [*range(len(program.constants)), -1, -2]
        for atom in (Atom(p, f, s) for p in range(len(program.predicates)) for f in terms for s in terms):
            expected = []
            for number, rule in program.rules_apart(atom.predicate, 2):
                unifier = unify(atom, rule.head)
                if unifier is not None:
                    instance = canonical(substitute((*rule.body, rule.head), unifier))
                    *body, (_, first, second) = instance
                    expected.append((number, first, second, tuple(body), variable(len(variables(instance)))))
            found = list(zip(*program.rules_matching(atom), strict=True))
            assert found == expected
            num_matches += len(found)
    assert num_matches > 1000


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


def test_a_forgotten_entry_is_computed_again():
    program = program_of("p(a, b)\np(b, c)\np(X, Y) <- p(X, Z), p(Z, Y)")
    atoms = [Atom(0, f, s) for f in (0, 1, 2, -1) for s in (0, 1, 2, -1, -2)]
    expected = [(program.rules_matching(atom), program.facts_matching(atom)) for atom in atoms]
    program._rules_matching, program._facts_matching = Memo(1), Memo(1)
    assert [(program.rules_matching(atom), program.facts_matching(atom)) for atom in atoms] == expected


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
