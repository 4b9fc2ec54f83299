"""Files as other tools write them: read, or refused with a way out; what is left out and what looks odd is said."""

from pathlib import Path

import pytest

from kgverify import UserError, load_graph
from kgverify.program.atoms import NamedAtom, Variable

X, Y = Variable("X"), Variable("Y")
FACTS = "ann\tknows\tbob\nbob\tknows\tann\ncid\tlikes\tcid\nann\tspeaks\tenglish\n"


def write(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        content = text if isinstance(text, bytes) else text.encode()
        folder.joinpath(name.replace("__", ".")).write_bytes(content)
    return folder


def refuse(folder: Path, **files: str | bytes) -> UserError:
    with pytest.raises(UserError) as caught:
        load_graph(write(folder, **files))
    assert caught.value.fix
    return caught.value


ANYBURL = (
    "9\t5\t0.55\tspeaks(X,english) <= \n"
    "4\t1\t0.25\tlikes(X,me_myself_i) <= knows(X,me_myself_i)\n"
    "3\t2\t0.66\tknows(X,Y) <= knows(Y,X)\n"
)


def test_zero_rules_of_anyburl_are_left_out_and_me_myself_i_is_the_other_argument(tmp_path: Path) -> None:
    graph = load_graph(write(tmp_path, train=FACTS, **{"rules-100": ANYBURL}))
    first, second = graph.rules
    assert (first.clause_head, first.body) == (NamedAtom("likes", X, X), (NamedAtom("knows", X, X),))
    assert second.clause_head == NamedAtom("knows", X, Y)
    assert any("rules without a body left out" in warning for warning in graph.choices)


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("knows(X,Y) <= knows(Y,X)\n", None),
        ("predicted\tsupport\tconfidence\trule\n3\t2\t0.4\tknows(X,Y) <= knows(Y,X)\n", 0.4),
        ("rule\tconf\nknows(X,Y) <= knows(Y,X)\t0.4\n", 0.4),
        ("rule\tsupport\nknows(X,Y) <= knows(Y,X)\t7\n", None),
    ],
)
def test_anyburl_rules_may_have_no_columns_or_a_title_row(tmp_path: Path, text: str, confidence: float | None) -> None:
    graph = load_graph(write(tmp_path, train=FACTS, rules=text))
    assert [(str(rule.clause_head.predicate), rule.confidence) for rule in graph.rules] == [("knows", confidence)]
    assert any("title row" in warning for warning in graph.warnings) == ("\n" in text[:-1])


def test_two_columns_without_a_title_row_are_refused(tmp_path: Path) -> None:
    assert "title row" in refuse(tmp_path, train=FACTS, rules="0.4\tknows(X,Y) <= knows(Y,X)\n").fix


SKIPPED = {
    "anyburl": "1\t1\t1\tknows(X,Y) <= knows(Y,X)\n1\t1\t1\tknows(X,Y,Z) <= knows(Y,X)\n1\t1\t1\tknows(X,X) <= likes(X,X)\n",
    "amie": "?a  knows  ?b   => ?b  knows  ?a\n?a  knows   => ?a  knows  ?b\n?a  likes  ?a   => ?a  knows  ?a\n",
    "arrow": "knows(X,Y) -> knows(Y,X)\nknows(X,Oslo) -> knows(Y,X)\nlikes(X,X) -> knows(X,X)\n",
    "prolog": "knows(X,Y) :- knows(Y,X).\nknows(X,Y) :- knows(X,Z),\n  \\+ likes(X,Z), likes(Z,Y).\n"
    "knows(X,X) :- likes(X,X).\n",
    "problog": "knows(X,Y) :- knows(Y,X).\nknows(ann,bob).\n0.5::knows(X,X) :- likes(X,X).\n",
    "undotted": "knows(X,Y) :- knows(Y,X)\nknows(X,f(Y)) :- likes(X,Y)\nknows(X,X) :- likes(X,X)\n",
}


@pytest.mark.parametrize("name", SKIPPED)
def test_rules_that_cannot_be_used_are_left_out_on_request_counted_and_listed(tmp_path: Path, name: str) -> None:
    assert "skip_rules=true" in refuse(tmp_path, train=FACTS, rules=SKIPPED[name]).fix
    graph = load_graph(tmp_path, skip_rules=True)
    assert [(rule.clause_head.predicate, len(rule.body), rule.body[0].predicate) for rule in graph.rules] == [
        ("knows", 1, "knows"),
        ("knows", 1, "likes"),
    ]
    assert "rules: --graph skip_rules=true left out 1 rule, and kept 2" in graph.choices
    assert any(
        warning.startswith("rules:2: left out: expected") or "rules:3: left out" in warning
        for warning in graph.warnings
    )


def test_of_many_clauses_only_those_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    good = "knows(X,Y) :- likes(X,Z),\n  likes(Z,Y).\n"
    bad = "knows(X,Y) :-\n  likes(X,Z),\n  \\+ likes(Z,Y).\n"
    graph = load_graph(write(tmp_path, train=FACTS, rules=(good + bad + good + good + bad) * 3), skip_rules=True)
    assert len(graph.rules) == 9
    assert "rules: --graph skip_rules=true left out 6 rules, and kept 9" in graph.choices


def test_facts_may_be_in_several_files(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "paths", graph__txt="ann\tparent\tbob\n", train__txt="ann\tfriend\tbob\n", test="bob\tfriend\tann\n"
    )
    for spec in ("paths", "./paths", str(folder), f"{folder}/", folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            graph = load_graph(spec)
        assert any("not read: graph.txt" in warning for warning in graph.warnings)
    both = load_graph(folder, train=[folder / "train.txt", folder / "graph.txt"])
    assert [atom.predicate for atom in both.train] == ["friend", "parent"]
    assert [file.name for file in both.files] == ["train.txt", "graph.txt", "test"]
    assert not any("not read" in warning for warning in both.warnings)
    assert len(both.program.facts) == 2


def test_the_columns_of_a_table_without_header_row_may_be_given(tmp_path: Path) -> None:
    folder = write(tmp_path, train__txt="a\tb\tr\nb\tc\tr\n", test__txt="a\tc\tr\n")
    graph = load_graph(folder, columns="head,tail,relation")
    assert tuple(graph.train) == (NamedAtom("r", "a", "b"), NamedAtom("r", "b", "c"))
    write(tmp_path, train__txt="a\tr\tb\t2014-01-01\nb\tr\tc\t2014-01-02\n", test__txt="a\tr\tc\t2015-01-01\n")
    assert "--graph columns=head,relation,tail,-" in refuse(tmp_path).fix
    assert load_graph(folder, columns="head,relation,tail,-").train[1] == NamedAtom("r", "b", "c")
    for wrong in ("head,tail", "head,tail,relations", "head,relation,tail,tail", "head,relation,tail"):
        with pytest.raises(UserError, match="columns"):
            load_graph(folder, columns=wrong)
    write(tmp_path, train__txt="relation,head,tail\nr,a,b\n", test__txt="r,a,c\n")
    with pytest.raises(UserError, match="a header row with another order"):
        load_graph(folder, columns="head,relation,tail")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<http://e/a> <http://e/p> <http://e/b> <http://e/g> .\n", "N-Quads rapper"),
        ("<http://e/a>\t<http://e/p>\t<http://e/b>\t<http://e/g> .\n", "N-Quads rapper"),
        ('_:a <http://e/p> "x"@en _:g .\n', "N-Quads rapper"),
        (
            "<http://e/a> <http://e/p> <http://e/b> .\n<http://e/a> <http://e/p> <http://e/b> <http://e/g> .\n",
            "N-Quads",
        ),
        ('<< <http://e/a> <http://e/p> <http://e/b> >> <http://e/c> "0.9" .\n', "RDF-star"),
        (
            "<http://e/a> <http://e/p> <http://e/b> .\n_:b <http://e/p> << <http://e/a> <http://e/p> <http://e/b> >> .\n",
            "RDF-star",
        ),
        ("<http://e/a> <http://e/p> <http://e/b> ;\n  <http://e/q> <http://e/c> .\n", "Turtle rapper"),
        ("person(ann).\nparent(ann,bob).\n", "unary person(ann,ann)"),
        ("/c/ann,/c/bob: +\n/c/ann,/c/cid: -\n", "DeepPath MINERVA head<TAB>relation<TAB>tail"),
        ("at(1..3,a).\n", "1..3 quote"),
        (b"PAR1\x15\x04\x15\x00", "Parquet to_csv"),
        (b"\x80\x04\x95\x00", "pickle to_csv"),
        ("a(b,c).\na(X,Y) :- a(Y,X).\n", "rules file of their own"),
        ("source\tweight\ttarget\na\t0.5\tb\n", "relation"),
    ],
)
def test_what_is_not_a_triple_is_recognised_and_a_way_out_is_named(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    said = str(refuse(tmp_path, train__txt=text))
    assert all(word in said for word in words.split()), said


@pytest.mark.parametrize(
    "text",
    [
        "Rule,Head Coverage,Std Confidence\n?a  knows  ?b   => ?b  knows  ?a,0.5,0.25\n",
        "?a  knows  ?b   => ?b  knows  ?a;0.5;0.25\n",
        "4,2,0.5,knows(X,Y) <= knows(Y,X)\n",
    ],
)
def test_rules_with_commas_for_tabs_are_recognised(tmp_path: Path, text: str) -> None:
    assert "by tabs" in refuse(tmp_path, train=FACTS, rules=text).fix


def test_openke_files_may_lack_their_counts(tmp_path: Path) -> None:
    names = {"entity2id__txt": "ann\t0\nbob\t1\n", "relation2id__txt": "knows\t0\n"}
    graph = load_graph(write(tmp_path, train2id__txt="0 1 0\n", **names))
    assert tuple(graph.train) == (NamedAtom("knows", "ann", "bob"),)


def test_ids_beside_their_dictionaries_are_not_read_as_names(tmp_path: Path) -> None:
    files = {"train__txt": "0 1 0\n1 2 0\n", "entity2id__txt": "ann\t0\nbob\t1\n", "relation2id__txt": "knows\t0\n"}
    assert "train2id.txt" in refuse(tmp_path, **files).fix


def test_a_train_file_of_another_format_is_recognised(tmp_path: Path) -> None:
    assert "Parquet" in refuse(tmp_path, train__parquet=b"PAR1").message


def test_a_header_row_that_names_head_and_tail_names_the_relation_by_what_is_left(tmp_path: Path) -> None:
    graph = load_graph(write(tmp_path, train__txt="source\tmetaedge\ttarget\nGene::1\tGiG\tGene::2\n"))
    assert tuple(graph.train) == (NamedAtom("GiG", "Gene::1", "Gene::2"),)
    assert "the header row" in graph.warnings[0]


def test_each_split_that_may_mislead_has_one_sentence(tmp_path: Path) -> None:
    graph = load_graph(
        write(
            tmp_path,
            train__txt="a\tr\tb\nb\tr\tc\nb\ts\ta\nc\t!r\tb\nd\tr\td\n",
            valid__txt="c\tr\ta\nc\tr\ta\n",
            test__txt="b\tr\ta\na\ts\tb\nc\tr\ta\ne\tr\ta\na\tr\tb\nb\tr\tc\n",
        )
    )
    assert graph.warnings == (
        "train.txt: of 5 triples, 1 under the name of an inverse relation",
        "valid.txt: of 2 triples, 1 listed more than once",
        "test.txt: of 6 triples, 2 also in train, 2 reversed in train, 1 reversed in train under another relation, 1 "
        "reversed in train under the name of the inverse, 1 with an entity that train lacks, 1 also in valid",
    )


def test_names_that_look_the_same_are_a_warning(tmp_path: Path) -> None:
    names = ("Paris", "Paris\u200b", "Paris\u00a0", "caf\u00e9", "cafe\u0301")
    graph = load_graph(
        write(tmp_path, train__txt="".join(f"{name}\tin\tFrance\n" for name in names) + "a\tin\u00ad\tb\n")
    )
    found = " ".join(warning for warning in graph.warnings if "invisible" in warning)
    for name in (*names, "in", "in\u00ad"):
        assert ascii(name) in found
