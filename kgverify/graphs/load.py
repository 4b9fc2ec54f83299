"""Load a knowledge graph by name or path.

A graph is a folder with files `train` (or `facts`), `valid`, `test`, `rules` and `domains` (or any name that
begins with `domain`), each with extension .txt, .tsv, .pl or none; or a single file of triples, which is then
train. All but train may be missing.
"""

import os
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kgverify.errors import UserError, suggest
from kgverify.graphs import lint as oddities
from kgverify.graphs.domains import parse_domains
from kgverify.graphs.graph import GraphFile, KnowledgeGraph
from kgverify.graphs.random_graph import PREFIX, parse_seed, random_graph
from kgverify.graphs.rules import parse_rules
from kgverify.graphs.text_file import TextFile, read_text
from kgverify.graphs.triples import Triples, parse_triples

DATA_VARIABLE: Final = "KGVERIFY_DATA"

_EXTENSIONS = (".txt", ".tsv", ".pl", "")
_STEMS = {
    "train": ("train", "facts"),
    "valid": ("valid",),
    "test": ("test",),
    "rules": ("rules",),
    "domains": (),  # any that begins with `domain`
}
_MOST_LISTED = 12


def load_graph(
    spec: str | Path,
    *,
    rules: str | Path | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    domains: str | Path | None = None,
) -> KnowledgeGraph:
    """Load a graph.

    spec: the name of an embedded graph; `random:SEED`; else a name under $KGVERIFY_DATA; else the path of a folder or of
        a file of triples. A `Path`, a text with a separator and the name of an existing file are always paths.
    rules, valid, test, domains: files to take instead of those of the folder

    UserError for a graph that is not found, for a folder without train or with two files for one purpose, for
    an empty train and for a line that cannot be read.
    """
    given = {"valid": valid, "test": test, "rules": rules, "domains": domains}
    explicit = {role: Path(file) for role, file in given.items() if file is not None}
    if isinstance(spec, str) and spec.startswith(PREFIX):
        seed = parse_seed(spec)
        if explicit:
            raise UserError(f"has its own {' and '.join(explicit)}", where=spec, fix="leave the file out")
        return random_graph(seed)
    place = _locate(spec)
    found = _list_files(place, str(spec), [role for role in _STEMS if role not in explicit]) | explicit
    texts = {role: read_text(found[role]) for role in _STEMS if role in found}
    name = os.path.basename(os.path.abspath(place)) if isinstance(place, Path) else place.name
    return _build(name if place.is_dir() else Path(name).stem, texts)


def embedded_names() -> tuple[str, ...]:
    """Return the names of the graphs that come with kgverify."""
    root = resources.files("kgverify.graphs.embedded")
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.joinpath("train.txt").is_file()))


def _build(name: str, texts: dict[str, TextFile]) -> KnowledgeGraph:
    no_triples = Triples((), ())
    train, valid, test = (
        parse_triples(texts[split].text, texts[split].name) if split in texts else no_triples
        for split in ("train", "valid", "test")
    )
    if not train.atoms:
        raise UserError(
            "expected at least one triple, found none",
            where=texts["train"].name,
            fix="write one triple a line: relation(head,tail). or head<TAB>relation<TAB>tail",
        )
    splits = (train, valid, test)
    constants = {str(term) for split in splits for atom in split.atoms for term in (atom.first, atom.second)}
    domains = parse_domains(texts["domains"].text, texts["domains"].name) if "domains" in texts else {}
    declared = constants.union(*domains.values())
    predicates = {atom.predicate for split in splits for atom in split.atoms}
    rules = (
        parse_rules(texts["rules"].text, texts["rules"].name, constants=declared, predicates=predicates)
        if "rules" in texts
        else ()
    )

    def find_warnings() -> Iterator[str]:
        yield from oddities.find_repeated_facts(train, texts["train"].name)
        yield from oddities.find_unprovable_body_atoms(rules, {atom.predicate for atom in train.atoms})
        yield from oddities.find_unknown_rule_constants(rules, declared)
        if "domains" in texts:
            yield from oddities.find_domain_strangers(domains, constants, texts["domains"].name)
        if "test" in texts:
            yield from oddities.find_leaks(train.atoms, test.atoms, texts["test"].name)

    return KnowledgeGraph(
        name=name,
        train=train.atoms,
        valid=valid.atoms,
        test=test.atoms,
        rules=rules,
        domains=domains,
        files=tuple(GraphFile(text.name, text.sha256) for text in texts.values()),
        facts_file=texts["train"].name,
        fact_lines=train.lines,
        warnings=tuple(find_warnings()),
    )


def _locate(spec: str | Path) -> Traversable:
    path = Path(spec)
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
    if name in embedded_names():
        return resources.files("kgverify.graphs.embedded").joinpath(name)
    data = os.environ.get(DATA_VARIABLE, "")
    if name and data and Path(data, name).exists():
        return Path(data, name)
    if name and path.exists():
        return path
    under_data = _list_names(Path(data)) if data else []
    there = _render_list(under_data) if data else "not set"
    raise UserError(
        "no such graph: looked among the embedded graphs "
        f"({', '.join(embedded_names())}), under ${DATA_VARIABLE} ({there}) and in the current folder",
        where=name or "graph",
        fix=suggest(name, [*embedded_names(), *under_data])
        or f"name one of these, give a path, or set {DATA_VARIABLE} to the folder that holds the graph",
    )


def _list_files(place: Traversable, shown: str, roles: Sequence[str]) -> dict[str, Traversable]:
    """Return the file of each of the roles that has one; of a file that is the graph itself, only train."""
    if not place.is_dir():
        return {"train": place}
    files = sorted((entry for entry in place.iterdir() if entry.is_file()), key=lambda entry: entry.name)
    found: dict[str, Traversable] = {}
    for role in roles:
        matching = [file for file in files if _has_role(file.name, role)]
        if len(matching) > 1:
            raise UserError(
                f"expected one file for {role}, found {' and '.join(file.name for file in matching)}",
                where=shown,
                fix="keep one of them in the folder",
            )
        if matching:
            found[role] = matching[0]
    if "train" not in found:
        looked_for = ", ".join(stem + extension for stem in _STEMS["train"] for extension in _EXTENSIONS)
        raise UserError(
            f"expected a train file ({looked_for}), found {_render_list([entry.name for entry in files])}",
            where=shown,
            fix="name the file of the facts train.txt, or give its path instead of the folder's",
        )
    return found


def _has_role(file_name: str, role: str) -> bool:
    stem, dot, extension = file_name.rpartition(".")
    stem, extension = (stem, dot + extension) if dot else (file_name, "")
    if extension not in _EXTENSIONS:
        return False
    return stem.startswith("domain") if role == "domains" else stem in _STEMS[role]


def _list_names(folder: Path) -> list[str]:
    """Return the visible names in a folder; none if it is no folder."""
    return sorted(e.name for e in folder.iterdir() if not e.name.startswith(".")) if folder.is_dir() else []


def _describe_parent(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; {str(path.parent)!r} does not exist either"
    return f"; {str(path.parent)!r} holds {_render_list(_list_names(path.parent))}"


def _render_list(names: list[str]) -> str:
    if len(names) > _MOST_LISTED:
        return f"{', '.join(names[:_MOST_LISTED])} and {len(names) - _MOST_LISTED} more"
    return ", ".join(names) or "nothing"
