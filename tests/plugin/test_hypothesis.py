"""Hypothesis: strategies draw what they promise, and checks fail inside of `given` as they do outside."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kgverify as kv
from kgverify import strategies
from kgverify.dialects import ReferenceEngine
from kgverify.laws import draw_problems


@given(st.data())
@settings(deadline=None, max_examples=20)
def test_a_derivation_has_no_variables(data):
    query, facts = data.draw(strategies.derivations(data.draw(strategies.programs())))
    assert all(not isinstance(term, tuple) for atom in (query, *facts) for term in atom[1:])


@given(strategies.problems())
@settings(max_examples=5, deadline=None)
def test_an_engine_agrees_with_itself(problem):
    kv.assert_agrees(ReferenceEngine, problem)


def test_a_problem_that_fails_is_saved_for_a_replay(tmp_path: Path):
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


def test_an_engine_without_the_policy_is_rejected():
    @kv.engine_of
    def own(goal, clauses):
        return []

    unsupported = next(each for each in draw_problems(0) if each.policy.name == "two_tower")
    with pytest.raises(kv.UserError, match="refused this problem"):
        kv.assert_agrees(own, unsupported)
