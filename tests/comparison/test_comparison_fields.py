"""Traces that lack columns or number their names otherwise are brought together, and nothing is made up for it."""

from dataclasses import replace

import numpy as np
from comparison_traces import column_of, first_step_with, small_trace, with_columns, with_element
from test_comparison_verdicts import renumbered, without_columns

from kgverify import Verdict
from kgverify.comparison.comparable import Numbering, lockstep_columns
from kgverify.comparison.compare import compare
from kgverify.program.outcomes import Origin
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import empty_columns, starts_of


def test_columns_that_one_trace_lacks_are_listed_in_order():
    names = ("resolvents.score", "candidates.log_probability", "steps.outcome", "steps.choice", "steps.dropped_atoms")
    lacking = without_columns(small_trace(), *names)
    assert compare(small_trace(), lacking).coverage.not_compared == tuple(sorted(names))


def test_where_no_clauses_were_recorded_those_named_are_inferred():
    trace = small_trace()
    row = first_step_with(trace, 2)
    resolvent = int(starts_of(trace.columns.steps.num_resolvents)[row])
    atom = int(starts_of(trace.columns.resolvents.num_atoms)[resolvent])
    actual = with_element(trace, "resolvents.atoms", (atom, 1), lambda argument: argument + 1)

    def shown(lacking: bool) -> str:
        names = ("resolvents.origin", "resolvents.origin_kind") if lacking else ()
        (divergence,) = compare(trace, without_columns(actual, *names)).divergences
        return " ".join(divergence.expected)

    assert "   by " in shown(False)
    assert "(inferred)" not in shown(False)
    assert shown(True).count("   by ") == shown(True).count("(inferred)") == 1


def test_a_fact_that_only_one_trace_has_is_no_fact_of_the_other():
    actual = renumbered(small_trace())
    is_fact = column_of(small_trace(), "resolvents.origin_kind") == Origin.FACT
    used = column_of(small_trace(), "resolvents.origin")[is_fact]
    gone = int(used[0])
    expected = replace(small_trace(), facts=np.delete(small_trace().facts, gone, axis=0))
    origin = Numbering(expected, actual).convert(1, actual).columns.resolvents.origin[is_fact]
    assert (origin[used == gone] == len(expected.facts)).all()
    assert (origin[used != gone] == used[used != gone] - (used[used != gone] > gone)).all()


def test_a_trace_of_nothing_not_even_names_decides_nothing():
    empty = with_columns(small_trace(), empty_columns())
    empty = replace(empty, symbols=Symbols((), ()), facts=None, rankings=None)
    for traces in ((small_trace(), empty), (empty, small_trace())):
        assert compare(*traces).verdict is Verdict.INCONCLUSIVE


def test_a_step_by_itself_is_limited_where_it_dropped_anything():
    columns = small_trace().columns
    dropped_atoms, dropped_resolvents = (np.zeros(len(columns.steps.depth), np.uint32) for _ in range(2))
    dropped_atoms[[1, 3]] = 1
    dropped_resolvents[[2, 3]] = 2
    steps = columns.steps._replace(dropped_atoms=dropped_atoms, dropped_resolvents=dropped_resolvents)
    alone = lockstep_columns(columns._replace(steps=steps)).candidates
    assert np.flatnonzero(alone.is_limited).tolist() == [1, 2, 3]
    assert (alone.num_steps == 1).all()
    assert not alone.log_probability.any()
    assert alone.outcome.tolist() == columns.steps.outcome.tolist()
