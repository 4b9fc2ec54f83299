"""Checking problems: no false alarm, failures confirmed alone or in the smallest company, every kind of trouble told."""

from itertools import islice

import pytest

from kgverify.fuzz.check import check_problems, judge, verify_problems
from kgverify.fuzz.decode import draw_problems
from kgverify.fuzz.failure import CRASH
from kgverify.fuzz.pipelines import compiled_maker, engine_maker
from kgverify.fuzz.problem import Problem
from kgverify.logic.atoms import NamedAtom, Variable
from kgverify.logic.program import NamedRule

PROBLEMS = list(islice(draw_problems(0), 96))


@pytest.mark.parametrize("lockstep", [False, True])
def test_the_evaluator_agrees_on_every_problem(lockstep):
    assert check_problems(PROBLEMS, lockstep=lockstep) == []


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_fault_of_a_stage_fails_alone_and_is_named(lockstep):
    failures = check_problems(PROBLEMS, compiled_maker(faults=["fact-cap"]), lockstep=lockstep, most=2)
    assert len(failures) == 2
    for failure in failures:
        assert failure.is_alone
        assert failure.signature[:3] == ("match_facts", "stage.match_facts", "missing")
        assert judge(failure.problem, compiled_maker(faults=["fact-cap"])).signature == failure.signature
        assert judge(failure.problem) is None
    assert [failure.index for failure in failures] == sorted(failure.index for failure in failures)


def test_a_fault_of_chunks_fails_in_the_smallest_company_found():
    small = [p for p in PROBLEMS if p.key == PROBLEMS[0].key][:40]
    assert len(small) > 20
    make = compiled_maker(faults=["chunk-boundary-dropped"])
    failure, *_ = check_problems(small, make)
    assert not failure.is_alone
    assert failure.problem in failure.company
    assert len(failure.company) < len(small)
    assert judge(failure.problem, make) is None
    assert failure.signature.stage == "recycle"
    assert verify_problems(failure.company, make).report.divergences


def test_an_engine_that_raises_an_exception_is_a_failure_of_the_problem_that_makes_it():
    def make_engine(program, limits, policy):
        if any(name.endswith("poison") for name in program.symbols.constants):
            raise ZeroDivisionError("poison")
        from kgverify.engines.reference.engine import ReferenceEngine

        return ReferenceEngine(program, limits, policy)

    poisoned = Problem(queries=(NamedAtom("p", "a", "poison"),), limits=PROBLEMS[0].limits)
    problems = [*PROBLEMS[:20], poisoned]
    (failure,) = check_problems(problems, engine_maker(make_engine))
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
    failure = judge(problem, compiled_maker(faults=["last-fact-lost"]))
    assert failure is not None
    assert failure.signature.stage == "match_facts"
