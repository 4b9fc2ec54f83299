"""A trace is read back bit for bit, in memory and on disk, as one file and as a folder of shards, and claims nothing more."""

import json
import os
import shutil
from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest
from hostile_traces import resum
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builders import (
    FACT_LINES,
    FACTS,
    HEADER,
    RANKINGS,
    SYMBOLS,
    assert_same_columns,
    assert_same_trace,
    edit_manifest,
    make_columns,
    open_writer,
    read,
    rows,
    take,
    write_file,
)

import kgverify as kv
from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH

COLUMNS = make_columns(11, 60)


def record(path: Path, step: int = 3, **options) -> kv.Trace:
    """Record the candidates in shards."""
    with open_writer(path, **{"facts": FACTS, "shard_steps": 20, **options}) as writer:
        for begin in range(writer.num_appended, 60, step):
            writer.append(rows(COLUMNS, begin, min(begin + step, 60)))
        writer.set_rankings(RANKINGS)
    return read(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    record(folder / "folder")
    write_file(folder / "file", COLUMNS, RANKINGS, facts=FACTS)
    shutil.copy(folder / "file", folder / "chunked")
    with h5py.File(folder / "chunked", "r+") as file:
        for name in ("resolvents/atoms", "steps/num_resolvents", "candidates/atom", "resolvents/score"):
            content, checksum = file[name][()], file[name].attrs["xxh3"]
            del file[name]
            chunks = (5, *content.shape[1:])
            stored = file.create_dataset(name, data=content, chunks=chunks, compression="gzip", shuffle=True)
            stored.attrs["xxh3"] = checksum
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "folder", tmp_path / "a")


@given(st.integers(0, 10**6), st.integers(0, 15), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=20)
def test_a_trace_reads_as_it_was_written(tmp_path_factory, seed, num_candidates, dtype):
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    columns = make_columns(seed, num_candidates, score_dtype=dtype)
    columns.resolvents.score[:4] = np.array([np.nan, np.inf, -np.inf, -0.0])[: len(columns.resolvents.score)]
    header = msgspec.structs.replace(HEADER, recording="mine")
    trace = write_file(path, columns, RANKINGS, header=header, facts=FACTS, fact_lines=FACT_LINES)
    assert_same_columns(trace.columns, columns)
    assert (trace.header, trace.symbols, trace.is_complete, trace.source) == (header, SYMBOLS, True, str(path))
    for actual, expected in zip(trace.rankings, RANKINGS, strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(trace.facts, FACTS)
    np.testing.assert_array_equal(trace.fact_lines, FACT_LINES)
    content = path.read_bytes()
    write_file(path, columns, RANKINGS, header=header, facts=FACTS, fact_lines=FACT_LINES)
    assert path.read_bytes() == content, "the same input gives the same bytes"
    assert [each.name for each in path.parent.iterdir()] == ["a.trace"]


def test_a_trace_of_no_candidates_is_a_trace(tmp_path):
    with open_writer(tmp_path / "a"):
        pass
    trace = read(tmp_path / "a")
    assert_same_columns(trace.columns, KNOWLEDGE_GRAPH.empty())
    assert (trace.rankings, trace.facts, trace.fact_lines, trace.root) == (None, None, None, 0)


def test_absent_columns_are_zeros_and_distinguished_from_zeros(tmp_path):
    full = write_file(tmp_path / "full", COLUMNS)
    bare = write_file(tmp_path / "bare", COLUMNS, absent=KNOWLEDGE_GRAPH.optional)
    assert full.fields - bare.fields == KNOWLEDGE_GRAPH.optional
    assert "resolvents.kind" in bare.fields
    assert not bare.columns.resolvents.score.any()
    assert not bare.columns.steps.dropped_atoms.any()
    assert len(bare.columns.resolvents.origin) == len(COLUMNS.resolvents.origin)
    np.testing.assert_array_equal(bare.columns.steps.goal_atoms, COLUMNS.steps.goal_atoms)


def test_large_datasets_lie_on_page_boundaries(tmp_path):
    write_file(tmp_path / "a", make_columns(3, 2000))
    with h5py.File(tmp_path / "a") as file:
        large = [d for g in file.values() if isinstance(g, h5py.Group) for d in g.values() if d.nbytes >= 4096]
        assert len(large) > 5
        assert all(d.id.get_offset() % 4096 == 0 for d in large)
    # HDF5 loads no plugin of the environment's.
    assert os.environ["HDF5_PLUGIN_PRELOAD"] == "::"


@pytest.mark.parametrize("kind", ["file", "folder", "chunked"])
def test_a_trace_on_disk_is_the_one_in_memory(made: Path, kind: str):
    mapped, trace = kv.open_trace(made / kind), read(made / kind)
    mapped.verify_content()
    assert (mapped.num_candidates, mapped.num_steps) == (60, len(COLUMNS.steps.depth))
    assert (mapped.header, mapped.symbols, mapped.fields) == (trace.header, trace.symbols, trace.fields)
    assert (mapped.is_complete, mapped.compute_root()) == (trace.is_complete, trace.root)
    assert_same_columns(trace.columns, COLUMNS)
    for begin, end in ((0, 0), (0, 60), (3, 9), (11, 40), (59, 60), (60, 60)):
        assert_same_columns(mapped.read_candidates(begin, end), rows(COLUMNS, begin, end))
    chosen = np.random.default_rng(1).integers(0, 60, 25)
    assert_same_columns(mapped.gather_candidates(chosen), take(COLUMNS, chosen))
    assert len(mapped.gather_candidates(np.zeros(0, np.int64)).candidates.query) == 0
    assert len(mapped.metadata_only().columns.candidates.query) == 0
    counts = COLUMNS.resolvents.num_atoms, COLUMNS.steps.num_resolvents, COLUMNS.candidates.num_steps
    for atom in range(0, len(COLUMNS.resolvents.atoms), 11):
        owner = atom
        for ends in map(np.cumsum, counts):
            owner = np.searchsorted(ends, owner, side="right")
        assert mapped.candidate_of("resolvents/atoms", atom) == owner


def test_what_is_shown_is_the_same_for_small_and_large_traces(made: Path, monkeypatch):
    whole = kv.open_trace(made / "folder")
    shown = [whole.candidate(i) for i in range(60)]
    monkeypatch.setattr("kgverify.report.steps.MOST_READ", 0)
    lazy = kv.open_trace(made / "folder", is_lazy=True)
    assert [lazy.candidate(i) for i in range(60)] == shown
    assert str(lazy) == str(whole)
    for view in (whole, lazy):
        with pytest.raises(UserError, match="expected a candidate from 0 to 59, found 60"):
            view.candidate(60)
        with pytest.raises(UserError, match="found 99"):
            view.step(int(np.argmax(COLUMNS.candidates.num_steps)), 99)


def test_a_look_at_one_candidate_opens_no_other_shard(folder: Path, made: Path, monkeypatch):
    monkeypatch.setattr("kgverify.report.steps.MOST_READ", 0)
    (folder / "shard-00002.h5").unlink()
    look = kv.open_trace(folder, is_lazy=True)
    assert look.candidate(0) == kv.open_trace(made / "file").candidate(0)
    with pytest.raises(UserError, match="missing, expected"):
        str(look)
    with pytest.raises(UserError, match=r"shard-00002\.h5 is missing"):
        kv.open_trace(folder)
    assert "shard-00002.h5" in kv.open_trace(folder, tolerates_shards=True).faults[0]


def test_shards_are_the_same_trace_as_one_file(made: Path):
    folder = made / "folder"
    parts = [read(path) for path in sorted(folder.glob("shard-*.h5"))]
    assert len(parts) > 3
    assert_same_trace(read(folder), read(made / "file"))
    assert not any(part.is_complete for part in parts)
    assert sum(part.root for part in parts) % (1 << 64) == read(folder).root
    assert [part.rankings is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len({part.header.recording for part in parts}) == 1
    assert read(folder).header.recording != read(made / "file").header.recording


def test_an_output_replaces_only_a_trace_and_only_when_it_is_whole(tmp_path, made: Path):
    path = tmp_path / "a"
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a trace is in the way"):
        write_file(path, COLUMNS)
    assert (path / "thesis.tex").read_text() == "years of work"
    shutil.rmtree(path)
    for make in (record, lambda path: write_file(path, COLUMNS), record, record):
        make(path)
        assert_same_columns(read(path).columns, COLUMNS)
        assert [each.name for each in tmp_path.iterdir()] == ["a"]
    before = {each: each.read_bytes() for each in path.iterdir()}

    def stop():
        with open_writer(path) as writer:
            writer.append(COLUMNS)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert {each: each.read_bytes() for each in path.iterdir()} == before


@pytest.mark.parametrize("shard_steps", [20, 1_000_000])
def test_closing_twice_writes_once(tmp_path, shard_steps):
    writer = open_writer(tmp_path / "a", shard_steps=shard_steps)
    writer.append(COLUMNS)
    writer.close()
    (tmp_path / "a").rename(tmp_path / "b")
    writer.close()
    assert [each.name for each in tmp_path.iterdir()] == ["b"]
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(COLUMNS)


def test_given_digests_are_stored_as_they_are_and_checked_by_the_reader(tmp_path):
    sequence = write_file(tmp_path / "whole", COLUMNS).digests.sequence
    for name, given_digests in (("a", sequence), ("b", sequence + np.uint64(1))):
        with open_writer(tmp_path / name) as writer:
            writer.append(COLUMNS, given_digests)
    assert_same_columns(read(tmp_path / "a").columns, COLUMNS)
    with pytest.raises(UserError, match="step 0 has digest"):
        read(tmp_path / "b")
    with (
        open_writer(tmp_path / "c", shard_steps=1) as writer,
        pytest.raises(UserError, match="found 3 digests for"),
    ):
        writer.append(COLUMNS, sequence[:3])


# What a manifest says is compared with the shards.


def refuse(path: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        read(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"format": "x"}, "format is 'x'"),
        ({"schema_version": 3}, "schema version is 3, expected 4"),
        ({"shards": "none"}, "not a manifest"),
        ({"is_complete": 1}, "not a manifest"),
        ({"num_steps": 0}, "add up"),
        ({"shards": [], "num_steps": 0, "num_candidates": 0, "root": "0" * 16}, "lists no shard"),
    ],
)
def test_an_invalid_manifest_is_refused(folder: Path, changes, match):
    edit_manifest(folder, **changes)
    refuse(folder, match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"name": "../../etc/passwd"}, "expected a name such as 'shard-00000.h5'"),
        ({"num_candidates": 4}, "from the manifest"),
        ({"num_steps": 4}, "from the manifest"),
        ({"root": "0" * 16}, "from the manifest"),
        ({"xxh3": "0" * 16}, "expected 0000000000000000 from the manifest"),
    ],
)
def test_a_manifest_is_compared_with_its_shards(folder: Path, changes, match):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["shards"][1 if "name" not in changes else 0].update(changes)
    edit_manifest(folder, **resum(manifest))
    refuse(folder, match)
    with pytest.raises(UserError, match=r"root is|from the manifest|a name such as"):
        kv.open_trace(folder).verify_content()


def test_missing_doubled_and_foreign_shards_are_refused_and_others_are_ignored(
    folder: Path, made: Path, tmp_path: Path
):
    (folder / "shard-99999.h5").write_bytes(b"left by a kill")
    assert_same_trace(read(folder), read(made / "folder"))
    manifest = json.loads((folder / "manifest.json").read_text())
    edit_manifest(folder, shards=manifest["shards"][:-1])
    refuse(folder, "but its shards add up to")
    edit_manifest(folder, **resum({**manifest, "shards": [*manifest["shards"][:2], *manifest["shards"][1:]]}))
    refuse(folder, "named 'shard-00001.h5', expected a number above that of the shard before")
    edit_manifest(folder, **resum(manifest))
    other = tmp_path / "other"
    with open_writer(other, header=msgspec.structs.replace(HEADER, creator="x"), facts=FACTS, shard_steps=20) as writer:
        for begin in range(0, 60, 3):
            writer.append(rows(COLUMNS, begin, begin + 3))
    foreign = json.loads((other / "manifest.json").read_text())["shards"][1]
    shutil.copy(other / "shard-00001.h5", folder / "shard-00001.h5")
    shards = [manifest["shards"][0], foreign, *manifest["shards"][2:]]
    edit_manifest(folder, **resum({**manifest, "shards": shards}))
    refuse(folder, "header: differs from that of shard-00000.h5")
    (folder / "shard-00002.h5").unlink()
    edit_manifest(folder, **resum(manifest))
    shutil.copy(made / "folder" / "shard-00001.h5", folder / "shard-00001.h5")
    refuse(folder, "missing, expected because the manifest lists it")
