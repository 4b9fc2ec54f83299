"""The Triton kernels against the stages that they stand in for; without a GPU in Triton's interpreter."""

from itertools import islice

import numpy as np
import pytest
import torch

from kgverify.engines.compiled import kernels as plain
from kgverify.engines.compiled.choose import build_parameters, score_two_tower
from kgverify.engines.compiled.engine import CompiledEngine
from kgverify.engines.compiled.kernels import Kernels
from kgverify.engines.compiled.precision import draw_goals
from kgverify.engines.policy import make_two_tower
from kgverify.errors import UserError
from kgverify.fuzz.decode import draw_problems
from kgverify.fuzz.merge import group_problems, merge
from kgverify.fuzz.pipelines import compiled_maker
from kgverify.kg.load import load_graph
from kgverify.logic.limits import Limits

pytest.importorskip("triton", reason="Triton is not installed")

from kgverify.engines.compiled.item_ops import build_item_kernels, can_run
from kgverify.engines.compiled.tower_kernels import PRECISIONS, build_tower_parameters, build_tower_score

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MOST_VARIABLES = 14


def test_the_item_kernels_give_what_the_stages_give() -> None:
    """On every window of every tick of generated problems."""
    problems = list(islice(draw_problems(5, 0), 32))
    num_matches = num_proofs = num_visited = num_rows = num_runs = 0
    for group in group_problems(problems):
        merged = merge([problems[i] for i in group])
        pipeline = compiled_maker(device=DEVICE.type)(merged.run, merged.sizes)
        engine = pipeline.engine
        assert isinstance(engine, CompiledEngine)
        if not can_run(engine.layout.atoms, MOST_VARIABLES):
            continue
        kernels = build_item_kernels(merged.run.limits.exclude_query)

        def try_items(setting, tables, derivations, items):  # type: ignore[no-untyped-def]
            nonlocal num_matches, num_proofs, num_visited
            expected = plain.try_items(setting, tables, derivations, items)
            actual = kernels.try_items(setting, tables, derivations, items)  # noqa: B023
            matches = expected[0] & items.is_live
            assert torch.equal(matches, actual[0])
            assert torch.equal(expected[1][matches], actual[1][matches].long())
            is_goal = matches & (expected[1] > 0)
            assert torch.equal(expected[2][is_goal], actual[2][is_goal])
            num_matches += int(matches.sum())
            num_proofs += int((matches & (expected[1] == 0)).sum())
            num_visited += int((is_goal & ~expected[2]).sum())
            return expected

        def form_atoms(setting, tables, derivations, items):  # type: ignore[no-untyped-def]
            nonlocal num_rows
            expected = plain.form_atoms(setting, tables, derivations, items)
            assert torch.equal(expected, kernels.form_atoms(setting, tables, derivations, items))  # noqa: B023
            num_rows += int(items.is_live.sum())
            return expected

        engine._setting = engine._setting._replace(kernels=Kernels(try_items, form_atoms))
        engine._tick = engine._compile_tick()
        engine.prove(pipeline.draw_for(merged.run))
        num_runs += 1
    assert min(num_matches, num_rows) > 200
    assert min(num_proofs, num_visited, num_runs) > 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_tower_kernel_scores_as_the_stage_does_to_its_precision(precision: str) -> None:
    graph, limits = load_graph("countries"), Limits()
    policy = make_two_tower(graph.program, limits, seed=1, embedding=50, hidden=64, blocks=2)
    goals = draw_goals(policy, limits.max_atoms, 0, DEVICE)[:100]
    resolvents = draw_goals(policy, limits.max_atoms, 1, DEVICE)[:130]
    slot = torch.arange(130, device=DEVICE) % 100
    exact = score_two_tower(build_parameters(policy, DEVICE, torch.float64), goals, resolvents, slot)
    parameters = build_tower_parameters(policy, precision, DEVICE)
    scores = build_tower_score(precision)(parameters, goals, resolvents, slot)
    bound = {"float32": 1e-5, "tf32": 2e-2, "bf16x3": 3e-4, "bf16": 0.1}[precision]
    assert (scores - exact).abs().max() < bound
    if precision == "bf16":
        assert (scores - exact).abs().max() > 1e-3


def test_a_precision_that_needs_a_gpu_is_refused_without_one() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    graph, limits = load_graph("countries"), Limits()
    policy = make_two_tower(graph.program, limits, seed=1)
    with pytest.raises(UserError, match="needs a CUDA device"):
        CompiledEngine(graph.program, limits, policy, mode="eager", precision="bf16x3")
    with pytest.raises(UserError, match="unknown precision"):
        CompiledEngine(graph.program, limits, policy, mode="eager", precision="fp8")


@pytest.mark.parametrize("slots", [3, 64])
def test_an_evaluation_ends_every_candidate_as_a_proof_with_steps_does(slots: int) -> None:
    problems = list(islice(draw_problems(9, 0), 40))
    for problem in problems:
        merged = merge([problem])
        pipeline = compiled_maker()(merged.run, merged.sizes._replace(slots=slots))
        candidates = pipeline.draw_for(merged.run)
        ended = []
        results = pipeline.engine.evaluate(candidates, ended.append).results
        expected = pipeline.engine.prove(candidates).candidates
        assert results.outcome.tolist() == expected.outcome.tolist()
        assert results.is_limited.tolist() == expected.is_limited.tolist()
        np.testing.assert_array_equal(results.log_probability, expected.log_probability)
        assert sum(ended) == len(candidates.query)
