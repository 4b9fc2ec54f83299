"""A corpus of hostile traces: each is a good trace with one thing done to it that a careless reader would follow or believe.

`CONSTRUCTS` has them by name. Each takes the path of a good file, in the layout that h5py writes unasked (whose metadata have
no checksums, so that they can be forged), and a folder to work in; it returns the path to be read.
"""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import xxhash
from trace_builders import open_writer

from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.model.schema import file_checksum

Construct = Callable[[Path, Path], Path]
CONSTRUCTS: dict[str, Construct] = {}


def copy_as_plain_h5py(source, path):
    """The same trace in the file layout that h5py writes unasked, whose metadata has no checksums."""
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


def edited(name: str, *, is_resealed: bool = True):
    """A construct that edits an open copy of the file."""

    def register(edit):
        def make(good: Path, folder: Path) -> Path:
            path = folder / f"{name.replace(chr(47), chr(45))}.h5"
            shutil.copy(good, path)
            with h5py.File(path, "r+") as file:
                edit(file, folder)
            if is_resealed:
                reseal(path)
            return path

        CONSTRUCTS[name] = make
        return edit

    return register


def replace(file, name, **options):
    old = file[name][()] if isinstance(file.get(name), h5py.Dataset) else None
    del file[name]
    return old if not options else file.create_dataset(name, **options)


# Links, at every component of a path.

for _name in ("header", "steps", "steps/choice", "symbols", "candidates", "program/facts"):

    @edited(f"external link at {_name}", is_resealed=False)
    def _external(file, folder, name=_name):
        other = folder / "other.h5"
        if not other.exists():
            shutil.copy(file.filename, other)
        del file[name]
        file[name] = h5py.ExternalLink("other.h5", f"/{name}")

    @edited(f"soft link at {_name}", is_resealed=False)
    def _soft(file, folder, name=_name):
        file.move(name, "elsewhere")
        file[name] = h5py.SoftLink("/elsewhere")


@edited("a soft link to itself", is_resealed=False)
def _(file, folder):
    del file["steps/choice"]
    file["steps/choice"] = h5py.SoftLink("/steps/choice")


@edited("an external link to a device", is_resealed=False)
def _(file, folder):
    del file["steps/choice"]
    file["steps/choice"] = h5py.ExternalLink("/dev/zero", "/steps/choice")


@edited("a group in the place of a dataset", is_resealed=False)
def _(file, folder):
    del file["steps/choice"]
    file["steps/choice"] = file["/"]


@edited("a dataset in the place of a group", is_resealed=False)
def _(file, folder):
    del file["steps"]
    file["steps"] = np.zeros(3, "<i4")


# Storage elsewhere.


@edited("a foreign virtual dataset")
def _(file, folder):
    other = folder / "source.h5"
    shutil.copy(file.filename, other)
    layout = h5py.VirtualLayout(file["steps/choice"].shape, "<i4")
    layout[:] = h5py.VirtualSource(str(other), "steps/choice", file["steps/choice"].shape)
    del file["steps/choice"]
    file.create_virtual_dataset("steps/choice", layout)


@edited("a virtual dataset of the file itself")
def _(file, folder):
    shape = file["steps/choice"].shape
    file.move("steps/choice", "real")
    layout = h5py.VirtualLayout(shape, "<i4")
    layout[:] = h5py.VirtualSource(".", "real", shape)
    file.create_virtual_dataset("steps/choice", layout)


@edited("external storage")
def _(file, folder):
    (folder / "secret.bin").write_bytes(bytes(4000))
    shape = file["steps/choice"].shape
    replace(file, "steps/choice", shape=shape, dtype="<i4", external=[(str(folder / "secret.bin"), 0, 4000)])


# Types.

for _dtype in (
    h5py.string_dtype(),
    h5py.vlen_dtype(np.int32),
    h5py.ref_dtype,
    h5py.regionref_dtype,
    np.dtype([("a", "<i4")]),
    np.dtype([(f"field{i}", "<i4") for i in range(600)]),
    h5py.enum_dtype({"A": 0, "B": 1}, basetype="i4"),
    np.dtype("V4"),
    np.dtype(("<i4", (2,))),
    np.dtype(">i4"),
    np.dtype("<f4"),
    np.dtype("S4"),
    np.dtype("?"),
    np.dtype("<c8"),
):

    @edited(f"type {str(_dtype)[:60]} {h5py.check_dtype(ref=_dtype) or h5py.check_dtype(vlen=_dtype) or ''}")
    def _type(file, folder, dtype=_dtype):
        replace(file, "steps/choice", shape=file["steps/choice"].shape, dtype=dtype)


# Filters.

for _text, _options in {
    "lzf": {"compression": "lzf"},
    "scaleoffset": {"scaleoffset": 0},
}.items():

    @edited(f"filter {_text}")
    def _filter(file, folder, options=_options):
        replace(file, "steps/choice", data=file["steps/choice"][()], chunks=True, **options)


def with_filters(file, filters, shape, chunk, raw=None, mask=0):
    """A chunked dataset in the place of `/steps/choice` with these filters and this stored chunk."""
    del file["steps/choice"]
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk(chunk)
    for number in filters:
        {1: lambda: plan.set_deflate(1), 2: plan.set_shuffle, 3: plan.set_fletcher32}[number]()
    space = h5py.h5s.create_simple(shape)
    dataset = h5py.h5d.create(file["steps"].id, b"choice", h5py.h5t.STD_I32LE, space, plan)
    if raw is not None:
        dataset.write_direct_chunk((0,), raw, mask)
    attribute = h5py.h5a.create(dataset, b"xxh3", h5py.h5t.STD_U64LE, h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(np.zeros((), np.uint64))


@edited("a filter twice", is_resealed=False)
def _(file, folder):
    with_filters(file, (1, 1), (3,), (3,), zlib.compress(zlib.compress(bytes(12))))


@edited("a chunk that inflates a thousandfold beyond its size", is_resealed=False)
def _(file, folder):
    with_filters(file, (1,), (64,), (64,), zlib.compress(bytes(64 << 20), 9))


@edited("a chunk that inflates to less", is_resealed=False)
def _(file, folder):
    with_filters(file, (1,), (64,), (64,), zlib.compress(bytes(17)))


@edited("a chunk that is not a zlib stream", is_resealed=False)
def _(file, folder):
    with_filters(file, (1,), (64,), (64,), os.urandom(100))


@edited("a chunk whose fletcher32 sum is another", is_resealed=False)
def _(file, folder):
    with_filters(file, (3,), (64,), (64,), bytes(range(256)) + b"\1\2\3\4")


@edited("a chunk shorter than its sum", is_resealed=False)
def _(file, folder):
    with_filters(file, (3,), (64,), (64,), b"\1\2")


@edited("a chunk whose filters were all skipped", is_resealed=False)
def _(file, folder):
    with_filters(file, (2, 1), (64,), (64,), b"\0" * 100, mask=3)


@edited("chunks that are missing", is_resealed=False)
def _(file, folder):
    with_filters(file, (1,), (640,), (64,), zlib.compress(bytes(256)))


@edited("a deflate bomb within every single bound", is_resealed=False)
def _(file, folder):
    # 1,000 to 1, which deflate can do; the file as a whole may not.
    with_filters(file, (1,), (100 << 20 >> 2,), (100 << 20 >> 2,), zlib.compress(bytes(100 << 20), 9))


@edited("many chunks of one element", is_resealed=False)
def _(file, folder):
    with_filters(file, (), (1 << 30,), (1,), bytes(4))


# Shapes.

for _length in (1 << 20, 1 << 33, (1 << 62) - 1):
    for _kind, _options in {
        "contiguous": {},
        "chunked": {"chunks": (1 << 20,)},
        "deflated": {"chunks": (1 << 20,), "compression": "gzip"},
    }.items():

        @edited(f"{_kind} shape of {_length}", is_resealed=False)
        def _shape(file, folder, length=_length, options=_options):
            replace(file, "steps/choice", shape=(length,), dtype="<i4", **options).attrs["xxh3"] = np.uint64(0)


@edited("a chunk of a gigabyte", is_resealed=False)
def _(file, folder):
    options = {"maxshape": (None,), "chunks": ((1 << 28) + 1,), "compression": "gzip"}
    replace(file, "steps/choice", shape=(3,), dtype="<i4", **options).attrs["xxh3"] = np.uint64(0)


@edited("a header of a gigabyte", is_resealed=False)
def _(file, folder):
    replace(file, "header", shape=(1 << 30,), dtype="u1", chunks=(1 << 20,)).attrs["xxh3"] = np.uint64(0)


@edited("seven dimensions")
def _(file, folder):
    replace(file, "steps/choice", data=np.zeros((1,) * 7, "<i4"))


@edited("no dimensions")
def _(file, folder):
    replace(file, "steps/choice", data=np.int32(3))


@edited("no space at all")
def _(file, folder):
    replace(file, "steps/choice", data=h5py.Empty("<i4"))


# Attributes.


@edited("a format of 60,000 bytes", is_resealed=False)
def _(file, folder):
    file.attrs["format"] = np.bytes_(b"x" * 60_000)


@edited("a format of variable length", is_resealed=False)
def _(file, folder):
    file.attrs["format"] = "kgverify-trace"


@edited("a checksum of 7,000 numbers", is_resealed=False)
def _(file, folder):
    file["steps/choice"].attrs["xxh3"] = np.zeros(7000, np.uint64)


@edited("a version of 128 bits", is_resealed=False)
def _(file, folder):
    file.attrs["schema_version"] = np.zeros(2, "<u8").view("V16")[0]


@edited("a version that is an array", is_resealed=False)
def _(file, folder):
    file.attrs["schema_version"] = np.ones(3, np.int32)


@edited("a version of 2^64 - 1", is_resealed=False)
def _(file, folder):
    file.attrs["schema_version"] = np.uint64(2**64 - 1)


# Places in the file, forged in metadata without checksums.


def forged(name: str):
    """A construct that edits the bytes of a copy."""

    def register(edit):
        def make(good: Path, folder: Path) -> Path:
            path = folder / f"{name.replace(chr(47), chr(45))}.h5"
            content = bytearray(good.read_bytes())
            with h5py.File(good) as file:
                places = {
                    f.path: file[f.path].id.get_offset()
                    for f in KNOWLEDGE_GRAPH.columns
                    if f.path in file and file[f.path].size
                }
            path.write_bytes(edit(content, places))
            return path

        CONSTRUCTS[name] = make
        return edit

    return register


def point(content: bytearray, old: int, new: int) -> bytearray:
    assert content.count(struct.pack("<Q", old)) == 1
    return content.replace(struct.pack("<Q", old), struct.pack("<Q", new))


@forged("two datasets in one place")
def _(content, places):
    return point(content, places["steps/outcome"], places["candidates/outcome"])


@forged("data that overlap by one byte")
def _(content, places):
    return point(content, places["steps/outcome"], places["candidates/num_steps"] + 1)


for _text, _offset in {"the end": None, "2^63": 1 << 63, "2^64 - 2": (1 << 64) - 2, "nowhere": (1 << 64) - 1}.items():

    @forged(f"data at {_text}")
    def _beyond(content, places, offset=_offset):
        return point(content, places["steps/choice"], len(content) - 3 if offset is None else offset)


@forged("a cut file")
def _(content, places):
    return content[: len(content) // 2]


@forged("a file behind a user block")
def _(content, places):
    return bytearray(512) + content


@forged("a signature and nothing else")
def _(content, places):
    return content[:8]


@forged("a superblock of garbage")
def _(content, places):
    return content[:8] + bytes(range(256)) * 20


# Values that lead out of bounds.


def valued(name: str, field: str, change):
    @edited(name)
    def _value(file, folder):
        values = file[field][()].copy()
        change(values)
        replace(file, field, data=values)


valued("counts whose sum wraps around", "steps/num_resolvents", lambda v: v.__setitem__(slice(0, 2), 2**32 - 1))
valued("name offsets that descend", "symbols/constants_offsets", lambda v: v.__setitem__(1, 2**64 - 1))
valued("a constant beyond the names", "resolvents/atoms", lambda v: v.__setitem__((0, 1), 2**31 - 1))
valued("a predicate below the names", "steps/goal_atoms", lambda v: v.__setitem__((0, 0), -(2**31)))
valued("an origin beyond the clauses", "resolvents/origin", lambda v: v.__setitem__(slice(None), 2**31 - 1))
valued("lengths of rules that wrap around", "program/rule_lengths", lambda v: v.__setitem__(0, 2**16 - 1))
valued("names that are not UTF-8", "symbols/constants_bytes", lambda v: v.__setitem__(slice(None), 0xC0))

for _text, _json in {
    "that is deep": "[" * 200_000,
    "whose objects are deep": '{"engine":' * 200_000,
    "with a number of 5,000 digits": '{"limits": {"max_depth": ' + "9" * 5000 + "}}",
    "with 1e999": '{"limits": {"max_depth": 1e999}}',
    "that is empty": "",
    "of NUL bytes": "\0" * 100,
    "with half a surrogate": '{"engine": {"name": "\\ud800"}}',
    "of an unknown level": '{"level": "\\u0000", "schema_version": 2}',
}.items():

    @edited(f"a header {_text}")
    def _header(file, folder, text=_json):
        replace(file, "header", data=np.frombuffer(text.encode(), "u1") if text else np.zeros(0, "u1"))


# Paths that are not files.


def placed(name: str):
    def register(make):
        CONSTRUCTS[name] = lambda good, folder: make(good, folder / f"{name}.h5") or folder / f"{name}.h5"
        return make

    return register


@placed("a pipe")
def _(good, path):
    os.mkfifo(path)


@placed("a link to a device")
def _(good, path):
    path.symlink_to("/dev/zero")


@placed("a link to itself")
def _(good, path):
    path.symlink_to(path.name)


@placed("a link to nowhere")
def _(good, path):
    path.symlink_to("no such file")


@placed("an empty folder")
def _(good, path):
    path.mkdir()


# Folders of shards.


def shards(path: Path) -> dict:
    """A good folder of three shards at `path`; returns its manifest."""
    from trace_builders import FACTS, HEADER, RULES, SYMBOLS, make_columns

    from kgverify.trace.model.columns import select_candidates

    columns = make_columns(2, 12)
    with open_writer(path, HEADER, SYMBOLS, shard_steps=5, facts=FACTS, rules=RULES) as writer:
        for i in range(12):
            writer.append(select_candidates(columns, np.array([i])))
    return json.loads((path / "manifest.json").read_text())


def of_folder(name: str):
    """A construct that changes a folder, given its path and manifest; what it returns replaces the manifest's text."""

    def register(edit):
        def make(good: Path, folder: Path) -> Path:
            path = folder / name.replace("/", "-")
            changed = edit(path, shards(path))
            if changed is not None:
                (path / "manifest.json").write_text(changed if isinstance(changed, str) else json.dumps(changed))
            return path

        CONSTRUCTS[name] = make
        return edit

    return register


for _shard in (
    "../other.h5",
    "/etc/passwd",
    "shard-00000.h5/",
    "",
    ".",
    "shard-00001.h5",
    "SHARD-00000.H5",
    "shard-00000.h5\0",
):

    @of_folder(f"a shard named {_shard!r}")
    def _named(path, manifest, shard=_shard):
        manifest["shards"][0]["name"] = shard
        return manifest


@of_folder("a shard that is a link")
def _(path, manifest):
    shard = path / "shard-00001.h5"
    shard.rename(path.parent / "outside.h5")
    shard.symlink_to(path.parent / "outside.h5")


@of_folder("a shard that is a pipe")
def _(path, manifest):
    (path / "shard-00001.h5").unlink()
    os.mkfifo(path / "shard-00001.h5")


@of_folder("a manifest that is a link")
def _(path, manifest):
    (path / "manifest.json").rename(path.parent / "outside.json")
    (path / "manifest.json").symlink_to(path.parent / "outside.json")


@of_folder("a manifest that is a pipe")
def _(path, manifest):
    (path / "manifest.json").unlink()
    os.mkfifo(path / "manifest.json")


@of_folder("a doubled shard")
def _(path, manifest):
    shutil.copy(path / "shard-00000.h5", path / "shard-00001.h5")
    manifest["shards"][1] = manifest["shards"][0] | {"name": "shard-00001.h5"}
    for name in ("num_candidates", "num_steps"):
        manifest[name] = sum(shard[name] for shard in manifest["shards"])
    manifest["root"] = f"{sum(int(shard['root'], 16) for shard in manifest['shards']) % (1 << 64):016x}"
    return manifest


for _text, _value in {
    "5,000 digits": "9" * 5000,
    "1e999": "1e999",
    "NaN": "NaN",
    "-1": "-1",
    "2^64": str(1 << 64),
    "a string": '"7"',
}.items():

    @of_folder(f"a manifest with {_text} steps")
    def _steps(path, manifest, value=_value):
        return json.dumps(manifest | {"num_steps": 7}).replace('"num_steps": 7', f'"num_steps": {value}')


@of_folder("a manifest that is deep")
def _(path, manifest):
    return '{"shards":' + "[" * 200_000


@of_folder("a manifest without an end")
def _(path, manifest):
    return json.dumps(manifest)[:-10]


@of_folder("a manifest of 70 megabytes")
def _(path, manifest):
    return json.dumps(manifest | {"creator": "x" * (70 << 20)})
