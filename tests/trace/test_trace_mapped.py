"""A trace that stays on disk is the trace that is read, and is refused where that is."""

import h5py
import numpy as np
import pytest
from trace_builders import (
    FACTS,
    HEADER,
    RANKINGS,
    RULES,
    SYMBOLS,
    assert_same_columns,
    make_columns,
    open_writer,
    write_file,
)

from kgverify import UserError
from kgverify.report import steps
from kgverify.report.steps import LazyTraceView, TraceView, view_trace
from kgverify.trace.hdf5.stored_array import ChunkCache
from kgverify.trace.model.columns import concatenate, select_candidates, starts_of
from kgverify.trace.model.offsets import Offsets
from kgverify.trace.model.schema import TraceLevel, has_goals
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile, read_trace

COLUMNS = make_columns(4, 40)
DEEP_COLUMNS = make_columns(4, 40, has_stages=True)


def write(path, kind):
    if kind == "folder":
        with open_writer(path, HEADER, SYMBOLS, facts=FACTS, shard_steps=17) as writer:
            for i in range(40):
                writer.append(select_candidates(COLUMNS, np.array([i])))
            writer.set_rankings(RANKINGS)
        return
    write_file(path, HEADER, SYMBOLS, COLUMNS, RANKINGS, facts=FACTS)
    if kind == "chunked":
        with h5py.File(path, "r+") as file:
            for name in ("resolvents/atoms", "steps/num_resolvents", "candidates/atom", "resolvents/score"):
                content, checksum = file[name][()], file[name].attrs["xxh3"]
                del file[name]
                chunks = (5, *content.shape[1:])
                made = file.create_dataset(name, data=content, chunks=chunks, compression="gzip", shuffle=True)
                made.attrs["xxh3"] = checksum


@pytest.fixture(params=["file", "folder", "chunked"])
def path(request, tmp_path):
    write(tmp_path / "a", request.param)
    return tmp_path / "a"


def test_what_is_mapped_is_what_is_read(path):
    mapped, trace = TraceFile(path), read_trace(path)
    mapped.verify_content()
    assert (mapped.num_candidates, mapped.num_steps) == (40, len(trace.columns.steps.depth))
    assert_same_columns(mapped.read_candidates(0, mapped.num_candidates), trace.columns)
    assert (mapped.header, mapped.symbols, mapped.fields) == (trace.header, trace.symbols, trace.fields)
    assert (mapped.is_complete, mapped.compute_root()) == (trace.is_complete, trace.root)
    np.testing.assert_array_equal(mapped.rankings.optimistic, trace.rankings.optimistic)
    for begin, end in ((0, 0), (3, 9), (11, 40), (39, 40), (40, 40)):
        expected = select_candidates(trace.columns, np.arange(begin, end))
        assert_same_columns(mapped.read_candidates(begin, end), expected)


def test_candidates_are_gathered_in_any_order(path):
    mapped = TraceFile(path)
    rows = np.random.default_rng(1).integers(0, 40, 25)
    assert_same_columns(mapped.gather_candidates(rows), select_candidates(COLUMNS, rows))


def test_an_element_is_of_the_candidate_that_holds_it(path):
    mapped = TraceFile(path)
    first = starts_of(COLUMNS.candidates.num_steps)
    for step in range(0, mapped.num_steps, 7):
        assert mapped.candidate_of("steps/num_atoms", step) == np.searchsorted(first, step, side="right") - 1
        assert mapped.candidate_of("digests/sequence", step) == mapped.candidate_of("steps/num_atoms", step)
    below = starts_of(COLUMNS.steps.num_resolvents), starts_of(COLUMNS.resolvents.num_atoms)
    for atom in range(0, len(COLUMNS.resolvents.atoms), 11):
        owner = atom
        for starts in (below[1], below[0], first):
            owner = np.searchsorted(starts, owner, side="right") - 1
        assert mapped.candidate_of("resolvents/atoms", atom) == owner


def test_a_trace_is_read_as_a_whole_if_it_is_small(path, monkeypatch):
    trace = TraceFile(path)
    num_bytes = sum(stored.num_bytes for file in trace.files for stored in file.stored.values())
    for most, kind in ((num_bytes, TraceView), (num_bytes - 1, LazyTraceView)):
        monkeypatch.setattr(steps, "MOST_READ", most)
        assert type(view_trace(trace)) is kind


def test_a_look_shows_what_reading_everything_shows(path):
    whole, look = TraceView(read_trace(path)), LazyTraceView(TraceFile(path, is_lazy=True))
    for candidate in range(40):
        assert look.candidate(candidate) == whole.candidate(candidate)
        for step in range(whole.candidate(candidate)["num_steps"]):
            assert look.step(candidate, step) == whole.step(candidate, step)
    assert look.summary() == whole.summary()
    for view in (whole, look):
        with pytest.raises(UserError, match="expected a candidate from 0 to 39, found 40"):
            view.candidate(40)
        with pytest.raises(UserError, match="found 99"):
            view.step(0, 99)


@pytest.mark.sample(3, deep=8)
@pytest.mark.parametrize("is_archived", [False, True])
@pytest.mark.parametrize("shard_steps", [17, 1 << 40])
@pytest.mark.parametrize("level", list(TraceLevel))
def test_every_level_and_packing_is_mapped_as_it_is_read(tmp_path, level, shard_steps, is_archived, monkeypatch):
    monkeypatch.setattr("kgverify.trace.hdf5.writing._CHUNK_BYTES", 64)
    path = tmp_path / "a"
    options = {"level": level, "is_archived": is_archived, "shard_steps": shard_steps, "rules": RULES}
    with open_writer(path, HEADER, SYMBOLS, facts=FACTS, **options) as writer:
        for i in range(40):
            writer.append(select_candidates(DEEP_COLUMNS, np.array([i])))
        writer.set_rankings(RANKINGS)
    trace, mapped = read_trace(path), TraceFile(path)
    mapped.verify_content()
    assert (mapped.fields, mapped.rules, mapped.compute_root()) == (trace.fields, trace.rules, trace.root)
    rows = np.random.default_rng(1).integers(0, 40, 25)
    for found, expected in (
        (mapped.read_candidates(0, 40), trace.columns),
        (mapped.read_candidates(7, 31), select_candidates(trace.columns, np.arange(7, 31))),
        (mapped.gather_candidates(rows), select_candidates(trace.columns, rows)),
        (mapped.read_candidates(3, 3), select_candidates(trace.columns, np.arange(0))),
    ):
        assert_same_columns(found, expected)
    sequence = np.concatenate([part["sequence"] for part in mapped.read_digests(0, 40)])
    np.testing.assert_array_equal(sequence, trace.digests.sequence)
    whole, look = TraceView(trace), LazyTraceView(TraceFile(path, is_lazy=True))
    assert look.summary() == whole.summary()
    for candidate in range(40):
        assert look.candidate(candidate) == whole.candidate(candidate)
        for step in range(whole.candidate(candidate)["num_steps"]):
            if has_goals(level):
                assert look.step(candidate, step) == whole.step(candidate, step)
                continue
            for view in (look, whole):
                with pytest.raises(UserError, match=f"level '{level}', which keeps no goals: there is no step to show"):
                    view.step(candidate, step)


def test_what_is_packed_is_unpacked_in_bounded_memory(tmp_path, monkeypatch):
    """Chunks that were used last are kept, and no more of them."""
    monkeypatch.setattr("kgverify.trace.hdf5.writing._CHUNK_BYTES", 256)
    monkeypatch.setattr("kgverify.trace.hdf5.stored_array._KEPT_BYTES", 1024)
    write_file(tmp_path / "a", HEADER, SYMBOLS, COLUMNS, facts=FACTS, is_archived=True)
    cache = ChunkCache()
    file = DataFile(tmp_path / "a", cache)
    rows = np.random.default_rng(2).permutation(len(COLUMNS.resolvents.atoms))
    np.testing.assert_array_equal(file.take("resolvents/atoms", rows), COLUMNS.resolvents.atoms[rows])
    np.testing.assert_array_equal(file.read_all("resolvents/atoms"), COLUMNS.resolvents.atoms)
    assert 0 < cache.num_bytes <= 1024


def test_a_look_at_one_step_opens_no_other_shard(tmp_path):
    write(tmp_path / "a", "folder")
    (tmp_path / "a" / "shard-00002.h5").unlink()
    look = LazyTraceView(TraceFile(tmp_path / "a", is_lazy=True))
    assert look.candidate(0) == TraceView(read_trace_of(COLUMNS, tmp_path)).candidate(0)
    with pytest.raises(UserError, match="missing, expected"):
        look.summary()
    with pytest.raises(UserError, match=r"shard-00002\.h5 is missing"):
        TraceFile(tmp_path / "a")
    assert "shard-00002.h5" in TraceFile(tmp_path / "a", tolerates_shards=True).faults[0]


def read_trace_of(columns, tmp_path):
    write_file(tmp_path / "whole", HEADER, SYMBOLS, columns, RANKINGS, facts=FACTS)
    return read_trace(tmp_path / "whole")


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path = tmp_path / "a"
    write_file(path, HEADER, SYMBOLS, make_columns(1, 12), RANKINGS, facts=FACTS)
    content, expected = path.read_bytes(), read_trace(path).columns
    random = np.random.default_rng(7)
    num_refused = 0
    for position in random.choice(8 * len(content), 150, replace=False):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        try:
            mapped = TraceFile(path)
            mapped.verify_content()
            assert_same_columns(mapped.read_candidates(0, mapped.num_candidates), expected)
        except UserError:
            num_refused += 1
    assert num_refused > 15


def test_a_flipped_bit_is_not_looked_at_in_silence(tmp_path):
    """A single step is checked by its digest, since the checksum of a column is that of all of it."""
    path = tmp_path / "a"
    write_file(path, HEADER, SYMBOLS, COLUMNS, facts=FACTS)
    content = bytearray(path.read_bytes())
    content[content.index(COLUMNS.resolvents.atoms[:9].tobytes()) + 2 * 12] ^= 1
    path.write_bytes(content)
    look = LazyTraceView(TraceFile(path))
    first = int(np.flatnonzero(np.cumsum(COLUMNS.resolvents.num_atoms) > 2)[0])
    step = int(np.flatnonzero(np.cumsum(COLUMNS.steps.num_resolvents) > first)[0])
    starts = starts_of(COLUMNS.candidates.num_steps)
    candidate = int(np.searchsorted(starts, step, side="right")) - 1
    with pytest.raises(UserError, match="has digest"):
        look.step(candidate, step - int(starts[candidate]))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("most", [6, 60_000])
def test_offsets_are_the_sums_of_counts(dtype, most):
    random = np.random.default_rng(0)
    counts = random.integers(0, most, 70_000).astype(dtype)
    starts = starts_of(counts)
    offsets = Offsets(lambda a, b: counts[a:b], counts.__getitem__, len(counts), int(starts[-1]), "x")
    for row in random.integers(0, len(counts) + 1, 200).tolist():
        assert offsets.at(row) == starts[row]
    rows = random.integers(0, len(counts) + 1, 500)
    np.testing.assert_array_equal(offsets.of(rows), starts[rows])
    for element in random.integers(0, starts[-1], 200).tolist():
        assert offsets.row_of(element) == np.searchsorted(starts, element, side="right") - 1


def test_counts_that_do_not_add_up_are_refused():
    counts = np.full(1000, 3, np.uint16)
    offsets = Offsets(lambda a, b: counts[a:b], counts.__getitem__, 1000, 2999, "x")
    with pytest.raises(UserError, match="add up to 3000, but there are 2999"):
        offsets.build()
    small = Offsets(lambda a, b: counts[a:b], counts.__getitem__, 1000, 10, "x")
    with pytest.raises(UserError, match="add up to 3000, but there are 10"):
        small.at(400)
    empty = Offsets(lambda a, b: counts[a:b], counts.__getitem__, 0, 1, "x")
    with pytest.raises(UserError, match="add up to 0, but there are 1"):
        empty.at(0)


def test_parts_of_a_folder_join_as_columns_do(tmp_path):
    write(tmp_path / "a", "folder")
    mapped = TraceFile(tmp_path / "a")
    parts = [mapped.read_candidates(i, min(i + 7, 40)) for i in range(0, 40, 7)]
    assert_same_columns(concatenate(parts), COLUMNS)


def test_rows_of_a_contiguous_dataset_are_views_of_the_file(tmp_path):
    write(tmp_path / "a", "file")
    file = DataFile(tmp_path / "a")
    for name in ("steps/depth", "resolvents/atoms"):
        assert np.shares_memory(file.read(name, 0, 9), file.read(name, 3, 5))
