"""The compiled evaluator takes the steps of the reference prover, on hundreds of random problems."""

from collections import Counter

import numpy as np
import pytest
import torch
from engine_checks import difference, eager, first_kinds, near_ties, owners, reference, resolvents_by_step, small_layout
from random_programs import Problem, candidates_of, program_of, random_problem

from kgverify import Limits
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.engines.protocol import positions_of
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.trace.model.columns import Columns, select_candidates

SHORTEST_SEEDS = range(200)
TWO_TOWER_SEEDS = range(1000, 1080)
MOST_NEAR_TIES = 0.03


def count_rare(columns: Columns, window: int) -> Counter[str]:
    """The counts of outcomes that a test could miss by its choice of problems."""
    candidates, steps = columns.candidates, columns.steps
    kinds = first_kinds(columns)
    return Counter(
        {
            **{outcome.name: int((candidates.outcome == outcome).sum()) for outcome in Outcome},
            "limited": int(candidates.is_limited.sum()),
            "limited and proved": int((candidates.is_limited[candidates.outcome == Outcome.PROVED]).sum()),
            "dropped_atoms": int((steps.dropped_atoms > 0).sum()),
            "dropped_resolvents": int((steps.dropped_resolvents > 0).sum()),
            "FALSE by a limit": int(((kinds == GoalKind.FALSE) & (steps.dropped_atoms > 0)).sum()),
            "several facts to choose from": sum(
                sum(origin_kind == Origin.FACT for _, origin_kind, _ in step) > 1
                for step in resolvents_by_step(columns)
            ),
            "more than a window": int((steps.num_resolvents + steps.dropped_resolvents > window).sum()),
        }
    )


@pytest.mark.exhaustive
def test_the_compiled_evaluator_takes_the_steps_of_the_reference() -> None:
    occurred: Counter[str] = Counter()
    for seed in SHORTEST_SEEDS:
        problem = random_problem(seed)
        prover, engine = reference(problem), eager(problem.program, problem.limits)
        expected = prover.prove(problem.candidates)
        assert not difference(expected, engine.prove(problem.candidates)), f"seed {seed}, free running"
        positions = positions_of(expected)
        assert not difference(prover.step(positions), engine.step(positions)), f"seed {seed}, in lockstep"
        occurred += count_rare(expected, window=engine.layout.match_window)
    least = {
        "PROVED": 100,
        "FAILED": 100,
        "DEPTH_LIMIT": 50,
        "limited": 50,
        "limited and proved": 3,
        "dropped_atoms": 50,
        "dropped_resolvents": 50,
        "FALSE by a limit": 10,
        "several facts to choose from": 50,
        "more than a window": 10,
    }
    assert {name: occurred[name] for name in least if occurred[name] < least[name]} == {}
    assert occurred["OPEN"] == 0


@pytest.mark.deep
def test_two_tower_takes_the_steps_of_the_reference_but_for_near_ties() -> None:
    num_steps = num_near = num_flipped = num_compared = 0
    for seed in TWO_TOWER_SEEDS:
        problem = random_problem(seed)
        policy = make_two_tower(problem.program, problem.limits, seed=seed, embedding=16, hidden=16)
        prover, engine = reference(problem, policy), eager(problem.program, problem.limits, policy)
        margin = 2 * engine.info.score_error
        expected, actual = prover.prove(problem.candidates), engine.prove(problem.candidates)
        positions = positions_of(expected)
        expected_steps, actual_steps = prover.step(positions), engine.step(positions)

        is_near = near_ties(expected_steps, margin)
        rows = np.flatnonzero(~is_near)
        found = difference(select_candidates(expected_steps, rows), select_candidates(actual_steps, rows), margin)
        assert not found, f"seed {seed}, in lockstep: {found}"
        is_flipped = expected_steps.steps.choice != actual_steps.steps.choice
        # A near-tie changes which resolvent is chosen, and nothing of what there is to choose from.
        np.testing.assert_array_equal(expected_steps.resolvents.atoms, actual_steps.resolvents.atoms)
        num_steps, num_near = num_steps + len(is_near), num_near + int(is_near.sum())
        num_flipped += int(is_flipped.sum())

        is_clear = np.ones(len(expected.candidates.query), np.bool_)
        is_clear[owners(expected)[is_near]] = False
        rows = np.flatnonzero(is_clear)
        found = difference(select_candidates(expected, rows), select_candidates(actual, rows), margin)
        assert not found, f"seed {seed}, free running: {found}"
        num_compared += len(rows)
    assert num_flipped <= num_near <= MOST_NEAR_TIES * num_steps
    assert num_compared > 500


@pytest.mark.deep
def test_the_random_problems_hold_goals_that_are_revisited() -> None:
    num_different = 0
    stages = Stages(SCORES["shortest"])
    blind = stages._replace(
        revisit=lambda tables, atoms, visited, slot, depth: torch.zeros_like(slot, dtype=torch.bool)
    )
    for seed in SHORTEST_SEEDS[:30]:
        program, limits, candidates = random_problem(seed)
        layout = small_layout(limits)
        engine = CompiledEngine(program, limits, SHORTEST, mode="eager", device="cpu", layout=layout, stages=blind)
        num_different += bool(difference(reference(random_problem(seed)).prove(candidates), engine.prove(candidates)))
    assert num_different >= 10


def test_a_revisited_goal_is_dropped_by_both() -> None:
    program = program_of("p(X, Y) <- p(Y, X)\nq(a, b)")
    problem = Problem(program, Limits(), candidates_of(program, "p(a, b), p(X, Y), p(X, X)"))
    expected = reference(problem).prove(problem.candidates)
    assert not difference(expected, eager(program, problem.limits).prove(problem.candidates))
    # p(b, a) leads back to p(a, b); p(X, Y) leads to itself at once, since a canonical goal has no names.
    np.testing.assert_array_equal(expected.candidates.num_steps, [2, 1, 1])
    np.testing.assert_array_equal(expected.candidates.outcome, Outcome.FAILED)


@pytest.mark.parametrize("max_atoms", [1, 2, 3])
def test_a_resolvent_that_begins_with_a_visited_goal_is_dropped_for_its_length(max_atoms: int) -> None:
    program = program_of("p(X, Y) <- p(X, Y), q(Y, Z), q(Z, V), q(V, W)\nr(a, b)")
    problem = Problem(program, Limits(max_atoms=max_atoms), candidates_of(program, "p(a, b)"))
    expected = reference(problem).prove(problem.candidates)
    actual = eager(program, problem.limits).prove(problem.candidates)
    assert not difference(expected, actual)
    np.testing.assert_array_equal(actual.steps.dropped_atoms, [1])
    np.testing.assert_array_equal(actual.candidates.is_limited, [1])


def test_a_query_is_made_canonical_before_its_first_step() -> None:
    program = program_of("p(a, b)\nr(X, Z) <- s(X, Y), s(Y, Z)\ns(X, X) <- r(X, X)")
    r = program.symbols.predicate_ids["r"]
    rows = np.array([[r, -2, -1], [r, -40, 0], [r, -3, -3], [r, -13, -1]], np.int32)
    candidates = candidates_of(program, "r(X, Y), r(X, a), r(X, X), r(X, Y)")._replace(atom=rows)
    problem = Problem(program, Limits(), candidates)
    expected = reference(problem).prove(candidates)
    assert not difference(expected, eager(program, problem.limits).prove(candidates))


def test_no_candidates_give_no_steps() -> None:
    program = program_of("p(a, b)")
    nothing = candidates_of(program, [])
    prover, engine = reference(Problem(program, Limits(), nothing)), eager(program, Limits())
    for columns in (engine.prove(nothing), engine.step(positions_of(prover.prove(nothing)))):
        assert all(len(column) == 0 for level in columns for column in level)


@pytest.mark.parametrize("text", ["p(a, b)", "p(X, Y) <- q(Y, X)", "p(X, Y) <- q(Y, Z)\np(X, X) <- r(X, a)"])
def test_a_program_without_facts_or_rules_is_proved_like_any_other(text: str) -> None:
    program = program_of(text, queries="p(a, b)")
    problem = Problem(program, Limits(exclude_query=False), candidates_of(program, "p(a, b), p(X, Y), p(b, b)"))
    expected = reference(problem).prove(problem.candidates)
    assert not difference(expected, eager(program, problem.limits).prove(problem.candidates))


def test_progress_counts_every_candidate_once() -> None:
    problem = random_problem(3, num_queries=23)
    finished: list[int] = []
    eager(problem.program, problem.limits, pool=9).prove(problem.candidates, finished.append)
    assert sum(finished) == 23


def test_weights_may_be_read_only() -> None:
    program, limits, candidates = problem = random_problem(5)
    policy = make_two_tower(program, limits, seed=5, embedding=8, hidden=8)
    for tensor in policy.weights.values():
        tensor.setflags(write=False)
    engine = eager(program, limits, policy)
    expected, actual = reference(problem, policy).prove(candidates), engine.prove(candidates)
    assert not difference(expected, actual, 2 * engine.info.score_error)
