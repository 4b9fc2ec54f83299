"""Hostile traces: each is refused with a clear error, whatever it asks for, within bounded memory."""

import multiprocessing
import os
import resource
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hostile_traces import CONSTRUCTS, copy_as_plain_h5py, reseal
from trace_builders import (
    FACT_LINES,
    FACTS,
    HEADER,
    RANKINGS,
    RULES,
    SYMBOLS,
    assert_same_trace,
    make_columns,
    write_file,
)

from kgverify import UserError, Verdict
from kgverify.comparison.compare import compare
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.report.steps import LazyTraceView
from kgverify.trace.hdf5.reading import MIN_TOTAL_BYTES, StoredFile, locate_arrays
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.maintain.repair import repair_trace
from kgverify.trace.model.schema import file_checksum
from kgverify.trace.read.trace_file import TraceFile, read_trace


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.h5"
    columns = make_columns(1, 8)
    program = {"facts": FACTS, "fact_lines": FACT_LINES, "rules": RULES}
    write_file(path, HEADER, SYMBOLS, columns, RANKINGS, **program)
    copy_as_plain_h5py(path, path.with_name("plain.h5"))
    return path.with_name("plain.h5")


def test_the_good_file_is_read(good: Path):
    assert_same_trace(read_trace(good), read_trace(good.with_name("good.h5")))


@pytest.mark.sample(20, deep=24)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_hostile_construct_is_refused(good: Path, tmp_path: Path, name: str):
    path = CONSTRUCTS[name](good, tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            read_trace(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix
    assert "\n" not in caught.value.message
    assert peak < MIN_TOTAL_BYTES + (8 << 20)


@pytest.mark.sample(8, deep=24)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_hostile_construct_is_neither_whole_nor_followed_when_repaired(good: Path, tmp_path: Path, name: str):
    path = CONSTRUCTS[name](good, tmp_path)
    tracemalloc.start()
    try:
        with suppress(UserError):
            assert check_trace(path).state != "whole"
        with suppress(UserError):
            repair_trace(path)
            read_trace(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIN_TOTAL_BYTES + (8 << 20)


def read_in_little_memory(path: str) -> str:
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    try:
        read_trace(path)
    except UserError as error:
        return error.message
    return "read"


@pytest.mark.exhaustive
def test_what_hdf5_itself_would_inflate_is_not_inflated(good: Path, tmp_path: Path):
    """HDF5 inflates a chunk to whatever its stream holds: 4 GiB out of 4 MB. Not in a process with 3 GiB."""
    import zlib

    from hostile_traces import with_filters

    packer = zlib.compressobj(9)
    raw = b"".join(packer.compress(bytes(64 << 20)) for _ in range(64)) + packer.flush()
    path = tmp_path / "a.h5"
    path.write_bytes(good.read_bytes())
    with h5py.File(path, "r+") as file:
        num_steps = len(file["steps/depth"])
        with_filters(file, (1,), (num_steps,), (num_steps,), raw)
        sums = {
            field.path: int(file[field.path].attrs["xxh3"]) for field in KNOWLEDGE_GRAPH.columns if field.path in file
        }
        file.attrs["xxh3"] = np.uint64(file_checksum(sums))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert "inflates to another size" in pool.apply(read_in_little_memory, (str(path),))


def test_hostile_datasets_that_nobody_asked_for_are_dropped_unread(good: Path, tmp_path: Path):
    path = tmp_path / "a.h5"
    path.write_bytes(good.read_bytes())
    with h5py.File(path, "r+") as file:
        file["x/link"] = h5py.ExternalLink("/dev/zero", "/x")
        file["x/soft"] = h5py.SoftLink("/x/soft")
        file["x/cycle"] = file["/"]
        file.create_dataset("x/bomb", (1 << 40,), "<f8")
        file.create_dataset("x/deflated", (1 << 40,), "<f8", chunks=(1 << 20,), compression="gzip")
        file["x/text"] = "text"
        file["x/numbers"] = np.arange(5)
        for i in range(400):
            file[f"many/{i}"] = i
    trace = read_trace(path)
    assert set(trace.unknown.arrays) == {"x/numbers"}
    assert set(trace.unknown.dropped) >= {"x/link", "x/soft", "x/bomb", "x/deflated", "x/text", "many/"}


def test_a_compact_layout_and_a_committed_type_are_read(good: Path, tmp_path: Path):
    path = tmp_path / "a.h5"
    path.write_bytes(good.read_bytes())
    with h5py.File(path, "r+") as file:
        values = file["steps/choice"][()]
        del file["steps/choice"]
        file["types/of_choice"] = np.dtype("<i4")
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        kind = file["types/of_choice"].id
        dataset = h5py.h5d.create(file["steps"].id, b"choice", kind, h5py.h5s.create_simple(values.shape), plan)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    reseal(path)
    np.testing.assert_array_equal(read_trace(path).columns.steps.choice, values)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 1000, 70_001])
@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<i4", "<f8"])
def test_chunks_are_unpacked_as_hdf5_does_it(good: Path, tmp_path: Path, dtype: str, length: int):
    path = tmp_path / "a.h5"
    path.write_bytes(good.read_bytes())
    random = np.random.default_rng(length)
    arrays = {
        "noise": random.integers(0, 255, (length, 3)).astype(dtype),
        "zeros": np.zeros(length, dtype),
        "most": np.full(length, 255, dtype),
    }
    with h5py.File(path, "r+") as file:
        for name, array in arrays.items():
            for i, options in enumerate(
                (
                    {"chunks": True},
                    {"compression": "gzip"},
                    {"shuffle": True, "compression": "gzip", "compression_opts": 9},
                    {"fletcher32": True},
                    {"fletcher32": True, "shuffle": True, "compression": "gzip"},
                    {"chunks": tuple(max(1, n // 3) for n in array.shape), "shuffle": True, "fletcher32": True},
                )
            ):
                file.create_dataset(f"x/{name}{i}", data=array, **options)
    found = read_trace(path).unknown.arrays
    assert len(found) == 18
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name[2:-1]])
        assert array.dtype == dtype


def look_at_everything(path: Path) -> None:
    """The mapped path, down to every value and digest."""
    mapped = TraceFile(path)
    mapped.verify_content()
    for begin in range(mapped.num_candidates):
        mapped.read_candidates(begin, begin + 1)


def looks(good: Path) -> dict[str, Callable[[Path], object]]:
    """Every way in which a trace that stays on disk is looked at as a whole."""
    return {
        "mapped": look_at_everything,
        "expected": lambda path: compare(path, good, verifies_content=True),
        "actual": lambda path: compare(good, path),
    }


@pytest.mark.sample(24, deep=24)
@pytest.mark.parametrize("look", ["mapped", "expected", "actual"])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_hostile_construct_is_refused_when_it_is_mapped(good: Path, tmp_path: Path, name: str, look: str):
    path = CONSTRUCTS[name](good, tmp_path)
    if (name, look) in {("a doubled shard", "expected"), ("a doubled shard", "actual")}:
        comparison = looks(good)[look](path)
        assert comparison.verdict is Verdict.INCONCLUSIVE
        assert "shard-00001.h5 states that it is shard-00000.h5" in comparison.reasons[0]
        return
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            looks(good)[look](path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.where.startswith(str(path))
    assert caught.value.fix
    assert "\n" not in caught.value.message
    assert peak < MIN_TOTAL_BYTES + (8 << 20)


@pytest.mark.sample(8, deep=24)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_hostile_construct_whose_values_are_not_verified_is_refused_or_differs(good: Path, tmp_path: Path, name: str):
    path = CONSTRUCTS[name](good, tmp_path)
    for pair in ((path, good), (good, path)):
        with suppress(UserError):
            assert compare(*pair, verifies_content=False).verdict is not Verdict.AGREE
    with suppress(UserError):
        compare(path, path, verifies_content=False)
    with suppress(UserError):
        view = LazyTraceView(TraceFile(path, is_lazy=True))
        for candidate in range(view.num_candidates):
            for step in range(view.candidate(candidate)["num_steps"]):
                view.step(candidate, step)


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_file_that_is_replaced_or_cut_after_it_was_checked_is_refused(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_archived: bool
):
    """Its places were those of another file."""
    whole, path = tmp_path / "whole.h5", tmp_path / "a.h5"
    write_file(whole, HEADER, SYMBOLS, make_columns(1, 8), is_archived=is_archived)
    for change in (lambda: path.write_bytes(whole.read_bytes()[:-100]), lambda: os.replace(tmp_path / "b.h5", path)):
        shutil.copy(whole, path)
        shutil.copy(whole, tmp_path / "b.h5")

        def locate_and_change(*given: Any, change: Callable[[], object] = change) -> StoredFile:
            found = locate_arrays(*given)
            change()
            return found

        monkeypatch.setattr("kgverify.trace.read.data_file.locate_arrays", locate_and_change)
        with pytest.raises(UserError, match="was replaced or changed"):
            TraceFile(path).read_candidates(0, 1)
