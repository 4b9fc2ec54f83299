"""Joining, converting and repairing check what they read as `check` does, in bounded memory, whatever the damage."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgverify as kv
from kgverify import UserError
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.maintain.check import DAMAGED, WHOLE, check_trace
from kgverify.trace.maintain.join import PartsError, unite
from kgverify.trace.maintain.repair import convert_trace, repair_trace
from kgverify.trace.model.schema import Arrays
from kgverify.trace.read.data_file import DataFile

MARGIN = 8 << 20
"""The memory of what does not grow with the trace: modules, names and blocks."""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "base.h5"
    kv.record("countries", path, "reference", queries=2, corruptions=5, options=kv.RecordingOptions(shard_steps=60))
    return path


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    edit(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def edit_arrays(folder: Path, number: int, edit: Callable[[Arrays], object], *, is_signed: bool) -> None:
    """Write a shard with other values, whose own checksums are right; signed, the manifest agrees with it."""
    path = folder / f"shard-{number:05d}.h5"
    arrays = {name: array.copy() for name, array in DataFile(path).load_arrays().items()}
    edit(arrays)
    write_arrays(path, arrays, "test")
    if is_signed:
        sums = {"xxh3": DataFile(path).checksum, "size": path.stat().st_size}
        edit_manifest(folder, lambda manifest: manifest["shards"][number].update(sums))


def damage(folder: Path, random: np.random.Generator) -> None:
    """Damage a folder in one of many ways."""
    shards = sorted(folder.glob("shard-*.h5"))
    # The last one holds the rankings alone.
    number = int(random.integers(len(shards) - 1))
    is_signed = bool(random.integers(2))
    kind = int(random.integers(8))
    if kind == 0:
        content = bytearray(shards[number].read_bytes())
        for at in random.integers(0, len(content), 3):
            content[at] ^= 1 << int(random.integers(8))
        shards[number].write_bytes(content)
    elif kind == 1:
        shards[number].write_bytes(shards[number].read_bytes()[: int(random.integers(shards[number].stat().st_size))])
    elif kind == 2:
        other = shards[number - 1].read_bytes()
        shards[number - 1].write_bytes(shards[number].read_bytes())
        shards[number].write_bytes(other)
    elif kind == 3:
        field = ("num_candidates", "num_steps", "size", "xxh3", "root")[int(random.integers(5))]
        edit_manifest(
            folder, lambda m: m["shards"][number].update({field: "0" * 16 if field in ("xxh3", "root") else 7})
        )
    elif kind == 4:
        edit_manifest(folder, lambda m: m.update(root="0" * 16, num_steps=1 << 40))
    elif kind == 5:
        more = int(random.choice([5, 60_000_000, 400_000_000, 2**31]))
        edit_arrays(folder, number, lambda a: a["candidates/num_steps"].__setitem__(0, more), is_signed=is_signed)
    elif kind == 6:
        name = str(random.choice(["steps/num_resolvents", "steps/num_atoms", "resolvents/num_atoms"]))
        most = np.iinfo(np.uint16).max if name != "steps/num_resolvents" else 1 << 30
        edit_arrays(folder, number, lambda a: a[name].__setitem__(0, most), is_signed=is_signed)
    else:
        name = str(random.choice(["steps/choice", "steps/goal_atoms", "candidates/side", "resolvents/kind"]))
        edit_arrays(folder, number, lambda a: a[name].__setitem__(0, 99), is_signed=is_signed)


def is_refused(call: Callable[[], Any], folder: Path) -> bool:
    """Return whether a call refused the folder, or reported losses. AssertionError if it takes too much memory."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    tracemalloc.start()
    try:
        return bool(getattr(call(), "losses", ()))
    except UserError:
        return True
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4 * size + MARGIN, (peak, size)


@pytest.mark.sample(10, deep=40)
@pytest.mark.parametrize("seed", range(200))
def test_nothing_makes_a_whole_trace_of_what_check_refuses(base: Path, tmp_path: Path, seed: int):
    folder = shutil.copytree(base, tmp_path / "damaged.h5")
    damage(folder, np.random.default_rng(seed))
    found = check_trace(folder)
    assert found.state in (DAMAGED, WHOLE)
    joined, converted = tmp_path / "joined.h5", tmp_path / "converted.h5"
    is_damaged = found.state == DAMAGED
    assert is_refused(lambda: unite([folder], joined), folder) or not is_damaged
    assert is_refused(lambda: convert_trace(folder, converted), folder) or not is_damaged
    assert not is_damaged or not (joined.exists() or converted.exists())
    assert is_refused(lambda: repair_trace(folder), folder) or not is_damaged


def test_a_manifest_of_any_number_of_parts_ends(base: Path, tmp_path: Path):
    folder = shutil.copytree(base, tmp_path / "part.h5")
    edit_manifest(folder, lambda manifest: manifest.update(part={"index": 5, "count": 2**40}))
    with pytest.raises(PartsError, match=r"part 0 of 1099511627776; .* \.\.\. missing"):
        unite([folder], tmp_path / "joined.h5")
