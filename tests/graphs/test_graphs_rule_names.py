"""Names of many kinds in rules as the tools write them: each is read as the tool means it, or refused with a way out."""

import re
from pathlib import Path

import pytest

from kgverify import KnowledgeGraph, UserError, load_graph
from kgverify.program.atoms import Variable

NAMES = (
    "rome",
    "Rome",
    "Q46",
    "C0030193",
    "P04637",
    "A",
    "b",
    "h1",
    "1990",
    "-5",
    "3.14",
    "1990-01-01",
    "?x",
    "_x",
    "_",
    "_:b1",
    "'New York'",
    '"Paris"@en',
    "New York",
    "Washington,_D.C.",
    "Alien_(film)",
    "<http://e.org/a>",
    "/m/0abc",
    "wd:Q46",
    "Évian",
    "1..3",
    "O'Brien",
    "100%",
    "#tag",
    "B-52",
    "a=>b",
    "me_myself_i",
    "C:\\temp",
)
SHAPES = {
    "AnyBURL": "9\t5\t0.55\th(X,{0}) <= b(X,{0})\n",
    "PyClause": "h(X,{0}) <= b(X,{0})\n",
    "AMIE": "Rule\tHead Coverage\tStd Confidence\n?s  b  {0}   => ?s  h  {0}\t0.5\t0.25\n",
    "arrow": "r1:0.8:b(X,{0}) -> h(X,{0})\n",
    "Prolog": "h(X,{0}) :- b(X,{0}).\n",
    "ProbLog": "0.7::h(X,{0}) :- b(X,{0}).\n",
    "Popper": "h(V0,{0}):- b(V0,{0}).\n",
    "RNNLogic, RulE": "0 1\n0 2 3 0.9\n",
    "NCRL": "0.98 (0.2)\th <-- b, b\n",
}
PROLOG = ("Prolog", "ProbLog", "Popper")


def read(folder: Path, name: str, rules: str, **options: str) -> KnowledgeGraph | UserError:
    folder.joinpath("rules").write_text(rules, encoding="utf-8")
    folder.joinpath("train.txt").write_text(f"ann\tb\t{name}\nbob\th\t{name}\ncid\tb\tann\n", encoding="utf-8")
    try:
        return load_graph(folder, **options)
    except UserError as error:
        return error


def terms(graph: KnowledgeGraph) -> list[str | Variable]:
    (rule,) = graph.rules
    return [term for atom in (rule.clause_head, *rule.body) for term in (atom.first, atom.second)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tool", SHAPES)
def test_a_constant_of_the_graph_is_read_as_the_tool_means_it_or_refused(tmp_path: Path, tool: str, name: str) -> None:
    found = read(tmp_path, name, SHAPES[tool].format(name))
    if isinstance(found, UserError):
        assert found.fix
        assert found.where.startswith(("rules:", "train.txt:")), found
        return
    first, second, third, fourth = terms(found)
    assert isinstance(first, Variable)
    assert (first, second) == (third, fourth)
    assert second == name


@pytest.mark.parametrize("tool", ["AnyBURL", "PyClause", "AMIE"])
@pytest.mark.parametrize("name", ["rome", "Rome", "Q46", "C0030193", "1990", "/m/0abc", "wd:Q46", "Évian", "B-52"])
def test_tools_without_quotes_keep_the_names_of_the_graph(tmp_path: Path, tool: str, name: str) -> None:
    assert terms(read(tmp_path, name, SHAPES[tool].format(name)))[1] == name


@pytest.mark.parametrize("tool", PROLOG)
def test_a_capital_in_prolog_that_the_graph_has_is_settled_by_an_option_that_the_warnings_repeat(
    tmp_path: Path, tool: str
) -> None:
    rules = SHAPES[tool].format("Q46")
    refused = read(tmp_path, "Q46", rules)
    assert "a variable in this format and a constant of the graph" in refused.message
    assert "rule_variables" in refused.fix
    for option, kind in (("graph", str), ("format", Variable)):
        graph = read(tmp_path, "Q46", rules, rule_variables=option)
        assert [type(term) for term in terms(graph)] == [Variable, kind, Variable, kind]
        (choice,) = graph.choices
        assert f"rule_variables={option}" in choice
    assert terms(read(tmp_path, "Q46", SHAPES[tool].format("'Q46'")))[1] == "Q46"


@pytest.mark.parametrize("tool", PROLOG)
def test_a_capital_in_prolog_that_the_graph_lacks_is_a_variable(tmp_path: Path, tool: str) -> None:
    assert isinstance(terms(read(tmp_path, "rome", SHAPES[tool].format("Q46")))[1], Variable)


@pytest.mark.parametrize("tool", ["AnyBURL", "PyClause"])
@pytest.mark.parametrize("name", ["Q46", "A1", "Rome", "x"])
def test_a_name_that_the_graph_lacks_is_a_constant_of_anyburl_with_a_warning(
    tmp_path: Path, tool: str, name: str
) -> None:
    graph = read(tmp_path, "rome", SHAPES[tool].format(name))
    assert terms(graph)[1] == name
    assert any(f"has the constant '{name}': it is no candidate" in warning for warning in graph.warnings)


@pytest.mark.parametrize("name", ["Q", "Rome", "rome", "b1"])
def test_an_arrow_name_that_is_neither_a_variable_nor_a_constant_is_refused(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, "oslo", SHAPES["arrow"].format(name))
    if name in ("Q", "b1"):
        assert isinstance(terms(found)[1], Variable)
    else:
        assert f"'{name}' in quotes for a constant" in found.fix


@pytest.mark.parametrize("tool", ["RNNLogic, RulE", "NCRL"])
def test_rules_of_relation_ids_are_refused_by_the_name_of_their_tools(tmp_path: Path, tool: str) -> None:
    found = read(tmp_path, "rome", SHAPES[tool])
    assert "RNNLogic, RulE, NCRL" in found.message
    assert "b1(X,Z), b2(Z,Y) -> h(X,Y)" in found.fix


def test_a_number_in_a_rule_may_not_be_an_id_of_the_dictionaries_of_the_graph(tmp_path: Path) -> None:
    for name, text in {
        "train2id.txt": "2\n0 1 0\n1 2 0\n",
        "entity2id.txt": "3\nann\t0\nbob\t1\n1990\t2\n",
        "relation2id.txt": "1\nr\t0\n",
    }.items():
        tmp_path.joinpath(name).write_text(text)
    rules = tmp_path / "rules.txt"
    rules.write_text("r(X,1990) :- r(X,bob).\n")
    assert load_graph(tmp_path).rules[0].clause_head.second == "1990"
    for text in ("r(X,1) :- r(X,bob).\n", "r(X,bob) :- 0(X,bob).\n"):
        rules.write_text(text)
        with pytest.raises(UserError, match="which may be an id"):
            load_graph(tmp_path)


def test_amie_may_write_the_names_of_the_triples_without_angle_brackets(tmp_path: Path) -> None:
    tmp_path.joinpath("train.tsv").write_text("<ann>\t<likes>\t<oslo>\n<bob>\t<knows>\t<oslo>\n")
    tmp_path.joinpath("rules.txt").write_text(
        "?a  likes  oslo   => ?a  knows  oslo\n?a  <likes>  ?b   => ?a  knows  ?b\n"
    )
    graph = load_graph(tmp_path)
    assert [str(rule.clause_head) for rule in graph.rules] == [
        str(r) for r in (graph.rules[0].clause_head, graph.rules[1].clause_head)
    ]
    assert graph.rules[0].clause_head.predicate == graph.rules[1].clause_head.predicate == "<knows>"
    assert graph.rules[0].clause_head.second == "<oslo>"
    assert any("names read with or without angle brackets" in warning for warning in graph.warnings)


PAGE = (Path(__file__).parents[2] / "docs" / "graphs.md").read_text(encoding="utf-8")
ROWS = [
    (name, cells[1:])
    for line in PAGE.partition("## What a name is")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| `") and "<a>" not in line
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    for name in re.findall("`([^`]+)`", cells[0])
]
COLUMNS = (("Prolog", "ProbLog", "Popper"), ("arrow",), ("AnyBURL", "PyClause"), ("AMIE",))


def describe(found: KnowledgeGraph | UserError, name: str) -> str:
    if isinstance(found, UserError):
        return "refused"
    term = terms(found)[1]
    if isinstance(term, Variable):
        return "variable"
    return {name.strip("'\""): "inner", name: "constant"}.get(term, "other")


@pytest.mark.parametrize(("name", "cells"), ROWS)
def test_the_table_of_names_says_what_happens(tmp_path: Path, name: str, cells: list[str]) -> None:
    assert len(cells) == len(COLUMNS)
    for tools, cell in zip(COLUMNS, cells, strict=True):
        for tool in tools:
            rules = SHAPES[tool].format(name)
            unknown = describe(read(tmp_path, "oslo", rules), name)
            known = describe(read(tmp_path, name, rules), name) if name[0] not in "'\"" else unknown
            expected = {
                "constant": ("constant", "constant"),
                "variable": ("variable", "refused"),
                "variable if it begins with a capital, else constant": ("variable", "refused")
                if name[0].isupper()
                else ("constant",) * 2,
                "refused: quote it": ("refused", "refused"),
                "known": ("refused", "constant"),
                "the constant in the quotes": ("inner", "inner"),
                "a name with quotes": ("constant", "constant"),
                "the other argument of its atom": ("variable", "refused"),
            }.get(cell)
            if expected:
                assert (unknown, known) == expected, (tool, name, cell)
