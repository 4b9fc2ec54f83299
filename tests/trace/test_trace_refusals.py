"""Refusals: a reader names the problem, its location and a fix."""

import json

import h5py
import msgspec
import numpy as np
import pytest
from hostile_traces import reseal
from trace_builders import FACT_LINES, FACTS, HEADER, RANKINGS, SYMBOLS, make_columns, write_file

from kgverify import UserError
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5 import reading
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.codec import encode_symbols
from kgverify.trace.model.columns import Rankings
from kgverify.trace.model.schema import encode_level
from kgverify.trace.read.trace_file import TraceFile, read_trace


def make_arrays(seed=1):
    """The datasets of a good trace without digests, which may follow any change."""
    return {
        "header": np.frombuffer(msgspec.json.encode(HEADER), np.uint8),
        **encode_symbols(SYMBOLS, ""),
        **{
            path: array
            for path, array in KNOWLEDGE_GRAPH.encode(make_columns(seed, 8)).items()
            if path not in KNOWLEDGE_GRAPH.deep
        },
        **encode_level("rankings", RANKINGS),
        "program/facts": FACTS,
        "program/fact_lines": FACT_LINES,
    }


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.trace"
    write_file(path, HEADER, SYMBOLS, make_columns(1, 8), RANKINGS, facts=FACTS, fact_lines=FACT_LINES)
    return path


def refuse(path, match):
    """The error says where, what and how to fix it."""
    with pytest.raises(UserError, match=match) as caught:
        read_trace(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix
    return caught.value


def test_the_unchanged_trace_is_read(path, tmp_path):
    assert read_trace(path).is_complete
    write_arrays(tmp_path / "b", make_arrays(), "test")
    assert read_trace(tmp_path / "b").is_complete
    reseal(path)
    assert read_trace(path).is_complete


def test_a_path_without_a_trace(tmp_path):
    refuse(tmp_path / "none", "no such trace")
    refuse(tmp_path, "no manifest.json in this folder")


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"query,side\n1,0\n" * 100, bytes(5000)])
def test_a_file_that_is_not_hdf5(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    refuse(tmp_path / "a", "not an HDF5 file")


def test_an_hdf5_file_that_is_not_a_trace(tmp_path):
    with h5py.File(tmp_path / "a", "w") as file:
        file["x"] = 1
    refuse(tmp_path / "a", "without the root attribute `format`")
    with h5py.File(tmp_path / "a", "r+") as file:
        file.attrs["format"] = np.bytes_("anndata")
    refuse(tmp_path / "a", "'anndata', expected 'kgverify-trace'")


@pytest.mark.parametrize(("version", "fix"), [*((old, "record") for old in (0, 1, 2, 3, None)), (5, "newer")])
def test_another_schema_version(path, version, fix):
    with h5py.File(path, "r+") as file:
        del file.attrs["schema_version"]
        if version is not None:
            file.attrs["schema_version"] = np.int64(version)
    assert fix in refuse(path, f"schema version is {version}, expected 4").fix


@pytest.mark.parametrize("version", [np.array([3, 3]), np.float64(3)])
def test_a_schema_version_that_is_not_one_integer(path, version):
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = version
    refuse(path, "schema version is None, expected 4")


def test_attributes_of_variable_length(path):
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = "kgverify-trace"
    refuse(path, "that is one string of fixed length")


@pytest.mark.parametrize("field", [f.path for f in KNOWLEDGE_GRAPH.columns if f.is_required])
def test_every_required_dataset_is_required(tmp_path, field):
    arrays = make_arrays()
    del arrays[field]
    write_arrays(tmp_path / "a", arrays, "test")
    assert refuse(tmp_path / "a", "missing").where.endswith(field)


@pytest.mark.parametrize("field", ["resolvents/origin", "steps/dropped_atoms", "rankings/side", "rankings/query"])
def test_half_of_what_goes_together(tmp_path, field):
    arrays = make_arrays()
    del arrays[field]
    write_arrays(tmp_path / "a", arrays, "test")
    assert refuse(tmp_path / "a", "missing, while").where.endswith(field)


def test_a_dataset_cannot_be_lost_or_renamed_unnoticed(path):
    with h5py.File(path, "r+") as file:
        file.move("resolvents/score", "resolvents/scorf")
    refuse(path, "one was renamed, removed or added")


def test_a_dataset_where_a_group_is_expected(path):
    with h5py.File(path, "r+") as file:
        del file["resolvents"]
        file["resolvents"] = np.zeros(3, np.int32)
    refuse(path, "missing, expected a dataset")


def test_a_dataset_without_checksum(path):
    with h5py.File(path, "r+") as file:
        del file["steps/choice"].attrs["xxh3"]
    assert refuse(path, "no attribute `xxh3`").where.endswith("steps/choice")


@pytest.mark.parametrize("change", [np.atleast_1d, np.int64, np.float64])
def test_a_checksum_that_is_not_one_unsigned_integer(path, change):
    with h5py.File(path, "r+") as file:
        file["steps/choice"].attrs["xxh3"] = change(np.uint64(7))
    assert refuse(path, "no attribute `xxh3` that is one uint64").where.endswith("steps/choice")


def test_an_altered_value(path):
    with h5py.File(path, "r+") as file:
        file["steps/choice"][0] += 1
    assert refuse(path, "checksum is .*, expected").where.endswith("steps/choice")


def test_an_altered_value_under_new_checksums_breaks_the_digests(path):
    with h5py.File(path, "r+") as file:
        file["steps/choice"][0] += 1
    reseal(path)
    assert "digests/" in refuse(path, "step 0 has digest").where


@pytest.mark.parametrize(
    ("field", "array", "match"),
    [
        ("steps/choice", np.zeros(3, np.int64), "dtype is int64, expected little-endian int32"),
        ("steps/choice", np.zeros(3, ">i4"), "dtype is >i4"),
        ("steps/depth", np.zeros(3, np.float32), "dtype is float32"),
        ("candidates/is_limited", np.zeros(3, bool), "dtype is"),
        ("resolvents/score", np.zeros(3, np.float16), "expected little-endian float32 or float64"),
        ("steps/goal_atoms", np.zeros(9, np.int32), r"shape is \[9\], expected \[n, 3\]"),
        ("steps/goal_atoms", np.zeros((9, 2), np.int32), "shape is"),
        ("steps/choice", np.zeros((3, 1), np.int32), "shape is"),
        ("steps/choice", np.int32(3), r"shape is \[\], expected \[n\]"),
        ("steps/choice", h5py.Empty("i4"), "shape is"),
        ("steps/choice", np.zeros(3, [("a", "i4")]), "dtype is"),
    ],
)
def test_another_type_or_shape(path, field, array, match):
    with h5py.File(path, "r+") as file:
        del file[field]
        file[field] = array
    reseal(path)
    assert refuse(path, match).where.endswith(field)


CHANGES = [
    ("candidates/outcome", 0, 4, "expected a code of Outcome, 0 to 3"),
    ("candidates/outcome", 0, -1, "expected a code of Outcome"),
    ("candidates/side", 0, 3, "expected a code of Side"),
    ("candidates/is_limited", 0, 2, "expected a flag"),
    ("candidates/num_steps", 0, 77, "add up"),
    ("candidates/num_steps", 0, 2**32 - 1, "add up"),
    ("steps/num_atoms", 0, 77, "add up"),
    ("steps/num_resolvents", 0, 77, "add up"),
    ("steps/outcome", 0, 9, "expected a code of Outcome"),
    ("resolvents/num_atoms", 0, 77, "add up"),
    ("resolvents/kind", 0, 4, "expected a code of GoalKind"),
    ("resolvents/origin_kind", 0, 3, "expected a code of Origin"),
    ("rankings/side", 0, 7, "expected a code of Side"),
    ("program/facts", (0, 1), -1, "a variable, expected ground atoms"),
    ("program/facts", (0, 0), 9, "expected a predicate's id"),
    ("program/facts", (0, 1), 40, "expected a constant's id"),
    ("program/facts", (0, 2), 40, "expected a constant's id"),
    ("symbols/predicates_offsets", 0, 1, "do not ascend"),
    ("symbols/constants_offsets", 3, 2**63, "do not ascend"),
    ("symbols/constants_offsets", -1, 3, "do not ascend"),
    ("symbols/constants_bytes", 0, 0xFF, "not UTF-8"),
    ("header", 0, 0xFF, "not a header"),
    ("header", 0, ord("["), "not a header"),
]


@pytest.mark.parametrize(("field", "index", "value", "match"), CHANGES)
def test_values_that_do_not_exist(tmp_path, field, index, value, match):
    arrays = make_arrays()
    arrays[field] = arrays[field].copy()
    arrays[field][index] = value
    write_arrays(tmp_path / "a", arrays, "test")
    assert refuse(tmp_path / "a", match).where.endswith(field)


@pytest.mark.parametrize(
    "field", ["candidates/query", "steps/depth", "resolvents/score", "rankings/side", "program/fact_lines"]
)
def test_columns_of_different_lengths(tmp_path, field):
    arrays = make_arrays()
    arrays[field] = arrays[field][:-1]
    write_arrays(tmp_path / "a", arrays, "test")
    refuse(tmp_path / "a", "lengths differ|found 11 lines for 12 facts")


@pytest.mark.parametrize(("kind", "origin"), [(1, 3), (1, -1), (2, 12)])
def test_an_origin_without_its_clause(tmp_path, kind, origin):
    arrays = make_arrays()
    for name, value in (("origin_kind", kind), ("origin", origin)):
        arrays[f"resolvents/{name}"] = arrays[f"resolvents/{name}"].copy()
        arrays[f"resolvents/{name}"][2] = value
    write_arrays(tmp_path / "a", arrays, "test")
    refuse(tmp_path / "a", f"row 2 names .* {origin}, expected")


def test_names_that_are_not_unique(tmp_path):
    arrays = make_arrays()
    arrays["symbols/predicates_bytes"] = np.frombuffer(b"aabcd", np.uint8)
    arrays["symbols/predicates_offsets"] = np.arange(6, dtype=np.uint64)
    write_arrays(tmp_path / "a", arrays, "test")
    refuse(tmp_path / "a", "ids 0 and 1 have the same name 'a'")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"schema_version": 3}, "schema version is 3, expected 4"),
        ({"level": "all"}, "unknown level 'all'"),
        ({"level": 3}, "not a header"),
        ({"engine": None}, "not a header"),
        ({"limits": {"max_depth": 0}}, "max_depth is 0"),
        ({"limits": {"max_width": 1}}, "not a header"),
    ],
)
def test_an_invalid_header(tmp_path, change, match):
    arrays = make_arrays()
    header = json.loads(arrays["header"].tobytes()) | change
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    write_arrays(tmp_path / "a", arrays, "test")
    assert refuse(tmp_path / "a", match).where.endswith("header")


def test_a_dataset_that_the_level_leaves_out(tmp_path):
    arrays = make_arrays()
    compact = msgspec.structs.replace(HEADER, level="compact")
    arrays["header"] = np.frombuffer(msgspec.json.encode(compact), np.uint8)
    arrays["digests/sequence"] = np.zeros(len(arrays["steps/choice"]), np.uint64)
    write_arrays(tmp_path / "a", arrays, "test")
    with pytest.raises(UserError, match="the level is 'compact', which leaves it out"):
        TraceFile(tmp_path / "a")


def test_digests_that_are_too_few(tmp_path):
    arrays = make_arrays()
    arrays |= {"digests/sequence": np.zeros(1, np.uint64)}
    write_arrays(tmp_path / "a", arrays, "test")
    refuse(tmp_path / "a", "lengths differ: .*, sequence 1; expected")


def test_unknown_datasets_and_header_fields_are_ignored(path):
    with h5py.File(path, "r+") as file:
        file["steps/colour"] = np.zeros(3)
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    assert read_trace(path).rankings is not None
    assert isinstance(read_trace(path).rankings, Rankings)


# Hostile files: each would be followed, or allocated, by plain h5py.


def test_an_external_link_is_not_followed(path, tmp_path):
    other = tmp_path / "other.h5"
    other.write_bytes(path.read_bytes())
    for name in ("steps/choice", "steps"):
        with h5py.File(path, "r+") as file:
            del file[name]
            file[name] = h5py.ExternalLink("other.h5", f"/{name}")
        with h5py.File(path) as file:
            assert file["steps/choice"].shape  # plain h5py follows it
        assert refuse(path, "soft, external or user-defined link").where.endswith(name)


def test_a_soft_link_is_not_followed(path):
    for name, target in (("steps/choice", "/steps/outcome"), ("candidates", "/steps"), ("steps", "/steps")):
        with h5py.File(path, "r+") as file:
            if name in file:
                del file[name]
            file[name] = h5py.SoftLink(target)
        refuse(path, "soft, external or user-defined link")


def test_a_group_that_holds_itself_ends(path):
    with h5py.File(path, "r+") as file:
        file["steps/steps"] = file["steps"]
        file["steps/root"] = file["/"]
    assert read_trace(path).is_complete
    with h5py.File(path, "r+") as file:
        del file["steps/choice"]
        file["steps/choice"] = file["steps"]
    refuse(path, "is not a dataset")


def test_a_virtual_dataset_is_not_read(path, tmp_path):
    other = tmp_path / "other.h5"
    other.write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        shape = file["steps/choice"].shape
        del file["steps/choice"]
        layout = h5py.VirtualLayout(shape, "<i4")
        layout[:] = h5py.VirtualSource(str(other), "steps/choice", shape)
        file.create_virtual_dataset("steps/choice", layout)
    reseal(path)
    assert refuse(path, "virtual dataset").where.endswith("steps/choice")


def test_external_storage_is_not_read(path, tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(bytes(4000))
    with h5py.File(path, "r+") as file:
        shape = file["steps/choice"].shape
        del file["steps/choice"]
        file.create_dataset("steps/choice", shape, "<i4", external=[(str(secret), 0, 4000)])
    reseal(path)
    assert refuse(path, "in another file").where.endswith("steps/choice")


@pytest.mark.parametrize(
    ("dtype", "found"),
    [
        (h5py.string_dtype(), "of variable length"),
        (h5py.vlen_dtype(np.int32), "of variable length"),
        (h5py.ref_dtype, "of another kind"),
    ],
)
def test_variable_length_and_references_are_not_read(path, dtype, found):
    with h5py.File(path, "r+") as file:
        del file["steps/choice"]
        file.create_dataset("steps/choice", (3,), dtype)
    reseal(path)
    assert refuse(path, f"dtype is {found}, expected").where.endswith("steps/choice")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (1 << 20,)},
        {"chunks": (1 << 20,), "compression": "gzip"},
    ],
)
@pytest.mark.parametrize("length", [1 << 20, 1 << 40])
def test_a_shape_bomb_is_not_allocated(path, options, length):
    with h5py.File(path, "r+") as file:
        del file["steps/choice"]
        # No element is written, so the file stays small.
        file.create_dataset("steps/choice", (length,), "<i4", **options).attrs["xxh3"] = np.uint64(0)
    assert path.stat().st_size < 1 << 20
    assert refuse(path, "its shape asks for").where.endswith("steps/choice")


def test_a_chunk_bomb_is_not_allocated(path):
    with h5py.File(path, "r+") as file:
        del file["steps/choice"]
        chunked = {"maxshape": (None,), "chunks": ((1 << 28) + 1,), "compression": "gzip"}
        file.create_dataset("steps/choice", (3,), "<i4", **chunked).attrs["xxh3"] = np.uint64(0)
    refuse(path, "a chunk takes")


def test_a_header_is_as_long_as_the_file_admits(path, monkeypatch):
    monkeypatch.setattr(reading, "_MAX_HEADER_RATIO", 0)
    read_trace(path)
    monkeypatch.setattr(reading, "_MIN_HEADER_BYTES", 10)
    refuse(path, "bytes, expected at most 10")


@pytest.mark.parametrize("options", [{"compression": "lzf"}, {"scaleoffset": 0}])
def test_another_filter_is_not_run(path, options):
    with h5py.File(path, "r+") as file:
        array = file["steps/choice"][()]
        del file["steps/choice"]
        file.create_dataset("steps/choice", data=array, chunks=True, **options)
    reseal(path)
    assert refuse(path, "uses the HDF5 filters").where.endswith("steps/choice")


def test_chunks_and_the_built_in_filters_are_read(path):
    expected = read_trace(path)
    with h5py.File(path, "r+") as file:
        for field in KNOWLEDGE_GRAPH.columns:
            if field.path in file and file[field.path].size:
                array = file[field.path][()]
                del file[field.path]
                file.create_dataset(
                    field.path, data=array, chunks=True, compression="gzip", shuffle=True, fletcher32=True
                )
    reseal(path)
    actual = read_trace(path)
    assert (actual.root, actual.fields) == (expected.root, expected.fields)


def test_a_checksum_may_come_before_the_compression(path):
    expected = read_trace(path)
    with h5py.File(path, "r+") as file:
        array = file["resolvents/atoms"][()]
        del file["resolvents/atoms"]
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((5, 3))
        plan.set_fletcher32()
        plan.set_deflate(4)
        space = h5py.h5s.create_simple(array.shape)
        h5py.h5d.create(file.id, b"resolvents/atoms", h5py.h5t.py_create(array.dtype), space, plan)
        file["resolvents/atoms"][...] = array
    reseal(path)
    actual = read_trace(path)
    np.testing.assert_array_equal(actual.columns.resolvents.atoms, expected.columns.resolvents.atoms)
