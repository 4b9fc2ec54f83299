"""Recording: what is read back is what was in memory; a kill loses only what was not committed."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_engines import assert_same_columns

import kgverify as kv
from kgverify import Columns, RecordingOptions, Stage, Trace, UserError, Verdict
from kgverify.dialects import ReferenceEngine

EAGER = kv.Evaluator(mode="eager", device="cpu", slots=16)
TRACES = Path(kv.__file__).parents[1] / "traces"
GOLDEN = TRACES / "countries-reference.h5"


def record(
    path: Path, engine: Any = "reference", *, queries: int = 2, progress: Any = None, **options: Any
) -> kv.Recording:
    more = {} if progress is None else {"progress": progress}
    return kv.record(
        "countries", path, engine, queries=queries, corruptions=5, options=RecordingOptions(**options), **more
    )


def read(path: Path) -> Trace:
    return kv.open_trace(path).load()


def partial_of(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def assert_is_golden(trace: Trace) -> None:
    """The trace is that of the repository but for what differs by engine and level."""
    golden = read(TRACES / f"countries-{'compiled' if trace.header.engine.name == 'compiled' else 'reference'}.h5")
    assert trace.is_complete
    assert (trace.root, trace.symbols) == (golden.root, golden.symbols)
    assert trace.rules == (None if trace.header.level == "digests" else golden.rules)
    assert (trace.header.run, trace.header.limits) == (golden.header.run, golden.header.limits)
    for column, found in zip(golden.rankings, trace.rankings, strict=True):
        np.testing.assert_array_equal(found, column)
    if trace.header.level == "steps":
        # The last bits of a logarithm are the machine's own.
        sums = golden.columns.candidates.log_probability
        np.testing.assert_allclose(trace.columns.candidates.log_probability, sums, rtol=1e-12)
        candidates = trace.columns.candidates._replace(log_probability=sums)
        assert_same_columns(golden.columns, trace.columns._replace(candidates=candidates))


@pytest.mark.parametrize(("engine", "shard_steps"), [("reference", 10**6), ("reference", 20), (EAGER, 20), (EAGER, 1)])
def test_a_recording_is_the_golden_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Any, shard_steps: int
):
    monkeypatch.setattr("kgverify.verification.record.CHUNK", 6)
    finished: list[int] = []
    done = record(tmp_path / "run.h5", engine, shard_steps=shard_steps, progress=finished.append)
    assert (tmp_path / "run.h5").is_dir() == (shard_steps < 10**6)
    assert_is_golden(read(tmp_path / "run.h5"))
    assert (done.num_candidates, done.num_steps, done.num_resumed, sum(finished)) == (22, 278, 0, 22)
    assert [each.name for each in tmp_path.iterdir()] == ["run.h5"]


KILLED = """
import os, signal, sys
import kgverify as kv
from kgverify.verification import record

record.CHUNK = 4
finished = []

def progress(num):
    finished.append(num)
    if sum(finished) == 15:
        os.kill(os.getpid(), signal.SIGKILL)

options = kv.RecordingOptions(shard_steps=20)
kv.record("countries", sys.argv[1], "reference", queries=2, corruptions=5, options=options, progress=progress)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a recording whose process was killed while it proved its 15th candidate of 22."""
    path = tmp_path_factory.mktemp("killed") / "run.h5"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return path


@pytest.fixture
def copied(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(partial_of(killed), partial_of(tmp_path / "run.h5"))
    return tmp_path / "run.h5"


def test_a_killed_recording_leaves_nothing_at_its_path_and_committed_shards_that_read(killed: Path):
    # Nobody holds the lock of a process that was killed.
    assert sorted(each.name for each in killed.parent.iterdir()) == [".run.h5.lock", "run.h5.partial"]
    with pytest.raises(UserError, match="no such trace") as caught:
        read(killed)
    assert "resume it" in caught.value.fix
    trace, golden = read(partial_of(killed)), read(GOLDEN)
    assert not trace.is_complete
    num = len(trace.columns.candidates.query)
    assert 0 < num < 15
    np.testing.assert_array_equal(trace.columns.candidates.atom, golden.columns.candidates.atom[:num])
    np.testing.assert_array_equal(trace.digests.sequence, golden.digests.sequence[: len(trace.columns.steps.depth)])
    for pair in ((GOLDEN, partial_of(killed)), (partial_of(killed), GOLDEN), (partial_of(killed),) * 2):
        report = kv.compare(*pair)
        assert report.verdict is Verdict.INCONCLUSIVE
        assert any("is not complete" in reason for reason in report.reasons)


def test_a_killed_recording_resumes_to_the_same_trace(copied: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgverify.verification.record.CHUNK", 4)
    finished: list[int] = []
    done = record(copied, resume=True, shard_steps=20, progress=finished.append)
    assert_is_golden(read(copied))
    assert 0 < done.num_resumed < done.num_candidates == sum(finished)
    assert done.num_steps == 278
    assert [each.name for each in copied.parent.iterdir()] == ["run.h5"]


def test_a_killed_recording_prevents_a_new_one_and_is_not_resumed_as_another_run(copied: Path):
    with pytest.raises(UserError, match="did not finish is in the way") as caught:
        record(copied)
    assert "resume" in caught.value.fix
    with pytest.raises(UserError, match="differs in run from that of the run to be resumed"):
        record(copied, queries=3, resume=True)


def test_resuming_with_nothing_to_resume_records_from_the_start(tmp_path: Path):
    assert record(tmp_path / "run.h5", resume=True).num_resumed == 0
    assert_is_golden(read(tmp_path / "run.h5"))


@pytest.mark.parametrize("name", ["query", "side", "atom"])
def test_candidates_recorded_before_must_be_the_first_of_the_run(name: str, copied: Path):
    drawn = kv.CandidateSet(*read(GOLDEN).columns.candidates[:3])

    class Redrawn(ReferenceEngine):
        def draw(self, *_: Any) -> kv.CandidateSet:
            return drawn._replace(**{name: getattr(drawn, name)[::-1].copy()})

    with pytest.raises(UserError, match="candidates that are not the first of this run"):
        record(copied, Redrawn, resume=True, shard_steps=20)


class Failing(ReferenceEngine):
    """Its third call fails."""

    num_calls = 0

    def prove(self, *arguments: Any) -> Columns:
        Failing.num_calls += 1
        if Failing.num_calls == 3:
            raise RuntimeError("out of memory")
        return super().prove(*arguments)


def test_an_engine_that_fails_leaves_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgverify.verification.record.CHUNK", 6)
    monkeypatch.setattr(Failing, "num_calls", 0)
    path = tmp_path / "run.h5"
    with pytest.raises(UserError, match="RuntimeError: out of memory"):
        record(path, Failing, shard_steps=20)
    assert not path.exists()
    assert 0 < len(read(partial_of(path)).columns.candidates.query) < 22


def test_level_deep_records_the_output_of_each_stage(tmp_path: Path):
    finished: list[int] = []
    done = record(tmp_path / "deep", level="deep", progress=finished.append)
    assert sum(finished) == done.num_candidates
    trace = read(tmp_path / "deep")
    assert_is_golden(trace)
    # The plain evaluator computes the same outputs by other code.
    record(tmp_path / "plain", kv.Evaluator(mode="plain", device="cpu"), level="deep")
    report = kv.compare(tmp_path / "deep", tmp_path / "plain")
    assert report.verdict is Verdict.AGREE
    assert not any("outputs of the stages were not compared" in note for note in report.notes)


class NoProbe(ReferenceEngine):
    probe: Any = None


class OddProbe(ReferenceEngine):
    def probe(self, position: Any) -> Any:
        return {Stage.FINISH: "proved"}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: record(path / "none" / "run.h5"), "its folder does not exist"),
        (lambda path: record(path / "a", NoProbe, level="deep"), "no method `probe`"),
        (lambda path: record(path / "a", OddProbe, level="deep"), "invalid output of a stage"),
        (
            lambda path: record(path / "a", kv.Reference(jobs=2), scheduler="tcp://localhost:1"),
            "jobs would start processes",
        ),
        (lambda path: record(path / "a", EAGER, level="deep", scheduler="tcp://127.0.0.1:1"), "takes every step again"),
    ],
)
def test_what_cannot_be_recorded_is_refused(make: Callable[[Path], Any], text: str, tmp_path: Path):
    with pytest.raises(UserError, match=text):
        make(tmp_path)
