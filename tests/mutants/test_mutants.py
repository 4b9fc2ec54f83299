"""Wrong edits are addressed by function and syntax, and what pytest says of them is reported."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from run_mutants import nearest_tests
from semantic_edits import LISTS, ROOT, EditError, SemanticEdit, Sources, check_lists, read_lists

CLIP = """
class Box:
    def clip(self, values, least):
        kept = [value for value in values if value > least and value != 7]
        return sorted(kept)
"""
SPREAD = CLIP.replace("value > least and value != 7", "(value > least  # the least is not kept\n and (value != 7))")
BRANCHES = "def f(x):\n    if x:\n        g(x)\n    elif x is None:\n        h(x)\n"
COMPARED = ("Box.clip", "value > least and value != 7", "value >= least and value != 7")
LARGEST = ("f", "max(a, b)", "min(a, b)")
NEGATED = ("f", "if a:\n    ...", "if not a:\n    ...")


def edit_of(function: str, find: str, wrong: str, module: str = "") -> SemanticEdit:
    return SemanticEdit(function=function, find=find, replace=wrong, module=module, what="this is a mistake")


def edited(folder: Path, source: str, edit: SemanticEdit, *, module: str = "box") -> str:
    """Return a module with an edit made in it."""
    path = folder / "kgverify" / f"{module}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    return Sources(folder).plant(edit).text


@pytest.mark.parametrize(
    ("source", "address", "old", "new"),
    [
        (CLIP, COMPARED, "value > least", "value >= least"),
        (CLIP.replace("value", "number"), COMPARED, "number > least", "number >= least"),
        (SPREAD, COMPARED, "value > least", "value >= least"),
        (CLIP, (*COMPARED, "gone"), "value > least", "value >= least"),
        ("def f(x, y):\n    return max(x, y)\n", LARGEST, "max", "min"),
        ("def f(x):\n    if x:\n        g(x)\n        h(x)\n", NEGATED, "if x", "if not x"),
        (BRANCHES, ("f", "h(x)", ""), "h(x)", "pass"),
        (BRANCHES, ("f", "x is None", "x is not None"), "is None", "is not None"),
        ("LIMIT = 3\nOTHER = 3\n", ("LIMIT", "LIMIT = 3", "LIMIT = 4"), "LIMIT = 3", "LIMIT = 4"),
    ],
    ids=[
        *("as it was", "a renamed local", "another layout", "another module", "names that stand for others"),
        *("dots for any statements", "a deleted statement", "an elif", "a constant"),
    ],
)
def test_an_edit_changes_the_code_that_it_names(tmp_path: Path, source: str, address: tuple, old: str, new: str):
    expected = ast.unparse(ast.parse(source.replace(old, new)))
    assert edited(tmp_path, source, edit_of(*address)).strip() == expected


@pytest.mark.parametrize("body", ["return sum(x, y)", "return max(x, x)", "return max(x, LIMIT)"])
def test_names_that_are_not_local_are_compared_exactly(tmp_path: Path, body: str):
    with pytest.raises(EditError, match="fits 0 places"):
        edited(tmp_path, f"def f(x, y):\n    {body}\n", edit_of(*LARGEST))


def test_what_is_ambiguous_or_absent_is_an_error(tmp_path: Path):
    with pytest.raises(EditError, match="fits 0 places"):
        edited(tmp_path, BRANCHES, edit_of(*NEGATED))
    edited(tmp_path, CLIP, edit_of(*COMPARED))
    with pytest.raises(EditError, match=r"nothing is called Box\.lost"):
        edited(tmp_path, CLIP, edit_of("Box.lost", "a", "b"))
    same = edit_of("Box.clip", "sorted(kept)", "sorted(kept)")
    short = SemanticEdit(function="Box.clip", find="sorted(kept)", replace="kept", what="nothing")
    problems = check_lists([edit_of(*COMPARED), edit_of(*COMPARED), same, short], Sources(tmp_path))
    for text in ("listed twice", "changes nothing", "lacks a description"):
        assert any(text in problem for problem in problems), text
    with pytest.raises(EditError, match=r"fits 2 places of Box\.clip"):
        edited(tmp_path, CLIP, edit_of(*COMPARED), module="other")


def test_an_edit_of_c_is_found_in_any_layout(tmp_path: Path):
    (tmp_path / "kgverify").mkdir()
    (tmp_path / "kgverify" / "stages.h").write_text("int f(int a) {\n    return a+\n        offset;\n}\n")
    edit = edit_of("", "a + offset", "a - offset")
    assert Sources(tmp_path).plant(edit).text == "int f(int a) {\n    return a - offset;\n}\n"


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
    first = (LISTS / "figures.toml").read_text().partition("[[edit]]\n")[2].partition("[[edit]]")[0]
    (tmp_path / "few.toml").write_text(f"[[edit]]\n{first}")
    script = str(Path(__file__).with_name("run_mutants.py"))
    results = tmp_path / "results.jsonl"
    command = [sys.executable, script, "--lists", str(tmp_path), "--results", str(results), "--tests", "tests/ranking"]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert " of 1 edits noticed" in done.stdout
    assert len(results.read_text().splitlines()) == 1
