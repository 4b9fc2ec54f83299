"""Load a knowledge graph by name or path.

A graph is a folder with the files that `kgverify.graphs.folder` lists, a single file of triples, which becomes train, files
given one by one, or a PyKEEN object. Everything except train may be missing.
"""

import hashlib
import mmap
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, Unpack

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.arguments import checked
from kgverify.codes import Code
from kgverify.errors import UserError, count_of, suggest
from kgverify.files.code_identity import (
    digest_code,
    find_cache,
    identify_own_code,
    is_private,
    list_changes,
    make_private,
    open_private,
)
from kgverify.files.reading import STANDARD_INPUT
from kgverify.files.remote import fetched, names_url
from kgverify.files.writing import replaced
from kgverify.garbage_collection import without_garbage_collection
from kgverify.graphs.domains import parse_domains
from kgverify.graphs.doubts import check_parts, find_doubts
from kgverify.graphs.embedded import list_embedded
from kgverify.graphs.folder import (
    ROLES,
    SPLITS,
    find_files,
    find_id_files,
    find_id_format,
    has_dictionaries,
    name_graph,
    render_list,
)
from kgverify.graphs.formats.ids import PykeenObject, read_pykeen
from kgverify.graphs.formats.reading import Part, Reading, ReadingOptions, TextFile, Triples, read_text
from kgverify.graphs.graph import GraphFile, GraphFiles, KnowledgeGraph
from kgverify.graphs.random_graph import PREFIX, draw_graph, parse_seed
from kgverify.graphs.rules import Rules, parse_rules
from kgverify.graphs.triples import parse_triples
from kgverify.program.atom_table import AtomTable
from kgverify.program.atoms import NamedAtom
from kgverify.progress import LOGGER

SMALLEST: Final = 4 << 20
"""The size in bytes below which reading a graph's files is as fast as finding the stored graph."""
MOST_BYTES: Final = 4 << 30
"""The maximum size in bytes of all stored graphs together."""

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


class _Table(msgspec.Struct, frozen=True):
    """The atoms of a split: names, rows of ids, int32 [n, 3], and the order of the distinct rows of train, int32 [m]."""

    predicates: tuple[str, ...]
    constants: tuple[str, ...]
    rows: bytes
    order: bytes


class _Stored(msgspec.Struct, frozen=True):
    """A graph without its atoms, and its tables of atoms. fact_lines: begin, end and step, unless the graph lists them."""

    key: str
    graph: KnowledgeGraph
    tables: dict[str, _Table]
    fact_lines: tuple[int, int, int] | None


def find_folder() -> Path | None:
    """Return the folder of stored graphs, which need not exist; None if kgverify keeps no cache."""
    folder = find_cache()
    return None if folder is None else folder / "graphs"


def find_key(name: str, texts: Sequence[tuple[str, TextFile]]) -> str | None:
    """Return the name under which a graph with these roles and files is stored; None for a small graph or without a cache."""
    if find_folder() is None or sum(len(text.content) for _, text in texts) < SMALLEST:
        return None
    code = identify_own_code()
    if list_changes(code, code):
        return None
    parts = [name, *(part for role, text in texts for part in (role, text.name, text.sha256))]
    return hashlib.sha256(msgspec.msgpack.encode([digest_code(code), *parts])).hexdigest()


def read_stored(key: str) -> KnowledgeGraph | None:
    """Return the graph stored under a name; None if it is missing or incomplete."""
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
    """Store a graph under a name, and delete the least recently used graphs. Do nothing if that fails."""
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
    """Return the number and the size of the stored graphs, and their maximum size."""
    sizes = [path.stat().st_size for path in folder.glob("*.graph")]
    return f"{folder}, {count_of(len(sizes), 'graph')}, {sum(sizes) / 1e6:,.1f} MB of at most {MOST_BYTES / 1e6:,.0f}"


def _path(key: str) -> Path | None:
    folder = find_folder()
    return None if folder is None else folder / f"{key}.graph"


def _encode(key: str, graph: KnowledgeGraph) -> bytes:
    tables: dict[str, _Table] = {}
    for split in SPLITS:
        table = AtomTable.of(getattr(graph, split))
        # The order is needed for facts only.
        order = table.distinct[1].astype(np.int32).tobytes() if split == "train" else b""
        tables[split] = _Table(tuple(table.predicates), tuple(table.constants), table.rows.tobytes(), order)
    lines = graph.fact_lines
    bounds = (lines.start, lines.stop, lines.step) if isinstance(lines, range) else None
    rest = replace(graph, train=(), valid=(), test=(), fact_lines=() if bounds else lines)
    return msgspec.msgpack.encode(_Stored(key, rest, tables, bounds))


def _decode(content: memoryview, key: str) -> KnowledgeGraph:
    """Decode a stored graph. ValueError if it is incomplete."""
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


DATA_VARIABLE: Final = "KGVERIFY_DATA"


_Read: TypeAlias = tuple[str, Traversable, TextFile]
"""A role, its file, and the text of the file."""


class _Source(NamedTuple):
    """The name of a graph, its files by role, and warnings about files that are not read."""

    name: str
    files: Mapping[str, Sequence[Traversable]]
    warnings: tuple[str, ...] = ()


@checked
def load_graph(
    spec: str | Path | PykeenObject | None = None,
    *,
    train: str | Path | Sequence[str | Path] | None = None,
    rules: str | Path | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    domains: str | Path | None = None,
    **options: Unpack[ReadingOptions],
) -> KnowledgeGraph:
    """Load a graph. docs/graphs.md lists the formats.

    Args:
        spec: The name of an embedded graph; `random:SEED`; else a name under $KGVERIFY_DATA; else the path of a folder or
            of a file of triples. A `Path`, a text with a separator and the name of an existing file are always paths.
            A URL such as `s3://bucket/folder` needs `kgverify[storage]`.
            Also a PyKEEN dataset or triples factory. It may be missing if `train` is given.
        train: A file of triples, or several, that replace that of the folder. `-` is standard input, here as for the other
            files.
        rules: A file of rules that replaces that of the folder.
        valid: A file of triples that replaces that of the folder.
        test: A file of triples that replaces that of the folder.
        domains: A file of domains that replaces that of the folder.
        options: `rule_variables` reads a variable that is a constant of the graph by the `format` or as the `graph` has it;
            `skip_rules=True` leaves out rules that cannot be used; `columns` names those of tables without a header row, such
            as `"head,tail,relation"`, with `-` for one that is not read.

    Returns:
        The graph. Its `warnings` name what was skipped, such as a header row, and what is probably a mistake.

    Raises:
        UserError: If the graph is not found, the folder has no train or two files for one purpose, train is empty, or a
            line cannot be read.

    Example:
        >>> import kgverify as kv
        >>> kv.load_graph("countries").test[0].predicate
        'locatedInCR'
    """
    reading = Reading(**options)
    reading.check()
    given = {"train": train, "valid": valid, "test": test, "rules": rules, "domains": domains}
    listed = {role: [each] if isinstance(each, str | Path) else each or () for role, each in given.items()}
    loaded = None
    if spec is None or isinstance(spec, str | Path):
        single: dict[str, Any] = {role: str(files[0]) for role, files in listed.items() if files and role != "train"}
        loaded = GraphFiles(_write_spec(spec), tuple(map(str, listed["train"])), **single, **reading._asdict())
    with ExitStack() as copies:
        explicit = {
            role: [copies.enter_context(fetched(file)) for file in files] for role, files in listed.items() if files
        }
        if isinstance(spec, str | Path) and names_url(spec):
            spec = copies.enter_context(fetched(spec))
        return replace(_load(spec, explicit, reading), loaded=loaded)


def _write_spec(spec: str | Path | None) -> str | None:
    """Return a spec as a text with the same meaning: a `Path` is never the name of a graph."""
    if not isinstance(spec, Path) or str(spec) == STANDARD_INPUT:
        return spec if spec is None else str(spec)
    return os.path.join(spec.parent, spec.name)


def _load(
    spec: str | Path | PykeenObject | None, explicit: Mapping[str, Sequence[Path]], reading: Reading
) -> KnowledgeGraph:
    num = [*map(str, chain(*explicit.values())), str(spec)].count(STANDARD_INPUT)
    if num > 1:
        raise UserError(
            f"expected one file from standard input, found {num}", where=STANDARD_INPUT, fix="give the others by paths"
        )
    if isinstance(spec, str) and spec.startswith(PREFIX):
        seed = parse_seed(spec)
        if explicit:
            raise UserError(f"includes its own {' and '.join(explicit)}", where=spec, fix="leave the file out")
        return draw_graph(seed)
    if spec is None or isinstance(spec, str | Path):
        return _build(_find_source(spec, explicit), [], reading)
    name, splits = read_pykeen(spec)
    parts = [Part(split, "", each) for split, each in splits.items() if split not in explicit]
    return _build(_Source(name, explicit), parts, reading)


def _find_source(spec: str | Path | None, explicit: Mapping[str, Sequence[Path]]) -> _Source:
    """Return the graph's name and its files, and warnings about files that are not read."""
    if spec is None:
        if "train" not in explicit:
            raise UserError(
                "expected a graph, found none", where="graph", fix="give a name, a path, or a file of triples as train"
            )
        first = explicit["train"][0]
        return _Source(name_graph(first.name, os.path.basename(os.path.abspath(first.parent))), explicit)
    location = _locate(spec)
    name = os.path.basename(os.path.abspath(location)) if isinstance(location, Path) else location.name
    if not location.is_dir():
        return _Source(name_graph(name, ""), {"train": [location], **explicit})
    found, unread = find_files(location, str(spec), explicit)
    files = {**{role: [file] for role, file in found.items()}, **explicit}
    given = {os.path.realpath(file) for file in chain(*explicit.values())}
    unread = [each for each in unread if os.path.realpath(str(location / each)) not in given]
    if not unread or location in map(_embedded, list_embedded()):
        return _Source(name, files)
    fix = "--graph train=FILE, valid=FILE, test=FILE, domains=FILE and --rules FILE name files one by one; train may be repeated"
    return _Source(name, files, (f"{name}: not read: {render_list(unread)}; {fix}",))


def _read_triples(text: TextFile, file: Traversable, reading: Reading) -> tuple[Triples, tuple[TextFile, ...]]:
    """Return the triples of a file, and the files that name their ids."""
    form = find_id_format(text.name)
    if form is None:
        triples = parse_triples(text.content, text.name, reading.find_columns())
        if reading.columns is not None and triples.atoms and not triples.is_table:
            raise _no_columns(text.name, "facts or N-Triples, which name them")
        names = AtomTable.of(triples.atoms)
        if names and all(map(str.isdecimal, (*names.predicates, *names.constants))) and has_dictionaries(file):
            fix = "name it train2id.txt, valid2id.txt or test2id.txt if its columns are head, tail, relation; else write names"
            raise UserError("expected names, found ids beside the files that name them", where=text.name, fix=fix)
        return triples, ()
    if reading.columns is not None:
        raise _no_columns(text.name, "ids, whose columns their format determines")
    entities, relations = (read_text(each) for each in find_id_files(file))
    return form.parse(text, entities, relations), (entities, relations)


def _no_columns(file: str, found: str) -> UserError:
    fix = "leave columns out; convert the file to a table if its columns are in another order"
    return UserError(f"expected a table, whose columns `columns` names, found {found}", where=file, fix=fix)


@without_garbage_collection()
def _build(source: _Source, parts: Sequence[Part], reading: Reading) -> KnowledgeGraph:
    """Build a graph from its files, and from triples that are in no file. UserError at the first invalid line."""
    read = [(role, file, read_text(file, standard_input=True)) for role in ROLES for file in source.files.get(role, ())]
    files = [GraphFile(text.name, text.sha256) for _, _, text in read]
    # Triples of an object have no digest, and triples in ids have two more files.
    has_ids = any(find_id_format(text.name) for role, _, text in read if role in SPLITS)
    key = None if has_ids or parts else find_key(f"{source.name} {reading}", [(role, text) for role, _, text in read])
    graph = None if key is None else read_stored(key)
    if graph is None:
        texts = {role: text for role, _, text in read if role not in SPLITS}
        more, dictionaries = _read_parts(read, reading)
        graph = _combine(source.name, [*parts, *more], texts, reading, has_ids=has_ids)
        graph = replace(graph, files=(*files, *dictionaries))
        if key is not None:
            store(key, graph)
    return replace(graph, warnings=(*map(Code.FILE_NOT_READ.mark, source.warnings), *graph.warnings))


def _read_parts(read: list[_Read], reading: Reading) -> tuple[list[Part], Iterable[GraphFile]]:
    """Return the triples of each file, and the files that name ids. Empty the list, so that large texts are freed."""
    parts: list[Part] = []
    dictionaries: dict[str, GraphFile] = {}
    read.reverse()
    while read:
        role, file, text = read.pop()
        if role in SPLITS:
            triples, beside = _read_triples(text, file, reading)
            parts.append(Part(role, text.name, triples._replace(atoms=AtomTable.of(triples.atoms))))
            dictionaries |= {each.name: GraphFile(each.name, each.sha256) for each in beside}
    return parts, dictionaries.values()


def _combine(
    name: str, parts: Sequence[Part], texts: Mapping[str, TextFile], reading: Reading, *, has_ids: bool
) -> KnowledgeGraph:
    """Return the graph of triples, rules and domains, with warnings about likely mistakes.

    texts: the files of rules and domains; has_ids: whether the triples are written in ids
    """
    of_split = {split: [part for part in parts if part.split == split] for split in SPLITS}
    files = {split: " and ".join(part.file for part in each) for split, each in of_split.items()}
    files = {role: file for role, file in files.items() if file} | {role: text.name for role, text in texts.items()}
    tables: dict[str, Any] = {split: _join([part.triples.atoms for part in each]) for split, each in of_split.items()}
    if not tables["train"]:
        fix = "write one triple a line: relation(head,tail). or head<TAB>relation<TAB>tail"
        raise UserError("expected at least one triple, found none", where=files.get("train", name), fix=fix)
    warnings = list(check_parts(parts, tables["train"], has_columns=reading.columns is not None))
    constants: dict[str, int] = {}
    for table in tables.values():
        constants |= table.constant_ids
    domains = {}
    if "domains" in texts:
        domains = parse_domains(texts["domains"].text, texts["domains"].name, constants=constants)
    strangers = {each for names in domains.values() for each in names if each not in constants}
    constants |= dict.fromkeys(strangers, 0)
    rules = _read_rules(texts["rules"], tables, constants, reading, has_ids=has_ids) if "rules" in texts else Rules(())
    # Lines of several files have no single file to refer to.
    lines = of_split["train"][0].triples.lines if len(of_split["train"]) == 1 else ()
    file = files.get("train", "") if lines else ""
    graph = KnowledgeGraph(**tables, name=name, rules=rules.rules, domains=domains, facts_file=file, fact_lines=lines)
    warnings += map(Code.RULES_CHANGED.mark, rules.warnings)
    warnings += find_doubts(graph, files, constants, strangers)
    return replace(graph, warnings=tuple(warnings))


def _read_rules(
    text: TextFile, tables: Mapping[str, AtomTable], constants: Collection[str], reading: Reading, *, has_ids: bool
) -> Rules:
    predicates = {name for table in tables.values() for name in table.predicates}
    return parse_rules(
        text.text, text.name, constants=constants, predicates=predicates, reading=reading, has_ids=has_ids
    )


def _join(tables: Sequence[Sequence[NamedAtom]]) -> AtomTable:
    """Join the triples of a split's files."""
    return AtomTable.of(tables[0] if len(tables) == 1 else tuple(chain(*tables)))


def _locate(spec: str | Path) -> Traversable:
    path = Path(spec)
    if str(spec) == STANDARD_INPUT:
        return path
    is_path = isinstance(spec, Path) or any(sign in spec for sign in (os.sep, os.altsep or os.sep))
    if is_path or path.is_file():
        if path.exists():
            return path
        holds = f"holds {render_list(_list_names(path.parent))}" if path.parent.is_dir() else "does not exist either"
        raise UserError(
            f"no such file or folder; {str(path.parent)!r} {holds}",
            where=str(spec),
            fix=suggest(path.name, _list_names(path.parent)) or "check the path",
        )
    name = str(spec)
    if name in list_embedded():
        return _embedded(name)
    data = os.environ.get(DATA_VARIABLE, "")
    if name and data and Path(data, name).exists():
        return Path(data, name)
    if name and path.exists():
        return path
    under_data = _list_names(Path(data)) if data else []
    in_data = render_list(under_data) if data else "not set"
    raise UserError(
        "no such graph: searched the embedded graphs "
        f"({', '.join(list_embedded())}), under ${DATA_VARIABLE} ({in_data}) and in the current folder",
        where=name or "graph",
        fix=suggest(name, [*list_embedded(), *under_data])
        or f"give one of these names, give a path, or set {DATA_VARIABLE} to the folder that holds the graph",
    )


def find_graph(name: str, program_sha256: str) -> KnowledgeGraph | None:
    """Return the graph of this name, embedded or under $KGVERIFY_DATA, if its program has this hash; else None.

    The name may come from a stranger's file, so it is never taken as a path.
    """
    data = os.environ.get(DATA_VARIABLE, "")
    if name not in list_embedded() and not (data and Path(name).name == name and Path(data, name).is_dir()):
        return None
    try:
        graph = load_graph(name)
    except UserError:
        return None
    return graph if graph.program.sha256 == program_sha256 else None


def _embedded(name: str) -> Traversable:
    return resources.files("kgverify.graphs.embedded").joinpath(name)


def _list_names(folder: Path) -> list[str]:
    """List the visible names in a folder; return an empty list if it is not a folder."""
    return sorted(e.name for e in folder.iterdir() if not e.name.startswith(".")) if folder.is_dir() else []
