"""Levels: the datasets that each keeps, its size, and conversion between levels."""

import json

import h5py
import msgspec
import numpy as np
import pytest
from hostile_traces import reseal
from trace_builders import (
    FACT_LINES,
    FACTS,
    HEADER,
    RANKINGS,
    RULES,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import Packing, TraceLevel, encode_level
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import encode_trace, write_again

COLUMNS = make_columns(4, 30, has_stages=True)
PROGRAM = {"facts": FACTS, "fact_lines": FACT_LINES, "rules": RULES}

of_every_level = pytest.mark.parametrize("level", list(TraceLevel))


def write(path, level="steps", columns=COLUMNS, **options):
    write_file(path, HEADER, SYMBOLS, columns, RANKINGS, **(PROGRAM | {"level": level} | options))
    return read_trace(path)


@of_every_level
@pytest.mark.parametrize("is_archived", [False, True])
def test_a_level_holds_its_columns_and_says_so(tmp_path, level, is_archived):
    full = write(tmp_path / "full")
    trace = write(tmp_path / "a", level, is_archived=is_archived)
    assert trace.header.level == level
    held = {name for name in trace.fields if name.startswith(("candidates", "steps", "resolvents"))}
    assert held == KNOWLEDGE_GRAPH.columns_kept(level)
    for name in held:
        group, column = name.split(".")
        np.testing.assert_array_equal(
            getattr(getattr(trace.columns, group), column), getattr(getattr(COLUMNS, group), column), name
        )
    assert len(trace.columns.steps.depth) == len(COLUMNS.steps.depth)
    np.testing.assert_array_equal(trace.digests.sequence, full.digests.sequence)
    assert trace.root == full.root
    assert trace.is_complete
    for actual, expected in zip(trace.rankings, RANKINGS, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_steps_and_their_archive_are_the_same_trace(tmp_path):
    plain, archived = write(tmp_path / "a"), write(tmp_path / "b", is_archived=True)
    assert_same_columns(archived.columns, plain.columns)
    for actual, expected in zip(archived.digests, plain.digests, strict=True):
        np.testing.assert_array_equal(actual, expected)
    with h5py.File(tmp_path / "b") as file:
        assert {d.compression for d in (file["steps/depth"], file["digests/sequence"])} == {"gzip"}
        assert all(d.shuffle and d.fletcher32 for d in file["steps"].values())
        assert list(file["digests"]) == ["sequence"]


@of_every_level
def test_a_recording_in_shards_has_its_level_in_every_shard(tmp_path, level):
    path = tmp_path / "a"

    def record(num, **options):
        with open_writer(path, HEADER, SYMBOLS, shard_steps=20, level=level, **PROGRAM, **options) as writer:
            for i in range(writer.num_committed, num):
                writer.append(select_candidates(COLUMNS, np.array([i])))
            if num < 30:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        record(20)
    record(30, resume=True)
    assert len(list(path.iterdir())) > 3
    trace = read_trace(path)
    assert (trace.header.level, trace.root) == (level, write(tmp_path / "one", level).root)


@of_every_level
def test_a_trace_is_written_again_as_it_is(tmp_path, level):
    trace = write(tmp_path / "a", level)
    write_again(trace, tmp_path / "b")
    assert_same_trace(read_trace(tmp_path / "b"), trace)


@of_every_level
def test_what_a_level_requires_is_required(tmp_path, level):
    trace = write(tmp_path / "a", level)
    for field in sorted(KNOWLEDGE_GRAPH.required(level)):
        arrays = encode_trace(trace)
        del arrays[field]
        write_arrays(tmp_path / "b", arrays, "test")
        with pytest.raises(UserError, match="missing") as caught:
            read_trace(tmp_path / "b")
        assert caught.value.where.endswith(field)


@of_every_level
def test_what_a_level_leaves_out_may_not_be_there(tmp_path, level):
    trace, full = write(tmp_path / "a", level), write(tmp_path / "full", "deep")
    every = encode_trace(full) | encode_level("digests", full.digests)
    for field in sorted(KNOWLEDGE_GRAPH.left_out(level)):
        arrays = encode_trace(trace) | {field: every[field]}
        write_arrays(tmp_path / "b", arrays, "test")
        with pytest.raises(UserError, match=f"the level is '{level}'|missing, while"):
            read_trace(tmp_path / "b")


def test_an_unknown_level_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown level 'digest'") as caught:
        write(tmp_path / "a", "digest")
    assert "digests" in caught.value.fix


def test_digests_that_count_no_dropped_resolvents_say_so(tmp_path):
    absent = ("steps.dropped_atoms", "steps.dropped_resolvents")
    assert write(tmp_path / "a", "digests", absent=absent).header.absent == absent
    assert write(tmp_path / "b", "steps", absent=absent).header.absent == ()
    convert_trace(tmp_path / "b", tmp_path / "c", TraceLevel.DIGESTS)
    assert read_trace(tmp_path / "c").header.absent == absent
    assert write(tmp_path / "d", "digests").header.absent == ()


@pytest.mark.parametrize("level", list(TraceLevel))
@pytest.mark.parametrize("is_archived", [False, True])
def test_a_converted_trace_is_the_one_recorded_at_that_level(tmp_path, level, is_archived):
    write(tmp_path / "full", "deep")
    convert_trace(tmp_path / "full", tmp_path / "a", level, is_archived=is_archived)
    assert_same_trace(read_trace(tmp_path / "a"), write(tmp_path / "b", level, is_archived=is_archived))


def test_a_level_is_not_raised_without_what_it_left_out(tmp_path):
    write(tmp_path / "a", "digests")
    for level in (TraceLevel.COMPACT, TraceLevel.STEPS):
        with pytest.raises(UserError, match="cannot be restored"):
            convert_trace(tmp_path / "a", tmp_path / "b", level)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@of_every_level
def test_a_folder_is_converted_shard_by_shard(tmp_path, level):
    with open_writer(tmp_path / "a", HEADER, SYMBOLS, shard_steps=20, level="deep", **PROGRAM) as writer:
        for i in range(30):
            writer.append(select_candidates(COLUMNS, np.array([i])))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "manifest.json").write_text("{}")
    done = convert_trace(tmp_path / "a", tmp_path / "b", level)
    original, converted = read_trace(tmp_path / "a"), read_trace(tmp_path / "b")
    assert (converted.root, converted.is_complete, converted.header.level) == (original.root, True, level)
    assert (done.num_candidates, done.num_steps) == (30, len(COLUMNS.steps.depth))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert {p.name for p in (tmp_path / "a").iterdir()} == {p.name for p in (tmp_path / "b").iterdir()}


def add_unknown(path):
    with h5py.File(path, "r+") as file:
        file["steps/colour"] = np.arange(len(COLUMNS.steps.depth), dtype="<u2")
        file["later/deep/numbers"] = np.ones((2, 3, 4), "<f4")
        file["later/text"] = "of variable length"
        file["later/link"] = h5py.SoftLink("/steps/depth")
        raw = json.loads(file["header"][()].tobytes())
        raw["future"] = {"a": [1, None]}
        raw["engine"]["warp"] = 9
        del file["header"]
        file["header"] = np.frombuffer(json.dumps(raw).encode(), np.uint8)
    reseal(path)


@of_every_level
def test_what_this_version_does_not_know_is_kept(tmp_path, level):
    write(tmp_path / "a", level)
    add_unknown(tmp_path / "a")
    trace = read_trace(tmp_path / "a")
    assert trace.header == msgspec.structs.replace(HEADER, level=level.value)
    write_again(trace, tmp_path / "b")
    done = convert_trace(tmp_path / "a", tmp_path / "c", is_archived=True)
    assert done.dropped == ("later/link", "later/text")
    for path in (tmp_path / "b", tmp_path / "c"):
        again = read_trace(path)
        assert again.unknown.header == {"future": {"a": [1, None]}, "engine": {"warp": 9}}
        assert again.unknown.arrays.keys() == {"steps/colour", "later/deep/numbers"}
        for name, array in trace.unknown.arrays.items():
            np.testing.assert_array_equal(again.unknown.arrays[name], array)
            assert again.unknown.arrays[name].dtype == array.dtype


def test_an_unknown_dataset_that_was_altered_is_refused(tmp_path):
    write_again(write(tmp_path / "a"), tmp_path / "b")
    add_unknown(tmp_path / "b")
    write_again(read_trace(tmp_path / "b"), tmp_path / "c")
    with h5py.File(tmp_path / "c", "r+") as file:
        file["steps/colour"][0] += 1
    with pytest.raises(UserError, match="the data were altered"):
        read_trace(tmp_path / "c")


def test_what_would_unpack_to_too_much_is_written_plain(tmp_path):
    trace = write(tmp_path / "a")
    arrays = encode_trace(trace) | {"later/zeros": np.zeros(80 << 20, np.uint8)}
    write_arrays(tmp_path / "b", arrays, "test", Packing.ARCHIVE)
    assert read_trace(tmp_path / "b").unknown.arrays["later/zeros"].nbytes == 80 << 20
