"""Graphs from folders, files and objects: which files are read, and what is doubted about all of them together."""

import gzip
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from graph_files import read, refuse, render_rule, write
from hypothesis import given, settings
from hypothesis import strategies as st
from render_graphs import render_domains

import kgverify as kv
from kgverify.graphs.load import find_graph


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a graph `toy` beside it, and no data folder."""
    monkeypatch.delenv("KGVERIFY_DATA", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    write(tmp_path / "toy", {"train.txt": "b(a,c)."})
    return tmp_path / "work"


def fail(spec: str | Path, **options: Any) -> tuple[str, str, str]:
    with pytest.raises(kv.UserError) as caught:
        kv.load_graph(spec, **options)
    return caught.value.where, caught.value.message, caught.value.fix


def test_a_folder_is_loaded_with_everything_in_it(work: Path) -> None:
    files = {
        "train.txt": "b(a,c).\n",
        "valid.txt": "a\tb\td\n",
        "test.txt": "b(c,e).",
        "rules.txt": "b(X,Y) -> b(Y,X)",
        "domain2constants.txt": "d a c d e",
    }
    graph = kv.load_graph(write(work / "toy", files))
    assert (graph.name, *graph.train) == ("toy", ("b", "a", "c"))
    assert (*graph.valid, *graph.test) == (("b", "a", "d"), ("b", "c", "e"))
    assert list(map(render_rule, graph.rules)) == ["b(Y,X) <- b(X,Y)"]
    assert graph.domains == {"d": ("a", "c", "d", "e")}
    assert (graph.facts_file, list(graph.fact_lines)) == ("train.txt", [1])
    assert [file.name for file in graph.files] == list(files)
    assert graph.files[0].sha256 == hashlib.sha256(b"b(a,c).\n").hexdigest()
    assert graph.warnings == tuple(
        f"{split}.txt: of 1 triple, 1 with an entity that train lacks [KG411]" for split in ("valid", "test")
    )


@pytest.mark.parametrize("name", ["train.txt", "train.tsv", "train.pl", "train", "facts.txt", "facts"])
def test_train_has_any_of_its_names(name: str) -> None:
    graph = read({name: "b(a,c)."})
    assert ([file.name for file in graph.files], graph.warnings) == ([name], ())


def test_packed_files_are_read_under_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "TRAIN.TSV.GZ").write_bytes(gzip.compress(b"a\tr\tb\n"))
    with ZipFile(tmp_path / "test.zip", "w") as archive:
        archive.writestr("any", "a,r,c\n")
    write(tmp_path, {"valid.csv": "c,r,d\n", "rules-100": "9\t5\t0.5\tr(X,Y) <= r(Y,X)\n"})
    graph = kv.load_graph(tmp_path)
    assert [file.name for file in graph.files] == ["TRAIN.TSV.GZ", "valid.csv", "test.zip", "rules-100"]


def test_files_are_given_one_by_one_or_replace_those_of_a_folder(work: Path) -> None:
    write(work, {"a.csv": "a,r,b\n", "b.csv": "b,r,a\n", "c.txt": "r(X,Y) -> r(Y,X)\n", "d.txt": "d a b\n"})
    graph = kv.load_graph(train="a.csv", test="b.csv", rules="c.txt", domains=Path("d.txt"))
    assert (graph.name, len(graph.test), len(graph.rules), graph.domains) == ("a", 1, 1, {"d": ("a", "b")})
    assert len(kv.load_graph("countries", train="a.csv").train) == 1
    single = kv.load_graph("./a.csv")
    assert (single.name, len(single.train), single.test) == ("a", 1, ())
    for arguments in ({"test": "b.csv"}, {"train": "-", "test": "-"}):
        with pytest.raises(kv.UserError):
            kv.load_graph(**arguments)
    # Two files for one purpose do not matter then.
    write(work / "../toy", {"rules.txt": "b(X,Y) -> b(Y,X)", "rules.pl": "anything"})
    assert [rule.source.file for rule in kv.load_graph("../toy", rules="c.txt").rules] == ["c.txt"]


def test_facts_may_be_in_several_files(work: Path) -> None:
    files = {"graph.txt": "ann\tparent\tbob\n", "train.txt": "ann\tfriend\tbob\n", "test": "bob\tfriend\tann\n"}
    folder = write(work / "paths", files | {"citation_graph.txt": "", "notice.tsv": "", "README.txt": ""})
    for spec in ("paths", "./paths", str(folder), f"{folder}/", folder):
        (warning,) = (each for each in kv.load_graph(spec).warnings if "not read" in each)
        assert ": not read: citation_graph.txt, graph.txt, notice.tsv;" in warning
    (warning,) = (each for each in kv.load_graph(folder, train=folder / "graph.txt").warnings if "not read" in each)
    assert ": not read: citation_graph.txt, notice.tsv, train.txt;" in warning
    both = kv.load_graph(folder, train=[folder / "train.txt", folder / "graph.txt"])
    assert [atom.predicate for atom in both.train] == ["friend", "parent"]
    assert [file.name for file in both.files] == ["train.txt", "graph.txt", "test"]
    assert len(both.program.facts) == 2
    assert (both.facts_file, list(both.fact_lines)) == ("", [])


def test_a_name_is_embedded_then_in_the_data_folder_then_in_the_current_one(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work / "countries", {"train.txt": "b(a,c)."})
    monkeypatch.setenv("KGVERIFY_DATA", str(work))
    assert len(kv.load_graph("countries").train) > 900
    assert len(kv.load_graph("./countries").train) == len(kv.load_graph(Path("countries")).train) == 1
    monkeypatch.setenv("KGVERIFY_DATA", str(work.parent))
    assert kv.load_graph("toy").name == "toy"
    monkeypatch.delenv("KGVERIFY_DATA")
    monkeypatch.chdir(work.parent)
    assert kv.load_graph("toy").name == "toy"
    # The name of an existing file is a path.
    write(work.parent, {"countries": "b(a,c)."})
    assert len(kv.load_graph("countries").train) == 1
    monkeypatch.chdir(work.parent / "toy")
    assert kv.load_graph("../toy").name == kv.load_graph(Path()).name == "toy"


def test_the_graph_of_a_program_is_found_by_its_name_only_if_the_program_is_the_same() -> None:
    found = find_graph("countries", kv.load_graph("countries").program.sha256)
    assert found is not None
    assert (found.name, find_graph("countries", "0" * 64)) == ("countries", None)


def test_a_graph_that_is_not_found_is_refused_with_those_that_are(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fail("contries") == (
        "contries",
        "no such graph: searched the embedded graphs (countries), under $KGVERIFY_DATA (not set) and in the current folder",
        "did you mean 'countries'?",
    )
    assert fail("../tov") == ("../tov", "no such file or folder; '..' holds toy, work", "did you mean 'toy'?")
    assert fail("nowhere/at/all")[1:] == (
        "no such file or folder; 'nowhere/at' does not exist either",
        "check the path",
    )
    monkeypatch.setenv("KGVERIFY_DATA", str(work.parent))
    _, message, fix = fail("zzz")
    assert message.endswith("under $KGVERIFY_DATA (toy, work) and in the current folder")
    assert fix == "give one of these names, give a path, or set KGVERIFY_DATA to the folder that holds the graph"
    assert fail("tov")[2] == "did you mean 'toy'?"


def test_files_that_are_missing_or_too_many_are_refused(work: Path) -> None:
    toy = work.parent / "toy"
    assert fail(toy, rules=Path("gone.txt"))[:2] == ("gone.txt", "cannot be read: No such file or directory")
    write(toy, {"facts.txt": "b(a,d)."})
    assert fail("../toy") == (
        "../toy",
        "expected one file for train, found facts.txt and train.txt",
        "say which with --graph train=FILE, or keep one of them in the folder",
    )
    (toy / "facts.txt").unlink()
    (toy / "train.txt").rename(toy / "train.doc")
    where, message, fix = fail("../toy")
    assert where == "../toy"
    assert message.startswith("expected a train file (train or facts")
    assert message.endswith("found train.doc")
    assert fix == "name the file of the facts train.txt, or give its path with --graph train=FILE"
    write(toy, {"train.txt": "% nothing\n"})
    assert fail(toy) == (
        "train.txt",
        "expected at least one triple, found none",
        "write one triple a line: relation(head,tail). or head<TAB>relation<TAB>tail",
    )


IDS = {"entity2id.txt": "2\nnew york\t0\nb\t1\n", "relation2id.txt": "1\nr\t0\n"}


def test_openke_has_ids_in_its_own_order() -> None:
    splits = {"train2id.txt": "1\n0 1 0\n", "test2id.txt": "1\n1 0 0\n"}
    graph = read(splits | IDS | {"rules.txt": "r(X,Y) -> r(Y,X)\n"})
    assert (*graph.train, *graph.test) == (("r", "new york", "b"), ("r", "b", "new york"))
    assert list(graph.fact_lines) == [2]
    assert graph.warnings == ("test2id.txt: of 1 triple, 1 reversed in train [KG411]",)
    assert "found ids, whose columns" in refuse(splits | IDS, columns="head,relation,tail").message
    without_counts = {"train2id.txt": "0 1 0\n", "entity2id.txt": "ann\t0\nbob\t1\n", "relation2id.txt": "knows\t0\n"}
    assert tuple(read(without_counts).train) == (("knows", "ann", "bob"),)


@pytest.mark.parametrize(
    ("text", "line"), [("2\n0 1 0\n", 1), ("0\n0 1 0\n", 1), ("1\n0 0 1\n", 2), ("1\n0 1\n", 2), ("1\n0 9 0\n", 2)]
)
def test_ids_without_names_and_wrong_counts_are_refused(text: str, line: int) -> None:
    assert refuse(IDS | {"train2id.txt": text}).where == f"train2id.txt:{line}"


def test_ids_need_one_name_each_and_are_no_names() -> None:
    twice = refuse(IDS | {"train2id.txt": "1\n0 1 0\n", "entity2id.txt": "2\na\t0\na\t1\n"})
    assert (twice.where, "'a' of line 2" in twice.message) == ("entity2id.txt:3", True)
    assert "train2id.txt" in refuse(IDS | {"train.txt": "0 1 0\n1 2 0\n"}).fix


@pytest.mark.parametrize(
    ("file", "text", "line", "message"),
    [
        ("entity_to_id.tsv", "label\tid\na\t0\n", 1, "expected the header row id<TAB>label"),
        ("entity_to_id.tsv", "id\tlabel\n0\ta\n1\n", 3, "expected id<TAB>label"),
        ("entity_to_id.tsv", "id\tlabel\n0\ta\nb\t1\n", 3, "expected an id, found 'b'"),
        ("entity_to_id.tsv", "id\tlabel\n0\ta\n1\tb\n2\ta\n", 4, "found the name 'a' of line 2"),
        ("relation_to_id.tsv", "id\tlabel\n0\tr\n0\ts\n", 3, "found the id 0 of line 2"),
        ("numeric_triples.tsv", "head\ttail\trelation\n0\t0\t1\n", 1, "the header row head<TAB>relation<TAB>tail"),
        ("numeric_triples.tsv", "head\trelation\ttail\n0\t0\t1\n0\t1\n", 3, "expected head<TAB>relation<TAB>tail"),
        ("numeric_triples.tsv", "head\trelation\ttail\n0\t0\t1\n0\t0\t7\n", 3, "7"),
    ],
)
def test_an_error_in_the_files_that_pykeen_saves_names_its_line(file: str, text: str, line: int, message: str) -> None:
    saved = {
        "entity_to_id.tsv": "id\tlabel\n0\ta\n1\tb\n",
        "relation_to_id.tsv": "id\tlabel\n0\tr\n",
        "numeric_triples.tsv": "head\trelation\ttail\n0\t0\t1\n",
    }
    assert list(read(saved).train) == [("r", "a", "b")]
    error = refuse(saved | {file: text})
    assert error.where == f"{file}:{line}"
    assert message in error.message


def test_ids_that_fit_two_orders_are_a_warning() -> None:
    names = {"entity2id.txt": "a\t0\nb\t1\nc\t2\n", "relation2id.txt": "r\t0\ns\t1\n"}
    doubt = "train2id.txt:2: read as head, tail, relation; by their ids, the columns may also be head, relation, tail"
    doubt += " [KG412]"
    for last, is_doubted in (("1 0 1", True), ("1 2 1", False)):
        assert (doubt in read(names | {"train2id.txt": f"2\n0 1 0\n{last}\n"}).warnings) == is_doubted


def make_factory(*triples: tuple[int, int, int]) -> SimpleNamespace:
    return SimpleNamespace(mapped_triples=np.array(triples), entity_to_id={"a": 0, "b": 1}, relation_to_id={"r": 0})


def test_an_object_of_pykeen_is_a_graph(tmp_path: Path) -> None:
    dataset = SimpleNamespace(training=make_factory((0, 0, 1)), validation=None, testing=make_factory((1, 0, 0)))
    write(tmp_path, {"rules.txt": "r(X,Y) -> r(Y,X)\n"})
    graph = kv.load_graph(dataset, rules=tmp_path / "rules.txt")
    assert (*graph.train, *graph.test) == (("r", "a", "b"), ("r", "b", "a"))
    assert (len(graph.valid), len(graph.rules), len(graph.program.facts)) == (0, 1, 1)
    assert kv.load_graph(make_factory((1, 0, 1))).train[0].first == "b"
    for wrong in (SimpleNamespace(mapped_triples=np.zeros((1, 3))), object(), make_factory((0, 0, 7))):
        with pytest.raises(kv.UserError):
            kv.load_graph(wrong)  # type: ignore[arg-type]


@pytest.mark.deep
def test_a_dataset_of_pykeen_is_the_same_in_memory_and_saved(tmp_path: Path) -> None:
    pykeen = pytest.importorskip("pykeen.triples")
    labels = np.array([["new york", "in", "usa"], ['say "hi"', "in", "a\\b"]])
    factory = pykeen.TriplesFactory.from_labeled_triples(labels)
    factory.to_path_binary(tmp_path / "saved")
    saved = kv.load_graph(tmp_path / "saved")
    assert set(saved.train) == set(kv.load_graph(factory).train)
    assert {str(atom.first) for atom in saved.train} == {"new york", 'say "hi"'}
    assert saved.warnings == ()


NAMES = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1)


def read_domains(text: str, train: str = "a\tr\tb\n") -> dict[str, tuple[str, ...]]:
    return dict(read({"train.txt": train, "domains.txt": text}).domains)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("% who\npeople 1 2  3 \nregions asia\n", {"people": ("1", "2", "3"), "regions": ("asia",)}),
        ("big cities\tNew York\tRio\n", {"big cities": ("New York", "Rio")}),
        ("d a b\ne c\nd b f\n", {"d": ("a", "b", "f"), "e": ("c",)}),
    ],
)
def test_a_line_of_domains_begins_with_its_domain(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert read_domains(text) == expected


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("empty", "the domain 'empty' without constants"),
        ("\ta\tb", "no domain name"),
        ("countries: ann bob", "'countries:'"),
        ("countries ann, bob", "'ann,'"),
        ("countries 'New York'", '"\'New"'),
        ("country(ann). country(bob).", "'country(ann).'"),
        ("countries = ann", "'='"),
        ("countries ann % two", "'%'"),
        ("/* countries */ ann", "'/*'"),
        ('{"countries": ["ann"]}', "'{\"countries\":'"),
    ],
)
def test_a_line_that_is_not_a_domain_is_refused_with_a_fix(line: str, found: str) -> None:
    error = refuse({"train.txt": "ann\tr\tbob\n", "domains.txt": f"d ann\n{line}\n"})
    assert (error.where, error.message) == ("domains.txt:2", f"expected domain constant constant ..., found {found}")


def test_punctuation_may_belong_to_a_constant_of_the_graph() -> None:
    assert read_domains("d ann, St. Inc.\n", "ann,\tr\tann\n") == {"d": ("ann,", "St.", "Inc.")}


@settings(max_examples=40)
@given(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, unique=True).map(tuple)))
def test_domains_with_any_names_survive(domains: dict[str, tuple[str, ...]]) -> None:
    assert read_domains(render_domains(domains)) == domains


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "train.txt": "sister(a,c).\nsister(a,d).\n",
                "test.txt": "sister(a,d).\nsister(d,a).\n",
                "domains.txt": "people a c d eve\n",
            },
            [
                "domains.txt: 1 constant that no triple has, such as 'eve' [KG410]",
                "test.txt: of 2 triples, 1 also in train, 1 reversed in train [KG411]",
            ],
        ),
        (
            {
                "train.txt": "a\tr\tb\nb\tr\tc\nb\ts\ta\nc\t!r\tb\nd\tr\td\n",
                "valid.txt": "c\tr\ta\nc\tr\ta\n",
                "test.txt": "b\tr\ta\na\ts\tb\nc\tr\ta\ne\tr\ta\na\tr\tb\nb\tr\tc\ne\tr\ta\n",
            },
            [
                "train.txt: of 5 triples, 1 under the name of an inverse relation [KG411]",
                "valid.txt: of 2 triples, 1 listed more than once [KG411]",
                "test.txt: of 7 triples, 2 also in train, 2 reversed in train, 1 reversed in train under another relation, "
                "1 reversed in train under the name of the inverse, 2 with an entity that train lacks, 1 also in valid, "
                "1 listed more than once [KG411]",
            ],
        ),
    ],
)
def test_splits_that_may_mislead_have_one_sentence_each(files: dict[str, str], expected: list[str]) -> None:
    assert list(read(files).warnings) == expected


def test_a_seed_gives_the_same_graph_and_another_seed_another() -> None:
    graph = kv.load_graph("random:3")
    assert graph.name == "random:3"
    assert graph.program.sha256 == kv.load_graph("random:3").program.sha256
    assert graph.program.sha256 != kv.load_graph("random:4").program.sha256


@pytest.mark.parametrize("seed", [0, 3])
def test_some_candidates_of_a_random_graph_are_proved_and_others_not(tmp_path: Path, seed: int) -> None:
    recording = kv.record(f"random:{seed}", tmp_path / "trace.h5", "reference", queries=20, corruptions=3)
    outcomes = {row["outcome"] for row in kv.open_trace(recording.path).to_pandas("candidates").to_dict("records")}
    assert {"PROVED", "FAILED"} <= outcomes


@pytest.mark.parametrize("spec", ["random:", "random:x", "random:-1"])
def test_an_invalid_seed_is_refused_and_a_random_graph_takes_no_files(spec: str, tmp_path: Path) -> None:
    assert "expected a seed" in fail(spec)[1]
    assert "includes its own rules" in fail("random:1", rules=tmp_path / "rules.pl")[1]
