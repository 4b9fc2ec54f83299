"""Stored graphs: a large graph is read once; a stored one that is not whole, or not this user's alone, is never used."""

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from graph_files import write

from kgverify import KnowledgeGraph, load_graph
from kgverify.graphs import load
from kgverify.graphs.load import read_stored

TRIPLES = "# places\na\tp\tb\nb\tp\tc\nä ö\tq\tb\nb\tp\tc\na\tp\tb\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store graphs of any size in a folder of the test."""
    monkeypatch.setenv("KGVERIFY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(load, "SMALLEST", 0)
    return tmp_path / "cache" / "graphs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "train.txt": TRIPLES,
        "test.txt": "c\tp\ta\n",
        "rules.txt": "r1:0.9:p(x,Z), p(Z,y) -> q(x,y)\n",
        "domain2constants.txt": "all a b c\n",
        "notes.txt": "unread",
    }
    return write(tmp_path / "places", files)


def describe(graph: KnowledgeGraph) -> tuple[object, ...]:
    splits = [tuple(each) for each in (graph.train, graph.valid, graph.test)]
    program = graph.program
    return (
        *(graph.name, splits, graph.rules, dict(graph.domains), graph.files, graph.facts_file, list(graph.fact_lines)),
        *(graph.warnings, program.sha256, program.fact_lines.tolist(), program.facts.tolist()),
    )


def test_a_stored_graph_is_the_graph_that_was_read(folder: Path, cache: Path, monkeypatch):
    monkeypatch.setenv("KGVERIFY_CACHE", "")
    expected = describe(load_graph(folder))
    assert any("notes.txt" in warning for warning in expected[7])
    assert any("repeated" in warning for warning in expected[7])
    monkeypatch.setenv("KGVERIFY_CACHE", str(cache.parent))
    assert describe(load_graph(folder)) == expected
    assert len(list(cache.iterdir())) == 1
    # Nothing is read again.
    monkeypatch.delattr(load, "parse_triples")
    assert describe(load_graph(folder)) == expected
    (folder / "notes.txt").unlink()
    assert not any("notes.txt" in warning for warning in load_graph(folder).warnings)


def test_small_graphs_and_other_content_are_read(folder: Path, cache: Path, monkeypatch):
    monkeypatch.setattr(load, "SMALLEST", 1000)
    load_graph(folder)
    assert not cache.exists()
    monkeypatch.setattr(load, "SMALLEST", 0)
    load_graph(folder)
    (folder / "train.txt").write_text(TRIPLES.replace("c", "d"), encoding="utf-8")
    assert "d" in load_graph(folder).program.symbols.constants
    # Another graph, and other code.
    folder.rename(folder.with_name("others"))
    assert load_graph(folder.with_name("others")).name == "others"
    monkeypatch.setattr(load, "identify_own_code", lambda: {"kgverify/*.py": "other"})
    load_graph(folder.with_name("others"))
    assert len(list(cache.iterdir())) == 4


def test_triples_in_memory_with_the_same_file_of_rules_are_different_graphs(folder: Path):
    names = {"entity_to_id": {"a": 0, "b": 1}, "relation_to_id": {"p": 0}}
    for head in (0, 1):
        factory = SimpleNamespace(mapped_triples=np.array([(head, 0, 1)]), **names)
        assert load_graph(factory, rules=folder / "rules.txt").train[0].first == "ab"[head]


def test_damage_anywhere_is_noticed_and_repaired(folder: Path, cache: Path):
    expected = describe(load_graph(folder))
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    assert read_stored(path.stem) is not None
    changes = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(0, len(whole), 7)]
    changes += [b"", whole[:40], whole[:-1], whole + b"\0", bytes(len(whole)), b"cos\nsystem\n(S'false'\ntR."]
    for changed in changes:
        path.write_bytes(changed)
        assert read_stored(path.stem) is None
    assert describe(load_graph(folder)) == expected
    assert path.read_bytes() == whole


def test_a_forged_graph_with_its_own_digest_is_data_with_ids_in_range(folder: Path, cache: Path):
    load_graph(folder)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    refused = 0
    for i in range(32, len(whole), 3):
        body = whole[32:i] + b"\xff" + whole[i + 1 :]
        path.write_bytes(hashlib.sha256(body).digest() + body)
        graph = read_stored(path.stem)
        refused += graph is None
        if graph is not None:
            # It is another graph, and a whole one.
            assert len(graph.train) == len(list(graph.train))
    assert refused > 50
    # Under a name that is not its own, a whole one is refused as well.
    path.write_bytes(whole)
    path.rename(path.with_name("0.graph"))
    assert read_stored("0") is None


def test_what_others_may_write_is_not_used(folder: Path, cache: Path):
    load_graph(folder)
    (path,) = cache.iterdir()
    for place, unsafe, safe in ((path, 0o666, 0o600), (cache, 0o770, 0o700)):
        place.chmod(unsafe)
        assert read_stored(path.stem) is None
        place.chmod(safe)
        assert read_stored(path.stem) is not None


def test_the_graphs_used_longest_ago_are_deleted(folder: Path, cache: Path, monkeypatch):
    load_graph(folder)
    (first,) = cache.iterdir()
    size = first.stat().st_size
    monkeypatch.setattr(load, "MOST_BYTES", 3 * size + size // 2)
    os.utime(first, (1, 1))
    for name in "klm":
        (folder / "test.txt").write_text(f"{name}\tp\ta\n")
        load_graph(folder)
        if name == "k":
            assert first.exists()
            # A graph that is used stays.
            assert read_stored(first.stem) is not None
            second = max(cache.iterdir(), key=lambda path: (path != first, path.stat().st_mtime))
            os.utime(second, (2, 2))
    assert first.exists()
    assert not second.exists()
    megabytes = sum(path.stat().st_size for path in cache.iterdir()) / 10**6
    assert load.describe_stored(cache).startswith(f"{cache}, 3 graphs, {megabytes:.1f} MB of at most ")


def test_a_cache_that_cannot_be_written_changes_nothing(folder: Path, cache: Path):
    cache.parent.write_text("a file")
    assert load_graph(folder).name == "places"
