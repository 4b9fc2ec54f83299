"""Several threads append: the trace of one, in order, and no more is kept than one would keep."""

import errno
import os
import threading
import time
from functools import partial

import msgspec
import numpy as np
import pytest
from trace_builders import FACTS, HEADER, RANKINGS, SYMBOLS, assert_same_columns, make_columns, open_writer

from kgverify import UserError
from kgverify.files import writing as writing_files
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_sequence
from kgverify.trace.read.trace_file import read_trace

COLUMNS = make_columns(11, 60)
BATCH = 6


def batch(begin, stop=None):
    columns = select_candidates(COLUMNS, np.arange(begin, min(stop or begin + BATCH, 60)))
    return columns, compute_sequence(columns)


def given(begin, *, seconds=0.0):
    time.sleep(seconds)
    return batch(begin)


def make_writer(path, shard_steps=1, **options):
    header = msgspec.structs.replace(HEADER, recording="same")
    return open_writer(path, header, SYMBOLS, facts=FACTS, shard_steps=shard_steps, commit_seconds=0, **options)


def record(path, num_threads, *, shard_steps=1, seconds=lambda begin: 0.0, **options):
    with make_writer(path, shard_steps, **options) as writer:
        parts = [partial(given, b, seconds=seconds(b)) for b in range(writer.num_appended, 60, BATCH)]
        candidates = list(writer.append_parts(parts, num_threads))
        writer.set_rankings(RANKINGS)
    return candidates


def contents(path):
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.mark.sample(3, deep=8)
@pytest.mark.parametrize("level", ["digests", "compact", "steps"])
@pytest.mark.parametrize("shard_steps", [1, 11, 30])
@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_the_trace_is_byte_for_byte_that_of_one_append_after_the_other(tmp_path, num_threads, shard_steps, level):
    with make_writer(tmp_path / "serial", shard_steps, level=level) as writer:
        for begin in range(0, 60, BATCH):
            writer.append(*batch(begin))
        writer.set_rankings(RANKINGS)
    # The first of each two takes the longer.
    found = record(
        tmp_path / "ahead",
        num_threads,
        shard_steps=shard_steps,
        level=level,
        seconds=lambda begin: 0.01 * (begin % (2 * BATCH) == 0),
    )
    assert [c.query.tolist() for c in found] == [batch(b)[0].candidates.query.tolist() for b in range(0, 60, BATCH)]
    expected = contents(tmp_path / "serial")
    assert len(expected) > 3
    assert contents(tmp_path / "ahead") == expected


def fail_at(monkeypatch, name, *, number=errno.ENOSPC):
    """A shard whose write finds no room, until it is undone."""
    original = writing_files.sync_file

    def sync(path):
        if path.name.startswith(f".{name}."):
            raise OSError(number, os.strerror(number))
        time.sleep(0.02)
        original(path)

    monkeypatch.setattr(writing_files, "sync_file", sync)


@pytest.mark.sample(2, deep=5)
@pytest.mark.parametrize("failing", [0, 1, 2, 3])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_disk_that_is_full_in_one_of_several_shards_leaves_a_prefix_and_says_so(
    tmp_path, monkeypatch, num_threads, failing
):
    path = tmp_path / "a"
    with monkeypatch.context() as patch:
        fail_at(patch, f"shard-{failing:05d}.h5")
        with pytest.raises(UserError, match=f"shard-0000{failing}.h5 cannot be written: No space left") as caught:
            record(path, num_threads)
    safe = f"the first {failing * BATCH} candidates are safe" if failing else "nothing was safe yet"
    assert safe in caught.value.message
    left = sorted(each.name for each in (tmp_path / "a.partial").iterdir())
    assert left == (["manifest.json"] if failing else []) + [f"shard-{i:05d}.h5" for i in range(failing)]
    if failing:
        assert check_trace(tmp_path / "a.partial").state == "unfinished"
        assert_same_columns(read_trace(tmp_path / "a.partial").columns, batch(0, failing * BATCH)[0])
    record(path, num_threads, resume=True)
    record(tmp_path / "whole", 1)
    assert contents(path) == contents(tmp_path / "whole")


def test_what_is_committed_before_a_shard_that_fails_is_safe(tmp_path, monkeypatch):
    """Candidates 0 to 5 are committed as a piece; those after them fill a shard with them, and it finds no room."""
    path = tmp_path / "a"

    def interrupted():
        with make_writer(path, len(batch(0)[0].steps.depth)) as writer:
            fail_at(monkeypatch, "shard-00000.h5")
            list(writer.append_parts([partial(batch, b) for b in range(0, 60, BATCH)], 3))

    with pytest.raises(UserError, match=rf"shard-00000.h5 cannot be written.*the first {BATCH} candidates are safe"):
        interrupted()
    monkeypatch.undo()
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, batch(0)[0])
    record(path, 3, resume=True)
    assert_same_columns(read_trace(path).columns, COLUMNS)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_batch_that_cannot_be_is_refused_and_nothing_after_it_is_taken_in(tmp_path, num_threads):
    def spoilt():
        columns, sequence = batch(2 * BATCH)
        return columns._replace(steps=columns.steps._replace(outcome=columns.steps.outcome + np.int8(9))), sequence

    parts = [partial(batch, 0), partial(batch, BATCH), spoilt, *(partial(batch, b) for b in range(18, 60, BATCH))]

    def interrupted(writer):
        with writer:
            list(writer.append_parts(parts, num_threads))

    writer = make_writer(tmp_path / "a")
    with pytest.raises(UserError, match="expected a code of Outcome"):
        interrupted(writer)
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(*batch(18))
    left = sorted(each.name for each in (tmp_path / "a.partial").iterdir())
    assert left == ["manifest.json", "shard-00000.h5", "shard-00001.h5"]
    record(tmp_path / "a", num_threads, resume=True)
    assert_same_columns(read_trace(tmp_path / "a").columns, COLUMNS)


def test_a_batch_that_one_append_refuses_can_be_given_again(tmp_path):
    with make_writer(tmp_path / "a") as writer:
        writer.append(*batch(0))
        columns, sequence = batch(BATCH)
        wrong = columns._replace(steps=columns.steps._replace(outcome=columns.steps.outcome + np.int8(9)))
        with pytest.raises(UserError, match="expected a code of Outcome"):
            writer.append(wrong, sequence)
        assert (writer.num_committed, writer.num_appended) == (BATCH, BATCH)
        for begin in range(BATCH, 60, BATCH):
            writer.append(*batch(begin))
        writer.set_rankings(RANKINGS)
    record(tmp_path / "whole", 1)
    assert contents(tmp_path / "a") == contents(tmp_path / "whole")


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_no_more_parts_than_threads_are_in_memory_beside_the_one_being_made(tmp_path, monkeypatch, num_threads):
    original = writing_files.sync_file
    monkeypatch.setattr(writing_files, "sync_file", lambda path: (time.sleep(0.01), original(path)))
    lock, held, most = threading.Lock(), 0, 0

    def parts():
        nonlocal held, most
        for begin in range(0, 60, BATCH):
            with lock:
                held += 1
                most = max(most, held)
            yield partial(batch, begin)

    with make_writer(tmp_path / "a") as writer:
        for _ in writer.append_parts(parts(), num_threads):
            with lock:
                held -= 1
    assert most == num_threads + 1
