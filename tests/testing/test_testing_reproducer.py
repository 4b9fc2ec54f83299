"""Reproducers: text that reads back as itself, mistakes reported with their line, replays, and generated tests."""

import platform
import re
from dataclasses import replace
from importlib.metadata import version

import pytest
from fault_search import failure_of
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_text import problem_of

import kgverify as kv
from kgverify import (
    EngineSpec,
    Limits,
    NamedAtom,
    NamedRule,
    PolicySpec,
    Problem,
    Reproducer,
    Sizes,
    UserError,
    Verdict,
    Vocabulary,
)
from kgverify.dialects import Dialect
from kgverify.laws import render_reproducer
from kgverify.program.atoms import Variable
from kgverify.runs.engine_makers import PLAIN, find_maker
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure, Signature
from kgverify.testing.problems.decode import SIZE, decode_problem
from kgverify.testing.reproducers.text_format import (
    make_reproducer,
    parse_reproducer,
    render_test,
    write_reproducer,
    write_test,
)
from kgverify.testing.shrinking.shrink import shrink

X, Y = Variable("X"), Variable("Y")
SIGNATURE = Signature("match_facts", "stage.match_facts", "missing", "a repeated variable is selected")
LAST_LOST = EngineSpec(faults=("last-fact-lost",))
QUIRKS = ["a", "X", "_", "ranked", "it's", "a\\b", "a\nb", "\u2028", '"""', "\ud800", "%", "note: 1", "é", ""]

names = st.text(max_size=6) | st.sampled_from(QUIRKS)
lines = st.text(max_size=20)


@st.composite
def problems(draw):
    pool = draw(st.lists(names, min_size=2, max_size=5, unique=True))
    predicates = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    constant, predicate = st.sampled_from(pool), st.sampled_from(predicates)
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
        limits=Limits(
            draw(st.integers(1, 65535)),
            draw(st.integers(1, 31)),
            4,
            draw(st.booleans()),
            draw(st.sampled_from(DIALECTS)),
        ),
        policy=draw(st.sampled_from([PolicySpec(), PolicySpec("two_tower", 7, 4, 3, 0)])),
        num_corruptions=draw(st.sampled_from([-1, 0, 3])),
        seed=draw(st.integers(0, 1 << 63)),
        sizes=Sizes(3, 1, 2, 4, 5, 6),
        vocabulary=draw(
            st.sampled_from(
                [
                    Vocabulary(),
                    Vocabulary(("7", 1, "unused"), (254, "it's", 2)),
                    Vocabulary(tuple(predicates), (3, *pool), is_closed=True),
                ]
            )
        ),
    )


def run_code(made: Reproducer) -> dict[str, object]:
    """Execute the code of a reproducer without its last line, the check."""
    names: dict[str, object] = {}
    exec(made.to_python().rstrip().rpartition("\n")[0], names)
    return names


DIALECTS = (
    Dialect(),
    Dialect(memory="set", filters=("close", "prune")),
    Dialect(search="sample(4, 0)", aggregate="sum"),
    Dialect(search="beam(2)", merge="max", order="facts_first"),
)


@settings(max_examples=60, deadline=None)
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
    assert run_code(made)["PROBLEM"] == problem
    assert compile(render_test(made), "test", "exec")


@settings(max_examples=30, deadline=None)
@given(data=st.binary(min_size=SIZE, max_size=SIZE))
def test_every_decoded_problem_reads_back_as_itself(data):
    made = Reproducer(problem=decode_problem(data), signature=SIGNATURE)
    if made.problem.queries or not made.problem.num_corruptions:
        assert parse_reproducer(render_reproducer(made)) == made


def test_a_rule_of_another_format_gets_variables_that_can_be_written():
    rule = NamedRule(NamedAtom("p", Variable("a"), Variable("?b")), (NamedAtom("q", Variable("?b"), "X"),), "r0", 0.5)
    text = render_reproducer(Reproducer(problem=replace(problem_of("? p(a, b)"), rules=(rule,)), signature=SIGNATURE))
    assert "p(X, Y) :- q(Y, 'X')." in text
    (read,) = parse_reproducer(text).problem.rules
    assert (read.clause_head, read.body) == (NamedAtom("p", X, Y), (NamedAtom("q", Y, "X"),))


GOOD_PROBLEM = problem_of("p(a, b); ? p(a, b)")
GOOD = render_reproducer(Reproducer(problem=GOOD_PROBLEM, signature=SIGNATURE))


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
        ("compared", "constants: a, X\ncompared", "expected a constant, found the variable X"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path, old, new, where):
    assert old in GOOD
    (tmp_path / "x.kg").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        kv.replay(tmp_path / "x.kg")
    assert str(error.value).startswith(str(tmp_path / "x.kg"))
    assert where in str(error.value)
    assert error.value.fix


def test_files_that_cannot_be_read_or_written_are_mistakes(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        kv.replay(tmp_path / "none.kg")
    (tmp_path / "latin.kg").write_bytes(b"\xff")
    with pytest.raises(UserError, match="UTF-8"):
        kv.replay(tmp_path / "latin.kg")
    with pytest.raises(UserError, match="cannot be written"):
        write_reproducer(parse_reproducer(GOOD), tmp_path / "none" / "x.kg")


@pytest.fixture(scope="module")
def reproducer() -> Reproducer:
    failure = failure_of(problem_of("p(b, c); ? p(b, X)"))
    return make_reproducer(failure, LAST_LOST)


def test_a_replay_tells_the_same_difference_another_and_none(reproducer):
    same = kv.replay(reproducer)
    assert (same.verdict, same.is_same) == (Verdict.DIVERGE, True)
    assert "in the same way" in str(same)
    assert make_reproducer(same.failure, LAST_LOST) == reproducer
    fixed = kv.replay(reproducer, "compiled")
    assert (fixed.verdict, fixed.is_same, fixed.failure) == (Verdict.AGREE, False, None)
    other = kv.replay(replace(reproducer, signature=SIGNATURE))
    assert (other.verdict, other.is_same) == (Verdict.DIVERGE, False)
    now = other.failure.signature
    assert (now, SIGNATURE) == (reproducer.signature, other.reproducer.signature)
    assert str(other).startswith(f"DIVERGE   in another way: {now}\n   was         {SIGNATURE}\n")


def test_a_reproducer_holds_the_version_of_each_library_that_ran(reproducer):
    compiled = {"kgverify": kv.__version__, "python": platform.python_version(), "torch": version("torch")}
    assert reproducer.versions == compiled
    failure = kv.replay(reproducer).failure
    assert make_reproducer(failure, PLAIN, reference=LAST_LOST).versions == compiled
    del compiled["torch"]
    assert make_reproducer(failure, EngineSpec("mine:Engine"), reference=EngineSpec("reference")).versions == compiled


def test_what_takes_company_is_no_reproducer():
    problem = problem_of("? p(a, b)")
    failure = Failure(index=0, problem=problem, group=(problem, problem), signature=SIGNATURE)
    with pytest.raises(UserError, match="only in one run with 1 other"):
        make_reproducer(failure)


TOY = """
from kgverify.dialects import ReferenceEngine

IS_REPAIRED = False


def make(program, limits, policy):
    if any(rule.body[0][1] == rule.body[0][2] for rule in program.rules) and not IS_REPAIRED:
        raise IndexError("no room for p(X, X)")
    return ReferenceEngine(program, limits, policy)
"""


def test_a_crash_of_a_third_party_engine_becomes_a_test_that_passes_when_it_is_repaired(tmp_path, monkeypatch):
    test = tmp_path / "test_toy.py"
    (tmp_path / "toy_engine.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = problem_of("p(a, b); p(X, Y) <- q(X, Y), p(X, X); q(X, Y) <- r(X, X), p(Y, X); ? p(a, b); ? q(a, X)")
    checker = Checker(find_maker("toy_engine:make"))
    shrunk = shrink(checker.judge(problem), checker)
    assert str(shrunk.failure.signature) == "crash IndexError"
    assert shrunk.problem.size == 2
    made = make_reproducer(shrunk.failure, EngineSpec("toy_engine:make"), neighbour=shrunk.change)
    assert parse_reproducer(render_reproducer(made)) == made
    assert "no room for p(X, X)" in str(kv.replay(made, trust=True))
    assert write_test(made, test).fails
    monkeypatch.setattr("toy_engine.IS_REPAIRED", True)
    assert write_test(made, test) == (False, "both sides agree")


def test_the_code_of_a_reproducer_fails_until_the_engine_is_repaired(reproducer):
    code = reproducer.to_python()
    with pytest.raises(AssertionError, match="first divergence: match_facts at step 0"):
        exec(code, {})
    exec(code.replace(', faults=["last-fact-lost"]', ""), {})
    assert 'kv.Evaluator(mode="eager", device="cpu", faults=["last-fact-lost"])' in code
    assert set(re.findall(r"^(?:from|import) .*|kv\.\w+", code, re.MULTILINE)) == {
        "import kgverify as kv",
        "kv.parse_problem",
        "kv.assert_agrees",
        "kv.Evaluator",
    }


def test_the_code_of_a_broken_law_names_the_law():
    open_query = replace(GOOD_PROBLEM, unranked=(NamedAtom("p", "a", X),))
    made = Reproducer(problem=open_query, signature=Signature("match_facts", "", "law", "sound"))
    assert made.to_python().endswith('lockstep=False, laws=["sound"])\n')
    kv.assert_agrees("reference", open_query, laws=["sound", "complete-step"])
    with pytest.raises(AssertionError, match="law broken: complete-step"):
        kv.assert_agrees(LAST_LOST, open_query, reference=LAST_LOST, laws=["sound", "complete-step"])


def test_a_mistake_in_the_text_of_a_problem_is_reported_with_its_line():
    assert kv.parse_problem("p(a, b).\n?- p(a, X).") == Problem(
        facts=(NamedAtom("p", "a", "b"),), unranked=(NamedAtom("p", "a", X),), num_corruptions=0
    )
    for text, where in (
        ("p(a, X).", "problem:1"),
        ("?- p(a, b).\nlimit: max_depth 1", "problem:2: unknown key 'limit'"),
    ):
        with pytest.raises(UserError, match=where):
            kv.parse_problem(text)


def test_a_test_that_pytest_does_not_collect_or_that_cannot_be_written_is_refused(reproducer, tmp_path):
    with pytest.raises(UserError, match="pytest does not collect"):
        write_test(reproducer, tmp_path / "it.py")
    with pytest.raises(UserError, match="cannot be written"):
        write_test(reproducer, tmp_path / "none" / "test_it.py")
