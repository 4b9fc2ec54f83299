"""Engines that are broken in every way: each is a clear error with its location, the signature expected, and exit code 2."""

import pytest

import kgverify as kv

GOOD = """
import dataclasses, sys
import numpy as np
from kgverify.engines.reference.engine import ReferenceEngine as Base
"""

# What the module holds, the name of the engine, and texts of the error.
BROKEN = {
    "no such module": ("", "nowhere:Engine", ["cannot import 'nowhere'", "path/to/file.py:NAME"]),
    "no such file": ("", "./nowhere.py:Engine", ["there is no file 'nowhere.py'", "(program, limits, policy)"]),
    "no colon": ("", "broken", ["cannot make the engine 'broken'", "MODULE:NAME or FILE.py:NAME"]),
    "a module that raises": ("1 / 0", "broken:Engine", ["ZeroDivisionError", "broken.py:5", "must neither raise"]),
    "a module that exits": ("sys.exit(0)", "broken:Engine", ["it ended the process (SystemExit: 0)"]),
    "a module that is not Python": ("def :", "broken:Engine", ["SyntaxError", "broken.py:5"]),
    "a module whose import is missing": ("import nowhere_else", "broken:Engine", ["'nowhere_else'", "broken.py:5"]),
    "a typing mistake": ("class Engine(Base): pass", "broken:Engin", ["no 'Engin'", "did you mean 'Engine'?"]),
    "a number": ("Engine = 7", "broken:Engine", ["which cannot be called", "(program, limits, policy)"]),
    "too few parameters": (
        "def Engine(program): ...",
        "broken:Engine",
        ["found Engine(program)", "(program, limits, policy)"],
    ),
    "a factory that raises": (
        "def Engine(program, limits, policy): raise KeyError('weights')",
        "broken:Engine",
        ["KeyError: 'weights'", "broken.py:5 in Engine", "(program, limits, policy)"],
    ),
    "a factory that exits": (
        "def Engine(program, limits, policy): sys.exit(0)",
        "broken:Engine",
        ["making the engine failed: it ended the process (SystemExit: 0)"],
    ),
    "a factory that returns nothing": (
        "def Engine(program, limits, policy): ...",
        "broken:Engine",
        ["a method prove(candidates, progress) -> Columns"],
    ),
    "a factory of two that makes no pipeline": (
        "def Engine(run, sizes): return 3",
        "broken:Engine",
        ["expected a pipeline, found int"],
    ),
    "no method step": (
        "class Engine:\n    def __init__(self, program, limits, policy): ...\n    def prove(self, candidates): ...",
        "broken:Engine",
        ["a method step(positions) -> Columns"],
    ),
    "prove without parameters": (
        "class Engine(Base):\n    def prove(self): ...",
        "broken:Engine",
        ["its `prove` failed: TypeError", "prove(candidates: CandidateSet, progress) -> Columns"],
    ),
    "prove that raises": (
        "class Engine(Base):\n    def prove(self, candidates, progress): return self.nothing",
        "broken:Engine",
        ["its `prove` failed: AttributeError", "broken.py:6 in prove"],
    ),
    "prove that exits": (
        "class Engine(Base):\n    def prove(self, candidates, progress): sys.exit()",
        "broken:Engine",
        ["its `prove` failed: it ended the process"],
    ),
    "prove that returns something else": (
        "class Engine(Base):\n    def prove(self, candidates, progress): return {'proved': True}",
        "broken:Engine",
        ["expected Columns, found dict", "-> Columns"],
    ),
    "lists instead of arrays": (
        "class Engine(Base):\n    def prove(self, candidates, progress):\n"
        "        c = super().prove(candidates)\n"
        "        return c._replace(steps=c.steps._replace(choice=c.steps.choice.tolist()))",
        "broken:Engine",
        ["expected ndarray, found list"],
    ),
    "ids with a fraction": (
        "class Engine(Base):\n    def prove(self, candidates, progress):\n"
        "        c = super().prove(candidates)\n"
        "        return c._replace(steps=c.steps._replace(goal_atoms=c.steps.goal_atoms.astype(float)))",
        "broken:Engine",
        ["steps.goal_atoms is float64", "expected int32 [n, 3]"],
    ),
    "atoms of two numbers": (
        "class Engine(Base):\n    def prove(self, candidates, progress):\n"
        "        c = super().prove(candidates)\n"
        "        return c._replace(resolvents=c.resolvents._replace(atoms=c.resolvents.atoms[:, :2]))",
        "broken:Engine",
        ["resolvents.atoms is int32", "expected int32 [n, 3]"],
    ),
    "columns of different lengths": (
        "class Engine(Base):\n    def prove(self, candidates, progress):\n"
        "        c = super().prove(candidates)\n"
        "        return c._replace(steps=c.steps._replace(choice=c.steps.choice[1:]))",
        "broken:Engine",
        ["lengths differ"],
    ),
    "info that raises": (
        "class Engine(Base):\n    @property\n    def info(self): raise OSError('no device')",
        "broken:Engine",
        ["OSError: no device"],
    ),
    "step that returns nothing": (
        "class Engine(Base):\n    def step(self, positions): ...",
        "broken:Engine",
        ["expected Columns, found NoneType", "step(positions: Positions) -> Columns"],
    ),
    "draw with other parameters": (
        "class Engine(Base):\n    def draw(self, graph): ...",
        "broken:Engine",
        ["its `draw` failed: TypeError", "draw(graph, split, queries, num_corruptions, seed) -> CandidateSet"],
    ),
    "rank that returns a list": (
        "class Engine(Base):\n    def rank(self, candidates, triples, tolerance): return []",
        "broken:Engine",
        ["expected Rankings, found list", "rank(candidates, triples, tolerance) -> Rankings"],
    ),
    "a policy that it does not know": (
        "def Engine(program, limits, policy): raise NotImplementedError('the policy shortest')",
        "broken:Engine",
        ["does not support this: the policy shortest", "another --policy"],
    ),
}
DIFF = ("diff", "--queries", "1", "--corruptions", "1", "--lockstep")


@pytest.fixture(params=BROKEN)
def broken(request, tmp_path, monkeypatch):
    """Return the name of the engine and the texts of its error; its module is in the current folder."""
    body, name, texts = BROKEN[request.param]
    # A name of its own: modules stay imported.
    stem = f"broken_{abs(hash(request.node.nodeid)):x}"
    (tmp_path / f"{stem}.py").write_text(GOOD + body + "\n")
    monkeypatch.chdir(tmp_path)
    return name.replace("broken", stem), [text.replace("broken", stem) for text in texts]


def check(refused, texts, where):
    assert refused.code == 2, refused.out + refused.err
    assert refused.err.startswith(f"error: {where}")
    assert "\nfix: " in refused.err
    assert "Traceback" not in refused.err
    # Paths may be long, but no line is broken by the console.
    assert [text for text in texts if text not in refused.err] == []


def test_a_broken_engine_is_a_clear_error(command, broken):
    name, texts = broken
    check(command(*DIFF, "--engine", name), texts, "--engine")


@pytest.mark.sample(1, deep=2)
def test_a_broken_reference_is_a_clear_error(command, broken):
    name, texts = broken
    if "Positions" in " ".join(texts):
        pytest.skip("the reference takes no step by itself in a run that agrees")
    check(command(*DIFF, "--engine", "reference", "--reference", name), texts, "--reference")


@pytest.mark.sample(1, deep=2)
@pytest.mark.parametrize("words", ["record -o x.h5", "bench --queries 1", "evaluate --queries 1"])
def test_no_command_succeeds_with_a_broken_engine(command, broken, words):
    name, texts = broken
    if any("step(positions: " in text or "`draw`" in text or "Rankings" in text for text in texts):
        pytest.skip("not every command takes single steps, or draws and ranks")
    check(command(*words.split(), "--engine", name), texts, "--engine")


@pytest.mark.sample(1, deep=2)
def test_in_a_campaign_a_broken_engine_is_an_error_or_a_divergence_but_no_success(command, broken):
    name, texts = broken
    # The reference takes no single step in a campaign.
    for option in ("--engine", "--reference")[: 1 if "Positions" in " ".join(texts) else 2]:
        found = command(
            "fuzz", "--examples", "4", "--lockstep", "--jobs", "1", "--corpus", f"corpus{option}", option, name
        )
        # An engine that supports no policy was never compared.
        assert found.code in (1, 2), found.out + found.err
        assert "Traceback" not in found.err
        assert found.code == 1 or "\nfix: " in found.err


def test_there_are_at_least_fifteen_of_them():
    assert len(BROKEN) >= 15


def test_the_functions_of_python_raise_the_same_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def raises(program, limits, policy):
        raise OSError("no weights")

    for call in (
        lambda: kv.verify("countries", raises, queries=1, corruptions=1),
        lambda: kv.verify("countries", "reference", reference=raises, queries=1, corruptions=1),
        lambda: kv.check_engine(raises),
        lambda: kv.assert_equivalent("reference", reference=raises),
        lambda: kv.record("countries", "x.h5", raises),
    ):
        with pytest.raises(kv.UserError, match="making the engine failed: OSError: no weights"):
            call()
    with pytest.raises(kv.UserError, match="can be imported by its name"):
        kv.fuzz("reference", reference=raises, corpus="corpus")
