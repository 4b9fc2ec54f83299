"""Files from strangers: every command that reads a file is given special files, bombs, lies and damaged files."""

import gc
import gzip
import importlib
import io
import json
import math
import os
import pkgutil
import random
import resource
import shutil
import socket
import struct
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import h5py
import numpy as np

import kgverify
from benchmarks import ROOT, Ended, make_parser, print_header, print_row, run_forked
from benchmarks.durability import flip, fuzz

sys.path.extend(str(ROOT / "tests" / folder) for folder in ("", "trace"))
from hostile_traces import CONSTRUCTS, copy_as_plain_h5py
from trace_builders import PROGRAM, RANKINGS, make_columns, open_writer, write_file

from kgverify.cli import main as run_kgverify

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECONDS: Final = 5.0
MEMORY: Final = 1 << 30
WAITING: Final = 6
"""A command is ended after this many times the seconds that it may compute: other processes may keep it waiting."""
BAD: Final = ("hang", "bug", "signal", "memory", "no fix")

Change = Callable[[Path], None]
"""Replaces a sound file."""


class Reader(NamedTuple):
    """A file that commands read.

    kind:     its name in the table
    path:     below the folder of the sound files, a pattern
    commands: the commands that read it, run in that folder
    is_long:  whether the command works for long once it has read a sound file: then only what it must refuse is tried
    """

    kind: str
    path: str
    commands: tuple[str, ...]
    is_long: bool = False


def judge(result: Ended) -> str:
    """Return the column of the table for a command.

    result: its time beyond that with sound files, and its memory beyond that of an idle process
    """
    if result.seconds > SECONDS:
        return "hang"
    if result.code < 0:
        return "signal"
    if result.code == 70 or "Traceback" in result.text:
        return "bug"
    if result.num_bytes > MEMORY:
        return "memory"
    if result.code == 2:
        return "refused" if "fix:" in result.text else "no fix"
    return "accepted"


# The sound files, and who reads them.

GRAPH = "--graph ./graph --queries 1 --corruptions 1"
TRAIN = "train --graph ./graph --rounds 1 --epochs 1"
MADE = {
    "trace.h5": f"record --engine reference {GRAPH} -o trace.h5",
    "archive.h5": f"record --engine reference {GRAPH} -o archive.h5 --archive",
    "shards": f"record --engine reference {GRAPH} --shard-steps 4 -o shards",
    "lines.jsonl": "trace export trace.h5 --to lines.jsonl",
    "run": f"diff {GRAPH} --mode eager --fault fact-cap --save run",
    "saved": f"evaluate {GRAPH} --mode eager --save saved",
    "policy.safetensors": f"{TRAIN} -o policy.safetensors",
    "case.kg": "shrink run --calls 5 -o case.kg",
    "corpus": "fuzz --engine reference --examples 4 --jobs 1 --corpus corpus",
}
"""The commands that make sound files, in this order."""

KNOWN = '[[known]]\nsignature = "a"\nissue = "b"\nreason = "c"\nexpires = 2999-01-01\n'

TRACE = (
    "show {}",
    "show {} --candidate 0 --step 0",
    "diff {} archive.h5",
    "diff archive.h5 {}",
    "trace check {}",
    "trace repair {}",
    "trace convert {} converted.h5",
    "trace export {} --to exported.jsonl",
    "trace join {} -o joined",
    "trace join archive.h5 {} -o joined",
)
RUN = ("show run --divergence 1", "report run --html -", "shrink run --calls 1 --seconds 1 -o out.kg")
RECORD = f"record --engine reference {GRAPH} -o out.h5"
EVALUATE = f"evaluate {GRAPH} --mode eager --save saved"
READERS = (
    Reader("graph", "graph/train.txt", (RECORD, f"diff {GRAPH} --mode eager", f"evaluate {GRAPH} --mode eager")),
    Reader("graph", "graph/test.txt", (RECORD, f"{TRAIN} -o out.safetensors")),
    Reader("rules", "graph/rules.txt", (RECORD,)),
    Reader("rules", "other.txt", (f"{RECORD} --rules other.txt",)),
    Reader("domains", "graph/domains.txt", (RECORD,)),
    Reader("policy", "policy.safetensors", (f"{RECORD} --policy policy.safetensors",)),
    Reader("trace", "trace.h5", tuple(command.format("trace.h5") for command in TRACE)),
    Reader("trace", "archive.h5", ("show archive.h5", "trace check archive.h5", "diff trace.h5 archive.h5")),
    Reader("manifest", "shards/manifest.json", tuple(command.format("shards") for command in TRACE)),
    Reader("shard", "shards/shard-00000.h5", ("show shards", "trace check shards", "diff trace.h5 shards")),
    Reader("piece", "part.h5.partial/shard-00000-00000.h5", ("show part.h5.partial", "trace repair part.h5.partial")),
    Reader("lines", "lines.jsonl", ("trace import lines.jsonl -o imported.h5",)),
    Reader("saved run", "run/report.json", RUN),
    Reader("saved run", "run/actual.h5", RUN),
    Reader("reproducer", "case.kg", ("replay case.kg",)),
    Reader("corpus", "corpus/case.kg", ("fuzz --engine reference --examples 1 --jobs 1 --corpus corpus",)),
    Reader("corpus log", "corpus/campaign-*", ("fuzz --engine reference --examples 4 --jobs 1 --corpus corpus",)),
    Reader("known divergences", "known.toml", ("fuzz --known known.toml --engine reference --examples 1 --jobs 1",)),
    Reader("evaluation", "saved/run.json", (EVALUATE,)),
    Reader("evaluation part", "saved/part-*", (EVALUATE,)),
    Reader(
        "budget", "budget.toml", ("audit step step.py:step --inputs step.py:make --calls 1 --budget budget.toml",), True
    ),
)


def make_sound(folder: Path, readers: Sequence[Reader]) -> None:
    """Make the sound files of some readers."""
    graph = Path(kgverify.__file__).parent / "graphs" / "embedded" / "countries"
    shutil.copytree(graph, folder / "graph", ignore=shutil.ignore_patterns("README*", "countries.tsv"))
    shutil.copy(graph / "rules.txt", folder / "other.txt")
    (folder / "known.toml").write_text(KNOWN)
    (folder / "budget.toml").write_text("max_graph_breaks = 0\n")
    (folder / "state.jsonl").write_text("{}\n")
    (folder / "step.py").write_text("def step(value):\n    return value\n\n\ndef make(call):\n    return (call,)\n")
    needed = {word for reader in readers for text in (reader.path, *reader.commands) for word in _words(text)}
    if "corpus" in needed:
        needed.add("case.kg")
    for name in reversed(MADE):
        if name in needed:
            needed |= _words(MADE[name])
    for name, command in MADE.items():
        if name not in needed:
            continue
        result = run_command(command, folder, 300.0)
        if result.code not in (0, 1, 3):
            raise RuntimeError(f"{command}: {result.text}")
    if "corpus" in needed:
        shutil.copy(folder / "case.kg", folder / "corpus" / "case.kg")
    run_forked(lambda: _leave_piece(folder / "part.h5"), folder=folder)


def _words(text: str) -> set[str]:
    return {*text.replace("/", " ").split()}


def _leave_piece(path: Path) -> None:
    writer = open_writer(path, facts=PROGRAM["facts"], commit_seconds=0)
    writer.append(make_columns(1, 12))
    writer.commit()
    os._exit(0)


# What takes the place of a sound file.


def write(content: bytes | Callable[[bytes], bytes]) -> Change:
    """Return the change that writes a content, or one made from the sound content."""

    def change(path: Path) -> None:
        sound = path.read_bytes()
        path.unlink()
        path.write_bytes(content if isinstance(content, bytes) else content(sound))

    return change


def link(target: str) -> Change:
    """Return the change that puts a link to a path there."""

    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


def grow(size: int, *, keep: bool) -> Change:
    """Return the change to a file that is almost empty on disk, behind the sound content or without it."""

    def change(path: Path) -> None:
        sound = path.read_bytes() if keep else b""
        path.unlink()
        with path.open("wb") as file:
            file.write(sound)
            file.truncate(size)

    return change


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        # A path may take about a hundred bytes.
        bound.bind(os.path.relpath(path))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _zstd(content: bytes) -> bytes:
    return zstd.compress(content, level=1)


def _zip(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", content)
    return packed.getvalue()


DEVICES: Final = "/dev/zero /dev/random /dev/tty /dev/stdin /dev/null /dev/fd/0"
SYSTEM: Final = "/proc/self/environ /proc/self/maps /proc/self/mem /proc/kcore /proc/kmsg /sys/kernel/mm/ksm/run"
TARGETS: Final = (*DEVICES.split(), *SYSTEM.split(), "/", "nowhere", "/etc/passwd", "../" * 500 + "etc/passwd")

SPECIAL: dict[str, Change] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "a folder": _folder,
    **{f"a link to {target}": link(target) for target in TARGETS},
    "a link to itself": lambda path: link(path.name)(path),
    "a terabyte of holes": grow(1 << 40, keep=False),
    "900 MB of holes": grow(900 << 20, keep=False),
    "the sound file and a terabyte of holes": grow(1 << 40, keep=True),
    "the sound file and 60 MB of holes": grow(60 << 20, keep=True),
}
"""Pipes, devices, links, and files that are almost empty on disk."""

DEEP: Final = 100_000
TEXTS: dict[str, Change] = {
    "an empty file": write(b""),
    "a megabyte of zeros": write(bytes(1 << 20)),
    "a megabyte of noise": write(random.Random(7).randbytes(1 << 20)),
    "5 million empty lines": write(b"\n" * 5_000_000),
    "5 million carriage returns": write(b"\r" * 5_000_000),
    "a line of 20 MB": write(b"a" * (20 << 20)),
    "a line of 20 MB of digits": write(b"9" * (20 << 20)),
    "a megabyte of quotes": write(b"'" * (1 << 20)),
    "a megabyte of double quotes": write(b'"' * (1 << 20)),
    "a megabyte of backslashes": write(b"\\" * (1 << 20)),
    "a megabyte of commas": write(b"a," * (1 << 19)),
    "a megabyte of tabs": write(b"\t" * (1 << 20)),
    "a megabyte of blanks": write(b" " * (1 << 20)),
    "a megabyte of blanks before a letter": write(b" " * (1 << 20) + b"x\n"),
    "a megabyte of blanks behind an atom": write(b"p(a,b)" + b" " * (1 << 20) + b"x\n"),
    "a quote and a megabyte of backslashes": write(b'"' + b"\\" * (1 << 20)),
    "UTF-16": write(lambda sound: sound.decode("utf-8", "replace").encode("utf-16")),
    "not UTF-8": write(lambda sound: sound + b"\xff\xfe\x80"),
    "deep brackets": write(b"[" * DEEP),
    "deep brackets that are closed": write(b"[" * DEEP + b"]" * DEEP),
    "deep braces": write(b'{"a":' * DEEP),
    "deep braces that are closed": write(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "a deep term": write(b"a(" * DEEP + b"b" + b")" * DEEP + b".\n"),
    "a deep TOML array": write(b"a = " + b"[" * DEEP + b"]" * DEEP),
    "a deep TOML key": write(b"a" + b".a" * DEEP + b" = 1\n"),
    "many TOML tables": write(b"".join(b"[a%d]\n" % i for i in range(60_000))),
    "a number of 100,000 digits": write(b"a = " + b"9" * DEEP),
    "a rule of 100,000 atoms": write(b"a(X,Y) :- " + b", ".join([b"b(X,Y)"] * DEEP) + b".\n"),
    "a JSON list of a million objects": write(b"[" + b",".join([b"{}"] * 1_000_000) + b"]"),
    "a JSON object of a million names": write(b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}"),
    "a gzip bomb of 2 GB": write(lambda _: gzip.compress(bytes(16 << 20), 1) * 128),
    "a zstd bomb of 2 GB": write(lambda _: _zstd(bytes(16 << 20)) * 128),
    "a zip bomb of 256 MB": write(lambda _: _zip(bytes(256 << 20))),
    "half of the sound file": write(lambda sound: sound[: len(sound) // 2]),
    "the sound file twice": write(lambda sound: sound + sound),
    "a megabyte of the sound file": write(lambda sound: sound * -(-(1 << 20) // max(1, len(sound)))),
}
"""Texts that a parser may stumble over."""
NOTHING: Final = ("an empty file", "5 million empty lines", "a megabyte of blanks")
"""Texts that say nothing: some files may be empty."""


def _safetensors(header: bytes, size: int | None = None, rest: bytes = b"") -> Change:
    return write(struct.pack("<Q", len(header) if size is None else size) + header + rest)


def _tensors(kind: str, shape: list[int], offsets: list[int], size: int = 4) -> Change:
    """Return the change to two tensors, a sound one and one of this type and shape, and bytes for both."""
    sound = {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}
    other = {"dtype": kind, "shape": shape, "data_offsets": offsets}
    header = {"embedding.predicate": sound, "input.weight": other}
    return _safetensors(json.dumps(header).encode(), None, bytes(size))


WEIGHTS: dict[str, Change] = {
    "a header of 2^63 bytes": _safetensors(b"{}", 1 << 63),
    "a header of 90 MB": _safetensors(b"{" + b" " * (90 << 20) + b"}"),
    "a shape of 2^80": _tensors("F32", [1 << 40, 1 << 40], [0, 4]),
    "no elements in a shape of 2^62": _tensors("F32", [1 << 62, 0], [4, 4]),
    "tensors in one place": _tensors("F32", [1, 1], [0, 4]),
    "an unknown type": _tensors("F8_E4M3", [4], [4, 8], 8),
    "text instead of numbers": _tensors("BOOL", [4], [4, 8], 8),
    "deep metadata": _safetensors(b'{"__metadata__":' * DEEP),
}


def _members(change: Callable[[str, bytes], bytes], kind: int = zipfile.ZIP_STORED) -> Change:
    def make(sound: bytes) -> bytes:
        packed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(sound)) as old, zipfile.ZipFile(packed, "w", kind) as new:
            for name in old.namelist():
                new.writestr(name, change(name, old.read(name)))
        return packed.getvalue()

    return write(make)


def _header(description: str, content: bytes = b"") -> bytes:
    header = description.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def _array(num: int, kind: str = "<f8", content: bytes = b"") -> bytes:
    """Return an array file that states a number of elements."""
    return _header(f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({num},)}}", content)


def _all_members(content: bytes) -> Change:
    return _members(lambda name, old: content)


def _plain(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


PICKLE: Final = b"cos\nsystem\n(S'exit 3'\ntR."
PARTS: dict[str, Change] = {
    "a megabyte that inflates to a gigabyte": _members(
        lambda name, old: _array(1 << 27, content=bytes(1 << 30)) if name == "optimistic.npy" else old,
        zipfile.ZIP_DEFLATED,
    ),
    "a shape of 10^15": _all_members(_array(10**15, content=bytes(64))),
    "a shape of 10^30": _all_members(_array(10**30)),
    "a negative shape": _all_members(_array(-1)),
    "10^15 elements without bytes": _all_members(_array(10**15, "|V0")),
    "pickled objects": _all_members(_array(1, "|O", PICKLE)),
    "a header of code": _all_members(_header("__import__('os')._exit(3)")),
    "a deep header": _all_members(_header("(" * 9000 + ")" * 9000)),
    "no arrays": _all_members(b"nothing"),
    "a plain array": write(_plain(np.zeros(3))),
    "a pickle": write(PICKLE),
    "members without end": write(lambda sound: sound[:-22] + sound[-22:-14] + b"\xff" * 4 + sound[-10:]),
}


def _edit_manifest(change: Callable[[dict], object]) -> Change:
    def make(sound: bytes) -> bytes:
        manifest = json.loads(sound)
        change(manifest)
        return json.dumps(manifest).encode()

    return write(make)


def _shard(**fields: object) -> Change:
    return _edit_manifest(lambda manifest: manifest["shards"][0].update(fields))


def _enlarge(manifest: dict) -> None:
    for part in (manifest, manifest["shards"][0]):
        part["num_candidates"] = 1 << 62


MANIFESTS: dict[str, Change] = {
    "a shard outside of the folder": _shard(name="../trace.h5"),
    "a shard by its whole path": _shard(name="/etc/passwd"),
    "a shard that is a device": _shard(name="/dev/zero"),
    "a shard that is the manifest": _shard(name="manifest.json"),
    "a shard named NUL": _shard(name="\0"),
    "100,000 shards": _edit_manifest(lambda manifest: manifest.update(shards=manifest["shards"] * 100_000)),
    "a shard of 10^30 steps": _shard(num_steps=10**30),
    "a shard of -1 steps": _shard(num_steps=-1),
    "2^62 candidates everywhere": _edit_manifest(_enlarge),
}


def _plain_trace(change: Callable[[h5py.File], object]) -> Change:
    """Return the change of a copy of the trace in the layout that h5py writes if nothing else is said."""

    def make(path: Path) -> None:
        plain = path.with_name("plain")
        copy_as_plain_h5py(path, plain)
        plain.replace(path)
        with h5py.File(path, "r+") as file:
            change(file)

    return make


def _rewrite(
    name: str, shape: tuple[int, ...], chunks: tuple[int, ...], **options: object
) -> Callable[[h5py.File], object]:
    """Return the change that writes zeros of a shape in these chunks in the place of a dataset."""

    def change(file: h5py.File) -> None:
        old = file[name]
        kind, attributes = old.dtype, dict(old.attrs)
        del file[name]
        new = file.create_dataset(name, shape, kind, chunks=chunks, **options)
        if options.get("compression"):
            packed = zlib.compress(bytes(kind.itemsize * math.prod(chunks)), 9)
            for index in product(*(range(0, whole, part) for whole, part in zip(shape, chunks, strict=True))):
                new.id.write_direct_chunk(index, packed)
        else:
            new[...] = 0
        new.attrs.update(attributes)

    return change


def _every(num: Callable[[int], int], rows: int, **options: object) -> Callable[[h5py.File], object]:
    """Return the change of every dataset of numbers to zeros. num: the rows, by the width; rows: those of a chunk."""

    def change(file: h5py.File) -> None:
        names: list[str] = []
        file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        for name in names:
            _, *width = shape = file[name].shape or (0,)
            if file[name].shape and file[name].dtype.kind in "iuf":
                _rewrite(name, (num(width[0] if width else 1), *shape[1:]), (rows, *shape[1:]), **options)(file)

    return change


def _chain(file: h5py.File) -> None:
    for i in range(5000):
        file[f"soft/{i}"] = h5py.SoftLink(f"/soft/{i + 1}")


def _groups(file: h5py.File) -> None:
    group = file
    for _ in range(3000):
        group = group.create_group("a")


def _many_datasets(file: h5py.File) -> None:
    for i in range(3000):
        file[f"other/{i}"] = np.zeros(1)


def _other_chunks(file: h5py.File) -> None:
    file.create_dataset("other", (60_000,), "i4", chunks=(1,))[...] = 0


def _fill_value(file: h5py.File) -> None:
    del file["candidates/query"]
    file.create_dataset("candidates/query", (1 << 40,), "i4", chunks=(1 << 20,), fillvalue=7)


TRACES: dict[str, Change] = {
    name: _plain_trace(change)
    for name, change in {
        "100,000 chunks of one row": _rewrite("candidates/query", (100_000,), (1,)),
        "100,000 packed chunks of one row": _rewrite("candidates/query", (100_000,), (1,), compression="gzip"),
        "60,000 growing chunks": _rewrite("candidates/query", (60_000,), (1,), maxshape=(None,)),
        "60,000 chunks that the schema does not name": _other_chunks,
        "every dataset in chunks of one row": _every(lambda width: 3000, 1),
        "a packed gigabyte of zeros": _rewrite("candidates/query", (1 << 28,), (1 << 22,), compression="gzip"),
        "60 MB of zeros in every dataset": _every(lambda width: (1 << 20) // width, 1 << 16, compression="gzip"),
        "a chain of 5,000 soft links": _chain,
        "3,000 nested groups": _groups,
        "3,000 datasets that the schema does not name": _many_datasets,
        "a fill value without data": _fill_value,
    }.items()
}


def _construct(name: str) -> Change:
    def make(path: Path) -> None:
        good, plain = path.with_name("good.h5"), path.with_name("plain.h5")
        write_file(good, make_columns(1, 8), RANKINGS, **PROGRAM)
        copy_as_plain_h5py(good, plain)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = CONSTRUCTS[name](plain, Path(folder))
            path.unlink()
            # It may name files in its own folder.
            kept = path.parent / "made"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(folder, kept, symlinks=True, copy_function=_copy)
        path.symlink_to(kept / made.name)

    return make


def _copy(source: str, target: str) -> None:
    try:
        shutil.copy2(source, target, follow_symlinks=False)
    except shutil.SpecialFileError:
        os.mkfifo(target)


SPECIFIC: dict[str, dict[str, Change]] = {
    "policy": WEIGHTS,
    "evaluation part": PARTS,
    "manifest": MANIFESTS,
    "trace": TRACES | {name: _construct(name) for name in CONSTRUCTS},
}
"""Lies that only files of one kind can tell."""


def damage(seed: int) -> Change:
    """Return a change at random: one bit, or a few changes of the kinds that break parsers."""
    random = np.random.default_rng(seed)
    change = flip if random.random() < 0.2 else fuzz
    return write(lambda sound: bytes(change(bytearray(sound or b"\n"), random)))


# Running.


def import_everything() -> None:
    """Import every module that a command could import, so that only its own work is measured."""
    for module in pkgutil.walk_packages(kgverify.__path__, "kgverify."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("torch._inductor.utils")
    gc.freeze()


def run_command(command: str, folder: Path, seconds: float) -> Ended:
    """Run a command of kgverify."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.argv = ["kgverify", *command.split()]
        os.environ["GITHUB_STEP_SUMMARY"] = ""
        sys.stdin, sys.stdout, sys.stderr = (open(i, mode) for i, mode in enumerate("rww"))  # noqa: SIM115
        run_kgverify()

    result = run_forked(work, seconds=WAITING * seconds, folder=folder)
    return result._replace(num_bytes=max(0, result.num_bytes - measure_idle_memory()))


@cache
def measure_idle_memory() -> int:
    """Return the memory of a process that does nothing."""
    return run_forked(lambda: None).num_bytes


def changes_of(reader: Reader, num_random: int, seed: int) -> Iterator[tuple[str, Change]]:
    """Yield what takes the place of a sound file."""
    yield from SPECIAL.items()
    yield from SPECIFIC.get(reader.kind, {}).items()
    for name, change in TEXTS.items():
        if not (reader.is_long and name in NOTHING):
            yield name, change
    for i in range(0 if reader.is_long else num_random):
        yield f"damaged at random, {i}", damage(zlib.crc32(f"{seed} {reader.path} {i}".encode()))


def try_reader(
    reader: Reader, sound: Path, changes: Sequence[tuple[str, Change]], *, is_thorough: bool
) -> Iterator[tuple[str, str, Ended]]:
    """Run every command on each special file, and one of the commands on each other change, in turn; or every command."""
    usual: dict[str, float] = {}
    for number, (name, change) in enumerate(changes):
        is_whole = name in SPECIAL or is_thorough
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            place = Path(folder, "a")
            shutil.copytree(sound, place)
            change(next(place.glob(reader.path)))
            for command in reader.commands if is_whole else (reader.commands[number % len(reader.commands)],):
                if command not in usual:
                    usual[command] = 0.0 if reader.is_long else _time_sound(command, sound)
                result = run_command(command, place, SECONDS + usual[command])
                yield name, command, result._replace(seconds=result.seconds - usual[command])


def _time_sound(command: str, sound: Path) -> float:
    """Return the time that a command computes on the sound files."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(sound, place := Path(folder, "a"))
        # What it remembers for the next time is not a part of it.
        return min(run_command(command, place, 300.0).seconds for _ in range(2))


def run_hostile_files(words: list[str]) -> int:
    """Files from strangers: every command that reads a file is given special files, bombs, lies and damaged files.

        python -m benchmarks hostile-files                      # special files, bombs, lies and foreign links
        python -m benchmarks hostile-files --random 200         # and 200 copies of each file, damaged at random
        python -m benchmarks hostile-files --only trace --only "saved run" --every-command

    The commands themselves make the sound files that a kind of file needs. Then each is replaced in a copy of its
    folder, and every command that reads it runs in a process of its own, which is forked so that it need not import
    torch. Counted are commands that take five seconds longer than with sound files, end with exit code 70, end by a
    signal, or take more than 1 GiB of memory beyond that of a process that does nothing; and refusals that do not say
    how to go on. Exit code 1 if anything but sound results and refusals occurred.
    """
    parser = make_parser(run_hostile_files)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="copies of each file damaged at random")
    parser.add_argument("--seed", type=int, default=0, help="of the random damage")
    kinds = tuple(dict.fromkeys(reader.kind for reader in READERS))
    parser.add_argument("--only", action="append", choices=kinds, help="a kind of file to try; all if not given")
    parser.add_argument("--change", default="", metavar="TEXT", help="only changes with this in the name")
    parser.add_argument("--every-command", action="store_true", help="every command on each change, not one in turn")
    options = parser.parse_args(words)
    import_everything()
    columns = ("refused", "accepted", *BAD)
    print_header("file", *columns)
    total: Counter[str] = Counter()
    for kind in options.only or kinds:
        counts: Counter[str] = Counter()
        readers = [reader for reader in READERS if reader.kind == kind]
        with tempfile.TemporaryDirectory() as folder:
            make_sound(Path(folder), readers)
            for reader in readers:
                changes = changes_of(reader, options.random, options.seed)
                chosen = [(name, change) for name, change in changes if options.change in name]
                for name, command, result in try_reader(
                    reader, Path(folder), chosen, is_thorough=options.every_command
                ):
                    verdict = judge(result)
                    counts[verdict] += 1
                    if verdict in BAD:
                        shown = [line[:300] for line in result.text.strip().splitlines()[-4:]]
                        where = f"{reader.path} is {name}: kgverify {command}"
                        figures = f"exit code {result.code}, {result.seconds:.1f} s, {result.num_bytes >> 20} MiB"
                        print(f"{verdict}: {where}\n  {figures}", *shown, sep="\n  ", file=sys.stderr, flush=True)
        print_row(kind, *(counts[column] for column in columns))
        total += counts
    print_row("all", *(total[column] for column in columns))
    return int(any(total[verdict] for verdict in BAD))
