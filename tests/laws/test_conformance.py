"""The conformance suite: an engine of two methods is enough, and its mistakes are reported."""

import os
import re
from itertools import islice

import pytest

import kgverify as kv
from kgverify import NotConforming, StepwiseEngine, UserError, check_engine
from kgverify.dialects import ReferenceEngine
from kgverify.laws import draw_problems, find_law, make_law_reproducer, render_reproducer

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

    num_asked = 0

    def prove(self, candidates):
        columns = super().prove(candidates)
        self.num_asked += 1
        if self.num_asked > 1:
            return columns._replace(candidates=columns.candidates._replace(outcome=columns.candidates.outcome * 0 + 2))
        return columns


@pytest.mark.deep
def test_two_methods_are_enough():
    report = check_engine(TwoMethods, problems=PROBLEMS[:8])
    assert report.is_conforming
    assert re.match(r"TwoMethods \(.*test_conformance.py:\d+\) conforms: 8 problems, 42 laws", str(report))
    report.raise_if_broken()


class Doubtful(ReferenceEngine):
    """Says that limits decided about each proof."""

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        rows = columns.candidates
        return columns._replace(candidates=rows._replace(is_limited=rows.is_limited ^ (rows.outcome == 1)))


def test_a_difference_is_shrunk_reported_and_saved(tmp_path):
    report = check_engine(Doubtful, problems=PROBLEMS[:8], laws=())
    assert report.problem.size <= 3
    with pytest.raises(NotConforming, match="first divergence: advance"):
        report.raise_if_broken()
    path = tmp_path / "doubtful.kg"
    with pytest.raises(AssertionError, match="advance"):
        kv.assert_agrees(Doubtful, report.problem, save=path)
    again = kv.replay(path, Doubtful)
    assert (again.is_same, again.reproducer.problem) == (True, report.problem)


@pytest.mark.deep
def test_an_engine_that_agrees_and_does_not_repeat_itself_breaks_laws(tmp_path):
    report = check_engine(Forgetful, problems=PROBLEMS[:8], laws=[find_law("repetition")])
    assert report.failure is None
    assert {each.law for each in report.violations} == {"repetition"}
    assert report.problem.size <= 5
    assert "law broken: repetition" in str(report)
    (tmp_path / "forgetful.kg").write_text(render_reproducer(make_law_reproducer(report.violations[0])))
    assert kv.replay(tmp_path / "forgetful.kg", Forgetful).is_same
    # A campaign replays no laws.
    assert "replayed" not in str(kv.fuzz("reference", examples=1, corpus=tmp_path))


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
    with pytest.raises(UserError, match="expected 1 example or more"):
        check_engine(TwoMethods, examples=0)


def test_an_engine_of_which_nothing_was_checked_is_not_conforming():
    report = check_engine(type("Nothing", (StepwiseEngine,), {"policies": ()}), problems=PROBLEMS)
    assert (report.num_problems, report.num_skipped, report.is_conforming) == (0, 24, False)
    assert "nothing was checked" in str(report)


def test_an_engine_that_ends_the_process_does_not_end_the_test_run():
    class Exits(TwoMethods):
        def prove(self, candidates):
            os._exit(0)

    report = check_engine(Exits, problems=PROBLEMS[:1], laws=())
    assert not report.is_conforming
    assert str(report.failure.signature) == "crash SystemExit"
    assert os._exit.__module__ == "posix" or os.name == "nt"
