"""The reference's work over threads, processes and machines: the same traces, in the same order."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from run_engines import assert_same_columns, countries_run

from kgverify import UserError
from kgverify.dialects import ReferenceEngine
from kgverify.engines.protocol import ProbedEngine, positions_of, take_position
from kgverify.runs.fan_out import CHUNKS_READ, FannedOut, reference_over
from kgverify.runs.pool import Here, Processes, Workers
from kgverify.runs.run import Run, reference_pipeline
from kgverify.trace.model.columns import CandidateSet, Columns, concatenate


def maker(run: Run, engine: type[ReferenceEngine] = ReferenceEngine) -> Callable[[], ReferenceEngine]:
    return partial(engine, run.graph.program, run.limits, run.policy)


class RefusesAll(ReferenceEngine):
    def prove(self, *_: object) -> Columns:
        raise UserError("proves nothing", where="here", fix="ask another")


class EndsItsProcess(ReferenceEngine):
    def prove(self, *_: object) -> Columns:
        os._exit(1)


@pytest.fixture(scope="module", params=["shortest", "two_tower"])
def proved(request: pytest.FixtureRequest) -> tuple[Run, CandidateSet, Columns]:
    run = countries_run(request.param)
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw_for(run)
    assert len(candidates.query) == 22
    return run, candidates, pipeline.engine.prove(candidates)


@pytest.mark.sample(2)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_processes_gives_the_same_columns(
    proved: tuple[Run, CandidateSet, Columns], num_workers: int
) -> None:
    run, candidates, columns = proved
    with Processes(num_workers) as executor:
        engine = FannedOut(maker(run), executor, chunk=3)
        assert_same_columns(columns, engine.prove(candidates))
        assert_same_columns(columns, engine.prove(candidates))


def test_no_candidates_give_empty_columns() -> None:
    run = countries_run()
    none = reference_pipeline(run).draw_for(run).take(slice(0, 0))
    with Threads(2) as executor:
        columns = FannedOut(maker(run), executor).prove(none)
    assert_same_columns(reference_pipeline(run).engine.prove(none), columns)


def test_its_info_and_probes_are_those_of_the_engine(
    proved: tuple[Run, CandidateSet, Columns],
) -> None:
    run, _, columns = proved
    position = take_position(positions_of(columns), 4)
    reference = reference_pipeline(run).engine
    with Threads(1) as executor:
        engine = FannedOut(maker(run), executor)
        assert isinstance(engine, ProbedEngine)
        assert isinstance(reference, ProbedEngine)
        assert engine.info == reference.info
        assert engine.probe(position) == reference.probe(position)


def test_the_error_of_a_worker_is_reported_in_full() -> None:
    run = countries_run()
    candidates = reference_pipeline(run).draw_for(run)
    with Processes(1) as executor, pytest.raises(UserError) as caught:
        FannedOut(maker(run, RefusesAll), executor).prove(candidates)
    assert (caught.value.message, caught.value.where, caught.value.fix) == ("proves nothing", "here", "ask another")


def test_a_worker_that_exits_is_an_error() -> None:
    run = countries_run()
    candidates = reference_pipeline(run).draw_for(run)
    with Processes(2) as executor, pytest.raises(UserError, match="died before its work was done"):
        FannedOut(maker(run, EndsItsProcess), executor).prove(candidates)


class Threads(Workers, ThreadPoolExecutor):
    pass


class Inline(Here):
    """Does at once what is submitted, and counts the candidates of each call."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future = super().submit(work, *arguments)
        self.sizes.append(len(future.result().candidates.query))
        return future

    def count(self) -> int:
        return 3


@pytest.mark.parametrize("chunk", [1, 5, 22, 100])
def test_every_way_to_prove_gives_the_columns_of_the_engine_in_chunks(
    proved: tuple[Run, CandidateSet, Columns], chunk: int
) -> None:
    run, candidates, columns = proved
    sizes = [chunk] * (22 // chunk) + [22 % chunk] * (22 % chunk > 0)
    for given, method in ((candidates, "prove"), (positions_of(columns), "step"), (candidates, "record")):
        executor, done = Inline(), []
        engine = FannedOut(maker(run), executor, chunk=chunk)
        if method == "step":
            found, expected = engine.step(given), ReferenceEngine.step(maker(run)(), given)
            num = len(columns.steps.depth)
            assert executor.sizes == [chunk] * (num // chunk) + [num % chunk] * (num % chunk > 0)
        else:
            expected = columns
            parts = [engine.prove(given, done.append)]
            if method == "record":
                executor.sizes.clear()
                done.clear()
                parts = [each.read()[0] for each in engine.record(given, done.append)]
                assert len(parts) == -(-len(sizes) // CHUNKS_READ)
            found = concatenate(parts)
            assert sorted(executor.sizes) == sorted(sizes)
            assert sum(done) == 22
        assert_same_columns(expected, found)


def test_workers_are_warmed_up_with_nothing() -> None:
    run, executor = countries_run("shortest"), Inline()
    FannedOut(maker(run), executor).warm_up()
    assert executor.sizes == [0, 0, 0]


def test_an_empty_chunk_is_refused() -> None:
    with Threads(1) as executor, pytest.raises(ValueError, match="found 0"):
        FannedOut(maker(countries_run()), executor, chunk=0)


def test_one_job_is_this_process() -> None:
    run = countries_run()
    with reference_over(run) as pipeline:
        assert isinstance(pipeline.engine, ReferenceEngine)


def test_a_cluster_gives_the_same_columns(proved: tuple[Run, CandidateSet, Columns]) -> None:
    distributed = pytest.importorskip("distributed", reason="kgverify[distributed] is not installed")
    run, candidates, columns = proved
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0"
    )
    with cluster, reference_over(run, scheduler=cluster.scheduler_address) as pipeline:
        assert isinstance(pipeline.engine, FannedOut)
        finished: list[int] = []
        assert_same_columns(columns, pipeline.engine.prove(candidates, finished.append))
        assert sum(finished) == 22


def test_a_scheduler_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="kgverify[distributed] is not installed")
    monkeypatch.setattr(distributed, "Client", partial(distributed.Client, timeout=0.5))
    with pytest.raises(UserError, match="no scheduler answers"):
        reference_over(countries_run(), scheduler="tcp://127.0.0.1:1").__enter__()


def test_work_on_several_machines_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(UserError, match=r"pip install 'kgverify\[distributed\]'"),
        reference_over(countries_run(), scheduler="tcp://127.0.0.1:1"),
    ):
        pass
