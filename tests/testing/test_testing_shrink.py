"""Shrinking: minimal problems that fail in the same way, and what makes the difference."""

import os
import statistics
from functools import cache

import pytest
from fault_search import ProblemStream

from kgverify import Limits, Problem, UserError
from kgverify.laws import compiled_maker
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.prover.faults.plant import FAULTS
from kgverify.testing.checking.check import Checker
from kgverify.testing.checking.failure import Failure, Signature, fails_same_way
from kgverify.testing.problems.problem import NO_SPREAD, SHORTEST
from kgverify.testing.shrinking.shrink import Budget, shrink

SMALLEST = {
    "fact-cap": 51,
    "last-fact-lost": 1,
    "sequential-substitution": 2,
    "scatter-collision": 4,
    "max-resolvents-off-by-one": 2,
    "stale-weights": 2,
    "packed-fact-keys": 4,
    "sticky-outcome": 1,
    "chunk-boundary-dropped": 0,
    "known-triples": 1,
    "optimistic-ties": 0,
}
"""The largest sizes after shrinking."""

PATIENT = Budget(seconds=300)

ONE_OF_EACH_STAGE = list({fault.stage: name for name, fault in FAULTS.items()}.values())


@pytest.fixture(scope="module")
def stream() -> ProblemStream:
    return ProblemStream(seed=0)


@pytest.fixture(scope="module")
def shrunk_of(stream):
    """Return a function that shrinks each fault of the catalogue once, with enough seconds for any machine."""
    return cache(
        lambda name: shrink(stream.search_fault(name).failure, Checker(compiled_maker(faults=[name])), PATIENT)
    )


@pytest.mark.sample(0, deep=3)
@pytest.mark.parametrize("name", SMALLEST)
def test_a_fault_shrinks_to_little_that_fails_alone_in_the_same_way(stream, shrunk_of, name):
    failure = stream.search_fault(name).failure
    make = compiled_maker(faults=[name])
    shrunk = shrunk_of(name)
    assert shrunk.is_finished
    assert shrunk.problem.size <= SMALLEST[name]
    assert shrunk.failure.is_alone
    assert shrunk.failure.signature == failure.signature == Checker(make).judge(shrunk.problem).signature
    assert Checker().judge(shrunk.problem) is None
    assert shrunk.neighbour is not None
    assert Checker(make).judge(shrunk.neighbour.problem) is None
    assert shrunk.neighbour.problem != shrunk.problem


def test_what_does_not_matter_is_as_it_is_by_default(shrunk_of):
    shrunk = shrunk_of("last-fact-lost")
    assert shrunk.problem.limits == Limits()
    assert (shrunk.problem.policy, shrunk.problem.spread) == (SHORTEST, NO_SPREAD)
    assert {str(term) for atom in shrunk.problem.facts for term in atom[1:]} <= {"a", "b"}


@pytest.mark.deep
def test_a_limit_that_matters_is_kept_and_the_neighbour_names_the_number(shrunk_of):
    shrunk = shrunk_of("max-depth-off-by-one")
    assert shrunk.problem.limits.max_depth < Limits().max_depth
    assert shrunk.problem.limits.max_resolvents == Limits().max_resolvents


@pytest.mark.deep
def test_shrinking_twice_gives_the_same(stream):
    failure = stream.search_fault("query-pruned").failure
    first, second = (shrink(failure, Checker(compiled_maker(faults=["query-pruned"]))) for _ in range(2))
    assert (first.failure, first.neighbour, first.calls) == (second.failure, second.neighbour, second.calls)


def test_a_shrink_out_of_calls_gives_what_it_has(stream):
    failure = stream.search_fault("fact-cap").failure
    make = compiled_maker(faults=["fact-cap"])
    told = []
    budget = Budget(max_calls=12, progress=lambda name, problem, calls: told.append((name, calls)))
    shrunk = shrink(failure, Checker(make), budget)
    assert not shrunk.is_finished
    assert shrunk.calls <= 12
    assert shrunk.neighbour is None
    assert told
    assert told[-1][1] <= 12
    assert Checker(make).judge(shrunk.problem).signature == failure.signature
    assert shrink(failure, Checker(make), Budget(seconds=0)).problem == failure.problem


def test_a_problem_that_does_not_fail_again_is_refused():
    problem = Problem(unranked=(NamedAtom("p", "a", Variable("X")),))
    failure = Failure(
        index=0, problem=problem, group=(problem,), signature=Signature("prune", "stage.prune", "missing")
    )
    with pytest.raises(UserError, match="does not fail again with"):
        shrink(failure, Checker())


def test_of_a_step_that_is_wrong_in_company_alone_the_columns_of_its_resolvents_are_one():
    atoms, origin = (Signature("recycle", f"resolvents.{name}", "foreign") for name in ("atoms", "origin"))
    assert fails_same_way(atoms, origin)
    assert fails_same_way(atoms.held, origin)
    assert not fails_same_way(atoms, atoms._replace(field="steps.depth"))
    assert not fails_same_way(atoms._replace(stage="prune"), origin._replace(stage="prune"))


@pytest.mark.exhaustive
def test_a_fault_that_takes_company_shrinks_in_few_runs(shrunk_of):
    for name in ("sticky-outcome", "proof-ends-batch", "visited-not-cleared"):
        shrunk = shrunk_of(name)
        assert shrunk.is_finished
        assert shrunk.calls <= 200
        assert shrunk.problem.size <= 8


@pytest.mark.exhaustive
def test_half_of_the_catalogue_shrinks_to_three_elements_and_all_but_the_cap_to_eight(shrunk_of):
    """A sample with faults of every stage; KGVERIFY_ALL_FAULTS=1 shrinks all, which takes minutes."""
    names = (
        list(FAULTS)
        if os.environ.get("KGVERIFY_ALL_FAULTS")
        else sorted({*list(FAULTS)[::4], *SMALLEST, *ONE_OF_EACH_STAGE})
    )
    sizes = {}
    for name in names:
        shrunk = shrunk_of(name)
        sizes[name] = shrunk.problem.size
        assert shrunk.neighbour is not None, name
    assert statistics.median(sizes.values()) <= 3
    assert sizes.pop("fact-cap") == 51
    assert max(sizes.values()) <= 8
