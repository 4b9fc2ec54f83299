"""`import kgverify`: what it offers, what it costs, and that its examples run."""

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import kgverify as kv
from kgverify.engines.table import OwnEvaluator

ROOT = Path(__file__).resolve().parents[2]
SUB_NAMESPACES = {"kgverify.dialects", "kgverify.kinds", "kgverify.laws", "kgverify.strategies"}
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("**/*.md")])
WRONG = """
import kgverify as kv
from kgverify.engines.reference.engine import ReferenceEngine


class Wrong(ReferenceEngine):
    def __init__(self, program, limits, policy):
        super().__init__(program, kv.Limits(limits.max_depth, limits.max_atoms, 1), policy)
"""
IMPORT = re.compile(r"^\s*(?:from (kgverify[\w.]*) import|import (kgverify[\w.]*))", re.MULTILINE)


def test_the_names_are_sorted_and_listed():
    assert kv.__all__ == sorted(kv.__all__)
    assert set(kv.__all__) <= set(dir(kv))


def test_every_name_that_type_checkers_see_is_loaded():
    stub = ast.parse(Path(kv.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imported = [(node.module, *node.names) for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert set(kv.__all__) < {alias.name for _, alias in imported} <= set(dir(kv))
    for module, alias in imported:
        assert alias.asname == alias.name
        assert getattr(kv, alias.name) is getattr(importlib.import_module(module), alias.name)


def list_types(hint: object) -> Iterator[type]:
    """Yield kgverify's own classes in a type hint."""
    parts = hint if isinstance(hint, list) else (get_origin(hint), *get_args(hint))
    for part in parts:
        if part is not None:
            yield from list_types(part)
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "kgverify":
        yield hint


def list_signatures(found: Any) -> list[Any]:
    """Return a function, or the constructor and the public methods and properties of a class."""
    if not isinstance(found, type):
        return [found]
    members = [vars(kind).get(name) for kind in found.__mro__ for name in vars(kind)]
    functions = [getattr(each, "fget", None) or getattr(each, "func", None) or each for each in members]
    return [
        each
        for each in map(inspect.unwrap, functions)
        if inspect.isfunction(each)
        and each.__module__.startswith("kgverify.")
        and (not each.__name__.startswith("_") or each.__name__ in ("__init__", "__call__"))
    ]


SERVICES = {name for name in vars(OwnEvaluator) if not name.startswith("_")}
"""The methods of `Evaluator` by which the harness uses it."""


@pytest.mark.parametrize("name", kv.__all__)
def test_every_type_of_a_signature_can_be_imported(name: str):
    for signature in list_signatures(getattr(kv, name)):
        if name == "Evaluator" and signature.__name__ in SERVICES:
            continue
        for hint in get_type_hints(signature).values():
            for kind in list_types(hint):
                assert getattr(kv, kind.__name__) is kind, (signature.__qualname__, kind)


def test_the_errors_can_be_imported():
    assert issubclass(kv.MissingDependency, kv.UserError)
    assert issubclass(kv.UserError, kv.KgverifyError)
    assert issubclass(kv.InternalError, kv.KgverifyError)
    assert issubclass(kv.NotConforming, AssertionError)


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


TRIPLES = [("a", "r", "b")]
WRONG_ARGUMENTS: dict[str, tuple[Callable[[], object], str, str]] = {
    "numeric text": (lambda: kv.verify("countries", queries="2"), "queries", "without quotes"),
    "a number as a policy": (lambda: kv.verify("countries", policy=3), "policy", "'shortest'"),
    "a dictionary of limits": (
        lambda: kv.verify("countries", limits={"max_depth": 3}),
        "limits",
        "kgverify.Limits(max_depth=3)",
    ),
    "a dictionary as equality": (lambda: kv.verify("countries", equality={}), "equality", "kgverify.Equality()"),
    "a list of triples": (lambda: kv.verify(TRIPLES), "graph", "kgverify.KnowledgeGraph("),
    "a number as a folder": (lambda: kv.verify("countries", save=3), "save", "a path"),
    "a number as an engine": (lambda: kv.verify("countries", 3), "engine int", "(program, limits, policy)"),
    "a wrong number of corruptions": (lambda: kv.verify("countries", corruptions=-1), "corruptions", "0 or more"),
    "a number as a trace": (lambda: kv.open_trace(3), "path", "a path"),
    "a number as a run": (lambda: kv.shrink(5), "run", "kgverify.verify"),
    "text as a divergence": (lambda: kv.shrink("run", divergence="1"), "divergence", "a whole number"),
    "a number as a reproducer": (lambda: kv.replay(3), "reproducer", "a path"),
    "a number as an expected trace": (lambda: kv.compare(3, "a.h5"), "expected", "a path"),
    "a number as an actual trace": (lambda: kv.compare("a.h5", 3), "actual", "a path"),
    "a number as progress": (lambda: kv.record("countries", "a.h5", progress=3), "progress", "a function"),
    "a dictionary of options": (
        lambda: kv.record("countries", "a.h5", options={"level": "deep"}),
        "options",
        "kgverify.RecordingOptions(level='deep')",
    ),
    "options of another function": (
        lambda: kv.evaluate("countries", options=kv.FuzzOptions()),
        "options",
        "kgverify.EvaluationOptions",
    ),
    "text as examples": (lambda: kv.fuzz(examples="3"), "examples", "a whole number"),
    "text as examples of a check": (lambda: kv.check_engine("reference", examples="3"), "examples", "a whole number"),
    "a number as a graph": (lambda: kv.load_graph(3), "spec", "a name, a path"),
    "one name instead of a list": (lambda: kv.FuzzOptions(accept_changed="a.py"), "accept_changed", "a list"),
    "a number as a level": (lambda: kv.RecordingOptions(level=3), "level", "'deep'"),
    "a number as a flag": (lambda: kv.Equality(lockstep=1), "lockstep", "True or False"),
    "a flag as a number": (lambda: kv.Queries(True), "number", "a whole number"),
    "text as a limit": (lambda: kv.Limits(max_depth="3"), "max_depth", "a whole number"),
    "text as processes": (lambda: kv.Reference(jobs="2"), "jobs", "a whole number"),
    "a number as a mode": (lambda: kv.Evaluator(mode=3), "mode", "'native'"),
    "a number as a part of a job": (lambda: kv.Job(queries=3), "queries", "kgverify.Queries"),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_a_wrong_argument_is_named_with_its_fix(case: str):
    call, where, fix = WRONG_ARGUMENTS[case]
    with pytest.raises(kv.UserError) as caught:
        call()
    assert caught.value.where == where
    assert caught.value.message.startswith("expected ")
    assert fix in caught.value.fix


def test_numbers_of_numpy_are_numbers():
    assert kv.Queries(np.int64(3)).number == 3
    assert kv.Limits(max_depth=np.int32(3)).max_depth == 3
    assert kv.Equality(score_error=np.float64(0.5)).accepted_error == 0.5


def test_an_unknown_argument_is_a_type_error_that_names_the_function():
    with pytest.raises(TypeError, match=r"verify\(\) got an unexpected keyword argument 'mode'"):
        kv.verify("countries", mode="eager")
