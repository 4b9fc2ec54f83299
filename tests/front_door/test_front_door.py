"""`import kgverify`: what it offers, what it costs, and that its examples run."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import kgverify as kv

ROOT = Path(__file__).resolve().parents[2]
SUB_NAMESPACES = {"kgverify.dialects", "kgverify.kinds", "kgverify.laws", "kgverify.strategies"}
IMPORT = re.compile(r"^\s*(?:from (kgverify[\w.]*) import|import (kgverify[\w.]*))", re.MULTILINE)
WRONG = """
import kgverify as kv
from kgverify.dialects import ReferenceEngine


class Wrong(ReferenceEngine):
    def __init__(self, program, limits, policy):
        super().__init__(program, kv.Limits(limits.max_depth, limits.max_atoms, 1), policy)
"""


def test_every_name_that_type_checkers_see_is_loaded():
    assert kv.__all__ == sorted(kv.__all__)
    stub = ast.parse(Path(kv.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = [(node.module, *node.names) for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert set(kv.__all__) < {alias.name for _, alias in imported} <= set(dir(kv))
    for module, alias in imported:
        assert getattr(kv, alias.name) is getattr(importlib.import_module(module), alias.name)
    with pytest.raises(AttributeError, match="no attribute 'verfy'"):
        kv.verfy  # noqa: B018  reading the attribute is the test


def list_types(hint: object) -> Iterator[type]:
    """Yield kgverify's own classes in a type hint."""
    parts = hint if isinstance(hint, list) else (get_origin(hint), *get_args(hint))
    for part in parts:
        if part is not None:
            yield from list_types(part)
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "kgverify":
        yield hint


def list_signatures(found: Any) -> list[Any]:
    """Return a function, or the constructor and the public methods of a class."""
    if not isinstance(found, type):
        return [found]
    members = [vars(kind).get(name) for kind in found.__mro__ for name in vars(kind)]
    return [
        each
        for each in map(inspect.unwrap, members)
        if inspect.isfunction(each)
        and each.__module__.startswith("kgverify.")
        and (each.__name__ == "__init__" or not each.__name__.startswith("_"))
    ]


@pytest.mark.parametrize("name", kv.__all__)
def test_a_name_is_documented_with_an_example_and_the_types_of_its_signature_can_be_imported(name: str):
    found = getattr(kv, name)
    assert "Example:\n" in found.__doc__
    if not isinstance(found, type):
        assert "Args:\n" in found.__doc__
        assert "Returns:\n" in found.__doc__ or name.startswith("assert_")
        assert "Raises:\n" in found.__doc__
    # The harness uses an evaluator by methods that users do not need.
    for signature in list_signatures(found if name != "Evaluator" else vars(kv.Evaluator)["__init__"]):
        for hint in get_type_hints(signature).values():
            for kind in list_types(hint):
                assert getattr(kv, kind.__name__) is kind, (signature.__qualname__, kind)


@pytest.mark.sample(4, deep=8)
@pytest.mark.parametrize("name", kv.__all__)
def test_the_example_of_a_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (test,) = doctest.DocTestFinder(recurse=False).find(getattr(kv, name), name, globs={})
    assert test.examples
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0


def test_pages_import_from_the_front_door_and_internal_packages_say_what_they_are():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("**/*.md")):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        found = {first or second for block in blocks for first, second in IMPORT.findall(block)}
        assert found <= {"kgverify", *SUB_NAMESPACES}, page
    for folder in sorted(path.parent for path in (ROOT / "kgverify").glob("*/__init__.py")):
        name = f"kgverify.{folder.name}"
        assert (name in SUB_NAMESPACES) != ("nternal" in importlib.import_module(name).__doc__), name


def test_results_print_as_the_terminal_shows_them_and_their_repr_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    few, engine = {"queries": 1, "corruptions": 3}, "wrong.py:Wrong"
    (tmp_path / "wrong.py").write_text(WRONG)
    shrunk = kv.shrink(kv.verify("countries", engine, **few))
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


TRIPLES = [("a", "r", "b")]
# A call, the argument that the error names, and words of its fix.
WRONG_ARGUMENTS = [
    (lambda: kv.verify("countries", queries="2"), "queries", "without quotes"),
    (lambda: kv.verify("countries", policy=3), "policy", "'shortest'"),
    (lambda: kv.verify("countries", limits={"max_depth": 3}), "limits", "kgverify.Limits(max_depth=3)"),
    (lambda: kv.verify("countries", equality={}), "equality", "kgverify.Equality()"),
    (lambda: kv.verify(TRIPLES), "graph", "kgverify.KnowledgeGraph("),
    (lambda: kv.verify("countries", save=3), "save", "a path"),
    (lambda: kv.verify("countries", 3), "engine int", "(program, limits, policy)"),
    (lambda: kv.verify("countries", corruptions=-1), "corruptions", "0 or more"),
    (lambda: kv.open_trace(3), "path", "a path"),
    (lambda: kv.shrink(5), "run", "kgverify.verify"),
    (lambda: kv.shrink("run", divergence="1"), "divergence", "a whole number"),
    (lambda: kv.replay(3), "reproducer", "a path"),
    (lambda: kv.compare(3, "a.h5"), "expected", "a path"),
    (lambda: kv.compare("a.h5", 3), "actual", "a path"),
    (lambda: kv.record("countries", "a.h5", progress=3), "progress", "a function"),
    (lambda: kv.record("countries", "a.h5", options={"level": "deep"}), "options", "RecordingOptions(level='deep')"),
    (lambda: kv.evaluate("countries", options=kv.FuzzOptions()), "options", "kgverify.EvaluationOptions"),
    (lambda: kv.fuzz(examples="3"), "examples", "a whole number"),
    (lambda: kv.check_engine("reference", examples="3"), "examples", "a whole number"),
    (lambda: kv.load_graph(3), "spec", "a name, a path"),
    (lambda: kv.FuzzOptions(accept_changed="a.py"), "accept_changed", "a list"),
    (lambda: kv.RecordingOptions(level=3), "level", "'deep'"),
    (lambda: kv.Equality(lockstep=1), "lockstep", "True or False"),
    (lambda: kv.Queries(True), "number", "a whole number"),
    (lambda: kv.Limits(max_depth="3"), "max_depth", "a whole number"),
    (lambda: kv.Reference(jobs="2"), "jobs", "a whole number"),
    (lambda: kv.Evaluator(mode=3), "mode", "'native'"),
    (lambda: kv.Job(queries=3), "queries", "kgverify.Queries"),
]


@pytest.mark.parametrize(("call", "where", "fix"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named_with_its_fix(call, where: str, fix: str):
    with pytest.raises(kv.UserError) as caught:
        call()
    assert caught.value.where == where
    assert caught.value.message.startswith("expected ")
    assert fix in caught.value.fix


def test_numbers_of_numpy_are_numbers_and_an_unknown_argument_names_the_function():
    assert kv.Queries(np.int64(3)).number == 3
    assert kv.Limits(max_depth=np.int32(3)).max_depth == 3
    assert kv.Equality(score_error=np.float64(0.5)).accepted_error == 0.5
    with pytest.raises(TypeError, match=r"verify\(\) got an unexpected keyword argument 'mode'"):
        kv.verify("countries", mode="eager")


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        ("import kgverify", {"torch", "h5py", "numpy", "msgspec", "rich"}),
        ("import kgverify.pytest_plugin", {"torch", "numpy", "hypothesis", "h5py", "rich"}),
        (
            "import kgverify as kv; kv.verify('countries', 'reference', queries=2, corruptions=5)",
            {"h5py", "rich", "jinja2", "distributed", "hypothesis", "cyclopts", "torch"},
        ),
    ],
)
def test_what_is_not_used_is_not_loaded(code: str, unwanted: set[str]):
    code = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert unwanted & {*done.stdout.split()} == set()
