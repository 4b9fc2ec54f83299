"""Hypothesis: the test of the page fails as the page says, and strategies draw what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warm_commands import run_shell

import kgverify as kv
from kgverify import strategies
from kgverify.dialects import ReferenceEngine
from kgverify.laws import draw_problems

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "pytest.md").read_text(encoding="utf-8")
TOY, _, _, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLE = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[1]
FAILURE = (
    "toy_engine does not agree",
    "first divergence: resolve",
    "candidate",
    "goal",
    "field",
    "difference",
    "expected",
    "actual",
)


@pytest.mark.deep
def test_the_page_shows_how_a_test_fails(tmp_path):
    (tmp_path / "toy_engine.py").write_text(TOY)
    (tmp_path / "test_drawn.py").write_text(TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_drawn.py", "--hypothesis-seed=0"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    # Which example remains depends on Hypothesis's version and on the modules that it takes for the user's; its form does not.
    assert re.search(".*".join(map(re.escape, FAILURE)), done.stdout, re.DOTALL), done.stdout
    assert re.search(r"problem=Problem:\n.*\? p\d\(.*% max_depth \d.*policy shortest", done.stdout, re.DOTALL), (
        done.stdout
    )
    assert {"problem=Problem:", "? p1(c0, c0)"} <= {line.strip() for line in EXAMPLE.splitlines()}
    (replayed,) = [text for text in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) if "replay" in text]
    again = run_shell(replayed, tmp_path)
    assert again.returncode == 1, again.stderr
    assert "still, and in the same way: resolve" in again.stdout


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_a_derivation_has_no_variables(data):
    program = data.draw(strategies.programs())
    query, facts = data.draw(strategies.derivations(program))
    assert all(not isinstance(term, tuple) for atom in (query, *facts) for term in atom[1:])


def test_every_strategy_is_on_the_page():
    public = {
        name for name, value in vars(strategies).items() if callable(value) and value.__module__ == strategies.__name__
    }
    assert {name for name in public if name[0] != "_"} == set(
        re.findall(r"`(\w+)\(", PAGE.partition("### Strategies")[2])
    )


@given(strategies.problems())
@settings(max_examples=5, deadline=None)
def test_an_engine_agrees_with_itself(problem):
    kv.assert_agrees(ReferenceEngine, problem)


def test_a_problem_that_fails_is_saved_for_a_replay(tmp_path):
    class OneStep(ReferenceEngine):
        def __init__(self, program, limits, policy):
            super().__init__(program, kv.Limits(1, limits.max_atoms, limits.max_resolvents), policy)

    file = tmp_path / "smallest.kg"
    for problem in draw_problems(0):
        try:
            kv.assert_agrees(OneStep, problem, save=file)
        except AssertionError:
            break
        assert not file.exists()
    again = kv.replay(file, OneStep)
    assert (again.is_same, again.reproducer.problem) == (True, problem)


def test_a_check_that_searches_by_itself_explains_itself_inside_of_given():
    @given(strategies.problems())
    @settings(max_examples=1, deadline=None, database=None)
    def draw(problem):
        kv.assert_equivalent(ReferenceEngine)

    with pytest.raises(kv.UserError, match=r"call kv\.assert_agrees\(engine, problem\)"):
        draw()


def test_an_engine_without_the_policy_is_rejected_inside_of_given_and_named_outside():
    @kv.engine_of
    def own(goal, clauses):
        return []

    unsupported = next(each for each in draw_problems(0) if each.policy.name == "two_tower")
    with pytest.raises(kv.UserError, match="does not support"):
        kv.assert_agrees(own, unsupported)
