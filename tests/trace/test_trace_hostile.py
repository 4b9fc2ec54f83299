"""Hostile traces: each is refused with a clear error, whatever it asks for, within bounded memory, however it is opened."""

import os
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hostile_traces import CONSTRUCTS, copy_as_plain_h5py
from trace_builders import PROGRAM, RANKINGS, assert_same_trace, make_columns, read, read_mapped, run, write_file

import kgverify as kv
from kgverify import UserError, Verdict
from kgverify.comparison.compare import compare
from kgverify.trace.hdf5.reading import MIN_TOTAL_BYTES, StoredFile, locate_arrays


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "good.h5"
    write_file(path, make_columns(1, 8), RANKINGS, **PROGRAM)
    copy_as_plain_h5py(path, path.with_name("plain.h5"))
    assert_same_trace(read(path.with_name("plain.h5")), read(path))
    return path.with_name("plain.h5")


@contextmanager
def in_bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIN_TOTAL_BYTES + (8 << 20)


@pytest.mark.sample(14, deep=24)
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_hostile_trace_is_refused_however_it_is_opened(good: Path, tmp_path: Path, name: str):
    path = CONSTRUCTS[name](good, tmp_path)
    looks = {
        "read": lambda: read(path),
        "mapped": lambda: read_mapped(path),
        "expected": lambda: compare(path, good, verifies_content=True),
        "actual": lambda: compare(good, path),
    }
    if name in ("a doubled shard", "swapped shards"):
        for look in ("expected", "actual"):
            comparison: Any = looks.pop(look)()
            assert comparison.verdict is Verdict.INCONCLUSIVE
            assert "shard-00001.h5 states that it is shard-00000.h5" in "".join(comparison.reasons)
    for call in looks.values():
        with in_bounded_memory(), pytest.raises(UserError) as caught:
            call()
        assert caught.value.where.startswith(str(path))
        assert caught.value.fix
        assert "\n" not in caught.value.message
    # Values that are not verified may be those of another trace, but the traces do not agree.
    for pair in ((path, good), (good, path)):
        with suppress(UserError):
            assert compare(*pair, verifies_content=False).verdict is not Verdict.AGREE
    with suppress(UserError):
        shown = kv.open_trace(path, is_lazy=True)
        for candidate in range(shown.num_candidates):
            shown.candidate(candidate)
    # No command believes it, follows it, or makes a whole trace of it.
    with in_bounded_memory():
        with suppress(UserError):
            assert run("check", path)["state"] != "whole"
        for words in (("convert", path, tmp_path / "made.h5"), ("join", path, "-o", tmp_path / "made.h5")):
            with pytest.raises(UserError):
                run(*words)
            assert not (tmp_path / "made.h5").exists()
        with suppress(UserError):
            run("repair", path)
            assert not read(path).is_complete


def test_hostile_datasets_that_nobody_asked_for_are_dropped_unread(good: Path, tmp_path: Path):
    path = shutil.copy(good, tmp_path / "a.h5")
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
        file["steps/steps"] = file["steps"]
    assert os.environ["HDF5_PLUGIN_PRELOAD"] == "::", "HDF5 loads no plugin of the environment's"
    assert_same_trace(read(path), read(good))


WAYS: list[dict[str, Any]] = [
    {"chunks": True},
    {"compression": "gzip"},
    {"shuffle": True, "compression": "gzip", "compression_opts": 9},
    {"fletcher32": True},
    {"fletcher32": True, "shuffle": True, "compression": "gzip"},
]


@pytest.mark.parametrize("num_candidates", [1, 400])
@pytest.mark.parametrize("way", [*range(len(WAYS)), -1])
def test_chunks_are_unpacked_as_hdf5_does_it(tmp_path: Path, num_candidates: int, way: int):
    write_file(tmp_path / "a", make_columns(num_candidates, 8, has_stages=True), RANKINGS, level="deep", **PROGRAM)
    path = shutil.copy(tmp_path / "a", tmp_path / "b")
    with h5py.File(path, "r+") as file:
        paths: list[str] = []
        file.visititems(lambda path, node: paths.append(path) if isinstance(node, h5py.Dataset) else None)
        for name in paths:
            array, checksum = file[name][()], file[name].attrs["xxh3"]
            if array.size:
                thirds = {"chunks": tuple(max(1, n // 3) for n in array.shape), "shuffle": True, "fletcher32": True}
                del file[name]
                file.create_dataset(name, data=array, **(thirds if way < 0 else WAYS[way])).attrs["xxh3"] = checksum
    assert_same_trace(read(path), read(tmp_path / "a"))


@pytest.mark.parametrize("is_archived", [False, True])
def test_a_file_that_is_replaced_or_cut_after_it_was_checked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_archived: bool
):
    whole, path = tmp_path / "whole.h5", tmp_path / "a.h5"
    write_file(whole, make_columns(1, 8), is_archived=is_archived)
    for change in (lambda: path.write_bytes(whole.read_bytes()[:-100]), lambda: os.replace(tmp_path / "b.h5", path)):
        shutil.copy(whole, path)
        shutil.copy(whole, tmp_path / "b.h5")

        def locate_and_change(*given: Any, change: Any = change) -> StoredFile:
            found = locate_arrays(*given)
            change()
            return found

        monkeypatch.setattr("kgverify.trace.read.data_file.locate_arrays", locate_and_change)
        with pytest.raises(UserError, match="was replaced or changed"):
            kv.open_trace(path).read_candidates(0, 1)
