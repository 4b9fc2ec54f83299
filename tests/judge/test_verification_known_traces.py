"""Known traces and known steps are recorded and read as they are, and a mistake in what records or reads them is noticed."""

import errno
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_answers import traces
from judge_answers.trace_formula import NUM_STEPS, make_columns, make_steps
from judge_answers.traces import check_known_traces, check_loaded_recorder
from run_engines import memory_folder

from kgverify import UserError
from kgverify.engines.protocol import join_digests
from kgverify.errors import InternalError
from kgverify.trace.read.data_file import BLOCK_STEPS, DataFile
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write import loop_writer, writer

RECORDER = "kgverify.prover.tick.stage_ticks"


def test_known_traces_are_written_and_read():
    check_known_traces.__wrapped__()


def test_known_columns_follow_from_the_number_of_a_candidate():
    columns = make_columns([5, 2, 5])
    assert columns.candidates.num_steps.tolist() == [NUM_STEPS[5], NUM_STEPS[2], NUM_STEPS[5]]
    assert columns.steps.depth[70:].tolist() == [*range(300), *range(70)]
    assert columns.steps.num_resolvents[0] > 1 << 16
    assert max(NUM_STEPS) > BLOCK_STEPS
    step = make_steps(np.array([2]), np.array([299]))
    assert step.steps.dropped_atoms[0] == columns.steps.dropped_atoms[70 + 299]


def _with(function: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **options: change(function(*given, **options))


def _reversed(self: TraceFile, rows: Any) -> Any:
    return self.read_candidates(int(rows.min()), int(rows.max()) + 1) if len(rows) else self.read_candidates(0, 0)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "what"),
    [
        (traces, "join_digests", lambda parts: join_digests(parts[:1]), "digests of 2 pools"),
        (writer, "check_columns", lambda *given, **options: None, "a wrong candidates/side is taken"),
        (writer, "root_digest", lambda *given: 0, "root"),
        (writer, "without_recording", lambda content: 0, "resumed with other limits"),
        (loop_writer, "starts_of", _with(loop_writer.starts_of, lambda starts: starts * 0), "is_limited"),
        (TraceFile, "gather_candidates", _reversed, "a known trace"),
        (TraceFile, "share_symbols", lambda self, other: setattr(self.files[0], "symbols", other.symbols), "the names"),
        (DataFile, "split", lambda self: iter([(0, max(1, self.num_candidates - 1))]), "a known trace"),
    ],
)
def test_a_mistake_in_the_trace_layer_is_a_bug(
    owner: Any, name: str, wrong: Any, what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(InternalError, match=what):
        check_known_traces.__wrapped__()


def test_a_full_disk_is_no_bug(monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "write_shard", fail)
    with pytest.raises(UserError, match="space"):
        check_known_traces.__wrapped__()


def test_a_folder_in_memory_is_deleted():
    with memory_folder() as folder:
        (folder / "file").touch()
    assert not Path(folder).exists()


def test_the_recorder_is_tested_only_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, RECORDER, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    check_loaded_recorder()


def test_known_steps_are_recorded():
    pytest.importorskip("torch", reason="the recorder needs torch")
    known_steps = importlib.import_module("known_steps")
    known_steps.check_known_steps.__wrapped__()


@pytest.mark.parametrize(
    ("name", "change", "column"),
    [
        ("starts_of", lambda starts: starts.astype(np.int16).astype(np.int64), "num_atoms"),
        ("_ended", lambda candidates: candidates._replace(is_limited=candidates.is_limited * 0), "is_limited"),
        (
            "select_steps",
            lambda columns: columns._replace(steps=columns.steps._replace(depth=columns.steps.depth[::-1])),
            "depth",
        ),
    ],
)
def test_a_mistake_in_the_recorder_is_a_bug(name: str, change: Any, column: str, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch", reason="the recorder needs torch")
    known_steps = importlib.import_module("known_steps")
    step_record = sys.modules[RECORDER]
    monkeypatch.setattr(step_record, name, _with(getattr(step_record, name), change))
    with pytest.raises(InternalError, match=f"known steps are recorded with a wrong column {column}"):
        known_steps.check_known_steps.__wrapped__()
