import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from render_graphs import render_triples

from kgverify import UserError
from kgverify.graphs.formats import plain
from kgverify.graphs.formats.plain import parse_plain_facts
from kgverify.graphs.triples import parse_facts, parse_triples
from kgverify.program.atoms import NamedAtom

# What a line cannot hold: its separators, and surrogates, which UTF-8 does not have.
NAMES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1)
# What a row of a table cannot hold: blanks at the ends of names, and signs of comments and quotes at their beginnings.
TABULAR_NAMES = NAMES.filter(lambda name: name == name.strip(" ") and name[0] not in "%#'\"")


def parse(text: str) -> list[tuple[str, ...]]:
    return [tuple(map(str, atom)) for atom in parse_triples(text.encode(), "train.txt").atoms]


def fail(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        parse_triples(text.encode(), "train.txt")
    return caught.value


def test_a_tabular_file_is_read_as_head_relation_tail() -> None:
    assert parse("a\tr\tb\nc\ts\td\n") == [("r", "a", "b"), ("s", "c", "d")]


def test_a_functional_file_is_read_with_and_without_dots_and_a_last_newline() -> None:
    assert parse("r(a,b).\ns(c, d)") == [("r", "a", "b"), ("s", "c", "d")]


def test_windows_line_ends_do_not_belong_to_names() -> None:
    assert parse("a\tr\tb\r\n\r\nc\tr\td\r\n") == [("r", "a", "b"), ("r", "c", "d")]
    assert parse("r(a,b).\r\n") == [("r", "a", "b")]


def test_lines_are_counted_past_blanks_and_comments() -> None:
    triples = parse_triples(b"% one\n\n# three\nr(a,b).\n   \nr(a,c). % why\n", "train.txt")
    assert triples.lines == (4, 6)
    assert triples.atoms == (NamedAtom("r", "a", "b"), NamedAtom("r", "a", "c"))


def test_a_head_may_begin_with_the_sign_of_a_comment_in_a_tabular_file() -> None:
    assert parse("# a comment\n#1\tr\t%2\n%3\tr\tb\nc\tr\td\n") == [
        ("r", "#1", "%2"),
        ("r", "%3", "b"),
        ("r", "c", "d"),
    ]


def test_a_file_whose_heads_all_begin_with_the_sign_of_a_comment_is_tabular() -> None:
    assert parse("#1\tr\t#2\n") == [("r", "#1", "#2")]


def test_a_comment_with_tabs_does_not_make_a_functional_file_tabular() -> None:
    assert parse("# head\trelation\ttail\nr(a,b).\n") == [("r", "a", "b")]


@pytest.mark.parametrize("text", ["", "\n\n", "% nothing\n", "#\r\n"])
def test_a_text_without_triples_has_none(text: str) -> None:
    assert parse(text) == []


@pytest.mark.parametrize(
    "name",
    [
        "/m/0abc",
        "a.b",
        "_",
        "-",
        "00260881",
        "côte d'ivoire",
        "東京",
        "a b",
        "Ġ",
        "x(y)",
        "1e9",
        "a\u00a0",
        "o\\b",
    ],
)
def test_an_odd_name_survives_in_both_formats(name: str) -> None:
    expected = [(name, name, name)]
    assert parse(f"{name}\t{name}\t{name}\n") == expected
    assert parse(render_triples([NamedAtom(name, name, name)])) == expected


def test_quotes_hold_commas_and_parentheses_and_do_not_belong_to_the_name() -> None:
    assert parse("r('a, b',\"c) d\").\n'r,s'('it\\'s', 'it''s').") == [
        ("r", "a, b", "c) d"),
        ("r,s", "it's", "it's"),
    ]


def test_an_upper_case_argument_of_a_fact_is_a_constant() -> None:
    assert parse("capital(Germany,Berlin).") == [("capital", "Germany", "Berlin")]


@given(st.lists(st.tuples(TABULAR_NAMES, TABULAR_NAMES, TABULAR_NAMES), min_size=1))
@example([("\f", "\f", "\f")])
@example([("a", "b c", "'tis"), ("tail", "relation", "head"), ("tail", "relation", "x")])
def test_arbitrary_names_survive_the_tabular_format(rows: list[tuple[str, str, str]]) -> None:
    text = "".join(f"{head}\t{relation}\t{tail}\n" for head, relation, tail in rows)
    assert parse(text) == [(relation, head, tail) for head, relation, tail in rows]


@given(st.lists(st.builds(NamedAtom, NAMES, NAMES, NAMES), min_size=1))
def test_arbitrary_names_survive_the_functional_format(atoms: list[NamedAtom]) -> None:
    assert parse(render_triples(atoms)) == atoms


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        (
            "a\tr\tb\na\tr\n",
            2,
            "expected head<TAB>relation<TAB>tail, found 2 fields in 'a\\tr'",
            "separate three names by single tabs, in every line of the file",
        ),
        (
            "a\tr\tb\nr(a,b).\n",
            2,
            "expected head<TAB>relation<TAB>tail, found 1 field in 'r(a,b).'",
            "separate three names by single tabs, in every line of the file",
        ),
        (
            "a\t\tb\n",
            1,
            "expected head<TAB>relation<TAB>tail, found an empty name in 'a\\t\\tb'",
            "fill in the empty field",
        ),
        (
            "a r\n",
            1,
            "expected head<TAB>relation<TAB>tail or relation(head,tail)., found 'a r'",
            "write one triple a line, in the same format for the whole file",
        ),
        (
            "r(a,b).\nr(a,b,c).\n",
            2,
            "expected two arguments, found 3 in 'r'",
            "write every atom with two arguments; quote a name that contains a comma",
        ),
        (
            "r(a).\n",
            1,
            "expected two arguments, found 1 in 'r'",
            "write a unary atom with its argument twice, as in r(a,a)",
        ),
        (
            "r(a,b\n",
            1,
            "expected a closing ')' after the arguments of 'r', found the end of the line",
            "close the parenthesis",
        ),
        (
            "r(a,b)).\n",
            1,
            "expected the end of the line after relation(head,tail)., found ').'",
            "write one triple a line",
        ),
        (
            "r(a,b), r(b,c).\n",
            1,
            "expected the end of the line after relation(head,tail)., found ', r(b,c).'",
            "write one triple a line",
        ),
        ("r(a,).\n", 1, "expected a name, found an empty argument of 'r'", "give the argument a name"),
        (
            "(a,b).\n",
            1,
            "expected predicate(first,second), found '(a,b).'",
            "write every atom as predicate(first,second); quote a predicate with unusual characters",
        ),
        ("r('a,b).\n", 1, "expected a closing ', found \"'a,b).\"", "close the quote"),
    ],
)
def test_an_invalid_triple_is_an_error_with_a_fix(text: str, line: int, message: str, fix: str) -> None:
    error = fail(text)
    assert (error.where, error.message, error.fix) == (f"train.txt:{line}", message, fix)


def test_a_long_line_is_cut_in_the_message() -> None:
    assert len(fail("x" * 10_000).message) < 200


PLAIN_NAMES = st.text(st.sampled_from("aZ0_-/é .,('%"), min_size=1, max_size=3)


@given(st.lists(st.tuples(PLAIN_NAMES, PLAIN_NAMES, PLAIN_NAMES), min_size=1, max_size=4), st.sampled_from([").", ")"]))
def test_the_quick_reader_of_facts_agrees_with_the_other(rows: list[tuple[str, str, str]], end: str) -> None:
    lines = [f"{predicate}({first},{second}{end}" for predicate, first, second in rows]
    for text in ("\n".join(lines), "\n".join(lines) + "\n"):
        if found := parse_plain_facts(text.encode()):
            others = parse_facts("\n".join(lines), "train")
            assert (found.atoms, list(found.lines)) == (others.atoms, list(others.lines))


def test_names_of_letters_and_digits_are_read_quickly_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "_CHUNK", 20)
    for line in ("r{0}(a,b{0}).", "r{0}(a,b{0})"):
        text = "\n".join(line.format(i) for i in range(30))
        found = parse_plain_facts(text.encode())
        assert found is not None
        assert found.atoms == tuple(NamedAtom(f"r{i}", "a", f"b{i}") for i in range(30))
    for text in (b"r(a,b).\nr(a,).\n", b"r(a,b).\nr(a,b)\n", b"r(a\0,b).\n", b""):
        assert parse_plain_facts(text) is None
