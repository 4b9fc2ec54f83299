"""AGREE needs everything compared and the same; what cannot be decided is INCONCLUSIVE, never AGREE."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from comparison_traces import (
    ORIGINS,
    column_of,
    compare,
    judge,
    renumbered,
    select_candidates,
    shallow_trace,
    small_lockstep_trace,
    small_trace,
    with_candidates,
    with_column,
    with_columns,
    with_element,
    with_header,
    without_columns,
)

from kgverify import DeclaredLimits, Limits, Symbols, Trace, Verdict
from kgverify.dialects import Dialect

ALL_ROWS = list(range(22))
NOTHING = np.arange(0)


@pytest.mark.parametrize(
    ("expected", "actual", "stage", "candidate"),
    [
        (ALL_ROWS, [*ALL_ROWS[:4], *ALL_ROWS[5:]], "recycle", 4),
        (ALL_ROWS[:-1], ALL_ROWS, "corrupt", 21),
        (ALL_ROWS, [*ALL_ROWS, 3], "recycle", 22),
    ],
    ids=["missing", "extra", "doubled"],
)
def test_a_candidate_of_one_side_is_a_divergence(expected: list[int], actual: list[int], stage: str, candidate: int):
    comparison = compare(with_candidates(small_trace(), expected), with_candidates(small_trace(), actual))
    (divergence,) = comparison.divergences
    assert (divergence.stage, divergence.candidate) == (stage, candidate)
    # Without steps and slots, there is no machinery that could lose it.
    outcomes = with_header(small_trace(), engine={"unknown": ("candidates.num_steps",), "layout": {}})
    scored = [with_candidates(outcomes, rows) for rows in (expected, actual)]
    assert {each.stage for each in compare(*scored).divergences} == {"corrupt"}
    shown = divergence.actual if len(actual) < len(expected) else divergence.expected
    assert shown == "no such candidate"
    coverage = comparison.coverage
    assert (coverage.candidates_expected, coverage.candidates_actual) == (len(expected), len(actual))
    assert coverage.candidates == min(len(expected), len(actual))


def test_a_candidate_lost_beside_one_of_another_query_doubled_is_no_other_draw():
    rows = [*ALL_ROWS[:4], *ALL_ROWS[5:], 21]
    found = compare(small_trace(), with_candidates(small_trace(), rows)).divergences
    assert [(each.stage, each.actual == "no such candidate") for each in found] == [
        ("recycle", True),
        ("recycle", False),
    ]


def test_candidates_that_both_sides_list_twice_or_in_another_order_agree():
    twice = with_candidates(small_trace(), [*ALL_ROWS, 3])
    order = np.random.default_rng(3).permutation(ALL_ROWS)
    for expected, actual in ((twice, twice), (small_trace(), with_candidates(small_trace(), order))):
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.AGREE
        assert comparison.coverage.candidates == len(expected.columns.candidates.query)
        assert comparison.coverage.steps == len(expected.columns.steps.depth)


ROW = 4


def drawn_instead(trace: Trace, atom: tuple[int, int, int]) -> str:
    return judge(trace, with_element(trace, "candidates.atom", ROW, lambda _: atom)).divergences[0].evidence


def test_what_was_drawn_instead_is_counted_and_facts_among_it_are_named():
    trace = small_trace()
    predicate, first, second = trace.columns.candidates.atom[ROW].tolist()
    fact = min(map(tuple, trace.facts.tolist()))
    one = "1 candidate drawn instead of 1 other"
    assert drawn_instead(trace, (predicate, first, first)) == one
    assert drawn_instead(trace, fact) == f"{one}, 1 of them facts"
    assert drawn_instead(trace, (predicate, second, first)) == f"{one}: their arguments swapped"
    assert drawn_instead(replace(trace, facts=None), fact) == one


def without_names(trace: Trace) -> Trace:
    return replace(trace, symbols=Symbols((), ()), facts=None, rankings=None)


def test_where_nothing_is_in_common_nothing_agrees():
    trace, lockstep = small_trace(), small_lockstep_trace()
    idle = select_candidates(trace.columns, NOTHING)._replace(
        candidates=trace.columns.candidates._replace(num_steps=trace.columns.candidates.num_steps * 0)
    )
    empty, without_steps = with_candidates(trace, NOTHING), with_columns(trace, idle)
    pairs = [
        *((empty, empty), (trace, empty), (empty, trace), (without_steps, without_steps), (trace, without_steps)),
        *((trace, without_names(empty)), (without_names(empty), trace)),
        (with_candidates(trace, ALL_ROWS[:5]), with_candidates(trace, ALL_ROWS[5:])),
    ]
    for expected, actual in pairs:
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.INCONCLUSIVE
        assert any("nothing was compared" in reason for reason in comparison.reasons)
    assert len(comparison.divergences) == len(ALL_ROWS)
    for expected, actual in ((lockstep, with_candidates(lockstep, NOTHING)), (with_candidates(lockstep, NOTHING),) * 2):
        assert compare(expected, actual, lockstep=True).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("keeps_facts", [True, False])
def test_another_numbering_of_the_same_names_agrees(keeps_facts: bool):
    theirs = renumbered(small_trace(), keeps_facts=keeps_facts, has_more=True)
    for expected, actual in ((small_trace(), theirs), (theirs, small_trace())):
        comparison = compare(expected, actual)
        assert (comparison.verdict, comparison.reasons) == (Verdict.AGREE, ())
        assert ("resolvents.origin" in comparison.coverage.fields) is keeps_facts


@pytest.mark.parametrize("level", ["steps", "digests"])
def test_equal_ids_and_digests_of_other_names_are_no_agreement(level: str):
    trace = replace(with_header(small_trace(), program_sha256=""), rankings=None)
    goals = set(column_of(trace, "steps.goal_atoms")[:, 1:].ravel().tolist())
    candidates = set(column_of(trace, "candidates.atom")[:, 1:].ravel().tolist())
    first, second = sorted(each for each in goals - candidates if each >= 0)[:2]
    constants = [*trace.symbols.constants]
    constants[first], constants[second] = constants[second], constants[first]
    symbols = Symbols(trace.symbols.predicates, tuple(constants))
    renamed = with_header(replace(trace, symbols=symbols, facts=None, fact_lines=None), level=level)
    for pair in ((trace, renamed), (renamed, trace)):
        assert compare(*pair).verdict is Verdict.DIVERGE


def test_a_fact_that_only_one_trace_has_is_no_fact_of_the_other():
    trace = small_trace()
    used = int(column_of(trace, "resolvents.origin")[column_of(trace, "resolvents.origin_kind") == 2][0])
    without = replace(trace, facts=np.delete(trace.facts, used, axis=0), fact_lines=None)
    fields = {each.field for each in compare(with_header(without, program_sha256=""), renumbered(trace)).divergences}
    assert fields == {"resolvents.origin"}


@pytest.mark.parametrize(
    ("left", "right", "differ"),
    [(None, None, False), (None, Dialect(memory="none"), False), (Dialect(), Dialect(memory="none"), True)],
)
def test_dialects_differ_only_if_both_are_known(left: Dialect | None, right: Dialect | None, differ: bool):
    limits = msgspec.structs.asdict(small_trace().header.limits)
    sides = [with_header(small_trace(), limits=DeclaredLimits(**limits | {"dialect": each})) for each in (left, right)]
    for pair in (sides, sides[::-1]):
        assert any("the dialects differ: memory" in reason for reason in compare(*pair).reasons) is differ


def test_a_reason_outweighs_a_divergence():
    actual = with_element(small_trace(), "steps.outcome", 3, lambda outcome: 1 - outcome)
    comparison = compare(small_trace(), with_header(actual, limits=Limits(max_atoms=7)))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert len(comparison.divergences) == 1


@pytest.mark.parametrize("role", ["expected", "actual", "both"])
@pytest.mark.parametrize(
    "names",
    [
        ORIGINS,
        ("resolvents.score", "candidates.log_probability"),
        ("steps.dropped_resolvents", "steps.dropped_atoms"),
        ("candidates.log_probability",),
    ],
)
def test_an_absent_column_is_not_compared_and_the_rest_is(names: tuple[str, ...], role: str):
    trace = with_element(small_trace(), "steps.dropped_atoms", 5, lambda _: 2)
    lacking = without_columns(trace, *names)
    expected = trace if role == "actual" else lacking
    actual = trace if role == "expected" else lacking
    comparison = compare(expected, actual)
    assert comparison.verdict is Verdict.AGREE
    assert comparison.coverage.not_compared == tuple(sorted(names))
    assert not set(names) & {*comparison.coverage.fields, *(rule.field for rule in comparison.equality)}
    wrong = with_element(actual, "steps.choice", 4, lambda choice: choice + 1)
    assert compare(expected, wrong).verdict is Verdict.DIVERGE


@pytest.mark.parametrize("choice", [-1, 10**6, -(2**31), 2**31 - 1])
def test_a_choice_that_is_not_a_resolvent_is_a_divergence_and_not_a_crash(choice: int):
    actual = with_element(small_trace(), "steps.choice", 6, lambda _: choice)
    for first, second in ((small_trace(), actual), (actual, small_trace())):
        (divergence,) = compare(first, second).divergences
        assert (divergence.stage, divergence.level) == ("choose", "choice")
        assert f"index {choice}, not a resolvent" in (divergence.expected, divergence.actual)


def test_candidates_behind_the_last_listed_divergence_are_not_taken_for_right(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kgverify.verification.recorded.KEPT", 5)
    trace = shallow_trace()
    more = column_of(trace, "steps.dropped_atoms") + np.uint32(1)
    report = judge(trace, with_column(trace, "steps.dropped_atoms", more))
    (cause,) = report.causes
    assert (len(report.divergences), cause.when.num_wrong, cause.when.num_right) == (5, 5, 0)
