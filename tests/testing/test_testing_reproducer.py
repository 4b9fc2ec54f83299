"""Reproducers: text that reads back as itself, mistakes reported with their line, replays, and generated tests."""

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgverify import Limits, Problem, UserError, Verdict
from kgverify.engines.protocol import Sizes
from kgverify.laws import render_reproducer
from kgverify.laws.replay import assert_agrees, replay
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL
from kgverify.runs.engine_makers import EAGER, EngineSpec, find_maker
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import CRASH, Failure, Signature
from kgverify.testing.problems.decode import SIZE, decode_problem
from kgverify.testing.problems.problem import PolicySpec, Spread
from kgverify.testing.reproducers.text_format import (
    Reproducer,
    escape_line,
    make_reproducer,
    parse_reproducer,
    read_reproducer,
    unescape,
    write_reproducer,
    write_test,
)
from kgverify.testing.shrinking.shrink import shrink

X, Y = Variable("X"), Variable("Y")
SIGNATURE = Signature("match_facts", "stage.match_facts", "missing", "a repeated variable is selected")
FACT = NamedAtom("p", "a", "b")
LAST_LOST = EngineSpec(faults=("last-fact-lost",))


names = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["a", "X", "_", "ranked", "it's", "a\\b", "a\nb", "\u2028", '"""', "\ud800", "%", "note: 1", "é", ""]
    ),
)
lines = st.text(max_size=20)


@st.composite
def problems(draw):
    pool = draw(st.lists(names, min_size=2, max_size=5, unique=True))
    constant, predicate = st.sampled_from(pool), st.sampled_from(draw(st.lists(names, min_size=1, max_size=3)))
    variable = st.sampled_from([X, Y, Variable("_z"), Variable("V1")])
    fact = st.builds(NamedAtom, predicate, constant, constant)
    atom = st.builds(NamedAtom, predicate, constant | variable, constant | variable)
    rule = st.builds(NamedRule, atom, st.lists(atom, min_size=1, max_size=3).map(tuple))
    return Problem(
        facts=draw(st.lists(fact, max_size=4).map(tuple)),
        rules=draw(st.lists(rule, max_size=3).map(tuple)),
        queries=draw(st.lists(fact, max_size=2).map(tuple)),
        unranked=draw(st.lists(atom, min_size=1, max_size=2).map(tuple)),
        constants=draw(st.lists(constant, max_size=2).map(tuple)),
        limits=Limits(draw(st.integers(1, 65535)), draw(st.integers(1, 31)), 4, draw(st.booleans())),
        policy=draw(st.sampled_from([PolicySpec(), PolicySpec("two_tower", 7, 4, 3, 0)])),
        num_corruptions=draw(st.sampled_from([ALL, 0, 3])),
        seed=draw(st.integers(0, 1 << 63)),
        sizes=Sizes(3, 1, 2, 4, 5, 6),
        spread=draw(st.sampled_from([Spread(), Spread(254, 1, 2)])),
    )


@pytest.mark.parametrize("text", [" ", "  ", " a ", "a", "", "\\ ", "a\u00a0"])
def test_blanks_at_the_ends_of_a_value_are_kept(text: str):
    assert unescape(escape_line(text)) == text
    assert escape_line(text) == escape_line(text).strip()


@settings(max_examples=150, deadline=None)
@given(problem=problems(), texts=st.tuples(lines, lines, lines, lines), lockstep=st.booleans(), step=st.integers(-1, 9))
def test_a_reproducer_reads_back_as_itself(problem, texts, lockstep, step):
    made = Reproducer(
        problem=problem,
        signature=SIGNATURE,
        candidate=texts[0],
        step=step,
        expected=(texts[1], "x"),
        actual=(texts[2],),
        message=texts[3],
        lockstep=lockstep,
        neighbour=texts[0],
        engine=EngineSpec(faults=("fact-cap", "last-argmax")),
        versions={"kgverify": "1.0"},
        notes=(texts[1],),
    )
    text = render_reproducer(made)
    text.encode("utf-8")
    assert parse_reproducer(text) == made


@settings(max_examples=50, deadline=None)
@given(data=st.binary(min_size=SIZE, max_size=SIZE))
def test_every_decoded_problem_reads_back_as_itself(data):
    made = Reproducer(problem=decode_problem(data), signature=SIGNATURE)
    if made.problem.queries or not made.problem.num_corruptions:
        assert parse_reproducer(render_reproducer(made)) == made


def test_a_rule_of_another_format_gets_variables_that_can_be_written():
    rule = NamedRule(NamedAtom("p", Variable("a"), Variable("?b")), (NamedAtom("q", Variable("?b"), "X"),), "r0", 0.5)
    made = Reproducer(problem=Problem(rules=(rule,), unranked=(FACT,)), signature=SIGNATURE)
    text = render_reproducer(made)
    assert "p(X, Y) :- q(Y, 'X')." in text
    (read,) = parse_reproducer(text).problem.rules
    assert (read.clause_head, read.body) == (NamedAtom("p", X, Y), (NamedAtom("q", Y, "X"),))


GOOD = render_reproducer(Reproducer(problem=Problem(facts=(FACT,), unranked=(FACT,)), signature=SIGNATURE))


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("% kgverify reproducer 1", "p(a, b).", ":1"),
        ("\np(a, b).", "\np(a, X).", ":3: expected a fact"),
        ("\np(a, b).", "\np(a, b)", ":3: expected '.'"),
        ("\np(a, b).", "\np(a, b). q(a, b).", ":3: expected the end"),
        ("\np(a, b).", "\np(a).", ":3: expected ','"),
        ("\np(a, b).", "\np(a, _).", ":3: expected a name, found _"),
        ("\np(a, b).", "\np(a, é).", ":3: cannot read"),
        ("\np(a, b).", "\nP(a, b).", ":3: expected a predicate"),
        ("max_depth 20", "max_dept 20", ": unknown 'max_dept'"),
        ("max_depth 20", "max_depth 0", ": max_depth is 0"),
        ("max_depth 20", "max_depth x", "expected a number"),
        ("exclude_query yes", "exclude_query 1", "expected 'yes' or 'no'"),
        ("sizes: slots 2", "sizes: slots 0", "expected 1 or more"),
        ("policy: shortest", "policy: best", "unknown policy"),
        ("policy: shortest", "policie: shortest", "unknown key 'policie'"),
        ("policy: shortest", "policy: shortest\npolicy: shortest", "a second line 'policy'"),
        ("free-running", "freely", "expected 'in lockstep' or 'free-running'"),
        ("class: missing", "", "expected a line `class"),
        ("?- p(a, b).", "", "expected a query"),
        ("compared", "constants: a b\ncompared", "expected a comma"),
    ],
)
def test_a_mistake_is_reported_with_its_line(old, new, where):
    assert old in GOOD
    with pytest.raises(UserError) as error:
        parse_reproducer(GOOD.replace(old, new, 1), "x.kg")
    assert str(error.value).startswith("x.kg")
    assert where in str(error.value)
    assert error.value.fix


def test_files_that_cannot_be_read_or_written_are_mistakes(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_reproducer(tmp_path / "none.kg")
    (tmp_path / "latin.kg").write_bytes(b"\xff")
    with pytest.raises(UserError, match="UTF-8"):
        read_reproducer(tmp_path / "latin.kg")
    with pytest.raises(UserError, match="cannot be written"):
        write_reproducer(parse_reproducer(GOOD), tmp_path / "none" / "x.kg")


@pytest.fixture(scope="module")
def reproducer() -> Reproducer:
    problem = Problem(facts=(FACT, NamedAtom("p", "b", "c")), unranked=(NamedAtom("p", "b", X),))
    shrunk = shrink(Checker(find_maker(LAST_LOST)).judge(problem), Checker(find_maker(LAST_LOST)))
    return make_reproducer(shrunk.failure, LAST_LOST, neighbour=shrunk.change)


def test_a_replay_tells_the_same_difference_another_and_none(reproducer):
    same = replay(reproducer)
    assert (same.verdict, same.is_same) == (Verdict.DIVERGE, True)
    assert "in the same way" in str(same)
    assert make_reproducer(same.failure, LAST_LOST, neighbour=reproducer.neighbour) == reproducer
    fixed = replay(reproducer, find_maker(EAGER))
    assert (fixed.verdict, fixed.is_same, fixed.failure) == (Verdict.AGREE, False, None)
    assert_agrees(reproducer, find_maker(EAGER))
    with pytest.raises(AssertionError, match="match_facts"):
        assert_agrees(reproducer)
    other = replay(replace(reproducer, signature=SIGNATURE))
    assert (other.verdict, other.is_same) == (Verdict.DIVERGE, False)
    assert "in another way" in str(other)


def test_what_takes_company_is_no_reproducer():
    problem = Problem(unranked=(FACT,))
    failure = Failure(index=0, problem=problem, group=(problem, problem), signature=SIGNATURE)
    with pytest.raises(UserError, match="only in one run with 1 other"):
        make_reproducer(failure)


TOY = """
from dataclasses import replace
from kgverify.engines.protocol import Engine
from kgverify.engines.reference.engine import ReferenceEngine
from kgverify.program.atoms import NamedAtom

IS_REPAIRED = False


def make(program, limits, policy):
    if any(rule.body[0][1] == rule.body[0][2] for rule in program.rules) and not IS_REPAIRED:
        raise IndexError("no room for p(X, X)")
    return ReferenceEngine(program, limits, policy)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_engine.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield EngineSpec("toy_engine:make")
    sys.modules.pop("toy_engine", None)


@pytest.mark.deep
def test_a_third_party_engine_that_raises_an_exception_shrinks_to_what_makes_it(toy, tmp_path):
    rules = (
        NamedRule(NamedAtom("p", X, Y), (NamedAtom("q", X, Y), NamedAtom("p", X, X))),
        NamedRule(NamedAtom("q", X, Y), (NamedAtom("r", X, X), NamedAtom("p", Y, X))),
    )
    problem = Problem(facts=(FACT,), rules=rules, unranked=(FACT, NamedAtom("q", "a", X)))
    make = find_maker(toy)
    shrunk = shrink(Checker(make).judge(problem), Checker(make))
    assert shrunk.failure.signature == ("", "", CRASH, "IndexError")
    assert shrunk.problem.size == 2
    assert shrunk.neighbour is not None
    made = make_reproducer(shrunk.failure, toy, neighbour=shrunk.change)
    assert parse_reproducer(render_reproducer(made)) == made
    assert "no room for p(X, X)" in str(replay(made))

    test = tmp_path / "test_toy.py"
    assert write_test(made, test).fails
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    before = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert before.returncode == 1
    assert "no room for p(X, X)" in before.stdout
    engine = tmp_path / "toy_engine.py"
    engine.write_text(TOY.replace("IS_REPAIRED = False", "IS_REPAIRED = True "))
    after = subprocess.run([sys.executable, "-B", *command[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert after.returncode == 0, after.stdout


def test_a_test_that_does_not_fail_is_reported(reproducer, tmp_path):
    first = write_test(reproducer.with_engine(EAGER), tmp_path / "test_it.py")
    assert first == (False, "both sides agree")
    with pytest.raises(UserError, match="pytest does not collect"):
        write_test(reproducer, tmp_path / "it.py")
    with pytest.raises(UserError, match="cannot be written"):
        write_test(reproducer, tmp_path / "none" / "test_it.py")


@pytest.mark.parametrize(
    ("name", "message"),
    [("other", "cannot make"), ("no_such_module:make", "cannot import"), ("textwrap:no_such", "has no 'no_such'")],
)
def test_an_engine_that_cannot_be_made_is_a_mistake(name, message):
    with pytest.raises(UserError, match=message):
        find_maker(EngineSpec(name))
