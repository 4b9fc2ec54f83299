"""Large graphs that were read before, kept in the user's cache instead of read again.

A stored graph is found by a digest of the names and the content of its files, and of the code of kgverify. It is the
sha256 of a MessagePack document and this document: data alone, in which nothing is executed. It is used only if it is whole:
written by this user, in a folder that nobody else can replace, with this sha256, and with ids that have names. Any other one
is written anew, and so is one that cannot be read. The graphs used longest ago are deleted beyond `MOST_BYTES`.
"""

import hashlib
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError, count_of
from kgverify.files.cache import find_cache, is_private, make_private, open_private
from kgverify.files.code_identity import digest_code, identify_own_code, list_changes
from kgverify.files.writing import replaced
from kgverify.graphs.folder import SPLITS
from kgverify.graphs.graph import KnowledgeGraph
from kgverify.graphs.text_file import TextFile
from kgverify.program.atom_table import AtomTable
from kgverify.progress import LOGGER

SMALLEST: Final = 4 << 20
"""Bytes of the files of a graph below which reading it takes no longer than finding it."""
MOST_BYTES: Final = 4 << 30
"""Bytes of all stored graphs."""

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


class _Table(msgspec.Struct, frozen=True):
    """The atoms of a split: names, int32 [n, 3] rows of ids, and int32 [m] order of the different rows of train."""

    predicates: tuple[str, ...]
    constants: tuple[str, ...]
    rows: bytes
    order: bytes


class _Stored(msgspec.Struct, frozen=True):
    """A graph without its atoms, and these. fact_lines: begin, end and step of the lines, unless the graph lists them."""

    key: str
    graph: KnowledgeGraph
    tables: dict[str, _Table]
    fact_lines: tuple[int, int, int] | None


def find_folder() -> Path | None:
    """Return the folder of stored graphs, which need not exist; None if nothing is kept."""
    folder = find_cache()
    return None if folder is None else folder / "graphs"


def find_key(name: str, texts: Sequence[tuple[str, TextFile]]) -> str | None:
    """Return the name under which a graph with these roles and files is stored; None if it is small, or nothing is kept."""
    if find_folder() is None or sum(len(text.content) for _, text in texts) < SMALLEST:
        return None
    code = identify_own_code()
    if list_changes(code, code):
        return None
    parts = [name, *(part for role, text in texts for part in (role, text.name, text.sha256))]
    return hashlib.sha256(msgspec.msgpack.encode([digest_code(code), *parts])).hexdigest()


def read_stored(key: str) -> KnowledgeGraph | None:
    """Return the graph stored under a name; None without a whole one."""
    path = _path(key)
    try:
        if path is None or not path.is_file():
            return None
        with open_private(path, purpose="a stored graph", max_bytes=MOST_BYTES) as descriptor:
            graph = _decode(memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)), key)
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
        document = _encode(key, graph)
        make_private(path.parent)
        if len(document) > MOST_BYTES // 2 or not is_private(path.parent):
            return
        with replaced(path) as temporary, temporary.open("wb") as file:
            file.writelines((hashlib.sha256(document).digest(), document))
        _delete_oldest(path.parent)


def describe_stored(folder: Path) -> str:
    """Return the number and the size of the stored graphs, and what they may take."""
    sizes = [path.stat().st_size for path in folder.glob("*.graph")]
    return f"{folder}, {count_of(len(sizes), 'graph')}, {sum(sizes) / 1e6:,.1f} MB of at most {MOST_BYTES / 1e6:,.0f}"


def _path(key: str) -> Path | None:
    folder = find_folder()
    return None if folder is None else folder / f"{key}.graph"


def _encode(key: str, graph: KnowledgeGraph) -> bytes:
    tables: dict[str, _Table] = {}
    for split in SPLITS:
        table = AtomTable.of(getattr(graph, split))
        # Only of facts the order is needed.
        order = table.distinct[1].astype(np.int32).tobytes() if split == "train" else b""
        tables[split] = _Table(tuple(table.predicates), tuple(table.constants), table.rows.tobytes(), order)
    lines = graph.fact_lines
    bounds = (lines.start, lines.stop, lines.step) if isinstance(lines, range) else None
    rest = replace(graph, train=(), valid=(), test=(), fact_lines=() if bounds else lines)
    return msgspec.msgpack.encode(_Stored(key, rest, tables, bounds))


def _decode(content: memoryview, key: str) -> KnowledgeGraph:
    """Return the graph of a stored one. ValueError unless it is whole."""
    document = content[_DIGEST_BYTES:]
    if content[:_DIGEST_BYTES] != hashlib.sha256(document).digest():
        raise ValueError("a damaged file")
    stored = msgspec.msgpack.decode(document, type=_Stored)
    if stored.key != key or tuple(stored.tables) != SPLITS:
        raise ValueError("another graph")
    train, valid, test = map(_decode_table, stored.tables.values())
    lines = range(*stored.fact_lines) if stored.fact_lines else tuple(stored.graph.fact_lines)
    return replace(stored.graph, train=train, valid=valid, test=test, fact_lines=lines)


def _decode_table(table: _Table) -> AtomTable:
    rows = np.frombuffer(table.rows, np.int32).reshape(-1, 3)
    order = np.frombuffer(table.order, np.int32)
    _check_below(rows[:, 0], len(table.predicates))
    _check_below(rows[:, 1:], len(table.constants))
    _check_below(order, len(rows))
    return AtomTable(table.predicates, table.constants, rows, order if len(order) else None)


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
