"""The check of an evaluation: what is wrong in draw, model, parts, ranks or metrics is found, and named by a candidate."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import altered_results
import numpy as np
import pytest
from run_engines import countries_run, eager_pipeline, needs_data

from kgverify import KnowledgeGraph, Limits, load_graph
from kgverify.comparison.exercise.exercise import MINIMUM, Minimum
from kgverify.errors import InternalError
from kgverify.evaluation import judge, rank_only
from kgverify.evaluation.evaluate import EvaluationResult, EvaluationSettings, evaluate
from kgverify.evaluation.judge import (
    ComparedRanking,
    Figure,
    choose_single,
    hash_results,
    report_evaluation,
    word_outcome,
)
from kgverify.evaluation.parts import PartResult, identify, join_results
from kgverify.program.atoms import NamedAtom
from kgverify.program.outcomes import Outcome
from kgverify.prover.program.least_model import LeastModel
from kgverify.ranking import draw
from kgverify.ranking.draw import ALL
from kgverify.report.evaluation import EvaluationReport
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Run, load_policy, plan_parts


def report(
    run: Run,
    change: Callable[[EvaluationResult], None] | None = None,
    minimum: Minimum = MINIMUM,
    **options: object,
) -> EvaluationReport:
    pipeline = eager_pipeline(run, slots=256)
    found = evaluate(run, pipeline, EvaluationSettings(part_size=30, **options))
    assert found is not None
    if change is not None:
        change(found)
    return report_evaluation(run, found, pipeline, minimum=minimum)


def change_column(name: str, row: int, change: Callable[[np.ndarray], object]) -> Callable[[EvaluationResult], None]:
    """Change one value of the last part."""

    def apply(found: EvaluationResult) -> None:
        number = max(found.results)
        part = found.results[number]
        column = getattr(part, name).copy()
        column[row] = change(column[row])
        found.results[number] = part._replace(**{name: column})

    return apply


@pytest.mark.sample(2)
@pytest.mark.parametrize("rank_only", [False, True])
@pytest.mark.parametrize("num_corruptions", [9, ALL])
def test_a_sound_evaluation_is_checked_whole_if_it_is_small(num_corruptions: int, rank_only: bool):
    found = report(countries_run(num_queries=4, num_corruptions=num_corruptions), rank_only=rank_only)
    check = found.check
    assert check is not None
    assert found.is_sound
    assert (check.rankings.num_checked, check.rankings.num_equal, check.rankings.num_near_ties) == (8, 8, 0)
    assert (check.rankings.strength.chance, check.rankings.strength.share) == (1.0, 1 / 8)
    assert (check.model is not None) == rank_only
    if check.model is not None:
        assert (check.model.num_missing, check.model.num_unsupported, check.model.is_complete) == (0, 0, True)


def test_the_results_alone_select_the_sample():
    run = countries_run(num_queries=4, num_corruptions=9)
    found = [evaluate(run, eager_pipeline(run), EvaluationSettings(part_size=30)) for _ in range(2)]
    assert hash_results(found[0]) == hash_results(found[1])
    change_column("optimistic", 0, lambda rank: rank + 1)(found[1])
    assert hash_results(found[0]) != hash_results(found[1])


@pytest.mark.sample(2, deep=3)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("optimistic", lambda rank: rank + 1),
        ("pessimistic", lambda rank: rank + 1),
        ("num_ranked", lambda num: num + 1),
        ("drawn", lambda hashed: hashed ^ np.uint64(1)),
        ("outcome", lambda outcome: outcome % 3 + 1),
        ("log_probability", lambda value: value - 1e-3),
        ("num_outcomes", lambda counts: np.roll(counts, 1)),
        ("num_limited", lambda num: num + 1),
    ],
)
def test_a_wrong_value_of_one_ranking_is_found(name: str, change: Callable[[np.ndarray], object]):
    found = report(countries_run(num_queries=4, num_corruptions=9), change_column(name, -1, change))
    assert not found.is_sound
    assert found.check is not None
    assert (found.check.rankings.num_equal, found.check.rankings.num_near_ties) == (7, 0)
    assert found.check.differences[-1].query == 3


def test_few_candidates_of_a_wrong_ranking_are_proved_again(monkeypatch: pytest.MonkeyPatch):
    right, proved = judge.prove_candidates, []

    def record(engine: Any, candidates: Any) -> Any:
        proved.append(len(candidates.query))
        return right(engine, candidates)

    monkeypatch.setattr(judge, "_MOST_REPEATED", 3)
    monkeypatch.setattr(judge, "prove_candidates", record)
    change = change_column("optimistic", -1, lambda rank: rank + 1)
    assert not report(countries_run(num_queries=1, num_corruptions=9), change).is_sound
    # Two of the sample, then those of the wrong ranking.
    assert proved == [1, 1, 3]


@pytest.mark.parametrize(
    ("counts", "altered"),
    [
        # Open, proved, failed, and ended by the limit of the depth.
        ([0, 1, 0, 0], [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]),
        ([0, 0, 1, 0], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]),
        ([0, 0, 2, 0], [[1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 1, 1]]),
    ],
)
def test_the_counts_of_outcomes_are_altered_at_the_cost_of_the_largest(counts: list[int], altered: list[list[int]]):
    run = countries_run(num_queries=1, num_corruptions=0)
    found = evaluate(run, eager_pipeline(run))
    assert found is not None
    results = found.results[0]._replace(num_outcomes=np.array([counts, counts], np.uint32))
    ranks = [Figure(f"{name} rank", 1, 1, 1, 1) for name in ("optimistic", "pessimistic")]
    unbounded = Figure("log-probability of the true triple", 0, 0, 0, np.inf)
    counted = [
        Figure(f"candidates {word_outcome(outcome)}", num, num, num, num)
        for outcome, num in zip(Outcome, counts, strict=True)
    ]
    made = altered_results._alter(results, 0, ComparedRanking(cast(Any, None), [*ranks, unbounded, *counted]))
    assert [each.num_outcomes[0].tolist() for name, each in made if name == "num_outcomes"] == altered
    # Of the true triple, an outcome and both directions of its log-probability are altered where it is bounded.
    bounded = unbounded._replace(high=0)
    names = Counter(
        name for name, _ in altered_results._alter(results, 0, ComparedRanking(cast(Any, None), [*ranks, bounded]))
    )
    names.pop("drawn", None)
    assert names == {"num_ranked": 1, "optimistic": 2, "pessimistic": 2, "outcome": 1, "log_probability": 2}


@pytest.mark.parametrize(("num", "num_true"), [(5, 2), (6, 3), (40, 8)])
def test_half_of_the_single_candidates_are_true_if_there_are_enough(num: int, num_true: int):
    run = countries_run(num_queries=4, num_corruptions=9)
    found = evaluate(run, eager_pipeline(run))
    assert found is not None
    sample = choose_single(found.results[0], hash_results(found), num)
    assert (len(sample.is_true), int(sample.is_true.sum())) == (num, num_true)


def test_an_evaluation_without_a_check_is_reported():
    run = countries_run(num_queries=1, num_corruptions=0)
    pipeline = eager_pipeline(run)
    found = evaluate(run, pipeline)
    assert found is not None
    unchecked = report_evaluation(run, found, pipeline, num_checked=0, minimum={})
    assert unchecked.check is None
    assert list(unchecked.outcomes) == ["proved", "failed", "depth_limit", "open"]
    assert unchecked.is_sound
    assert not report_evaluation(run, found, pipeline, num_checked=0).is_sound


def test_a_lost_query_is_found():
    def lose(found: EvaluationResult) -> None:
        number = max(found.results)
        found.results[number] = PartResult(
            *(each[:-2] for each in found.results[number][:-2]), *found.results[number][-2:]
        )

    found = report(replace(countries_run(num_queries=5, num_corruptions=9)), lose)
    assert not found.is_sound
    assert "10 rankings were asked for and 8 were computed; the first: query 4, side 0" in found.wrong_figures[0]


def test_wrong_metrics_are_found(monkeypatch: pytest.MonkeyPatch):
    right = judge.compute_metrics
    monkeypatch.setattr(judge, "compute_metrics", lambda rankings: right(rankings) | {"both.realistic.hits_at_3": 0.25})
    found = report(countries_run(num_queries=2, num_corruptions=9))
    assert not found.is_sound
    assert found.wrong_figures[0].startswith("both.realistic.hits_at_3 is 0.25, by the reference ")


@pytest.mark.parametrize(
    ("graph", "num_corruptions"),
    [
        pytest.param("countries_s3", 20, marks=needs_data),
        pytest.param("countries_s3", ALL, marks=needs_data),
        pytest.param("random:3", 20, marks=pytest.mark.exhaustive),
    ],
)
def test_an_atom_that_the_least_model_lacks_is_found(monkeypatch: pytest.MonkeyPatch, graph: str, num_corruptions: int):
    class Lacking(LeastModel):
        """The facts alone."""

        def _apply(self, rules):
            return False

    run = Run(load_graph(graph), Limits(max_depth=6), num_queries=2, num_corruptions=num_corruptions)
    monkeypatch.setattr(rank_only, "build_model", lambda run, device, *_: Lacking(run.graph.program, device=device))
    found = report(run, rank_only=True)
    assert not found.is_sound
    assert found.check is not None
    assert found.check.model is not None
    assert found.check.model.num_missing > 0
    if graph == "countries_s3":
        assert found.check.differences[0].actual == "not in the least model"
        assert found.check.differences[0].expected.startswith("proved")


@pytest.mark.parametrize("bits", [32, 8])
def test_a_draw_that_shortens_the_seed_is_found(monkeypatch: pytest.MonkeyPatch, bits: int):
    right = draw.draw_candidates
    run = replace(countries_run(num_queries=2, num_corruptions=9), seed=2**40 + 300)
    pipeline = eager_pipeline(run, slots=256)._replace(
        draw=lambda graph, split, queries, num, seed: right(graph, split, queries, num, seed % 2**bits)
    )
    found = evaluate(run, pipeline, EvaluationSettings(part_size=30))
    assert found is not None
    checked = report_evaluation(run, found, pipeline)
    assert not checked.is_sound
    assert checked.check is not None
    assert {each.actual for each in checked.check.differences} >= {"not drawn"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("rank_only", [False, True])
def test_errors_of_scores_within_their_bounds_are_no_difference(rank_only: bool):
    graph = load_graph("countries")
    run = Run(graph, policy=load_policy("two_tower", graph, Limits(), 0), num_queries=3, num_corruptions=30)
    found = report(run, rank_only=rank_only)
    assert found.is_sound
    assert found.check is not None
    assert found.check.rankings.num_checked == 6


@pytest.mark.deep
def test_queries_beyond_255_and_few_corruptions_are_checked():
    rng = random.Random(3)
    train, test = (
        tuple(NamedAtom("p", f"c{rng.randrange(40)}", f"c{rng.randrange(40)}") for _ in range(num))
        for num in (300, 400)
    )
    graph = KnowledgeGraph("many", train=train, valid=(), test=test)
    run = Run(graph, Limits(max_depth=2), num_queries=10**6, num_corruptions=1, seed=2**33)
    assert len(run.queries) > 256
    # A graph without rules exercises little.
    found = report(run, minimum={})
    assert found.is_sound
    assert found.num_rankings == 2 * len(run.queries)


def test_every_altered_value_of_a_sample_is_found(monkeypatch: pytest.MonkeyPatch):
    run = countries_run(num_queries=2, num_corruptions=9)
    calls: dict[str, list[Any]] = {"compare_single": [], "compare_rankings": []}

    def watch(name: str):
        right = getattr(judge.Judge, name)

        def compare(self, *given):
            calls[name].append((self, given, right(self, *given)))
            return calls[name][-1][-1]

        monkeypatch.setattr(judge.Judge, name, compare)

    for name in calls:
        watch(name)
    report(run)
    monkeypatch.undo()
    by, (sample,), compared = calls["compare_single"][0]
    assert altered_results.find_altered_candidates(by, sample, compared) == 8
    by, (_, ranks), rankings = calls["compare_rankings"][0]
    assert altered_results.find_altered_rankings(by, rankings, ranks) > 10


def test_a_check_that_chooses_no_ranking_where_the_largest_is_small_enough_is_a_bug(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(judge, "choose_rankings", lambda *given: ([], []))
    run = countries_run(num_queries=1, num_corruptions=3)
    pipeline = eager_pipeline(run)
    found = evaluate(run, pipeline)
    assert found is not None
    # Four of the eight candidates are single ones, and a ranking has four.
    with pytest.raises(InternalError, match="the check chose no ranking"):
        judge.check_evaluation(run, pipeline, found, join_results(found.results.values()), 8)


def test_every_property_of_a_run_belongs_to_its_identity():
    run = countries_run(num_queries=2, num_corruptions=5)
    other = load_graph("random:3")
    limits = [Limits(**change) for change in ({"max_depth": 3}, {"max_atoms": 3}, {"max_resolvents": 9})]
    runs = [
        run,
        replace(run, graph=other),
        replace(run, seed=2**32),
        replace(run, num_queries=3),
        replace(run, num_corruptions=6),
        replace(run, split="valid"),
        replace(run, policy=load_policy("two_tower", run.graph, run.limits, 0)),
        replace(run, policy=load_policy("two_tower", run.graph, run.limits, 1)),
        *(replace(run, limits=each) for each in [*limits, Limits(exclude_query=False)]),
    ]
    engines = [eager_pipeline(each).engine for each in runs]
    found = [identify(each, engine, plan_parts(each, "cpu"), {}) for each, engine in zip(runs, engines, strict=True)]
    plans = plan_parts(run, "cpu", 10), plan_parts(run, "cpu", rank_only=True)
    found += [identify(run, engines[0], plan, {}) for plan in plans]
    faulty = evaluator_pipeline(run, faults=["fact-cap"], mode="eager", device="cpu")
    found.append(identify(run, faulty.engine, plan_parts(run, "cpu"), {}))
    assert len({each.sha256 for each in found}) == len(found) == 15
