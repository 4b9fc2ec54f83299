"""Derivations that can no longer affect a rank are stopped, where the recorded steps say so, and no rank changes."""

from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from run_engines import ForeignEngine, countries_run, needs_compiler, needs_data

from kgverify import Limits, UserError, load_graph
from kgverify.engines.protocol import STOPPED, Evaluation, Results
from kgverify.errors import InternalError
from kgverify.evaluation import rank_only
from kgverify.evaluation.evaluate import EvaluationSettings, evaluate
from kgverify.evaluation.judge import report_evaluation
from kgverify.evaluation.parts import PartResult, join_results, list_columns
from kgverify.evaluation.proving import ProcessGroup, Share
from kgverify.evaluation.rank_only import MARGIN, AllCorruptions, DrawnCorruptions, RankOnly, build_model
from kgverify.laws import draw_problems
from kgverify.program.outcomes import Outcome
from kgverify.progress import Progress, no_progress
from kgverify.prover.native.engine import NativeEngine
from kgverify.prover.program.least_model import LeastModel
from kgverify.ranking.draw import ALL, draw_candidates, number_atoms
from kgverify.ranking.rank import RANK_TOLERANCE, rank_candidates
from kgverify.runs.run import Pipeline, Run, load_policy, plan_parts
from kgverify.testing.problems.merge import merge
from kgverify.trace.model.columns import CandidateSet, Columns, starts_of


class Stopped(NamedTuple):
    """The ends of candidates, and the number of their steps."""

    outcome: NDArray[np.int64]
    is_limited: NDArray[np.bool_]
    log_probability: NDArray[np.float64]
    num_steps: NDArray[np.int64]


def stop_by_steps(columns: Columns, floor: NDArray[np.float64]) -> Stopped:
    """Add up the recorded scores of each derivation, as far as it is above its floor."""
    steps, starts = columns.steps, starts_of(columns.steps.num_resolvents.astype(np.int64))
    first = starts_of(columns.candidates.num_steps.astype(np.int64)).tolist()
    rows = []
    for i, lowest in enumerate(floor.tolist()):
        total, is_limited = 0.0, False
        for step in range(first[i], first[i + 1]):
            scores = columns.resolvents.score[starts[step] : starts[step + 1]].astype(np.float64)
            total -= float(np.log(np.exp(scores - scores[steps.choice[step]]).sum()))
            is_limited |= bool(steps.dropped_atoms[step] or steps.dropped_resolvents[step])
            outcome = int(steps.outcome[step])
            if outcome == Outcome.OPEN and total < lowest:
                outcome = STOPPED
                break
        rows.append((outcome, is_limited, total, step - first[i] + 1))
    return Stopped(*map(np.array, zip(*rows, strict=True)))


class FlooredEngine(ForeignEngine):
    """The reference with floors, each raised by some nats, which is wrong."""

    takes_floors = True

    def __init__(self, run: Run, raised: float = 0.0) -> None:
        super().__init__(run)
        self._raised = raised
        self.num_stopped = self.num_floored = 0

    def evaluate(
        self,
        candidates: CandidateSet,
        progress: Progress = no_progress,
        *,
        floor: NDArray[np.float64] | None = None,
    ) -> Evaluation:
        columns = self.prove(candidates, progress)
        lowest = np.full(len(candidates.query), -np.inf) if floor is None else floor + self._raised
        self.num_floored += floor is not None
        ended = stop_by_steps(columns, lowest)
        self.num_stopped += int((ended.outcome == STOPPED).sum())
        return Evaluation(Results(ended.outcome.astype(np.int32), ended.is_limited, ended.log_probability))


def native_pipeline(run: Run, *, takes_floors: bool = True) -> Pipeline:
    engine = NativeEngine(run.graph.program, run.limits, run.policy, threads=2)
    engine.takes_floors = takes_floors
    return Pipeline(engine, draw_candidates, rank_candidates)


@needs_compiler
@pytest.mark.parametrize("policy", ["shortest", "two_tower"])
def test_the_native_evaluator_stops_where_the_recorded_steps_fall_below_the_floor(policy: str):
    run = replace(countries_run(policy, num_queries=4), limits=Limits(max_depth=6, max_resolvents=9))
    engine = native_pipeline(run).engine
    candidates = draw_candidates(run.graph, "test", range(4), 60, seed=0)
    floor = -np.random.default_rng(0).exponential(5, len(candidates.query))
    floor[::7] = -np.inf
    columns = engine.prove(candidates)
    expected = stop_by_steps(columns, floor)
    found = engine.evaluate(candidates, floor=floor, has_digests=True)
    np.testing.assert_array_equal(found.results.outcome, expected.outcome)
    np.testing.assert_array_equal(found.results.is_limited, expected.is_limited)
    np.testing.assert_allclose(found.results.log_probability, expected.log_probability, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(found.digests.num_steps, expected.num_steps)
    assert {*found.results.outcome.tolist()} == {*map(int, Outcome), STOPPED} - {int(Outcome.OPEN)}
    is_stopped = found.results.outcome == STOPPED
    assert not is_stopped[::7].any()
    assert found.results.is_limited[is_stopped].any()
    assert (expected.num_steps < columns.candidates.num_steps).any()


@needs_compiler
def test_floors_that_nothing_is_below_change_nothing():
    run = countries_run("two_tower", num_queries=2)
    engine = native_pipeline(run).engine
    candidates = draw_candidates(run.graph, "test", range(2), 40, seed=0)
    whole = engine.evaluate(candidates)
    found = engine.evaluate(candidates, floor=np.full(len(candidates.query), -np.inf))
    for left, right in zip(found.results, whole.results, strict=True):
        np.testing.assert_array_equal(left, right)
    assert found[1:] == whole[1:]


def assert_same_ranks(run: Run) -> int:
    """Compare the ranks with and without floors with those of all candidates, and count the stopped ones."""
    every, ranked, floored = (
        join_results(evaluate(run, pipeline, EvaluationSettings(rank_only=is_ranking, part_size=1000)).results.values())
        for pipeline, is_ranking in (
            (native_pipeline(run), False),
            (native_pipeline(run, takes_floors=False), True),
            (native_pipeline(run), True),
        )
    )
    for name in ("query", "side", "num_ranked", "optimistic", "pessimistic", "outcome", "log_probability"):
        np.testing.assert_array_equal(getattr(ranked, name), getattr(every, name), err_msg=name)
        np.testing.assert_array_equal(getattr(floored, name), getattr(every, name), err_msg=name)
    assert (floored.num_outcomes <= ranked.num_outcomes).all()
    assert (floored.num_limited <= ranked.num_limited).all()
    np.testing.assert_array_equal(floored.num_outcomes[:, Outcome.PROVED], ranked.num_outcomes[:, Outcome.PROVED])
    assert floored.sample.candidates.outcome.max() < STOPPED
    return int(ranked.num_outcomes.sum()) - int(floored.num_outcomes.sum())


@needs_compiler
@pytest.mark.parametrize("policy", ["shortest", "two_tower", "trained"])
@pytest.mark.parametrize("max_depth", [3, 20])
def test_the_ranks_of_countries_are_those_without_floors(policy: str, max_depth: int):
    run = replace(countries_run(policy, num_queries=12, num_corruptions=ALL), limits=Limits(max_depth=max_depth))
    assert assert_same_ranks(run) > 0


@needs_compiler
def test_the_ranks_of_random_graphs_are_those_without_floors():
    stopped = []
    for seed, policy in ((0, "two_tower"), (1, "two_tower"), (3, "shortest"), (4, "two_tower")):
        graph, limits = load_graph(f"random:{seed}"), Limits(max_depth=6)
        run = Run(graph, limits, load_policy(policy, graph, limits, seed), num_queries=9, num_corruptions=ALL)
        stopped.append(assert_same_ranks(run))
    assert sum(each > 0 for each in stopped) == 3


@needs_compiler
def test_the_ranks_of_generated_programs_are_those_without_floors():
    problems = (each for each in draw_problems(77) if each.queries)
    runs = (merge([replace(each, num_corruptions=ALL)]).run for each in islice(problems, 60))
    assert sum(assert_same_ranks(run) > 0 for run in runs) > 3


@needs_compiler
@needs_data
@pytest.mark.data
@pytest.mark.parametrize(("policy", "num_queries"), [("shortest", 4), ("two_tower", 7)])
def test_the_ranks_of_family_are_those_without_floors(policy: str, num_queries: int):
    graph = load_graph("family")
    run = Run(graph, policy=load_policy(policy, graph, Limits(), 0), num_queries=num_queries, num_corruptions=ALL)
    assert assert_same_ranks(run) > 0


def evaluate_floored(run: Run) -> tuple[PartResult, bool]:
    engine = FlooredEngine(run)
    pipeline = Pipeline(engine, draw_candidates, rank_candidates)
    found = evaluate(run, pipeline, EvaluationSettings(rank_only=True, part_size=1000))
    assert engine.num_stopped > 0
    return join_results(found.results.values()), report_evaluation(run, found, pipeline, num_checked=4000).is_sound


def test_a_floor_that_is_too_high_is_found_by_the_check(monkeypatch: pytest.MonkeyPatch):
    run = replace(countries_run(num_queries=8, num_corruptions=ALL), limits=Limits(max_depth=3))
    right, is_sound = evaluate_floored(run)
    monkeypatch.setattr(rank_only, "MARGIN", -2.0)
    wrong, is_still_sound = evaluate_floored(run)
    assert (is_sound, is_still_sound) == (True, False)
    assert (wrong.pessimistic != right.pessimistic).any()


def test_an_engine_that_stops_above_a_floor_is_refused():
    run = replace(countries_run(num_queries=8, num_corruptions=ALL), limits=Limits(max_depth=3))
    pipeline = Pipeline(FlooredEngine(run, raised=0.5), draw_candidates, rank_candidates)
    with pytest.raises(InternalError, match="not below its floor"):
        evaluate(run, pipeline, EvaluationSettings(rank_only=True))


def test_the_floor_is_below_the_lowest_true_triple():
    run = replace(countries_run(num_queries=24, num_corruptions=ALL), limits=Limits(max_depth=3))
    model: Future[LeastModel] = Future()
    model.set_result(build_model(run, "cpu"))
    (part,) = plan_parts(run, "cpu", 10**9, rank_only=True).parts
    source = AllCorruptions(run, model, 700)
    drawn = source.draw(part)
    groups = np.arange(len(drawn.query))
    score = -100.0 - np.random.default_rng(1).exponential(3, len(groups))
    num_shared = num_rows = num_spared = 0
    blocks = list(source.draw_blocks(drawn, groups > 0, score, Share(ProcessGroup(), 0)))
    # Those of the first query and side come last, without floors.
    assert [each.floor is None for each in blocks] == [*([False] * (len(blocks) - 1)), True]
    assert blocks[-1].groups.tolist() == [0]
    assert sorted(np.concatenate([each.groups for each in blocks]).tolist()) == groups.tolist()
    for block in blocks[:-1]:
        lowest = np.array([score[block.groups[block.kind == i]].min() for i in range(len(block.num))])
        num_shared += len(block.groups) - len(block.num)
        expected = np.repeat(lowest + 100 - RANK_TOLERANCE - MARGIN, block.num)
        is_spared = np.isneginf(block.floor)
        np.testing.assert_allclose(block.floor[~is_spared], expected[~is_spared], rtol=0, atol=1e-12)
        num_rows, num_spared = num_rows + len(expected), num_spared + int(is_spared.sum())
        numbers = number_atoms(block.candidates.atom, len(run.graph.program.symbols.constants))
        assert len(np.unique(numbers * 2 + block.candidates.side)) == len(numbers)
    assert num_shared > 0
    assert 0 < num_spared <= 256 < num_rows


def test_what_follows_is_proved_to_its_end_also_where_it_was_stopped():
    ended: list[tuple[bytes, int]] = []

    class Remembering(FlooredEngine):
        def evaluate(self, candidates, progress=no_progress, *, floor=None):
            found = super().evaluate(candidates, progress, floor=floor)
            rows = np.column_stack((candidates.side, candidates.atom))
            ended.extend(zip(map(bytes, rows), found.results.outcome.tolist(), strict=True))
            return found

    run = replace(countries_run("two_tower", num_queries=24, num_corruptions=ALL), limits=Limits(max_depth=3))
    evaluate(run, Pipeline(Remembering(run), draw_candidates, rank_candidates), EvaluationSettings(rank_only=True))
    model, last = build_model(run, "cpu"), dict(ended)
    atoms = np.array([np.frombuffer(row, np.int32)[1:] for row in last])
    follows = dict(zip(last, model.contains(atoms).tolist(), strict=True))
    assert any(outcome == STOPPED and follows[row] for row, outcome in ended)
    assert {STOPPED} < {outcome for row, outcome in last.items() if not follows[row]}
    assert STOPPED not in {outcome for row, outcome in last.items() if follows[row]}


class LateModel(FlooredEngine):
    """An engine that gives the least model when it has proved the corruptions of a number of blocks."""

    def __init__(self, run: Run, model: "Future[LeastModel]", num_blocks: int) -> None:
        super().__init__(run)
        self._run, self._model, self._num_left = run, model, num_blocks

    def evaluate(self, *given: Any, **options: Any) -> Evaluation:
        # The true triples come first.
        if self._num_left == 0:
            self._model.set_result(build_model(self._run, "cpu"))
        self._num_left -= 1
        return super().evaluate(*given, **options)


@pytest.mark.parametrize("num_corruptions", [ALL, 9])
def test_corruptions_of_what_is_not_proved_do_not_wait_for_the_model_and_no_result_depends_on_its_time(
    num_corruptions: int,
):
    run = countries_run(num_queries=24, num_corruptions=num_corruptions)
    run = replace(run, limits=Limits(max_depth=3))
    (part,) = plan_parts(run, "cpu", 10**9, rank_only=True).parts
    early: Future[LeastModel] = Future()
    early.set_result(build_model(run, "cpu"))
    late: Future[LeastModel] = Future()
    results, num_stopped, num_floored = [], [], []
    for model in (early, late):
        engine = LateModel(run, late, max(1, num_floored[0])) if num_floored else FlooredEngine(run)
        source = AllCorruptions(run, model, 700) if num_corruptions == ALL else DrawnCorruptions(run, model)
        work = RankOnly(run, Pipeline(engine, draw_candidates, rank_candidates), source, 700)
        results.append(work.summarize(part, work.prove(part, work.draw(part), no_progress)))
        num_stopped.append(engine.num_stopped)
        num_floored.append(engine.num_floored)
    for (name, left), right in zip(list_columns(results[0]).items(), list_columns(results[1]).values(), strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)
    assert num_stopped[0] == num_stopped[1]
    assert (num_stopped[0] > 0) == (num_floored[0] > 1) == (num_corruptions == ALL)


def test_a_model_that_is_too_large_ends_the_work_before_the_other_corruptions_are_proved():
    run = replace(countries_run(num_queries=24, num_corruptions=ALL), limits=Limits(max_depth=3))
    (part,) = plan_parts(run, "cpu", 10**9, rank_only=True).parts
    num_floored = []
    for is_small in (True, False):
        model: Future[LeastModel] = Future()
        if is_small:
            model.set_result(build_model(run, "cpu"))
        else:
            model.set_exception(UserError("too large", where="--rank-only"))
        engine = FlooredEngine(run)
        work = RankOnly(run, Pipeline(engine, draw_candidates, rank_candidates), AllCorruptions(run, model, 700), 700)
        with nullcontext() if is_small else pytest.raises(UserError, match="too large"):
            work.prove(part, work.draw(part), no_progress)
        num_floored.append(engine.num_floored)
    assert 0 < num_floored[1] < num_floored[0]


def test_an_engine_that_stops_a_derivation_without_a_floor_is_refused():
    class Stopping(FlooredEngine):
        def evaluate(self, candidates, progress=no_progress, *, floor=None):
            return super().evaluate(candidates, progress, floor=np.full(len(candidates.query), -0.5))

    run = replace(countries_run(num_queries=8, num_corruptions=ALL), limits=Limits(max_depth=3))
    pipeline = Pipeline(Stopping(run), draw_candidates, rank_candidates)
    with pytest.raises(InternalError, match="not below its floor"):
        evaluate(run, pipeline, EvaluationSettings(rank_only=True))
