"""Shrinking on a real graph: the proof slice leaves out most facts, keeps what a cap counts, and few runs are taken."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from known_shrinks import IN_STEP, RuledOracle
from run_engines import UNEXPLAINED

from kgverify import Equality, KnowledgeGraph, Limits, Problem, UserError, load_graph
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule
from kgverify.runs.engine_makers import EngineSpec, evaluator_pipeline, find_maker
from kgverify.runs.job import load_run_graph
from kgverify.runs.run import Run, load_policy, reference_pipeline
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure, Signature
from kgverify.testing.problems.problem import NO_SPREAD
from kgverify.testing.shrinking import shrink_run as shrink_runs
from kgverify.testing.shrinking.shrink import Budget, Neighbour, Shrunk
from kgverify.testing.shrinking.shrink_run import (
    MAX_RUN_CALLS,
    ShrunkRun,
    Slicer,
    find_engines,
    shrink_divergence,
    shrink_run,
)
from kgverify.verification.verify import verify


def verified(graph, fault, *, queries=1, corruptions=3, policy="shortest", lockstep=False):
    limits = Limits()
    run = Run(graph, limits, load_policy(policy, graph, limits, 0), num_queries=queries, num_corruptions=corruptions)
    actual = evaluator_pipeline(run, faults=[fault], mode="eager", slots=4)
    return verify(
        run,
        reference_pipeline(run),
        actual,
        effort=UNEXPLAINED,
        equality=Equality(lockstep=lockstep, determinism=False),
    )


@pytest.fixture(scope="module")
def countries():
    return load_graph("countries")


@pytest.fixture(scope="module")
def lost(countries):
    return verified(countries, "last-fact-lost")


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize(
    ("fault", "policy", "lockstep", "size"),
    [
        ("fact-cap", "shortest", False, 51),
        ("rest-not-substituted", "shortest", True, 4),
        ("stale-weights", "two_tower", False, 2),
        ("swapped-arguments", "shortest", False, 1),
        ("queries-beyond-slots", "shortest", False, 0),
    ],
)
def test_a_divergence_on_a_graph_shrinks_to_little(countries, fault, policy, lockstep, size):
    verification = verified(countries, fault, policy=policy, lockstep=lockstep)
    make = find_maker(EngineSpec(faults=(fault,)))
    found = shrink_divergence(verification, countries, Checker(make))
    assert found.removed > 0.8
    assert found.shrunk.problem.size <= size
    assert Checker(make, lockstep=lockstep).judge(found.shrunk.problem).signature == found.shrunk.failure.signature
    assert Checker(lockstep=lockstep).judge(found.shrunk.problem) is None


def test_a_run_tells_its_graph_and_its_engine(countries, lost):
    report = lost.report
    assert load_run_graph(report).program.sha256 == countries.program.sha256
    assert find_engines(report) == [EngineSpec(faults=("last-fact-lost",))]


def test_the_limits_of_a_shrink_are_passed_on(countries, lost, monkeypatch):
    given = []

    def record(*args, **options):
        given.append(args[3:])
        raise shrink_runs.NoSlice("none", where="here", fix="none")

    monkeypatch.setattr(shrink_runs, "shrink_divergence", record)
    with pytest.raises(shrink_runs.NoSlice):
        shrink_run(lost, graph=countries, divergence=2, budget=Budget(7, 3.5))
    assert given == [(2, Budget(7, 3.5))] * len(given)


def test_the_chosen_divergence_is_shrunk(countries, monkeypatch):
    monkeypatch.setattr(shrink_runs, "Oracle", lambda maker, signature, *options, **others: signature)
    monkeypatch.setattr(shrink_runs, "sign", lambda report, divergence: divergence)
    monkeypatch.setattr(shrink_runs, "_find_slice", lambda *given: pytest.fail(str(given[-2:])))
    verification = SimpleNamespace(
        report=SimpleNamespace(divergences=["first", "second", "third"], lockstep=False),
        expected=SimpleNamespace(header=SimpleNamespace(program_sha256=countries.program.sha256)),
    )
    with pytest.raises(pytest.fail.Exception, match=r"\(2, 'second'\)"):
        shrink_divergence(verification, countries, None, 2)


@pytest.mark.parametrize("is_found", [True, False])
def test_out_of_calls_a_slice_is_the_smallest_problem_that_was_found_to_fail(countries, monkeypatch, is_found):
    small, large = (Problem(facts=countries.train[:num], unranked=countries.test[:1]) for num in (2, 9))
    oracle = RuledOracle(IN_STEP, lambda problem: is_found and len(problem.facts) > 1, max_calls=2)
    sliced: list[str] = []

    def slices(divergence):
        sliced.append(divergence)
        return [[Problem(unranked=small.unranked)]]

    monkeypatch.setattr(shrink_runs, "Slicer", lambda *given: SimpleNamespace(slices=slices))
    report = SimpleNamespace(divergences=["first", "second", "third"], policy=SimpleNamespace(name="shortest"))
    assert [oracle.holds(each) for each in (large, small)] == [is_found, is_found]
    given = SimpleNamespace(report=report), countries, 2, oracle
    if is_found:
        assert shrink_runs._find_slice(*given) == small
    else:
        with pytest.raises(shrink_runs.NoSlice, match="in 2 runs"):
            shrink_runs._find_slice(*given)
    assert sliced == ["second"]


def test_a_shrink_against_another_reference_names_it(countries, lost):
    problem = Problem(unranked=(NamedAtom("p", "a", "b"),))
    failure = Failure(index=0, problem=problem, group=(problem,), signature=Signature("prune", "stage.prune", "extra"))
    shrunk = Shrunk(failure=failure, neighbour=None, calls=1, seconds=0.5, is_finished=True)
    run = ShrunkRun(shrunk=shrunk, sliced=problem, graph=countries, report=lost.report, engine=EngineSpec())
    assert "compared with" not in str(run)
    assert "compared with compiled" in str(replace(run, reference=EngineSpec()))


def test_the_agreeing_neighbour_is_a_reproducer_without_a_difference(countries, lost):
    problem, other = (Problem(unranked=(NamedAtom("p", "a", name),)) for name in ("b", "c"))
    failure = Failure(index=0, problem=problem, group=(problem,), signature=Signature("prune", "stage.prune", "extra"))
    options = {"failure": failure, "calls": 1, "seconds": 0.5, "is_finished": True}
    given = {"sliced": problem, "graph": countries, "report": lost.report, "engine": EngineSpec()}
    run = ShrunkRun(shrunk=Shrunk(neighbour=Neighbour(other, "the query p(a, c)"), **options), **given)
    assert ShrunkRun(shrunk=Shrunk(neighbour=None, **options), **given).agreeing is None
    made = run.agreeing
    assert made == replace(
        run.reproducer,
        problem=other,
        candidate="",
        step=-1,
        expected=(),
        actual=(),
        message="",
        neighbour="",
        notes=("both sides agree; they differ without one change: the query p(a, c)",),
    )


@pytest.mark.parametrize("num_facts", [22, 23])
def test_of_a_long_problem_the_first_and_the_last_lines_are_shown(countries, lost, num_facts):
    # Beside the facts, a problem has a line for its query and one for its settings.
    problem = Problem(facts=countries.train[:num_facts], unranked=(NamedAtom("p", "a", "b"),))
    failure = Failure(index=0, problem=problem, group=(problem,), signature=Signature("prune", "stage.prune", "extra"))
    shrunk = Shrunk(failure=failure, neighbour=None, calls=1, seconds=0.5, is_finished=True)
    text = str(ShrunkRun(shrunk=shrunk, sliced=problem, graph=countries, report=lost.report, engine=EngineSpec()))
    program = str(problem).splitlines()
    shown = program if num_facts == 22 else [*program[:12], "... 1 lines", *program[13:]]
    assert text.splitlines()[-len(shown) :] == [f"   {line}" for line in shown]


def test_a_divergence_that_the_engine_does_not_show_is_an_error(countries, lost):
    with pytest.raises(UserError, match="no part of the graph was found"):
        shrink_run(lost, graph=countries, engine=EngineSpec())


def test_facts_that_only_the_judged_engine_matches_are_touched():
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom("r", x, y), (NamedAtom("s", z, z), NamedAtom("q", x, y)))
    facts = (NamedAtom("s", "c", "d"), NamedAtom("q", "a", "e"))
    graph = KnowledgeGraph("loops", train=facts, test=(NamedAtom("r", "a", "b"),), rules=(rule,))
    verification = verified(graph, "repeated-goal-variable", corruptions=0)
    divergence = verification.report.divergences[0]
    slicer = Slicer(verification, graph)
    assert slicer.touched(divergence) == facts[:1]
    # Before the steps from 1 on, no fact is touched; a divergence of no step comes after all of them.
    at_step = {step: slicer.touched(msgspec.structs.replace(divergence, step=step)) for step in (0, 1, -1)}
    assert at_step == {0: (), 1: facts[:1], -1: facts[:1]}


@pytest.fixture(scope="module")
def far_apart():
    """A graph where r(c10, c44) leads to s(c11, c44), and 11 * 256 + 44 = 10 * 256 + 300, which stands for s(c10, c300)."""
    facts = [NamedAtom("q", f"c{i}", f"c{i + 1}") for i in range(400)]
    facts += [NamedAtom("s", "c10", "c300"), NamedAtom("s", "c1", "c2")]
    x, y, z = map(Variable, "XYZ")
    rule = NamedRule(NamedAtom("r", x, y), (NamedAtom("q", x, z), NamedAtom("s", z, y)))
    return KnowledgeGraph("far apart", train=tuple(facts), test=(NamedAtom("r", "c10", "c44"),), rules=(rule,))


@pytest.mark.exhaustive
def test_where_certain_ids_are_needed_a_part_of_the_graph_keeps_them(far_apart):
    verification = verified(far_apart, "packed-fact-keys", corruptions=0)
    make = find_maker(EngineSpec(faults=("packed-fact-keys",)))
    found = shrink_divergence(verification, far_apart, Checker(make), budget=Budget(300))
    assert found.removed > 0.9
    assert found.shrunk.is_finished
    assert found.shrunk.problem.size <= 6
    assert found.shrunk.problem.spread != NO_SPREAD
    assert Checker(make).judge(found.shrunk.problem).signature == found.shrunk.failure.signature
    assert Checker().judge(found.shrunk.problem) is None


@pytest.mark.sample(0, deep=1)
@pytest.mark.parametrize("calls", [8, 12, 20, 40])
def test_out_of_calls_the_smallest_found_so_far_is_given_though_it_be_the_whole_graph(far_apart, calls):
    verification = verified(far_apart, "packed-fact-keys", corruptions=0)
    make = find_maker(EngineSpec(faults=("packed-fact-keys",)))
    found = shrink_divergence(verification, far_apart, Checker(make), budget=Budget(calls))
    assert not found.shrunk.is_finished
    assert found.shrunk.calls <= calls
    assert Checker(make).judge(found.shrunk.problem).signature == found.shrunk.failure.signature


@pytest.mark.sample(0, deep=0)
@pytest.mark.data
@pytest.mark.skipif("KGVERIFY_DATA" not in os.environ, reason="KGVERIFY_DATA is not set")
@pytest.mark.parametrize(
    ("fault", "size", "calls"),
    [
        ("fact-cap", 51, 100),
        ("rule-cap", 6, 100),
        ("captured-variables", 2, 100),
        ("no-revisit-check", 2, 100),
        ("proof-ends-batch", 5, MAX_RUN_CALLS),
        ("clamped-results", 8, MAX_RUN_CALLS),
        ("sticky-outcome", 3, 100),
        ("chunk-boundary-dropped", 0, 100),
        ("packed-fact-keys", 8, MAX_RUN_CALLS),
    ],
)
def test_on_family_the_slice_leaves_out_93_percent_and_few_runs_suffice(fault, size, calls):
    graph = load_graph("family")
    verification = verified(graph, fault, queries=5, corruptions=5)
    assert verification.report.divergences
    begin = time.process_time()
    budget = Budget(MAX_RUN_CALLS, seconds=300)
    found = shrink_divergence(verification, graph, Checker(find_maker(EngineSpec(faults=(fault,)))), budget=budget)
    # A third of it on the machine that it was written on.
    assert time.process_time() - begin < 60
    assert len(graph.train) > 19_000
    assert found.removed >= 0.93
    assert found.shrunk.calls <= calls
    assert found.shrunk.is_finished or fault == "packed-fact-keys"
    assert found.shrunk.problem.size <= size
