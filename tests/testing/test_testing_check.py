"""Checking problems: no false alarm, failures confirmed alone or in the smallest group, every kind of failure reported."""

import tempfile
from contextlib import nullcontext
from itertools import islice
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from kgverify import Problem
from kgverify.comparison.compare import Comparer
from kgverify.dialects import ReferenceEngine
from kgverify.errors import InternalError
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.ranking.draw import ALL, draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.runs.engine_makers import as_maker
from kgverify.runs.run import reference_pipeline
from kgverify.testing.checking import check
from kgverify.testing.checking import guard as guards
from kgverify.testing.checking.check import Checker, prepare_batches, verify_problems
from kgverify.testing.checking.failure import CRASH, UNDECIDED
from kgverify.testing.checking.guard import EngineCrash, guard
from kgverify.testing.problems.merge import merge
from kgverify.testing.reproducers.text_format import read_reproducer, saving_bugs
from kgverify.trace.model.columns import empty_columns

PROBLEMS = list(islice(draw_problems(0), 96))
FACT = NamedAtom("p", "a", "b")


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_evaluator_agrees_on_every_problem(lockstep):
    assert Checker(lockstep=lockstep).check(PROBLEMS)[0] == []


@pytest.mark.deep
@pytest.mark.parametrize("lockstep", [False, True])
def test_a_fault_of_a_stage_fails_alone_and_is_named(lockstep):
    failures = Checker(compiled_maker(faults=["fact-cap"]), lockstep=lockstep).check(PROBLEMS, most=2)[0]
    assert len(failures) == 2
    for failure in failures:
        assert failure.is_alone
        assert failure.signature[:3] == ("match_facts", "stage.match_facts", "missing")
        assert Checker(compiled_maker(faults=["fact-cap"])).judge(failure.problem).signature == failure.signature
        assert Checker().judge(failure.problem) is None
    assert [failure.index for failure in failures] == sorted(failure.index for failure in failures)


@pytest.mark.deep
def test_a_fault_of_chunks_fails_in_the_smallest_group_found():
    small = [p for p in PROBLEMS if p.key == PROBLEMS[0].key][:40]
    assert len(small) > 20
    make = compiled_maker(faults=["chunk-boundary-dropped"])
    failure, *_ = Checker(make).check(small)[0]
    assert not failure.is_alone
    assert failure.problem in failure.group
    assert len(failure.group) < len(small)
    assert Checker(make).judge(failure.problem) is None
    assert failure.signature.stage == "recycle"
    assert verify_problems(merge(failure.group), make).report.divergences


def test_an_engine_that_raises_an_exception_is_a_failure_of_the_problem_that_makes_it():
    def make_engine(program, limits, policy):
        if any(name.endswith("poison") for name in program.symbols.constants):
            raise ZeroDivisionError("poison")
        from kgverify.dialects import ReferenceEngine

        return ReferenceEngine(program, limits, policy)

    poisoned = Problem(queries=(NamedAtom("p", "a", "poison"),), limits=PROBLEMS[0].limits)
    problems = [*PROBLEMS[:20], poisoned]
    (failure,) = Checker(as_maker(make_engine)).check(problems)[0]
    assert (failure.index, failure.problem, failure.is_alone) == (20, poisoned, True)
    assert failure.signature == ("", "", CRASH, "ZeroDivisionError")
    assert failure.message == "poison"


def test_unranked_queries_are_compared():
    x, y, z = map(Variable, "XYZ")
    problem = Problem(
        facts=tuple(NamedAtom("p", "a", f"c{i}") for i in range(5)),
        rules=(NamedRule(NamedAtom("q", x, z), (NamedAtom("p", x, y), NamedAtom("r", y, z))),),
        unranked=(NamedAtom("q", "a", x),),
    )
    failure = Checker(compiled_maker(faults=["last-fact-lost"])).judge(problem)
    assert failure is not None
    assert failure.signature.stage == "match_facts"


class Raising:
    """The reference, which raises an exception in one method."""

    def __init__(self, engine, method):
        self._engine, self._method = engine, method
        self.info = engine.info

    def prove(self, candidates, progress=lambda finished: None):
        return self._do("prove", candidates)

    def step(self, positions):
        return self._do("step", positions)

    def _do(self, method, given):
        if method == self._method:
            raise IndexError("no room")
        return getattr(self._engine, method)(given)


@pytest.mark.parametrize("method", ["prove", "step", "draw", "rank"])
def test_an_exception_from_inside_any_part_of_the_pipeline_under_test_is_its_crash(method):
    def make(run, sizes):
        def fail(*arguments):
            raise IndexError("no room")

        sound = reference_pipeline(run)
        parts = {method: fail} if method in sound._fields else {}
        return sound._replace(engine=Raising(sound.engine, method), **parts)

    problem = next(each for each in PROBLEMS if each.queries)
    (failure,) = Checker(make, lockstep=True).check([problem])[0]
    assert failure.signature == ("", "", CRASH, "IndexError")
    assert failure.message == "no room"


@pytest.mark.parametrize("wrong", ["prove", "step"])
def test_what_one_way_of_running_alone_shows_is_a_failure(wrong):
    x, y, z = map(Variable, "XYZ")
    problem = Problem(
        facts=tuple(NamedAtom("p", "a", f"c{i}") for i in range(5)),
        rules=(NamedRule(NamedAtom("q", x, z), (NamedAtom("p", x, y), NamedAtom("r", y, z))),),
        unranked=(NamedAtom("q", "a", x),),
    )

    def make(run, sizes):
        sound = reference_pipeline(run)
        engine = Raising(sound.engine, "")
        setattr(engine, wrong, getattr(compiled_maker(faults=["last-fact-lost"])(run, sizes).engine, wrong))
        return sound._replace(engine=engine)

    assert len(Checker(make, lockstep=True).check([problem])[0]) == 1


def test_the_exceptions_of_kgverifys_own_draw_and_ranks_are_not_the_engines():
    (batch,) = prepare_batches([PROBLEMS[0]])
    merged = batch.merged

    def guarded(draw, rank):
        return guard(lambda run, sizes: reference_pipeline(run)._replace(draw=draw, rank=rank))(
            merged.run, merged.sizes
        )

    assert guarded(draw_candidates, rank_candidates)[1:3] == (draw_candidates, rank_candidates)
    other = guarded(lambda *given: None, lambda *given: None)
    with pytest.raises(EngineCrash):
        other.draw()
    with pytest.raises(EngineCrash):
        other.rank()


@pytest.mark.parametrize("blamed", range(6))
def test_a_group_shrinks_to_the_problem_that_is_blamed_where_every_one_differs(monkeypatch, blamed):
    problems = [each for each in PROBLEMS if each.key == PROBLEMS[0].key][:6]
    (batch,) = prepare_batches(problems)
    monkeypatch.setattr(Checker, "_find_suspicious", lambda checker, batch: set(range(len(batch.indices))))
    monkeypatch.setattr(Checker, "judge", lambda *given: None)
    judged = []
    monkeypatch.setattr(
        Checker, "_judge_member", lambda checker, group, member, index: judged.append((tuple(group), member))
    )
    Checker(compiled_maker()).confirm(check.Suspect(batch, blamed))
    assert judged == [((problems[blamed],), 0)]


@pytest.mark.parametrize("is_replaceable", [False, True])
def test_native_code_that_does_not_return_ends_a_process_that_may_be_replaced(monkeypatch, is_replaceable):
    calls: list[tuple[float, bool]] = []
    monkeypatch.setattr(
        guards.faulthandler, "dump_traceback_later", lambda seconds, exit, file: calls.append((seconds, exit))
    )
    with guards.in_replaceable_process() if is_replaceable else nullcontext(), guards.limit_time(7.0):
        # Ten seconds of real time for each of CPU time.
        assert calls == ([(70.0, True)] if is_replaceable else [])


@pytest.mark.parametrize(("num_corruptions", "judged"), [(1, [1, ALL]), (0, [0]), (ALL, [ALL])])
def test_a_problem_with_drawn_corruptions_is_judged_with_all_as_well(monkeypatch, num_corruptions, judged):
    problem = Problem(facts=(FACT,), queries=(FACT,), num_corruptions=num_corruptions)
    (batch,) = prepare_batches([problem])
    attempts: list[int] = []

    def agree(checker, attempt, index):
        attempts.append(attempt.num_corruptions)

    monkeypatch.setattr(Checker, "judge", agree)
    judged_last: list[object] = []
    monkeypatch.setattr(
        Checker, "_judge_member", lambda checker, group, *given: judged_last.extend((*given, checker.lockstep))
    )
    # It agrees alone and in its run: the difference did not occur again.
    assert Checker(compiled_maker(), lockstep=True).confirm(check.Suspect(batch, 0)).signature.kind == UNDECIDED
    assert attempts == judged
    assert judged_last == [0, 0, True]


@pytest.mark.parametrize(("query", "owner"), [(-1, 2), (0, 1), (1, 0), (2, 2)])
def test_a_divergence_that_names_no_query_is_the_last_problems(query, owner):
    merged = SimpleNamespace(owner=np.array([1, 0]), problems="abc")
    assert check._owner(merged, SimpleNamespace(query=query)) == owner


@pytest.mark.parametrize("columns", [None, empty_columns()._replace(steps=None)])
def test_an_engine_that_gives_no_columns_is_its_crash(columns):
    def make(run, sizes):
        sound = reference_pipeline(run)
        engine = Raising(sound.engine, "")
        engine.prove = lambda candidates, progress=None: columns
        return sound._replace(engine=engine)

    (failure,) = Checker(make).check(PROBLEMS[:1])[0]
    assert failure.signature[:3] == ("", "", CRASH)


def test_columns_that_are_inconsistent_are_the_engines_crash_though_they_cannot_be_ranked():
    def make(run, sizes):
        sound = reference_pipeline(run)
        engine = Raising(sound.engine, "")

        def prove(candidates, progress=None):
            columns = sound.engine.prove(candidates)
            return columns._replace(candidates=columns.candidates._replace(side=columns.candidates.side[:-1]))

        engine.prove = prove
        return sound._replace(engine=engine)

    (failure,) = Checker(make).check(PROBLEMS[:1])[0]
    assert failure.signature == ("", "", CRASH, "UserError")
    assert "lengths differ" in failure.message


def test_an_exception_of_kgverifys_own_is_a_bug_and_the_problem_that_meets_it_is_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    poisoned = Problem(queries=(NamedAtom("p", "a", "poison"),), limits=PROBLEMS[0].limits)

    compare = Comparer.compare

    def fail(comparer):
        if any(name.endswith("poison") for name in comparer.expected.symbols.constants):
            raise LookupError("a bug")
        return compare(comparer)

    monkeypatch.setattr(Comparer, "compare", fail)
    with (
        pytest.raises(InternalError, match=r"kgverify itself failed on this problem, saved in .*LookupError: a bug"),
        saving_bugs(),
    ):
        Checker().check([*PROBLEMS[:20], poisoned])[0]
    with pytest.raises(InternalError, match="a bug") as raised:
        Checker().judge(poisoned)
    assert raised.value.problems == (poisoned,)
    assert isinstance(raised.value.__cause__, LookupError)
    saved = [read_reproducer(path) for path in sorted(tmp_path.rglob("*.kg"))]
    assert [each.problem for each in saved] == [poisoned]
    assert "kgverify itself failed" in saved[0].notes[0]
    assert Checker().check(PROBLEMS[:4])[0] == []


class _OwnSums(ReferenceEngine):
    """An engine with other sums of log-probabilities, or with none."""

    log_sum = 0.0
    unknown: tuple[str, ...] = ()

    @property
    def info(self):
        return msgspec.structs.replace(super().info, unknown=self.unknown)

    def prove(self, candidates, progress=None):
        columns = super().prove(candidates)
        sums = np.full_like(columns.candidates.log_probability, self.log_sum)
        return columns._replace(candidates=columns.candidates._replace(log_probability=sums))


class _WithoutSums(_OwnSums):
    unknown = ("candidates.log_probability",)


class _WithoutRanks(_OwnSums):
    log_sum = float("-inf")


def test_an_engine_without_scores_is_ranked_by_outcomes_alone():
    problems = [each for each in PROBLEMS if each.key == PROBLEMS[0].key][:6]
    (batch,) = prepare_batches(problems)
    assert Checker(as_maker(_WithoutSums)).find_suspects(batch) == []
    assert Checker(as_maker(_OwnSums)).find_suspects(batch) != []


def test_equal_sums_that_have_no_ranks_agree():
    problem = next(each for each in PROBLEMS if each.queries)
    (batch,) = prepare_batches([problem], as_maker(_WithoutRanks))
    assert batch.rankings is None
    assert Checker(as_maker(_WithoutRanks)).find_suspects(batch) == []
