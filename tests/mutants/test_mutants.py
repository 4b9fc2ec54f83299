"""Wrong edits are addressed by function and syntax, and what pytest says of them is reported."""

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
from run_mutants import nearest_tests
from semantic_edits import LISTS, ROOT, EditError, SemanticEdit, Sources, check_lists, read_lists

EDIT = SemanticEdit(
    function="Box.clip",
    find="value > least and value != 7",
    replace="value >= least and value != 7",
    what="the least value is kept",
)
ORIGINAL = """
class Box:
    def clip(self, values, least):
        kept = [value for value in values if value > least and value != 7]
        return sorted(kept)
"""


def edited(folder: Path, source: str, edit: SemanticEdit = EDIT, *, module: str = "box") -> str:
    """Return a module with an edit made in it."""
    path = folder / "kgverify" / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return Sources(folder).plant(edit).text


def test_an_edit_changes_the_code_that_it_names(tmp_path: Path):
    assert edited(tmp_path, ORIGINAL) == ORIGINAL.replace("value > least", "value >= least")


def test_an_edit_survives_a_renamed_local(tmp_path: Path):
    renamed = ORIGINAL.replace("value", "number").replace("least", "bound")
    assert edited(tmp_path, renamed) == renamed.replace("number > bound", "number >= bound")


def test_an_edit_survives_a_move_to_another_module(tmp_path: Path):
    hinted = SemanticEdit(function="Box.clip", module="gone", find=EDIT.find, replace=EDIT.replace, what=EDIT.what)
    assert ">= least" in edited(tmp_path, ORIGINAL, hinted, module="other")


def test_an_edit_survives_reformatting(tmp_path: Path):
    spread = """
    class Box:
        def clip(self, values, least):
            kept = [
                value
                for value in values  # all of them
                if (value > least
                    and (value != 7))
            ]
            return sorted(kept)
    """
    assert "value >= least" in edited(tmp_path, spread)


def test_names_that_are_not_local_are_compared_exactly(tmp_path: Path):
    edit = SemanticEdit(function="f", find="max(a, b)", replace="min(a, b)", what="the least is taken")
    assert "return min(x, y)" in edited(tmp_path, "def f(x, y):\n    return max(x, y)\n", edit)
    for body in ("return sum(x, y)", "return max(x, x)", "return max(x, LIMIT)"):
        with pytest.raises(EditError, match="fits 0 places"):
            edited(tmp_path, f"def f(x, y):\n    {body}\n", edit)


def test_dots_stand_for_any_statements(tmp_path: Path):
    edit = SemanticEdit(
        function="f", find="if a:\n    ...", replace="if not a:\n    ...", what="the condition is negated"
    )
    source = "def f(x):\n    if x:\n        g(x)\n        h(x)\n    elif x is None:\n        g(0)\n"
    with pytest.raises(EditError, match="fits 0 places"):
        edited(tmp_path, source, edit)
    source = source.partition("    elif")[0]
    assert edited(tmp_path, source, edit) == source.replace("if x:", "if not x:")


def test_statements_can_be_deleted_and_an_elif_edited(tmp_path: Path):
    source = "def f(x):\n    if x:\n        g(x)\n    elif x is None:\n        h(x)\n"
    delete = SemanticEdit(function="f", find="h(x)", replace="", what="a call is missing")
    assert edited(tmp_path, source, delete) == source.replace("h(x)", "pass")
    other = SemanticEdit(function="f", find="x is None", replace="x is not None", what="the condition is negated")
    assert edited(tmp_path, source, other) == source.replace("is None", "is not None")


def test_an_ambiguous_address_is_an_error(tmp_path: Path):
    edited(tmp_path, ORIGINAL)
    with pytest.raises(EditError, match=r"fits 2 places of Box\.clip"):
        edited(tmp_path, ORIGINAL, module="other")
    with pytest.raises(EditError, match=r"nothing is called Box\.lost"):
        edited(tmp_path, ORIGINAL, SemanticEdit(function="Box.lost", find="a", replace="b", what="no such method"))


def test_an_edit_of_c_is_found_in_any_layout(tmp_path: Path):
    (tmp_path / "kgverify").mkdir()
    (tmp_path / "kgverify" / "stages.h").write_text("int f(int a) {\n    return a+\n        offset;\n}\n")
    edit = SemanticEdit(find="a + offset", replace="a - offset", what="the offset is subtracted")
    assert Sources(tmp_path).plant(edit).text == "int f(int a) {\n    return a - offset;\n}\n"


def test_lists_are_checked(tmp_path: Path):
    edited(tmp_path, ORIGINAL)
    same = SemanticEdit(function="Box.clip", find="sorted(kept)", replace="sorted(kept)", what="nothing")
    problems = check_lists([EDIT, EDIT, same], Sources(tmp_path))
    for text in ("listed twice", "changes nothing", "lacks a description"):
        assert any(text in problem for problem in problems), text


@pytest.mark.exhaustive
def test_every_entry_of_the_lists_applies():
    edits = read_lists()
    assert len(edits) > 1000
    assert check_lists(edits, Sources()) == []
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = tomllib.loads(re.findall(r"```toml\n(\[\[edit.*?)```", page, re.DOTALL)[0])["edit"]
    assert example["find"] in {edit.find for edit in edits}


def test_tests_of_the_module_come_first():
    first, *_ = nearest_tests("kgverify/ranking/rank.py", "rank_candidates")
    assert first == "tests/ranking/test_ranking_rank.py"


@pytest.mark.exhaustive
def test_what_pytest_notices_is_counted_and_kept(tmp_path: Path):
    (tmp_path / "few.toml").write_text(
        "[[edit]]\n" + (LISTS / "figures.toml").read_text().partition("[[edit]]\n")[2].partition("[[edit]]")[0]
    )
    script = str(Path(__file__).with_name("run_mutants.py"))
    results = tmp_path / "results.jsonl"
    command = [sys.executable, script, "--lists", str(tmp_path), "--results", str(results), "--tests", "tests/ranking"]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert " of 1 edits noticed" in done.stdout
    assert len(results.read_text().splitlines()) == 1
