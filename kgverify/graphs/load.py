"""The loading of a knowledge graph by name or path.

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
from kgverify.graphs.facts import Facts
from kgverify.graphs.graph import GraphFile, KnowledgeGraph
from kgverify.graphs.random_graph import PREFIX, draw_graph, parse_seed
from kgverify.graphs.rules import Rules, parse_rules
from kgverify.graphs.text_file import TextFile, is_skipped, line_error, read_text, split_lines
from kgverify.graphs.triples import parse_triples
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule, Source

DATA_VARIABLE: Final = "KGVERIFY_DATA"

_EXTENSIONS = (".txt", ".tsv", ".pl", "")
_STEMS = {
    "train": ("train", "facts"),
    "valid": ("valid",),
    "test": ("test",),
    "rules": ("rules",),
    "domains": (),  # any that begins with `domain`
}
_MAX_LISTED = 12


def load_graph(
    spec: str | Path,
    *,
    rules: str | Path | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    domains: str | Path | None = None,
) -> KnowledgeGraph:
    """Load a graph.

    Args:
        spec: The name of an embedded graph; `random:SEED`; else a name under $KGVERIFY_DATA; else the path of a folder or
            of a file of triples. A `Path`, a text with a separator and the name of an existing file are always paths.
        rules: A file of rules that replaces that of the folder.
        valid: A file of triples that replaces that of the folder.
        test: A file of triples that replaces that of the folder.
        domains: A file of domains that replaces that of the folder.

    Returns:
        The graph.

    Raises:
        UserError: If the graph is not found, the folder has no train or two files for one purpose, train is empty, or a
            line cannot be read.

    Example:
        >>> import kgverify as kv
        >>> kv.load_graph("countries").test[0].predicate
        'locatedInCR'
    """
    given = {"valid": valid, "test": test, "rules": rules, "domains": domains}
    explicit = {role: Path(file) for role, file in given.items() if file is not None}
    if isinstance(spec, str) and spec.startswith(PREFIX):
        seed = parse_seed(spec)
        if explicit:
            raise UserError(f"includes its own {' and '.join(explicit)}", where=spec, fix="leave the file out")
        return draw_graph(seed)
    location = _locate(spec)
    found = _list_files(location, str(spec), [role for role in _STEMS if role not in explicit]) | explicit
    texts = {role: read_text(found[role]) for role in _STEMS if role in found}
    name = os.path.basename(os.path.abspath(location)) if isinstance(location, Path) else location.name
    return _build(name if location.is_dir() else Path(name).stem, texts)


def list_embedded() -> tuple[str, ...]:
    """List the names of the graphs that come with kgverify."""
    root = resources.files("kgverify.graphs.embedded")
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.joinpath("train.txt").is_file()))


def _build(name: str, texts: dict[str, TextFile]) -> KnowledgeGraph:
    no_triples = Facts((), ())
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
    rules, rule_warnings = (
        parse_rules(texts["rules"].text, texts["rules"].name, constants=declared, predicates=predicates)
        if "rules" in texts
        else Rules(())
    )

    def find_warnings() -> Iterator[str]:
        for split in splits:
            yield from split.warnings
        yield from rule_warnings
        yield from _find_repeated_facts(train, texts["train"].name)
        yield from _find_unprovable_body_atoms(rules, {atom.predicate for atom in train.atoms})
        yield from _find_unused_clause_heads(rules, predicates)
        yield from _find_unknown_rule_constants(rules, declared)
        strangers = {name for names in domains.values() for name in names} - constants
        if strangers:
            number = _count(len(strangers), "constant")
            yield f"{texts['domains'].name}: {number} that no triple has, such as {min(strangers)!r}"
        if leaks := set(test.atoms) & set(train.atoms):
            yield f"{texts['test'].name}: {_count(len(leaks), 'triple')} also in train"

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


def parse_domains(text: str, file: str) -> dict[str, tuple[str, ...]]:
    """Parse the constants of each domain, in file order, without repetitions. UserError at an empty domain.

    A line is `domain constant constant ...`, separated by spaces, or by tabs if it has one, so that names with spaces
    survive. A further line that begins with the same name continues a domain.
    """
    domains: dict[str, dict[str, None]] = {}
    for number, line in split_lines(text):
        if is_skipped(line):
            continue
        first, *others = line.split("\t") if "\t" in line else line.lstrip(" ").split(" ")
        constants = [constant for constant in others if constant]
        if not first or not constants:
            raise line_error(
                Source(file, number),
                "domain constant constant ...",
                f"the domain {first!r} without constants" if first else "no domain name",
                "list the domain's constants after its name, on the same line",
            )
        domains.setdefault(first, {}).update(dict.fromkeys(constants))
    return {name: tuple(constants) for name, constants in domains.items()}


def _find_repeated_facts(facts: Facts, file: str) -> Iterator[str]:
    """Warn about facts that occur in their file more than once."""
    if num_repeated := len(facts.atoms) - len(set(facts.atoms)):
        lines: dict[NamedAtom, int] = {}
        # The first line of each fact; a repeated one has another.
        pairs = zip(facts.atoms, facts.lines, strict=True)
        line = next(line for atom, line in pairs if lines.setdefault(atom, line) != line)
        yield f"{file}:{line}: {_count(num_repeated, 'repeated fact')}, the first on this line"


def _find_unprovable_body_atoms(rules: Sequence[NamedRule], fact_predicates: set[str]) -> Iterator[str]:
    """Warn about predicates of a rule's body that no fact and no rule's head has."""
    known = fact_predicates | {rule.clause_head.predicate for rule in rules}
    for rule in rules:
        for predicate in dict.fromkeys(atom.predicate for atom in rule.body):
            if predicate not in known:
                name = f"rule {rule.name!r}" if rule.name else "the rule"
                hint = suggest(predicate, known)
                yield (
                    f"{rule.source}: {name} can never apply: no fact and no rule's head has predicate "
                    f"{predicate!r}{'; ' + hint if hint else ''}"
                )


def _find_unused_clause_heads(rules: Sequence[NamedRule], predicates: set[str]) -> Iterator[str]:
    """Warn about predicates of rules' heads that neither a triple of any split nor a rule's body has."""
    used = predicates | {atom.predicate for rule in rules for atom in rule.body}
    unused: dict[str, Source] = {}
    for rule in rules:
        if rule.clause_head.predicate not in used:
            unused.setdefault(rule.clause_head.predicate, rule.source)
    for predicate, source in unused.items():
        hint = suggest(predicate, used)
        yield (
            f"{source}: nothing asks for the rule's head: no triple and no rule's body has predicate {predicate!r}"
            f"{'; ' + hint if hint else ''}"
        )


def _find_unknown_rule_constants(rules: Sequence[NamedRule], constants: set[str]) -> Iterator[str]:
    """Warn about constants of rules that no triple and no domain has."""
    for rule in rules:
        terms = [term for atom in (rule.clause_head, *rule.body) for term in (atom.first, atom.second)]
        for term in dict.fromkeys(terms):
            if not isinstance(term, Variable) and term not in constants:
                yield f"{rule.source}: no triple and no domain has the constant {term!r}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
    if name in list_embedded():
        return resources.files("kgverify.graphs.embedded").joinpath(name)
    data = os.environ.get(DATA_VARIABLE, "")
    if name and data and Path(data, name).exists():
        return Path(data, name)
    if name and path.exists():
        return path
    under_data = _list_names(Path(data)) if data else []
    in_data = _render_list(under_data) if data else "not set"
    raise UserError(
        "no such graph: searched the embedded graphs "
        f"({', '.join(list_embedded())}), under ${DATA_VARIABLE} ({in_data}) and in the current folder",
        where=name or "graph",
        fix=suggest(name, [*list_embedded(), *under_data])
        or f"give one of these names, give a path, or set {DATA_VARIABLE} to the folder that holds the graph",
    )


def _list_files(location: Traversable, shown: str, roles: Sequence[str]) -> dict[str, Traversable]:
    """Find the file of each role; a graph that is a single file has only train."""
    if not location.is_dir():
        return {"train": location}
    files = sorted((entry for entry in location.iterdir() if entry.is_file()), key=lambda entry: entry.name)
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
    """List the visible names in a folder; none if it is not a folder."""
    return sorted(e.name for e in folder.iterdir() if not e.name.startswith(".")) if folder.is_dir() else []


def _describe_parent(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; {str(path.parent)!r} does not exist either"
    return f"; {str(path.parent)!r} holds {_render_list(_list_names(path.parent))}"


def _render_list(names: list[str]) -> str:
    if len(names) > _MAX_LISTED:
        return f"{', '.join(names[:_MAX_LISTED])} and {len(names) - _MAX_LISTED} more"
    return ", ".join(names) or "nothing"
