"""Parts of reading and writing traces, each by itself: limits, shared data, packing, and what a file may leave out."""

import os
import zlib
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
from trace_builders import HEADER, SYMBOLS, make_columns, open_writer

from kgverify import Limits, TraceWriter, UserError
from kgverify.errors import InternalError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.files.manifest import MANIFEST
from kgverify.trace.hdf5 import reading, stored_array, writing
from kgverify.trace.hdf5.reading import FLETCHER32, most_bytes
from kgverify.trace.hdf5.stored_array import check_extents
from kgverify.trace.hdf5.writing import Packing, write_arrays
from kgverify.trace.model import trace, validate
from kgverify.trace.model.columns import are_equal, select_candidates
from kgverify.trace.model.header import decode_header
from kgverify.trace.model.schema import TraceLevel, parse_level
from kgverify.trace.model.trace import Unknown, join_unknown, merge_fields
from kgverify.trace.model.validate import check_columns
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile


def test_data_behind_the_end_of_a_file_are_refused(tmp_path: Path):
    check_extents([SimpleNamespace(extents=[(0, 50), (50, 100)], where="a")], 100)
    with pytest.raises(UserError, match="end at byte 101, but the file has 100"):
        check_extents([SimpleNamespace(extents=[(0, 101)], where="a")], 100)
    path = tmp_path / "short"
    path.write_bytes(b"abc")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        target = np.zeros(2, np.uint8)
        stored_array._read_into(descriptor, target, 1, "here")
        assert target.tobytes() == b"bc"
        with pytest.raises(UserError, match="ends before its data do"):
            stored_array._read_into(descriptor, np.zeros(9, np.uint8), 0, "here")
    finally:
        os.close(descriptor)


def test_datasets_may_take_together_what_a_file_of_that_size_admits():
    for size in (10, 10_000_000):
        most = most_bytes(size)
        reading._check_total([SimpleNamespace(memory_bytes=most, where="a")], size)
        with pytest.raises(UserError, match="together ask for"):
            reading._check_total([SimpleNamespace(memory_bytes=part, where="a") for part in (most, 1)], size)


def test_a_stream_is_inflated_to_exactly_its_size():
    rng = np.random.default_rng(0)
    for num in (*range(1, 40), 1000, 4096, 70_001):
        for content in (bytes(num), rng.integers(0, 256, num, np.uint8).tobytes()):
            for level in (0, 1, 9):
                raw = np.frombuffer(zlib.compress(content, level), np.uint8)
                assert stored_array._inflate(raw, num, None, None).tobytes() == content


def test_a_stream_of_another_size_is_damaged():
    chunk, stored = SimpleNamespace(index=(0,), offset=0), SimpleNamespace(where="a")
    content = bytes(range(200)) * 50
    whole = zlib.compress(content)
    for raw, most in ((whole, len(content) - 1), (whole, 1), (whole[:-1], len(content)), (whole[:-1], 4096)):
        with pytest.raises(UserError, match="inflates to another size"):
            stored_array._inflate(np.frombuffer(raw, np.uint8), most, chunk, stored)


def test_only_the_built_in_filters_are_run_and_each_once():
    def find_storage() -> int:
        raise InternalError("accepted")

    built_in = reading.DEFLATE, reading.SHUFFLE, FLETCHER32
    for num in range(4):
        for filters in product((*built_in, 9999), repeat=num):
            plan = SimpleNamespace(
                get_layout=lambda: h5py.h5d.CHUNKED,
                get_external_count=lambda: 0,
                get_nfilters=lambda filters=filters: len(filters),
                get_filter=lambda i, filters=filters: (filters[i],),
            )
            dataset = SimpleNamespace(get_create_plist=lambda plan=plan: plan, get_storage_size=find_storage)
            is_known = len(set(filters)) == len(filters) and set(filters) <= set(built_in)
            error = (InternalError, "accepted") if is_known else (UserError, "uses the HDF5 filters")
            with pytest.raises(error[0], match=error[1]):
                reading._locate(dataset, np.dtype(np.int32), (1,), "here", 100, None)


def test_an_archive_may_hold_datasets_without_a_sum():
    def is_archived(*filters: tuple[int, ...]) -> bool:
        arrays = {str(i): SimpleNamespace(filters=each) for i, each in enumerate(filters)}
        return DataFile.is_archived.fget(SimpleNamespace(stored=arrays, _file=SimpleNamespace(unknown={})))

    assert is_archived((FLETCHER32,), ())
    assert is_archived((), (1, FLETCHER32))
    assert not is_archived((1,), ())


def test_what_does_not_shrink_is_not_packed():
    rng = np.random.default_rng(0)
    noise, zeros = rng.integers(0, 1 << 60, 4000), np.zeros(4000, np.int64)
    assert writing._storage_options(noise, Packing.SMALL) == {}
    assert writing._storage_options(zeros, Packing.SMALL)
    assert writing._storage_options(zeros[:0], Packing.SMALL) == {}


def test_a_file_that_would_unpack_to_more_than_a_reader_admits_is_written_plain(tmp_path: Path, monkeypatch):
    arrays = {"steps/depth": np.zeros(200_000, np.uint8)}
    write_arrays(tmp_path / "packed", arrays, "test", Packing.SMALL)
    monkeypatch.setattr(writing, "most_bytes", lambda size: 199_999)
    write_arrays(tmp_path / "plain", arrays, "test", Packing.SMALL)
    sizes = [(tmp_path / name).stat().st_size for name in ("packed", "plain")]
    assert sizes[0] < 100_000 < 200_000 < sizes[1]


@pytest.mark.parametrize("content", [b"[]", b"1", b'"header"', b"null"])
def test_a_header_is_an_object(content: bytes):
    with pytest.raises(msgspec.MsgspecError):
        decode_header(content)


def test_a_header_without_a_dialect_has_the_default_one_where_all_limits_are_known():
    names = {"engine": {"name": "a"}, "policy": {"name": "shortest"}, "program_sha256": "0" * 64}
    limits = {"max_depth": 3, "max_atoms": 4, "max_resolvents": 5, "exclude_query": False}

    def decode(limits: dict[str, int]) -> Any:
        return decode_header(msgspec.json.encode({**names, "limits": limits})).limits

    assert decode(limits) == Limits(**limits)
    assert decode({"max_depth": 3}).dialect is None


def test_datasets_that_belong_together_are_required():
    KNOWLEDGE_GRAPH.check_level(
        KNOWLEDGE_GRAPH.required(TraceLevel.STEPS) | {"resolvents/origin_kind", "resolvents/origin"},
        TraceLevel.STEPS,
        "file",
    )
    with pytest.raises(UserError, match="missing, while resolvents/origin is there") as caught:
        KNOWLEDGE_GRAPH.check_level(
            KNOWLEDGE_GRAPH.required(TraceLevel.STEPS) | {"resolvents/origin"}, TraceLevel.STEPS, "file"
        )
    assert caught.value.where.startswith("file:resolvents/")


def test_the_first_dataset_that_a_level_leaves_out_is_named():
    odd = KNOWLEDGE_GRAPH.left_out(parse_level("compact", "file:header"))
    assert len(odd) > 2
    for each in (odd, sorted(odd), sorted(odd)[::-1]):
        with pytest.raises(UserError, match="found, but the level is") as caught:
            KNOWLEDGE_GRAPH.check_level({*each, "steps/depth"}, TraceLevel.COMPACT, "file")
        assert caught.value.where == f"file:{min(odd)}"


def test_unknown_data_of_shards_are_joined_where_they_fit():
    a, b, c = np.array([1, 2]), np.array([3]), np.array([1, 2])
    wide, small = np.zeros((1, 2), np.int64), np.array([1, 2], np.int8)
    by_row, whole = "steps/own", "own/table"
    for left, right in product((a, b, wide, small, None), repeat=2):
        parts = [
            Unknown({name: each for name in (by_row, whole) if each is not None}, {"x": i})
            for i, each in enumerate((left, right))
        ]
        joined = join_unknown(parts)
        both = left is not None and right is not None
        fits = both and left.dtype == right.dtype and left.shape[1:] == right.shape[1:]
        is_same = fits and np.array_equal(left, right)
        assert (by_row in joined.arrays) == bool(fits)
        assert (whole in joined.arrays) == bool(is_same)
        if fits:
            assert joined.arrays[by_row].tolist() == [*left.tolist(), *right.tolist()]
        lost = [] if left is None and right is None else [n for n in (by_row, whole) if n not in joined.arrays]
        assert joined.dropped == tuple(sorted(lost))
        assert joined.header == {"x": 0}
    assert join_unknown([Unknown({whole: a}, {}), Unknown({whole: c}, {})]).arrays[whole] is a


def test_unknown_fields_go_back_where_they_were():
    known = {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    unknown = {"z": 9, "b": {"y": 8, "c": {"x": 7}, "d": {"w": [6]}}, "a": {"v": 5}}
    assert merge_fields(known, unknown) == {"a": 1, "b": {"c": 2, "d": {"e": 3, "w": [6]}, "y": 8}, "z": 9}
    assert known == {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    assert merge_fields(known, {"b": 5, "a": {"c": 6}}) == known


@pytest.mark.parametrize("shard_steps", [1 << 40, 20])
def test_an_empty_range_of_candidates_can_be_read(tmp_path: Path, shard_steps: int):
    columns = make_columns(0, 30, score_dtype=np.float32)
    with open_writer(tmp_path / "trace", HEADER, SYMBOLS, shard_steps=shard_steps) as writer:
        for at in range(0, 30, 3):
            writer.append(select_candidates(columns, np.arange(at, at + 3)))
    file = TraceFile(tmp_path / "trace")
    for at in (0, 30):
        nothing = file.read_candidates(at, at)
        assert len(nothing.steps.depth) == 0
        assert nothing.resolvents.score.dtype == np.float32
        assert len(file.candidate_columns(at, at).query) == 0
    assert len(file.gather_candidates(np.zeros(0, np.int64)).candidates.query) == 0
    shell = file.metadata_only()
    assert len(shell.columns.steps.depth) == len(shell.columns.candidates.query) == 0


def test_a_writer_is_closed_by_an_exception(tmp_path: Path):
    def fail(writer: TraceWriter) -> None:
        with writer:
            writer.append(make_columns(0, 3))
            raise KeyError

    writer = open_writer(tmp_path / "trace", HEADER, SYMBOLS, shard_steps=20, commit_seconds=0)
    with pytest.raises(KeyError):
        fail(writer)
    with pytest.raises(ValueError, match="the writer is closed"):
        writer.append(make_columns(0, 3))


def test_stages_without_a_list_of_those_recorded_are_refused():
    columns = make_columns(0, 5, has_stages=True)
    check_columns(columns, "file", num_rules=None, num_facts=None)
    told = columns.stages._replace(told=columns.stages.told[:0])
    with pytest.raises(UserError):
        check_columns(columns._replace(stages=told), "file", num_rules=None, num_facts=None)


def test_a_header_names_what_its_digests_do_not_count(tmp_path: Path):
    names = "steps.dropped_atoms", "steps.dropped_resolvents"
    own = msgspec.structs.replace(HEADER, absent=names)
    for number, (header, absent) in enumerate(product((HEADER, own), ((), names))):
        for level in ("digests", "steps"):
            path = tmp_path / f"{level}-{number}"
            with open_writer(path, header, SYMBOLS, level=level, absent=set(absent)):
                pass
            is_named = level == "digests" and (header is own or bool(absent))
            assert TraceFile(path).header.absent == (names if is_named else ())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_resumed_recording_keeps_the_type_of_its_scores(tmp_path: Path, dtype: type):
    path = tmp_path / "trace"
    writer = open_writer(path, HEADER, SYMBOLS, shard_steps=5, commit_seconds=0)
    writer.append(make_columns(0, 9, score_dtype=dtype))
    writer.commit()
    del writer
    with (
        open_writer(path, HEADER, SYMBOLS, resume=True, shard_steps=5) as resumed,
        pytest.raises(UserError, match="score"),
    ):
        resumed.append(make_columns(1, 9, score_dtype=np.float64 if dtype is np.float32 else np.float32))


def test_a_recording_without_its_manifest_is_not_begun_again(tmp_path: Path):
    path = tmp_path / "trace"
    writer = open_writer(path, HEADER, SYMBOLS, commit_seconds=0)
    for seed in (0, 1):
        writer.append(make_columns(seed, 9))
        if not seed:
            writer.commit()
    del writer
    (tmp_path / "trace.partial" / MANIFEST).unlink()
    with pytest.raises(UserError, match=f"no {MANIFEST} in this folder"):
        open_writer(path, HEADER, SYMBOLS, resume=True)


def test_arrays_of_different_types_are_unequal_except_floats():
    whole, half = [1, 2], [1.0, np.nan]
    assert are_equal(np.array(whole, np.int32), np.array(whole, np.int32))
    assert not are_equal(np.array(whole, np.int32), np.array(whole, np.int64))
    assert not are_equal(np.array(whole, np.int32), np.array(whole, np.float64))
    assert are_equal(np.array(whole, np.float32), np.array(whole, np.float64))
    for is_equal in (False, True):
        assert are_equal(np.array(half, np.float32), np.array(half), equal_nan=is_equal) is is_equal


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("no such chunk\n(at offset 7)"), "no such chunk"),
        (KeyError(), "KeyError"),
        (RuntimeError(" "), "RuntimeError"),
    ],
)
def test_the_first_line_of_what_hdf5_says_is_the_reason(error: Exception, reason: str):
    with pytest.raises(UserError) as caught, stored_array.translate_hdf5_errors("a trace"):
        raise error
    assert caught.value.message == f"HDF5 cannot read it, it is cut off or damaged: {reason}"
    assert caught.value.where == "a trace"


@pytest.mark.parametrize("num", [4, 5000])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_an_id_that_no_symbol_has_is_refused_in_every_column(num: int, column: int):
    atoms = np.zeros((num, 3), np.int32)
    validate._check_atoms("here", atoms, SYMBOLS)
    atoms[3, column] = 10_000
    with pytest.raises(UserError, match="row 3 is 10000"):
        validate._check_atoms("here", atoms, SYMBOLS)


def test_what_belongs_together_is_named_by_what_is_there():
    KNOWLEDGE_GRAPH.check_level(
        KNOWLEDGE_GRAPH.required(TraceLevel.STEPS) | {"program/rule_lengths", "program/rule_atoms"},
        TraceLevel.STEPS,
        "file",
    )
    with pytest.raises(UserError, match="missing, while program/rule_atoms is there") as caught:
        KNOWLEDGE_GRAPH.check_level(
            KNOWLEDGE_GRAPH.required(TraceLevel.STEPS) | {"program/rule_atoms"}, TraceLevel.STEPS, "file"
        )
    assert caught.value.where == "file:program/rule_lengths"


def test_unknown_fields_are_kept_apart_at_every_level():
    given = {"a": 1, "b": {"c": 2, "d": 3}, "e": {"f": 4}}
    assert trace._without(given, {"b": {"c": 0}, "e": {"f": 0}}) == {"a": 1, "b": {"d": 3}}
    assert trace._without([1], {}) == {}


def test_a_rule_without_a_body_is_refused():
    atoms = np.zeros((3, 3), np.int32)
    for lengths, is_sound in (([3], True), ([2, 1], False), ([2], False)):
        given = {"program/rule_lengths": np.array(lengths), "program/rule_atoms": atoms}
        with nullcontext() if is_sound else pytest.raises(UserError, match="a head and one or more atoms"):
            validate.check_rules(given, SYMBOLS, "file")


def test_a_chunk_larger_than_the_cache_is_kept_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_array, "_KEPT_BYTES", 10)
    cache = stored_array.ChunkCache()
    for number in range(3):
        chunk = np.zeros(100, np.uint8)
        assert cache.get(("file", number), lambda chunk=chunk: chunk) is chunk
        assert (cache.num_bytes, len(cache._chunks)) == (100, 1)


def test_a_program_without_facts_is_sound():
    validate.check_facts(np.zeros((0, 3), np.int32), np.zeros(0, np.int32), SYMBOLS, "file")
