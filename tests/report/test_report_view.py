"""The page as data: derivations side by side, charts, rows, and bounds on all of it."""

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from report_runs import change, enlarged, with_many_causes, without_causes

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Attribution, NearTie, Share
from kgverify.report.render.html import (
    MOST_BARS,
    MOST_COLUMNS,
    MOST_DETAILED,
    MOST_ROWS,
    build_heat_map,
    build_page,
    build_waterfall,
    render_html,
)
from kgverify.report.step_document import MOST_PAIRS, Derivation, DerivationReader
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.save import read_run, save_verification
from kgverify.verification.verify import Verification


def page_of(verification: Verification, report=None):
    run = verification
    return by_attribute(build_page(report or run.report, run.expected, run.actual, run.stepped))


def by_attribute(value):
    """Values for a template, whose parts are read as templates read them."""
    if isinstance(value, dict):
        return SimpleNamespace(**{name: by_attribute(each) for name, each in value.items()})
    return [by_attribute(each) for each in value] if isinstance(value, list) else value


def with_column(trace: Trace, level: str, field: str, change) -> Trace:
    columns = trace.columns
    values = getattr(getattr(columns, level), field).copy()
    change(values)
    columns = columns._replace(**{level: getattr(columns, level)._replace(**{field: values})})
    return replace(trace, columns=columns, digests=compute_digests(columns))


def derivation_of_change(trace: Trace, level: str, field: str, change) -> Derivation:
    """The first divergence of a trace from itself with one column changed."""
    changed = with_column(trace, level, field, change)
    comparison = Comparer(trace, changed).compare()
    reader = DerivationReader(trace, changed, comparison.divergences, lockstep=False)
    found = reader.read(comparison.divergences[0])
    assert found is not None
    return found


def test_the_header_tells_verdict_level_coverage_and_engines(faulty: Verification):
    header = render_html(faulty.report, faulty.expected, faulty.actual).partition("</header>")[0]
    assert '<span class="badge DIVERGE">DIVERGE</span>' in header
    assert "<dd>metric, the most severe: the difference changes metrics, not only ranks</dd>" in header
    assert f"<dt>covered</dt><dd>{faulty.report.coverage.candidates} candidates, " in header
    assert '<dd class="a">compiled (eager, cpu, float32, fact-cap)</dd>' in header
    page = page_of(faulty)
    name, cells = page.metrics[0]
    assert name == "mean_reciprocal_rank"
    assert cells[0][0] != cells[0][1]


def test_a_cause_opens_to_its_first_divergence_side_by_side(faulty: Verification):
    row = page_of(faulty).rows[0]
    assert (row.cause.stage, row.kind) == ("match_facts", "missing")
    assert row.cause.num_candidates == faulty.report.causes[0].num_candidates
    derivation = row.detail.derivation
    first = faulty.report.divergences[0]
    assert derivation.step == first.step > 0
    assert [each.step for each in derivation.before] == list(range(max(0, first.step - 3), first.step))
    assert all(each.agrees for each in derivation.before)
    assert "[rules.txt:1]" in derivation.before[0].clause
    assert not any(atoms.differs for atoms in derivation.goals)
    missing = [pair for pair in derivation.pairs if pair.mark == "missing"]
    assert missing
    assert all(pair.actual is None and "[train.txt:" in pair.expected.clause for pair in missing)
    assert [pair.is_culprit for pair in derivation.pairs].count(True) == 1
    assert derivation.pairs[0].is_culprit
    assert sum(line.is_chosen for pair in derivation.pairs for line in pair[1:3] if line) == 2
    assert row.detail.commands[0] == "kgverify show . --divergence 1"
    assert row.detail.commands[1:] == tuple(
        f"kgverify show {role}.h5 --candidate {first.candidate} --step {first.step}" for role in ("expected", "actual")
    )


def test_without_causes_the_divergences_stand_stage_by_stage(faulty: Verification):
    report = without_causes(faulty.report)
    later = change(report.divergences[0], stage="rank", step=-1, field="rankings", expected="1", actual="2")
    page = page_of(faulty, change(report, divergences=(later, *report.divergences[:5])))
    assert [row.stage for row in page.rows] == ["match_facts"] * 5 + ["rank"]
    assert [row.number for row in page.rows] == [2, 3, 4, 5, 6, 1]
    assert page.rows[5].detail.derivation is None
    assert page.bars == []


def test_a_run_that_agrees_has_no_rows(agreeing: Verification):
    page = page_of(agreeing)
    assert (page.rows, page.heat.rows, page.bars) == ([], [], [])
    assert page.commands == ("kgverify show expected.h5",)


def test_in_lockstep_a_step_that_the_actual_run_never_reached_is_shown_of_one_side(in_lockstep: Verification):
    report = in_lockstep.report
    reader = DerivationReader(in_lockstep.expected, in_lockstep.actual, report.divergences, lockstep=True)
    found = [reader.read(each) for each in report.divergences]
    apart = [each for each in found if each.note]
    assert apart
    assert len(apart) < len(found)
    for each in apart:
        assert "diverged earlier" in each.note
        assert all(pair.actual is None for pair in each.pairs)
        assert any(not step.agrees for step in each.before) or len(each.before) == 3


def test_in_lockstep_the_saved_steps_show_both_sides_of_every_divergence(in_lockstep: Verification, tmp_path):
    save_verification(in_lockstep, tmp_path)
    run = read_run(tmp_path)
    report = run.report
    reader = DerivationReader(run.expected, run.actual, report.divergences, lockstep=True, stepped=run.stepped)
    assert len(report.divergences) > 100
    for each in report.divergences:
        found = reader.read(each)
        assert found.note == ""
        assert not any(atoms.differs for atoms in found.goals)
        marks = {pair.mark for pair in found.pairs}
        assert "missing" in marks or any(pair.num_differing for pair in found.pairs)
        assert [pair.is_culprit for pair in found.pairs].count(True) == 1
    page = page_of(run)
    assert all(not row.detail.derivation.note for row in page.rows)
    assert not any("actual.h5" in command for row in page.rows for command in row.detail.commands)
    assert not any(row.num_later for row in page.rows)


def test_a_step_that_the_engine_did_not_return_is_reported(in_lockstep: Verification):
    """The steps are paired by what they are steps of, so that one lost step does not shift the others."""
    columns = in_lockstep.stepped.columns
    first = in_lockstep.report.divergences[0]
    lost = sum(in_lockstep.expected.columns.candidates.num_steps[: first.candidate]) + first.step
    kept = np.delete(np.arange(len(columns.candidates.query)), lost)
    columns = select_candidates(columns, kept)
    stepped = replace(in_lockstep.stepped, columns=columns, digests=compute_digests(columns))
    others = [each for each in in_lockstep.report.divergences if each.candidate != first.candidate]
    reader = DerivationReader(in_lockstep.expected, in_lockstep.actual, others, lockstep=True, stepped=stepped)
    assert all(not reader.read(each).note for each in others)
    num_steps = in_lockstep.expected.columns.candidates.num_steps[first.candidate]
    notes = [reader.read_step(first.candidate, step).note for step in range(num_steps)]
    assert notes.count("The actual side has no such step.") == 1


def test_a_difference_that_the_saved_run_does_not_have_is_described_in_words(
    agreeing: Verification, faulty: Verification
):
    """The derivations that run beside a step in lockstep are not those of the engine's own run."""
    first = faulty.report.divergences[0]
    reader = DerivationReader(agreeing.expected, agreeing.expected, (first,), lockstep=True)
    found = reader.read(first)
    assert "took this step as expected" in found.note
    assert not any(each.is_culprit for each in (*found.pairs, *found.facts))


def test_a_changed_choice_score_outcome_and_count_each_get_the_arrow(agreeing: Verification):
    trace = agreeing.expected
    many = int(np.argmax(trace.columns.steps.num_resolvents))

    def other_choice(values):
        values[many] = values[many] - 1 if values[many] else 1

    def other_outcome(values):
        values[0] = (values[0] + 1) % 4

    def more_dropped(values):
        values[0] += 5

    for field, place, edit in (
        ("choice", 4, other_choice),
        ("outcome", 5, other_outcome),
        ("dropped_atoms", 2, more_dropped),
    ):
        found = derivation_of_change(trace, "steps", field, edit)
        assert [fact.is_culprit for fact in found.facts].index(True) == place
        assert not found.goal_is_culprit
    nudged = derivation_of_change(trace, "resolvents", "score", lambda values: np.copyto(values[:1], values[:1] + 1e-9))
    assert nudged.pairs[0].mark == "score"
    assert nudged.pairs[0].expected.score != nudged.pairs[0].actual.score
    assert nudged.pairs[0].is_culprit


def test_a_changed_goal_and_a_changed_resolvent_are_aligned(agreeing: Verification):
    trace = agreeing.expected
    goal = derivation_of_change(trace, "steps", "goal_atoms", lambda values: values[0].__setitem__(1, 3))
    assert goal.goal_is_culprit
    assert goal.goals[0].differs
    atoms = derivation_of_change(trace, "resolvents", "atoms", lambda values: values[0].__setitem__(1, 3))
    marked = [pair for pair in atoms.pairs if pair.mark != "same"]
    assert [pair.mark for pair in marked] == ["changed"]
    assert marked[0].expected.clause == marked[0].actual.clause
    assert marked[0].is_culprit


def test_of_many_resolvents_the_culprit_and_the_chosen_stay(hostile: Verification):
    derivation = page_of(hostile).rows[0].detail.derivation
    shown = [pair for pair in derivation.pairs if pair.mark != "hidden"]
    assert len(shown) == MOST_PAIRS
    assert any(pair.is_culprit for pair in shown)
    assert sum(line.is_chosen for pair in shown for line in pair[1:3] if line) == 2
    total = sum(pair.num_hidden for pair in derivation.pairs) + len(shown)
    assert total > MOST_PAIRS


@pytest.mark.parametrize("make", [with_many_causes, lambda report, num: without_causes(enlarged(report, num))])
def test_two_thousand_divergences_make_a_page_of_bounded_size(faulty: Verification, make):
    report = make(faulty.report, 2000)
    page = page_of(faulty, report)
    assert len(page.rows) == MOST_ROWS
    detailed = sum(row.detail is not None for row in page.rows)
    assert 10 < detailed <= MOST_DETAILED
    html = render_html(report, faulty.expected, faulty.actual)
    assert f'<p class="soft">… and {2000 - MOST_ROWS:,} more in report.json</p>' in html
    assert f'<p class="soft">To keep the page small {MOST_ROWS - detailed:,} rows do not open' in html
    data = re.findall(r'<script type="[a-z/]*" id="[a-z-]*">([^<]*)</script>', html)
    assert len(data) == 4
    assert len(html.encode()) - sum(map(len, data)) < 200_000


def test_texts_as_long_as_their_author_liked_are_cut(faulty: Verification):
    report = without_causes(enlarged(faulty.report, 500))
    long = tuple(
        change(each, atom="x" * 100_000, goal="y" * 100_000, expected=["z" * 9_999] * 13) for each in report.divergences
    )
    report = change(report, divergences=long, first_cause=long[0])
    assert len(render_html(report, faulty.expected, faulty.actual).encode()) < 1_500_000


def test_the_waterfall_goes_from_expected_to_actual(faulty: Verification):
    report = with_many_causes(faulty.report, 3)
    shares = (Share(0, 0.3, 0.75), Share(1, -0.05, 0.4), Share(2, 0.08, 0.5), Share(-1, 0.02, 0.48))
    report = change(report, attribution=Attribution(metric="mrr", expected=0.82, actual=0.47, shares=shares))
    bars = by_attribute(build_waterfall(report))
    assert [bar.kind for bar in bars] == ["expected", "loss", "loss", "gain", "loss", "actual"]
    assert bars[-2].label == "rounding at near-ties"
    assert bars[0].end == 1000
    assert bars[-2].level == pytest.approx(bars[-1].end, abs=0.05)
    for before, after in pairwise(bars[:-1]):
        assert before.level == pytest.approx(after.end if after.kind == "loss" else after.begin)
    assert [bar.repaired for bar in bars[1:-1]] == [0.75, 0.5, 0.4, 0.48]


def test_many_causes_share_the_last_bar_and_no_bar_leaves_the_picture(faulty: Verification):
    report = with_many_causes(faulty.report, 30)
    shares = tuple(Share(i, (-1) ** i * 0.1, 0.1 * (i % 5)) for i in range(30))
    report = change(report, attribution=Attribution(metric="mrr", expected=0.1, actual=0.1, shares=shares))
    bars = by_attribute(build_waterfall(report))
    assert len(bars) == MOST_BARS + 3
    assert bars[-2].label == "18 further causes"
    assert all(0 <= bar.begin <= bar.end <= 1000 and 0 <= bar.level <= 1000 for bar in bars)


def test_a_metric_of_nothing_has_bars_of_no_width(faulty: Verification):
    report = change(faulty.report, attribution=Attribution(metric="mrr", expected=0.0, actual=0.0, shares=()))
    assert [(bar.begin, bar.end) for bar in by_attribute(build_waterfall(report))] == [(0, 0), (0, 0)]


def test_the_heat_map_counts_every_divergence_once(faulty: Verification):
    first = faulty.report.divergences[0]
    places = [("score", 0), ("score", 0), ("rank", -1), ("match_facts", 3), ("made up", 7)]
    divergences = tuple(change(first, stage=stage, step=step) for stage, step in places)
    heat = by_attribute(build_heat_map(divergences))
    assert heat.columns == ["whole", "0", "1", "2", "3", "4", "5", "6", "7"]
    assert [row.stage for row in heat.rows] == ["match_facts", "score", "rank", "made up"]
    assert [[num for num, _ in row.cells].index(row.total) for row in heat.rows] == [4, 1, 0, 8]
    assert heat.rows[1].cells[1] == (2, 1.0)


@pytest.mark.parametrize("deepest", [0, 19, 20, 65534])
def test_deep_derivations_share_columns(faulty: Verification, deepest: int):
    first = faulty.report.divergences[0]
    heat = by_attribute(build_heat_map(tuple(change(first, step=step) for step in {0, deepest // 2, deepest})))
    assert len(heat.columns) <= MOST_COLUMNS
    assert heat.rows[0].total == len({0, deepest // 2, deepest})
    assert int(heat.columns[-1].split("–")[-1]) >= deepest


def test_near_ties_are_listed_up_to_a_bound(agreeing: Verification):
    ties = tuple(NearTie(i, "p(a, b)", 2, 1e-7, 2e-7, "index 0", "index 1", 4) for i in range(70))
    html = render_html(change(agreeing.report, near_ties=ties), agreeing.expected, agreeing.actual)
    assert '<h2 id="h-ties">70 near-ties</h2>' in html
    assert html.count('<td class="num">1e-07</td>') == 50
    assert '<p class="soft">… and 20 more in report.json</p>' in html


def test_a_comparison_of_recorded_traces_is_shown_too(faulty: Verification, tmp_path):
    save_verification(faulty, tmp_path)
    recorded = compare_recorded(tmp_path / "expected.h5", tmp_path / "actual.h5")
    assert recorded.report.verdict.value == "DIVERGE"
    assert page_of(recorded).rows[0].detail.derivation.pairs


def test_candidates_that_one_side_lacks_have_no_derivation(faulty: Verification):
    first = faulty.report.divergences[0]
    lost = change(first, step=-1, field="candidates.atom", expected="p(a, b)", actual="no such candidate")
    extra = change(lost, candidate=10_000, expected="no such candidate", actual="p(a, b)")
    report = change(without_causes(faulty.report), divergences=(lost, extra))
    details = [row.detail for row in page_of(faulty, report).rows]
    assert [detail.derivation for detail in details] == [None, None]
    assert details[1].commands == ("kgverify show . --divergence 2", "kgverify show actual.h5 --candidate 10000")
