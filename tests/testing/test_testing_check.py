"""Checks of engines on problems: no false alarm, and every kind of failure is reported for the problem that shows it."""

import json
import subprocess
import sys
import tempfile
from itertools import islice

import msgspec
import numpy as np
import pytest
from fault_search import ProblemStream
from msgspec import structs
from problem_text import problem_of

import kgverify as kv
from kgverify import FuzzOptions, PolicySpec, UserError, check_engine
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.errors import InternalError
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.limits import OURS
from kgverify.prover.faults.plant import FAULTS
from kgverify.testing.checking.check import Checker, Suspect, count_agreeing, prepare_batches
from kgverify.testing.shrinking.shrink import Budget, shrink

PROBLEMS = list(islice(draw_problems(0), 96))
RANKED = next(each for each in PROBLEMS if each.queries and each.policy.name == "shortest")
MANY_FACTS = problem_of(
    "; ".join(f"p(a, c{i})" for i in range(5)) + "; q(X, Z) <- p(X, Y), r(Y, Z); ? q(a, X)", num_corruptions=0
)


@pytest.mark.parametrize("lockstep", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_the_evaluator_agrees_on_every_problem(lockstep):
    num = 48 if lockstep else 384
    assert kv.fuzz("compiled", examples=num, options=FuzzOptions(lockstep=lockstep)).is_passed


@pytest.mark.parametrize("num", [1, 30])
def test_a_long_problem_is_cut_and_the_lines_left_out_are_counted(num: int):
    class ProvesNothing(ReferenceEngine):
        def prove(self, *given):
            columns = super().prove(*given)
            return columns._replace(candidates=columns.candidates._replace(outcome=columns.candidates.outcome * 0))

    problem = problem_of("; ".join(f"p(a, c{i})" for i in range(num)) + "; ? p(a, c0)")
    with pytest.raises(AssertionError) as caught:
        kv.assert_agrees(ProvesNothing, problem)
    shown = str(caught.value).partition("\nproblem:\n")[2].splitlines()
    (num_hidden,) = [int(line.split()[1]) for line in shown if "lines more" in line] or (0,)
    whole = [f"   {line}" for line in str(problem).splitlines()]
    assert (num_hidden > 0) == (num > 24)
    kept = [line for line in shown if "lines more" not in line]
    assert len(kept) + num_hidden == len(whole)
    half = len(kept) // 2
    assert kept == (whole[:half] + whole[len(whole) - half :] if num_hidden else whole)


@pytest.fixture(scope="module")
def stream() -> ProblemStream:
    return ProblemStream(seed=0)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("fact-cap", "match_facts"),
        ("sequential-substitution", "resolve"),
        *(
            pytest.param(*each, marks=pytest.mark.deep)
            for each in (
                ("query-matched", "match_facts"),
                ("scatter-collision", "close"),
                ("swapped-arguments", "corrupt"),
            )
        ),
    ],
)
def test_a_fault_is_found_in_few_problems_and_confirmed_with_its_stage(stream, name, stage):
    found = stream.search_fault(name)
    assert found.examples <= 64
    assert found.failure.index == found.examples - 1
    assert found.failure.is_alone
    assert found.failure.signature.stage == stage
    with pytest.raises(AssertionError, match=f"first divergence: {stage}"):
        kv.assert_agrees(compiled_maker(faults=[name]), found.failure.problem)


@pytest.mark.sample(0, deep=2)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.dialect != OURS])
def test_a_fault_of_a_search_is_found_in_few_problems_and_shrinks_to_few_paths(name):
    dialect = FAULTS[name].dialect
    search = dialect.searching
    wide = structs.replace(dialect, search=str(search._replace(size=16)))
    found = ProblemStream(seed=0, dialect=wide).search_fault(name)
    assert found.examples <= 64
    assert found.failure.signature.stage == FAULTS[name].stage
    make = compiled_maker(faults=[name], mode="plain")
    shrunk = shrink(found.failure, Checker(make), Budget(seconds=300))
    least = shrunk.problem.limits.dialect
    assert (least.searching.kind, least.merge, least.aggregate) == (search.kind, dialect.merge, dialect.aggregate)
    assert least.searching.size <= 3
    assert shrunk.problem.size <= 10
    assert str(least) in shrunk.change or Checker(make).judge(shrunk.neighbour.problem) is None
    assert Checker(compiled_maker(mode="plain")).judge(shrunk.problem) is None


@pytest.mark.parametrize(
    "switches",
    [
        {"search": "beam(1)"},
        {"search": "beam(3)", "merge": "sum"},
        {"search": "sample(3, 1)", "aggregate": "noisy_or"},
        pytest.param({"search": "all(12)", "merge": "max", "aggregate": "sum"}, marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_on_problems_for_searches_the_plain_evaluator_agrees_with_the_reference(switches):
    problems = list(islice(draw_problems(3, 0, Dialect(**switches)), 40))
    checker = Checker(compiled_maker(mode="plain"), lockstep="merge" in switches)
    batches = prepare_batches(problems)
    assert [suspect for batch in batches for suspect in checker.find_suspects(batch)] == []
    parents = [batch.columns.paths.parent for batch in batches]
    assert any((each >= 1).any() for each in parents) or switches["search"] == "beam(1)"
    merged = any((batch.columns.paths.child < -1).any() for batch in batches)
    assert merged == ("merge" in switches)


def test_an_engine_that_raises_an_exception_fails_on_the_problem_that_makes_it():
    def poisonable(program, limits, policy):
        if any(name.endswith("poison") for name in program.symbols.constants):
            raise ZeroDivisionError("no room")
        return ReferenceEngine(program, limits, policy)

    poisoned = problem_of("p(a, b); ! p(a, poison)", limits=PROBLEMS[0].limits)
    report = check_engine(poisonable, problems=[*PROBLEMS[:20], poisoned], laws=())
    assert (report.failure.index, report.failure.is_alone) == (20, True)
    assert str(report.failure.signature) == "crash ZeroDivisionError"
    assert "no room" in str(report)


@pytest.mark.parametrize("method", ["prove", "step", "draw", "rank"])
def test_an_exception_from_inside_any_part_of_the_engine_is_its_crash(method):
    def fail(*arguments, **options):
        raise IndexError("no room")

    engine = type("Raising", (ReferenceEngine,), {method: fail})
    with pytest.raises(AssertionError, match=r"(?s)crash: IndexError.*no room"):
        kv.assert_agrees(engine, RANKED)


def changing(method, change):
    """Return the reference with other columns from one of its methods."""
    changed = {method: lambda self, *given: change(getattr(ReferenceEngine, method)(self, *given))}
    return type("Changed", (ReferenceEngine,), changed)


def candidates_with(**changes):
    def change(columns):
        rows = columns.candidates
        return columns._replace(
            candidates=rows._replace(**{name: of(getattr(rows, name)) for name, of in changes.items()})
        )

    return change


def count_another_dropped_atom(columns):
    return columns._replace(steps=columns.steps._replace(dropped_atoms=columns.steps.dropped_atoms + 1))


@pytest.mark.parametrize(
    ("engine", "problem", "message"),
    [
        # Seen in derivations alone, in single steps alone, and in queries that are not ranked alone.
        (changing("prove", candidates_with(is_limited=lambda flags: 1 - flags)), MANY_FACTS, "first divergence"),
        (changing("step", count_another_dropped_atom), MANY_FACTS, "first divergence"),
        (compiled_maker(faults=["last-fact-lost"]), MANY_FACTS, "first divergence: match_facts"),
        # Columns that are missing or inconsistent are the engine's crash.
        (changing("prove", lambda columns: None), RANKED, "crash"),
        (changing("prove", lambda columns: columns._replace(steps=None)), RANKED, "crash"),
        (
            changing("prove", candidates_with(side=lambda sides: sides[:-1])),
            RANKED,
            "(?s)crash: UserError.*lengths differ",
        ),
    ],
)
def test_what_one_way_of_running_shows_is_a_failure(engine, problem, message):
    with pytest.raises(AssertionError, match=message):
        kv.assert_agrees(engine, problem)


def test_an_exception_of_kgverifys_own_is_a_bug_and_the_problem_that_meets_it_is_saved(monkeypatch, tmp_path):
    def fail(comparer):
        raise LookupError("a bug")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("kgverify.comparison.compare.Comparer.compare", fail)
    poisoned = problem_of("! p(a, poison)", limits=PROBLEMS[0].limits)
    with pytest.raises(InternalError, match=r"kgverify itself failed on this problem, saved in .*LookupError: a bug"):
        check_engine(compiled_maker(), problems=[poisoned], laws=())
    (saved,) = tmp_path.rglob("*.kg")
    monkeypatch.undo()
    again = kv.replay(saved)
    assert again.reproducer.problem == poisoned
    assert "kgverify itself failed" in again.reproducer.notes[0]


def with_sums(value, **info):
    """Return the reference with other sums of log-probabilities."""
    change = candidates_with(log_probability=lambda sums: np.full_like(sums, value))
    of_reference = ReferenceEngine.info.__get__
    others = {"info": property(lambda self: msgspec.structs.replace(of_reference(self), **info))}
    return type("OwnSums", (changing("prove", change),), others)


def test_an_engine_without_scores_is_ranked_by_outcomes_alone():
    chosen = next(p for p in PROBLEMS if p.queries and p.facts and p.rules and p.policy.name == "shortest")
    kv.assert_agrees(with_sums(0.0, unknown=("candidates.log_probability",)), chosen)
    without_ranks = with_sums(float("-inf"))
    kv.assert_agrees(without_ranks, chosen, reference=without_ranks)
    with pytest.raises(AssertionError, match=r"candidates\.log_probability"):
        kv.assert_agrees(with_sums(0.0), chosen)


def refusing(error):
    class Refusing(ReferenceEngine):
        def __init__(self, program, limits, policy):
            if policy.name != "shortest":
                raise error
            super().__init__(program, limits, policy)

    return Refusing


@pytest.mark.parametrize(
    "error", [NotImplementedError("no weights"), UserError("no weights", where="policy", fix="none")]
)
def test_problems_of_a_policy_that_an_engine_refuses_are_skipped(error):
    network = problem_of("p(a, b); ! p(a, b)", policy=PolicySpec("two_tower"))
    report = check_engine(refusing(error), problems=[MANY_FACTS, network], laws=(), minimum={})
    assert (report.is_conforming, report.num_problems, report.num_skipped) == (True, 1, 1)
    with pytest.raises(UserError, match="refused this problem: no weights"):
        kv.assert_agrees(refusing(error), network)
    crash = check_engine(refusing(ValueError("no weights")), problems=[MANY_FACTS, network], laws=())
    assert str(crash.failure.signature) == "crash ValueError"


def test_a_file_becomes_a_module_that_takes_no_name_of_another_one(tmp_path):
    for name in ("my-engine", "json"):
        path = tmp_path / f"{name}.py"
        path.write_text("from kgverify.dialects import ReferenceEngine as make\n")
        kv.assert_agrees(f"{path}:make", MANY_FACTS)
    assert sys.modules["json"] is json
    assert sys.path[0] != str(tmp_path)


def test_a_process_that_may_be_replaced_ends_where_native_code_does_not_return():
    program = (
        "import time\n"
        "from kgverify.testing.checking.guard import in_replaceable_process, limit_time\n"
        "with in_replaceable_process(), limit_time(0.02):\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_the_problems_of_a_batch_on_which_both_sides_agree_are_counted():
    first = problem_of("p(a, b); ? p(a, X)", limits=kv.Limits(max_depth=3))
    proved, failed = problem_of("p(a, b); ? p(a, X)"), problem_of("p(a, b); ? p(b, X)")
    _, batch = prepare_batches([first, failed, proved])
    assert batch.indices == (1, 2)
    assert [count_agreeing(batch, [Suspect(batch, each)]).proved for each in (0, 1)] == [1, 0]
