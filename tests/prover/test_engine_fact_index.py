"""All facts of a predicate are tried, however many there are: none is lost, none is counted twice."""

import numpy as np
import pytest
from engine_checks import difference, eager, reference
from random_programs import Problem, candidates_of, program_of

from kgverify import Limits
from kgverify.program.atoms import NamedAtom
from kgverify.program.program import Program
from kgverify.trace.model.columns import Columns

NUM_FACTS = 34_796
"""The most facts that a predicate of a common benchmark has (wn18rr)."""

NUM_OUT, NUM_IN, NUM_LOOPS = 2_543, 1_777, 130


@pytest.fixture(scope="module")
def program() -> Program:
    rules = program_of("r(X, Z) <- p(X, Y), q(Y, Z)\ns(X, Z) <- p(X, X), q(X, Z)").named_rules
    facts = [NamedAtom("p", "hub", f"out{i}") for i in range(NUM_OUT)]
    facts += [NamedAtom("p", f"in{i}", "hub") for i in range(NUM_IN)]
    facts += [NamedAtom("p", f"loop{i}", f"loop{i}") for i in range(NUM_LOOPS)]
    rest = NUM_FACTS - len(facts)
    facts += [NamedAtom("p", f"x{i % 180}", f"y{i // 180}") for i in range(rest)]
    return Program.from_names(facts[::-1], rules, program_of("", queries="q(a, b)").named_queries)


def prove(program: Program, query: str, match_window: int) -> Columns:
    """Under defaults but for the window: the step from the body of the rule keeps 120 and counts the rest."""
    candidates = candidates_of(program, query)
    limits = Limits(max_depth=2)
    columns = eager(program, limits, match_window=match_window, slots=3).prove(candidates)
    expected = reference(Problem(program, limits, candidates)).prove(candidates)
    assert not difference(expected, columns)
    return columns


@pytest.mark.deep
@pytest.mark.parametrize("match_window", [4096, 50_000])
def test_a_free_goal_counts_every_fact_of_the_largest_predicate(program: Program, match_window: int) -> None:
    assert len(program.facts) == NUM_FACTS
    columns = prove(program, "r(X, Z)", match_window)
    kept, dropped = int(columns.steps.num_resolvents[1]), int(columns.steps.dropped_resolvents[1])
    assert (kept, kept + dropped) == (120, NUM_FACTS)
    assert columns.candidates.is_limited.tolist() == [1]
    origins = columns.resolvents.origin[1:]
    np.testing.assert_array_equal(origins, np.arange(120))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("query", "num_matches"),
    [("r(hub, Z)", NUM_OUT), ("s(X, Z)", NUM_LOOPS), ("r(x0, Z)", -1)],
)
def test_a_bound_goal_counts_every_fact_that_matches(program: Program, query: str, num_matches: int) -> None:
    columns = prove(program, query, match_window=1000)
    found = int(columns.steps.num_resolvents[1] + columns.steps.dropped_resolvents[1])
    x0 = program.symbols.constant_ids["x0"]
    expected = int((program.facts[:, 1] == x0).sum()) if num_matches < 0 else num_matches
    assert found == expected > 100


def test_facts_found_by_their_second_argument_are_all_counted() -> None:
    facts = [NamedAtom("p", f"in{i}", "hub") for i in range(NUM_IN)]
    facts += [NamedAtom("p", f"in{i}", f"other{i}") for i in range(NUM_IN)]
    rules = program_of("r(X, Z) <- p(Y, X), q(Y, Z)").named_rules
    program = Program.from_names(facts, rules)
    columns = prove(program, "r(hub, Z)", match_window=500)
    assert columns.steps.num_resolvents[1] + columns.steps.dropped_resolvents[1] == NUM_IN


@pytest.mark.deep
def test_candidates_with_large_and_small_fans_wait_for_one_another(program: Program) -> None:
    queries = "r(X, Z), r(in0, hub), r(hub, Z), s(loop3, hub), r(x5, y5), p(hub, out7), r(X, Z)"
    columns = prove(program, queries, match_window=3000)
    assert columns.steps.dropped_resolvents.max() == NUM_FACTS - 120
