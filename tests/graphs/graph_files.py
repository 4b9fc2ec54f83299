"""Graphs of a few lines, read from files by the public call."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import kgverify as kv

Files = Mapping[str, str | bytes]


def write(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        folder.joinpath(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def read(files: Files, **options: object) -> kv.KnowledgeGraph:
    with TemporaryDirectory(prefix="graph-") as folder:
        return kv.load_graph(write(Path(folder), files), **options)


def refuse(files: Files, **options: object) -> kv.UserError:
    with pytest.raises(kv.UserError) as caught:
        read(files, **options)
    assert caught.value.fix
    return caught.value


def list_facts(text: str, name: str = "train.txt") -> list[str]:
    """Return the facts of a file as `head|relation|tail`."""
    return ["|".join((str(atom.first), atom.predicate, str(atom.second))) for atom in read({name: text}).train]


def render_rule(rule: kv.NamedRule) -> str:
    """Return a rule with its constants in quotes: `h(X,'rome') <- b(X,Y)`."""

    def render(atom: kv.NamedAtom) -> str:
        terms = (f"'{term}'" if isinstance(term, str) else term.name for term in (atom.first, atom.second))
        return f"{atom.predicate}({','.join(terms)})"

    return f"{render(rule.clause_head)} <- {', '.join(map(render, rule.body))}"


def list_rules(text: str, train: str = "ann\tb\tbob\n", **options: object) -> list[str]:
    return [render_rule(rule) for rule in read({"train.txt": train, "rules.txt": text}, **options).rules]
