"""The reference against judges that share no code with it: SWI-Prolog, clingo, plain integers and exact fractions."""

import os
from collections import Counter
from functools import partial
from itertools import islice

import numpy as np
import pytest
from judges import draws, models, ranks
from judges.cases import draw_cases
from judges.derivations import has_prolog, judge_choices, judge_derivations
from reference_programs import draw_fuzz_cases, program_of, text_of

import kgreference
from kgreference import Outcome, Ranks, Stages, derive, least_model, metrics, mix, rank
from kgreference.corrupt import mix_all

RARE = (
    "a tie",
    "a variable twice",
    "all dropped",
    "all visited",
    "as many resolvents as allowed",
    "DEPTH_LIMIT",
    "dropped by both limits",
    "max_atoms + 1 atoms",
    "max_atoms atoms",
    "more than 120 resolvents",
    "one resolvent too many",
    "PROVED by the last step",
    "the query again",
    "TRUE behind a goal",
    "TRUE beyond the limit",
    "twenty steps",
    "two TRUE",
    "visited",
)
"""Conditions that must occur, as Prolog counts them."""
TIERS = (80, pytest.param(800, marks=pytest.mark.deep))
"""Programs of each tier."""


def require(is_installed: bool, name: str) -> None:
    if not is_installed:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def prolog() -> None:
    require(has_prolog(), "swipl")


@pytest.fixture(scope="module")
def clingo() -> None:
    require(models.has_clingo(), "clingo")


@pytest.mark.usefixtures("prolog")
@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_of_every_derivation_alike(num: int):
    seen: Counter[str] = Counter()
    assert judge_derivations(list(islice(draw_cases(1), num)), seen) == []
    assert seen["steps"] > 4 * num
    assert not [name for name in RARE if seen[name] < num // 500], seen


@pytest.mark.usefixtures("prolog")
@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_of_the_problems_that_fuzzing_generates(num: int):
    seen: Counter[str] = Counter()
    assert judge_derivations(list(islice(draw_fuzz_cases(1), num)), seen) == []
    assert seen["steps"] > 3 * num


@pytest.mark.usefixtures("prolog")
@pytest.mark.parametrize("num", TIERS)
def test_prolog_takes_every_step_that_a_network_chooses_and_numpy_finds_its_scores(num: int):
    seen: Counter[str] = Counter()
    assert judge_choices(list(islice(draw_cases(2), num // 2)), seen) == []
    assert seen["a choice by the network"] > num // 4


SOUND = Stages()


def prune_the_excluded_atom(situation, resolvents):
    return SOUND.prune(situation._replace(excluded=None), resolvents)


def prove_at_the_depth_limit(situation, chosen, depth):
    outcome = SOUND.finish(situation, chosen, depth)
    return Outcome.PROVED if outcome is Outcome.DEPTH_LIMIT else outcome


@pytest.mark.usefixtures("prolog")
@pytest.mark.parametrize("stages", [{"prune": prune_the_excluded_atom}, {"finish": prove_at_the_depth_limit}])
def test_prolog_notices_a_wrong_stage(stages, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kgreference, "derive", partial(derive, stages=Stages(**stages)))
    assert judge_derivations(list(islice(draw_cases(8), 60)), Counter()) != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("e(a, b)\ne(b, c)\nt(X, Y) <- e(X, Y)\nt(X, Z) <- t(X, Y), t(Y, Z)", {"t(a, b)", "t(b, c)", "t(a, c)"}),
        # A variable of the head alone stands for every constant.
        ("e(a, b)\nt(X, Y) <- e(X, Z)\nu(Y, Y) <- e(X, X)", {"t(a, a)", "t(a, b)"}),
    ],
)
def test_the_least_model_closes_the_facts_under_the_rules(text: str, expected: set[str]):
    program = program_of(text)
    assert {text_of(program, (atom,)) for atom in least_model(program) - set(program.facts)} == expected


@pytest.mark.usefixtures("clingo")
@pytest.mark.parametrize("draw", [draw_cases, draw_fuzz_cases])
@pytest.mark.parametrize("num", [100, pytest.param(500, marks=pytest.mark.deep)])
def test_clingo_finds_the_least_models_and_every_proof_in_them_without_the_query_as_a_fact(draw, num: int):
    seen: Counter[str] = Counter()
    cases = filter(models.is_small, draw(3))
    for _ in range(num // 100):
        assert models.judge_models(list(islice(cases, 100)), seen) == []
    assert seen["models"] == num
    assert seen["derived"] > num
    assert seen["proved"] > num // 2
    assert draw is draw_fuzz_cases or seen["the last constant derived"] > num // 10


@pytest.mark.usefixtures("clingo")
def test_clingo_notices_proofs_by_what_is_no_fact(monkeypatch: pytest.MonkeyPatch):
    def prune_every_ground_atom(situation, resolvents):
        bare = [each._replace(atoms=tuple(a for a in each.atoms if min(a) < 0)) for each in resolvents]
        return SOUND.prune(situation, bare)

    monkeypatch.setattr(kgreference, "derive", partial(derive, stages=Stages(prune=prune_every_ground_atom)))
    cases = list(islice(filter(models.is_small, draw_cases(6)), 100))
    assert any("does not follow" in each for each in models.judge_models(cases, Counter()))


def test_the_mixer_is_splitmix64_as_published_for_the_seed_1234567():
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431)
    states = [(1234567 + n * 0x9E3779B97F4A7C15) % 2**64 for n in range(4)]
    assert (*map(mix, states),) == (*map(draws.mix, states),) == published
    assert mix(2**64) == mix(0) == 0xE220A8397B1DCDAF
    assert (*mix_all(np.array(states, np.uint64)).tolist(),) == published


@pytest.mark.parametrize("num", [50, pytest.param(200, marks=pytest.mark.deep)])
def test_every_draw_is_the_one_that_the_definition_gives_in_plain_integers(num: int):
    seen: Counter[str] = Counter()
    assert draws.judge_draws(list(islice(draws.draw_cases(1), num)), seen) == []
    assert seen["draws"] > 5 * num
    assert not [name for name, count in seen.items() if count < num // 50], seen


@pytest.mark.parametrize(
    ("scores", "tolerance", "expected"),
    [
        ([0.7, 0.5, 0.1, 0.5], 0.0, (2.0, 3.0, 4.0)),
        ([0.75, 0.625, 0.375, 0.25], 0.25, (2.0, 3.0, 4.0)),
        ([0.75, 0.625, 0.375, 0.25], 0.0, (3.0, 3.0, 3.0)),
    ],
)
def test_ties_and_scores_closer_than_the_tolerance_are_won_shared_and_lost(scores, tolerance, expected):
    assert rank(0.5, scores, tolerance=tolerance) == Ranks(*expected)


@pytest.mark.parametrize("num", [300, pytest.param(3000, marks=pytest.mark.deep)])
def test_ranks_and_metrics_are_those_of_exact_fractions_and_what_is_not_finite_is_refused(num: int):
    seen: Counter[str] = Counter()
    assert ranks.judge_ranks(list(islice(ranks.draw_rankings(1), num)), seen) == []
    assert seen["ranks"] == num
    assert seen.pop("refused") == 4
    assert not [name for name, count in seen.items() if count < num // 500], seen


def test_ranks_of_neither_side_are_pooled_and_nothing_else():
    values = metrics([], [Ranks(1.0, 1.0, 1.0)], [Ranks(2.0, 2.0, 2.0)])
    assert {key.split(".")[0] for key in values} == {"tail", "both"}
    assert (values["both.realistic.hits_at_1"], values["tail.realistic.hits_at_1"]) == (0.5, 1.0)
