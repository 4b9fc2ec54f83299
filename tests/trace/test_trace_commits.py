"""Commits: what was committed is there after any end, what was not is the least, and recording resumes."""

import errno
import os
import shutil

import numpy as np
import pytest
from trace_builders import (
    FACTS,
    HEADER,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import UserError
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.read.trace_file import TraceFile, read_trace
from kgverify.trace.write import writer as module

COLUMNS = make_columns(11, 60)


def rows(start, stop):
    return select_candidates(COLUMNS, np.arange(start, stop))


def append(writer, stop, start=0):
    for i in range(start, stop, 3):
        writer.append(rows(i, i + 3))


@pytest.fixture
def left(tmp_path):
    """A recording that was killed after 36 candidates, 30 of them committed in two pieces."""
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, commit_seconds=1e9)
    for begin, end in ((0, 12), (12, 30)):
        append(writer, end, begin)
        writer.commit()
    append(writer, 36, 30)
    assert (writer.num_committed, writer.num_appended) == (30, 36)
    return tmp_path / "a.partial"


def test_what_was_committed_reads(left):
    trace = read_trace(left)
    assert not trace.is_complete
    assert_same_columns(trace.columns, rows(0, 30))
    assert_same_columns(TraceFile(left, is_lazy=True).read_candidates(5, 20), rows(5, 20))
    assert sorted(path.name for path in left.iterdir()) == [
        "manifest.json",
        "shard-00000-00000.h5",
        "shard-00000-00001.h5",
    ]
    assert check_trace(left).state == "unfinished"


def test_it_is_resumed(left, tmp_path):
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True) as writer:
        assert writer.num_appended == 30
        assert writer.committed_candidates().query.tolist() == rows(0, 30).candidates.query.tolist()
        append(writer, 60, 30)
    write_file(tmp_path / "whole", HEADER, SYMBOLS, COLUMNS, facts=FACTS)
    assert_same_trace(read_trace(tmp_path / "a"), read_trace(tmp_path / "whole"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "whole"]


def test_a_piece_by_itself_has_no_names(left):
    assert_same_columns(read_trace(left / "shard-00000-00000.h5").columns, rows(0, 12))
    with pytest.raises(UserError, match="a piece of a recording, without the"):
        read_trace(left / "shard-00000-00001.h5")


def test_damaged_and_swapped_pieces_are_refused(left, tmp_path):
    pieces = [left / f"shard-00000-0000{i}.h5" for i in (0, 1)]
    contents = [path.read_bytes() for path in pieces]
    for path, content in zip(pieces, contents[::-1], strict=True):
        path.write_bytes(content)
    for read in (read_trace, TraceFile):
        with pytest.raises(UserError):
            read(left)
    pieces[0].write_bytes(contents[0])
    refused = 0
    for at in np.random.default_rng(0).integers(0, len(contents[1]), 20).tolist():
        changed = bytearray(contents[1])
        changed[at] ^= 4
        pieces[1].write_bytes(changed)
        try:
            assert_same_columns(read_trace(left).columns, rows(0, 30))
        except UserError:
            refused += 1
            with pytest.raises(UserError):
                open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True)
            assert check_trace(left).state == "damaged"
    assert refused


@pytest.mark.parametrize("shard_steps", [20, 10**6])
def test_many_pieces_are_joined(tmp_path, monkeypatch, shard_steps):
    monkeypatch.setattr(module, "_MOST_PIECES", 3)
    path, most = tmp_path / "a.partial", 0
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, shard_steps=shard_steps, commit_seconds=0) as writer:
        for i in range(60):
            writer.append(rows(i, i + 1))
            assert writer.num_committed == i + 1
            most = max(most, len(list(path.glob("shard-*-*.h5"))))
            if i % 7 == 0:
                assert_same_columns(read_trace(path).columns, rows(0, i + 1))
    assert most == 3
    assert_same_columns(read_trace(tmp_path / "a").columns, COLUMNS)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_the_time_since_the_last_commit_decides(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS)
    writer.append(rows(0, 3))
    assert writer.num_committed == 0
    now += 5
    writer.append(rows(3, 6))
    assert writer.num_committed == 6
    now += 4.9
    writer.append(rows(6, 9))
    assert writer.num_committed == 6


def test_digests_that_came_with_the_columns_are_taken_as_they_are(tmp_path):
    digests = compute_digests(COLUMNS)
    with open_writer(tmp_path / "a", HEADER, SYMBOLS) as writer:
        writer.append(COLUMNS, digests.sequence)
    assert_same_columns(read_trace(tmp_path / "a").columns, COLUMNS)
    with (
        open_writer(tmp_path / "b", HEADER, SYMBOLS, shard_steps=1) as writer,
        pytest.raises(UserError, match="found 3 digests for"),
    ):
        writer.append(COLUMNS, digests.sequence[:3])
    wrong = digests.sequence + np.uint64(1)
    with open_writer(tmp_path / "c", HEADER, SYMBOLS) as writer:
        writer.append(COLUMNS, wrong)
    with pytest.raises(UserError, match="step 0 has digest"):
        read_trace(tmp_path / "c")


@pytest.mark.parametrize("call", ["fsync", "pwritev", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_reported_with_the_safe_candidates(tmp_path, monkeypatch, call, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "a"

    def record():
        with open_writer(path, HEADER, SYMBOLS, commit_seconds=0, resume=True) as writer:
            append(writer, 30, writer.num_appended)
            monkeypatch.setattr(os, call, fail)
            append(writer, 60, 30)

    with pytest.raises(
        UserError, match=r"cannot be written.*the first 30 candidates are safe in .*a\.partial\n"
    ) as caught:
        record()
    assert os.strerror(number) in caught.value.message
    assert not path.exists()
    monkeypatch.undo()
    num = len(read_trace(tmp_path / "a.partial").columns.candidates.query)
    assert num >= 30
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, rows(0, num))
    with open_writer(path, HEADER, SYMBOLS, resume=True) as writer:
        append(writer, 60, writer.num_appended)
    assert_same_columns(read_trace(path).columns, COLUMNS)


def test_an_error_commits_what_was_appended(tmp_path):
    def interrupted():
        with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS) as writer:
            append(writer, 9)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, rows(0, 9))
    shutil.rmtree(tmp_path / "a.partial")
