"""Several threads append: the trace is the one that a single thread writes, and no more is in memory than it would keep."""

import errno
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from trace_builders import (
    HEADER,
    RANKINGS,
    assert_same_columns,
    make_columns,
    open_writer,
    read,
    rows,
    run,
)

from kgverify import UserError
from kgverify.files import writing as writing_files
from kgverify.trace.model.digests import compute_sequence

COLUMNS = make_columns(11, 60)
BATCH = 6


def batch(begin: int, seconds: float = 0.0):
    time.sleep(seconds)
    columns = rows(COLUMNS, begin, begin + BATCH)
    return columns, compute_sequence(columns)


def make_writer(path: Path, shard_steps: int = 1, **options):
    header = msgspec.structs.replace(HEADER, recording="same")
    return open_writer(path, header=header, shard_steps=shard_steps, commit_seconds=0, **options)


def record(path: Path, num_threads: int, seconds: Callable[[int], float] = lambda begin: 0.0, **options):
    with make_writer(path, **options) as writer:
        parts = [partial(batch, b, seconds(b)) for b in range(writer.num_appended, 60, BATCH)]
        candidates = list(writer.append_parts(parts, num_threads))
        writer.set_rankings(RANKINGS)
    return candidates


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def spoil(columns):
    return columns._replace(steps=columns.steps._replace(outcome=columns.steps.outcome + np.int8(9)))


@pytest.mark.parametrize(
    ("num_threads", "shard_steps", "level"), [(1, 11, "compact"), (2, 30, "digests"), (4, 1, "steps")]
)
def test_the_trace_is_byte_for_byte_that_of_one_append_after_the_other(tmp_path, num_threads, shard_steps, level):
    with make_writer(tmp_path / "serial", shard_steps, level=level) as writer:
        for begin in range(0, 60, BATCH):
            writer.append(*batch(begin))
        writer.set_rankings(RANKINGS)
    # The first of each two takes longer.
    seconds = lambda begin: 0.01 * (begin % (2 * BATCH) == 0)  # noqa: E731
    found = record(tmp_path / "ahead", num_threads, seconds, shard_steps=shard_steps, level=level)
    assert [c.query.tolist() for c in found] == [batch(b)[0].candidates.query.tolist() for b in range(0, 60, BATCH)]
    expected = contents(tmp_path / "serial")
    assert len(expected) > 3
    assert contents(tmp_path / "ahead") == expected


def fail_at(monkeypatch, name: str) -> None:
    """Let the write of a shard find no space."""
    original = writing_files.sync_file

    def sync(path):
        if path.name.startswith(f".{name}."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        time.sleep(0.02)
        original(path)

    monkeypatch.setattr(writing_files, "sync_file", sync)


@pytest.mark.parametrize(("num_threads", "failing"), [(1, 2), (2, 0), (3, 3)])
def test_a_disk_that_is_full_in_one_of_several_shards_leaves_a_prefix_and_says_so(
    tmp_path, monkeypatch, num_threads, failing
):
    path, unfinished = tmp_path / "a", tmp_path / "a.partial"
    with monkeypatch.context() as patch:
        fail_at(patch, f"shard-{failing:05d}.h5")
        with pytest.raises(UserError, match=f"shard-0000{failing}.h5 cannot be written: No space left") as caught:
            record(path, num_threads)
    safe = f"the first {failing * BATCH} candidates are safe" if failing else "nothing was safe yet"
    assert safe in caught.value.message
    left = sorted(each.name for each in unfinished.iterdir())
    assert left == (["manifest.json"] if failing else []) + [f"shard-{i:05d}.h5" for i in range(failing)]
    if failing:
        assert run("check", unfinished)["state"] == "unfinished"
        assert_same_columns(read(unfinished).columns, rows(COLUMNS, failing * BATCH))
    record(path, num_threads, resume=True)
    record(tmp_path / "whole", 1)
    assert contents(path) == contents(tmp_path / "whole")


def test_what_is_committed_before_a_shard_that_fails_is_safe(tmp_path, monkeypatch):
    """Candidates 0 to 5 are committed as a piece; those after them fill a shard with them, and it finds no space."""
    fail_at(monkeypatch, "shard-00000.h5")
    with pytest.raises(UserError, match=rf"shard-00000.h5 cannot be written.*the first {BATCH} candidates are safe"):
        record(tmp_path / "a", 3, shard_steps=len(batch(0)[0].steps.depth))
    monkeypatch.undo()
    assert_same_columns(read(tmp_path / "a.partial").columns, batch(0)[0])
    record(tmp_path / "a", 3, resume=True)
    assert_same_columns(read(tmp_path / "a").columns, COLUMNS)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_after_a_batch_that_is_refused_nothing_is_appended(tmp_path, num_threads):
    def spoilt():
        columns, sequence = batch(2 * BATCH)
        return spoil(columns), sequence

    def append_all(writer):
        with writer:
            list(writer.append_parts(parts, num_threads))

    parts = [partial(batch, 0), partial(batch, BATCH), spoilt, *(partial(batch, b) for b in range(18, 60, BATCH))]
    writer = make_writer(tmp_path / "a")
    with pytest.raises(UserError, match="expected a code of Outcome"):
        append_all(writer)
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(*batch(18))
    left = sorted(each.name for each in (tmp_path / "a.partial").iterdir())
    assert left == ["manifest.json", "shard-00000.h5", "shard-00001.h5"]
    record(tmp_path / "a", num_threads, resume=True)
    assert_same_columns(read(tmp_path / "a").columns, COLUMNS)


@pytest.mark.parametrize("num_threads", [1, 4])
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
