"""The example `padded_engine`: its twins agree on everything, and every fault written into the fast one is found."""

import ast
import inspect
import re
import textwrap
from itertools import islice
from pathlib import Path
from statistics import median

import padded_faults
import pytest
from fast import Fast
from slow import Slow

import kgverify as kv
from kgverify.laws import draw_problems
from kgverify.runs.engine_makers import as_maker
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.guard import find_supported
from kgverify.testing.shrinking.shrink import Budget, shrink

SLOW = as_maker(Slow)
MOST_ELEMENTS = 4
"""The median number of elements of the shrunk problems is at most this."""


def draw(seed, num):
    """Return generated problems whose policy both engines support."""
    problems = list(islice(draw_problems(seed), num))
    return [problems[i] for i in find_supported(as_maker(Fast), problems)]


def find(fault, num):
    """Return the first failure among generated problems."""
    failures = Checker(as_maker(padded_faults.plant(fault)), SLOW).check(draw(0, num), most=1)[0]
    return failures[0] if failures else None


def test_the_twins_agree_on_a_graph():
    report = kv.verify("countries", engine=Fast, reference=Slow, queries=2, corruptions=3)
    assert report.verdict is kv.Verdict.AGREE, str(report)
    assert {"resolvents.origin", "steps.dropped_atoms"} <= set(report.coverage.not_compared)
    assert "Fast (torch, choices by kgverify, cpu, float64)" in " ".join(str(report).split())


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_twins_agree_on_generated_problems(lockstep):
    problems = draw(1, 120)
    assert len(problems) > 90
    assert Checker(as_maker(Fast), SLOW, lockstep=lockstep).check(problems)[0] == []


@pytest.mark.parametrize("fault", padded_faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_fast_twin_is_found(fault):
    failure = find(fault, 64)
    assert failure is not None
    assert failure.divergence is not None


def test_there_are_twelve_faults_of_different_classes():
    assert len({fault.__name__ for fault in padded_faults.FAULTS}) == 12
    assert all(fault.__doc__ for fault in padded_faults.FAULTS)


@pytest.mark.exhaustive
def test_faults_shrink_to_a_few_elements():
    sizes = {}
    for fault in padded_faults.FAULTS:
        shrunk = shrink(find(fault, 64), Checker(as_maker(padded_faults.plant(fault)), SLOW), Budget(seconds=30))
        sizes[fault.__name__] = shrunk.problem.size
    assert median(sizes.values()) <= MOST_ELEMENTS, sizes


@pytest.mark.exhaustive
def test_the_twins_agree_on_many_problems():
    num = 0
    for seed in range(20):
        problems = draw(seed, 5500)
        num += len(problems)
        assert Checker(as_maker(Fast), SLOW).check(problems)[0] == []
    assert num >= 100_000


def count_lines(source):
    """Return the number of lines of statements: without blank lines, comments and docstrings."""
    tree = ast.parse(textwrap.dedent(source))
    documented = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
    texts = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    in_text = {line for node in texts for line in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(textwrap.dedent(source).splitlines(), start=1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and i not in in_text for i, line in lines)


def test_the_adapters_of_the_example_are_short():
    assert count_lines(inspect.getsource(Fast)) <= 20


def test_the_readme_shows_what_its_code_prints(capsys):
    blocks = re.findall(
        r"```(\w+)\n(.*?)```", (Path(inspect.getfile(Fast)).parent / "README.md").read_text("utf-8"), re.DOTALL
    )
    (code,) = [text for kind, text in blocks if kind == "python"]
    (printed,) = [text for kind, text in blocks if kind == "text"]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed
