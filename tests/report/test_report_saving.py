"""Saving a run: a full disk leaves the run that was there, and no link is followed."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.verification import save as save_module
from kgverify.verification.save import LOCKSTEP, REPORT, read_run, save_verification
from kgverify.verification.verify import Verification


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    for name, queries, shard_steps in (("a.h5", 1, 1000), ("b.h5", 2, 1000), ("shards", 2, 9)):
        options = kv.RecordingOptions(shard_steps=shard_steps, as_reference=True)
        kv.record("countries", folder / name, "reference", queries=queries, corruptions=2, options=options)
    return folder


def save(verification: Verification, folder: Path, *traces: Any) -> None:
    """Save a run with other traces."""
    save_verification(SimpleNamespace(report=verification.report, traces=traces, stepped=None), folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["pwritev", "write", "mkdir", "rename"])
def test_a_run_that_finds_no_room_leaves_the_run_before_it(
    inputs: Path, faulty: Verification, tmp_path: Path, monkeypatch, call: str
):
    run = tmp_path / "run"
    first, second = (read_trace(inputs / name) for name in ("a.h5", "b.h5"))
    save(faulty, run, first, first)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    # Three files are moved away, then three others in.
    for num_calls in range(6 if call == "rename" else 1):
        original, left = getattr(os, call), num_calls

        def fail(*arguments, original=original, **options):
            nonlocal left
            left -= 1
            if left == -1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(UserError, match="cannot be written: No space left") as caught:
                save(faulty, run, first, second)
        assert caught.value.fix.startswith("make room")
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    save(faulty, run, first, second)
    assert read_run(run).actual.root == second.root


def test_a_run_that_is_saved_over_its_own_traces_in_another_order_is_right(
    inputs: Path, faulty: Verification, tmp_path: Path
):
    run = tmp_path / "run"
    save(faulty, run, TraceFile(inputs / "a.h5"), TraceFile(inputs / "shards"))
    save(faulty, run, TraceFile(run / "actual.h5"), TraceFile(run / "expected.h5"))
    found = read_run(run)
    assert [found.expected.root, found.actual.root] == [read_trace(inputs / name).root for name in ("shards", "a.h5")]


def test_a_run_that_is_saved_over_its_own_traces_keeps_them(inputs: Path, faulty: Verification, tmp_path: Path):
    run = tmp_path / "run"
    save(faulty, run, TraceFile(inputs / "a.h5"), TraceFile(inputs / "shards"))
    save(faulty, run, TraceFile(run / "expected.h5"), TraceFile(run / "actual.h5"))
    found = read_run(run)
    assert [found.expected.root, found.actual.root] == [read_trace(inputs / name).root for name in ("a.h5", "shards")]


@pytest.mark.parametrize("name", ["expected.h5", "actual.h5", "lockstep.h5", REPORT])
def test_a_run_follows_no_link(inputs: Path, faulty: Verification, tmp_path: Path, name: str):
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("years of work")
    (tmp_path / "run" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="is a link"):
        save(faulty, tmp_path / "run", *[read_trace(inputs / "a.h5")] * 2)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "victim").read_text() == "years of work"


def test_a_first_cause_outside_of_the_run_is_refused(inputs: Path, faulty: Verification, tmp_path: Path):
    trace = read_trace(inputs / "a.h5")
    save(faulty, tmp_path / "run", trace, trace)
    saved = json.loads((tmp_path / "run" / REPORT).read_text())
    saved["first_cause"]["step"] += 1000
    (tmp_path / "run" / REPORT).write_text(json.dumps(saved))
    with pytest.raises(UserError, match="its first cause is not among its divergences"):
        read_run(tmp_path / "run")


def test_the_steps_of_lockstep_are_read_again(inputs: Path, faulty: Verification, tmp_path: Path):
    trace, steps = (read_trace(inputs / name) for name in ("a.h5", "b.h5"))
    report = msgspec.structs.replace(faulty.report, lockstep=True)
    save_verification(Verification(report, trace, trace, steps), tmp_path / "run")
    stepped = read_run(tmp_path / "run").stepped
    assert stepped is not None
    assert stepped.root == steps.root
    (tmp_path / "run" / LOCKSTEP).unlink()
    assert read_run(tmp_path / "run").stepped is None
    save(faulty, tmp_path / "other", trace, trace)
    assert read_run(tmp_path / "other").stepped is None


@pytest.mark.parametrize("has_run", [False, True])
def test_only_a_run_that_was_there_is_said_to_be_unchanged(
    inputs: Path, faulty: Verification, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_run: bool
):
    trace = read_trace(inputs / "a.h5")
    if has_run:
        save(faulty, tmp_path / "run", trace, trace)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(save_module, "staging_folder", fail)
    with pytest.raises(UserError) as caught:
        save(faulty, tmp_path / "run", trace, trace)
    assert ("the run that was there is unchanged" in str(caught.value)) == has_run
