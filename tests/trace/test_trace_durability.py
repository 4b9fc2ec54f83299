"""Committed steps are there after any end, a recording resumes without a seam, and a full disk is reported."""

import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trace_builders as traces

import kgverify as kv
from kgverify import Part, Symbols, UserError

COLUMNS = traces.make_columns(11, 60, has_stages=True)
PLAIN = traces.make_columns(11, 60)
STORED = [("steps", False), ("digests", False), ("steps", True), ("deep", True)]


def interrupt(path: Path, stop: int = 40, **options) -> None:
    with traces.open_writer(path, **{"shard_steps": 20, **options}) as writer:
        traces.append(writer, COLUMNS, stop, 3)
        raise KeyboardInterrupt


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A recording that was interrupted after 40 candidates."""
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "a")
    return tmp_path / "a.partial"


@pytest.mark.parametrize(("level", "is_archived"), STORED)
def test_a_recording_that_ends_early_is_read_repaired_and_resumed_at_its_level(tmp_path, level, is_archived):
    options = {**traces.PROGRAM, "level": level, "is_archived": is_archived}
    whole = traces.write_file(tmp_path / "whole", COLUMNS, traces.RANKINGS, **options)
    path, partial = tmp_path / "a", tmp_path / "a.partial"
    with pytest.raises(KeyboardInterrupt):
        interrupt(path, 30, commit_seconds=0, **options)
    found = traces.read(partial)
    assert (len(found.columns.candidates.query), found.fields, found.is_complete) == (
        30,
        whole.fields - {f"rankings.{name}" for name in traces.RANKINGS._fields},
        False,
    )
    assert traces.run("check", partial)["state"] == "unfinished"
    (partial / "shard-00099.h5.tmp").write_bytes(b"cut off")
    report = traces.run("repair", partial)
    kept = [report[name] for name in ("is_changed", "num_candidates", "losses", "is_resumable")]
    assert kept == [False, 30, [], True]
    last = max(partial.glob("shard-*.h5"))
    last.write_bytes(last.read_bytes()[:-9])
    report = traces.run("repair", partial)
    (loss,) = report["losses"]
    assert (report["is_changed"], report["is_resumable"], loss["name"]) == (True, True, last.name)
    assert report["num_candidates"] == 30 - loss["num_candidates"]
    with traces.open_writer(path, resume=True, shard_steps=20, **options) as writer:
        assert writer.num_appended == report["num_candidates"]
        traces.append(writer, COLUMNS, batch=3)
        writer.set_rankings(traces.RANKINGS)
    traces.assert_same_trace(traces.read(path), whole)
    assert len({traces.read(shard).header.recording for shard in path.glob("shard-*.h5")}) == 1
    assert traces.run("check", path)["state"] == "whole"


def test_committed_pieces_are_read_and_resumed_but_neither_swapped_nor_linked(tmp_path):
    """A recording is killed after 36 candidates, 30 of them committed in two pieces."""
    writer, pieces = traces.open_writer(tmp_path / "a", commit_seconds=1e9), tmp_path / "a.partial"
    for end in (12, 30):
        traces.append(writer, PLAIN, end, 3)
        writer.commit()
    traces.append(writer, PLAIN, 36, 3)
    assert (writer.num_committed, writer.num_appended) == (30, 36)
    traces.assert_same_columns(traces.read(pieces).columns, traces.rows(PLAIN, 30))
    traces.assert_same_columns(kv.open_trace(pieces, is_lazy=True).read_candidates(5, 20), traces.rows(PLAIN, 5, 20))
    files = sorted(pieces.glob("shard-*.h5"))
    traces.assert_same_columns(traces.read(files[0]).columns, traces.rows(PLAIN, 12))
    with pytest.raises(UserError, match="a piece of a recording, without the"):
        traces.read(files[1])
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents[::-1], strict=True):
        path.write_bytes(content)
    for look in (traces.read, kv.open_trace):
        with pytest.raises(UserError):
            look(pieces)
    files[0].write_bytes(contents[0])
    (tmp_path / "elsewhere").write_bytes(contents[1])
    files[1].unlink()
    files[1].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        traces.read(pieces)
    (tmp_path / "elsewhere").rename(files[1])
    del writer
    with traces.open_writer(tmp_path / "a", resume=True) as writer:
        assert writer.committed_candidates().query.tolist() == traces.rows(PLAIN, 30).candidates.query.tolist()
        traces.append(writer, PLAIN, batch=3)
    traces.assert_same_trace(traces.read(tmp_path / "a"), traces.write_file(tmp_path / "whole", PLAIN))


def test_an_interrupted_recording_is_resumed_and_nothing_else_is_recorded_over_it(left, tmp_path):
    path = tmp_path / "a"
    trace = traces.read(left)
    assert (trace.is_complete, path.exists()) == (False, False)
    traces.assert_same_columns(trace.columns, traces.rows(PLAIN, 40))
    with pytest.raises(UserError, match=r"no such trace\nfix: .* resume it, or read .*a\.partial"):
        traces.read(path)
    with pytest.raises(UserError, match=r"in the way\nfix: resume it, or delete"):
        traces.open_writer(path)
    with traces.open_writer(path, resume=True) as writer:
        traces.append(writer, COLUMNS, batch=3)
    traces.assert_same_columns(traces.read(path).columns, PLAIN)
    assert not left.exists()
    # There is nothing to resume: it is recorded from the start.
    (tmp_path / "b.partial").mkdir()
    with traces.open_writer(tmp_path / "b", resume=True) as writer:
        traces.append(writer, COLUMNS, batch=3)
    traces.assert_same_trace(traces.read(tmp_path / "b"), traces.read(path))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"header": msgspec.structs.replace(traces.HEADER, program_sha256="0" * 64)}, "header"),
        ({"symbols": Symbols(traces.SYMBOLS.predicates, (*traces.SYMBOLS.constants, "x"))}, "symbols/constants"),
        ({"facts": traces.FACTS}, "program/facts"),
        ({"absent": ("resolvents.score",)}, "resolvents.score"),
    ],
)
def test_another_run_is_not_resumed(left, tmp_path, changes, place):
    with pytest.raises(UserError, match="resume with the same") as caught:
        traces.open_writer(tmp_path / "a", **changes, resume=True)
    assert place in str(caught.value)


def test_a_recording_is_resumed_with_its_type_of_scores_its_manifest_and_its_part(left, tmp_path):
    with (
        pytest.raises(UserError, match="score"),
        traces.open_writer(tmp_path / "a", resume=True) as writer,
    ):
        writer.append(traces.make_columns(1, 9, score_dtype=np.float32))
    traces.flip(left / "shard-00001.h5", 3000)
    with pytest.raises(UserError, match=r"the data were altered|cut off or damaged"):
        traces.open_writer(tmp_path / "a", resume=True)
    (left / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest\.json in this folder"):
        traces.open_writer(tmp_path / "a", resume=True)
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "b", part=Part(0, 2))
    for part in (Part(1, 2), Part(0, 2, "modulo"), None):
        with pytest.raises(UserError, match="differs in part from that of the run to be resumed"):
            traces.open_writer(tmp_path / "b", part=part, resume=True)


@pytest.mark.parametrize("shard_steps", [20, 10**6])
def test_many_pieces_are_joined(tmp_path, monkeypatch, shard_steps):
    monkeypatch.setattr("kgverify.trace.write.writer._MOST_PIECES", 3)
    partial, most = tmp_path / "a.partial", 0
    with traces.open_writer(tmp_path / "a", shard_steps=shard_steps, commit_seconds=0) as writer:
        for i in range(0, 60, 2):
            writer.append(traces.rows(PLAIN, i, i + 2))
            assert writer.num_committed == i + 2
            most = max(most, len(list(partial.glob("shard-*-*.h5"))))
            if i % 20 == 0:
                traces.assert_same_columns(traces.read(partial).columns, traces.rows(PLAIN, i + 2))
    assert most == 3
    traces.assert_same_columns(traces.read(tmp_path / "a").columns, PLAIN)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_commit_follows_5_seconds_after_the_last(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    writer = traces.open_writer(tmp_path / "a")
    for seconds, num_committed in ((0, 0), (5, 6), (4.9, 6)):
        now += seconds
        traces.append(writer, COLUMNS, writer.num_appended + 3, 3)
        assert writer.num_committed == num_committed


@pytest.mark.parametrize(
    ("call", "number", "stored"),
    [
        ("fsync", errno.ENOSPC, STORED[0]),
        ("pwritev", errno.EDQUOT, STORED[1]),
        ("replace", errno.EIO, STORED[2]),
        ("pwritev", errno.ENOSPC, STORED[3]),
    ],
)
def test_a_full_disk_is_reported_with_the_safe_candidates(tmp_path, monkeypatch, call, number, stored):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    path, partial = tmp_path / "a", tmp_path / "a.partial"
    options = {**traces.PROGRAM, "level": stored[0], "is_archived": stored[1], "resume": True}

    def record():
        with traces.open_writer(path, commit_seconds=0, **options) as writer:
            traces.append(writer, COLUMNS, 30, 3)
            monkeypatch.setattr(os, call, fail)
            traces.append(writer, COLUMNS, batch=3)

    with pytest.raises(
        UserError, match=r"cannot be written.*the first 30 candidates are safe in .*a\.partial"
    ) as caught:
        record()
    assert os.strerror(number) in caught.value.message
    assert ("bytes free" in caught.value.message) == (number == errno.ENOSPC)
    assert not path.exists()
    monkeypatch.undo()
    num = len(traces.read(partial).columns.candidates.query)
    assert num >= 30
    with traces.open_writer(path, **options) as writer:
        traces.append(writer, COLUMNS, batch=3)
    assert traces.read(path).root == traces.write_file(tmp_path / "whole", COLUMNS, **options).root
