"""Checks of engines on problems: no false alarm, and every kind of failure is reported for the problem that shows it."""

import json
import subprocess
import sys
import tempfile
from itertools import islice

import msgspec
import numpy as np
import pytest
from fault_search import ProblemStream, Search
from problem_text import problem_of

import kgverify as kv
from kgverify import FuzzOptions, PolicySpec, Sizes, UserError, check_engine
from kgverify.dialects import ReferenceEngine
from kgverify.errors import InternalError
from kgverify.laws import compiled_maker, draw_problems
from kgverify.testing.campaigns.campaign import try_block
from kgverify.testing.campaigns.result import Identity
from kgverify.testing.checking.check import Checker, prepare_alone
from kgverify.testing.problems.decode import runs_alone
from kgverify.testing.problems.merge import merge

PROBLEMS = list(islice(draw_problems(0), 96))
RANKED = next(each for each in PROBLEMS if each.queries and each.policy.name == "shortest")
MANY_FACTS = problem_of(
    "; ".join(f"p(a, c{i})" for i in range(5)) + "; q(X, Z) <- p(X, Y), r(Y, Z); ? q(a, X)", num_corruptions=0
)


@pytest.mark.parametrize("lockstep", [True, pytest.param(False, marks=pytest.mark.deep)])
def test_the_evaluator_agrees_on_every_problem(lockstep):
    assert kv.fuzz("compiled", examples=48, options=FuzzOptions(lockstep=lockstep)).is_passed


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


def test_a_search_ends_at_its_limit():
    assert ProblemStream(0, max_examples=3).search_fault("packed-fact-keys") == Search(3, None)


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


class Doubtful(ReferenceEngine):
    """Is wrong about what limits decided."""

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        return columns._replace(candidates=columns.candidates._replace(is_limited=1 - columns.candidates.is_limited))


class DoubtfulStep(ReferenceEngine):
    """Is right about derivations and wrong about single steps."""

    def step(self, positions):
        columns = super().step(positions)
        return columns._replace(steps=columns.steps._replace(dropped_atoms=columns.steps.dropped_atoms + 1))


@pytest.mark.parametrize("engine", [Doubtful, DoubtfulStep])
def test_what_one_way_of_running_alone_shows_is_a_failure(engine):
    with pytest.raises(AssertionError, match="first divergence"):
        kv.assert_agrees(engine, MANY_FACTS)


def test_what_only_unranked_queries_show_is_a_failure():
    with pytest.raises(AssertionError, match="first divergence: match_facts"):
        kv.assert_agrees(compiled_maker(faults=["last-fact-lost"]), MANY_FACTS)


def without_steps(columns):
    return columns._replace(steps=None)


def with_short_sides(columns):
    return columns._replace(candidates=columns.candidates._replace(side=columns.candidates.side[:-1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda columns: None, "crash"),
        (without_steps, "crash"),
        (with_short_sides, "(?s)crash: UserError.*lengths differ"),
    ],
)
def test_columns_that_are_missing_or_inconsistent_are_the_engines_crash(change, message):
    class Changed(ReferenceEngine):
        def prove(self, candidates, progress=None):
            return change(super().prove(candidates))

    with pytest.raises(AssertionError, match=message):
        kv.assert_agrees(Changed, RANKED)


def test_an_exception_of_kgverifys_own_is_a_bug_and_the_problem_that_meets_it_is_saved(monkeypatch, tmp_path):
    from kgverify.comparison.compare import Comparer

    compare = Comparer.compare

    def fail(comparer):
        if any(name.endswith("poison") for name in comparer.expected.symbols.constants):
            raise LookupError("a bug")
        return compare(comparer)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Comparer, "compare", fail)
    poisoned = problem_of("! p(a, poison)", limits=PROBLEMS[0].limits)
    with pytest.raises(InternalError, match=r"kgverify itself failed on this problem, saved in .*LookupError: a bug"):
        check_engine(compiled_maker(), problems=[*PROBLEMS[:20], poisoned], laws=())
    (saved,) = tmp_path.rglob("*.kg")
    monkeypatch.undo()
    again = kv.replay(saved)
    assert again.reproducer.problem == poisoned
    assert "kgverify itself failed" in again.reproducer.notes[0]


class OwnSums(ReferenceEngine):
    """An engine with other sums of log-probabilities."""

    log_sum = 0.0

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        sums = np.full_like(columns.candidates.log_probability, self.log_sum)
        return columns._replace(candidates=columns.candidates._replace(log_probability=sums))


class WithoutSums(OwnSums):
    """An engine that says that its sums are unknown."""

    @property
    def info(self):
        return msgspec.structs.replace(super().info, unknown=("candidates.log_probability",))


class WithoutRanks(OwnSums):
    """An engine whose sums cannot be ranked."""

    log_sum = float("-inf")


def test_an_engine_without_scores_is_ranked_by_outcomes_alone():
    chosen = next(p for p in PROBLEMS if p.queries and p.facts and p.rules and p.policy.name == "shortest")
    kv.assert_agrees(WithoutSums, chosen)
    kv.assert_agrees(WithoutRanks, chosen, reference=WithoutRanks)
    report = check_engine(OwnSums, problems=PROBLEMS[:12], laws=())
    assert report.failure.signature.field == "candidates.log_probability"


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
    with pytest.raises(UserError, match="does not support the policy 'two_tower'"):
        kv.assert_agrees(refusing(error), network)
    crash = check_engine(refusing(ValueError("no weights")), problems=[MANY_FACTS, network], laws=())
    assert str(crash.failure.signature) == "crash ValueError"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("engine.py:make", "no such file 'engine.py'"),
        ("folder/engine.py:make", "there is no file 'engine.py'"),
        ("folder/engine:make", "cannot make the engine 'folder/engine:make'"),
        ("engine", "cannot make the engine 'engine'"),
        (":make", "cannot make the engine ':make'"),
        ("engine:", "cannot make the engine 'engine:'"),
        ("no_such_module:make", "cannot import"),
        ("textwrap:no_such", "has no 'no_such'"),
        ("textwrap:TextWraper", "did you mean 'TextWrapper'"),
    ],
)
def test_a_name_without_an_engine_is_an_error(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        kv.fuzz(name, examples=1)


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


def test_the_evaluator_gets_the_sizes_of_the_problem():
    sizes = Sizes(slots=3, atoms=1, resolvents=2, match_window=5, score_window=199, pool=7)
    merged = merge([problem_of("p(a, b); ! p(a, b)", sizes=sizes)])
    layout, limits = compiled_maker()(merged.run, merged.sizes).engine.info.layout, merged.run.limits
    assert (layout["slots"], layout["match_window"], layout["score_window"]) == (3, 5, 199)
    assert (layout["atoms"], layout["resolvents"]) == (limits.max_atoms + 1, limits.max_resolvents + 2)


def test_the_evaluator_agrees_on_problems_that_run_alone():
    for index in range(15, 384, 16):
        assert Checker(compiled_maker()).find_suspects(prepare_alone(0, index, index)) == []


@pytest.mark.parametrize(("mode", "expected"), [("eager", [15, 31]), ("default", []), ("fused", [31])])
def test_one_problem_in_sixteen_runs_alone_unless_each_run_is_compiled(monkeypatch, mode, expected):
    runs: list[tuple[int, ...]] = []
    monkeypatch.setattr(Checker, "find_suspects", lambda checker, batch: runs.append(batch.indices) or [])
    engine = kv.EngineSpec(mode=mode, device="cuda" if mode == "fused" else "cpu")
    try_block(
        Identity(engine=engine, reference=kv.EngineSpec("reference"), lockstep=False, seed=0, block_size=32), 3, 32
    )
    assert [run[0] for run in runs if len(run) == 1 and runs_alone(run[0])][: len(expected)] == expected
    assert sorted(index for run in runs for index in run) == list(range(32))
