"""Ranks with and without the candidates that cannot matter for them are the same."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from run_engines import countries_run, eager_pipeline, needs_data

from kgverify.engines.compiled.program.least_model import LeastModel
from kgverify.engines.policy import make_two_tower
from kgverify.evaluation.rank_only import RankedOnly, evaluate_for_ranks, rank_only
from kgverify.graphs.load import load_graph
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome
from kgverify.ranking.corrupt import ALL
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import Candidates, CandidateSet, Rankings


def rank_in_full(run: Run, pipeline: Pipeline) -> tuple[Candidates, Rankings | None]:
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    return candidates, pipeline.rank_finite(run, candidates)


def assert_same_ranks(run: Run, pipeline: Pipeline) -> tuple[Candidates, RankedOnly]:
    candidates, rankings = rank_in_full(run, pipeline)
    ranked = rank_only(run, pipeline)
    assert rankings is not None
    assert ranked.rankings is not None
    for name, expected, actual in zip(rankings._fields, rankings, ranked.rankings, strict=True):
        np.testing.assert_array_equal(actual, expected, err_msg=name)
    assert ranked.num_candidates == len(candidates.query)
    return candidates, ranked


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", ["shortest", "trained"])
@pytest.mark.parametrize("max_depth", [3, 20])
def test_the_ranks_of_countries_are_those_of_all_candidates(policy: str, max_depth: int):
    run = replace(countries_run(policy, num_queries=8, num_corruptions=20), limits=Limits(max_depth=max_depth))
    candidates, ranked = assert_same_ranks(run, eager_pipeline(run, slots=64))
    assert ranked.num_skipped < ranked.num_candidates
    assert ranked.num_skipped > 0 or (policy, max_depth) == ("shortest", 3)
    assert (candidates.outcome == Outcome.PROVED).any()


def test_the_ranks_of_generated_programs_are_those_of_all_candidates():
    # One at a time: in a merged program a variable of a head alone stands for the constants of all.
    problems = (each for each in draw_problems(31) if each.queries and len(each.domain) <= 8)
    skipped = []
    for problem in islice(problems, 30):
        run = merge([replace(problem, num_corruptions=ALL)]).run
        _, ranked = assert_same_ranks(run, eager_pipeline(run, slots=32))
        skipped.append(ranked.num_skipped)
    assert sum(each > 0 for each in skipped) > 3
    assert 0 in skipped


def evaluate_outcomes(outcomes: dict[int, tuple[Outcome, float]], told: list[int]):
    """An evaluator of candidates by their second argument; it tells which ones it was given."""

    class Ended:
        def __init__(self, candidates: CandidateSet) -> None:
            seconds = candidates.atom[:, 2].tolist()
            told.extend(seconds)
            columns = zip(*(outcomes[second] for second in seconds), strict=True)
            outcome, log_probability = (np.array(column) for column in columns)
            self.results = (outcome.astype(np.int32), np.zeros(len(seconds), np.bool_), log_probability)

    return Ended


def candidates_with(seconds: list[int]) -> tuple[CandidateSet, np.ndarray]:
    atoms = np.array([(0, 0, second) for second in seconds], np.int32)
    return CandidateSet(np.zeros(len(atoms), np.int32), np.ones(len(atoms), np.int8), atoms), atoms[:1]


@pytest.mark.parametrize(
    ("outcome", "log_probability", "is_all_needed"),
    [
        (Outcome.PROVED, -3.0, False),
        (Outcome.PROVED, -99.9, False),
        (Outcome.PROVED, -100.0, True),
        (Outcome.PROVED, -140.0, True),
        (Outcome.FAILED, 0.0, True),
        (Outcome.DEPTH_LIMIT, -3.0, True),
    ],
)
def test_all_candidates_are_run_where_the_true_triple_is_not_clearly_above(
    outcome: Outcome, log_probability: float, is_all_needed: bool
):
    candidates, triples = candidates_with([1, 2, 3, 4])
    ends = {1: (outcome, log_probability)} | dict.fromkeys((2, 3, 4), (Outcome.FAILED, -1.0))
    told: list[int] = []

    def follows(atoms: np.ndarray) -> np.ndarray:
        return atoms[:, 2] <= 2

    evaluated = evaluate_for_ranks(evaluate_outcomes(ends, told), follows, candidates, triples)
    assert told == ([1, 2, 3, 4] if is_all_needed else [1, 2])
    assert evaluated.is_run.tolist() == [True, True, is_all_needed, is_all_needed]


def test_nothing_is_run_twice_and_nothing_of_a_query_without_its_true_triple():
    candidates, triples = candidates_with([1, 2, 3])
    told: list[int] = []
    ends = dict.fromkeys((1, 2, 3), (Outcome.FAILED, -1.0))

    def follows(atoms: np.ndarray) -> np.ndarray:
        return np.zeros(len(atoms), np.bool_)

    evaluate_for_ranks(evaluate_outcomes(ends, told), follows, candidates, triples)
    assert told == [1, 2, 3]
    evaluate_for_ranks(evaluate_outcomes(ends, told), follows, candidates.take(slice(1, 3)), triples)
    assert told == [1, 2, 3]


@pytest.mark.deep
@needs_data
@pytest.mark.data
@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_ranks_of_family_are_those_of_all_candidates(policy: str):
    graph = load_graph("family")
    run = Run(graph, num_queries=6, num_corruptions=20)
    if policy == "two_tower":
        run = replace(run, policy=make_two_tower(graph.program, run.limits, seed=0))
    pipeline = eager_pipeline(run, slots=128)
    _, ranked = assert_same_ranks(run, pipeline)
    model = LeastModel(graph.program, device="cpu")
    again = rank_only(run, pipeline, model, pipeline.draw_for(run))
    assert again.num_skipped == ranked.num_skipped
    if policy == "shortest":
        assert ranked.num_skipped > 0
