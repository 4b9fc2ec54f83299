"""Slots, windows, paddings, pools and the order of candidates change nothing in any derivation."""

import random

import numpy as np
import pytest
from engine_checks import assert_identical, eager, near_ties, owners
from random_programs import candidates_of, program_of, random_problem

from kgverify import Limits
from kgverify.engines.policy import Policy, make_two_tower
from kgverify.engines.protocol import positions_of
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import Program
from kgverify.trace.model.columns import CandidateSet, Columns, select_candidates
from kgverify.trace.model.digests import compute_digests

Countries = tuple[Program, CandidateSet]

LIMITS = Limits(max_depth=12, max_atoms=3, max_resolvents=6)
USUAL = {"slots": 16, "match_window": 512, "score_window": 64, "pool": 512}
SIZES = [
    pytest.param({"slots": 1}, id="one slot"),
    pytest.param({"slots": 7}, id="fewer slots than candidates"),
    pytest.param({"slots": 200}, id="more slots than candidates"),
    pytest.param({"match_window": 3}, id="a match window smaller than the slots"),
    pytest.param({"match_window": 64}, id="a match window of 64"),
    pytest.param({"match_window": 4096}, id="a match window that holds everything"),
    pytest.param({"score_window": LIMITS.max_resolvents}, id="a score window of one step"),
    pytest.param({"score_window": 5000}, id="a score window that holds everything"),
    pytest.param({"pool": 1}, id="a pool of one"),
    pytest.param({"pool": 5}, id="a pool smaller than the slots"),
    pytest.param({"atoms": 9}, id="more atom padding"),
    pytest.param({"resolvents": 77}, id="more resolvent padding"),
    pytest.param({"slots": 3, "match_window": 5, "score_window": 7, "pool": 11, "atoms": 4}, id="odd sizes"),
]


@pytest.fixture(scope="module")
def two_tower(countries: Countries) -> Policy:
    return make_two_tower(countries[0], LIMITS, seed=1, embedding=16, hidden=16)


@pytest.fixture(scope="module")
def expected(countries: Countries) -> Columns:
    return eager(countries[0], LIMITS, **USUAL).prove(countries[1])


@pytest.fixture(scope="module")
def expected_of_two_tower(countries: Countries, two_tower: Policy) -> Columns:
    return eager(countries[0], LIMITS, two_tower, **USUAL).prove(countries[1])


def assert_same_digests(expected: Columns, actual: Columns, margin: float) -> None:
    """Derivations without a near-tie are the same, up to the rounding of their scores; and those are most."""
    assert_identical_inputs(expected, actual)
    is_near = near_ties(expected, margin)
    is_clear = np.ones(len(expected.candidates.query), np.bool_)
    is_clear[owners(expected)[is_near]] = False
    assert is_clear.mean() > 0.7
    left, right = (select_candidates(each, np.flatnonzero(is_clear)) for each in (expected, actual))
    np.testing.assert_array_equal(left.candidates.num_steps, right.candidates.num_steps)
    np.testing.assert_array_equal(left.candidates.outcome, right.candidates.outcome)
    np.testing.assert_array_equal(compute_digests(left).sequence, compute_digests(right).sequence)


def assert_identical_inputs(expected: Columns, actual: Columns) -> None:
    for name in ("query", "side", "atom"):
        np.testing.assert_array_equal(getattr(expected.candidates, name), getattr(actual.candidates, name))


def test_the_graph_that_invariance_is_tested_on_has_every_outcome(expected: Columns) -> None:
    assert set(expected.candidates.outcome.tolist()) == {Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT}
    assert expected.candidates.is_limited.any()


@pytest.mark.sample(3, deep=4)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_layout_changes_nothing(countries: Countries, expected: Columns, sizes: dict[str, int]) -> None:
    program, candidates = countries
    assert_identical(expected, eager(program, LIMITS, **{**USUAL, **sizes}).prove(candidates))


@pytest.mark.sample(1, deep=1)
@pytest.mark.parametrize("sizes", SIZES[1:11:2])
def test_a_layout_changes_nothing_under_two_tower(
    countries: Countries, two_tower: Policy, expected_of_two_tower: Columns, sizes: dict[str, int]
) -> None:
    program, candidates = countries
    engine = eager(program, LIMITS, two_tower, **{**USUAL, **sizes})
    assert_same_digests(expected_of_two_tower, engine.prove(candidates), 2 * engine.info.score_error)


@pytest.mark.deep
def test_a_match_window_of_one_clause_changes_nothing() -> None:
    for seed in range(5):
        program, limits, candidates = random_problem(seed)
        wide, narrow = eager(program, limits, match_window=4096), eager(program, limits, match_window=1)
        assert_identical(wide.prove(candidates), narrow.prove(candidates))


@pytest.mark.deep
def test_random_layouts_change_nothing() -> None:
    for seed in range(300, 360):
        rng = random.Random(seed)
        program, limits, candidates = random_problem(seed, num_queries=rng.randint(1, 12))
        sizes = {
            "slots": rng.randint(1, 20),
            "atoms": limits.max_atoms + rng.randint(0, 4),
            "resolvents": limits.max_resolvents + rng.randint(0, 30),
            "match_window": rng.choice((5, 17, 100, 1000)),
            "score_window": limits.max_resolvents + rng.randint(0, 50),
            "pool": rng.randint(1, 20),
        }
        usual, other = eager(program, limits), eager(program, limits, **sizes)
        columns = usual.prove(candidates)
        assert_identical(columns, other.prove(candidates))
        positions = positions_of(columns)
        assert_identical(usual.step(positions), other.step(positions))


def test_the_order_of_candidates_changes_nothing(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    for seed, slots in ((1, 16), (2, 5)):
        order = np.random.default_rng(seed).permutation(len(candidates.query))
        permuted = eager(program, LIMITS, **{**USUAL, "slots": slots}).prove(candidates.take(order))
        assert_identical(expected, select_candidates(permuted, np.argsort(order)))


def test_the_order_of_candidates_changes_nothing_under_two_tower(
    countries: Countries, two_tower: Policy, expected_of_two_tower: Columns
) -> None:
    program, candidates = countries
    order = np.random.default_rng(3).permutation(len(candidates.query))
    engine = eager(program, LIMITS, two_tower, **USUAL)
    permuted = select_candidates(engine.prove(candidates.take(order)), np.argsort(order))
    assert_same_digests(expected_of_two_tower, permuted, 2 * engine.info.score_error)


def test_a_candidate_alone_is_proved_as_among_others(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    engine = eager(program, LIMITS, **USUAL)
    for i in range(0, len(candidates.query), 9):
        alone = engine.prove(candidates.take(slice(i, i + 1)))
        assert_identical(select_candidates(expected, np.array([i])), alone)


def test_a_candidate_given_twice_is_proved_twice(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    rows = np.repeat(np.arange(len(candidates.query)), 2)
    actual = eager(program, LIMITS, **USUAL).prove(candidates.take(rows))
    assert_identical(select_candidates(expected, rows), actual)


def test_one_engine_gives_the_same_columns_again(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    engine = eager(program, LIMITS, **USUAL)
    assert_identical(expected, engine.prove(candidates))
    few = candidates.take(slice(3, 8))
    assert_identical(select_candidates(expected, np.arange(3, 8)), engine.prove(few))
    engine.step(positions_of(expected))
    assert_identical(expected, engine.prove(candidates))


def test_a_run_leaves_the_columns_of_earlier_runs_as_they_were(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    engine = eager(program, LIMITS, **USUAL)
    earlier = engine.prove(candidates)
    engine.prove(candidates.take(slice(None, None, -1)))
    engine.step(positions_of(expected))
    assert_identical(expected, earlier)


def test_candidates_may_be_read_only_or_a_view_that_runs_backwards(countries: Countries, expected: Columns) -> None:
    program, candidates = countries
    engine = eager(program, LIMITS, **USUAL)
    backwards = engine.prove(candidates.take(slice(None, None, -1)))
    assert_identical(expected, select_candidates(backwards, np.arange(len(candidates.query))[::-1]))
    single = candidates.take(slice(0, 1))
    assert_identical(engine.prove(single.take(slice(None, None, -1))), engine.prove(single))
    frozen = candidates._replace(atom=candidates.atom.copy())
    frozen.atom.setflags(write=False)
    assert_identical(expected, engine.prove(frozen))


def test_a_proof_that_waits_for_the_score_window_keeps_the_first_clause_that_gave_it() -> None:
    fans = [f"p(a{i}, b{j})" for i in range(2) for j in range(40)] + [f"t(c, d{j})" for j in range(70)]
    text = "\n".join([*fans, "r(X, Z) <- p(X, Y), q(Y, Z)", "s(X, Z) <- t(X, Z)"])
    program = program_of(text, queries="q(d0, d0)")
    candidates = candidates_of(program, "r(a0, Z), r(a1, Z), s(c, Z)")
    limits = Limits(max_resolvents=40)
    # The second steps of the three end in one tick, which tries 10 of the 70 facts; their scores take two ticks.
    crowded = eager(program, limits, slots=3, match_window=90, score_window=40).prove(candidates)
    alone = eager(program, limits, slots=1, match_window=4096).prove(candidates)
    assert_identical(alone, crowded)
    first_fact = int(np.flatnonzero(program.facts[:, 0] == program.symbols.predicate_ids["t"])[0])
    assert (crowded.resolvents.kind[-1], crowded.resolvents.origin[-1]) == (GoalKind.TRUE, first_fact)
