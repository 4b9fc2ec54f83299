"""Traces of different levels are compared by what both have, and by their digests; never by nothing."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from comparison_traces import (
    ORIGINS,
    compare,
    renumbered,
    small_trace,
    with_element,
    with_header,
    without_columns,
)
from trace_changes import store

import kgverify
from kgverify import Trace, TraceLevel, Verdict
from kgverify.kinds import KNOWLEDGE_GRAPH

DIGEST = "digests.sequence"
Lower = Callable[[Trace, str], Trace]


@pytest.fixture
def lower(tmp_path: Path) -> Lower:
    """Return the trace as a file of a level has it."""
    numbers = count()

    def lower(trace: Trace, level: str) -> Trace:
        return kgverify.open_trace(store(trace, tmp_path / f"{next(numbers)}.h5", level=level)).load()

    return lower


@pytest.mark.sample(4)
@pytest.mark.parametrize("actual", list(TraceLevel))
@pytest.mark.parametrize("expected", list(TraceLevel))
def test_equal_traces_of_any_levels_agree_and_say_what_was_compared(lower: Lower, expected: str, actual: str):
    full = small_trace()
    comparison = compare(lower(full, expected), lower(full, actual))
    assert comparison.verdict is Verdict.AGREE, comparison.reasons
    kept = KNOWLEDGE_GRAPH.columns_kept(TraceLevel(expected)) & KNOWLEDGE_GRAPH.columns_kept(TraceLevel(actual))
    coverage = comparison.coverage
    assert set(coverage.fields) - {DIGEST} == kept
    assert set(coverage.not_compared) == KNOWLEDGE_GRAPH.compared_names - kept
    assert (DIGEST in coverage.fields) == ("digests" in (expected, actual))
    assert coverage.steps == len(full.columns.steps.depth)
    assert {rule.field for rule in comparison.equality} == set(coverage.fields)


@pytest.mark.parametrize("name", ["steps.choice", "steps.dropped_atoms", "steps.goal_atoms", "resolvents.atoms"])
def test_one_changed_value_is_a_divergence_of_its_step(lower: Lower, name: str):
    full = small_trace()
    place = (9, 1) if (name.endswith("_atoms") and "dropped" not in name) or name == "resolvents.atoms" else 5
    changed = with_element(full, name, place, lambda value: 1 - value if value in (0, 1) else value - 1)
    low, changed_low = lower(full, "digests"), lower(changed, "digests")
    for pair in ((low, changed), (full, changed_low), (low, changed_low)):
        comparison = compare(*pair)
        (divergence,) = comparison.divergences
        assert comparison.level is not None
        assert divergence.field == DIGEST


@pytest.mark.parametrize("name", ["resolvents.score", "resolvents.origin"])
def test_scores_and_origins_are_compared_where_both_have_them(lower: Lower, name: str):
    full = small_trace()
    changed = with_element(full, name, 9, lambda value: value + 1)
    comparison = compare(full, changed)
    assert (comparison.verdict, comparison.divergences[0].field) == (Verdict.DIVERGE, name)
    comparison = compare(lower(full, "digests"), changed)
    assert comparison.verdict is Verdict.AGREE
    assert name in comparison.coverage.not_compared


def test_the_trace_with_goals_takes_the_other_one_s_numbers(lower: Lower):
    full = small_trace()
    turned = without_columns(replace(renumbered(full, keeps_facts=False), rules=None), *ORIGINS)
    low, turned_low = lower(full, "digests"), lower(turned, "digests")
    for pair in ((low, turned), (turned, low), (full, turned_low)):
        assert compare(*pair).verdict is Verdict.AGREE
    comparison = compare(low, turned_low)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "number their names differently" in comparison.reasons[0]


def test_facts_in_another_order_do_not_forbid_digests_of_the_same_names():
    trace = with_header(small_trace(), level="digests", program_sha256="")
    for other, is_comparable in ((replace(trace, facts=trace.facts[::-1]), True), (renumbered(trace), False)):
        assert (compare(trace, other).reasons == ()) is is_comparable


def test_digests_of_what_one_side_does_not_count(lower: Lower):
    dropped = {"steps.dropped_atoms", "steps.dropped_resolvents"}
    full = with_element(small_trace(), "steps.dropped_atoms", 3, lambda _: 7)
    ignorant = without_columns(full, *dropped)
    low = lower(ignorant, "digests")
    assert set(low.header.absent) == dropped
    for pair in ((full, low), (low, full), (ignorant, low)):
        comparison = compare(*pair)
        assert comparison.verdict is Verdict.AGREE, comparison.reasons
        assert dropped <= set(comparison.coverage.not_compared)
    comparison = compare(lower(full, "digests"), low)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "count steps.dropped_atoms" in comparison.reasons[0]
