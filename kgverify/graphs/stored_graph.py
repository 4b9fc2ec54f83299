"""Large graphs that were read before, kept as arrays in the user's cache, and mapped into memory instead of read again.

A stored graph is found by a digest of the names and the content of its files, and of the code of kgverify. It holds
data alone, in which nothing is executed, and is used only if it is whole: written by this user, in a folder that nobody
else can replace, with the sha256 that it names, and with ids that have names. Any other one is written anew, and so is
one that cannot be read. The graphs used longest ago are deleted beyond `MOST_BYTES`.
"""

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError, count_of
from kgverify.files.cache import find_cache, is_private, make_private, open_private
from kgverify.files.code_identity import digest_code, identify_own_code, list_changes
from kgverify.files.writing import replaced
from kgverify.graphs.folder import SPLITS
from kgverify.graphs.graph import GraphFile, KnowledgeGraph
from kgverify.graphs.text_file import TextFile
from kgverify.program.atom_table import AtomTable
from kgverify.program.program import NamedRule
from kgverify.progress import LOGGER

SMALLEST: Final = 4 << 20
"""Bytes of the files of a graph below which reading it takes no longer than finding it."""
MOST_BYTES: Final = 4 << 30
"""Bytes of all stored graphs."""

_MAGIC: Final = b"kgverify graph 1"
_DIGEST: Final = slice(len(_MAGIC), len(_MAGIC) + 32)
_HEADER: Final = slice(_DIGEST.stop, _DIGEST.stop + 8)
_ALIGNED: Final = 64
_NEW: Final = os.O_WRONLY | os.O_CLOEXEC
_BUFFER: Final = 1 << 24


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The atoms of a split: numbers of names, bytes of these names, and rows; with the order of the different rows, or none."""

    num_predicates: int
    num_constants: int
    num_bytes: int
    num_rows: int
    num_ordered: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph but for its atoms. fact_lines: begin, end and step of the lines, or none if they follow the tables."""

    key: str
    name: str
    tables: dict[str, _Table]
    rules: tuple[NamedRule, ...]
    domains: dict[str, tuple[str, ...]]
    graph_files: tuple[GraphFile, ...]
    facts_file: str
    fact_lines: tuple[int, int, int] | None
    num_lines: int
    warnings: tuple[str, ...]


def find_folder() -> Path | None:
    """Return the folder of stored graphs, which need not exist; None if nothing is kept."""
    folder = find_cache()
    return None if folder is None else folder / "graphs"


def find_key(name: str, texts: Mapping[str, TextFile]) -> str | None:
    """Return the name under which a graph with these files by role is stored; None if it is small, or nothing is kept."""
    if find_folder() is None or sum(len(text.content) for text in texts.values()) < SMALLEST:
        return None
    code = identify_own_code()
    if list_changes(code, code):
        return None
    parts = [name, *(part for role, text in texts.items() for part in (role, text.name, text.sha256))]
    return hashlib.sha256(msgspec.msgpack.encode([digest_code(code), *parts])).hexdigest()


def read_stored(key: str) -> KnowledgeGraph | None:
    """Return the graph stored under a name; None without a whole one."""
    path = _path(key)
    try:
        if path is None or not path.is_file():
            return None
        graph = _decode(_map(path), key)
        os.utime(path)
        LOGGER.info("%s: taken from the cache of graphs, where the same code stored it", graph.name)
    except (OSError, UserError, ValueError, ArithmeticError, TypeError):
        return None
    return graph


def store(key: str, graph: KnowledgeGraph) -> None:
    """Store a graph under a name, and delete the graphs used longest ago. Do nothing if that fails."""
    path = _path(key)
    if path is None:
        return
    with suppress(OSError, UserError, ValueError):
        header, arrays = _encode(key, graph)
        if sum(each.nbytes for each in arrays) > MOST_BYTES // 2:
            return
        make_private(path.parent)
        if not is_private(path.parent):
            return
        with replaced(path) as temporary:
            _write(temporary, header, arrays)
        _delete_oldest(path.parent)


def describe_stored(folder: Path) -> str:
    """Return the number and the size of the stored graphs, and what they may take."""
    sizes = [path.stat().st_size for path in folder.glob("*.graph")]
    return f"{folder}, {count_of(len(sizes), 'graph')}, {sum(sizes) / 1e6:,.1f} MB of at most {MOST_BYTES / 1e6:,.0f}"


def _path(key: str) -> Path | None:
    folder = find_folder()
    return None if folder is None else folder / f"{key}.graph"


def _map(path: Path) -> memoryview:
    with open_private(path, purpose="a stored graph", max_bytes=MOST_BYTES) as descriptor:
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))


def _encode(key: str, graph: KnowledgeGraph) -> tuple[bytes, list[NDArray[Any]]]:
    """Return the header of a graph, and the arrays that follow it."""
    tables: dict[str, _Table] = {}
    arrays: list[NDArray[Any]] = []
    for split in SPLITS:
        table = AtomTable.of(getattr(graph, split))
        joined = "\0".join((*table.predicates, *table.constants))
        if joined.count("\0") != max(0, len(table.predicates) + len(table.constants) - 1):
            raise ValueError("a name holds the character NUL")
        names = np.frombuffer(joined.encode("utf-8", "surrogatepass"), np.uint8)
        # Only of facts the order is needed.
        order = (table.distinct[1] if split == "train" else np.zeros(0)).astype(np.int32)
        tables[split] = _Table(len(table.predicates), len(table.constants), len(names), len(table), len(order))
        arrays += [names, np.ascontiguousarray(table.rows), order]
    lines = graph.fact_lines
    bounds = (lines.start, lines.stop, lines.step) if isinstance(lines, range) else None
    arrays.append(np.array([] if bounds else lines, np.int32))
    header = _Header(
        key=key,
        name=graph.name,
        tables=tables,
        rules=graph.rules,
        domains=dict(graph.domains),
        graph_files=graph.files,
        facts_file=graph.facts_file,
        fact_lines=bounds,
        num_lines=len(arrays[-1]),
        warnings=graph.warnings,
    )
    return msgspec.msgpack.encode(header), arrays


def _write(path: Path, header: bytes, arrays: list[NDArray[Any]]) -> None:
    digest = hashlib.sha256()
    descriptor = os.open(path, _NEW)
    with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:

        def add(content: Any) -> None:
            digest.update(content)
            file.write(content)

        file.write(_MAGIC + bytes(32))
        add(len(header).to_bytes(8, "little"))
        for content in (header, *(each for each in arrays if each.size)):
            add(content)
            add(bytes(-file.tell() % _ALIGNED))
        file.seek(_DIGEST.start)
        file.write(digest.digest())


def _decode(content: memoryview, key: str) -> KnowledgeGraph:
    """Return the graph of a stored one. ValueError unless it is whole."""
    if (
        bytes(content[: len(_MAGIC)]) != _MAGIC
        or bytes(content[_DIGEST]) != hashlib.sha256(content[_DIGEST.stop :]).digest()
    ):
        raise ValueError("a damaged file")
    end = _HEADER.stop + int.from_bytes(content[_HEADER], "little")
    header = msgspec.msgpack.decode(content[_HEADER.stop : end], type=_Header)
    if header.key != key or tuple(header.tables) != SPLITS:
        raise ValueError("another graph")
    take = _make_taker(content, end)
    atoms = {}
    for split, table in header.tables.items():
        names = take(np.uint8, table.num_bytes).tobytes().decode("utf-8", "surrogatepass").split("\0")
        if not table.num_predicates + table.num_constants:
            names = []
        predicates, constants = tuple(names[: table.num_predicates]), tuple(names[table.num_predicates :])
        rows = take(np.int32, 3 * table.num_rows).reshape(-1, 3)
        order = take(np.int32, table.num_ordered)
        if len(constants) != table.num_constants:
            raise ValueError("another number of names")
        _check_below(rows[:, 0], len(predicates))
        _check_below(rows[:, 1:], len(constants))
        _check_below(order, len(rows))
        atoms[split] = AtomTable(predicates, constants, rows, order if split == "train" else None)
    lines = take(np.int32, header.num_lines)
    return KnowledgeGraph(
        name=header.name,
        train=atoms["train"],
        valid=atoms["valid"],
        test=atoms["test"],
        rules=header.rules,
        domains=header.domains,
        files=header.graph_files,
        facts_file=header.facts_file,
        fact_lines=range(*header.fact_lines) if header.fact_lines else tuple(lines.tolist()),
        warnings=header.warnings,
    )


def _make_taker(content: memoryview, begin: int) -> Callable[[Any, int], NDArray[Any]]:
    """Return a function that returns the next array of a number of elements, read-only."""

    def take(dtype: Any, num: int) -> NDArray[Any]:
        nonlocal begin
        if not num:
            return np.zeros(0, dtype)
        begin += -begin % _ALIGNED
        taken = np.frombuffer(content, dtype, num, begin)
        begin += taken.nbytes
        return taken

    return take


def _check_below(numbers: NDArray[np.int32], most: int) -> None:
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < most):
        raise ValueError("an id without a name")


def _delete_oldest(folder: Path) -> None:
    stored = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in folder.glob("*.graph"))
    total = sum(size for _, size, _ in stored)
    for _, size, path in stored:
        if total <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= size
