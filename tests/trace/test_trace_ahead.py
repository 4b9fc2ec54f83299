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
import trace_builders as traces

from kgverify import UserError

COLUMNS = traces.make_columns(11, 60)
BATCH = 6
BEGINS = range(0, 60, BATCH)


@pytest.fixture(scope="module")
def batches(tmp_path_factory):
    """The candidates in batches, each with its digests."""
    sequence = traces.write_file(tmp_path_factory.mktemp("whole") / "a", COLUMNS).digests.sequence
    parts = [traces.rows(COLUMNS, begin, begin + BATCH) for begin in BEGINS]
    ends = np.cumsum([len(part.steps.depth) for part in parts])
    return list(zip(parts, np.split(sequence, ends[:-1]), strict=True))


def make_writer(path: Path, shard_steps: int = 1, **options):
    header = msgspec.structs.replace(traces.HEADER, recording="same")
    return traces.open_writer(path, header=header, shard_steps=shard_steps, commit_seconds=0, **options)


def record(path: Path, batches, num_threads: int, seconds: Callable[[int], float] = lambda number: 0.0, **options):
    def make(number: int):
        time.sleep(seconds(number))
        return batches[number]

    with make_writer(path, **options) as writer:
        parts = [partial(make, number) for number in range(writer.num_appended // BATCH, len(batches))]
        candidates = list(writer.append_parts(parts, num_threads))
        writer.set_rankings(traces.RANKINGS)
    return candidates


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


@pytest.mark.parametrize(
    ("num_threads", "shard_steps", "level"), [(1, 11, "steps"), (2, 30, "digests"), (4, 1, "steps")]
)
def test_the_trace_is_byte_for_byte_that_of_one_append_after_the_other(
    tmp_path, batches, num_threads, shard_steps, level
):
    with make_writer(tmp_path / "serial", shard_steps, level=level) as writer:
        for batch in batches:
            writer.append(*batch)
        writer.set_rankings(traces.RANKINGS)
    # The first of each two takes longer.
    options = {"seconds": lambda number: 0.01 * (number % 2 == 0), "shard_steps": shard_steps, "level": level}
    found = record(tmp_path / "ahead", batches, num_threads, **options)
    assert [c.query.tolist() for c in found] == [part.candidates.query.tolist() for part, _ in batches]
    expected = contents(tmp_path / "serial")
    assert len(expected) > 3
    assert contents(tmp_path / "ahead") == expected


def fail_at(monkeypatch, name: str) -> None:
    """Let the write of a shard find no space."""
    replace = os.replace

    def replace_slowly(source, target, **options):
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        time.sleep(0.02)
        replace(source, target, **options)

    monkeypatch.setattr(os, "replace", replace_slowly)


@pytest.mark.parametrize(("num_threads", "failing"), [(1, 2), (2, 0), (3, 3)])
def test_a_disk_that_is_full_in_one_of_several_shards_leaves_a_prefix_and_says_so(
    tmp_path, batches, monkeypatch, num_threads, failing
):
    path, unfinished = tmp_path / "a", tmp_path / "a.partial"
    with monkeypatch.context() as patch:
        fail_at(patch, f"shard-{failing:05d}.h5")
        with pytest.raises(UserError, match=f"shard-0000{failing}.h5 cannot be written: No space left") as caught:
            record(path, batches, num_threads)
    safe = f"the first {failing * BATCH} candidates are safe" if failing else "nothing was safe yet"
    assert safe in caught.value.message
    left = sorted(each.name for each in unfinished.iterdir())
    assert left == (["manifest.json"] if failing else []) + [f"shard-{i:05d}.h5" for i in range(failing)]
    if failing:
        assert traces.run("check", unfinished)["state"] == "unfinished"
        traces.assert_same_columns(traces.read(unfinished).columns, traces.rows(COLUMNS, failing * BATCH))
    record(path, batches, num_threads, resume=True)
    record(tmp_path / "whole", batches, 1)
    assert contents(path) == contents(tmp_path / "whole")


def test_what_is_committed_before_a_shard_that_fails_is_safe(tmp_path, batches, monkeypatch):
    """Candidates 0 to 5 are committed as a piece; those after them fill a shard with them, and it finds no space."""
    first, _ = batches[0]
    with monkeypatch.context() as patch:
        fail_at(patch, "shard-00000.h5")
        with pytest.raises(UserError, match=rf"shard-00000.h5 cannot.*the first {BATCH} candidates are safe"):
            record(tmp_path / "a", batches, 3, shard_steps=len(first.steps.depth))
    traces.assert_same_columns(traces.read(tmp_path / "a.partial").columns, first)
    record(tmp_path / "a", batches, 3, resume=True)
    traces.assert_same_columns(traces.read(tmp_path / "a").columns, COLUMNS)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_after_a_batch_that_is_refused_nothing_is_appended(tmp_path, batches, num_threads):
    columns, sequence = batches[2]
    spoilt = columns._replace(steps=columns.steps._replace(outcome=columns.steps.outcome + np.int8(9)))
    with pytest.raises(UserError, match="expected a code of Outcome"):
        record(tmp_path / "a", [*batches[:2], (spoilt, sequence), *batches[3:]], num_threads)
    left = sorted(each.name for each in (tmp_path / "a.partial").iterdir())
    assert left == ["manifest.json", "shard-00000.h5", "shard-00001.h5"]
    record(tmp_path / "a", batches, num_threads, resume=True)
    traces.assert_same_columns(traces.read(tmp_path / "a").columns, COLUMNS)


@pytest.mark.parametrize("num_threads", [1, 4])
def test_no_more_parts_than_threads_are_in_memory_beside_the_one_being_made(
    tmp_path, batches, monkeypatch, num_threads
):
    fail_at(monkeypatch, "")
    lock, held, most = threading.Lock(), 0, 0

    def parts():
        nonlocal held, most
        for batch in batches:
            with lock:
                held += 1
                most = max(most, held)
            yield lambda batch=batch: batch

    with make_writer(tmp_path / "a") as writer:
        for _ in writer.append_parts(parts(), num_threads):
            with lock:
                held -= 1
    assert most == num_threads + 1
