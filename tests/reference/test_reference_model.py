"""Least models against clingo's grounding, and soundness: what is proved follows from the program."""

import itertools
import os
import random
from collections import Counter
from itertools import islice

import pytest
from judges import models
from judges.cases import draw_cases
from reference_programs import program_of, random_atom, random_program, read_dataset, text_of

from kgreference import (
    Atom,
    Limits,
    Outcome,
    Shortest,
    derive,
    least_model,
    substitute,
    variable,
)


@pytest.fixture(scope="module")
def clingo():
    try:
        import clingo
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("clingo is not installed")
        pytest.skip("clingo is not installed")
    return clingo


def ground(clingo, program):
    """The least model: grounding evaluates a program without negation completely."""

    def term(number):
        return str(number) if number >= 0 else f"V{-1 - number}"

    def render(atom):
        predicate, first, second = atom
        return f"a({predicate},{term(first)},{term(second)})"

    lines = [f"c(0..{len(program.constants) - 1})."]
    lines += [f"{render(fact)}." for fact in program.facts]
    for rule in program.rules:
        conditions = [render(atom) for atom in rule.body]
        conditions += [f"c({term(number)})" for number in rule.head[1:] if number < 0]
        lines.append(f"{render(rule.head)} :- {', '.join(conditions)}.")
    control = clingo.Control(["--warn=none"])
    control.add("base", [], "\n".join(lines))
    control.ground([("base", [])])
    atoms = [symbolic for symbolic in control.symbolic_atoms if symbolic.symbol.name == "a"]
    assert all(symbolic.is_fact for symbolic in atoms)
    return {Atom(*(argument.number for argument in symbolic.symbol.arguments)) for symbolic in atoms}


def naive_model(program):
    """The least model by trying every constant for every variable, until nothing new follows."""
    instances = []
    for rule in program.rules:
        variables = sorted({term for atom in (rule.head, *rule.body) for term in atom[1:] if term < 0})
        for constants in itertools.product(range(len(program.constants)), repeat=len(variables)):
            head, *body = substitute((rule.head, *rule.body), dict(zip(variables, constants, strict=True)))
            instances.append((head, set(body)))
    model, before = set(program.facts), None
    while model != before:
        before = set(model)
        model |= {head for head, body in instances if body <= model}
    return model


def test_the_least_model_closes_the_facts_under_the_rules():
    program = program_of("e(a, b)\ne(b, c)\nt(X, Y) <- e(X, Y)\nt(X, Z) <- t(X, Y), t(Y, Z)")
    derived = {text_of(program, (atom,)) for atom in least_model(program) - set(program.facts)}
    assert derived == {"t(a, b)", "t(b, c)", "t(a, c)"}


def test_a_variable_of_the_head_alone_stands_for_every_constant():
    program = program_of("e(a, b)\nt(X, Y) <- e(X, Z)\nu(Y, Y) <- e(X, X)")
    derived = {text_of(program, (atom,)) for atom in least_model(program) - set(program.facts)}
    assert derived == {"t(a, a)", "t(a, b)"}


def test_random_programs_have_the_least_model_that_trying_everything_finds():
    rng = random.Random(4)
    num_derived = 0
    for _ in range(100):
        program = random_program(rng)
        model = least_model(program)
        assert model == naive_model(program)
        num_derived += len(model) > len(program.facts)
    assert num_derived > 20


@pytest.mark.parametrize(
    "num", [100, pytest.param(1000, marks=pytest.mark.deep), pytest.param(20_000, marks=pytest.mark.exhaustive)]
)
def test_clingo_finds_the_least_models_and_every_proof_in_them_without_the_query_as_a_fact(clingo, num):
    seen = Counter()
    cases = filter(models.is_small, draw_cases(3))
    for _ in range(num // 100):
        assert models.judge_models(list(islice(cases, 100)), seen) == []
    assert seen["derived"] > num
    assert seen["proved"] > num // 2
    assert seen["the last constant derived"] > num // 10


def test_a_proved_query_with_variables_has_an_instance_in_the_least_model():
    rng = random.Random(6)
    num_proved = 0
    for _ in range(300):
        program = random_program(rng)
        terms = [variable(0), variable(1), 0]
        query = random_atom(rng, len(program.predicates), terms)
        if derive(program, Limits(), Shortest(), query).outcome == Outcome.PROVED:
            num_proved += 1
            assert any(is_instance(query, atom) for atom in least_model(program))
    assert num_proved > 100


def is_instance(query, atom):
    substitution = {}
    pairs = zip(query[1:], atom[1:], strict=True)
    return query[0] == atom[0] and all(
        constant == (term if term >= 0 else substitution.setdefault(term, constant)) for term, constant in pairs
    )


@pytest.mark.deep
@pytest.mark.data
def test_what_is_proved_on_family_is_in_the_least_model(clingo):
    program, test, corrupter = read_dataset("family")
    model = ground(clingo, program)
    rng = random.Random(1)
    outcomes = Counter()
    for index in rng.sample(range(len(test)), 100):
        for query in corrupter.candidates(test[index], index, index % 2, 1, 0):
            derivation = derive(program, Limits(), Shortest(), query)
            outcomes[derivation.outcome] += 1
            assert derivation.outcome != Outcome.PROVED or query in model
    assert outcomes[Outcome.PROVED] > 10
    assert outcomes[Outcome.FAILED] > 10


@pytest.mark.data
def test_clingo_grounds_countries_to_the_same_least_model(clingo):
    program = read_dataset("countries_s3").program
    model = least_model(program)
    assert model == ground(clingo, program)
    assert len(model) > len(program.facts)
