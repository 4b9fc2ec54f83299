"""A corpus of hostile traces: each is a good trace with one change that a careless reader would follow or believe.

`CONSTRUCTS` has them by name. Each takes the path of a good file, in the layout that h5py writes by default (whose metadata
have no checksums, so that they can be forged), and a folder to work in; it returns the path to be read.
"""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import xxhash
from trace_builders import FACTS, RULES, make_columns, write_shards

from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.schema import file_checksum

CONSTRUCTS: dict[str, Callable[[Path, Path], Path]] = {}
CHOICE = "steps/choice"


def copy_as_plain_h5py(source, path):
    """Copy a trace to the file layout that h5py writes by default, whose metadata has no checksums."""
    with h5py.File(source) as old, h5py.File(path, "w") as new:
        for name in old:
            old.copy(name, new)
        for name, value in old.attrs.items():
            new.attrs[name] = value


def reseal(path):
    """Make every checksum right again, as an attacker would."""
    with h5py.File(path, "r+") as file:
        sums = {}
        for field in KNOWLEDGE_GRAPH.columns:
            if isinstance(file.get(field.path), h5py.Dataset):
                try:
                    content = file[field.path][()].tobytes()
                except (OSError, AttributeError, MemoryError, ValueError, TypeError):
                    content = b""
                sums[field.path] = xxhash.xxh3_64_intdigest(content)
                file[field.path].attrs["xxh3"] = np.uint64(sums[field.path])
        file.attrs["xxh3"] = np.uint64(file_checksum(sums))


def replace(file, name, **options):
    """Put another dataset in the place of one; return it."""
    if name in file:
        del file[name]
    return file.create_dataset(name, **options)


def retype(file, _, **options):
    """Store the same choices in another way."""
    data = {} if "dtype" in options else {"data": file[CHOICE][()]}
    replace(file, CHOICE, shape=file[CHOICE].shape, **data, **options)


def alter(path, changes: dict[str, Any], *, is_resealed: bool = True) -> Path:
    """Replace datasets of a file by arrays, by functions of the arrays there, or by nothing."""
    with h5py.File(path, "r+") as file:
        for name, change in changes.items():
            if change is None:
                del file[name]
            else:
                replace(file, name, data=change(file[name][()]) if callable(change) else change)
    if is_resealed:
        reseal(path)
    return path


def with_row(row, value):
    """Return a function that sets a row of a copy of an array."""

    def change(array):
        array = array.copy()
        array[row] = value
        return array

    return change


def edited(name: str, edit: Callable[[h5py.File, Path], object], *, is_resealed: bool = False) -> None:
    """Register a construct that edits an open copy of the file, given a folder for other files."""

    def make(good: Path, folder: Path) -> Path:
        path = folder / f"{name.replace('/', '-')}.h5"
        shutil.copy(good, path)
        with h5py.File(path, "r+") as file:
            edit(file, folder)
        if is_resealed:
            reseal(path)
        return path

    CONSTRUCTS[name] = make


# Links, at every component of a path.


def link_outside(file, folder, name):
    shutil.copy(file.filename, folder / "other.h5")
    del file[name]
    file[name] = h5py.ExternalLink("other.h5", f"/{name}")


def link_inside(file, _, name):
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def put(name, make):
    def edit(file, _):
        del file[name]
        file[name] = make(file)

    return edit


for _name in ("header", "steps", CHOICE, "symbols", "program/facts"):
    edited(f"external link at {_name}", partial(link_outside, name=_name))
    edited(f"soft link at {_name}", partial(link_inside, name=_name))
edited("a soft link to itself", put(CHOICE, lambda _: h5py.SoftLink(f"/{CHOICE}")))
edited("an external link to a device", put(CHOICE, lambda _: h5py.ExternalLink("/dev/zero", f"/{CHOICE}")))
edited("a group in the place of a dataset", put(CHOICE, lambda file: file["/"]))
edited("a dataset in the place of a group", put("steps", lambda _: np.zeros(3, "<i4")))

# Storage elsewhere.


def store_virtually(file, folder, source):
    shutil.copy(file.filename, folder / "source.h5")
    shape = file[CHOICE].shape
    file.move(CHOICE, "elsewhere")
    layout = h5py.VirtualLayout(shape, "<i4")
    layout[:] = h5py.VirtualSource(*source(folder), shape)
    file.create_virtual_dataset(CHOICE, layout)


def store_outside(file, folder):
    (folder / "secret.bin").write_bytes(bytes(4000))
    replace(file, CHOICE, shape=file[CHOICE].shape, dtype="<i4", external=[(str(folder / "secret.bin"), 0, 4000)])


for _name, _source in {
    "of another file": lambda folder: (str(folder / "source.h5"), CHOICE),
    "of the file itself": lambda _: (".", "elsewhere"),
}.items():
    edited(f"a virtual dataset {_name}", partial(store_virtually, source=_source), is_resealed=True)
edited("external storage", store_outside, is_resealed=True)

# Types, filters and shapes.

TYPES = {
    "variable text": h5py.string_dtype(),
    "variable lists": h5py.vlen_dtype(np.int32),
    "references": h5py.ref_dtype,
    "region references": h5py.regionref_dtype,
    "a record": np.dtype([("a", "<i4")]),
    "600 fields": np.dtype([(f"field{i}", "<i4") for i in range(600)]),
    "an enumeration": h5py.enum_dtype({"A": 0, "B": 1}, basetype="i4"),
    "pairs": np.dtype(("<i4", (2,))),
    "opaque bytes": np.dtype("V4"),
}
for _name, _dtype in TYPES.items():
    edited(f"a column of type {_name}", partial(retype, dtype=_dtype), is_resealed=True)


def with_filters(file, filters, length, chunk, make_raw):
    """Replace `/steps/choice` by one stored chunk with these filters (1: deflate, 2: shuffle, 3: fletcher32, 4: a plugin)."""
    plugin = 32013, h5py.h5z.FLAG_OPTIONAL, ()
    del file[CHOICE]
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((chunk,))
    for number in filters:
        sets = {1: lambda: plan.set_deflate(1), 2: plan.set_shuffle, 3: plan.set_fletcher32}
        sets.get(number, lambda: plan.set_filter(*plugin))()
    space = h5py.h5s.create_simple((length,))
    dataset = h5py.h5d.create(file["steps"].id, b"choice", h5py.h5t.STD_I32LE, space, plan)
    # Of two filters, both are skipped.
    dataset.write_direct_chunk((0,), make_raw(), 3 if filters == (2, 1) else 0)
    attribute = h5py.h5a.create(dataset, b"xxh3", h5py.h5t.STD_U64LE, h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(np.zeros((), np.uint64))


_bomb = 100 << 20
CHUNKS = {
    "a filter that a plugin would load": ((4,), 3, 3, lambda: bytes(12)),
    "a filter twice": ((1, 1), 3, 3, lambda: zlib.compress(zlib.compress(bytes(12)))),
    "a chunk that inflates a thousandfold beyond its size": ((1,), 64, 64, lambda: zlib.compress(bytes(64 << 20), 9)),
    "a chunk that inflates to less": ((1,), 64, 64, lambda: zlib.compress(bytes(17))),
    "a chunk that is not a zlib stream": ((1,), 64, 64, lambda: os.urandom(100)),
    "a chunk whose fletcher32 sum is another": ((3,), 64, 64, lambda: bytes(range(256)) + b"\1\2\3\4"),
    "a chunk shorter than its sum": ((3,), 64, 64, lambda: b"\1\2"),
    "a chunk whose filters were all skipped": ((2, 1), 64, 64, lambda: b"\0" * 100),
    "chunks that are missing": ((1,), 640, 64, lambda: zlib.compress(bytes(256))),
    # 1,000 to 1, which deflate can do; the file as a whole may not.
    "a deflate bomb within every single bound": ((1,), _bomb >> 2, _bomb >> 2, lambda: zlib.compress(bytes(_bomb), 9)),
    "many chunks of one element": ((), 1 << 30, 1, lambda: bytes(4)),
}
for _name, _chunk in CHUNKS.items():
    edited(_name, lambda file, _, chunk=_chunk: with_filters(file, *chunk))

LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (1 << 20,)},
    "deflated": {"chunks": (1 << 20,), "compression": "gzip"},
}


def empty(name, **options):
    """Return an edit that puts a dataset there of which no element is written, so that the file stays small."""

    def edit(file, _):
        replace(file, name, **options).attrs["xxh3"] = np.uint64(0)

    return edit


for _length in (1 << 20, (1 << 62) - 1):
    for _name, _options in LAYOUTS.items():
        edited(f"{_name} shape of {_length}", empty(CHOICE, shape=(_length,), dtype="<i4", **_options))
_gigabyte = {"maxshape": (None,), "chunks": ((1 << 28) + 1,), "compression": "gzip"}
edited("a chunk of a gigabyte", empty(CHOICE, shape=(3,), dtype="<i4", **_gigabyte))
edited("a header of a gigabyte", empty("header", shape=(1 << 30,), dtype="u1", chunks=(1 << 20,)))
for _name, _options in {"lzf": {"compression": "lzf"}, "scaleoffset": {"scaleoffset": 0}}.items():
    edited(f"filter {_name}", partial(retype, chunks=True, **_options), is_resealed=True)

# Attributes.

ATTRIBUTES = {
    "a format of 60,000 bytes": ("/", "format", np.bytes_(b"x" * 60_000)),
    "a format of variable length": ("/", "format", "kgverify-trace"),
    "a checksum of 7,000 numbers": (CHOICE, "xxh3", np.zeros(7000, np.uint64)),
    "a version of 128 bits": ("/", "schema_version", np.zeros(2, "<u8").view("V16")[0]),
    "a version that is an array": ("/", "schema_version", np.ones(3, np.int32)),
    "a version of 2^64 - 1": ("/", "schema_version", np.uint64(2**64 - 1)),
}
for _name, (_path, _attribute, _value) in ATTRIBUTES.items():
    edited(_name, lambda file, _, path=_path, key=_attribute, value=_value: file[path].attrs.__setitem__(key, value))

# Headers.

HEADERS = {
    "that is deep": "[" * 200_000,
    "whose objects are deep": '{"engine":' * 200_000,
    "with a number of 5,000 digits": '{"limits": {"max_depth": ' + "9" * 5000 + "}}",
    "with 1e999": '{"limits": {"max_depth": 1e999}}',
    "of NUL bytes": "\0" * 100,
    "with half a surrogate": '{"engine": {"name": "\\ud800"}}',
}
for _name, _text in HEADERS.items():
    _content = np.frombuffer(_text.encode(), "u1")
    edited(f"a header {_name}", lambda file, _, text=_content: replace(file, "header", data=text), is_resealed=True)

# Places in the file, forged in metadata without checksums.


def forged(name: str, edit: Callable[[bytearray, dict[str, int]], bytes]) -> None:
    """Register a construct that edits the bytes of a copy, given the offsets of its datasets."""

    def make(good: Path, folder: Path) -> Path:
        path = folder / f"{name}.h5"
        with h5py.File(good) as file:
            paths = [each.path for each in KNOWLEDGE_GRAPH.columns if each.path in file and file[each.path].size]
            places = {each: file[each].id.get_offset() for each in paths}
        path.write_bytes(edit(bytearray(good.read_bytes()), places))
        return path

    CONSTRUCTS[name] = make


def point(content: bytearray, old: int, new: int) -> bytearray:
    assert content.count(struct.pack("<Q", old)) == 1
    return content.replace(struct.pack("<Q", old), struct.pack("<Q", new))


forged("two datasets in one place", lambda c, at: point(c, at["steps/outcome"], at["candidates/outcome"]))
forged("data that overlap by one byte", lambda c, at: point(c, at["steps/outcome"], at["candidates/num_steps"] + 1))
forged("data at the end", lambda c, at: point(c, at[CHOICE], len(c) - 3))
forged("data at 2^63", lambda c, at: point(c, at[CHOICE], 1 << 63))
forged("data at 2^64 - 2", lambda c, at: point(c, at[CHOICE], (1 << 64) - 2))
forged("data nowhere", lambda c, at: point(c, at[CHOICE], (1 << 64) - 1))
forged("a cut file", lambda c, _: c[: len(c) // 2])
forged("a file behind a user block", lambda c, _: bytes(512) + c)
forged("a signature and nothing else", lambda c, _: c[:8])
forged("a superblock of garbage", lambda c, _: c[:8] + bytes(range(256)) * 20)
forged("an empty file", lambda c, _: b"")
forged("a table of text", lambda c, _: b"query,side\n1,0\n" * 100)

# Paths that are not files.


PLACED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nowhere": lambda path: path.symlink_to("no such file"),
    "an empty folder": lambda path: path.mkdir(),
}
for _name, _make in PLACED.items():
    CONSTRUCTS[_name] = lambda _, folder, name=_name, make=_make: make(folder / name) or folder / name

# Folders of shards.


@cache
def list_shards() -> dict[str, bytes]:
    """Return the contents of the files of a trace in three shards."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write_shards(path, make_columns(2, 12), shard_steps=9, facts=FACTS, rules=RULES)
        return {each.name: each.read_bytes() for each in path.iterdir()}


def of_folder(name: str, edit: Callable[[Path, dict[str, Any]], str | dict[str, Any] | None]) -> None:
    """Register a construct that edits a folder of three shards; what `edit` returns replaces the manifest's text."""

    def make(_: Path, folder: Path) -> Path:
        path = folder / name.replace("/", "-")
        path.mkdir()
        for file, content in list_shards().items():
            (path / file).write_bytes(content)
        changed = edit(path, json.loads((path / "manifest.json").read_text()))
        if changed is not None:
            (path / "manifest.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
        return path

    CONSTRUCTS[name] = make


def rename_first(_, manifest, name):
    manifest["shards"][0]["name"] = name
    return manifest


def move_and_link(path, _, name):
    (path / name).rename(path.parent / "outside")
    (path / name).symlink_to(path.parent / "outside")


def make_pipe(path, _, name):
    (path / name).unlink()
    os.mkfifo(path / name)


def double(path, manifest):
    shutil.copy(path / "shard-00000.h5", path / "shard-00001.h5")
    manifest["shards"][1] = manifest["shards"][0] | {"name": "shard-00001.h5"}
    return resum(manifest)


def resum(manifest):
    """Make the sums of a manifest those of its shards."""
    for name in ("num_candidates", "num_steps"):
        manifest[name] = sum(shard[name] for shard in manifest["shards"])
    manifest["root"] = f"{sum(int(shard['root'], 16) for shard in manifest['shards']) % (1 << 64):016x}"
    return manifest


def with_steps(_, manifest, value):
    return json.dumps(manifest | {"num_steps": 7}).replace('"num_steps": 7', f'"num_steps": {value}')


def swap(path, _):
    first, second = ((path / f"shard-0000{i}.h5").read_bytes() for i in (0, 1))
    (path / "shard-00000.h5").write_bytes(second)
    (path / "shard-00001.h5").write_bytes(first)


def lie(path, manifest, name, value):
    """Give a shard other values, with which its own checksums and the manifest agree."""
    shard = alter(path / "shard-00001.h5", {name: with_row(0, value)})
    with h5py.File(shard) as file:
        manifest["shards"][1] |= {"xxh3": f"{file.attrs['xxh3']:016x}", "size": shard.stat().st_size}
    return manifest


def with_entry(_, manifest, name):
    """Change the entry of a shard, a digest in one bit."""
    shard = manifest["shards"][1]
    shard[name] = f"{int(shard[name], 16) ^ 1:016x}" if name in ("xxh3", "root") else 7
    return resum(manifest)


_shard = "shard-00000.h5"
for _name in ("../other.h5", "/etc/passwd", f"{_shard}/", "", ".", "shard-00001.h5", _shard.upper(), f"{_shard}\0"):
    of_folder(f"a shard named {_name!r}", partial(rename_first, name=_name))
for _name in ("shard-00001.h5", "manifest.json"):
    of_folder(f"a {_name} that is a link", partial(move_and_link, name=_name))
    of_folder(f"a {_name} that is a pipe", partial(make_pipe, name=_name))
of_folder("a doubled shard", double)
for _value in ("9" * 5000, "1e999", "NaN", "-1", str(1 << 64), '"7"'):
    of_folder(f"a manifest with {_value[:25]} steps", partial(with_steps, value=_value))
for _name, _text in {
    "deep": '{"shards":' + "[" * 200_000,
    "empty": "",
    "a list": "[]",
    "unfinished": '{"shards": [',
}.items():
    of_folder(f"a manifest that is {_name}", lambda *_, text=_text: text)
for _name, _changes in {
    "of another format": {"format": "x"},
    "of another version": {"schema_version": 3},
    "whose end is a number": {"is_complete": 1},
    "whose shards are a text": {"shards": "none"},
}.items():
    of_folder(f"a manifest {_name}", lambda _, manifest, changes=_changes: manifest | changes)
of_folder("a manifest that lacks a shard", lambda _, manifest: manifest | {"shards": manifest["shards"][:-1]})
of_folder("a manifest of 70 megabytes", lambda _, manifest: json.dumps(manifest | {"creator": "x" * (70 << 20)}))
of_folder("swapped shards", swap)
for _name, _value in {
    "candidates/num_steps": 400_000_000,
    "steps/num_resolvents": 1 << 30,
    "resolvents/num_atoms": 2**16 - 1,
    "steps/choice": 99,
    "candidates/side": 99,
    "resolvents/kind": 99,
}.items():
    of_folder(f"a shard whose {_name} lie", partial(lie, name=_name, value=_value))
for _name in ("num_candidates", "num_steps", "size", "xxh3", "root"):
    of_folder(f"another {_name} in the manifest", partial(with_entry, name=_name))
