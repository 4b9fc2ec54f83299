"""Committed steps are there after any end, a recording resumes without a seam, and a full disk is reported."""

import errno
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from trace_builders import (
    FACTS,
    HEADER,
    PROGRAM,
    RANKINGS,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    flip,
    make_columns,
    open_writer,
    read,
    rows,
    run,
    write_file,
)

import kgverify as kv
from kgverify import Part, Symbols, TraceWriter, UserError
from kgverify.trace.write import writer as writing

COLUMNS = make_columns(11, 60, has_stages=True)
PLAIN = make_columns(11, 60)
STORED = [("steps", False), ("digests", False), ("compact", True), ("deep", True)]


def append(writer: TraceWriter, stop: int, columns=COLUMNS) -> None:
    for begin in range(writer.num_appended, stop, 3):
        writer.append(rows(columns, begin, begin + 3))


def interrupt(path: Path, stop: int = 40, **options) -> None:
    with open_writer(path, **{"shard_steps": 20, **options}) as writer:
        append(writer, stop)
        raise KeyboardInterrupt


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A recording that was interrupted after 40 candidates."""
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "a")
    return tmp_path / "a.partial"


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    """A recording that was killed after 36 candidates, 30 of them committed in two pieces."""
    writer = open_writer(tmp_path / "a", commit_seconds=1e9)
    for end in (12, 30):
        append(writer, end, PLAIN)
        writer.commit()
    append(writer, 36, PLAIN)
    assert (writer.num_committed, writer.num_appended) == (30, 36)
    return tmp_path / "a.partial"


@pytest.mark.parametrize(("level", "is_archived"), STORED)
def test_a_recording_that_ends_early_is_read_repaired_and_resumed_at_its_level(tmp_path, level, is_archived):
    options = {**PROGRAM, "level": level, "is_archived": is_archived}
    whole = write_file(tmp_path / "whole", COLUMNS, RANKINGS, **options)
    path, partial = tmp_path / "a", tmp_path / "a.partial"
    with pytest.raises(KeyboardInterrupt):
        interrupt(path, 30, commit_seconds=0, **options)
    found = read(partial)
    assert (len(found.columns.candidates.query), found.fields, found.is_complete) == (
        30,
        whole.fields - {f"rankings.{name}" for name in RANKINGS._fields},
        False,
    )
    assert run("check", partial)["state"] == "unfinished"
    (partial / "shard-00099.h5.tmp").write_bytes(b"cut off")
    report = run("repair", partial)
    kept = [report[name] for name in ("is_changed", "num_candidates", "losses", "is_resumable")]
    assert kept == [False, 30, [], True]
    last = max(partial.glob("shard-*.h5"))
    last.write_bytes(last.read_bytes()[:-9])
    report = run("repair", partial)
    (loss,) = report["losses"]
    assert (report["is_changed"], report["is_resumable"], loss["name"]) == (True, True, last.name)
    assert report["num_candidates"] == 30 - loss["num_candidates"]
    with open_writer(path, resume=True, shard_steps=20, **options) as writer:
        assert writer.num_appended == report["num_candidates"]
        append(writer, 60)
        writer.set_rankings(RANKINGS)
    assert_same_trace(read(path), whole)
    assert len({read(shard).header.recording for shard in path.glob("shard-*.h5")}) == 1
    assert run("check", path)["state"] == "whole"


def test_what_was_committed_is_read_and_resumed(pieces, tmp_path):
    trace = read(pieces)
    assert not trace.is_complete
    assert_same_columns(trace.columns, rows(PLAIN, 30))
    assert_same_columns(kv.open_trace(pieces, is_lazy=True).read_candidates(5, 20), rows(PLAIN, 5, 20))
    names = ["manifest.json", "shard-00000-00000.h5", "shard-00000-00001.h5"]
    assert sorted(path.name for path in pieces.iterdir()) == names
    assert_same_columns(read(pieces / names[1]).columns, rows(PLAIN, 12))
    with pytest.raises(UserError, match="a piece of a recording, without the"):
        read(pieces / names[2])
    with open_writer(tmp_path / "a", resume=True) as writer:
        assert writer.num_appended == 30
        assert writer.committed_candidates().query.tolist() == rows(PLAIN, 30).candidates.query.tolist()
        append(writer, 60, PLAIN)
    assert_same_trace(read(tmp_path / "a"), write_file(tmp_path / "whole", PLAIN))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "whole"]


def test_swapped_and_linked_pieces_are_refused(pieces, tmp_path):
    files = [pieces / f"shard-00000-0000{i}.h5" for i in (0, 1)]
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents[::-1], strict=True):
        path.write_bytes(content)
    for look in (read, kv.open_trace):
        with pytest.raises(UserError):
            look(pieces)
    files[0].write_bytes(contents[0])
    files[1].unlink()
    (tmp_path / "elsewhere").write_bytes(contents[1])
    files[1].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is a link"):
        read(pieces)


def test_an_interrupted_recording_is_resumed_and_nothing_else_is_recorded_over_it(left, tmp_path):
    path = tmp_path / "a"
    trace = read(left)
    assert (trace.is_complete, path.exists()) == (False, False)
    assert_same_columns(trace.columns, rows(PLAIN, 40 + 2))
    with pytest.raises(UserError, match=r"no such trace\nfix: .* resume it, or read .*a\.partial"):
        read(path)
    with pytest.raises(UserError, match=r"in the way\nfix: resume it, or delete"):
        open_writer(path)
    with open_writer(path, resume=True) as writer:
        append(writer, 60)
    assert_same_columns(read(path).columns, PLAIN)
    assert not left.exists()
    # There is nothing to resume: it is recorded from the start.
    (tmp_path / "b.partial").mkdir()
    with open_writer(tmp_path / "b", resume=True) as writer:
        append(writer, 60)
    assert_same_trace(read(tmp_path / "b"), read(path))


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"header": msgspec.structs.replace(HEADER, program_sha256="0" * 64)}, "header"),
        ({"symbols": Symbols(SYMBOLS.predicates, (*SYMBOLS.constants, "x"))}, "symbols/constants"),
        ({"facts": FACTS}, "program/facts"),
        ({"absent": ("resolvents.score",)}, "resolvents.score"),
    ],
)
def test_another_run_is_not_resumed(left, tmp_path, changes, place):
    with pytest.raises(UserError, match="resume with the same") as caught:
        open_writer(tmp_path / "a", **changes, resume=True)
    assert place in str(caught.value)


def test_a_recording_is_resumed_with_its_type_of_scores_its_manifest_and_its_part(left, tmp_path):
    with (
        pytest.raises(UserError, match="score"),
        open_writer(tmp_path / "a", resume=True) as writer,
    ):
        writer.append(make_columns(1, 9, score_dtype=np.float32))
    flip(left / "shard-00001.h5", 3000)
    with pytest.raises(UserError, match=r"the data were altered|cut off or damaged"):
        open_writer(tmp_path / "a", resume=True)
    (left / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest\.json in this folder"):
        open_writer(tmp_path / "a", resume=True)
    with pytest.raises(KeyboardInterrupt):
        interrupt(tmp_path / "b", part=Part(0, 2))
    for part, expected in ((Part(1, 2), "part 1 of 2"), (None, "no part")):
        with pytest.raises(UserError, match=rf"part 0 of 2 of a recording, expected {expected}"):
            open_writer(tmp_path / "b", part=part, resume=True)


@pytest.mark.parametrize("shard_steps", [20, 10**6])
def test_many_pieces_are_joined(tmp_path, monkeypatch, shard_steps):
    monkeypatch.setattr(writing, "_MOST_PIECES", 3)
    partial, most = tmp_path / "a.partial", 0
    with open_writer(tmp_path / "a", shard_steps=shard_steps, commit_seconds=0) as writer:
        for i in range(0, 60, 2):
            writer.append(rows(PLAIN, i, i + 2))
            assert writer.num_committed == i + 2
            most = max(most, len(list(partial.glob("shard-*-*.h5"))))
            if i % 20 == 0:
                assert_same_columns(read(partial).columns, rows(PLAIN, i + 2))
    assert most == 3
    assert_same_columns(read(tmp_path / "a").columns, PLAIN)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_commit_follows_5_seconds_after_the_last(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(writing.time, "monotonic", lambda: now)
    writer = open_writer(tmp_path / "a")
    for seconds, num_committed in ((0, 0), (5, 6), (4.9, 6)):
        now += seconds
        append(writer, writer.num_appended + 3)
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
    options = {**PROGRAM, "level": stored[0], "is_archived": stored[1], "resume": True}

    def record():
        with open_writer(path, commit_seconds=0, **options) as writer:
            append(writer, 30)
            monkeypatch.setattr(os, call, fail)
            append(writer, 60)

    with pytest.raises(
        UserError, match=r"cannot be written.*the first 30 candidates are safe in .*a\.partial"
    ) as caught:
        record()
    assert os.strerror(number) in caught.value.message
    assert ("bytes free" in caught.value.message) == (number == errno.ENOSPC)
    assert not path.exists()
    monkeypatch.undo()
    num = len(read(partial).columns.candidates.query)
    assert num >= 30
    with open_writer(path, **options) as writer:
        append(writer, 60)
    assert read(path).root == write_file(tmp_path / "whole", COLUMNS, **options).root
