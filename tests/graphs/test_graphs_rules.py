"""Files of rules as their tools write them: each is read as the tool means it, or refused with the line and a fix."""

import re
from pathlib import Path

import pytest
from graph_files import list_rules, read, refuse, render_rule
from hypothesis import given, settings
from hypothesis import strategies as st
from render_graphs import render_rules

import kgverify as kv

TRAIN = "germany\tb\tann\ngermany\tfoaf:knows\tann\nwashington_(state)\th\tann\nann\tex:a:b\tGermany\n"
PATH = "h(X,Y) <- b(X,Z), c(Z,Y)"


@pytest.mark.parametrize(
    ("text", "name", "confidence"),
    [
        ("r1:0.5:b(X,Z), c(Z,Y) -> h(X,Y)", "r1", 0.5),
        ("r1:b(X,Z), c(Z,Y) -> h(X,Y)", "r1", None),
        (":1e-3:b(X,Z),c(Z,Y)->h(X,Y)", "", 0.001),
        ("0.5:b(X,Z), c(Z,Y) -> h(X,Y)", "", 0.5),
        ("b(X,Z), c(Z,Y) -> h(X,Y)", "", None),
        ("0.9::b(X,Z), c(Z,Y) -> h(X,Y)", "", 0.9),
        ("h(X,Y) :- b(X,Z), c(Z,Y).", "", None),
        ("h(X,Y) :-\n  b(X,Z), % first\n\n  c(Z,Y).", "", None),
        ("h(X,Y)\n  :- b(X,Z)\n  ,  c(Z,Y)", "", None),
        ("/* h(X,Y) -> b(X,Y) */ h(X,Y) :- /* a */ b(X,Z), c(Z,Y). # end", "", None),
        ("'h'(X,Y):-\"b\"(X,Z),c( Z\t,Y ).", "", None),
        (":- dynamic h/2.\nh(X,Y) :- b(X,Z), c(Z,Y).", "", None),
        ("0.9::h(X,Y) :- b(X,Z), c(Z,Y).", "", 0.9),
        ("10\t5\t0.25\th(X,Y) <= b(X,Z), c(Z,Y)", "", 0.25),
        ("1\t2\t0.9\t'h'(X,Y) <= b(X,Z), c(Z,Y).", "", 0.9),
        ("h(X,Y) <= b(X,Z), c(Z,Y)", "", None),
        ("predicted\tsupport\tconfidence\trule\n3\t2\t0.4\th(X,Y) <= b(X,Z), c(Z,Y)", "", 0.4),
        ("rule\tconf\nh(X,Y) <= b(X,Z), c(Z,Y)\t0.4", "", 0.4),
        ("confidence\trule\n0.4\th(X,Y) <= b(X,Z), c(Z,Y)", "", 0.4),
    ],
)
def test_every_format_gives_the_same_clause(text: str, name: str, confidence: float | None) -> None:
    (rule,) = read({"train.txt": TRAIN, "rules.txt": f"\n% comment\n{text}\r\n"}).rules
    assert (render_rule(rule), rule.name, rule.confidence) == (PATH, name, confidence)
    assert rule.source.file == "rules.txt"


@pytest.mark.parametrize(
    ("metrics", "confidence"), [("", None), ("\t0.5", 0.5), ("\t0.1\t0.5\t0.9", 0.5), ("\t0.1\t0,25\t0.5", 0.25)]
)
def test_the_confidence_of_amie_is_its_second_metric_or_its_only_one(metrics: str, confidence: float | None) -> None:
    text = f"?a  b  ?c   => ?a  h  ?c{metrics}"
    (rule,) = read({"train.txt": TRAIN, "rules.txt": text}).rules
    assert (render_rule(rule), rule.confidence) == ("h(?a,?c) <- b(?a,?c)", confidence)


AMIE = """\
Using PCA confidence as pruning metric
Rule\tHead Coverage\tPCA Confidence\tStd Confidence
?a  rel  ?b   ?b  rel 2  ?c   => ?a  head  ?c\t0.1\t0.5\t0,25
?a b ?c => ?a head New_York\t1\t1\t0.75

Mining done in 3.1 seconds.
2 rules mined.
"""


def test_amie_rules_are_read_between_its_messages_by_the_titles_of_their_columns() -> None:
    first, second = read({"train.txt": TRAIN, "rules.txt": AMIE}).rules
    assert render_rule(first) == "head(?a,?c) <- rel(?a,?b), rel 2(?b,?c)"
    assert render_rule(second) == "head(?a,'New_York') <- b(?a,?c)"
    assert (first.confidence, first.source.line, second.confidence, second.source.line) == (0.25, 3, 0.75, 4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r0:0.7:b(a,h1) -> h(a,b)", ["h(a,b) <- b(a,h1)"]),
        ("b(X,Germany) -> h(X,Q42)", ["h(X,Q42) <- b(X,'Germany')"]),
        ("b(?who,germany) -> h(?who,'New York, NY')", ["h(?who,'New York, NY') <- b(?who,'germany')"]),
        ("h(X,_) :- b(X,_1), c(_,_1).", ["h(X,_2) <- b(X,_1), c(_3,_1)"]),
        (
            "h(Who,'Germany') :- b(Who,germany), c(Who,5), d(_who,\"x y\").",
            ["h(Who,'Germany') <- b(Who,'germany'), c(Who,'5'), d(_who,'x y')"],
        ),
        ("h(X,Y) :-\n  b(X,Z),\n  c(Z,Y).\nh(X,Y) :- b(Y,X).\n", [PATH, "h(X,Y) <- b(Y,X)"]),
        (
            "h(X,Y) :- b(X,Y). h(X,Y) :- c(X,Y).\nh(X,Y) :- d(X,Y).",
            ["h(X,Y) <- b(X,Y)", "h(X,Y) <- c(X,Y)", "h(X,Y) <- d(X,Y)"],
        ),
        ("1\t1\t1\th(X,Oslo) <= b(X,A1), c(A1,_)", ["h(X,'Oslo') <- b(X,'A1'), c('A1','_')"]),
        ("9\t5\t0.55\th(X,ann) <= \n3\t2\t0.66\th(X,Y) <= b(Y,X)\n", ["h(X,Y) <- b(Y,X)"]),
        ("4\t1\t0.25\th(X,me_myself_i) <= b(X,me_myself_i)\n", ["h(X,X) <- b(X,X)"]),
        ("%d  b  ?y   => %d  h  ?y\t0.5", ["h('%d',?y) <- b('%d',?y)"]),
        ("foaf:knows(X,Y) -> foaf:knows(Y,X)", ["foaf:knows(Y,X) <- foaf:knows(X,Y)"]),
        ("r1:foaf:knows(X,Y) -> foaf:knows(Y,X)", ["foaf:knows(Y,X) <- foaf:knows(X,Y)"]),
        ("r1:2:ex:a:b(X,Y) -> foaf:knows(Y,X)", ["foaf:knows(Y,X) <- ex:a:b(X,Y)"]),
        ("h(X,Y) :- '00 (a), b'(X,Y).", ["h(X,Y) <- 00 (a), b(X,Y)"]),
        ("% b -> c\n'a->b'(X,Y)\n :- b(X,'=> x').", ["a->b(X,Y) <- b(X,'=> x')"]),
        ("# a(X,Y) <= b(X,Y)\n#b(X,Y) <= c(X,Y)\nh(X,Y) <= c(X,Y)\n", ["h(X,Y) <- c(X,Y)"]),
        ("# no rules\n", []),
        (":- dynamic b/2.", []),
    ],
)
def test_rules_and_the_names_in_them_are_read_as_their_tool_means_them(text: str, expected: list[str]) -> None:
    assert list_rules(text, TRAIN) == expected


NAMES = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), min_size=1)
Variable = type(read({"train.txt": "a\tb\tc\n", "rules.txt": "b(X,Y) -> b(Y,X)\n"}).rules[0].clause_head.first)
VARIABLES = st.sampled_from([Variable("X"), Variable("Y"), Variable("?X"), Variable("a"), Variable("_1")])
ATOMS = st.builds(kv.NamedAtom, NAMES, NAMES | VARIABLES, NAMES | VARIABLES)
BODIES = st.lists(ATOMS, min_size=1, max_size=3).map(tuple)
RULES = st.builds(kv.NamedRule, ATOMS, BODIES, st.sampled_from(["", "r1", "7"]), st.none() | st.floats(0, 1e6))


def with_numbered_variables(rule: kv.NamedRule) -> kv.NamedRule:
    terms = [term for atom in rule.atoms for term in (atom.first, atom.second)]
    variables = dict.fromkeys(term for term in terms if isinstance(term, Variable))
    return rule.rename({name: Variable(f"v{i}") for i, name in enumerate(variables)})


@settings(max_examples=40)
@given(st.lists(RULES))
def test_rules_with_any_names_survive_the_arrow_format(rules: list[kv.NamedRule]) -> None:
    again = read({"train.txt": "a\tr\tb\n", "rules.txt": render_rules(rules)}).rules
    assert [(rule.name, rule.confidence) for rule in again] == [(rule.name, rule.confidence) for rule in rules]
    for found, expected in zip(map(with_numbered_variables, again), map(with_numbered_variables, rules), strict=True):
        assert found.atoms == expected.atoms


SHAPE_OF_ARROW = "write b1(X,Z), b2(Z,Y) -> h(X,Y)"
NO_BODY = "expected at least one body atom, found an empty body"


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("h(X,Y).", "a rule in the arrow, Prolog, AnyBURL or AMIE format, found 'h(X,Y).'", SHAPE_OF_ARROW),
        ("r1:0.5: -> h(X,Y)", NO_BODY, "move the atom to the facts if it has no variables, or give the rule a body"),
        (" => ?a  h  ?c", NO_BODY, "give the rule a body"),
        ("h(X,Y) :- b(X,Y).\nb(a,c).", NO_BODY, "move the atom to the facts"),
        ("r1:high:b(X,Y) -> h(X,Y)", "expected a number as confidence, found 'high'", "a number such as 0.8"),
        ("b(X,Y,Z) -> h(X,Y)", "expected two arguments, found 3 in 'b'", "quote a name that contains a comma"),
        ("b(X,Y -> h(X,Y)", "after the arguments of 'b', found the end of the line", "close the parenthesis"),
        ("b(X,Y)) -> h(X,Y)", "expected ',' or '->' after an atom, found ') -> h(X,Y)'", SHAPE_OF_ARROW),
        ("b(X,Y) ->", "expected predicate(first,second), found the end of the line", "write every atom as"),
        ("b(X,Y) -> h(X,Y), c(X,Y)", "expected the end of the rule, found ', c(X,Y)'", "write one rule a line"),
        ("b(X,german) -> h(X,Y)", "a constant of the graph, found 'german'", "did you mean 'germany'?"),
        ("b(X,who) -> h(X,Y)", "a constant of the graph, found 'who'", "write ?who for a variable, 'who' in quotes"),
        ("h(X,Y) :- b(f(X),Y).", "the compound term 'f(X)'", "rewrite the rule without functions"),
        ("h(X,Y) :- b(X,Y); c(X,Y).", "found '; c(X,Y).'", "write one clause for each alternative"),
        ("?a  b   => ?a  h  ?c", "expected atoms of three names, such as ?a  rel  ?b, found 2 names", "write ?a  rel"),
        ("?a  b  ?c   => ?a  h  ?c  ?c  h  ?a", "expected one atom after '=>', found 2", "write ?a  rel  ?b"),
        (
            "?a  b  ?c   => ?a  h  ?c\n?a  b  ?c   ?a  h  ?c",
            "found '?a  b  ?c   ?a  h  ?c'",
            "write ?a  rel  ?b   ?b  rel2  ?c   =>",
        ),
        ("?a  b  ?b   => ?a  h  ?b\n/* c */ ?a  c  ?b   => ?a  h  ?b", "the name '/* c */ ?a'", "write ?a  rel"),
        ("?a  b  ?b  ?a  !=  ?b   => ?a  h  ?b", "the condition '!='", "leave the condition out"),
        (
            "1\t1\t1\th(X,Y) <= b(Y,X)\nh(X,Y) <= b(X,Y)",
            r"found 1 field in 'h(X,Y) <= b(X,Y)'",
            "four fields by single tabs",
        ),
        (
            "0.4\th(X,Y) <= b(Y,X)",
            "found 2 fields in '0.4\\th(X,Y)",
            "name other columns, among them the confidence, in a title row",
        ),
        (r"h(X,Y) :- b(X,Y), \+ c(X,Y).", "the negation", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), not c(X,Y).", "the negation 'not'", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), not(c(X,Y)).", "the negation 'not(...)'", "leave the negated atom out"),
        ("h(X,Y) :- b(X,Y), !.", "a cut or a negation", "leave the negated atom out"),
        ("h(X,Y) :- -b(X,Y).", "found '-b', which no triple has", "quote the predicate"),
        (r"h(X,Y) :- b(X,Y), X \= Y.", "found 'X ", "leave the condition out"),
        ("h(X,Y) :- b(X,Z), Y is Z + 1.", "found 'Y is Z + 1.'", "leave the condition out"),
        ("h(X,Y) :- b(X,[Y|Z]).", "found '[Y|Z]'", "neither lists nor arithmetic"),
        ("h(X,Y) :- b(X,New York).", "found 'New York'", "quote the name"),
        ("r1:0.5:h(X,Y) :- b(X,Y).", "found 'r1:0.5:h', which no triple has", "before a rule with an arrow"),
        ("has part(X,Y) :- b(X,Y).", "found 'has part', which no triple has", "quote the predicate"),
        ("P::h(X,Y) :- b(X,Y).", "expected a number such as 0.9", "write the weight as a number"),
        ("h(X,Y) :- b(X,Y).\n:- use_module(other).", "found ':- use_module(other).'", "leave the directive out"),
        ("b(X,Y) -> h(X,Z\u200b)", "found 'Z", "in quotes for a constant"),
        ("h(X,Y) :- b(X,Y).\n#1(X,Y) :- #2(X,Y).", "the template '#1(X,Y)", "replace each #1"),
        ("b(X,Y) -> h(X,Y)\t0.9", "found '0.9'", "write a weight before its clause"),
        ("r1:0.9::b(X,Y) -> h(X,Y)", "found ':b', which no triple has", "as in r1:0.8:b(X,Y)"),
        ("r1:0.5:0.9 b(X,Y) -> h(X,Y)", "expected one confidence, found two", "leave one of them out"),
        ("b(X,Y) & c(X,Y) -> h(X,Y)", "found '& c(X,Y) -> h(X,Y)'", "write b1(X,Z)"),
        ("1\t2\t0.5\th(me_myself_i,me_myself_i) <= b(X,A)", "'me_myself_i'", "write the other argument of the atom"),
        (
            "h(X,Y) :- b(X,Y).\nh(X,Y) :- " + ", ".join(["b(X,Y)"] * 65_535) + ".",
            "a body of at most 65,534 atoms",
            "divide the rule",
        ),
        ("#a(X,Y) <= h(X,Y)", "expected a rule or a comment", "write a blank after the sign of a comment"),
        ("#e  in  ?b   => ?b  h  #e", "expected a rule or a comment", "write a blank after the sign of a comment"),
        (
            "?a  b  ?c   => ?a  in  italy,0.5,0.25,?a",
            "then metrics after tabs, found",
            "separate the rule and its metrics by tabs",
        ),
        (
            "?a  b  ?c   => ?c  b  ?a;0.5;0.25",
            "then metrics after tabs, found",
            "separate the rule and its metrics by tabs",
        ),
        ("4,2,0.5,h(X,Y) <= b(Y,X)", "found '4,2,0.5,h(X,Y)", "separate the columns by tabs rather than by commas"),
        ("0 1\n0 2 3 0.9", "RNNLogic, RulE, NCRL", "b1(X,Z), b2(Z,Y) -> h(X,Y)"),
        ("0.98 (0.2)\th <-- b, b", "RNNLogic, RulE, NCRL", "b1(X,Z), b2(Z,Y) -> h(X,Y)"),
    ],
)
def test_a_line_that_is_not_a_definite_clause_is_refused_with_a_fix(text: str, message: str, fix: str) -> None:
    error = refuse({"train.txt": "germany\tin\titaly\nw\t#a\ty\n#e\tin\titaly\n", "rules.txt": f"{text}\n"})
    assert error.where.startswith("rules.txt:")
    if not text.startswith(("0 1", "Rule")):
        assert error.where == f"rules.txt:{text.count(chr(10)) + 1}"
    assert message in error.message
    assert fix in error.fix


BAD = {
    "anyburl": "1\t1\t1\th(X,Y) <= h(Y,X)\n1\t1\t1\th(X,Y,Z) <= h(Y,X)\n1\t1\t1\th(X,X) <= b(X,X)\n",
    "amie": "?a  h  ?b   => ?b  h  ?a\n?a  h   => ?a  h  ?b\n?a  b  ?a   => ?a  h  ?a\n",
    "arrow": "h(X,Y) -> h(Y,X)\nh(X,Oslo) -> h(Y,X)\nb(X,X) -> h(X,X)\n",
    "Prolog": "h(X,Y) :- h(Y,X).\nh(X,Y) :- h(X,Z),\n  \\+ b(X,Z), b(Z,Y).\nh(X,X) :- b(X,X).\n",
    "ProbLog": "h(X,Y) :- h(Y,X).\nh(ann,bob).\n0.5::h(X,X) :- b(X,X).\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_rules_that_cannot_be_used_are_left_out_on_request_counted_and_listed(text: str) -> None:
    files = {"train.txt": TRAIN, "rules": text}
    assert "skip_rules=true" in refuse(files).fix
    graph = read(files, skip_rules=True)
    assert [(rule.clause_head.predicate, rule.body[0].predicate) for rule in graph.rules] == [("h", "h"), ("h", "b")]
    assert "rules: --graph skip_rules=true left out 1 rule, and kept 2 [KG413]" in graph.choices
    assert any(re.match(r"rules:[23]: left out", warning) for warning in graph.warnings)


@pytest.mark.parametrize(
    ("text", "kept", "last"),
    [
        ("h(X,Y) :-\n b(X,Y),\n not\n h(Y,X) :- b(Y,X).\nSize: 6\nh(Y,X) :- h(X,Y).\n", 6, None),
        ("h(X,Y) :- b(X,Z), % One.\n X \\= Y,\n h(Z,Y)\nb(X,Y) :- h(X,Y).\nh(Y,X) :- h(X,Y).\n", 5, 4),
    ],
)
def test_the_rest_of_a_clause_that_is_left_out_is_no_rule(text: str, kept: int, last: int | None) -> None:
    graph = read({"train.txt": TRAIN, "rules.pl": text}, skip_rules=True)
    assert [rule.source.line for rule in graph.rules] == [kept]
    if last is not None:
        assert any(f"left out up to line {last}, where a clause ends" in warning for warning in graph.warnings)


def test_a_variable_without_a_name_differs_from_the_named_variables() -> None:
    assert list_rules("h(X,_1) :- b(X,_).") == ["h(X,_1) <- b(X,_2)"]


MISTAKES = {
    "# no rules\n": ": no rule in it",
    "h(X,Y) :- b(X,Y).\n0.9::h(X,Y) :- b(Y,X).\n0.8 h(X,Y) :- b(Y,Y).\n": (
        ":2: 2 weights, the first on this line; weights play no part in proving"
    ),
    "r1:1:b(X,Y), hh(Y,Z) -> h(X,Z)\n": (
        ":1: rule 'r1' can never apply: no fact and no rule's head has predicate 'hh'"
    ),
    "aunt(X,Y) -> h(X,Y)\n": ":1: the rule can never apply: no fact and no rule's head has predicate 'aunt'",
    "b(X,Y) -> ant(X,Y)\nb(X,Y) -> helper(X,Y)\nhelper(X,Y) -> aunt(X,Y)": (
        ":1: nothing asks for the rule's head: no triple and no rule's body has predicate 'ant'; did you mean 'aunt'?"
    ),
    "h(X,'zoe') :- b(X,'zoe').\n": ":1: no triple and no domain has the constant 'zoe': it is no candidate",
    "h(ROME,X) :- b(ROME,X).": ":1: 'ROME' is a variable; for the constant 'Rome', write it in quotes",
    "h(X,Y) :- b(X,Y).\nh(X,Q99) :- b(X,Y).\nh(Q7,Q7) :- b(X,Y).\nh(X,Y) :- b(X,Y), h(X,_z1).\n": (
        ":2: 2 rules with a variable that occurs once, or only in the head, such as 'Q99'"
    ),
}


@pytest.mark.parametrize(("rules", "expected"), MISTAKES.items())
def test_likely_mistakes_in_rules_are_warnings(rules: str, expected: str) -> None:
    train, test = "ann\tb\tRome\nann\th\tbob\n", "bob\taunt\tRome\n"
    (warning,) = read({"train.txt": train, "test.txt": test, "rules.pl": rules}).warnings
    assert warning.startswith(f"rules.pl{expected}")


def test_of_many_warnings_about_rules_the_first_are_listed() -> None:
    rules = "".join(f"b(X,Y), z{i}(X,Y) -> b(X,Y)\n" for i in range(30))
    *listed, last = read({"train.txt": "a\tb\tc\n", "rules.txt": rules}).warnings
    assert len(listed) == 20
    assert last == "rules.txt: the same of 10 more predicates [KG405]"


# Names of many kinds, as each tool writes them.

SHAPES = {
    "Prolog": "h(X,{0}) :- b(X,{0}).\n",
    "ProbLog": "0.7::h(X,{0}) :- b(X,{0}).\n",
    "arrow": "r1:0.8:b(X,{0}) -> h(X,{0})\n",
    "AnyBURL": "9\t5\t0.55\th(X,{0}) <= b(X,{0})\n",
    "PyClause": "h(X,{0}) <= b(X,{0})\n",
    "AMIE": "Rule\tHead Coverage\tStd Confidence\n?s  b  {0}   => ?s  h  {0}\t0.5\t0.25\n",
}
COLUMNS = (("Prolog", "ProbLog"), ("arrow",), ("AnyBURL", "PyClause"), ("AMIE",))
"""The tools of each column of the page's table."""
PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")
ROWS = [
    (name, [cell.strip() for cell in line.strip("|").split("|")][1:])
    for line in PAGE.partition("## What a name is")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| `") and "<a>" not in line
    for name in re.findall("`([^`]+)`", line.split("|")[1])
]
OTHER_NAMES = ["A", "b", "1990-01-01", '"Paris"@en', "New York", "Washington,_D.C.", "<http://e.org/a>"]
OTHER_NAMES += ["O'Brien", "100%", "#tag", "B-52", "a=>b", "me_myself_i", "C:\\temp"]
MEANINGS = {
    "constant": ("constant", "constant"),
    "variable": ("variable", "refused"),
    "refused: quote it": ("refused", "refused"),
    "known": ("refused", "constant"),
    "the constant in the quotes": ("inner", "inner"),
    "a name with quotes": ("constant", "constant"),
    "the other argument of its atom": ("variable", "refused"),
}
"""The meaning of a name that the graph lacks, and of one that it has."""


def read_name(tool: str, name: str, known: str, **options: str) -> list[object] | kv.UserError:
    """Return the terms of a rule with a name in a graph that has another one."""
    train = f"ann\tb\t{known}\nbob\th\t{known}\ncid\tb\tann\n"
    try:
        (rule,) = read({"train.txt": train, "rules": SHAPES[tool].format(name)}, **options).rules
    except kv.UserError as error:
        return error
    return [term for atom in rule.atoms for term in (atom.first, atom.second)]


def describe(terms: list[object] | kv.UserError, name: str) -> str:
    if isinstance(terms, kv.UserError):
        return "refused"
    if not isinstance(terms[1], str):
        return "variable"
    return {name.strip("'\""): "inner", name: "constant"}.get(terms[1], "other")


@pytest.mark.parametrize(("name", "cells"), ROWS)
def test_the_table_of_names_says_what_happens(name: str, cells: list[str]) -> None:
    for tools, cell in zip(COLUMNS, cells, strict=True):
        if cell.startswith("variable if it begins with a capital"):
            cell = "variable" if name[0].isupper() else "constant"
        for tool in tools if cell in MEANINGS else ():
            unknown = describe(read_name(tool, name, "oslo"), name)
            known = describe(read_name(tool, name, name), name) if name[0] not in "'\"" else unknown
            assert (unknown, known) == MEANINGS[cell], (tool, name, cell)


@pytest.mark.parametrize("name", [*OTHER_NAMES, *(name for name, _ in ROWS)])
def test_a_constant_of_the_graph_is_read_as_itself_or_refused(name: str) -> None:
    for tool in SHAPES:
        terms = read_name(tool, name, name)
        if isinstance(terms, kv.UserError):
            assert terms.fix
            assert terms.where.startswith(("rules:", "train.txt:")), terms
        else:
            first, second, third, fourth = terms
            assert not isinstance(first, str)
            assert (first, second) == (third, fourth)
            assert second == name


@pytest.mark.parametrize("tool", ["Prolog", "ProbLog"])
def test_a_capital_in_prolog_that_the_graph_has_is_settled_by_an_option_that_the_warnings_repeat(tool: str) -> None:
    files = {"train.txt": "ann\tb\tQ46\nbob\th\tQ46\n", "rules": SHAPES[tool].format("Q46")}
    refused = refuse(files)
    assert "a variable in this format and a constant of the graph" in refused.message
    assert "rule_variables" in refused.fix
    for option, rule in (("graph", "h(X,'Q46') <- b(X,'Q46')"), ("format", "h(X,Q46) <- b(X,Q46)")):
        graph = read(files, rule_variables=option)
        assert [render_rule(each) for each in graph.rules] == [rule]
        (choice,) = graph.choices
        assert f"rule_variables={option}" in choice
    quoted = read(files | {"rules": SHAPES[tool].format("'Q46'")})
    assert render_rule(quoted.rules[0]) == "h(X,'Q46') <- b(X,'Q46')"


def test_a_name_that_stays_a_variable_beside_a_constant_is_listed() -> None:
    files = {"train.txt": "a\tin\tQ46\na\tcap\tQ46\n", "rules.pl": "in(X,Q99) :- cap(X,Q46).\n" * 2}
    warnings = read(files, rule_variables="graph").warnings
    assert any("read as variables beside such constants: 1, such as 'Q99'" in warning for warning in warnings)


@pytest.mark.parametrize("name", ["Q46", "A1", "Rome", "x"])
def test_a_name_that_the_graph_lacks_is_a_constant_of_anyburl_with_a_warning(name: str) -> None:
    graph = read({"train.txt": "a\tb\trome\na\th\ta\n", "rules": SHAPES["AnyBURL"].format(name)})
    assert render_rule(graph.rules[0]) == f"h(X,'{name}') <- b(X,'{name}')"
    assert any(f"has the constant '{name}': it is no candidate" in warning for warning in graph.warnings)


def test_a_number_in_a_rule_may_not_be_an_id_of_the_dictionaries_of_the_graph() -> None:
    ids = {
        "train2id.txt": "2\n0 1 0\n1 2 0\n",
        "entity2id.txt": "3\nann\t0\nbob\t1\n1990\t2\n",
        "relation2id.txt": "1\nr\t0\n",
    }
    assert read(ids | {"rules.txt": "r(X,1990) :- r(X,bob).\n"}).rules[0].clause_head.second == "1990"
    for text in ("r(X,1) :- r(X,bob).\n", "r(X,bob) :- 0(X,bob).\n"):
        assert "which may be an id" in refuse(ids | {"rules.txt": text}).message


def test_amie_may_write_the_names_of_the_triples_without_angle_brackets() -> None:
    train = "<ann>\t<likes>\t<oslo>\n<bob>\t<knows>\t<oslo>\n"
    rules = "?a  likes  oslo   => ?a  knows  oslo\n?a  <likes>  ?b   => ?a  knows  ?b\n"
    graph = read({"train.tsv": train, "rules.txt": rules})
    assert list(map(render_rule, graph.rules)) == [
        "<knows>(?a,'<oslo>') <- <likes>(?a,'<oslo>')",
        "<knows>(?a,?b) <- <likes>(?a,?b)",
    ]
    assert any("names read with or without angle brackets" in warning for warning in graph.warnings)
