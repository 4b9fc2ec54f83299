"""Facts and rules as other programs write them: understood, or refused with the line and a fix, never read otherwise."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kgverify as kv
from kgverify import UserError
from kgverify.graphs import grammar
from kgverify.graphs.rules import parse_rules
from kgverify.graphs.triples import parse_facts


def facts(text: str) -> list[tuple[str, ...]]:
    return [tuple(map(str, atom)) for atom in parse_facts(text, "train.pl").atoms]


def fact_warnings(text: str) -> tuple[str, ...]:
    return parse_facts(text, "train.pl").warnings


def rules(text: str) -> list[str]:
    return [str(rule) for rule in parse_rules(text, "rules.pl").rules]


def refusal(text: str, *, of_facts: bool = False) -> UserError:
    with pytest.raises(UserError) as caught:
        facts(text) if of_facts else rules(text)
    assert caught.value.fix
    return caught.value


# What the plain patterns read, the others read in the same way.

SIGNS = [
    "p",
    "q r",
    "a",
    "X",
    "0.9",
    "1",
    "::",
    ":",
    "-",
    ".",
    "(",
    ")",
    ",",
    "'",
    '"',
    "\\",
    "%",
    "#",
    "/*",
    "*/",
    "/",
    "not ",
    "~",
    "?-",
    "?",
]
SIGNS += [":-", "->", "<=", "<", ">", "=", ";", "!", " ", "  ", "\t", "\u00a0", "é", "_"]
NAMES = st.lists(st.sampled_from(SIGNS), min_size=1, max_size=3).map("".join)
ATOM_TEXTS = st.builds("{}({},{})".format, NAMES, NAMES, NAMES)
ENDS = st.sampled_from(["", ".", ". ", " . "])


def read(text: str, *, of_facts: bool) -> object:
    try:
        return parse_facts(text, "f") if of_facts else parse_rules(text, "f")
    except UserError as error:
        return str(error)


def read_slowly(text: str, *, of_facts: bool) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar, "_PLAIN_FACT", re.compile("(?!)"))
        patch.setattr(grammar, "_PLAIN_ATOM", re.compile("(?!)"))
        return read(text, of_facts=of_facts)


@given(st.lists(st.builds("{}{}".format, ATOM_TEXTS, ENDS), min_size=1, max_size=3).map("".join))
@example("?- p(a,b).")
@example("not p(a,b)")
@example("0.5 p(a,b)")
@example("p(1..2,b)")
@example("p(a/*,b).p(a,c).*/,d).")
@example("0.9::'p'(a,\"b\").p(a,b)")
def test_a_plain_line_of_facts_is_read_as_by_the_grammar(line: str) -> None:
    assert read(line, of_facts=True) == read_slowly(line, of_facts=True)


@given(st.lists(ATOM_TEXTS, min_size=2, max_size=3), st.sampled_from(["", ".", " . "]))
def test_a_plain_rule_is_read_as_by_the_grammar(atoms: list[str], end: str) -> None:
    first, *others = atoms
    body = ", ".join(others)
    for text in (f"{first} :- {body}{end}", f"{body} -> {first}{end}", f"1\t1\t1\t{first} <= {body}{end}"):
        assert read(text, of_facts=False) == read_slowly(text, of_facts=False)


def test_clauses_with_directives_weights_quotes_and_comments_are_read(tmp_path: Path) -> None:
    tmp_path.joinpath("train.pl").write_text(":- dynamic parent/2.\n0.9::parent(ann,bob). parent(bob,'Carl Jr.').\n")
    tmp_path.joinpath("test.pl").write_text("grandparent(ann,'Carl Jr.').\n")
    tmp_path.joinpath("rules.pl").write_text("grandparent(X,Y) :- parent(X,Z), % first\n  parent(Z,Y).\n")
    graph = kv.load_graph(tmp_path)
    assert [str(graph.train[1]), str(graph.rules[0]), *graph.warnings] == [
        "NamedAtom(predicate='parent', first='bob', second='Carl Jr.')",
        "grandparent(X, Y) <- parent(X, Z), parent(Z, Y)",
        "train.pl:2: 1 weight, the first on this line; weights play no part in proving",
        "train.pl:1: skipped 1 directive, the first ':- dynamic parent/2.'",
    ]


# Facts.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r(a,b). r(b,c).\nr(c,d)", ["r a b", "r b c", "r c d"]),
        ("r(a,b).r(b,c).", ["r a b", "r b c"]),
        ("0.9::r(a,b). 0.5 r(b,c)\n.25 :: 'r'(c,d).", ["r a b", "r b c", "r c d"]),
        (":- dynamic r/2, s/2.\n:- discontiguous(r/2).\n:- module(m, [r/2]).\nr(a,b).", ["r a b"]),
        ("/* r(x,y).\n r(y,z). */\nr(a,b). /* r(c,d). */ % r(e,f).", ["r a b"]),
        ("r(a,\n  b).\nr(\n b,\n c).", ["r a b", "r b c"]),
        ("r(a /* first */, b).", ["r a b"]),
        ("has part(côte d'or,x#y). http://a.org/b#c(%d,'[e]')", ["has part|côte d'or|x#y", "http://a.org/b#c|%d|[e]"]),
        ("r(washington_(state),a).", ["r|washington_(state)|a"]),
        ("not(a,b).", ["not a b"]),
    ],
)  # fmt: skip
def test_facts_are_read_as_prolog_has_them(text: str, expected: list[str]) -> None:
    assert facts(text) == [tuple(each.split("|" if "|" in each else " ")) for each in expected]


def test_left_out_weights_and_directives_are_one_warning_each() -> None:
    assert fact_warnings("r(a,b).\n0.9::r(a,c).\n:- dynamic r/2.\n0.8::r(a,d).\n:- table r/2.") == (
        "train.pl:2: 2 weights, the first on this line; weights play no part in proving",
        "train.pl:3: skipped 2 directives, the first ':- dynamic r/2.'",
    )


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("r(a,b).\nh(X,Y) :- b(X,Y).", 2, "found ':- b(X,Y).'"),
        ("r(a,b).\n\\+ r(a,b).", 2, "the negation"),
        ("not r(a,b).", 1, "the negation 'not'"),
        ("~r(a,b).", 1, "the negation '~'"),
        ("r(a,b); r(c,d).", 1, "found '; r(c,d).'"),
        (":- [other].\nr(a,b).", 1, "found ':- [other].'"),
        (":- dynamic r/2\nr(a,b).", 1, "expected a fact, a rule or a declaration"),
        ("?- r(a,b).", 1, "expected a fact, a rule or a declaration"),
        ("r(a,b).\n/* never\nclosed", 2, "expected '*/' after '/*'"),
        ("2 door car(a,b).", 1, "or a weight from 0 to 1 before it"),
        ("1/3::r(a,b).", 1, "expected a number such as 0.9 before '::'"),
        ("P::r(a,b).", 1, "expected a number such as 0.9 before '::'"),
        ("t(_)::r(a,b).", 1, "found '::r(a,b).'"),
        ("r(f(a,b),c).", 1, "the compound term 'f(a,b)'"),
        (r"r('a\tb',c).", 1, "expected a backslash before a quote or another backslash"),
        ("r('',c).", 1, "an empty name in quotes"),
        ("r(a,b)\n.r(b,c).", 2, "found '.r(b,c).'"),
        ("r(a,b", 1, "a closing ')'"),
        ("r(a,", 1, "a closing ')'"),
        ("r(" + "a," * 500 + "b).", 1, "found more than 100"),
        ("r(a" + "(" * 30 + ")" * 30 + ",b).", 1, "a closing ')'"),
    ],
)
def test_what_is_no_fact_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    error = refusal(text, of_facts=True)
    assert error.where == f"train.pl:{line}"
    assert message in error.message


# Rules.


@pytest.mark.parametrize(
    "text",
    [
        "h(X,Y) :- b(X,Z), c(Z,Y).",
        "h(X,Y) :-\n  b(X,Z), % first\n\n  c(Z,Y).",
        "h(X,Y)\n  :- b(X,Z)\n  ,  c(Z,Y)",
        "/* h(X,Y) -> b(X,Y) */ h(X,Y) :- /* a */ b(X,Z), c(Z,Y). # end",
        "'h'(X,Y):-\"b\"(X,Z),c( Z\t,Y ).",
        ":- dynamic h/2.\nh(X,Y) :- b(X,Z), c(Z,Y).",
        "0.9::h(X,Y) :- b(X,Z), c(Z,Y).",
        "0.9 h(X,Y) :- b(X,Z), c(Z,Y).",
        "0.9\th(X,Y) :- b(X,Z), c(Z,Y)",
        "0.9::b(X,Z), c(Z,Y) -> h(X,Y)",
        "0.9\tb(X,Z), c(Z,Y) -> h(X,Y). % end",
        "/* rules */\nb(X,Z), c(Z,Y) -> h(X,Y)",
        "1\t2\t0.9\t'h'(X,Y) <= b(X,Z), c(Z,Y).",
    ],
)
def test_a_rule_is_read_as_other_programs_write_it(text: str) -> None:
    (rule,) = parse_rules(text, "rules.pl").rules
    assert str(rule) == rules("h(X,Y) :- b(X,Z), c(Z,Y).")[0]
    assert rule.confidence == (0.9 if "0.9" in text else None)


def test_several_rules_may_be_on_a_line() -> None:
    assert rules("h(X,Y) :- b(X,Y). h(X,Y) :- c(X,Y).\nh(X,Y) :- d(X,Y).") == [
        "h(X, Y) <- b(X, Y)", "h(X, Y) <- c(X, Y)", "h(X, Y) <- d(X, Y)",
    ]  # fmt: skip


def test_the_sign_of_another_format_in_quotes_or_comments_does_not_matter() -> None:
    assert len(rules("% b -> c\n'a->b'(X,Y)\n :- b(X,'=> x').")) == 1


def test_a_predicate_may_be_an_address() -> None:
    assert rules("https://a.org/b#c(X,Y) -> h(X,Y)") == ["h(X, Y) <- https://a.org/b#c(X, Y)"]


def test_a_constant_of_amie_may_begin_as_a_comment_does() -> None:
    assert rules("%d  b  ?y   => %d  h  ?y\t0.5") == ["h(%d, ?y) <- b(%d, ?y)"]


def test_a_file_of_directives_alone_has_no_rule() -> None:
    assert parse_rules(":- dynamic b/2.", "rules.pl").warnings[1] == "rules.pl: no rule in it"


def test_weights_of_prolog_rules_are_one_warning() -> None:
    text = "h(X,Y) :- b(X,Y).\n0.9::h(X,Y) :- c(X,Y).\n0.8 h(X,Y) :- d(X,Y).\n"
    assert parse_rules(text, "rules.pl").warnings == (
        "rules.pl:2: 2 weights, the first on this line; weights play no part in proving",
    )


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (r"h(X,Y) :- b(X,Y), \+ c(X,Y).", "the negation", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), not c(X,Y).", "the negation 'not'", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), not(c(X,Y)).", "the negation 'not(...)'", "leave the negated atom out"),
        ("~b(X,Y) -> h(X,Y)", "the negation '~'", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), !.", "a cut or a negation", "leave the negated atom out"),
        ("h(X,Y) :- -b(X,Y).", "found '-b', which no triple has", "quote the predicate"),
        ("h(X,Y) :- b(X,Y) ; c(X,Y).", "found '; c(X,Y).'", "one clause for each alternative"),
        ("h(X,Y) ; g(X,Y) :- b(X,Y).", "found '; g(X,Y)", "one clause for each alternative"),
        (r"h(X,Y) :- b(X,Y), X \= Y.", "found 'X ", "leave the condition out"),
        ("h(X,Y) :- b(X,Z), Y is Z + 1.", "found 'Y is Z + 1.'", "leave the condition out"),
        ("h(X,Y) :- b(X,Y+1).", "found 'Y+1'", "neither lists nor arithmetic"),
        ("h(X,Y) :- b(X,[Y|Z]).", "found '[Y|Z]'", "neither lists nor arithmetic"),
        ("h(X,Y) :- b(X,New York).", "found 'New York'", "quote the name"),
        ("h(?x,?y) :- b(?x,?y).", "found '?x'", "quote the name"),
        ("r1:0.5:h(X,Y) :- b(X,Y).", "found 'r1:0.5:h', which no triple has", "before a rule with an arrow"),
        ("has part(X,Y) :- b(X,Y).", "found 'has part', which no triple has", "quote the predicate"),
        ("P::h(X,Y) :- b(X,Y).", "expected a number such as 0.9", "write the weight as a number"),
        ("h(X,Y) :- b(X,Y).\n:- use_module(other).", "found ':- use_module(other).'", "leave the directive out"),
        ("b(X,Y) -> h(X,Z\u200b)", "found 'Z", "in quotes for a constant"),
        ("h(X,Y) :- b(X,Y).\n#1(X,Y) :- #2(X,Y).", "the template '#1(X,Y)", "replace each #1"),
        ("r1;0.5;b(X,Y) -> h(X,Y)", "found 'r1;0.5;b', which no triple has", "quote the predicate"),
        ("?a  b  ?b  ?a  !=  ?b   => ?a  h  ?b", "the condition '!='", "leave the condition out"),
        ("b(X,Y) -> h(X,Y)\t0.9", "found '0.9'", "write a weight before its clause"),
        ("h(X,Y) :- b(X,Y). 0.9", "found '0.9'", "write a weight before its clause"),
        ("h(X,Y) :- NOT b(X,Y).", "the negation 'NOT'", "leave the negated atom out"),
        ("r1:0.9::b(X,Y) -> h(X,Y)", "found ':b', which no triple has", "as in r1:0.8:b(X,Y)"),
        ("?a  b  ?b   => ?a  h  ?b\n/* c */ ?a  c  ?b   => ?a  h  ?b", "found the name '/* c */ ?a'", "write ?a  rel"),
        ("r1:0.5:0.9 b(X,Y) -> h(X,Y)", "expected one confidence, found two", "leave one of them out"),
        ("b(X,Y) & c(X,Y) -> h(X,Y)", "found '& c(X,Y) -> h(X,Y)'", "write b1(X,Z)"),
        (
            "1\t2\t0.5\th(me_myself_i,me_myself_i) <= b(X,A)",
            "found 'me_myself_i'",
            "write the other argument of the atom twice",
        ),
    ],
)
def test_what_is_no_definite_clause_is_refused_with_a_fix(text: str, message: str, fix: str) -> None:
    error = refusal(text)
    assert error.where == f"rules.pl:{text.count(chr(10)) + 1}"
    assert message in error.message
    assert fix in error.fix
