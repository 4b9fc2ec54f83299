"""Recording: what is read back is what was in memory; a kill loses only what was not committed."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from run_engines import ForeignEngine, assert_same_columns, countries_run, eager_pipeline, foreign_pipeline

import kgverify as kv
from kgverify import RecordingOptions, Stage, UserError, Verdict
from kgverify.engines.protocol import Positions, RecordedPart, positions_of, split_positions
from kgverify.progress import Progress, no_progress
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.runs.run import Pipeline, Run, build_trace, reference_pipeline
from kgverify.trace.files.manifest import partial_of
from kgverify.trace.model.columns import CandidateSet, Columns, empty_columns
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.model.header import Header
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.stage_items import StageOutputs, StageReader
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.verification import record as recording
from kgverify.verification.record import record
from kgverify.verification.recorded import compare_recorded


def prove_in_memory(run: Run, pipeline: Pipeline) -> Trace:
    columns = pipeline.engine.prove(pipeline.draw(run.graph, "test", run.queries, run.num_corruptions, run.seed))
    return build_trace(run, pipeline.engine, columns, pipeline.rank(columns.candidates, run.triples, RANK_TOLERANCE))


def without_id(trace: Trace) -> Header:
    """The header but for the id of the recording."""
    return msgspec.structs.replace(trace.header, recording="")


def assert_same_trace(expected: Trace, actual: Trace) -> None:
    assert without_id(actual) == without_id(expected)
    assert actual.symbols == expected.symbols
    assert_same_columns(expected.columns, actual.columns)
    for column, found in zip((*expected.digests, *expected.rankings), (*actual.digests, *actual.rankings), strict=True):
        np.testing.assert_array_equal(found, column)
    assert actual.root == expected.root
    assert actual.is_complete


@pytest.mark.parametrize("engine", ["reference", "eager"])
@pytest.mark.parametrize(("shard_steps", "is_folder"), [(10**6, False), (20, True)])
def test_a_recording_equals_the_trace_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, shard_steps: int, is_folder: bool
):
    monkeypatch.setattr(recording, "CHUNK", 6)
    run = countries_run()
    pipeline = reference_pipeline(run) if engine == "reference" else eager_pipeline(run)
    finished: list[int] = []
    path = tmp_path / "run.h5"
    done = record(run, pipeline, path, RecordingOptions(shard_steps=shard_steps), progress=finished.append)
    assert path.is_dir() == is_folder
    trace = read_trace(path)
    assert_same_trace(prove_in_memory(run, pipeline), trace)
    num_candidates, num_steps = len(trace.columns.candidates.query), len(trace.columns.steps.depth)
    assert (done.num_candidates, done.num_steps, done.num_resumed) == (num_candidates, num_steps, 0)
    assert sum(finished) == num_candidates
    assert [each.name for each in tmp_path.iterdir()] == ["run.h5"]


def test_a_recording_whose_last_candidates_fill_a_shard_reads_back(tmp_path: Path):
    run = countries_run()
    pipeline = eager_pipeline(run)
    record(run, pipeline, tmp_path / "run.h5", RecordingOptions(shard_steps=1))
    assert_same_trace(prove_in_memory(run, pipeline), read_trace(tmp_path / "run.h5"))


class Ahead(ForeignEngine):
    """Hands over parts of four candidates as an engine on a device does: of each what the level keeps, with digests."""

    proves_ahead = True

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator[RecordedPart]:
        for begin in range(0, len(candidates.query), 4):
            yield Part(self.prove(candidates.take(slice(begin, begin + 4)), progress), level)


class Part:
    def __init__(self, columns: Columns, level: TraceLevel) -> None:
        self._columns, self._level = columns, level

    def read(self) -> tuple[Columns, NDArray[np.uint64]]:
        (candidates, steps, resolvents, _), empty = self._columns, empty_columns()
        sequence = compute_sequence(self._columns)
        if self._level is not TraceLevel.STEPS:
            steps = steps._replace(num_atoms=steps.num_atoms * 0, goal_atoms=empty.steps.goal_atoms)
            resolvents = resolvents._replace(num_atoms=resolvents.num_atoms * 0, atoms=empty.resolvents.atoms)
        if self._level is TraceLevel.DIGESTS:
            steps = steps._replace(num_resolvents=steps.num_resolvents * 0)
            resolvents = empty.resolvents
        return Columns(candidates, steps, resolvents), sequence


@pytest.mark.sample(2, deep=8)
@pytest.mark.parametrize("append_threads", [1, 3])
@pytest.mark.parametrize("shard_steps", [1, 20, 10**6])
@pytest.mark.parametrize("level", [level for level in TraceLevel if level is not TraceLevel.DEEP])
def test_an_engine_that_proves_ahead_records_what_it_proves(
    tmp_path: Path, level: TraceLevel, shard_steps: int, append_threads: int
):
    run = countries_run()
    proves, ahead = (Pipeline(engine(run), *reference_pipeline(run)[1:]) for engine in (ForeignEngine, Ahead))
    for name, pipeline in (("proves", proves), ("ahead", ahead)):
        finished: list[int] = []
        done = record(
            run,
            pipeline,
            tmp_path / name,
            RecordingOptions(level=level, shard_steps=shard_steps),
            progress=finished.append,
            append_threads=append_threads,
        )
        assert sum(finished) == done.num_candidates
    expected, actual = (read_trace(tmp_path / name) for name in ("proves", "ahead"))
    assert (actual.root, actual.fields) == (expected.root, expected.fields)
    assert without_id(actual) == without_id(expected)
    np.testing.assert_array_equal(actual.digests.sequence, expected.digests.sequence)
    for columns, others in zip(actual.columns, expected.columns, strict=True):
        for found, wanted in zip(columns, others, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_wrong_digests_of_an_engine_are_found_when_the_trace_is_read(tmp_path: Path):
    class Wrong(Ahead):
        def record(self, *arguments: Any, **options: Any) -> Iterator[RecordedPart]:
            for part in super().record(*arguments, **options):
                columns, sequence = part.read()
                sequence[0] += np.uint64(1)
                yield SimpleNamespace(read=partial(_pair, columns, sequence))

    run = countries_run()
    record(run, Pipeline(Wrong(run), *reference_pipeline(run)[1:]), tmp_path / "run.h5")
    with pytest.raises(UserError, match="step 0 has digest"):
        read_trace(tmp_path / "run.h5")


def _pair(*values: Any) -> tuple[Any, ...]:
    return values


@pytest.mark.parametrize("append_threads", [1, 3])
def test_a_part_that_cannot_be_read_ends_the_recording_and_keeps_the_others(tmp_path: Path, append_threads: int):
    class Broken(Ahead):
        def record(self, *arguments: Any, **options: Any) -> Iterator[RecordedPart]:
            parts = super().record(*arguments, **options)
            yield next(parts)
            yield next(parts)
            yield SimpleNamespace(read=partial(int, "lost"))
            yield next(parts)

    run = countries_run()
    pipeline = Pipeline(Broken(run), *reference_pipeline(run)[1:])
    with pytest.raises(ValueError, match="lost"):
        record(run, pipeline, tmp_path / "run.h5", append_threads=append_threads)
    assert len(read_trace(partial_of(tmp_path / "run.h5")).columns.candidates.query) == 8
    sound = Pipeline(Ahead(run), *reference_pipeline(run)[1:])
    assert record(run, sound, tmp_path / "run.h5", RecordingOptions(resume=True)).num_resumed == 8


def test_only_an_engine_that_proves_ahead_is_given_several_threads(monkeypatch: pytest.MonkeyPatch):
    run = countries_run()
    for cores, expected in ((2, 1), (8, 2), (64, recording.MAX_APPEND_THREADS)):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert recording.choose_append_threads(Ahead(run)) == expected
        assert recording.choose_append_threads(ForeignEngine(run)) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from kgverify.verification import record as recording
from kgverify.runs.run import Run, reference_pipeline
from kgverify.graphs.load import load_graph

recording.CHUNK = 4
run = Run(load_graph("countries"), num_queries=2, num_corruptions=5)
num_finished = 0

def progress(num):
    global num_finished
    num_finished += num
    if num_finished == 15:
        os.kill(os.getpid(), signal.SIGKILL)

options = recording.RecordingOptions(shard_steps=20)
recording.record(run, reference_pipeline(run), Path(sys.argv[1]), options, progress=progress)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a recording whose process was killed while it proved its 15th candidate of 22."""
    path = tmp_path_factory.mktemp("killed") / "run.h5"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    return path


def copy_of(killed: Path, folder: Path) -> Path:
    shutil.copytree(partial_of(killed), partial_of(folder / "run.h5"))
    return folder / "run.h5"


def test_a_killed_recording_leaves_nothing_at_its_path_and_committed_shards_that_read(killed: Path):
    # Nobody holds the lock of a process that was killed.
    assert sorted(each.name for each in killed.parent.iterdir()) == [".run.h5.lock", "run.h5.partial"]
    with pytest.raises(UserError, match="no such trace") as caught:
        read_trace(killed)
    assert "resume it" in caught.value.fix
    trace = read_trace(partial_of(killed))
    assert not trace.is_complete
    run = countries_run()
    whole = prove_in_memory(run, reference_pipeline(run))
    num = len(trace.columns.candidates.query)
    assert 0 < num < 15
    np.testing.assert_array_equal(trace.columns.candidates.atom, whole.columns.candidates.atom[:num])
    num_steps = len(trace.columns.steps.depth)
    np.testing.assert_array_equal(trace.digests.sequence, whole.digests.sequence[:num_steps])


def test_a_killed_recording_never_agrees(killed: Path, tmp_path: Path):
    run = countries_run()
    record(run, reference_pipeline(run), tmp_path / "whole.h5")
    partial = partial_of(killed)
    for expected, actual in ((tmp_path / "whole.h5", partial), (partial, tmp_path / "whole.h5"), (partial, partial)):
        report = compare_recorded(expected, actual).report
        assert report.verdict is Verdict.INCONCLUSIVE
        assert any("is not complete" in reason for reason in report.reasons)


def test_a_killed_recording_resumes_to_the_same_trace(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording, "CHUNK", 4)
    run = countries_run()
    pipeline = reference_pipeline(run)
    path = copy_of(killed, tmp_path)
    finished: list[int] = []
    done = record(run, pipeline, path, RecordingOptions(resume=True, shard_steps=20), progress=finished.append)
    whole = prove_in_memory(run, pipeline)
    assert_same_trace(whole, read_trace(path))
    assert 0 < done.num_resumed < done.num_candidates == sum(finished)
    assert done.num_steps == len(whole.columns.steps.depth)
    assert [each.name for each in tmp_path.iterdir()] == ["run.h5"]


def test_a_killed_recording_prevents_a_new_one(killed: Path, tmp_path: Path):
    run = countries_run()
    path = copy_of(killed, tmp_path)
    with pytest.raises(UserError, match="did not finish is in the way") as caught:
        record(run, reference_pipeline(run), path)
    assert "resume" in caught.value.fix


def test_a_killed_recording_of_another_run_is_not_resumed(killed: Path, tmp_path: Path):
    run = countries_run(num_queries=3)
    with pytest.raises(UserError, match="differs from that of the run to be resumed"):
        record(run, reference_pipeline(run), copy_of(killed, tmp_path), RecordingOptions(resume=True))


def test_resuming_with_nothing_to_resume_records_from_the_start(tmp_path: Path):
    run = countries_run()
    done = record(run, reference_pipeline(run), tmp_path / "run.h5", RecordingOptions(resume=True))
    assert done.num_resumed == 0
    assert read_trace(tmp_path / "run.h5").is_complete


def test_an_engine_that_fails_leaves_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording, "CHUNK", 6)
    run = countries_run()
    num_calls = 0

    def fail_later(columns):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise RuntimeError("out of memory")
        return columns

    engine = ForeignEngine(run, fail_later)
    path = tmp_path / "run.h5"
    with pytest.raises(RuntimeError, match="out of memory"):
        record(run, foreign_pipeline(run, engine), path, RecordingOptions(shard_steps=20))
    assert not path.exists()
    assert 0 < len(read_trace(partial_of(path)).columns.candidates.query) < 22
    record(run, foreign_pipeline(run, engine), path, RecordingOptions(shard_steps=20, resume=True))
    assert read_trace(path).is_complete


def test_two_recordings_compare_without_an_engine(tmp_path: Path):
    run = countries_run()
    for name, pipeline in (("expected.h5", reference_pipeline(run)), ("actual", eager_pipeline(run))):
        record(run, pipeline, tmp_path / name, RecordingOptions(shard_steps=100))
    verification = compare_recorded(tmp_path / "expected.h5", tmp_path / "actual")
    assert verification.report.verdict is Verdict.AGREE
    assert verification.report.coverage.candidates == 22
    assert verification.report.determinism.expected is None
    assert verification.report.metrics.expected == verification.report.metrics.actual != {}


def test_a_folder_that_does_not_exist_is_refused_before_anything_is_proved(tmp_path: Path):
    run = countries_run()

    def forbid(columns):
        raise AssertionError("it proved something")

    with pytest.raises(UserError, match="its folder does not exist"):
        record(run, foreign_pipeline(run, ForeignEngine(run, forbid)), tmp_path / "none" / "run.h5")


def test_level_deep_records_the_output_of_each_stage(tmp_path: Path):
    run = countries_run(num_queries=1, num_corruptions=2)
    finished: list[int] = []
    pipeline = reference_pipeline(run)
    done = record(run, pipeline, tmp_path / "deep", RecordingOptions(level="deep"), progress=finished.append)
    assert sum(finished) == done.num_candidates
    trace = read_trace(tmp_path / "deep")
    reader = StageReader(trace.columns)
    for row, position in enumerate(split_positions(positions_of(trace.columns), 1)):
        assert reader.read(row) == pipeline.engine.probe(position)
    record(run, pipeline, tmp_path / "steps")
    assert read_trace(tmp_path / "steps").root == trace.root


def test_an_engine_without_probe_is_not_recorded_deep(tmp_path: Path):
    run = countries_run()
    with pytest.raises(UserError, match="no method `probe`"):
        record(
            run,
            Pipeline(ForeignEngine(run), *reference_pipeline(run)[1:]),
            tmp_path / "a",
            RecordingOptions(level="deep"),
        )


def test_an_invalid_output_of_probe_is_an_error_of_the_engine(tmp_path: Path):
    class Odd(ForeignEngine):
        def probe(self, position: Positions) -> StageOutputs:
            return {Stage.FINISH: "proved"}

    run = countries_run()
    with pytest.raises(UserError, match="invalid output of a stage") as caught:
        record(run, Pipeline(Odd(run), *reference_pipeline(run)[1:]), tmp_path / "a", RecordingOptions(level="deep"))
    assert caught.value.where == "engine foreign"


@pytest.mark.parametrize("name", [None, "query", "side", "atom"])
def test_candidates_recorded_before_must_be_the_first_of_the_run(name: str | None, tmp_path: Path) -> None:
    drawn = CandidateSet(np.arange(3, dtype=np.int32), np.zeros(3, np.int8), np.arange(9, dtype=np.int32).reshape(3, 3))
    before = drawn.take(slice(2))
    if name is None:
        recording._check_resumed(drawn, before, tmp_path / "a.h5")
        return
    with pytest.raises(UserError, match="candidates that are not the first of this run"):
        recording._check_resumed(drawn, before._replace(**{name: getattr(before, name) + 1}), tmp_path / "a.h5")


def test_processes_beside_a_scheduler_are_refused(tmp_path: Path):
    options = kv.RecordingOptions(scheduler="tcp://localhost:1")
    with pytest.raises(kv.UserError, match="jobs would start processes here as well"):
        kv.record("countries", tmp_path / "a.h5", kv.Reference(jobs=2), options=options)
    assert [*tmp_path.iterdir()] == []
