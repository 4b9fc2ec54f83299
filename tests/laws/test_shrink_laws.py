"""Broken laws: shrunk with the law held fixed, saved, and checked again with and without the reference."""

from itertools import islice

import pytest

import kgverify as kv
from kgverify import EngineSpec, UserError, Verdict, check_engine
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
from kgverify.laws.replay import assert_agrees, find_violation
from kgverify.testing.campaigns.result import Corpus
from kgverify.testing.checking.check import Checker
from kgverify.testing.reproducers.text_format import parse_reproducer, write_test

PROBLEMS = list(islice(draw_problems(0), 96))
LOST = EngineSpec(faults=("last-fact-lost",))


@pytest.fixture(scope="module")
def broken():
    """Return a violation of a law, the shrunk problem, and the violation that it shows."""
    make = compiled_maker(faults=["last-fact-lost"])
    violation, *_ = check_laws(make, PROBLEMS, [find_law("fact-order")], most=1)
    return violation, *shrink_violation(violation, make, max_calls=200, seconds=30)


@pytest.fixture(scope="module")
def reproducer(broken):
    _, shrunk, smaller = broken
    return make_law_reproducer(smaller, LOST, neighbour=shrunk.change)


def test_a_broken_law_shrinks_to_little_that_breaks_the_same_law(broken):
    violation, shrunk, smaller = broken
    law, make = find_law("fact-order"), compiled_maker(faults=["last-fact-lost"])
    assert str(smaller).startswith("law broken: fact-order")
    assert smaller.problem == shrunk.problem
    assert shrunk.problem.size <= min(5, violation.problem.size)
    assert find_violation(shrunk.problem, law, make) is not None
    assert find_violation(shrunk.problem, law, compiled_maker()) is None
    assert find_violation(shrunk.neighbour.problem, law, make) is None
    with pytest.raises(UserError, match="does not fail again with"):
        shrink_violation(violation, compiled_maker())


@pytest.mark.deep
@pytest.mark.parametrize(
    ("fault", "name", "size"),
    [("sticky-outcome", "candidate-order", 3), ("chunk-boundary-dropped", "reported-once", 0)],
)
def test_a_law_that_only_a_batch_breaks_shrinks_too(fault, name, size):
    make = compiled_maker(faults=[fault])
    violation, *_ = check_laws(make, PROBLEMS, [find_law(name)], most=1)
    shrunk, smaller = shrink_violation(violation, make, max_calls=400, seconds=30)
    assert smaller.law == name
    assert shrunk.problem.size <= size
    assert find_violation(shrunk.problem, find_law(name), make) is not None


def test_the_file_names_the_law_and_reads_back_as_itself(reproducer):
    text = render_reproducer(reproducer)
    assert "\nclass: law\nlaw: fact-order\n" in text
    assert parse_reproducer(text) == reproducer
    assert parse_reproducer(text.replace("\nlaw:", "\nsituation:")) == reproducer
    with pytest.raises(UserError, match="expected a line `law"):
        parse_reproducer(text.replace("\nlaw: fact-order", ""))
    with pytest.raises(UserError, match="unknown law") as raised:
        kv.replay(parse_reproducer(text.replace("law: fact-order", "law: fact-orders")))
    assert "fact-order" in raised.value.fix


def test_a_replay_judges_the_law_and_compares_with_the_reference(reproducer):
    still = kv.replay(reproducer)
    assert (still.verdict, still.is_same) == (Verdict.DIVERGE, True)
    assert "still broken: the law fact-order" in str(still)
    assert "reference   differs: match_facts" in str(still)
    fixed = kv.replay(reproducer, "compiled")
    assert (fixed.verdict, fixed.is_same) == (Verdict.AGREE, False)
    assert "the law holds: fact-order\n   reference   agrees" in str(fixed)
    with pytest.raises(AssertionError, match="still broken"):
        assert_agrees(reproducer)


def test_the_generated_test_judges_the_law(reproducer, tmp_path):
    first = write_test(reproducer, tmp_path / "test_it.py")
    assert first.fails
    assert "still broken: the law fact-order" in first.message
    assert "_law_fact_order():" in (tmp_path / "test_it.py").read_text()
    assert not write_test(reproducer.with_engine(EngineSpec()), tmp_path / "test_it.py").fails


@pytest.mark.deep
def test_a_check_that_meets_a_broken_law_alone_makes_it_small_and_saves_it(tmp_path, monkeypatch):
    monkeypatch.setattr(Checker, "check", lambda *arguments, **options: ([], NOT_EXERCISED))
    report = check_engine(compiled_maker(faults=["last-fact-lost"]), examples=32, laws=[find_law("fact-order")])
    assert report.failure is None
    assert report.violations[0].problem.size <= 5
    assert "holds if: " in str(report)
    save_reproducer(report, tmp_path / "x.kg", LOST)
    assert kv.replay(tmp_path / "x.kg").is_same
    # A campaign replays no laws.
    assert Corpus(tmp_path).reproducers() == []
