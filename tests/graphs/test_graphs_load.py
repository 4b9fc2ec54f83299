import hashlib
from pathlib import Path

import pytest

from kgverify import UserError, load_graph
from kgverify.program.atoms import NamedAtom


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder `toy`, the working folder beside it, and no data folder."""
    monkeypatch.delenv("KGVERIFY_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "toy").mkdir()
    return tmp_path / "toy"


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode("utf-8"))


def fail(spec: str | Path, **options: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_graph(spec, **options)
    return caught.value


def test_a_folder_is_loaded_with_everything_in_it(folder: Path) -> None:
    write(
        folder,
        train="b(a,c).\n",
        valid="a\tb\td\n",
        test="b(c,e).",
        rules="b(X,Y) -> b(Y,X)",
        domain2constants="d a c d e",
    )
    graph = load_graph(folder)
    assert graph.name == "toy"
    assert (graph.train, graph.valid, graph.test) == (
        (NamedAtom("b", "a", "c"),),
        (NamedAtom("b", "a", "d"),),
        (NamedAtom("b", "c", "e"),),
    )
    assert len(graph.rules) == 1
    assert graph.domains == {"d": ("a", "c", "d", "e")}
    assert (graph.facts_file, list(graph.fact_lines)) == ("train.txt", [1])
    assert [name for name, _ in graph.files] == [
        "train.txt",
        "valid.txt",
        "test.txt",
        "rules.txt",
        "domain2constants.txt",
    ]
    assert graph.files[0].sha256 == hashlib.sha256(b"b(a,c).\n").hexdigest()
    assert graph.warnings == tuple(
        f"{split}.txt: of 1 triple, 1 with an entity that train lacks" for split in ("valid", "test")
    )


@pytest.mark.parametrize("name", ["train.txt", "train.tsv", "train.pl", "train", "facts.txt", "facts"])
def test_train_has_any_of_its_names(folder: Path, name: str) -> None:
    (folder / name).write_text("b(a,c).")
    graph = load_graph(folder)
    assert [file.name for file in graph.files] == [name]
    assert graph.warnings == ()


def test_a_file_of_triples_is_a_graph(folder: Path) -> None:
    write(folder, family="b(a,c).", test="b(c,a).")
    graph = load_graph(str(folder / "family.txt"))
    assert (graph.name, graph.test) == ("family", ())


def test_a_file_given_by_option_replaces_that_of_the_folder(folder: Path) -> None:
    write(folder, train="b(a,c).", rules="b(X,Y) -> b(Y,X)", amie="?a  b  ?c   => ?c  b  ?a")
    (folder / "rules.pl").write_text("a second one does not matter then")
    graph = load_graph(folder, rules=folder / "amie.txt")
    assert [str(rule.source) for rule in graph.rules] == ["amie.txt:1"]


def test_a_byte_order_mark_does_not_belong_to_the_first_name(folder: Path) -> None:
    write(folder, train="\ufeffa\tb\tc\n")
    assert load_graph(folder).train == (NamedAtom("b", "a", "c"),)


def test_a_name_is_embedded_before_it_is_anything_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    countries = folder / "countries"
    countries.mkdir()
    write(countries, train="b(a,c).")
    monkeypatch.setenv("KGVERIFY_DATA", str(folder))
    monkeypatch.chdir(folder)
    assert len(load_graph("countries").train) > 900
    assert len(load_graph("./countries").train) == 1
    assert len(load_graph(Path("countries")).train) == 1


def test_the_name_of_an_existing_file_is_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "countries").write_text("b(a,c).")
    monkeypatch.chdir(folder)
    assert len(load_graph("countries").train) == 1


def test_a_name_is_looked_up_in_the_data_folder_and_then_in_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, train="b(a,c).")
    monkeypatch.setenv("KGVERIFY_DATA", str(folder.parent))
    assert load_graph("toy").name == "toy"
    monkeypatch.delenv("KGVERIFY_DATA")
    monkeypatch.chdir(folder.parent)
    assert load_graph("toy").name == "toy"
    monkeypatch.chdir(folder)
    assert load_graph("../toy").name == load_graph(Path()).name == "toy"


def test_the_error_for_an_unknown_name_lists_the_graphs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = fail("contries")
    assert error.where == "contries"
    assert error.message == (
        "no such graph: searched the embedded graphs (countries), under $KGVERIFY_DATA (not set) "
        "and in the current folder"
    )
    assert error.fix == "did you mean 'countries'?"
    monkeypatch.setenv("KGVERIFY_DATA", str(folder.parent))
    error = fail("zzz")
    assert error.message.endswith("under $KGVERIFY_DATA (toy, work) and in the current folder")
    assert error.fix == (
        "give one of these names, give a path, or set KGVERIFY_DATA to the folder that holds the graph"
    )
    assert fail("tov").fix == "did you mean 'toy'?"


def test_the_error_for_a_missing_path_lists_its_folder(folder: Path) -> None:
    error = fail("../tov")
    assert (error.where, error.message) == ("../tov", "no such file or folder; '..' holds toy, work")
    assert error.fix == "did you mean 'toy'?"
    error = fail("nowhere/at/all")
    assert error.message == "no such file or folder; 'nowhere/at' does not exist either"
    assert error.fix == "check the path"


def test_the_error_for_a_folder_without_train_lists_its_files(folder: Path) -> None:
    write(folder, test="b(a,c).")
    (folder / "train.doc").write_text("a,b,c")
    error = fail("../toy")
    assert (error.where, error.message) == (
        "../toy",
        "expected a train file (train or facts, with .txt, .tsv, .csv, .pl, .nt or nothing, train2id.txt or "
        "numeric_triples.tsv.gz), found test.txt, train.doc",
    )
    assert error.fix == "name the file of the facts train.txt, or give its path with --graph train=FILE"


def test_two_files_for_one_purpose_are_an_error(folder: Path) -> None:
    write(folder, train="b(a,c).", facts="b(a,d).")
    error = fail("../toy")
    assert error.where == "../toy"
    assert error.message == "expected one file for train, found facts.txt and train.txt"
    assert error.fix == "say which with --graph train=FILE, or keep one of them in the folder"


def test_an_empty_train_is_an_error(folder: Path) -> None:
    write(folder, train="% nothing\n")
    error = fail(folder)
    assert (error.where, error.message) == ("train.txt", "expected at least one triple, found none")
    assert error.fix == "write one triple a line: relation(head,tail). or head<TAB>relation<TAB>tail"


def test_the_error_for_a_byte_that_is_not_utf_8_names_its_line(folder: Path) -> None:
    (folder / "train.txt").write_bytes(b"b(a,c).\nb(a,\xe9).\n")
    error = fail(folder)
    assert (error.where, error.message) == ("train.txt:2", "expected UTF-8 text, found the byte 0xe9")
    assert error.fix == "save the file in UTF-8"


def test_an_option_without_an_existing_file_is_an_error(folder: Path) -> None:
    write(folder, train="b(a,c).")
    error = fail(folder, rules=Path("gone.txt"))
    assert (error.where, error.message) == ("gone.txt", "cannot be read: No such file or directory")


def test_likely_mistakes_are_warnings(folder: Path) -> None:
    write(
        folder,
        train="sister(a,c).\nsister(a,c).\nsister(a,d).\nsister(a,c).\n",
        test="sister(a,d).\nsister(d,a).\n",
        rules="r1:1:sister(X,Y), sitser(Y,Z) -> aunt(X,Z)\naunt(X,Y), sister(Y,'zoe') -> aunt(Y,X)\n",
        domains="people a c d eve\n",
    )
    assert load_graph(folder).warnings == (
        "train.txt:2: 2 repeated facts, the first on this line",
        "rules.txt:1: rule 'r1' can never apply: no fact and no rule's head has predicate 'sitser'; "
        "did you mean 'sister'?",
        "rules.txt:2: no triple and no domain has the constant 'zoe': it is no candidate",
        "domains.txt: 1 constant that no triple has, such as 'eve'",
        "test.txt: of 2 triples, 1 also in train, 1 reversed in train",
    )


def test_a_rule_may_use_a_constant_that_only_a_domain_has(folder: Path) -> None:
    write(folder, train="b(a,c).", rules="b(X,oslo) -> b(oslo,X)", domains="d a c oslo")
    assert load_graph(folder).rules[0].clause_head.first == "oslo"


def test_facts_repeated_on_one_line_are_a_warning(folder: Path) -> None:
    write(folder, train="b(a,c). b(a,d). b(a,c).\n")
    assert load_graph(folder).warnings == ("train.txt:1: 1 repeated fact, the first on this line",)


def test_a_head_that_nothing_asks_for_is_a_warning(folder: Path) -> None:
    write(
        folder,
        train="b(a,c).",
        test="aunt(a,c).",
        rules="b(X,Y) -> ant(X,Y)\nb(X,Y) -> helper(X,Y)\nhelper(X,Y) -> aunt(X,Y)",
    )
    assert load_graph(folder).warnings == (
        "rules.txt:1: nothing asks for the rule's head: no triple and no rule's body has predicate 'ant'; did you mean 'aunt'?",
    )


def test_of_many_warnings_about_rules_the_first_are_listed(folder: Path) -> None:
    write(folder, train="b(a,c).", rules="".join(f"b(X,Y), z{i}(X,Y) -> b(X,Y)\n" for i in range(30)))
    *listed, last = load_graph(folder).warnings
    assert len(listed) == 20
    assert last == "rules.txt: the same of 10 more predicates"


def test_a_variable_that_resembles_a_constant_is_a_warning(folder: Path) -> None:
    write(folder, train="b(a,'Rome').", rules="b(X,Y) :- b(ROME,X), b(ROME,Y).")
    assert load_graph(folder).warnings == (
        "rules.txt:1: 'ROME' is a variable; for the constant 'Rome', write it in quotes",
    )


@pytest.mark.parametrize("row", [",,", "," * 500])
def test_a_row_of_delimiters_alone_is_refused(tmp_path, row):
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    (tmp_path / "test.txt").write_text(row)
    with pytest.raises(UserError, match="empty name"):
        load_graph(str(tmp_path))
