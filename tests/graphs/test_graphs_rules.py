import pytest
from hypothesis import given
from hypothesis import strategies as st
from render_graphs import render_rules

from kgverify import UserError
from kgverify.graphs.rules import parse_rules
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule, Source

X, Y, Z = Variable("X"), Variable("Y"), Variable("Z")
GRANDPARENT = (NamedAtom("h", X, Y), (NamedAtom("b1", X, Z), NamedAtom("b2", Z, Y)))
NAMES = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1)


def parse_one(
    text: str, constants: frozenset[str] = frozenset(), predicates: frozenset[str] = frozenset()
) -> NamedRule:
    (rule,) = parse_rules(text, "rules.txt", constants=constants, predicates=predicates).rules
    return rule


def terms(text: str, *constants: str) -> list[str | Variable]:
    rule = parse_one(text, frozenset(constants))
    return [term for atom in (rule.clause_head, *rule.body) for term in (atom.first, atom.second)]


@pytest.mark.parametrize(
    ("text", "name", "confidence"),
    [
        ("r1:0.5:b1(X,Z), b2(Z,Y) -> h(X,Y)", "r1", 0.5),
        ("r1:23498.5:b1(X,Z), b2(Z,Y) -> h(X,Y).", "r1", 23498.5),
        ("r1::b1(X,Z), b2(Z,Y) -> h(X,Y)", "r1", None),
        ("r1:b1(X,Z), b2(Z,Y) -> h(X,Y)", "r1", None),
        (":1e-3:b1(X,Z),b2(Z,Y)->h(X,Y)", "", 0.001),
        ("0.5:b1(X,Z), b2(Z,Y) -> h(X,Y)", "", 0.5),
        ("b1(X,Z), b2(Z,Y) -> h(X,Y)", "", None),
        ("h(X,Y) :- b1(X,Z), b2(Z,Y).", "", None),
        ("h(X,Y):-b1(X,Z),b2(Z,Y) % why", "", None),
        ("10\t5\t0.25\th(X,Y) <= b1(X,Z), b2(Z,Y)", "", 0.25),
    ],
)
def test_every_format_gives_the_same_clause(text: str, name: str, confidence: float | None) -> None:
    rule = parse_one("\n% comment\n" + text + "\r\n")
    assert (rule.clause_head, rule.body) == GRANDPARENT
    assert (rule.name, rule.confidence, rule.source) == (name, confidence, Source("rules.txt", 3))


@pytest.mark.parametrize("text", ["", "\n", "# no rules\n"])
def test_a_text_without_rules_has_none(text: str) -> None:
    assert parse_rules(text, "rules.txt") == ((), ("rules.txt: no rule in it",))


def test_a_lower_case_letter_is_a_variable_of_an_arrow_rule() -> None:
    assert terms("r0:0.7:brother(a,h1) -> son(a,b)") == [
        Variable("a"),
        Variable("b"),
        Variable("a"),
        Variable("h1"),
    ]


def test_a_long_upper_case_name_of_an_arrow_rule_is_a_constant_only_where_the_graph_has_it() -> None:
    assert terms("b(X,Germany) -> h(X,Q42)", "Germany") == [X, Variable("Q42"), X, "Germany"]
    with pytest.raises(UserError, match="found 'Germani'"):
        terms("b(X,Germani) -> h(X,Q42)", "Germany")


def test_a_known_or_quoted_name_of_an_arrow_rule_is_a_constant() -> None:
    assert terms("b(?who,germany) -> h(?who,'New York, NY')", "germany") == [
        Variable("?who"),
        "New York, NY",
        Variable("?who"),
        "germany",
    ]


def test_each_bare_underscore_is_a_different_variable() -> None:
    expected = [X, Variable("_2"), X, Variable("_1"), Variable("_3"), Variable("_1")]
    assert terms("h(X,_) :- b(X,_1), c(_,_1).") == expected
    assert terms("b(X,_1), c(_,_1) -> h(X,_)") == expected


def test_a_prolog_name_is_a_variable_by_its_first_sign_unless_quoted() -> None:
    assert terms("h(Who,'Germany') :- b(Who,germany), c(Who,5), d(_who,\"x y\").") == [
        Variable("Who"),
        "Germany",
        Variable("Who"),
        "germany",
        Variable("Who"),
        "5",
        Variable("_who"),
        "x y",
    ]


def test_a_prolog_rule_may_take_several_lines() -> None:
    first, second = parse_rules("h(X,Y) :-\n  b1(X,Z),\n  b2(Z,Y).\nh(X,Y) :- b(Y,X).\n", "rules.pl").rules
    assert (first.clause_head, first.body) == GRANDPARENT
    assert (first.source.line, second.source.line) == (1, 4)


def test_an_anyburl_name_is_a_variable_only_if_it_is_a_single_capital() -> None:
    assert terms("1\t1\t1\th(X,Germany) <= b(X,A1), c(A1,_)") == [
        X,
        "Germany",
        X,
        "A1",
        "A1",
        "_",
    ]


AMIE = """\
Using PCA confidence as pruning metric
Rule\tHead Coverage\tStd Confidence\tPCA Confidence
?a  rel  ?b   ?b  rel 2  ?c   => ?a  head  ?c\t0.1\t0,25\t0.5
?a b ?c => ?a head New_York\t1\t0.75\t1

Mining done in 3.1 seconds.
2 rules mined.
"""


def test_amie_rules_are_read_between_its_messages() -> None:
    first, second = parse_rules(AMIE, "amie.tsv").rules
    a, b, c = Variable("?a"), Variable("?b"), Variable("?c")
    assert (first.clause_head, first.body) == (
        NamedAtom("head", a, c),
        (NamedAtom("rel", a, b), NamedAtom("rel 2", b, c)),
    )
    assert (first.confidence, first.source) == (0.25, Source("amie.tsv", 3))
    assert second.clause_head == NamedAtom("head", a, "New_York")
    assert (second.confidence, second.source.line) == (0.75, 4)


@pytest.mark.parametrize(("metrics", "confidence"), [("", None), ("\t0.5", 0.5), ("\t0.1\t0.5\t0.9", 0.5)])
def test_the_confidence_of_an_amie_rule_without_header_is_its_second_metric_or_its_only_one(
    metrics: str, confidence: float | None
) -> None:
    assert parse_one(f"?a  b  ?c   => ?a  h  ?c{metrics}").confidence == confidence


def test_an_amie_header_with_other_columns_decides_which_metric_is_the_confidence() -> None:
    assert parse_one("Rule\tPCA Confidence\tStd Confidence\n?a  b  ?c   => ?a  h  ?c\t0.1\t0.7").confidence == 0.7


def test_a_predicate_with_colons_is_one_where_the_graph_has_it() -> None:
    known = frozenset({"foaf:knows", "ex:a:b"})
    assert parse_one("foaf:knows(X,Y) -> foaf:knows(Y,X)", predicates=known).body[0].predicate == "foaf:knows"
    named = parse_one("r1:foaf:knows(X,Y) -> foaf:knows(Y,X)", predicates=known)
    assert (named.name, named.body[0].predicate) == ("r1", "foaf:knows")
    full = parse_one("r1:2:ex:a:b(X,Y) -> foaf:knows(Y,X)")
    assert (full.name, full.confidence, full.body[0].predicate) == ("r1", 2.0, "ex:a:b")


def test_predicates_with_odd_signs_survive() -> None:
    predicate = "/people/person/place_of_birth./x-1"
    assert parse_one(f"{predicate}(X,Y) -> {predicate}(Y,X)").clause_head.predicate == predicate
    assert parse_one("h(X,Y) :- '00 (a), b'(X,Y).").body[0].predicate == "00 (a), b"


def test_parentheses_are_part_of_a_constant_that_the_graph_has() -> None:
    assert terms("h(X,washington_(state)) :- b(X,Y).", "washington_(state)")[1] == "washington_(state)"


VARIABLES = st.sampled_from([X, Y, Variable("?X"), Variable("a"), Variable("_1")])
ATOMS = st.builds(NamedAtom, NAMES, NAMES | VARIABLES, NAMES | VARIABLES)
RULES = st.builds(
    NamedRule,
    ATOMS,
    st.lists(ATOMS, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["", "r1", "7"]),
    st.none() | st.floats(0, 1e6),
)


def shape(rule: NamedRule) -> list[object]:
    numbers: dict[Variable, int] = {}
    return [
        (
            atom.predicate,
            *(numbers.setdefault(t, len(numbers)) if isinstance(t, Variable) else t for t in atom[1:]),
        )
        for atom in (rule.clause_head, *rule.body)
    ]


@given(st.lists(RULES))
def test_rules_with_arbitrary_names_survive_the_arrow_format(rules: list[NamedRule]) -> None:
    again = parse_rules(render_rules(rules), "rules.txt").rules
    assert [(r.name, r.confidence, shape(r)) for r in again] == [(r.name, r.confidence, shape(r)) for r in rules]


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            "h(X,Y).",
            "expected a rule in the arrow, Prolog, AnyBURL or AMIE format, found 'h(X,Y).'",
            "write b1(X,Z), b2(Z,Y) -> h(X,Y)",
        ),
        (
            "r1:0.5: -> h(X,Y)",
            "expected at least one body atom, found an empty body",
            "move the atom to the facts if it has no variables, or give the rule a body",
        ),
        (
            "r1:high:b(X,Y) -> h(X,Y)",
            "expected a number as confidence, found 'high'",
            "write a number such as 0.8",
        ),
        (
            "b(X,Y,Z) -> h(X,Y)",
            "expected two arguments, found 3 in 'b'",
            "write every atom with two arguments; quote a name that contains a comma",
        ),
        (
            "b(X,Y -> h(X,Y)",
            "expected a closing ')' after the arguments of 'b', found the end of the line",
            "close the parenthesis",
        ),
        (
            "b(X,Y)) -> h(X,Y)",
            "expected ',' or '->' after an atom, found ') -> h(X,Y)'",
            "write b1(X,Z), b2(Z,Y) -> h(X,Y)",
        ),
        (
            "b(X,Y) c(X,Y) -> h(X,Y)",
            "expected ',' or '->' after an atom, found 'c(X,Y) -> h(X,Y)'",
            "write b1(X,Z), b2(Z,Y) -> h(X,Y)",
        ),
        (
            "b(X,Y), -> h(X,Y)",
            "expected predicate(first,second), found '-> h(X,Y)'",
            "write every atom as predicate(first,second); quote a predicate with unusual characters",
        ),
        (
            "b(X,Y) ->",
            "expected predicate(first,second), found the end of the line",
            "write every atom as predicate(first,second)",
        ),
        (
            "b(X,Y) -> h(X,Y), c(X,Y)",
            "expected the end of the rule, found ', c(X,Y)'",
            "write one rule a line",
        ),
        (
            "b(X,germani) -> h(X,Y)",
            "expected a variable (X, ?x, x1) or a constant of the graph, found 'germani'",
            "did you mean 'germany'?",
        ),
        (
            "b(X,who) -> h(X,Y)",
            "expected a variable (X, ?x, x1) or a constant of the graph, found 'who'",
            "write ?who for a variable, 'who' in quotes for a constant that the graph lacks",
        ),
        (
            "h(X,Y) :- .",
            "expected at least one body atom, found an empty body",
            "move the atom to the facts if it has no variables, or give the rule a body",
        ),
        (
            "h(X,Y) :- b(f(X),Y).",
            "expected a constant or a variable, found the compound term 'f(X)'",
            "rewrite the rule without functions; quote the name if it is a constant",
        ),
        (
            "h(X,Y) :- b(X,Y); c(X,Y).",
            "expected ',' or the end of the rule after an atom, found '; c(X,Y).'",
            "write one clause for each alternative",
        ),
        (
            "3\t2\thigh\th(X,Y) <= b(X,Y)",
            "expected a number as confidence, found 'high'",
            "write a number such as 0.8",
        ),
        (
            "?a  b   => ?a  h  ?c",
            "expected atoms of three names, such as ?a  rel  ?b, found 2 names in '?a  b'",
            "write ?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c",
        ),
        (
            " => ?a  h  ?c",
            "expected at least one body atom, found an empty body",
            "move the atom to the facts if it has no variables, or give the rule a body",
        ),
        (
            "?a  b  ?c   => ?a  h  ?c  ?c  h  ?a",
            "expected one atom after '=>', found 2 in '?a  h  ?c  ?c  h  ?a'",
            "write ?a  rel  ?b   ?b  rel2  ?c   => ?a  head  ?c",
        ),
    ],
)
def test_an_invalid_rule_is_an_error_with_a_fix(text: str, message: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_rules("\n" + text + "\n", "rules.txt", constants=frozenset({"germany"}))
    error = caught.value
    if "a rule in the arrow" not in message:
        fix += "; or leave such rules out: --graph skip_rules=true"
    assert (error.where, error.message, error.fix) == ("rules.txt:2", message, fix)


def test_a_prolog_fact_among_rules_is_a_rule_without_body() -> None:
    with pytest.raises(UserError, match=r"^rules.pl:2: expected at least one body atom, found an empty body"):
        parse_rules("h(X,Y) :- b(X,Y).\nb(a,c).\n", "rules.pl")


def test_an_anyburl_line_without_its_numbers_is_an_error_among_valid_ones() -> None:
    with pytest.raises(UserError, match=r"^rules.txt:2: .*found 1 field in 'h\(X,Y\) <= b\(X,Y\)'"):
        parse_rules("1\t1\t1\th(X,Y) <= b(Y,X)\nh(X,Y) <= b(X,Y)\n", "rules.txt")


def test_an_amie_line_without_its_arrow_is_an_error_among_valid_ones() -> None:
    with pytest.raises(UserError, match=r"^rules.txt:2: "):
        parse_rules("?a  b  ?c   => ?a  h  ?c\n?a  b  ?c   ?a  h  ?c\n", "rules.txt")


def test_a_rule_with_more_atoms_than_a_trace_can_count_is_refused() -> None:
    with pytest.raises(UserError, match=r"rules\.txt:2: expected a body of at most 65,534 atoms"):
        parse_one("h(X,Y) :- b(X,Y).\nh(X,Y) :- " + ", ".join(["b(X,Y)"] * 65_535) + ".")
