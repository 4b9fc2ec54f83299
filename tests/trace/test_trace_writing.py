"""A trace is read back bit for bit, in memory and on disk, as one file and as a folder of shards, and claims nothing more."""

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trace_builders as traces
from hostile_traces import resum
from hypothesis import given, settings
from hypothesis import strategies as st

import kgverify as kv
from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH

COLUMNS = traces.make_columns(11, 60)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    traces.write_shards(folder / "folder", COLUMNS, traces.RANKINGS, batch=3, facts=traces.FACTS)
    traces.write_file(folder / "file", COLUMNS, traces.RANKINGS, facts=traces.FACTS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "folder", tmp_path / "a")


@given(st.integers(0, 10**6), st.integers(0, 15), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=12)
def test_a_trace_reads_as_it_was_written(tmp_path_factory, seed, num_candidates, dtype):
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    columns = traces.make_columns(seed, num_candidates, score_dtype=dtype)
    columns.resolvents.score[:4] = np.array([np.nan, np.inf, -np.inf, -0.0])[: len(columns.resolvents.score)]
    header = msgspec.structs.replace(traces.HEADER, recording="mine")
    trace = traces.write_file(
        path, columns, traces.RANKINGS, header=header, facts=traces.FACTS, fact_lines=traces.FACT_LINES
    )
    traces.assert_same_columns(trace.columns, columns)
    assert (trace.header, trace.symbols, trace.is_complete, trace.source) == (header, traces.SYMBOLS, True, str(path))
    for actual, expected in zip(trace.rankings, traces.RANKINGS, strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(trace.facts, traces.FACTS)
    np.testing.assert_array_equal(trace.fact_lines, traces.FACT_LINES)
    content = path.read_bytes()
    traces.write_file(path, columns, traces.RANKINGS, header=header, facts=traces.FACTS, fact_lines=traces.FACT_LINES)
    assert path.read_bytes() == content, "the same input gives the same bytes"
    assert [each.name for each in path.parent.iterdir()] == ["a.trace"]


def test_a_trace_of_no_candidates_is_a_trace_and_absent_columns_are_zeros(tmp_path):
    with traces.open_writer(tmp_path / "a"):
        pass
    trace = traces.read(tmp_path / "a")
    traces.assert_same_columns(trace.columns, KNOWLEDGE_GRAPH.empty())
    assert (trace.rankings, trace.facts, trace.fact_lines, trace.root) == (None, None, None, 0)
    bare = traces.write_file(tmp_path / "bare", COLUMNS, absent=KNOWLEDGE_GRAPH.optional)
    assert not bare.fields & KNOWLEDGE_GRAPH.optional
    for name in KNOWLEDGE_GRAPH.optional:
        group, column = name.split(".")
        found, recorded = (getattr(getattr(each, group), column) for each in (bare.columns, COLUMNS))
        assert (found.shape, found.any()) == (recorded.shape, False)
    np.testing.assert_array_equal(bare.columns.steps.goal_atoms, COLUMNS.steps.goal_atoms)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_trace_on_disk_is_the_one_in_memory(made: Path, kind: str):
    mapped, trace = kv.open_trace(made / kind), traces.read(made / kind)
    mapped.verify_content()
    assert (mapped.num_candidates, mapped.num_steps) == (60, len(COLUMNS.steps.depth))
    assert (mapped.header, mapped.symbols, mapped.fields) == (trace.header, trace.symbols, trace.fields)
    assert (mapped.is_complete, mapped.compute_root()) == (trace.is_complete, trace.root)
    traces.assert_same_columns(trace.columns, COLUMNS)
    for begin, end in ((0, 0), (0, 60), (3, 9), (11, 40), (59, 60), (60, 60)):
        traces.assert_same_columns(mapped.read_candidates(begin, end), traces.rows(COLUMNS, begin, end))
    chosen = np.random.default_rng(1).integers(0, 60, 25)
    traces.assert_same_columns(mapped.gather_candidates(chosen), traces.take(COLUMNS, chosen))
    assert len(mapped.gather_candidates(np.zeros(0, np.int64)).candidates.query) == 0
    assert len(mapped.metadata_only().columns.candidates.query) == 0
    for actual, expected in zip(mapped.rankings, traces.RANKINGS, strict=True):
        np.testing.assert_array_equal(actual, expected)
    counts = COLUMNS.resolvents.num_atoms, COLUMNS.steps.num_resolvents, COLUMNS.candidates.num_steps
    for atom in range(0, len(COLUMNS.resolvents.atoms), 11):
        owner = atom
        for ends in map(np.cumsum, counts):
            owner = np.searchsorted(ends, owner, side="right")
        assert mapped.candidate_of("resolvents/atoms", atom) == owner


def test_a_large_trace_is_shown_as_a_small_one_and_opens_only_the_shard_of_a_candidate(
    folder: Path, made: Path, monkeypatch
):
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
    (folder / "shard-00002.h5").unlink()
    look = kv.open_trace(folder, is_lazy=True)
    assert look.candidate(0) == shown[0]
    with pytest.raises(UserError, match="missing, expected"):
        str(look)
    with pytest.raises(UserError, match=r"shard-00002\.h5 is missing"):
        kv.open_trace(folder)
    assert "shard-00002.h5" in kv.open_trace(folder, tolerates_shards=True).faults[0]


def test_shards_are_the_same_trace_as_one_file(made: Path):
    whole = traces.read(made / "folder")
    parts = [traces.read(path) for path in sorted((made / "folder").glob("shard-*.h5"))]
    assert len(parts) > 3
    traces.assert_same_trace(whole, traces.read(made / "file"))
    assert not any(part.is_complete for part in parts)
    assert sum(part.root for part in parts) % (1 << 64) == whole.root
    assert [part.rankings is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len({part.header.recording for part in parts}) == 1
    assert whole.header.recording != traces.read(made / "file").header.recording


def test_an_output_replaces_only_a_trace_and_only_when_it_is_whole(tmp_path):
    path = tmp_path / "a"
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a trace is in the way"):
        traces.write_file(path, COLUMNS)
    assert (path / "thesis.tex").read_text() == "years of work"
    shutil.rmtree(path)
    for write in (traces.write_shards, traces.write_file, traces.write_shards, traces.write_shards):
        write(path, COLUMNS)
        traces.assert_same_columns(traces.read(path).columns, COLUMNS)
        assert [each.name for each in tmp_path.iterdir()] == ["a"]
    before = {each: each.read_bytes() for each in path.iterdir()}

    def stop():
        with traces.open_writer(path) as writer:
            writer.append(COLUMNS)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert {each: each.read_bytes() for each in path.iterdir()} == before


@pytest.mark.parametrize("shard_steps", [20, 1_000_000])
def test_closing_twice_writes_once(tmp_path, shard_steps):
    writer = traces.open_writer(tmp_path / "a", shard_steps=shard_steps)
    writer.append(COLUMNS)
    writer.close()
    (tmp_path / "a").rename(tmp_path / "b")
    writer.close()
    assert [each.name for each in tmp_path.iterdir()] == ["b"]
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(COLUMNS)


def test_given_digests_are_stored_as_they_are_and_checked_by_the_reader(tmp_path):
    sequence = traces.write_file(tmp_path / "whole", COLUMNS).digests.sequence
    first = traces.rows(COLUMNS, 20)
    for name, given_digests in (("a", sequence), ("b", sequence + np.uint64(1))):
        with traces.open_writer(tmp_path / name) as writer:
            # The digests of the first batch are not given.
            writer.append(first)
            writer.append(traces.rows(COLUMNS, 20, 60), given_digests[len(first.steps.depth) :])
    traces.assert_same_columns(traces.read(tmp_path / "a").columns, COLUMNS)
    with pytest.raises(UserError, match=f"step {len(first.steps.depth)} has digest"):
        traces.read(tmp_path / "b")
    with (
        traces.open_writer(tmp_path / "c", shard_steps=1) as writer,
        pytest.raises(UserError, match="found 3 digests for"),
    ):
        writer.append(COLUMNS, sequence[:3])


def test_a_shard_that_no_manifest_lists_is_ignored_and_one_of_another_recording_refused(
    folder: Path, made: Path, tmp_path: Path
):
    (folder / "shard-99999.h5").write_bytes(b"left by a kill")
    traces.assert_same_trace(traces.read(folder), traces.read(made / "folder"))
    header = msgspec.structs.replace(traces.HEADER, creator="x")
    traces.write_shards(tmp_path / "other", COLUMNS, batch=3, header=header, facts=traces.FACTS)
    manifest, other = (json.loads((path / "manifest.json").read_text()) for path in (folder, tmp_path / "other"))
    shutil.copy(tmp_path / "other" / "shard-00001.h5", folder / "shard-00001.h5")
    manifest["shards"][1] = other["shards"][1]
    for changes, match in (
        (resum(manifest), r"header: differs in creator from that of shard-00000\.h5"),
        (resum(manifest | {"shards": []}), "lists no shard"),
    ):
        traces.edit_manifest(folder, **changes)
        with pytest.raises(UserError, match=match) as caught:
            traces.read(folder)
        assert caught.value.where.startswith(str(folder))
        assert caught.value.fix
