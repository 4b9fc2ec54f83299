"""Traces of different levels are compared by what both have, and by their digests; never by nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from comparison_traces import first_step_with, small_trace, with_columns, with_element, with_header, with_header_error

from kgverify import Limits, Verdict, load_graph
from kgverify.comparison.compare import compare
from kgverify.comparison.result import DIGEST, Level
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.program.program import Symbols
from kgverify.runs.run import Run, build_trace, reference_pipeline
from kgverify.trace.maintain.repair import convert_trace
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.trace_file import read_trace
from kgverify.trace.write.writer import write_again
from kgverify.verification.recorded import compare_recorded

LOW = (TraceLevel.DIGESTS, TraceLevel.COMPACT)


@pytest.fixture
def lower(tmp_path: Path):
    def lower(trace: Trace, level: TraceLevel) -> Trace:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        write_again(with_header(trace, level=TraceLevel.DEEP.value), path)
        convert_trace(path, path, level)
        return read_trace(path)

    return lower


@pytest.mark.sample(8)
@pytest.mark.parametrize("actual", list(TraceLevel))
@pytest.mark.parametrize("expected", list(TraceLevel))
def test_equal_traces_of_any_levels_agree_and_say_what_was_compared(lower, expected, actual):
    full = small_trace()
    comparison = compare(lower(full, expected), lower(full, actual))
    assert comparison.verdict is Verdict.AGREE, comparison.reasons
    kept = KNOWLEDGE_GRAPH.columns_kept(expected) & KNOWLEDGE_GRAPH.columns_kept(actual)
    coverage = comparison.coverage
    assert set(coverage.fields) - {DIGEST} == kept
    assert set(coverage.not_compared) == KNOWLEDGE_GRAPH.compared_names - kept
    assert (DIGEST in coverage.fields) == (set(LOW) >= {expected, actual} or bool({expected, actual} & set(LOW)))
    assert coverage.steps == len(full.columns.steps.depth)
    assert {rule.field for rule in comparison.equality} == set(coverage.fields)


CHANGES = [
    "steps.depth",
    "steps.choice",
    "steps.outcome",
    "steps.dropped_atoms",
    "steps.goal_atoms",
    "resolvents.atoms",
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", LOW)
@pytest.mark.parametrize("name", CHANGES)
def test_one_changed_value_is_a_divergence_of_its_step(lower, level, name):
    full = small_trace()
    place = (9, 1) if name.endswith("atoms") and "dropped" not in name else 5
    changed = with_element(full, name, place, lambda value: 1 - value if value in (0, 1) else value - 1)
    for expected, actual in (
        (lower(full, level), changed),
        (full, lower(changed, level)),
        (lower(full, level), lower(changed, level)),
    ):
        comparison = compare(expected, actual)
        assert comparison.verdict is Verdict.DIVERGE
        assert len(comparison.divergences) == 1
        assert comparison.level is not None
    if level is TraceLevel.DIGESTS:
        assert comparison.divergences[0].field == DIGEST


@pytest.mark.parametrize("name", ["resolvents.score", "resolvents.origin"])
def test_scores_and_origins_are_compared_where_both_have_them(lower, name):
    full = small_trace()
    changed = with_element(full, name, 9, lambda value: value + 1)
    comparison = compare(lower(full, TraceLevel.COMPACT), changed)
    assert (comparison.verdict, comparison.divergences[0].field) == (Verdict.DIVERGE, name)
    comparison = compare(lower(full, TraceLevel.DIGESTS), changed)
    assert comparison.verdict is Verdict.AGREE
    assert name in comparison.coverage.not_compared


def near_tie(gap: float) -> tuple[Trace, Trace]:
    """Two traces whose last step of a candidate chooses otherwise, at this gap of the scores, with an error bound 0.01."""
    full = small_trace()
    row = first_step_with(full, 3)
    first = int(starts_of(full.columns.steps.num_resolvents)[row])
    choice = int(full.columns.steps.choice[row])
    other = (choice + 1) % 3
    score = full.columns.resolvents.score.copy()
    score[first + other] = score[first + choice] - gap
    scored = replace(full, columns=full.columns._replace(resolvents=full.columns.resolvents._replace(score=score)))
    expected = with_header_error(scored, 0.01)
    actual = with_element(expected, "steps.choice", row, lambda _: other)
    if gap < 0.02:
        # By its own scores, which are as good, the other choice is the first of the highest.
        actual = with_element(actual, "resolvents.score", first + other, lambda _: score[first + choice] + 0.001)
    return expected, actual


@pytest.mark.parametrize("level", LOW)
def test_a_near_tie_is_distinguished_from_a_divergence_by_the_trace_with_goals(lower, level):
    expected, actual = near_tie(0.015)
    for pair in ((lower(expected, level), actual), (expected, lower(actual, level))):
        comparison = compare(*pair)
        assert comparison.verdict is Verdict.AGREE
        assert len(comparison.near_ties) == 1
        assert comparison.near_ties[0].gap <= comparison.near_ties[0].bound
    expected, actual = near_tie(0.5)
    for pair in ((lower(expected, level), actual), (expected, lower(actual, level))):
        comparison = compare(*pair)
        assert comparison.verdict is Verdict.DIVERGE
        assert not comparison.near_ties


def test_digests_alone_do_not_decide_where_scores_have_an_error_bound(lower):
    expected, actual = near_tie(0.015)
    comparison = compare(lower(expected, TraceLevel.DIGESTS), lower(actual, TraceLevel.DIGESTS))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "error bound" in comparison.reasons[0]
    assert len(comparison.divergences) == 1


def renumbered(trace: Trace) -> Trace:
    """The same trace with its constants numbered the other way round."""
    last = len(trace.symbols.constants) - 1

    def turn(atoms):
        turned = atoms.copy()
        for column in (1, 2):
            turned[:, column] = np.where(atoms[:, column] >= 0, last - atoms[:, column], atoms[:, column])
        return turned

    c = trace.columns
    columns = c._replace(
        candidates=c.candidates._replace(atom=turn(c.candidates.atom)),
        steps=c.steps._replace(goal_atoms=turn(c.steps.goal_atoms)),
        resolvents=c.resolvents._replace(atoms=turn(c.resolvents.atoms)),
    )
    symbols = Symbols(trace.symbols.predicates, trace.symbols.constants[::-1])
    fields = trace.fields - {"resolvents.origin", "resolvents.origin_kind"}
    trace = replace(trace, symbols=symbols, columns=columns, facts=None, rules=None, fact_lines=None, fields=fields)
    return with_header(replace(trace, digests=compute_digests(columns)), program_sha256="")


def test_the_trace_with_goals_takes_the_other_one_s_numbers(lower):
    full, turned = small_trace(), renumbered(small_trace())
    low = lower(full, TraceLevel.DIGESTS)
    for pair in ((low, turned), (turned, low), (full, lower(turned, TraceLevel.DIGESTS))):
        assert compare(*pair).verdict is Verdict.AGREE
    comparison = compare(low, lower(turned, TraceLevel.DIGESTS))
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "number their names differently" in comparison.reasons[0]


def test_digests_of_what_one_side_does_not_count(lower):
    full = small_trace()
    dropped = {"steps.dropped_atoms", "steps.dropped_resolvents"}
    full = with_element(full, "steps.dropped_atoms", 3, lambda _: 7)
    steps = full.columns.steps
    zeros = np.zeros_like(steps.dropped_atoms)
    blank = with_columns(
        full, full.columns._replace(steps=steps._replace(dropped_atoms=zeros, dropped_resolvents=zeros))
    )
    ignorant = replace(blank, fields=full.fields - dropped)
    low = lower(ignorant, TraceLevel.DIGESTS)
    assert set(low.header.absent) == dropped
    for pair in ((full, low), (low, full), (ignorant, low)):
        comparison = compare(*pair)
        assert comparison.verdict is Verdict.AGREE, comparison.reasons
        assert dropped <= set(comparison.coverage.not_compared)
    comparison = compare(lower(full, TraceLevel.DIGESTS), low)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "count steps.dropped_atoms" in comparison.reasons[0]


@pytest.mark.parametrize("name", ["choice", "num_resolvents", "depth", "outcome"])
def test_a_digest_does_not_vouch_for_columns_that_it_cannot_be_computed_from(lower, name):
    full = small_trace()
    low = lower(full, TraceLevel.COMPACT)
    values = getattr(low.columns.steps, name).copy()
    values[[2, 3]] += np.array([1, -1]).astype(values.dtype) if name == "num_resolvents" else values.dtype.type(1)
    forged = replace(low, columns=low.columns._replace(steps=low.columns.steps._replace(**{name: values})))
    assert compare(low, forged).verdict is Verdict.DIVERGE


def test_compact_traces_that_differ_are_compared_goal_by_goal(tmp_path: Path):
    graph = load_graph("countries")
    for name, limits in (("a", Limits()), ("b", Limits(max_resolvents=5))):
        run = Run(graph, limits=limits, num_queries=2, num_corruptions=5)
        pipeline = reference_pipeline(run)
        columns = pipeline.engine.prove(pipeline.draw_for(run))
        trace = build_trace(run, pipeline.engine, columns, pipeline.rank_finite(run, columns.candidates))
        write_again(with_header(trace, limits=Limits()), tmp_path / name)
        convert_trace(tmp_path / name, tmp_path / f"{name}.compact", TraceLevel.COMPACT)
    full = compare_recorded(tmp_path / "a", tmp_path / "b").report
    low = compare_recorded(tmp_path / "a.compact", tmp_path / "b.compact").report
    assert full.verdict is low.verdict is Verdict.DIVERGE
    assert low.divergences == full.divergences
    assert low.coverage == full.coverage
    assert full.level is not Level.BITS
