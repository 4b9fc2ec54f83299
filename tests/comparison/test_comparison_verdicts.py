"""AGREE needs everything compared and the same; what cannot be decided is INCONCLUSIVE, never AGREE."""

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from comparison_traces import (
    column_of,
    first_step_with,
    place_of_step,
    small_lockstep_trace,
    small_trace,
    with_column,
    with_columns,
    with_element,
    with_header,
    with_rankings,
)

from kgverify import Limits, Verdict
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.compare import compare
from kgverify.comparison.rankings import compare_rankings
from kgverify.comparison.result import Level, highest_level
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Columns, empty_columns, select_candidates, starts_of
from kgverify.trace.model.header import RunInfo
from kgverify.trace.model.trace import Trace


def rows_with(trace: Trace, rows: list[int]) -> Trace:
    return with_columns(trace, select_candidates(trace.columns, np.array(rows, np.int64)))


def without_last_step(trace: Trace, candidate: int) -> Trace:
    starts = starts_of(trace.columns.candidates.num_steps)
    kept = np.delete(np.arange(starts[-1]), starts[candidate + 1] - 1)
    single = select_candidates(lockstep_columns(trace.columns), kept)
    num_steps = trace.columns.candidates.num_steps.copy()
    num_steps[candidate] -= 1
    candidates = trace.columns.candidates._replace(num_steps=num_steps)
    return with_columns(trace, Columns(candidates, single.steps, single.resolvents))


ALL_ROWS = list(range(len(small_trace().columns.candidates.query)))


@pytest.mark.parametrize("candidate", [0, 7, ALL_ROWS[-1]])
def test_a_missing_last_step_is_a_divergence(candidate: int):
    trace = small_trace()
    shorter = without_last_step(trace, candidate)
    num_steps = int(trace.columns.candidates.num_steps[candidate])
    for expected, actual in ((trace, shorter), (shorter, trace)):
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.DIVERGE
        (divergence,) = comparison.divergences
        assert (divergence.candidate, divergence.step) == (candidate, num_steps - 1)
        assert divergence.field == "candidates.num_steps"
        assert divergence.level is Level.OUTCOME


def test_a_missing_candidate_is_a_divergence():
    comparison = compare(small_trace(), rows_with(small_trace(), ALL_ROWS[:4] + ALL_ROWS[5:]))
    assert comparison.verdict is Verdict.DIVERGE
    (divergence,) = comparison.divergences
    assert (divergence.candidate, divergence.stage, divergence.actual) == (4, "recycle", "no such candidate")
    assert comparison.coverage.candidates == len(ALL_ROWS) - 1
    assert comparison.coverage.candidates_expected == len(ALL_ROWS)


def test_an_extra_candidate_is_a_divergence():
    comparison = compare(rows_with(small_trace(), ALL_ROWS[:-1]), small_trace())
    assert comparison.verdict is Verdict.DIVERGE
    (divergence,) = comparison.divergences
    assert (divergence.expected, divergence.stage) == ("no such candidate", "corrupt")


def test_a_candidate_listed_twice_is_a_divergence_of_the_batch_machinery():
    comparison = compare(small_trace(), rows_with(small_trace(), [*ALL_ROWS, 3]))
    assert comparison.verdict is Verdict.DIVERGE
    (divergence,) = comparison.divergences
    assert (divergence.stage, divergence.candidate) == ("recycle", len(ALL_ROWS))


def test_a_candidate_listed_twice_on_both_sides_is_compared_twice():
    trace = rows_with(small_trace(), [*ALL_ROWS, 3])
    assert compare(trace, trace).verdict is Verdict.AGREE
    assert compare(trace, trace).coverage.candidates == len(ALL_ROWS) + 1


def test_candidates_drawn_otherwise_point_to_the_draw():
    actual = with_element(small_trace(), "candidates.atom", (4, 1), lambda entity: entity + 1)
    stages = {divergence.stage for divergence in compare(small_trace(), actual).divergences}
    assert stages == {"corrupt"}


@pytest.mark.parametrize("sides", ["both", "expected", "actual"])
@pytest.mark.parametrize("lockstep", [False, True])
def test_an_empty_trace_never_agrees(sides: str, lockstep: bool):
    trace = small_lockstep_trace() if lockstep else small_trace()
    empty = with_columns(trace, empty_columns())
    expected = trace if sides == "actual" else empty
    actual = trace if sides == "expected" else empty
    comparison = compare(expected, actual, lockstep=lockstep)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert any("nothing was compared" in reason for reason in comparison.reasons)


def test_candidates_without_a_step_never_agree():
    trace = small_trace()
    num_steps = np.zeros_like(trace.columns.candidates.num_steps)
    bare = with_columns(
        trace, empty_columns()._replace(candidates=trace.columns.candidates._replace(num_steps=num_steps))
    )
    assert compare(bare, bare).verdict is Verdict.INCONCLUSIVE
    assert compare(trace, bare).verdict is Verdict.INCONCLUSIVE


def test_nothing_in_common_never_agrees():
    comparison = compare(rows_with(small_trace(), ALL_ROWS[:5]), rows_with(small_trace(), ALL_ROWS[5:]))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert len(comparison.divergences) == len(ALL_ROWS)


@pytest.mark.parametrize("role", ["expected", "actual"])
def test_a_recording_that_did_not_finish_is_inconclusive_even_where_it_agrees(role: str):
    partial = replace(small_trace(), is_complete=False, source="run.h5.partial")
    traces = (partial, small_trace()) if role == "expected" else (small_trace(), partial)
    comparison = compare(*traces)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert comparison.reasons == (f"the {role} trace is not complete: run.h5.partial",)


def test_candidates_in_another_order_agree():
    order = np.random.default_rng(3).permutation(ALL_ROWS).tolist()
    assert order != ALL_ROWS
    comparison = compare(small_trace(), rows_with(small_trace(), order))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.coverage.candidates == len(ALL_ROWS)
    assert comparison.coverage.steps == len(small_trace().columns.steps.depth)


def renumbered(trace: Trace) -> Trace:
    """The same trace by a program that numbers predicates and constants otherwise, and knows more of them."""
    random = np.random.default_rng(8)
    predicates = ("unused", *trace.symbols.predicates)
    constants = (*trace.symbols.constants, "nowhere")
    new_of = [random.permutation(len(names)) for names in (predicates, constants)]

    def convert(atoms: np.ndarray) -> np.ndarray:
        out = atoms.copy()
        out[:, 0] = new_of[0][atoms[:, 0] + 1]
        arguments = atoms[:, 1:]
        out[:, 1:] = np.where(arguments >= 0, new_of[1][np.maximum(arguments, 0)], arguments)
        return out

    c = trace.columns
    columns = Columns(
        c.candidates._replace(atom=convert(c.candidates.atom)),
        c.steps._replace(goal_atoms=convert(c.steps.goal_atoms)),
        c.resolvents._replace(atoms=convert(c.resolvents.atoms)),
    )
    symbols = Symbols(
        tuple(np.array(predicates, object)[np.argsort(new_of[0])]),
        tuple(np.array(constants, object)[np.argsort(new_of[1])]),
    )
    trace = with_columns(replace(trace, symbols=symbols, facts=convert(trace.facts)), columns)
    return with_header(trace, program_sha256="")


def test_another_numbering_of_the_same_names_agrees():
    theirs = renumbered(small_trace())
    assert not np.array_equal(theirs.columns.steps.goal_atoms, small_trace().columns.steps.goal_atoms)
    for expected, actual in ((small_trace(), theirs), (theirs, small_trace())):
        comparison = compare(expected, actual)
        assert (comparison.verdict, comparison.reasons) == (Verdict.AGREE, ())


def test_a_difference_under_another_numbering_is_printed_in_names():
    theirs = with_element(renumbered(small_trace()), "steps.goal_atoms", (20, 2), lambda _: 3)
    (divergence,) = compare(small_trace(), theirs).divergences
    assert theirs.symbols.constants[3] in divergence.actual
    assert theirs.symbols.constants[3] not in divergence.expected


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"limits": Limits(max_depth=19)}, r"the limits differ: expected max_depth=20.*actual max_depth=19"),
        ({"limits": Limits(exclude_query=False)}, "exclude_query=True.*exclude_query=False"),
        ({"program_sha256": "0" * 64}, "the programs differ"),
        ({"policy": {"name": "two_tower"}}, "the policies differ: expected shortest, actual two_tower"),
        ({"run": {"graph": "family"}}, "the runs differ in graph: expected 'countries', actual 'family'"),
        ({"run": {"split": "valid"}}, "the runs differ in split"),
        ({"run": {"num_queries": 3}}, "the runs differ in num_queries: expected 2, actual 3"),
        ({"run": {"num_corruptions": -1}}, "the runs differ in num_corruptions"),
        ({"run": {"seed": 1}}, "the runs differ in seed: expected 0, actual 1"),
        ({"run": {"rank_tolerance": 0.0}}, "the runs differ in rank_tolerance"),
    ],
)
def test_traces_of_different_runs_are_inconclusive_with_a_reason(changes: dict, reason: str):
    other = with_header(small_trace(), **changes)
    for expected, actual in ((small_trace(), other), (other, small_trace())):
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.INCONCLUSIVE
        (found,) = comparison.reasons
        if expected is small_trace():
            assert re.search(reason, found)


def test_a_run_without_a_graph_is_compared_in_what_it_states():
    unnamed = with_header(small_trace(), run={"graph": ""})
    for expected, actual in ((small_trace(), unnamed), (unnamed, small_trace())):
        assert compare(expected, actual).verdict is Verdict.AGREE
        assert any(note.endswith("trace: the graph") for note in compare(expected, actual).notes)
    for name, value in (("split", "valid"), ("num_queries", 3), ("num_corruptions", 4), ("seed", 1)):
        other = with_header(unnamed, run={name: value})
        for expected, actual in ((small_trace(), other), (other, unnamed)):
            assert f"the runs differ in {name}" in compare(expected, actual).reasons[0]
    of_queries = with_header(unnamed, run={"num_queries": 0})
    assert compare(small_trace(), of_queries).verdict is Verdict.AGREE
    unstated = msgspec.structs.replace(unnamed.header, run=RunInfo(rank_tolerance=unnamed.header.run.rank_tolerance))
    found = compare(small_trace(), replace(unnamed, header=unstated))
    assert found.verdict is Verdict.AGREE
    assert any(note.endswith("trace: the run") for note in found.notes)


def test_different_weights_are_inconclusive_and_an_empty_hash_is_taken_for_equal():
    first = with_header(small_trace(), policy={"name": "two_tower", "sha256": "ab" * 32})
    second = with_header(small_trace(), policy={"name": "two_tower", "sha256": "cd" * 32})
    unknown = with_header(small_trace(), policy={"name": "two_tower", "sha256": ""})
    assert compare(first, second).verdict is Verdict.INCONCLUSIVE
    assert compare(first, unknown).verdict is Verdict.AGREE


def test_a_reason_outweighs_a_divergence():
    actual = with_element(small_trace(), "steps.outcome", 3, lambda outcome: 1 - outcome)
    comparison = compare(small_trace(), with_header(actual, limits=Limits(max_atoms=7)))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert len(comparison.divergences) == 1


def without_columns(trace: Trace, *names: str) -> Trace:
    """Return the trace as read from a file that lacks columns: zeros, and not among its fields."""
    for name in names:
        trace = with_column(trace, name, np.zeros_like(column_of(trace, name)))
    return replace(trace, fields=trace.fields - set(names))


@pytest.mark.parametrize("role", ["expected", "actual", "both"])
@pytest.mark.parametrize(
    "names",
    [
        ("resolvents.origin", "resolvents.origin_kind"),
        ("resolvents.score",),
        ("steps.dropped_atoms", "steps.dropped_resolvents"),
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
    assert not set(names) & set(comparison.coverage.fields)
    assert not set(names) & {rule.field for rule in comparison.equality}
    wrong = with_element(actual, "steps.choice", 4, lambda choice: choice + 1)
    assert compare(expected, wrong).verdict is Verdict.DIVERGE


def swapped_resolvents(trace: Trace, row: int) -> Trace:
    """The first and the last resolvent of a step in each other's place, the choice with them."""
    starts = starts_of(trace.columns.steps.num_resolvents)
    first, last = int(starts[row]), int(starts[row + 1]) - 1
    order = np.arange(len(trace.columns.resolvents.kind))
    order[[first, last]] = order[[last, first]]
    r = trace.columns.resolvents
    atom_starts = starts_of(r.num_atoms)
    atoms = np.concatenate([r.atoms[atom_starts[i] : atom_starts[i + 1]] for i in order])
    choice = trace.columns.steps.choice.copy()
    choice[row] = {0: last - first, last - first: 0}.get(int(choice[row]), int(choice[row]))
    resolvents = type(r)(*(column[order] for column in r[:-1]), atoms)
    steps = trace.columns.steps._replace(choice=choice)
    return with_columns(trace, trace.columns._replace(steps=steps, resolvents=resolvents))


def test_another_order_alone_is_of_level_order():
    trace = small_trace()
    row = first_step_with(trace, 3)
    comparison = compare(trace, swapped_resolvents(trace, row))
    (divergence,) = comparison.divergences
    assert (divergence.candidate, divergence.step) == place_of_step(trace, row)
    assert (divergence.field, divergence.level, comparison.level) == ("resolvents.order", Level.ORDER, Level.ORDER)
    assert sorted(divergence.expected) == sorted(divergence.actual)
    assert divergence.expected != divergence.actual


def test_another_numbering_of_variables_alone_is_of_level_renaming():
    trace = small_trace()
    step_of = np.repeat(
        np.repeat(np.arange(len(trace.columns.steps.depth)), trace.columns.steps.num_resolvents),
        trace.columns.resolvents.num_atoms,
    )
    chosen = starts_of(trace.columns.steps.num_resolvents)[:-1] + trace.columns.steps.choice
    is_chosen = np.zeros(len(trace.columns.resolvents.kind), np.bool_)
    is_chosen[chosen] = True
    in_chosen = np.repeat(is_chosen, trace.columns.resolvents.num_atoms)
    has_variable = (trace.columns.resolvents.atoms[:, 1:] < 0).any(1)
    step = int(step_of[np.flatnonzero(has_variable & ~in_chosen)[0]])
    atoms = trace.columns.resolvents.atoms.copy()
    of_step = (step_of == step) & ~in_chosen
    atoms[of_step, 1:] = np.where(atoms[of_step, 1:] < 0, atoms[of_step, 1:] - 4, atoms[of_step, 1:])
    comparison = compare(trace, with_column(trace, "resolvents.atoms", atoms))
    (divergence,) = comparison.divergences
    assert (divergence.stage, divergence.level) == ("rename", Level.RENAMING)
    assert (divergence.candidate, divergence.step) == place_of_step(trace, step)


def test_a_dropped_atom_points_to_prune_and_a_resolvent_less_to_matching():
    trace = small_trace()
    starts = starts_of(trace.columns.steps.num_resolvents)
    longer = int(np.argmax(trace.columns.resolvents.num_atoms))
    assert trace.columns.resolvents.num_atoms[longer] > 1
    row = int(np.searchsorted(starts, longer, side="right")) - 1
    first = int(starts[row])
    at = int(starts_of(trace.columns.resolvents.num_atoms)[longer])
    counts = trace.columns.resolvents.num_atoms.copy()
    counts[longer] -= 1
    resolvents = trace.columns.resolvents._replace(
        num_atoms=counts, atoms=np.delete(trace.columns.resolvents.atoms, at + 1, axis=0)
    )
    pruned = with_columns(trace, trace.columns._replace(resolvents=resolvents))
    (divergence,) = compare(trace, pruned).divergences
    assert divergence.stage == "prune"

    r = trace.columns.resolvents
    last = first + int(trace.columns.steps.num_resolvents[row]) - 1
    atom_starts = starts_of(r.num_atoms)
    gone = np.arange(atom_starts[last], atom_starts[last + 1])
    resolvents = type(r)(*(np.delete(column, last) for column in r[:-1]), np.delete(r.atoms, gone, axis=0))
    counts = trace.columns.steps.num_resolvents.copy()
    counts[row] -= 1
    steps = trace.columns.steps._replace(num_resolvents=counts)
    fewer = with_columns(trace, trace.columns._replace(steps=steps, resolvents=resolvents))
    (divergence,) = compare(trace, fewer).divergences
    assert divergence.stage in ("match_rules", "match_facts")
    assert divergence.actual == ["nothing more"]
    dropped = with_element(fewer, "steps.dropped_resolvents", row, lambda count: count + 1)
    (divergence,) = compare(trace, dropped).divergences
    assert divergence.stage == "limit"


def test_levels_are_ordered_from_bits_to_metric():
    assert [level.value for level in Level] == [
        "bits",
        "tolerance",
        "order",
        "renaming",
        "choice",
        "outcome",
        "rank",
        "metric",
    ]
    assert highest_level([Level.RANK, Level.BITS, Level.OUTCOME]) is Level.RANK
    assert highest_level([]) is None


def test_another_outcome_of_the_candidate_raises_the_level():
    trace = small_trace()
    row = first_step_with(trace, 2)
    candidate, _ = place_of_step(trace, row)
    actual = with_element(trace, "steps.dropped_atoms", row, lambda count: count + 1)
    assert compare(trace, actual).level is Level.RENAMING
    actual = with_element(actual, "candidates.outcome", candidate, lambda outcome: (outcome + 1) % 4)
    assert compare(trace, actual).level is Level.OUTCOME


@pytest.mark.parametrize("choice", [-1, -2, 10**6, -(2**31), 2**31 - 1])
@pytest.mark.parametrize("score_error", [0.0, 10.0])
def test_a_choice_that_is_not_a_resolvent_is_a_divergence_and_not_a_crash(choice: int, score_error: float):
    trace = with_header(small_trace(), engine={"score_error": score_error})
    actual = with_element(trace, "steps.choice", 6, lambda _: choice)
    for first, second in ((trace, actual), (actual, trace)):
        (divergence,) = compare(first, second).divergences
        assert (divergence.stage, divergence.level) == ("choose", Level.CHOICE)
        assert f"index {choice}, not a resolvent" in (divergence.expected, divergence.actual)


def test_wrong_ranks_behind_agreeing_candidates_are_a_fault_of_rank():
    trace = small_trace()
    agreeing = compare(trace, trace)
    assert compare_rankings(agreeing, trace, trace) == agreeing
    for name in ("optimistic", "pessimistic", "num_ranked"):
        wrong = getattr(trace.rankings, name).copy()
        wrong[1] += 1
        comparison = compare_rankings(agreeing, trace, with_rankings(trace, **{name: wrong}))
        assert comparison.verdict is Verdict.DIVERGE
        (divergence,) = comparison.divergences
        assert (divergence.stage, divergence.query, divergence.side) == ("rank", 0, "tail")
        assert comparison.level in (Level.RANK, Level.METRIC)
        assert comparison.level is (Level.RANK if name == "num_ranked" else Level.METRIC)


def test_a_ranking_too_few_or_too_many_is_a_fault_of_rank():
    trace = small_trace()
    fewer = replace(trace, rankings=type(trace.rankings)(*(column[:-1] for column in trace.rankings)))
    for expected, actual in ((trace, fewer), (fewer, trace)):
        comparison = compare_rankings(compare(expected, actual), expected, actual)
        assert comparison.verdict is Verdict.DIVERGE
        (divergence,) = comparison.divergences
        assert divergence.stage == "rank"
        assert "not ranked" in (divergence.expected, divergence.actual)


def test_absent_ranks_are_named():
    trace = small_trace()
    comparison = compare_rankings(compare(trace, trace), trace, replace(trace, rankings=None))
    assert comparison.verdict is Verdict.AGREE
    assert comparison.notes == ("ranks were not compared: the actual trace has none",)


def test_the_steps_of_the_candidate_after_a_divergence_follow_from_it():
    trace, alone = small_trace(), small_lockstep_trace()
    num_steps = trace.columns.candidates.num_steps
    candidate = int(np.argmax(num_steps))
    first, end = starts_of(num_steps)[candidate : candidate + 2].tolist()
    assert end - first > 2
    for row in range(first, end):
        (divergence,) = compare(
            trace, with_element(trace, "steps.dropped_atoms", row, lambda count: count + 1)
        ).divergences
        assert (divergence.step, divergence.later_steps) == (row - first, end - row - 1)
        (divergence,) = compare(
            alone, with_element(alone, "steps.dropped_atoms", row, lambda count: count + 1), lockstep=True
        ).divergences
        assert (divergence.step, divergence.later_steps) == (int(trace.columns.steps.depth[row]), 0)
    limited = with_element(trace, "candidates.is_limited", candidate, lambda flag: 1 - flag)
    (divergence,) = compare(trace, limited).divergences
    assert (divergence.step, divergence.later_steps) == (-1, 0)
