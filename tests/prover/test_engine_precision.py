"""The error that the evaluator declares of its scores bounds the one that it makes."""

from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from kgverify import Limits, Problem, load_graph
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution.device import products_set_to
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.stages.choose import (
    Parameters,
    Rescoring,
    build_parameters,
    measure_gaps,
    rescore,
    score_shortest,
    score_two_tower,
)
from kgverify.prover.state import GOAL, TRUE, Rows
from kgverify.prover.tower.launch import declare_error, estimate_score_error
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import Run, load_policy
from kgverify.testing.checking.check import Checker
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import PolicySpec
from kgverify.trace.model.columns import Columns

CPU = torch.device("cpu")
X, Y, Z = map(Variable, "XYZ")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_a_norm_over_units_that_are_nearly_equal_makes_no_divergence(seed: int, hidden: int):
    problem = Problem(
        rules=(NamedRule(NamedAtom("p", X, Y), (NamedAtom("p", Z, Y),)),),
        queries=(NamedAtom("p", "a", "a"),),
        policy=PolicySpec("two_tower", seed, 2, hidden, 1),
    )
    assert Checker().judge(problem) is None


def test_of_usual_weights_the_error_is_small():
    policy = load_policy("trained", load_graph("countries"), Limits(), 0)
    parameters = build_parameters(policy, CPU, torch.float32)
    assert 0 < estimate_score_error(policy, 6, CPU, score_two_tower, parameters) < 1e-3
    assert estimate_score_error(SHORTEST, 6, CPU, score_shortest, ()) == 0


def test_the_declared_error_is_that_of_the_sizes_or_of_what_was_seen():
    policy = make_two_tower(load_graph("countries").program, Limits(), seed=1, embedding=4, hidden=16, blocks=2)
    weights = {**policy.weights, "block.1.norm.weight": np.full(16, -2.0), "block.1.norm.bias": np.full(16, 1.0)}
    policy = replace(policy, weights=weights)
    # Of towers of 16 units of at most 2 + 1, the product by 16**0.5 is 36; 2 + 2 layers round sums of 16 units.
    assert declare_error(policy, 0.0, CPU) == pytest.approx(36 * (2 + 2) * 16**0.5 * 2**-23)
    assert declare_error(policy, 1.0, CPU) == 8.0
    assert declare_error(policy, 1.0, torch.device("cuda")) == 4.0


def score_coarsely(parameters: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Scores rounded to bfloat16, of the first half of the parameters."""
    half = parameters[: len(parameters) // 2]
    return score_two_tower(half, goals, resolvents, slot).bfloat16().float()


def prove_coarsely(*problems: Problem, is_rescored: bool) -> tuple[Columns, Columns]:
    """Prove the candidates with the unchanged evaluator, and with coarse scores."""
    merged = merge(problems)
    pipeline, coarse = (compiled_maker()(merged.run, merged.sizes) for _ in range(2))
    engine = coarse.engine
    assert isinstance(engine, CompiledEngine)
    parameters = engine._parameters
    error = max(estimate_score_error(merged.run.policy, 6, CPU, score_coarsely, (*parameters, *parameters)), 0.05)
    rescoring = Rescoring(score_two_tower, len(parameters), error, merged.run.limits.max_resolvents)
    engine._parameters = (*parameters, *parameters)
    stages = engine._setting.stages._replace(score=score_coarsely)
    engine._setting = engine._setting._replace(stages=stages, rescoring=rescoring if is_rescored else None)
    engine._ticks = engine._build_ticks(merged.run.policy)
    candidates = pipeline.draw_for(merged.run)
    return pipeline.engine.prove(candidates), engine.prove(candidates)


@pytest.mark.exhaustive
def test_close_choices_of_coarse_scores_are_made_again_in_full_precision():
    num_flips = num_compared = 0
    for number, problem in enumerate(islice(draw_problems(21, 0), 60)):
        with_weights = replace(problem, policy=PolicySpec("two_tower", number, 16, 16, 2))
        exact, rescored = prove_coarsely(with_weights, is_rescored=True)
        assert rescored.steps.choice.tolist() == exact.steps.choice.tolist()
        assert rescored.candidates.outcome.tolist() == exact.candidates.outcome.tolist()
        _, coarse = prove_coarsely(with_weights, is_rescored=False)
        num_flips += coarse.steps.choice.tolist() != exact.steps.choice.tolist()
        num_compared += len(exact.steps.choice)
    assert num_flips > 0
    assert num_compared > 200


def test_the_gap_of_a_choice_is_that_to_the_second_score():
    free = -torch.inf
    score = torch.tensor([[1.0, 3.0, 2.5], [2.0, 2.0, free], [1.0, free, free], [4.0, 1.0, 0.0], [4.0, 1.0, 0.0]])
    kind = torch.tensor([GOAL, GOAL, GOAL, TRUE, GOAL], dtype=torch.int32)
    is_taken = torch.tensor([True, True, True, True, False])
    best, gap, chooses = measure_gaps(score, kind, is_taken)
    assert best.tolist() == [3, 2, 1, 4, 4]
    assert gap.tolist() == [0.5, 0, torch.inf, torch.inf, torch.inf]
    assert chooses.tolist() == [True, True, False, False, False]


def test_a_slot_that_waits_for_its_close_choice_keeps_its_resolvents_out_of_the_steps_of_others():
    policy = PolicySpec("two_tower", 3, 16, 16, 2)
    drawn, limits = islice(draw_problems(21, 0), 40), Limits(max_resolvents=3)
    problems = [replace(each, policy=policy, limits=limits, num_corruptions=1, seed=0) for each in drawn]
    exact, rescored = prove_coarsely(*problems, is_rescored=True)
    assert exact.steps.num_resolvents.sum() > 10 * limits.max_resolvents
    assert rescored.steps.num_resolvents.tolist() == exact.steps.num_resolvents.tolist()
    assert rescored.resolvents.num_atoms.tolist() == exact.resolvents.num_atoms.tolist()
    assert rescored.resolvents.atoms.tolist() == exact.resolvents.atoms.tolist()


def look_up(values: Tensor, given: Parameters, goals: Tensor, resolvents: Tensor, slot: Tensor) -> Tensor:
    """Scores by the predicate of the first atom."""
    return values[resolvents[:, 0, 0].clamp(min=0).long()]


@pytest.mark.parametrize("window", [3, 4, 6, 30])
def test_close_choices_that_fit_the_window_are_scored_again_and_the_others_wait(window: int):
    rng = np.random.default_rng(window)
    for _ in range(20):
        num = rng.integers(0, 4, 6)
        slot = np.repeat(np.arange(6), num)
        score = torch.full((6, 3), -torch.inf)
        coarse, exact = rng.choice([0.0, 0.1, 0.5, 1.0], len(slot)), rng.normal(size=len(slot))
        column = np.arange(len(slot)) - np.repeat(np.cumsum(num) - num, num)
        score[slot, column] = torch.tensor(coarse, dtype=torch.float32)
        kind = torch.tensor(np.where(num > 0, GOAL, TRUE), dtype=torch.int32)
        is_taken = torch.tensor(rng.random(6) < 0.8)
        # The row of the window is its own number, by which the exact score is looked up; one row is not used.
        atoms = torch.zeros((len(slot) + 1, 1, 3), dtype=torch.int32)
        atoms[:, 0, 0] = torch.arange(len(slot) + 1)
        rows = Rows(
            torch.tensor([*slot, 0]),
            torch.arange(len(slot) + 1) < len(slot),
            atoms,
            torch.tensor(np.cumsum(num) - num),
        )
        values = torch.tensor([*exact, 0.0])
        rescoring = Rescoring(partial(look_up, values), 0, 0.1, window)
        found, takes, gaps = rescore(rescoring, (), atoms, rows, score, kind, is_taken)
        wanted, free, num_made, num_close = score.clone(), window, 0, 0
        for at in range(6):
            own = score[at, : num[at]].numpy().astype(float)
            is_choice = bool(is_taken[at]) and num[at] > 1
            is_near = own >= own.max(initial=-np.inf) - 0.2 - 1e-7
            is_close = is_choice and is_near.sum() > 1
            waits = is_close and is_near.sum() > free
            if is_close:
                for place in np.flatnonzero(is_near)[: max(0, free)]:
                    wanted[at, place] = float(exact[slot == at][place])
                free -= int(is_near.sum())
            assert bool(takes[at]) == (bool(is_taken[at]) and not waits)
            num_made += is_choice and not waits
            num_close += is_close and not waits
        assert torch.equal(found, wanted)
        assert (int(gaps.num_choices), int(gaps.num_rescored)) == (num_made, num_close)


def test_settings_and_autocast_around_the_evaluator_change_no_bit():
    graph = load_graph("countries")
    run = Run(graph, policy=load_policy("two_tower", graph, Limits(), 0), num_queries=2, num_corruptions=3)
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    layout = choose_layout(run.limits, slots=16, pool=16)

    def make_engine() -> CompiledEngine:
        return CompiledEngine(graph.program, run.limits, run.policy, mode="eager", device="cpu", layout=layout)

    engine = make_engine()
    expected = engine.evaluate(candidates).results.log_probability.tobytes()
    with products_set_to("medium"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.evaluate(candidates).results.log_probability.tobytes() == expected
        again = make_engine()
        assert again.info.score_error == engine.info.score_error
        assert again.evaluate(candidates).results.log_probability.tobytes() == expected
