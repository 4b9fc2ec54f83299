"""Levels: the columns that each keeps, and conversion between them."""

import json

import h5py
import msgspec
import numpy as np
import pytest
import trace_builders as traces
from hostile_traces import alter, reseal

import kgverify as kv
from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.schema import Packing

COLUMNS = traces.make_columns(4, 30, has_stages=True)
LEVELS = ["digests", "steps", "deep"]


def write(path, level="steps", columns=COLUMNS, **options):
    return traces.write_file(path, columns, traces.RANKINGS, level=level, **traces.PROGRAM, **options)


@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_has_its_columns_as_they_were_recorded_and_as_they_are_converted(
    tmp_path, monkeypatch, level, is_archived
):
    # Many chunks, the last of each dataset cut off.
    monkeypatch.setattr("kgverify.trace.hdf5.writing._CHUNK_BYTES", 64)
    full = write(tmp_path / "full", "deep")
    trace = write(tmp_path / "a", level, is_archived=is_archived)
    assert (trace.header.level, trace.root, trace.is_complete) == (level, full.root, True)
    kept = {name for name in trace.fields if name.startswith(("candidates", "steps", "resolvents"))}
    assert kept == KNOWLEDGE_GRAPH.columns_kept(level)
    for group, column in (name.split(".") for name in kept):
        expected = getattr(getattr(COLUMNS, group), column)
        np.testing.assert_array_equal(getattr(getattr(trace.columns, group), column), expected)
    np.testing.assert_array_equal(trace.digests.sequence, full.digests.sequence)
    traces.assert_same_columns(traces.read_mapped(tmp_path / "a"), trace.columns)
    chosen, mapped = np.random.default_rng(1).permutation(30)[:11], kv.open_trace(tmp_path / "a")
    traces.assert_same_columns(mapped.gather_candidates(chosen), traces.take(trace.columns, chosen))
    archive = ["--archive"] if is_archived else []
    traces.run("convert", tmp_path / "full", tmp_path / "b", "--level", level, *archive)
    traces.assert_same_trace(traces.read(tmp_path / "b"), trace)
    if level == "steps":
        with h5py.File(tmp_path / "b") as file:
            assert file["steps/depth"].compression == ("gzip" if is_archived else None)
    if level == "digests":
        with pytest.raises(UserError, match="keeps no goals: there is no step to show"):
            mapped.step(int(np.argmax(COLUMNS.candidates.num_steps)), 0)


@pytest.mark.parametrize("level", ["digests", "deep"])
def test_a_folder_is_converted_shard_by_shard(tmp_path, level):
    traces.write_shards(tmp_path / "a", COLUMNS, level="deep")
    traces.run("convert", tmp_path / "a", tmp_path / "b", "--level", level)
    original, converted = traces.read(tmp_path / "a"), traces.read(tmp_path / "b")
    assert (converted.root, converted.is_complete, converted.header.level) == (original.root, True, level)
    assert {p.name for p in (tmp_path / "a").iterdir()} == {p.name for p in (tmp_path / "b").iterdir()}


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_level_requires_is_required_and_what_it_leaves_out_is_refused(tmp_path, level):
    write(tmp_path / "full", "deep")
    write(tmp_path / "a", level)
    content = (tmp_path / "a").read_bytes()
    for field in sorted(KNOWLEDGE_GRAPH.required(level)):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UserError, match="missing") as caught:
            traces.read(alter(tmp_path / "a", {field: None}))
        assert caught.value.where.endswith(field)
    for field in sorted(KNOWLEDGE_GRAPH.left_out(level)):
        (tmp_path / "a").write_bytes(content)
        with h5py.File(tmp_path / "full") as full, h5py.File(tmp_path / "a", "r+") as file:
            dtype = KNOWLEDGE_GRAPH.column_of[field].dtypes[0]
            file[field] = full[field][()] if field in full else np.zeros(len(COLUMNS.steps.depth), dtype)
        reseal(tmp_path / "a")
        with pytest.raises(UserError, match=f"the level is '{level}'|missing, while"):
            traces.read(tmp_path / "a")


def test_digests_that_count_no_dropped_resolvents_say_so(tmp_path):
    absent = ("steps.dropped_atoms", "steps.dropped_resolvents")
    declared = msgspec.structs.replace(traces.HEADER, absent=absent)
    assert write(tmp_path / "a", "digests", absent=absent).header.absent == absent
    assert write(tmp_path / "b", "steps", absent=absent).header.absent == ()
    traces.run("convert", tmp_path / "b", tmp_path / "c", "--level", "digests")
    assert traces.read(tmp_path / "c").header.absent == absent
    assert write(tmp_path / "d", "digests").header.absent == ()
    assert write(tmp_path / "e", "digests", header=declared).header.absent == absent


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


@pytest.mark.parametrize("level", LEVELS)
def test_what_the_format_does_not_name_is_ignored(tmp_path, level):
    header = msgspec.structs.replace(traces.HEADER, recording="mine")
    expected = write(tmp_path / "a", level, header=header)
    add_unknown(tmp_path / "a")
    trace = traces.read(tmp_path / "a")
    assert (trace.header, trace.root) == (msgspec.structs.replace(header, level=level), expected.root)
    traces.run("convert", tmp_path / "a", tmp_path / "b", "--archive")
    assert traces.read(tmp_path / "b").root == expected.root
    with h5py.File(tmp_path / "b") as file:
        assert "later" not in file
        assert "colour" not in file.get("steps", ())


def test_what_would_unpack_to_more_than_a_reader_admits_is_written_plain(tmp_path):
    write_arrays(tmp_path / "a", {"program/facts": np.zeros((7 << 20, 3), np.int32)}, "test", Packing.ARCHIVE)
    assert (tmp_path / "a").stat().st_size > 80 << 20


DEEP = {
    "select": ["grenzt_an_ü(entität 2, X0)"],
    "match_rules": ["r0 [rules.txt:1]", "r2 [rules.txt:1]"],
    "match_facts": [],
    "resolve": [
        "grenzt_an_ü(entität 2, X0), locatedIn(X0, entität 3)   by r0 [rules.txt:1]",
        "(no atoms)   by r2 [rules.txt:1]",
    ],
    "prune": ["no atom   by r0 [rules.txt:1]"],
    "rename": [],
    "revisit": ["grenzt_an_ü(entität 2, X0)   by r0 [rules.txt:1]"],
    "close": ["grenzt_an_ü(entität 2, X0)   by r0 [rules.txt:1]", "FALSE"],
    "limit": [
        "dropped 2 by max_atoms, 2 by max_resolvents",
        "TRUE   by fact grenzt_an_ü(entität 1, entität 2) [train.txt:2]",
    ],
    "score": ["0.5", "-inf", "-0.0"],
    "choose": ["-1"],
    "advance": ["TRUE, with atoms left: locatedIn(entität 0, entität 0) at depth 7"],
    "finish": ["DEPTH_LIMIT"],
}


def test_outputs_of_stages_are_shown_as_they_were_recorded(tmp_path):
    write(tmp_path / "a", "deep")
    trace = kv.open_trace(tmp_path / "a")
    shown = [trace.step(candidate, 0).get("stages") for candidate in range(3)]
    fact = "fact locatedIn(entität 5, entität 6) [train.txt:6]"
    assert shown == [{"match_facts": [fact], "finish": ["OPEN"]}, None, DEEP]
    assert list(shown[2]) == list(DEEP)
