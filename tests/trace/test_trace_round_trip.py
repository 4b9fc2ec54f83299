"""Round trips: a trace is read back bit for bit, and claims nothing more."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builders import (
    FACT_LINES,
    FACTS,
    HEADER,
    RANKINGS,
    SYMBOLS,
    assert_same_columns,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.stored_array import StoredArray
from kgverify.trace.hdf5.writing import _shuffled
from kgverify.trace.model.columns import empty_columns
from kgverify.trace.read.trace_file import read_trace


@given(st.integers(0, 10**6), st.integers(0, 15), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=40, deadline=None)
def test_a_trace_reads_as_it_was_written(tmp_path_factory, seed, num_candidates, dtype):
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    columns = make_columns(seed, num_candidates, score_dtype=dtype)
    write_file(path, HEADER, SYMBOLS, columns, RANKINGS, facts=FACTS, fact_lines=FACT_LINES)
    trace = read_trace(path)
    assert_same_columns(trace.columns, columns)
    assert (trace.header, trace.symbols, trace.is_complete) == (HEADER, SYMBOLS, True)
    assert trace.source == str(path)
    for actual, expected in zip(trace.rankings, RANKINGS, strict=True):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(trace.facts, FACTS)
    np.testing.assert_array_equal(trace.fact_lines, FACT_LINES)


def test_a_trace_of_no_candidates_is_a_trace(tmp_path):
    with open_writer(tmp_path / "a.trace", HEADER, SYMBOLS):
        pass
    trace = read_trace(tmp_path / "a.trace")
    assert_same_columns(trace.columns, empty_columns())
    assert (trace.rankings, trace.facts, trace.fact_lines, trace.root) == (None, None, None, 0)


def test_scores_may_be_any_floating_point_value(tmp_path):
    columns = make_columns(0, 10)
    columns.resolvents.score[:4] = [np.nan, np.inf, -np.inf, -0.0]
    write_file(tmp_path / "a.trace", HEADER, SYMBOLS, columns)
    assert_same_columns(read_trace(tmp_path / "a.trace").columns, columns)


def test_absent_columns_are_zeros_and_told_apart(tmp_path):
    columns = make_columns(3, 10)
    write_file(tmp_path / "full", HEADER, SYMBOLS, columns)
    write_file(tmp_path / "bare", HEADER, SYMBOLS, columns, absent=KNOWLEDGE_GRAPH.optional)
    full, bare = read_trace(tmp_path / "full"), read_trace(tmp_path / "bare")
    assert full.fields - bare.fields == KNOWLEDGE_GRAPH.optional
    assert "resolvents.kind" in bare.fields
    assert not bare.columns.resolvents.score.any()
    assert not bare.columns.steps.dropped_atoms.any()
    assert len(bare.columns.resolvents.origin) == len(columns.resolvents.origin)
    np.testing.assert_array_equal(bare.columns.steps.goal_atoms, columns.steps.goal_atoms)


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in "ab":
        write_file(tmp_path / name, HEADER, SYMBOLS, make_columns(3, 10), RANKINGS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_large_datasets_lie_on_page_boundaries(tmp_path):
    import h5py

    write_file(tmp_path / "a", HEADER, SYMBOLS, make_columns(3, 2000))
    with h5py.File(tmp_path / "a") as file:
        large = [d for g in file.values() if isinstance(g, h5py.Group) for d in g.values() if d.nbytes >= 4096]
        assert len(large) > 5
        assert all(d.id.get_offset() % 4096 == 0 for d in large)


def test_nothing_but_the_trace_is_left_behind(tmp_path):
    write_file(tmp_path / "a", HEADER, SYMBOLS, make_columns(3, 10))
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_trace_is_replaced_only_by_a_whole_one(tmp_path):
    path = tmp_path / "a"
    write_file(path, HEADER, SYMBOLS, make_columns(1, 5))
    before = path.read_bytes()

    def stop():
        with open_writer(path, HEADER, SYMBOLS) as writer:
            writer.append(make_columns(2, 5))
            assert path.read_bytes() == before
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop()
    assert path.read_bytes() == before
    write_file(path, HEADER, SYMBOLS, make_columns(2, 5))
    assert_same_columns(read_trace(path).columns, make_columns(2, 5))


def test_a_writer_refuses_what_a_reader_would(tmp_path):
    columns = make_columns(1, 5)
    steps = columns.steps

    def write(**changes):
        write_file(tmp_path / "a", HEADER, SYMBOLS, columns._replace(**changes))

    with pytest.raises(UserError, match=r"steps/choice: dtype is int64, expected int32\nfix: .*astype"):
        write(steps=steps._replace(choice=steps.choice.astype(np.int64)))
    with pytest.raises(UserError, match="goal_atoms: shape is"):
        write(steps=steps._replace(goal_atoms=steps.goal_atoms[:, :2]))
    with pytest.raises(UserError, match="add up to"):
        write(steps=steps._replace(goal_atoms=steps.goal_atoms[:-1]))
    with pytest.raises(UserError, match="not be absent"):
        open_writer(tmp_path / "a", HEADER, SYMBOLS, absent=["steps.num_atoms"])
    with pytest.raises(UserError, match="folder does not exist"):
        write_file(tmp_path / "no" / "a", HEADER, SYMBOLS, columns)
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS)
    writer.append(columns)
    with pytest.raises(UserError, match="dtype is float32, expected float64"):
        writer.append(make_columns(1, 5, score_dtype=np.float32))
    # What was appended before is kept, nothing else is written.
    writer.commit()
    assert {p.name for p in tmp_path.iterdir()} == {".a.lock", "a.partial"}
    assert_same_columns(read_trace(tmp_path / "a.partial").columns, columns)


def test_closing_again_writes_nothing(tmp_path):
    writer = open_writer(tmp_path / "a", HEADER, SYMBOLS)
    writer.append(make_columns(1, 3))
    writer.close()
    (tmp_path / "a").unlink()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_the_last_chunk_of_a_dataset_is_filled_up_with_zeros():
    # The low bytes of all elements come first.
    assert _shuffled(np.arange(5, dtype="<u2") + 0x100, (3,), (3,)) == b"\x03\x04\x00\x01\x01\x00"


def test_the_extents_of_a_dataset_are_what_it_stores():
    starts = {0: [(0, 24)], 5: [(5, 29)], -1: []}
    for start, extents in starts.items():
        assert StoredArray("a:b", np.dtype(np.int64), (3,), start).extents == extents
    assert StoredArray("a:b", np.dtype(np.int64), (0,), 5).extents == []


def test_a_folder_that_is_not_a_trace_is_not_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a trace is in the way"):
        write_file(tmp_path / "a", HEADER, SYMBOLS, make_columns(1, 5))
    assert (tmp_path / "a" / "thesis.tex").read_text() == "years of work"


def test_the_columns_load_without_h5py():
    names = (
        "model.columns",
        "model.header",
        "model.digests",
        "model.schema",
        "model.validate",
        "model.trace",
        "files.manifest",
    )
    code = f"import sys, {', '.join(f'kgverify.trace.{n}' for n in names)}; assert 'h5py' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plugins_are_off_before_the_library_loads():
    code = "import os, kgverify.trace.hdf5.reading; assert os.environ['HDF5_PLUGIN_PRELOAD'] == '::'"
    subprocess.run([sys.executable, "-c", code], check=True)
