"""Broken laws: shrunk with the law held fixed, saved, and checked again with and without the reference."""

from itertools import islice

import pytest

from kgverify import UserError, Verdict, check_engine
from kgverify.comparison.exercise.exercise import NOT_EXERCISED
from kgverify.conformance import save_reproducer
from kgverify.laws import (
    check_laws,
    compiled_maker,
    draw_problems,
    find_law,
    make_law_reproducer,
    render_reproducer,
    shrink_violation,
)
from kgverify.laws.replay import assert_agrees, find_violation, replay
from kgverify.runs.engine_makers import EAGER, EngineSpec, find_maker
from kgverify.testing.campaigns.result import Corpus
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import LAW
from kgverify.testing.reproducers.text_format import parse_reproducer, read_reproducer, write_test

PROBLEMS = list(islice(draw_problems(0), 96))
LOST = EngineSpec(faults=("last-fact-lost",))


def broken(fault, name):
    make = find_maker(EngineSpec(faults=(fault,)))
    violation, *_ = check_laws(make, PROBLEMS, [find_law(name)], most=1)
    return violation, make


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("fault", "name", "size"),
    [
        ("last-fact-lost", "fact-order", 5),
        ("true-not-alone", "fact-proves", 4),
        ("sticky-outcome", "candidate-order", 3),
        ("max-depth-off-by-one", "outcome", 3),
        ("chunk-boundary-dropped", "reported-once", 0),
        ("optimistic-ties", "ranks", 1),
    ],
)
def test_a_broken_law_shrinks_to_little_that_breaks_the_same_law(fault, name, size):
    violation, make = broken(fault, name)
    shrunk, smaller = shrink_violation(violation, make, max_calls=400, seconds=30)
    assert smaller.law == name
    assert smaller.problem == shrunk.problem
    assert shrunk.problem.size <= min(size, violation.problem.size)
    assert find_violation(shrunk.problem, find_law(name), make) is not None
    assert find_violation(shrunk.problem, find_law(name), find_maker(EAGER)) is None
    if shrunk.neighbour is not None:
        assert find_violation(shrunk.neighbour.problem, find_law(name), make) is None


def test_a_law_that_is_not_broken_again_cannot_be_shrunk():
    violation, _ = broken("last-fact-lost", "fact-order")
    with pytest.raises(UserError, match="does not fail again with"):
        shrink_violation(violation, find_maker(EAGER))


@pytest.fixture(scope="module")
def reproducer():
    violation, make = broken("last-fact-lost", "fact-order")
    shrunk, smaller = shrink_violation(violation, make, max_calls=200, seconds=30)
    return make_law_reproducer(smaller, LOST, neighbour=shrunk.neighbour.change if shrunk.neighbour else "")


def test_the_file_names_the_law_and_reads_back_as_itself(reproducer):
    text = render_reproducer(reproducer)
    assert "\nclass: law\nlaw: fact-order\n" in text
    assert parse_reproducer(text) == reproducer
    assert parse_reproducer(text.replace("\nlaw:", "\nsituation:")) == reproducer
    with pytest.raises(UserError, match="expected a line `law"):
        parse_reproducer(text.replace("\nlaw: fact-order", ""))


def test_a_replay_judges_the_law_and_compares_with_the_reference(reproducer):
    still = replay(reproducer)
    assert (still.verdict, still.is_same) == (Verdict.DIVERGE, True)
    assert "still broken: the law fact-order" in str(still)
    assert "reference   differs: match_facts" in str(still)
    fixed = replay(reproducer, find_maker(EAGER))
    assert (fixed.verdict, fixed.is_same) == (Verdict.AGREE, False)
    assert "the law holds: fact-order\n   reference   agrees" in str(fixed)
    assert_agrees(reproducer, find_maker(EAGER))
    with pytest.raises(AssertionError, match="still broken"):
        assert_agrees(reproducer)


def test_the_generated_test_judges_the_law(reproducer, tmp_path):
    first = write_test(reproducer, tmp_path / "test_it.py")
    assert first.fails
    assert "still broken: the law fact-order" in first.message
    assert "_law_fact_order():" in (tmp_path / "test_it.py").read_text()
    assert not write_test(reproducer.with_engine(EAGER), tmp_path / "test_it.py").fails


def test_an_unknown_law_is_an_error(reproducer):
    text = render_reproducer(reproducer).replace("law: fact-order", "law: fact-orders")
    with pytest.raises(UserError, match="unknown law") as raised:
        replay(parse_reproducer(text))
    assert "fact-order" in raised.value.fix


def test_a_check_that_meets_a_broken_law_alone_makes_it_small_and_saves_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Checker, "check", lambda *arguments, **options: ([], NOT_EXERCISED))
    report = check_engine(find_maker(LOST), examples=32, laws=[find_law("fact-order")])
    assert report.failure is None
    assert report.violations[0].problem.size <= 5
    assert "holds if: " in str(report)
    save_reproducer(report, tmp_path / "x.kg", LOST)
    made = read_reproducer(tmp_path / "x.kg")
    assert (made.signature.kind, made.signature.situation) == (LAW, "fact-order")
    assert replay(made).is_same
    assert Corpus(tmp_path).reproducers() == []


@pytest.mark.deep
def test_a_broken_law_becomes_a_smallest_problem_and_a_reproducer():
    make_pipeline = compiled_maker(faults=["last-fact-lost"])
    violation, *_ = find_law("fact-order").check(make_pipeline, list(islice(draw_problems(0), 64)), most=1)
    _, smallest = shrink_violation(violation, make_pipeline)
    assert str(smallest).startswith("law broken: fact-order")
    assert "law: fact-order\n" in render_reproducer(make_law_reproducer(smallest))
