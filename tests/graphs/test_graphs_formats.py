"""Files as people have them: each is read as the graph that it holds, with what was skipped as a warning, or refused."""

import gzip
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgverify import KnowledgeGraph, UserError, load_graph
from kgverify.graphs.formats import tables
from kgverify.graphs.formats.ntriples import parse_ntriples
from kgverify.graphs.triples import parse_triples


def rows(text: str) -> list[tuple[str, ...]]:
    return [(str(a.first), a.predicate, str(a.second)) for a in parse_triples(text.encode(), "train.csv").atoms]


def warnings(text: str) -> list[str]:
    return [each.removeprefix("train.csv:") for each in parse_triples(text.encode(), "train.csv").warnings]


def fail(text: str) -> tuple[str, str]:
    with pytest.raises(UserError) as caught:
        parse_triples(text.encode(), "train.csv")
    assert caught.value.fix
    return caught.value.where, caught.value.message


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8", newline="")
    return folder


@pytest.mark.parametrize("delimiter", ["\t", ",", ";", "|", " ", "   "])
def test_names_are_separated_by_any_of_five_delimiters(delimiter: str) -> None:
    assert rows(f"a{delimiter}r{delimiter}b\nc{delimiter}r{delimiter}d\n") == [("a", "r", "b"), ("c", "r", "d")]


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("head,relation,tail", "a,r,b"),
        ("subject,predicate,object", "a,r,b"),
        ("Source,Target,Label", "a,b,r"),
        ("relation,head,tail", "r,a,b"),
        ("h,r,t", "a,r2,b"),
        ("0,1,2", "a,r,b"),
        ("drug,relation,gene", "a,r,b"),
        (",head,relation,tail", "0,a,r,b"),
        ('"Head Entity","Relation Type","Tail Entity"', '"a","r","b"'),
    ],
)
def test_a_header_row_is_no_triple_and_names_the_order(header: str, line: str) -> None:
    text = f"{header}\n{line}\n"
    assert rows(text) == [("a", "r2" if "r2" in line else "r", "b")]
    assert warnings(text)[0].startswith("1: the header row")


def test_a_header_row_that_is_repeated_is_skipped_each_time() -> None:
    text = "head\trelation\ttail\na\tr\tb\nhead\trelation\ttail\nc\tr\td\n"
    assert rows(text) == [("a", "r", "b"), ("c", "r", "d")]
    assert warnings(text) == ["1: the header row 'head\\trelation\\ttail', and 1 repetition of it skipped"]


def test_words_of_a_header_that_the_table_uses_are_a_triple_or_refused() -> None:
    assert rows("s p o\na p b\n") == [("s", "p", "o"), ("a", "p", "b")]
    where, message = fail("source,label,target\nsource,r,b\n")
    assert where == "train.csv:1"
    assert message == "expected a header row or a triple, found 'source,label,target', which may be either"
    assert fail("source,target,weight\na,b,0.5\n") == (
        "train.csv:1",
        "expected a header row with a relation, found 'source,target,weight'",
    )


def test_further_columns_are_row_numbers_or_weights_or_refused() -> None:
    assert rows("0,a,r,b\n1,c,r,d\n") == [("a", "r", "b"), ("c", "r", "d")]
    assert warnings("a,r,b,0.5\nc,r,d,1\n") == ["1: a column of weights, such as 0.5, which kgverify does not use"]
    assert fail("a,r,b,1\nc,r,d,-1\n") == ("train.csv:2", "expected a triple that holds, found the weight -1")
    assert fail("a,r,b,1\nc,r,d,0\n") == ("train.csv:2", "expected a triple that holds, found the weight 0")
    assert fail("a,r,b,2014\nc,r,d,2015\n")[0] == "train.csv:1"
    assert fail("head,relation,tail,when\na,r,b,monday\n")[0] == "train.csv:2"
    assert fail("a,r,b\nc,r,d,0.5\n") == ("train.csv:2", "expected head,relation,tail, found 4 fields in 'c,r,d,0.5'")


def test_blanks_and_empty_fields_at_the_end_are_dropped_with_a_warning() -> None:
    assert rows("a,r ,b \nc,r,d\n") == [("a", "r", "b"), ("c", "r", "d")]
    assert rows("a, r ,b,,\nc,r,d,\n") == [("a", "r", "b"), ("c", "r", "d")]
    assert warnings("a, r ,b,,\nc,r,d,\n") == [
        "1: 2 lines with an empty field at the end, the first here",
        "1: blanks around names removed in 1 line, the first here",
    ]


def test_quotes_belong_to_names_between_tabs_unless_a_whole_column_has_them() -> None:
    assert rows('"new, york",in,"say ""hi"""\n') == [("new, york", "in", 'say "hi"')]
    assert rows('"Heroes" (album)\tby\tx\n') == [('"Heroes" (album)', "by", "x")]
    assert rows('"a b"\tr\t"c"\n"d"\tr\t"e"\n') == [("a b", "r", "c"), ("d", "r", "e")]
    assert rows('"a\tb"\tr\tc\nd\tr\te\n') == [("a\tb", "r", "c"), ("d", "r", "e")]
    assert rows("'a','r','b'\n") == [("a", "r", "b")]
    assert fail('"a b"\tr\tc\nd\tr\te\n')[0] == "train.csv:1"
    assert fail('c,r,d\n"a,r,b\n')[0] == "train.csv:2"
    assert fail('"a\nb",r,c\n')[0] == "train.csv:1"


def test_a_line_that_may_be_a_comment_or_a_triple_is_refused() -> None:
    assert rows("a,r,b\n# c,r,d\n#e\n") == [("a", "r", "b")]
    assert warnings("a,r,b\n# c,r,d\n")[0].startswith("2: 1 comment with the form of a triple")
    assert fail("a,r,b\n#c,r,d\n")[0] == "train.csv:2"
    assert fail('a,r,b\n#c,r,"d,e"\n')[0] == "train.csv:2"
    assert rows("#a,r,#b\n#c,r,#d\n") == [("#a", "r", "#b"), ("#c", "r", "#d")]
    assert rows("# relation\thead\ttail\nr\ta\tb\n") == [("a", "r", "b")]


@pytest.mark.parametrize(
    "text",
    [
        '{"head": "a", "relation": "r", "tail": "b"}\n',
        '[\n["a", "r", "b"]\n]\n',
        '<?xml version="1.0"?>\n',
        "@prefix e: <http://e/> .\ne:a e:r e:b .\n",
        "e:a e:r e:b .\n",
        "<a> <r> <b> <g> .\n",
        "| head | relation | tail |\n|---|---|---|\n| a | r | b |\n",
        "a,b r c,d\n",
    ],
)
def test_another_format_or_one_in_doubt_is_refused(text: str) -> None:
    assert fail(text)[0].startswith("train.csv:")


NAMES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1, max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES, NAMES), min_size=1, max_size=4))
def test_the_quick_reader_of_plain_tables_agrees_with_the_other(lines: list[tuple[str, str, str]]) -> None:
    texts = ["\t".join(line) for line in lines]
    if plain := tables.parse_plain("\n".join(texts).encode(), "\t", texts[0]):
        table = tables.parse_table(texts, "\t", "train.tsv")
        assert (table.header, table.warnings) == (None, ())
        assert [(str(a.first), a.predicate, str(a.second)) for a in plain.atoms] == lines
        assert (plain.atoms, list(plain.lines)) == (table.atoms, list(table.lines))


def test_ntriples_have_iris_blank_nodes_and_literals() -> None:
    text = '<http://a> <http://r> "x\\n\\"é\\u00e9" .\n\n# c\n_:b.1 <http://r> "5"^^<http://i>.\n<a\\u0062>\t<r>\t"x"@en .#c'
    triples = parse_ntriples(text.split("\n"), "x.nt")
    assert [(str(a.first), a.predicate, str(a.second)) for a in triples.atoms] == [
        ("http://a", "http://r", '"x\\n\\"éé"'),
        ("_:b.1", "http://r", '"5"^^<http://i>'),
        ("ab", "r", '"x"@en'),
    ]
    assert triples.lines == (1, 4, 5)
    for line in (
        "<a> <r> <b>",
        "<a> _:r <b> .",
        '"a" <r> <b> .',
        '<a> <r> "\\uD800" .',
        '<a> <r> "\\q" .',
        "<a b> <r> <c> .",
    ):
        with pytest.raises(UserError, match=r"x\.nt:1"):
            parse_ntriples([line], "x.nt")


def test_openke_has_ids_in_its_own_order(tmp_path: Path) -> None:
    names = {
        "entity2id__txt": "2\nnew york\t0\nb\t1\n",
        "relation2id__txt": "1\nr\t0\n",
        "rules__txt": "r(X,Y) -> r(Y,X)\n",
    }
    graph = load_graph(write(tmp_path, train2id__txt="1\n0 1 0\n", test2id__txt="1\n1 0 0\n", **names))
    assert [tuple(map(str, atom)) for atom in (*graph.train, *graph.test)] == [
        ("r", "new york", "b"),
        ("r", "b", "new york"),
    ]
    assert (graph.fact_lines, graph.warnings) == ((2,), ("test2id.txt: of 1 triple, 1 reversed in train",))
    for text, line in (("2\n0 1 0\n", 1), ("0\n0 1 0\n", 1), ("1\n0 0 1\n", 2), ("1\n0 1\n", 2), ("1\n0 9 0\n", 2)):
        write(tmp_path, train2id__txt=text)
        with pytest.raises(UserError, match=f"train2id.txt:{line}"):
            load_graph(tmp_path)
    write(tmp_path, train2id__txt="1\n0 1 0\n", entity2id__txt="2\na\t0\na\t1\n")
    with pytest.raises(UserError, match=r"entity2id.txt:3: .*'a' of line 2"):
        load_graph(tmp_path)


def make_factory(triples: list[tuple[int, int, int]]) -> SimpleNamespace:
    return SimpleNamespace(mapped_triples=np.array(triples), entity_to_id={"a": 0, "b": 1}, relation_to_id={"r": 0})


def test_an_object_of_pykeen_is_a_graph(tmp_path: Path) -> None:
    dataset = SimpleNamespace(training=make_factory([(0, 0, 1)]), validation=None, testing=make_factory([(1, 0, 0)]))
    rules = write(tmp_path, rules__txt="r(X,Y) -> r(Y,X)\n") / "rules.txt"
    graph = load_graph(dataset, rules=rules)
    assert [tuple(map(str, atom)) for atom in (*graph.train, *graph.test)] == [("r", "a", "b"), ("r", "b", "a")]
    assert (len(graph.valid), len(graph.rules), len(graph.program.facts)) == (0, 1, 1)
    assert load_graph(make_factory([(1, 0, 1)])).train[0].first == "b"
    for wrong in (SimpleNamespace(mapped_triples=np.zeros((1, 3))), object(), make_factory([(0, 0, 7)])):
        with pytest.raises(UserError):
            load_graph(wrong)  # type: ignore[arg-type]


@pytest.mark.deep
def test_a_dataset_of_pykeen_is_the_same_in_memory_and_saved(tmp_path: Path) -> None:
    pykeen = pytest.importorskip("pykeen.triples")
    factory = pykeen.TriplesFactory.from_labeled_triples(
        np.array([["new york", "in", "usa"], ['say "hi"', "in", "a\\b"]])
    )
    factory.to_path_binary(tmp_path / "saved")
    saved, given_object = load_graph(tmp_path / "saved"), load_graph(factory)
    assert set(saved.train) == set(given_object.train)
    assert {str(atom.first) for atom in saved.train} == {"new york", 'say "hi"'}
    assert saved.warnings == ()


def test_files_are_given_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, a__csv="a,r,b\n", b__csv="b,r,a\n", c__txt="r(X,Y) -> r(Y,X)\n", d__txt="d a b\n")
    monkeypatch.chdir(tmp_path)
    graph = load_graph(train="a.csv", test="b.csv", rules="c.txt", domains=Path("d.txt"))
    assert (graph.name, len(graph.test), len(graph.rules), graph.domains) == ("a", 1, 1, {"d": ("a", "b")})
    assert len(load_graph("countries", train="a.csv").train) == 1
    for arguments in ({"test": "b.csv"}, {"train": "-", "test": "-"}):
        with pytest.raises(UserError):
            load_graph(**arguments)


def test_packed_files_are_read_under_their_own_names(tmp_path: Path) -> None:
    (tmp_path / "TRAIN.TSV.GZ").write_bytes(gzip.compress(b"a\tr\tb\n"))
    with ZipFile(tmp_path / "test.zip", "w") as archive:
        archive.writestr("any", "a,r,c\n")
    write(tmp_path, valid__csv="c,r,d\n", **{"rules-100": "9\t5\t0.5\tr(X,Y) <= r(Y,X)\n"})
    graph = load_graph(tmp_path)
    assert [file.name for file in graph.files] == ["TRAIN.TSV.GZ", "valid.csv", "test.zip", "rules-100"]


def test_lines_end_with_a_lone_cr_and_each_of_several_files_in_one_begins_with_a_mark(tmp_path: Path) -> None:
    assert rows("a,r,b\rc,r,d\r") == [("a", "r", "b"), ("c", "r", "d")]
    (tmp_path / "train.csv").write_text("\ufeffa,r,b\n\ufeffc,r,d\n", encoding="utf-8")
    assert [atom.first for atom in load_graph(tmp_path).train] == ["a", "c"]


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(tmp_path, train__txt="a,r,b\n", rules_amie__txt="", test__doc="", README__md="", __hidden="")
    (warning,) = load_graph(tmp_path).warnings
    assert warning.startswith(f"{tmp_path.name}: not read: rules_amie.txt, test.doc; --graph train")


def load(folder: Path, **texts: str) -> KnowledgeGraph:
    for file in folder.iterdir():
        file.unlink()
    return load_graph(write(folder, **texts))


def test_a_table_without_header_that_is_in_another_order_or_begins_with_one_is_doubted(tmp_path: Path) -> None:
    lines = [(f"a{i}", f"r{i % 2}", f"a{i * 7 % 20}") for i in range(20)]
    in_order = "".join(f"{h},{r},{t}\n" for h, r, t in lines)
    assert load(tmp_path, train__csv=in_order).warnings == ()
    for text, word in (
        ("".join(f"{r},{h},{t}\n" for h, r, t in lines), "first"),
        ("".join(f"{h},{t},{r}\n" for h, r, t in lines), "third"),
    ):
        assert f"the {word} column may be the relation" in load(tmp_path, train__csv=text).warnings[0]
    assert "first" in load(tmp_path, train__csv=in_order, test__csv="r0,a1,a2\n").warnings[0]
    with pytest.raises(UserError, match=r"train\.csv:1"):
        load(tmp_path, train__csv=f"gene,acts on,disease\n{in_order}")
    for rows in ("a,r,b\nb,r,c\nc,r,a\n", "a,r,b\n", "a,r,b\nc,s,d\n"):
        assert "may be a header row" in load(tmp_path, train__csv=f"gene,on,disease\n{rows}").warnings[0]
    only_a_header = load(tmp_path, train__csv="a,r,b\nb,r,c\nc,r,a\n" * 9, test__csv="gene,on,disease\n")
    assert any("test.csv:1: read as a triple: 'gene'" in each for each in only_a_header.warnings)
    assert load(tmp_path, train__csv="a,r,b\n", test__csv="a,s,b\n").warnings == ()
    with pytest.raises(UserError, match=r"test.csv:1: expected a header row"):
        load(tmp_path, train__csv="relation,head,tail\nr,a,b\n", test__csv="r,b,a\n")


PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")


def test_the_page_about_graphs_shows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(block, "graphs.md", "exec"), found)
    graph, same = found["graph"], found["same"]
    assert graph.warnings == same.warnings == ("train.csv:1: the header row 'source,label,target' skipped",)
    assert (graph.train, graph.test, graph.rules) == (same.train, same.test, same.rules)


def test_each_row_of_the_page_is_read_as_it_says() -> None:
    examples = dict(
        re.findall(
            r"^\| ([^|]+) \| `([^`]+)` \|", PAGE.partition("## Formats")[2].partition("## Tables")[0], re.MULTILINE
        )
    )
    assert [
        rows(examples[name].replace("⇥", "\t")) for name in ("tabs", "commas, semicolons, pipes", "blanks", "facts")
    ] == [
        [("ann", "parent", "bob")],
        [("Smith, Ann", "parent", "bob")],
        [("ann", "parent", "Bob Smith")],
        [("ann", "parent", "Bob Smith")],
    ]
    assert rows(examples["N-Triples"]) == [("http://e.org/ann", "http://e.org/parent", '"Bob"@en')]
