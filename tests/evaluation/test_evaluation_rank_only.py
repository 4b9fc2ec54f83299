"""Only candidates that can affect a rank are proved, and the ranks of generated programs are those of all candidates."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from run_engines import ForeignEngine, countries_run, eager_pipeline

import kgverify as kv
from kgverify import Limits
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.rank_only import BLOCK_SIZE, DrawnCorruptions, RankOnly, build_rank_only
from kgverify.laws import draw_problems
from kgverify.program.outcomes import Outcome
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Part, Pipeline, Run, plan_parts
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import CandidateSet


def count_skipped(run: Run, pipeline: Pipeline) -> int:
    """Compare the ranks of a run with those of all its candidates, and count the candidates that were not proved."""
    candidates = pipeline.engine.prove(pipeline.draw_for(run)).candidates
    rankings = pipeline.rank(candidates, run.triples, RANK_TOLERANCE)
    found = evaluate(run, pipeline, EvaluationSettings(rank_only=True, part_size=10**9))
    assert found is not None
    (part,) = found.results.values()
    for name, expected, actual in zip(rankings._fields, rankings, part.rankings, strict=True):
        np.testing.assert_array_equal(actual, expected, err_msg=name)
    assert part.num_ranked.sum() == len(candidates.query)
    # Only corruptions that were listed have a hash.
    assert run.num_corruptions != ALL or not part.drawn.any()
    return int(part.num_ranked.sum()) - int(part.num_outcomes.sum())


@pytest.mark.sample(2)
@pytest.mark.parametrize("policy", ["shortest", "trained"])
@pytest.mark.parametrize("max_depth", [3, 20])
def test_the_ranks_of_countries_are_those_of_all_candidates(policy: str, max_depth: int):
    run = replace(countries_run(policy, num_queries=8, num_corruptions=20), limits=Limits(max_depth=max_depth))
    num_skipped = count_skipped(run, eager_pipeline(run, slots=64))
    assert num_skipped > 0 or (policy, max_depth) == ("shortest", 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_corruptions", [ALL, 1000])
def test_the_ranks_of_generated_programs_are_those_of_all_candidates(num_corruptions: int):
    # One at a time: in a merged program a variable of a head alone stands for the constants of all.
    problems = (each for each in draw_problems(31) if each.queries and len(each.domain) <= 8)
    skipped = []
    for problem in islice(problems, 30):
        run = merge([replace(problem, num_corruptions=num_corruptions)]).run
        skipped.append(count_skipped(run, eager_pipeline(run, slots=32)))
    assert sum(each > 0 for each in skipped) > 3
    assert 0 in skipped


class Given(NamedTuple):
    results: tuple[np.ndarray, ...]
    num_choices: int = 0
    num_rescored: int = 0
    smallest_gap: float = 0.0


class GivenEndings(ForeignEngine):
    """An engine that gives the true triple one ending, and every corruption another; it keeps what it was asked for."""

    def __init__(self, run: Run, ending: tuple[Outcome, float]) -> None:
        super().__init__(run)
        self._run, self._ending = run, ending
        self.asked: list[CandidateSet] = []

    def evaluate(self, candidates: CandidateSet, progress=lambda num: None) -> Given:
        self.asked.append(candidates)
        is_true = (candidates.atom == self._run.triples[candidates.query]).all(1)
        outcome = np.where(is_true, int(self._ending[0]), int(Outcome.FAILED))
        return Given((outcome, np.zeros(len(outcome)), np.where(is_true, self._ending[1], -1.0)))


class Model:
    """A least model of the atoms that a function accepts."""

    def __init__(self, contains: Callable[[np.ndarray], np.ndarray]) -> None:
        self.contains = contains


def prove_one_query(
    ending: tuple[Outcome, float], model: "Model | None"
) -> tuple[Part, list[CandidateSet], np.ndarray]:
    """Prove a query with a model, or with one that is never built."""
    run = countries_run(num_queries=1, num_corruptions=40)
    engine = GivenEndings(run, ending)
    pipeline = Pipeline(engine, draw_candidates, rank_candidates)
    (part,) = plan_parts(run, "cpu").parts
    built: Future[Model] = Future()
    if model is not None:
        built.set_result(model)
    work = RankOnly(run, pipeline, DrawnCorruptions(run, built), BLOCK_SIZE)
    drawn = work.draw(part)
    result = work.summarize(part, work.prove(part, drawn, lambda num: None))
    return part, engine.asked, result.num_outcomes.sum(1)


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
def test_all_candidates_are_proved_where_the_true_triple_is_not_clearly_above(
    outcome: Outcome, log_probability: float, is_all_needed: bool
):
    model = Model(lambda atoms: (atoms[:, 1] % 2 == 0) & (atoms[:, 2] % 2 == 0))
    part, asked, num_proved = prove_one_query((outcome, log_probability), None if is_all_needed else model)
    sizes = [len(each.query) for each in asked]
    # Both sides have the same true triple.
    assert (sizes[0], len(sizes)) == (1, 2)
    assert (num_proved.sum() == part.num_candidates) == is_all_needed
    assert num_proved.sum() == sum(sizes) + 1


def test_no_candidate_is_proved_twice():
    for outcome in (Outcome.FAILED, Outcome.PROVED):
        _, asked, _ = prove_one_query((outcome, -1.0), Model(lambda atoms: atoms[:, 2] % 3 == 0))
        rows = np.concatenate([np.column_stack(each) for each in asked])
        assert len(np.unique(rows, axis=0)) == len(rows)


def write_dense_graph(folder: Path) -> Path:
    """Write a graph whose least model takes far longer than its candidates."""
    random = np.random.default_rng(0)
    triples = [f"e{a}\tr{p}\te{b}\n" for p, a, b in random.integers(0, (8, 150, 150), (6000, 3)).tolist()]
    folder.mkdir()
    (folder / "train.txt").write_text("".join(triples[30:]))
    (folder / "test.txt").write_text("".join(triples[:30]))
    bodies = random.integers(0, 8, (600, 3)).tolist()
    (folder / "rules.txt").write_text("".join(f"r{h}(X, Y) :- r{a}(X, Z), r{b}(Z, Y).\n" for h, a, b in bodies))
    return folder


@pytest.mark.parametrize("corruptions", [20, "all"])
def test_a_least_model_that_costs_more_than_it_saves_is_given_up(tmp_path: Path, corruptions: int | str):
    engine, options = kv.Evaluator(device="cpu"), kv.EvaluationOptions(minimum={}, check=20)
    graph = kv.load_graph(write_dense_graph(tmp_path / "dense"))
    began = time.monotonic()
    whole = kv.evaluate(graph, engine, queries=10, corruptions=corruptions, options=options)
    seconds = time.monotonic() - began
    began = time.monotonic()
    options = replace(options, rank_only=True)
    ranks = kv.evaluate(graph, engine, queries=10, corruptions=corruptions, options=options)
    assert time.monotonic() - began < 2 * seconds + 5
    assert (ranks.metrics, ranks.outcomes, ranks.num_left_out) == (whole.metrics, whole.outcomes, 0)
    assert ranks.is_sound


def test_an_interruption_ends_the_least_model_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    graph = kv.load_graph(write_dense_graph(tmp_path / "dense"))
    run = Run(graph, num_queries=5, num_corruptions=ALL)
    monkeypatch.setattr(rank_only, "choose_most_work", lambda run, device: 1 << 60)
    work = build_rank_only(run, evaluator_pipeline(run))
    work.should_stop = lambda: True
    began = time.monotonic()
    (part,) = plan_parts(run, "cpu", 1 << 30, rank_only=True).parts
    drawn = work.draw(part)
    monkeypatch.setattr(rank_only, "ranks_above_unproved", lambda outcome, score: np.ones(len(outcome), np.bool_))
    with pytest.raises(KeyboardInterrupt):
        work.prove(part, drawn, lambda num: None)
    assert time.monotonic() - began < 30
