"""Least models against clingo's grounding, and soundness: what is proved follows from the program."""

import itertools
import os
import random
from collections import Counter
from functools import partial
from itertools import islice

import pytest
from judges import models
from judges.cases import draw_cases
from reference_programs import draw_fuzz_cases, program_of, random_atom, random_program, text_of

import kgreference
from kgreference import Limits, Outcome, Shortest, Stages, derive, least_model, substitute, variable


@pytest.fixture(scope="module")
def clingo():
    if not models.has_clingo():
        if os.environ.get("CI"):
            pytest.fail("clingo is not installed")
        pytest.skip("clingo is not installed")


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e(a, b)\ne(b, c)\nt(X, Y) <- e(X, Y)\nt(X, Z) <- t(X, Y), t(Y, Z)", {"t(a, b)", "t(b, c)", "t(a, c)"}),
        # A variable of the head alone stands for every constant.
        ("e(a, b)\nt(X, Y) <- e(X, Z)\nu(Y, Y) <- e(X, X)", {"t(a, a)", "t(a, b)"}),
    ],
)
def test_the_least_model_closes_the_facts_under_the_rules(text, expected):
    program = program_of(text)
    assert {text_of(program, (atom,)) for atom in least_model(program) - set(program.facts)} == expected


def test_random_programs_have_the_least_model_that_trying_everything_finds():
    rng = random.Random(4)
    num_derived = 0
    for _ in range(100):
        program = random_program(rng)
        model = least_model(program)
        assert model == naive_model(program)
        num_derived += len(model) > len(program.facts)
    assert num_derived > 20


@pytest.mark.usefixtures("clingo")
@pytest.mark.parametrize("draw", [draw_cases, draw_fuzz_cases])
@pytest.mark.parametrize("num", [100, pytest.param(500, marks=pytest.mark.deep)])
def test_clingo_finds_the_least_models_and_every_proof_in_them_without_the_query_as_a_fact(draw, num):
    seen = Counter()
    cases = filter(models.is_small, draw(3))
    for _ in range(num // 100):
        assert models.judge_models(list(islice(cases, 100)), seen) == []
    assert seen["models"] == num
    assert seen["derived"] > num
    assert seen["proved"] > num // 2
    assert draw is draw_fuzz_cases or seen["the last constant derived"] > num // 10


@pytest.mark.usefixtures("clingo")
def test_clingo_notices_proofs_by_what_is_no_fact(monkeypatch):
    def prune_every_ground_atom(situation, resolvents):
        bare = [each._replace(atoms=tuple(a for a in each.atoms if min(a) < 0)) for each in resolvents]
        return Stages().prune(situation, bare)

    monkeypatch.setattr(kgreference, "derive", partial(derive, stages=Stages(prune=prune_every_ground_atom)))
    cases = list(islice(filter(models.is_small, draw_cases(6)), 100))
    assert any("does not follow" in each for each in models.judge_models(cases, Counter()))


def test_a_proved_query_with_variables_has_an_instance_in_the_least_model():
    rng = random.Random(6)
    num_proved = 0
    for _ in range(300):
        program = random_program(rng)
        query = random_atom(rng, len(program.predicates), [variable(0), variable(1), 0])
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
