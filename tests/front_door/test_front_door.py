"""`import kgverify`: what it offers, what it costs, and that its examples run."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kgverify as kv

ROOT = Path(__file__).resolve().parents[2]
INIT = ast.parse(Path(kv.__file__).read_text(encoding="utf-8"))
SUB_NAMESPACES = {"kgverify.dialects", "kgverify.laws", "kgverify.strategies"}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("**/*.md")])
WRONG = """
import kgverify as kv
from kgverify.engines.reference.engine import ReferenceEngine


class Wrong(ReferenceEngine):
    def __init__(self, program, limits, policy):
        super().__init__(program, kv.Limits(limits.max_depth, limits.max_atoms, 1), policy)
"""
IMPORT = re.compile(r"^\s*(?:from (kgverify[\w.]*) import|import (kgverify[\w.]*))", re.MULTILINE)


def test_there_are_no_more_than_29_names():
    assert len(kv.__all__) <= 29
    assert kv.__all__ == sorted(kv.__all__)
    assert set(kv.__all__) <= set(dir(kv))


def test_type_checkers_see_the_names_that_are_loaded():
    (checked,) = [node for node in INIT.body if isinstance(node, ast.If) and isinstance(node.body[0], ast.ImportFrom)]
    imported = {alias.name: node.module for node in checked.body for alias in node.names}
    assert imported == {name: f"kgverify.{home}" for name, home in kv._HOMES.items()}
    assert sorted(imported) == kv.__all__


def test_importing_loads_no_dependency():
    code = "import kgverify, sys; print(sorted({'torch', 'h5py', 'numpy', 'msgspec', 'rich'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_offered_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'verfy'"):
        kv.verfy  # noqa: B018  reading the attribute is the test


@pytest.mark.parametrize("name", kv.__all__)
def test_a_name_is_documented_with_an_example(name: str):
    found = getattr(kv, name)
    text = found.__doc__
    assert "Example:\n" in text
    if not isinstance(found, type):
        assert "Args:\n" in text
        assert "Returns:\n" in text or name.startswith("assert_")
        assert "Raises:\n" in text


@pytest.mark.sample(12, deep=8)
@pytest.mark.parametrize("name", kv.__all__)
def test_the_example_of_a_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(kv, name), name, globs={})
    assert test.examples
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    failed, _ = doctest.DocTestRunner(optionflags=flags).run(test)
    assert not failed


def test_the_packages_that_are_not_offered_say_so():
    for folder in sorted(path.parent for path in (ROOT / "kgverify").glob("*/__init__.py")):
        name = f"kgverify.{folder.name}"
        text = importlib.import_module(name).__doc__
        assert (name in SUB_NAMESPACES) != ("nternal" in text), f"{name}: {text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_from_the_front_door(page: Path):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    found = {first or second for block in blocks for first, second in IMPORT.findall(block)}
    assert found <= {"kgverify", *SUB_NAMESPACES}


def test_results_print_as_the_terminal_shows_them_and_their_repr_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    few = {"queries": 1, "corruptions": 3}

    (tmp_path / "wrong.py").write_text(WRONG)
    engine = "wrong.py:Wrong"
    report = kv.verify("countries", engine, **few)
    shrunk = kv.shrink(report)
    shrunk.save("small.kg")
    results = {
        "AGREE": kv.verify("countries", "reference", **few),
        "EVALUATED": kv.evaluate("countries", engine="reference", **few, options=kv.EvaluationOptions(minimum={})),
        "NOTHING NEW": kv.fuzz("reference", examples=4, options=kv.FuzzOptions(minimum={})),
        "limit": shrunk,
        "DIVERGE": kv.replay("small.kg", engine),
        "reference conforms": kv.check_engine("reference", examples=4, minimum={}),
    }
    for first, result in results.items():
        lines = str(result).splitlines()
        assert lines[0].startswith(first), lines
        assert len(lines) > 1
        assert lines[0] in repr(result)
        assert "=" not in repr(result)


def test_an_engine_without_a_name_of_its_own_is_not_mistaken_for_the_one_that_it_derives_from():
    names: dict[str, type] = {}
    exec(WRONG, names)
    report = kv.verify("countries", names["Wrong"], queries=1, corruptions=3)
    assert report.environment.actual.name == "reference"
    with pytest.raises(kv.UserError, match="cannot make the engine 'reference' again"):
        kv.shrink(report)
