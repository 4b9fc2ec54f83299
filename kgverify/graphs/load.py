"""The loading of a knowledge graph by name or path.

A graph is a folder with the files that `kgverify.graphs.folder` lists; or a single file of triples, which is then train; or
files that are given one by one; or an object of PyKEEN. All but train may be missing.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kgverify.errors import UserError, suggest
from kgverify.files.reading import STANDARD_INPUT
from kgverify.files.remote import fetched, names_url
from kgverify.garbage_collection import without_garbage_collection
from kgverify.graphs.column_order import check_columns, find_unlikely_order
from kgverify.graphs.domains import parse_domains
from kgverify.graphs.embedded import list_embedded
from kgverify.graphs.folder import (
    ROLES,
    SPLITS,
    find_files,
    find_id_files,
    is_openke,
    name_graph,
    names_ids,
    render_list,
)
from kgverify.graphs.formats.ids import parse_openke, parse_pykeen
from kgverify.graphs.formats.parsed import Triples
from kgverify.graphs.formats.pykeen import PykeenObject, read_pykeen
from kgverify.graphs.graph import GraphFile, KnowledgeGraph
from kgverify.graphs.random_graph import PREFIX, draw_graph, parse_seed
from kgverify.graphs.rule_warnings import find_rule_warnings
from kgverify.graphs.rules import Rules, parse_rules
from kgverify.graphs.stored_graph import find_key, read_stored, store
from kgverify.graphs.text_file import TextFile, read_text
from kgverify.graphs.triples import parse_triples
from kgverify.program.atom_table import AtomTable

DATA_VARIABLE: Final = "KGVERIFY_DATA"


def load_graph(
    spec: str | Path | PykeenObject | None = None,
    *,
    train: str | Path | None = None,
    rules: str | Path | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    domains: str | Path | None = None,
) -> KnowledgeGraph:
    """Load a graph. docs/graphs.md lists the formats.

    Args:
        spec: The name of an embedded graph; `random:SEED`; else a name under $KGVERIFY_DATA; else the path of a folder or
            of a file of triples. A `Path`, a text with a separator and the name of an existing file are always paths.
            A URL such as `s3://bucket/folder` needs `kgverify[storage]`.
            Also a PyKEEN dataset or triples factory. It may be missing if `train` is given.
        train: A file of triples that replaces that of the folder. `-` is standard input, here as for the other files.
        rules: A file of rules that replaces that of the folder.
        valid: A file of triples that replaces that of the folder.
        test: A file of triples that replaces that of the folder.
        domains: A file of domains that replaces that of the folder.

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
    given = {"train": train, "valid": valid, "test": test, "rules": rules, "domains": domains}
    with ExitStack() as copies:
        explicit = {role: copies.enter_context(fetched(file)) for role, file in given.items() if file is not None}
        if isinstance(spec, str | Path) and names_url(spec):
            spec = copies.enter_context(fetched(spec))
        return _load(spec, explicit)


def _load(spec: str | Path | PykeenObject | None, explicit: dict[str, Path]) -> KnowledgeGraph:
    _check_standard_input([*explicit.values(), spec])
    if isinstance(spec, str) and spec.startswith(PREFIX):
        seed = parse_seed(spec)
        if explicit:
            raise UserError(f"includes its own {' and '.join(explicit)}", where=spec, fix="leave the file out")
        return draw_graph(seed)
    if spec is None or isinstance(spec, str | Path):
        name, found, warnings = _find_files(spec, explicit)
        return _build(name, found | explicit, {}, warnings)
    name, splits = read_pykeen(spec)
    return _build(name, explicit, {split: each for split, each in splits.items() if split not in explicit}, ())


def _check_standard_input(given: Iterable[object]) -> None:
    num = sum(str(each) == STANDARD_INPUT for each in given)
    if num > 1:
        raise UserError(
            f"expected one file from standard input, found {num}", where=STANDARD_INPUT, fix="give the others by paths"
        )


def _find_files(
    spec: str | Path | None, explicit: Mapping[str, Path]
) -> tuple[str, dict[str, Traversable], tuple[str, ...]]:
    """Return the graph's name, the files that are not given one by one, and warnings about those that are not read."""
    if spec is None:
        if "train" not in explicit:
            raise UserError(
                "expected a graph, found none", where="graph", fix="give a name, a path, or a file of triples as train"
            )
        train = explicit["train"]
        return name_graph(train.name, os.path.basename(os.path.abspath(train.parent))), {}, ()
    location = _locate(spec)
    name = os.path.basename(os.path.abspath(location)) if isinstance(location, Path) else location.name
    if not location.is_dir():
        return name_graph(name, ""), {} if "train" in explicit else {"train": location}, ()
    found, unread = find_files(location, str(spec), explicit)
    if not unread or (not isinstance(spec, Path) and location == _embedded(str(spec))):
        return name, found, ()
    fix = "--train, --valid, --test, --rules and --domains name files one by one"
    return name, found, (f"{name}: not read: {render_list(unread)}; {fix}",)


@without_garbage_collection()
def _build(
    name: str, files: Mapping[str, Traversable], parsed: Mapping[str, Triples], warnings: Iterable[str]
) -> KnowledgeGraph:
    """Build a graph from its files, and from triples that no file holds. UserError at the first line that is wrong."""
    texts = {role: read_text(files[role], standard_input=True) for role in ROLES if role in files}
    names = {role: text.name for role, text in texts.items()}
    # Triples of an object have no digest, and those in numbers have further files.
    is_stored = not parsed and not any(names_ids(names[split]) for split in SPLITS if split in names)
    key = find_key(name, texts) if is_stored else None
    if key is not None and (stored := read_stored(key)) is not None:
        return replace(stored, warnings=(*warnings, *stored.warnings))
    id_texts: dict[str, TextFile] = {}
    splits = {split: Triples((), ()) for split in SPLITS} | dict(parsed)
    for split in SPLITS:
        if split not in texts:
            continue
        if names_ids(names[split]):
            entities, relations = (read_text(file) for file in find_id_files(files[split]))
            id_texts |= {text.name: text for text in (entities, relations)}
            parse = parse_openke if is_openke(names[split]) else parse_pykeen
            splits[split] = parse(texts[split], entities, relations)
        else:
            splits[split] = parse_triples(texts[split].content, names[split])
            # A large text is not needed beside its triples.
            texts[split] = texts[split]._replace(content=b"")
    tables = {split: AtomTable.of(each.atoms) for split, each in splits.items()}
    splits = {split: each._replace(atoms=tables[split]) for split, each in splits.items()}
    train, valid, test = (splits[split] for split in SPLITS)
    if not train.atoms:
        raise UserError(
            "expected at least one triple, found none",
            where=names.get("train", name),
            fix="write one triple a line: relation(head,tail). or head<TAB>relation<TAB>tail",
        )
    doubts = tuple(check_columns(splits, names))
    constants = tables["train"].constant_ids | tables["valid"].constant_ids
    constants |= tables["test"].constant_ids
    domains = (
        parse_domains(texts["domains"].text, texts["domains"].name, constants=constants) if "domains" in texts else {}
    )
    declared = constants | {name: 0 for names in domains.values() for name in names} if domains else constants
    predicates = {name for each in tables.values() for name in each.predicates}
    rules, rule_warnings = (
        parse_rules(texts["rules"].text, texts["rules"].name, constants=declared, predicates=predicates)
        if "rules" in texts
        else Rules(())
    )

    def find_warnings() -> Iterator[str]:
        yield from doubts
        for split, triples in splits.items():
            yield from triples.warnings
            if split in names and not triples.atoms:
                yield f"{names[split]}: no triple in it"
            if triples.is_table and triples.header is None:
                yield from find_unlikely_order(tables[split], tables["train"], names[split])
        yield from rule_warnings
        yield from _find_repeated_facts(train, names.get("train", name))
        yield from find_rule_warnings(rules, facts=tables["train"].predicates, triples=predicates, constants=declared)
        strangers = {name for names in domains.values() for name in names if name not in constants}
        if strangers:
            number = _count(len(strangers), "constant")
            yield f"{texts['domains'].name}: {number} that no triple has, such as {min(strangers)!r}"
        if num_leaks := tables["train"].count_common(tables["test"]):
            yield f"{names.get('test', 'test')}: {_count(num_leaks, 'triple')} also in train"

    graph = KnowledgeGraph(
        name=name,
        train=train.atoms,
        valid=valid.atoms,
        test=test.atoms,
        rules=rules,
        domains=domains,
        files=tuple(GraphFile(text.name, text.sha256) for text in (*texts.values(), *id_texts.values())),
        facts_file=names.get("train", ""),
        fact_lines=train.lines,
        warnings=tuple(find_warnings()),
    )
    if key is not None:
        store(key, graph)
    return replace(graph, warnings=(*warnings, *graph.warnings))


def _find_repeated_facts(facts: Triples, file: str) -> Iterator[str]:
    """Warn about facts that occur in their file more than once."""
    num_repeated, row = AtomTable.of(facts.atoms).find_repeated()
    if num_repeated and not facts.lines:
        yield f"{file}: {_count(num_repeated, 'repeated fact')}"
    elif num_repeated:
        yield f"{file}:{facts.lines[row]}: {_count(num_repeated, 'repeated fact')}, the first on this line"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _locate(spec: str | Path) -> Traversable:
    path = Path(spec)
    if str(spec) == STANDARD_INPUT:
        return path
    is_path = isinstance(spec, Path) or any(sign in spec for sign in (os.sep, os.altsep or os.sep))
    if is_path or path.is_file():
        if path.exists():
            return path
        raise UserError(
            f"no such file or folder{_describe_parent(path)}",
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


def _embedded(name: str) -> Traversable:
    return resources.files("kgverify.graphs.embedded").joinpath(name)


def _list_names(folder: Path) -> list[str]:
    """List the visible names in a folder; none if it is not a folder."""
    return sorted(e.name for e in folder.iterdir() if not e.name.startswith(".")) if folder.is_dir() else []


def _describe_parent(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; {str(path.parent)!r} does not exist either"
    return f"; {str(path.parent)!r} holds {render_list(_list_names(path.parent))}"
