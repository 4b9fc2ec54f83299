"""The journal: appended batches survive, a torn end is dropped, damage is distinguished from it."""

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

from kgverify.errors import UserError
from kgverify.trace.files.journal import read_journal
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.read.trace_file import read_trace

COLUMNS = make_columns(11, 60)


def rows(start, stop):
    return select_candidates(COLUMNS, np.arange(start, stop))


def append(writer, stop, start=0):
    for i in range(start, stop, 3):
        writer.append(rows(i, i + 3))


@pytest.fixture
def left(tmp_path):
    """A recording that stopped after 30 candidates, 12 of them forced to disk, all in its journal."""
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, journal_seconds=1e9)
    append(writer, 12)
    writer.sync()
    assert (writer.num_committed, writer.num_appended) == (12, 12)
    append(writer, 30, 12)
    assert (writer.num_committed, writer.num_appended) == (12, 30)
    return tmp_path / "a.partial"


def frames(journal):
    """Return the offset of each frame."""
    content, found, at = journal.read_bytes(), [], 0
    while (at := content.find(b"KGVJRNL1", at)) >= 0:
        found.append(at)
        at += 1
    return found


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_what_was_appended_reads_without_a_shard(left):
    trace = read_trace(left)
    assert not trace.is_complete
    assert_same_columns(trace.columns, rows(0, 30))
    assert [p.name for p in left.iterdir()] == ["journal-00000"]
    assert check_trace(left).state == "unfinished"


def test_it_is_resumed(left, tmp_path):
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True) as writer:
        assert writer.num_appended == 30
        assert writer.committed_candidates().query.tolist() == rows(0, 30).candidates.query.tolist()
        append(writer, 60, 30)
    write_file(tmp_path / "whole", HEADER, SYMBOLS, COLUMNS, facts=FACTS)
    assert_same_trace(read_trace(tmp_path / "a"), read_trace(tmp_path / "whole"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "whole"]


@pytest.mark.deep
def test_every_cut_leaves_a_prefix_of_what_was_appended(left, tmp_path):
    journal = left / "journal-00000"
    content = journal.read_bytes()
    begins = frames(journal)
    assert len(begins) == 12
    seen = set()
    for cut in sorted({*begins, *range(0, len(content), 211)}):
        journal.write_bytes(content[:cut])
        found = read_journal(journal)
        assert not found.is_damaged
        num = sum(batch.num_candidates for batch in found.batches)
        # The first frame is the start, the sixth a commit.
        ends = [end for i, end in enumerate([*begins[1:], len(content)]) if i not in (0, 5)]
        assert num == 3 * sum(end <= cut for end in ends)
        seen.add(num)
        if num:
            assert_same_columns(read_trace(left).columns, rows(0, num))
        report = repair_trace(shutil.copytree(left, tmp_path / "copy.partial"))
        assert (report.losses, report.num_candidates) == ((), num)
        shutil.rmtree(tmp_path / "copy.partial")
    assert seen == set(range(0, 30, 3))


@pytest.mark.deep
def test_no_flipped_bit_is_read(left):
    journal = left / "journal-00000"
    content = journal.read_bytes()
    refused = 0
    for at in np.random.default_rng(0).integers(0, len(content), 150).tolist():
        flip(journal, at)
        try:
            columns = read_trace(left).columns
        except UserError:
            refused += 1
            assert check_trace(left).state == "damaged"
        else:
            num = len(columns.candidates.query)
            assert num >= 12
            assert_same_columns(columns, rows(0, num))
        journal.write_bytes(content)
    assert refused


def test_damage_before_a_commit_is_no_torn_end(left, tmp_path):
    journal = left / "journal-00000"
    flip(journal, frames(journal)[2] + 300)
    with pytest.raises(UserError, match=r"journal-00000: damaged: a frame whose checksum.*\nfix: .*trace repair"):
        read_trace(left)
    with pytest.raises(UserError, match="damaged"):
        open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True)
    assert check_trace(left).parts[0].problem
    report = repair_trace(left)
    assert [(loss.num_candidates, loss.num_steps) for loss in report.losses] == [(3, len(rows(3, 6).steps.depth))]
    assert report.original.endswith("a.partial.unrepaired")
    kept = select_candidates(COLUMNS, np.r_[0:3, 6:30])
    assert_same_columns(read_trace(left).columns, kept)
    with pytest.raises(UserError, match="so that it cannot be resumed"):
        open_writer(tmp_path / "a", HEADER, SYMBOLS, facts=FACTS, resume=True)


def test_the_next_commit_reveals_the_loss_of_a_frame_without_a_head(left):
    journal = left / "journal-00000"
    flip(journal, frames(journal)[2] + 8)
    (loss,) = repair_trace(left).losses
    assert (loss.num_candidates, loss.num_steps) == (3, len(rows(3, 6).steps.depth))


def test_a_journal_without_its_first_frame_is_reported(left):
    flip(left / "journal-00000", 20)
    assert check_trace(left).state == "damaged"
    with pytest.raises(UserError, match="nothing of it can be kept"):
        repair_trace(left)
    assert (left / "journal-00000").is_file()


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
        with open_writer(path, HEADER, SYMBOLS, journal_seconds=0, resume=True) as writer:
            append(writer, 30, writer.num_appended)
            monkeypatch.setattr(os, call, fail)
            append(writer, 60, 30)

    with pytest.raises(
        UserError, match=r"cannot be written.*the first \d+ candidates are safe in .*a\.partial\n"
    ) as caught:
        record()
    assert os.strerror(number) in caught.value.message
    assert not path.exists()
    monkeypatch.undo()
    num = len(read_trace(tmp_path / "a.partial").columns.candidates.query)
    assert num >= 30
    assert f"the first {30 if call != 'replace' else 60} candidates" in caught.value.message
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, rows(0, num))
    with open_writer(path, HEADER, SYMBOLS, resume=True) as writer:
        append(writer, 60, writer.num_appended)
    assert_same_columns(read_trace(path).columns, COLUMNS)
