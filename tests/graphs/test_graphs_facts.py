"""Files of triples: each is read as the facts that it holds, with a warning for what was skipped, or refused."""

import re
from pathlib import Path

import pytest
from graph_files import list_facts, read, refuse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from render_graphs import render_triples

import kgverify as kv

# A line cannot hold its separators, nor surrogates, which UTF-8 does not have; a text holds no NUL.
NAMES = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1)
# A row of a table cannot hold names with blanks at the ends, or that begin with the sign of a comment or a quote. A byte
# order mark at the beginning of a line belongs to the file.
TABULAR_NAMES = NAMES.filter(lambda name: name == name.strip(" ") and name[0] not in "%#'\"\ufeff")

TABLES = {
    "tabs": ("a\tr\tb\nc\ts\td\n", ["a|r|b", "c|s|d"]),
    "commas": ("a,r,b\nc,s,d\n", ["a|r|b", "c|s|d"]),
    "semicolons": ("a;r;b\nc;s;d\n", ["a|r|b", "c|s|d"]),
    "pipes": ("a|r|b\nc|s|d\n", ["a|r|b", "c|s|d"]),
    "a blank": ("a r b\nc s d\n", ["a|r|b", "c|s|d"]),
    "Windows": ("a\tr\tb\r\n\r\nc\tr\td\r\n", ["a|r|b", "c|r|d"]),
    "Macintosh": ("a,r,b\rc,r,d\r", ["a|r|b", "c|r|d"]),
    "marks": ("\ufeffa,r,b\n\ufeffc,r,d\n", ["a|r|b", "c|r|d"]),
    "comments": ("# a comment\n#1\tr\t%2\n%3\tr\tb\nc\tr\td\n", ["#1|r|%2", "%3|r|b", "c|r|d"]),
    "other names with a sign": ("#a,r,#b\n#c,r,#d\n", ["#a|r|#b", "#c|r|#d"]),
    "a header in a comment": ("# relation\thead\ttail\nr\ta\tb\n", ["a|r|b"]),
    "header": ("head,relation,tail\na,r,b\n", ["a|r|b"]),
    "a graph's header": ("Source,Target,Label\na,b,r\n", ["a|r|b"]),
    "another order": ("relation,head,tail\nr,a,b\n", ["a|r|b"]),
    "pandas": ("0,1,2\na,r,b\n", ["a|r|b"]),
    "pandas with an index": (",head,relation,tail\n0,a,r,b\n", ["a|r|b"]),
    "kinds of entities": ("drug,relation,gene\na,r,b\n", ["a|r|b"]),
    "the third name": ("source\tmetaedge\ttarget\nGene::1\tGiG\tGene::2\n", ["Gene::1|GiG|Gene::2"]),
    "repeated header": ("head\trelation\ttail\na\tr\tb\nhead\trelation\ttail\nc\tr\td\n", ["a|r|b", "c|r|d"]),
    "words of a header that are names": ("s p o\na p b\n", ["s|p|o", "a|p|b"]),
    "row numbers": ("0,a,r,b\n1,c,r,d\n", ["a|r|b", "c|r|d"]),
    "blanks around names": ("a,r ,b \nc,r,d\n", ["a|r|b", "c|r|d"]),
    "quoted comma": ('"new, york",in,"say ""hi"""\n', ['new, york|in|say "hi"']),
    "quotes of a name": ('"Heroes" (album)\tby\tx\n', ['"Heroes" (album)|by|x']),
    "quotes of a column": ('"a b"\tr\t"c"\n"d"\tr\t"e"\n', ["a b|r|c", "d|r|e"]),
    "quoted tab": ('"a\tb"\tr\tc\nd\tr\te\n', ["a\tb|r|c", "d|r|e"]),
    "single quotes": ("'a','r','b'\n", ["a|r|b"]),
}
CLAUSES = {
    "dots or none": ("r(a,b).\ns(c, d)", ["a|r|b", "c|s|d"]),
    "a comment with tabs": ("# head\trelation\ttail\nr(a,b).\n", ["a|r|b"]),
    "capitals": ("capital(Germany,Berlin).", ["Germany|capital|Berlin"]),
    "quotes": ("r('a, b',\"c) d\").\n'r,s'('it\\'s', 'it''s').", ["a, b|r|c) d", "it's|r,s|it's"]),
    "quotes for any sign": ("'-r'('a;b','[a]').\nr('f(a)',Alien_(film)).\n", ["a;b|-r|[a]", "f(a)|r|Alien_(film)"]),
    "many on a line": ("r(a,b). r(b,c).\nr(c,d)", ["a|r|b", "b|r|c", "c|r|d"]),
    "weights": ("0.9::r(a,b). 0.5 r(b,c)\n.25 :: 'r'(c,d).", ["a|r|b", "b|r|c", "c|r|d"]),
    "directives": (":- dynamic r/2, s/2.\n:- discontiguous(r/2).\n:- module(m, [r/2]).\nr(a,b).", ["a|r|b"]),
    "comments": ("/* r(x,y).\n r(y,z). */\nr(a,b). /* r(c,d). */ % r(e,f).", ["a|r|b"]),
    "several lines": ("r(a,\n  b).\nr(\n b,\n c).", ["a|r|b", "b|r|c"]),
    "a comment within": ("r(a /* first */, b).", ["a|r|b"]),
    "odd signs": (
        "has part(côte d'or,x#y). http://a.org/b#c(%d,'[e]')",
        ["côte d'or|has part|x#y", "%d|http://a.org/b#c|[e]"],
    ),
    "parentheses in a name": ("r(washington_(state),a).", ["washington_(state)|r|a"]),
    "a predicate called not": ("not(a,b).", ["a|not|b"]),
}
N_TRIPLES = (
    '<http://a> <http://r> "x\\n\\"é\\u00e9" .\n\n# c\n_:b.1 <http://r> "5"^^<http://i>.\n<a\\u0062>\t<r>\t"x"@en .#c',
    ['http://a|http://r|"x\\n\\"éé"', '_:b.1|http://r|"5"^^<http://i>', 'ab|r|"x"@en'],
)


@pytest.mark.parametrize(
    ("text", "expected"), [*TABLES.values(), *CLAUSES.values(), N_TRIPLES], ids=[*TABLES, *CLAUSES, "N-Triples"]
)
def test_a_file_is_read_as_the_facts_that_it_holds(text: str, expected: list[str]) -> None:
    assert list_facts(text) == expected


def test_lines_are_counted_past_blanks_and_comments() -> None:
    for text, lines in (
        ("% one\n\n# three\nr(a,b).\n   \nr(a,c). % why\n", [4, 6]),
        ("# one\n\na\tr\tb\nc\tr\td\n", [3, 4]),
        (N_TRIPLES[0], [1, 4, 5]),
    ):
        assert list(read({"train.txt": text}).fact_lines) == lines


@settings(max_examples=40)
@given(st.lists(st.tuples(TABULAR_NAMES, TABULAR_NAMES, TABULAR_NAMES), min_size=1))
@example([("\f", "\f", "\f")])
@example([("a", "b c", "'tis"), ("tail", "relation", "head"), ("tail", "relation", "x")])
def test_any_names_survive_a_table(rows: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{head}\t{relation}\t{tail}\n" for head, relation, tail in rows)
    assert [tuple(atom) for atom in read({"train.txt": text}).train] == [(r, h, t) for h, r, t in rows]


@settings(max_examples=40)
@given(st.lists(st.builds(kv.NamedAtom, NAMES, NAMES, NAMES), min_size=1))
def test_any_names_survive_clauses(atoms: list[kv.NamedAtom]) -> None:
    assert list(read({"train.txt": render_triples(atoms)}).train) == atoms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("head\trelation\ttail\na\tr\tb\n", ["1: the header row 'head\\trelation\\ttail' skipped"]),
        (
            "head\trelation\ttail\na\tr\tb\nhead\trelation\ttail\nc\tr\td\n",
            ["1: the header row 'head\\trelation\\ttail', and 1 repetition of it skipped"],
        ),
        ("a,r,b,0.5\nc,r,d,1\n", ["1: a column of weights, such as 0.5, which kgverify does not use"]),
        (
            "a, r ,b,,\nc,r,d,\n",
            [
                "1: 2 lines with an empty field at the end, the first here",
                "1: blanks around names removed in 1 line, the first here",
            ],
        ),
        ("a,r,b\n# c,r,d\n#e\n", ["2: 1 comment with the form of a triple skipped, the first on this line"]),
        ("c\tin\tx\n'p''q'\tin\tx\n", ["2: the quotes around 1 name removed, the first on this line"]),
        (
            "r(a,b).\n0.9::r(a,c).\n:- dynamic r/2.\n0.8::r(a,d).\n:- table r/2.",
            [
                "2: 2 weights, the first on this line; weights play no part in proving",
                "3: skipped 2 directives, the first ':- dynamic r/2.'",
            ],
        ),
        ("b(a,c). b(a,d). b(a,c).\n", ["1: 1 repeated fact, the first on this line"]),
        ("b(a,c).\nb(a,c).\nb(a,d).\nb(a,c).\n", ["2: 2 repeated facts, the first on this line"]),
        (
            "gene,on,disease\na,r,b\n",
            ["1: read as a triple: 'gene', 'on', 'disease', which occur nowhere else"],
        ),
    ],
)
def test_skipped_and_doubtful_lines_are_warnings(text: str, expected: list[str]) -> None:
    warnings = read({"train.txt": text}).warnings
    assert len(warnings) == len(expected)
    for warning, words in zip(warnings, expected, strict=True):
        assert warning.startswith(f"train.txt:{words}")


IN_TABLES = [
    ("a\tr\tb\na\tr\n", 2, "head<TAB>relation<TAB>tail, found 2 fields", "separate three names by single tabs"),
    ("subject\tpredicate\tobject\na\tr\tobject\n", 1, "a header row or a triple", "put it after another one"),
    ("1,a,r,b\n7,c,r,d\n9,e,r,f\n", 1, "found 4 fields in '1,a,r,b'", "columns"),
    ("a\tr\tb\nr(a,b).\n", 2, "found 1 field in 'r(a,b).'", "in every line of the file"),
    ("a\t\tb\n", 1, "found an empty name in 'a\\t\\tb'", "fill in the empty field"),
    ("a\tr\tb\n,,\n", 2, "head<TAB>relation<TAB>tail, found 1 field", "three names"),
    ("a r\n", 1, "head<TAB>relation<TAB>tail or relation(head,tail)., found 'a r'", "in the same format"),
    (
        "source,label,target\nsource,r,b\n",
        1,
        "a header row or a triple, found 'source,label,target'",
        "remove the line",
    ),
    (
        "source,target,weight\na,b,0.5\n",
        1,
        "a header row with a relation, found 'source,target,weight'",
        "add a column",
    ),
    (
        "a,r,b,1\nc,r,d,-1\n",
        2,
        "expected a triple that holds, found the weight -1",
        "remove such triples and the column",
    ),
    ("a,r,b,2014\nc,r,d,2015\n", 1, "2014", "columns"),
    (
        "head,relation,tail,when\na,r,b,monday\n",
        2,
        "4 fields in 'a,r,b,monday'",
        "--graph columns=head,relation,tail,-",
    ),
    ("a,r,b\nc,r,d,0.5\n", 2, "expected head,relation,tail, found 4 fields in 'c,r,d,0.5'", "by single commas"),
    ('"a b"\tr\tc\nd\tr\te\n', 1, "quotes around all names of a column, or around none", "remove the quotes"),
    ('c,r,d\n"a,r,b\n', 2, "ends at its quote, on the same line, found '\"a,r,b'", "close the quote"),
    ('"a\nb",r,c\n', 1, "ends at its quote, on the same line, found '\"a'", "close the quote"),
    ("a,r,b\n#c,r,d\n", 2, "a triple or a comment, found '#c,r,d'", "write a triple as relation('#c',tail)."),
    ('a,r,b\n#c,r,"d,e"\n', 2, "a triple or a comment, found '#c,r,d,e'", "a blank after the sign of a comment"),
]
IN_CLAUSES = [
    ("r(a,b).\nr(a,b,c).\n", 2, "expected two arguments, found 3 in 'r'", "quote a name that contains a comma"),
    ("r(a).\n", 1, "expected two arguments, found 1 in 'r'", "its argument twice, as in r(a,a)"),
    ("r(a,b\n", 1, "a closing ')' after the arguments of 'r', found the end of the line", "close the parenthesis"),
    ("r(a,b), r(b,c).\n", 1, "found ', r(b,c).'", "write one triple a line"),
    ("r(a,).\n", 1, "expected a name, found an empty argument of 'r'", "give the argument a name"),
    ("(a,b).\n", 1, "expected predicate(first,second), found '(a,b).'", "quote a predicate with unusual characters"),
    ("r('a,b).\n", 1, "expected a closing ', found \"'a,b).\"", "close the quote"),
    ("r(" + "a," * 500 + "b).", 1, "two arguments, found more than 100", "write every atom with two arguments"),
    ("r(a,b).\nh(X,Y) :- b(X,Y).", 2, "found ':- b(X,Y).'", "move the rules to a file of their own"),
    ("not r(a,b).", 1, "the negation 'not'", "leave the negated atom out"),
    ("-r(a,b).", 1, "the negation '-r'", "remove negated facts"),
    ("r(a,b); r(c,d).", 1, "found '; r(c,d).'", "one clause for each alternative"),
    (":- dynamic r/2\nr(a,b).", 1, "expected a fact, a rule or a declaration", "leave the directive out"),
    ("?- r(a,b).", 1, "a fact, a rule or a declaration such as", "kgverify reads facts and rules, and runs nothing"),
    ("r(a,b).\n/* never\nclosed", 2, "expected '*/' after '/*'", "close the comment"),
    ("2 door car(a,b).", 1, "or a weight from 0 to 1 before it", "write 2:: before the clause"),
    ("0.0::r(a,b).", 1, "expected a triple that holds, found the weight 0", "remove such triples"),
    ("P::r(a,b).", 1, "expected a number such as 0.9 before '::'", "write the weight as a number, or leave it out"),
    ("r(x,y).\n?::r(a,b).", 2, "a number such as 0.9 before '::', found '?::'", "write the weight as a number"),
    ("r(f(a,b),c).", 1, "a name, found the compound term 'f(a,b)'", "quote a name that contains a comma"),
    (
        "r(x,y).\nr(a;b,c).",
        2,
        "expected a constant, found 'a;b'",
        "facts have neither functions, lists nor alternatives",
    ),
    (r"r('a\tb',c).", 1, "expected a backslash before a quote or another backslash", "for a backslash"),
    ("r('',c).", 1, "a name, found an empty name in quotes, in 'r'", "fill in the name"),
    ("r(a,b)\n.r(b,c).", 2, "found '.r(b,c).'", "write every atom as predicate(first,second)"),
    ("r(a,b).\nr(a,b)c.\n", 2, "the end of the line after relation(head,tail)., found 'c.'", "write one triple a line"),
    ("at(1..3,a).\n", 1, "1..3", "quote"),
    ("person(ann).\nparent(ann,bob).\n", 1, "found 1 in 'person'", "person(ann,ann)"),
]
AS_TABLE = "write the triples as a table: head, relation and tail, separated by tabs"
FORMATS_THAT_ARE_NOT_READ = [
    ('{"head": "a", "relation": "r", "tail": "b"}\n', 1, 'found JSON: \'{"head":', AS_TABLE),
    ('[\n["a", "r", "b"]\n]\n', 1, "found JSON: '['", AS_TABLE),
    (
        '<?xml version="1.0"?>\n',
        1,
        "found XML: '<?xml",
        "convert RDF/XML to N-Triples, for example by `rapper -o ntriples`",
    ),
    ("@prefix e: <http://e/> .\ne:a e:r e:b .\n", 1, "found Turtle: '@prefix", "`rapper -i turtle -o ntriples`"),
    (
        "<http://e/a> <http://e/p> <http://e/b> ;\n  <http://e/q> <http://e/c> .\n",
        1,
        "Turtle",
        "`rapper -i turtle -o ntriples`",
    ),
    (
        "| head | relation | tail |\n|---|---|---|\n| a | r | b |\n",
        2,
        "found 4 fields in '|---|---|---'",
        "remove all columns but",
    ),
    ("a,b r c,d\n", 1, "found commas or blanks in 'a,b r c,d'", "separate the names by tabs"),
    (
        '_:a <http://e/p> "x"@en _:g .\n',
        1,
        "an N-Quads statement with a graph",
        "leave the graphs out, for example by `rapper -i nquads -o ntriples`",
    ),
    ("<http://e/a> <http://e/p> <http://e/b> .\n<a> <p> <b> <g> .\n", 2, "N-Quads", "`rapper -i nquads -o ntriples`"),
    (
        '<< <http://e/a> <http://e/p> <http://e/b> >> <http://e/c> "0.9" .\n',
        1,
        "a quoted triple of RDF-star",
        "leave out the statements about other statements",
    ),
    (
        "/c/ann,/c/bob: +\n/c/ann,/c/cid: -\n",
        1,
        "DeepPath",
        "write the pairs with + as triples, head<TAB>relation<TAB>tail",
    ),
    ("a\tr\tb\nc\tr\t\0\n", 2, "expected text, found the character NUL", "in UTF-8"),
]


@pytest.mark.parametrize(("text", "line", "message", "fix"), [*IN_TABLES, *IN_CLAUSES, *FORMATS_THAT_ARE_NOT_READ])
def test_a_line_that_is_not_a_triple_is_refused_with_a_fix(text: str, line: int, message: str, fix: str) -> None:
    error = refuse({"train.txt": text})
    assert error.where == f"train.txt:{line}"
    assert message in str(error)
    assert fix in error.fix


@pytest.mark.parametrize(
    "line",
    ["<a> <r> <b>", "<a> _:r <b> .", '"a" <r> <b> .', '<a> <r> "\\uD800" .', '<a> <r> "\\q" .', "<a b> <r> <c> ."],
)
def test_a_line_that_is_not_of_n_triples_is_refused(line: str) -> None:
    assert refuse({"train.nt": f"<a> <r> <b> .\n{line}\n"}).where == "train.nt:2"


def test_a_binary_file_and_a_byte_that_is_not_utf_8_are_refused_with_a_fix() -> None:
    for content in (b"PAR1\x15\x04\x15\x00", b"\x80\x04\x95\x00"):
        assert "to_csv" in refuse({"train.txt": content}).fix
    assert "Parquet" in refuse({"train.parquet": b"PAR1"}).message
    error = refuse({"train.txt": b"b(a,c).\nb(a,\xe9).\n"})
    assert (error.where, error.message) == ("train.txt:2", "expected UTF-8 text, found the byte 0xe9")
    assert error.fix == "save the file in UTF-8"


@pytest.mark.parametrize("text", ["", "\n\n", "% nothing\n", "#\r\n"])
def test_a_split_without_triples_is_empty(text: str) -> None:
    assert read({"train.txt": "a\tr\tb\n", "test.txt": text}).test == ()


def test_a_table_without_header_row_in_another_order_is_doubted() -> None:
    lines = [(f"a{i}", f"r{i % 2}", f"a{i * 7 % 20}") for i in range(20)]
    in_order = "".join(f"{h},{r},{t}\n" for h, r, t in lines)
    assert read({"train.csv": in_order}).warnings == ()
    for text, word in (
        ("".join(f"{r},{h},{t}\n" for h, r, t in lines), "first"),
        ("".join(f"{h},{t},{r}\n" for h, r, t in lines), "third"),
    ):
        assert f"the {word} column may be the relation" in read({"train.csv": text}).warnings[0]
    assert "first" in read({"train.csv": in_order, "test.csv": "r0,a1,a2\n"}).warnings[0]
    assert refuse({"train.csv": f"gene,acts on,disease\n{in_order}"}).where == "train.csv:1"
    warnings = read({"train.csv": "a,r,b\nb,r,c\nc,r,a\n" * 9, "test.csv": "gene,on,disease\n"}).warnings
    assert any("test.csv:1: read as a triple: 'gene" in warning for warning in warnings)
    assert read({"train.csv": "a,r,b\n", "test.csv": "a,s,b\n"}).warnings == ()


def test_splits_in_different_orders_are_refused() -> None:
    error = refuse({"train.csv": "relation,head,tail\nr,a,b\n", "test.csv": "r,b,a\n"})
    assert error.where == "test.csv:1"
    assert "expected a header row" in error.message


def test_the_columns_of_a_table_without_header_row_may_be_given() -> None:
    two = {"train.txt": "a\tb\tr\nb\tc\tr\n", "test.txt": "a\tc\tr\n"}
    assert list(read(two, columns="head,tail,relation").train) == [("r", "a", "b"), ("r", "b", "c")]
    dated = {"train.txt": "a\tr\tb\t2014-01-01\nb\tr\tc\t2014-01-02\n", "test.txt": "a\tr\tc\t2015-01-01\n"}
    assert "--graph columns=head,relation,tail,-" in refuse(dated).fix
    assert read(dated, columns="head,relation,tail,-").train[1] == ("r", "b", "c")
    for wrong in ("head,tail", "head,tail,relations", "head,relation,tail,tail", "head,relation,tail"):
        assert "columns" in str(refuse(dated, columns=wrong))
    named = {"train.txt": "relation,head,tail\nr,a,b\n", "test.txt": "r,a,c\n"}
    assert "a header row with another order" in refuse(named, columns="head,relation,tail").message


def test_columns_are_refused_for_files_other_than_tables() -> None:
    for files in ({"train.pl": "r(a,b).\n"}, {"train.nt": "<a> <r> <b> .\n"}):
        assert "expected a table, whose columns `columns` names" in refuse(files, columns="tail,relation,head").message


PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")
EXAMPLES = {
    "tabs": "ann|parent|bob",
    "commas, semicolons, pipes": "Smith, Ann|parent|bob",
    "blanks": "ann|parent|Bob Smith",
    "facts": "ann|parent|Bob Smith",
    "N-Triples": 'http://e.org/ann|http://e.org/parent|"Bob"@en',
}
OF_SEVERAL_FILES = {"OpenKE", "PyKEEN, saved", "PyKEEN, in memory"}
"""Formats that tests/graphs/test_graphs_folders.py reads."""


def test_the_example_of_every_format_of_the_page_is_read() -> None:
    table = PAGE.partition("## Formats of triples")[2].partition("\n## ")[0]
    rows = {*re.findall(r"^\| (.+?) \|", table, re.MULTILINE)} - {"format"} - OF_SEVERAL_FILES
    assert rows == {*EXAMPLES}, "add the format to EXAMPLES in tests/graphs/test_graphs_facts.py"


@pytest.mark.parametrize(("name", "expected"), EXAMPLES.items())
def test_each_example_of_the_page_is_read_as_it_says(name: str, expected: str) -> None:
    text = PAGE.partition("## Formats")[2].partition(f"| {name} | `")[2].partition("` |")[0].replace("⇥", "\t")
    assert list_facts(text) == [expected]
