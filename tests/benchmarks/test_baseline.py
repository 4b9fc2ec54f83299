"""The baseline, where it computes resolvents at every step, takes the derivations of the evaluator that it is compared with."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from baseline.evaluator import PaddedEvaluator

from kgverify.engines.policy import SHORTEST, Policy, make_two_tower
from kgverify.engines.protocol import Results
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.program.program import Program
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.run import reference_pipeline
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import group_problems, merge
from kgverify.trace.model.columns import CandidateSet

pytestmark = pytest.mark.exhaustive


def evaluate(program: Program, limits: Limits, policy: Policy, candidates: CandidateSet) -> Results:
    layout = choose_layout(limits, slots=64)
    engine = CompiledEngine(program, limits, policy, mode="eager", device="cpu", layout=layout)
    return engine.evaluate(candidates).results


def evaluate_padded(
    program: Program, limits: Limits, policy: Policy, candidates: CandidateSet, *, slots: int, recomputes: bool = True
) -> Results:
    baseline = PaddedEvaluator(
        program,
        limits,
        policy,
        slots=slots,
        capacity=len(candidates.query),
        recomputes=recomputes,
        mode="eager",
        device="cpu",
    )
    return baseline.evaluate(candidates)


def assert_same(expected: Results, actual: Results) -> None:
    np.testing.assert_array_equal(actual.outcome, expected.outcome)
    np.testing.assert_array_equal(actual.is_limited, expected.is_limited)
    np.testing.assert_allclose(actual.log_probability, expected.log_probability, rtol=0, atol=1e-4)


@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_baseline_ends_every_candidate_of_countries_as_the_reference_does(policy: str):
    graph, limits = load_graph("countries"), Limits()
    weights = SHORTEST if policy == "shortest" else make_two_tower(graph.program, limits, seed=3)
    candidates = draw_candidates(graph, "test", range(4), 4, 0)
    padded = evaluate_padded(graph.program, limits, weights, candidates, slots=16)
    proved = ReferenceEngine(graph.program, limits, weights).prove(candidates).candidates
    expected = Results(proved.outcome.astype(np.int32), proved.is_limited.astype(np.bool_), proved.log_probability)
    assert_same(expected, padded)
    assert set(padded.outcome.tolist()) == {Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT}


def test_the_baseline_ends_the_candidates_of_generated_programs_as_the_evaluator_does():
    problems = list(islice(draw_problems(5), 160))
    outcomes: Counter[int] = Counter()
    num_limited = 0
    for places in group_problems(problems):
        merged = merge([problems[i] for i in places])
        run = merged.run
        candidates = merged.with_unranked(reference_pipeline(run)).draw_for(run)
        expected = evaluate(run.graph.program, run.limits, run.policy, candidates)
        padded = evaluate_padded(run.graph.program, run.limits, run.policy, candidates, slots=48)
        assert_same(expected, padded)
        outcomes.update(padded.outcome.tolist())
        num_limited += int(padded.is_limited.sum())
    assert min(outcomes[each] for each in (Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT)) > 20
    assert num_limited > 10


def test_the_number_of_slots_changes_no_result_of_the_baseline():
    graph, limits = load_graph("countries"), Limits()
    candidates = draw_candidates(graph, "test", range(3), 3, 1)
    few, many = (evaluate_padded(graph.program, limits, SHORTEST, candidates, slots=n) for n in (5, 40))
    assert_same(few, many)


def test_as_published_the_baseline_proves_next_to_nothing():
    graph, limits = load_graph("countries"), Limits()
    candidates = draw_candidates(graph, "test", range(4), 4, 0)
    results = evaluate_padded(graph.program, limits, SHORTEST, candidates, slots=16, recomputes=False)
    assert set(results.outcome.tolist()) == {Outcome.DEPTH_LIMIT}
    assert Outcome.PROVED in evaluate(graph.program, limits, SHORTEST, candidates).outcome
