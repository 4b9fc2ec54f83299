"""The conformance suite: an engine of two methods is enough, and its mistakes are reported."""

import os
from itertools import islice

import pytest

from kgverify import StepwiseEngine, UserError, check_engine
from kgverify.conformance import NotConforming, save_reproducer
from kgverify.dialects import ReferenceEngine
from kgverify.laws import compiled_maker, draw_problems
from kgverify.runs.engine_makers import EngineSpec
from kgverify.testing.reproducers.text_format import read_reproducer

PROBLEMS = list(islice(draw_problems(5), 24))


class TwoMethods:
    """The reference with `prove` and `step` alone."""

    def __init__(self, program, limits, policy):
        self._engine = ReferenceEngine(program, limits, policy)

    def prove(self, candidates):
        return self._engine.prove(candidates)

    def step(self, positions):
        return self._engine.step(positions)


class Forgetful(TwoMethods):
    """Right at first, and wrong when it is asked again."""

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self._num_asked = 0

    def prove(self, candidates):
        columns = super().prove(candidates)
        self._num_asked += 1
        if self._num_asked > 1:
            return columns._replace(candidates=columns.candidates._replace(outcome=columns.candidates.outcome * 0 + 2))
        return columns


@pytest.mark.exhaustive
def test_two_methods_are_enough():
    report = check_engine(TwoMethods, problems=PROBLEMS)
    assert report.is_conforming
    assert str(report).startswith("TwoMethods conforms: 24 problems, 42 laws")
    report.raise_if_broken()


def test_a_difference_is_shrunk_reported_and_saved(tmp_path):
    report = check_engine(compiled_maker(faults=["last-fact-lost"]), problems=PROBLEMS[:8])
    assert report.problem.size <= 3
    with pytest.raises(NotConforming, match="first divergence: match_facts at step 0"):
        report.raise_if_broken()
    path = tmp_path / "new" / "last.kg"
    save_reproducer(report, path, EngineSpec(faults=("last-fact-lost",)))
    assert read_reproducer(path).problem == report.problem


@pytest.mark.exhaustive
def test_an_engine_that_agrees_and_does_not_repeat_itself_breaks_laws(tmp_path):
    report = check_engine(Forgetful, problems=PROBLEMS[:8])
    assert report.failure is None
    assert "repetition" in {each.law for each in report.violations}
    assert "law broken: " in str(report)
    path = tmp_path / "forgetful.kg"
    save_reproducer(report, path, EngineSpec("tests:Forgetful"))
    assert read_reproducer(path).problem == report.violations[0].problem


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda program, limits, policy: object(), "method prove"),
        (lambda program, limits, policy: type("Half", (), {"prove": lambda self, c: c})(), "method step"),
        (lambda: None, r"expected a class, or a function of \(program, limits, policy\)"),
        (3, "an object of type int, which cannot be called"),
        ("module:name", "cannot import 'module'"),
    ],
)
def test_what_is_no_engine_is_the_users_mistake(factory, message):
    with pytest.raises(UserError, match=message):
        check_engine(factory, problems=PROBLEMS[:2])


def test_policies_that_an_engine_does_not_know_are_skipped_and_nothing_checked_is_not_conforming():
    class Nothing(StepwiseEngine):
        policies = ()

    report = check_engine(Nothing, problems=PROBLEMS)
    assert (report.num_problems, report.num_skipped, report.is_conforming) == (0, 24, False)
    assert "nothing was checked" in str(report)


class Exits(TwoMethods):
    """Ends the process, as if all were well."""

    def prove(self, candidates):
        os._exit(0)


def test_an_engine_that_ends_the_process_does_not_end_the_test_run():
    report = check_engine(Exits, problems=PROBLEMS[:1], laws=())
    assert not report.is_conforming
    assert str(report.failure.signature) == "crash SystemExit"
    assert os._exit.__module__ == "posix" or os.name == "nt"


def test_no_examples_are_the_users_mistake():
    with pytest.raises(UserError, match="expected 1 example or more"):
        check_engine(TwoMethods, examples=0)
