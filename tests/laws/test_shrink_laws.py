"""Broken laws: shrunk with the law held fixed, saved, and checked again with and without the reference."""

import re
import runpy
from itertools import islice

import pytest
from invoked_commands import invoke

import kgverify as kv
from kgverify import EngineSpec, UserError, Verdict
from kgverify.laws import (
    check_laws,
    compiled_maker,
    draw_problems,
    find_law,
    make_law_reproducer,
    render_reproducer,
    shrink_violation,
)

PROBLEMS = list(islice(draw_problems(0), 96))
LAW, MAKE = find_law("fact-order"), compiled_maker(faults=["last-fact-lost"])


@pytest.fixture(scope="module")
def broken():
    """Return a violation of a law, the shrunk problem, and the violation that it shows."""
    violation, *_ = check_laws(MAKE, PROBLEMS, [LAW], most=1)
    return violation, *shrink_violation(violation, MAKE, max_calls=100, seconds=30)


@pytest.fixture(scope="module")
def reproducer(broken):
    _, shrunk, smaller = broken
    return make_law_reproducer(smaller, EngineSpec(faults=("last-fact-lost",)), neighbour=shrunk.change)


def test_a_broken_law_shrinks_to_little_that_breaks_the_same_law(broken):
    violation, shrunk, smaller = broken
    assert str(smaller).startswith("law broken: fact-order")
    assert smaller.problem == shrunk.problem
    assert shrunk.problem.size <= min(5, violation.problem.size)
    assert check_laws(MAKE, [shrunk.problem], [LAW])
    assert not check_laws(compiled_maker(), [shrunk.problem], [LAW])
    assert not check_laws(MAKE, [shrunk.neighbour.problem], [LAW])
    with pytest.raises(UserError, match="does not fail again with"):
        shrink_violation(violation, compiled_maker())


@pytest.mark.parametrize(
    ("fault", "name", "size"),
    [
        pytest.param("sticky-outcome", "candidate-order", 3, marks=pytest.mark.exhaustive),
        pytest.param("chunk-boundary-dropped", "reported-once", 0, marks=pytest.mark.deep),
    ],
)
def test_a_law_that_only_a_batch_breaks_shrinks_too(fault, name, size):
    make = compiled_maker(faults=[fault])
    violation, *_ = check_laws(make, PROBLEMS, [find_law(name)], most=1)
    shrunk, smaller = shrink_violation(violation, make, max_calls=400, seconds=30)
    assert smaller.law == name
    assert shrunk.problem.size <= size
    assert check_laws(make, [shrunk.problem], [find_law(name)])


def test_the_file_names_the_law_and_reads_back_as_itself(reproducer, tmp_path):
    text, path = render_reproducer(reproducer), tmp_path / "broken.kg"
    assert "\nclass: law\nlaw: fact-order\n" in text
    for written in (text, text.replace("\nlaw:", "\nsituation:")):
        path.write_text(written)
        assert kv.replay(path).reproducer == reproducer
    path.write_text(text.replace("\nlaw: fact-order", ""))
    with pytest.raises(UserError, match="expected a line `law"):
        kv.replay(path)
    path.write_text(text.replace("law: fact-order", "law: fact-orders"))
    with pytest.raises(UserError, match="unknown law") as raised:
        kv.replay(path)
    assert "fact-order" in raised.value.fix


def test_a_replay_judges_the_law_and_compares_with_the_reference(reproducer):
    still = kv.replay(reproducer)
    assert (still.verdict, still.is_same) == (Verdict.DIVERGE, True)
    assert "still broken: the law fact-order" in str(still)
    assert "reference   differs: match_facts" in str(still)
    fixed = kv.replay(reproducer, "compiled")
    assert (fixed.verdict, fixed.is_same) == (Verdict.AGREE, False)
    assert "the law holds: fact-order\n   reference   agrees" in str(fixed)


def test_the_generated_test_judges_the_law(reproducer, tmp_path):
    (tmp_path / "broken.kg").write_text(render_reproducer(reproducer))
    done = invoke("replay broken.kg --pytest test_it.py", tmp_path)
    assert (done.exit_code, "it fails, as it must before the repair" in done.output) == (1, True)
    generated = (tmp_path / "test_it.py").read_text()
    (name,) = re.findall(r"^def (test_\w*_law_fact_order)\(\)", generated, re.MULTILINE)
    with pytest.raises(AssertionError, match="law broken: fact-order"):
        runpy.run_path(str(tmp_path / "test_it.py"))[name]()
    done = invoke("replay broken.kg --engine compiled --pytest test_fixed.py", tmp_path)
    assert (done.exit_code, "IT DOES NOT FAIL" in done.output) == (0, True)
