"""Files that can be read in two ways: each is refused, or read with a warning that says how."""

from pathlib import Path

import pytest

import kgverify as kv

TRAIN = "rome\tin\titaly\nrome\tcap\titaly\nx\t#a\ty\n#e\tin\titaly\n"


def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        folder.joinpath(name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "#a(X,Y) <= cap(X,Y)",
        "#a(X,Y) -> cap(X,Y)",
        "#a(X,Y) :- cap(X,Y).",
        "#e  in  ?b   => ?b  cap  #e",
    ],
)
def test_a_comment_that_begins_with_a_name_of_the_graph_may_be_a_rule(tmp_path: Path, line: str) -> None:
    write(tmp_path, train__txt=TRAIN, rules__txt=f"{line}\n")
    with pytest.raises(kv.UserError, match=r"rules.txt:1: expected a rule or a comment") as caught:
        kv.load_graph(tmp_path)
    assert "write a blank after the sign of a comment" in caught.value.fix


def test_a_comment_that_begins_with_no_name_of_the_graph_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, train__txt=TRAIN, rules__txt="# a(X,Y) <= b(X,Y)\n#in(X,Y) <= cap(X,Y)\nin(X,Y) <= cap(X,Y)\n")
    assert len(kv.load_graph(tmp_path).rules) == 1


def test_a_name_that_stays_a_variable_beside_a_constant_is_listed(tmp_path: Path) -> None:
    write(tmp_path, train__txt="a\tin\tQ46\na\tcap\tQ46\n", rules__pl="in(X,Q99) :- cap(X,Q46).\n")
    graph = kv.load_graph(tmp_path, rule_variables="graph")
    assert any("read as variables beside such constants: 1, such as 'Q99'" in warning for warning in graph.warnings)


def test_a_long_variable_that_occurs_once_or_only_in_the_head_is_a_warning(tmp_path: Path) -> None:
    rules = "in(X,Y) :- cap(X,Y).\nin(X,Q99) :- cap(X,Y).\nin(Q7,Q7) :- cap(X,Y).\nin(X,Y) :- cap(X,Y), in(X,_z1).\n"
    write(tmp_path, train__txt=TRAIN, rules__pl=rules)
    (warning,) = (each for each in kv.load_graph(tmp_path).warnings if "occurs once" in each)
    assert warning.startswith(
        "rules.pl:2: 2 rules with a variable that occurs once, or only in the head, such as 'Q99'"
    )


@pytest.mark.parametrize("texts", [{"train__pl": "r(a,b).\n"}, {"train__nt": "<a> <r> <b> .\n"}])
def test_columns_are_refused_for_facts_and_n_triples(tmp_path: Path, texts: dict[str, str]) -> None:
    with pytest.raises(kv.UserError, match="expected a table, whose columns `columns` names"):
        kv.load_graph(write(tmp_path, **texts), columns="tail,relation,head")


IDS = {"entity2id__txt": "a\t0\nb\t1\nc\t2\n", "relation2id__txt": "r\t0\ns\t1\n"}


def test_columns_are_refused_for_ids(tmp_path: Path) -> None:
    write(tmp_path, train2id__txt="1\n0 1 0\n", **IDS)
    with pytest.raises(kv.UserError, match="found ids, whose columns their format determines"):
        kv.load_graph(tmp_path, columns="head,relation,tail")


def test_ids_that_fit_two_orders_are_a_warning(tmp_path: Path) -> None:
    write(tmp_path, train2id__txt="2\n0 1 0\n1 0 1\n", **IDS)
    doubt = "train2id.txt:2: read as head, tail, relation; by their ids, the columns may also be head, relation, tail"
    assert doubt in kv.load_graph(tmp_path).warnings
    write(tmp_path, train2id__txt="2\n0 1 0\n1 2 1\n")
    assert not any("by their ids" in warning for warning in kv.load_graph(tmp_path).warnings)


def test_a_file_that_another_one_replaces_is_named(tmp_path: Path) -> None:
    write(tmp_path, train__txt=TRAIN, graph__txt=TRAIN, citation_graph__txt=TRAIN, notice__tsv=TRAIN, README__txt="")
    (warning,) = (each for each in kv.load_graph(tmp_path, train=tmp_path / "graph.txt").warnings if "not read" in each)
    assert ": not read: citation_graph.txt, notice.tsv, train.txt;" in warning


@pytest.mark.parametrize("metrics", [",0.5,0.25,?a", ";0,5;0,25;?a"])
def test_metrics_of_amie_after_commas_are_refused(tmp_path: Path, metrics: str) -> None:
    write(tmp_path, train__txt=TRAIN, rules__txt=f"?a  cap  ?b   => ?a  in  italy{metrics}\n")
    with pytest.raises(kv.UserError) as caught:
        kv.load_graph(tmp_path)
    assert "separate the rule and its metrics by tabs" in caught.value.fix


def test_the_rest_of_a_clause_that_is_left_out_is_no_rule(tmp_path: Path) -> None:
    rules = "in(X,Y) :-\n cap(X,Y),\n not\n in(Y,X) :- cap(Y,X).\nSize: 6\nin(Y,X) :- in(X,Y).\n"
    write(tmp_path, train__txt=TRAIN, rules__pl=rules)
    (rule,) = kv.load_graph(tmp_path, skip_rules=True).rules
    assert rule.source.line == 6


def test_a_doubled_quote_does_not_remove_the_quotes_of_other_names(tmp_path: Path) -> None:
    write(tmp_path, train__txt="'c'\tin\tx\nc\tin\ty\n'p''q'\tin\tz\n")
    with pytest.raises(kv.UserError, match="quotes around all names of a column, or around none"):
        kv.load_graph(tmp_path)


def test_quotes_that_are_removed_are_a_warning(tmp_path: Path) -> None:
    graph = kv.load_graph(write(tmp_path, train__txt="c\tin\tx\n'p''q'\tin\tx\n"))
    assert [atom.first for atom in graph.train] == ["c", "p'q"]
    assert "train.txt:2: the quotes around 1 name removed, the first on this line" in graph.warnings


@pytest.mark.parametrize(
    ("fact", "found"),
    [
        ("0.0::r(a,b).", "the weight 0"),
        ("-r(a,b).", "the negation '-r'"),
        ("r(a;b,c).", "'a;b'"),
        ("r([a],b).", r"'\[a\]'"),
        ("r(f(a),b).", r"'f\(a\)'"),
        ("?::r(a,b).", r"'\?::'"),
    ],
)
@pytest.mark.parametrize("before", ["", "r(x,y).\n"])
def test_a_fact_with_what_is_no_name_is_refused(tmp_path: Path, before: str, fact: str, found: str) -> None:
    with pytest.raises(kv.UserError, match=f"found {found}") as caught:
        kv.load_graph(write(tmp_path, train__pl=f"{before}{fact}\n"))
    assert caught.value.where == f"train.pl:{before.count('.') + 1}"
    assert caught.value.fix


def test_quotes_make_any_text_a_name_of_a_fact(tmp_path: Path) -> None:
    facts = "'-r'('a;b','[a]').\nr('f(a)',Alien_(film)).\nr(-5,b).\n"
    train = kv.load_graph(write(tmp_path, train__pl=facts)).train
    assert [tuple(atom) for atom in train] == [("-r", "a;b", "[a]"), ("r", "f(a)", "Alien_(film)"), ("r", "-5", "b")]


def test_what_is_left_out_up_to_the_end_of_a_clause_is_listed_with_its_last_line(tmp_path: Path) -> None:
    rules = "in(X,Y) :- cap(X,Z), % One.\n X \\= Y,\n in(Z,Y)\ncap(X,Y) :- in(X,Y).\nin(Y,X) :- in(X,Y).\n"
    graph = kv.load_graph(write(tmp_path, train__txt=TRAIN, rules__pl=rules), skip_rules=True)
    assert [rule.source.line for rule in graph.rules] == [5]
    assert any("left out up to line 4, where a clause ends" in warning for warning in graph.warnings)
