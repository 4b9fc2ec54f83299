"""Replaying a divergent step names its stage; where it does not reproduce, the traces decide. Dialects keep their stages."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import kgverify as kv
from kgverify import Equality, Limits, Report, Stage, Trace, Verdict
from kgverify.comparison.classify import Finding
from kgverify.comparison.inference.infer import name_in_dialect
from kgverify.comparison.locate import render_difference
from kgverify.comparison.step_view import Names
from kgverify.dialects import Dialect, ReferenceEngine
from kgverify.program.limits import FILTERS, VALUES
from kgverify.program.outcomes import DifferenceClass
from kgverify.trace.maintain.check import check_trace
from kgverify.trace.model.columns import starts_of
from kgverify.verification.replay import find_later_faults, find_score_source


class WrongAlone(ReferenceEngine):
    """An engine that steps right, and makes one wrong choice in every run of its own."""

    row = 0

    def prove(self, *arguments: Any) -> kv.Columns:
        columns = super().prove(*arguments)
        choice = columns.steps.choice.copy()
        choice[self.row] += 1
        return columns._replace(steps=columns.steps._replace(choice=choice))


@pytest.mark.parametrize(("step", "stage"), [(0, "recycle"), (1, "advance")])
def test_what_goes_wrong_before_a_step_is_handed_on_by_advance_or_put_there_by_recycle(step: int, stage: str):
    engine = type("WrongAlone", (WrongAlone,), {"row": step})
    report = kv.verify("countries", engine, queries=2, corruptions=5, equality=Equality(determinism=False))
    found = [(each.candidate, each.step, each.stage, each.is_replayed) for each in report.divergences]
    assert found == [(0, step, stage, True)]


@pytest.mark.parametrize(
    ("stage", "expected", "actual", "shown"),
    [
        ("select", (0, 1, -1), (0, 2, -1), None),
        ("match_facts", (0, 1, 2), (0, 2), (1, ["nothing more"])),
        ("match_rules", (0, 1), (1, 0), (2, 2)),
        ("resolve", ((1, 0, ((0, 1, -1),)),), (), (1, ["nothing more"])),
        ("close", ((1, 1, 0, ()),), ((2, 0, 0, ()),), (1, 1)),
        ("limit", ((), 1, 0), ((), 0, 1), ("dropped 1 by max_atoms", "dropped 0 by max_atoms")),
        ("limit", (((0, 1, 0, ((0, 1, 2),)),), 0, 0), ((), 0, 0), (1, ["nothing more"])),
        ("score", (1.0, 2.0), (1.0, 3.0), (["1.0", "2.0"], ["1.0", "3.0"])),
        ("choose", 0, 1, (0, 1)),
        ("advance", (0, ((0, 1, 2),), 1), (2, (), 1), None),
        ("finish", 1, 9, ("PROVED", "outcome#9")),
    ],
)
def test_a_difference_in_a_stage_is_shown_with_names(stage: str, expected: Any, actual: Any, shown: Any):
    trace = kv.verify("countries", "reference", queries=1, corruptions=0).traces.expected
    values = render_difference(Stage(stage), expected, actual, Names(trace))
    assert values[0] != values[1]
    msgspec.json.encode(values)
    for value, wanted in zip(values, shown or (), strict=bool(shown)):
        if isinstance(wanted, int) and isinstance(value, list):
            assert len(value) == wanted
        else:
            assert value.startswith(wanted) if isinstance(wanted, str) else value == wanted


def trace_in(dialect: Dialect, graph: Any = "countries", num: int = 2, **limits: Any) -> Trace:
    limits_ = Limits(dialect=dialect, **limits)
    equality = Equality(determinism=False, minimum="none")
    report = kv.verify(graph, "reference", queries=1, corruptions=num, limits=limits_, equality=equality)
    return report.traces.expected


def retake(trace: Trace) -> Report:
    """Judge a trace by the reference's steps from its goals."""
    return kv.compare("reference", trace, equality=Equality(minimum="none"))


@pytest.mark.parametrize("knows_depths", [True, False])
def test_uncounted_steps_are_not_counted_when_a_trace_is_judged(knows_depths: bool):
    trace = trace_in(Dialect(skips_unary=True), max_depth=3)
    steps = trace.columns.steps
    assert (np.diff(steps.depth.astype(int)) == 0).any()
    if not knows_depths:
        unknown = trace.columns._replace(steps=steps._replace(depth=np.zeros_like(steps.depth)))
        trace = replace(trace, columns=unknown, fields=trace.fields - {"steps.depth"})
    report = retake(trace)
    assert report.divergences == ()
    assert ("steps.depth" in report.coverage.fields) is knows_depths


def test_traces_of_different_dialects_are_compared_only_if_the_user_allows_it():
    expected, actual = trace_in(Dialect()), trace_in(Dialect(ties="random"))
    reason = "the dialects differ: ties is realistic in the expected dialect and random in the actual one [KG209]"
    found = kv.kinds.compare(expected, actual)
    assert (found.verdict, found.reasons) == (Verdict.INCONCLUSIVE, (reason,))
    allowed = kv.compare(expected, actual, equality=Equality(allow_dialects=True))
    assert (allowed.verdict, reason in allowed.notes) == (Verdict.AGREE, True)
    free = [trace_in(Dialect(exclusion=each), exclude_query=False) for each in ("always", "never")]
    assert kv.kinds.compare(*free).verdict is Verdict.AGREE
    with pytest.raises(kv.UserError, match="ranks rest on the default dialect"):
        kv.evaluate("countries", "reference", queries=1, limits=Limits(dialect=Dialect(unproved="log_probability")))


@pytest.mark.parametrize(
    ("dialect", "stage", "evidence"),
    [
        (Dialect(), "choose", ""),
        (Dialect(filters=("prune", "close")), "choose", ""),
        (Dialect(memory="set"), "choose", ""),
        (Dialect(filters=("close",)), "prune", "no stage is named: the dialect does not apply prune"),
        (Dialect(filters=("prune", "close")), "revisit", "no stage is named: the dialect does not apply revisit"),
    ],
)
def test_a_stage_is_named_only_where_its_rules_hold(dialect: Dialect, stage: str, evidence: str):
    divergence = kv.Divergence(
        candidate=0, atom="", query=0, side="", step=0, stage=stage, field="", level="outcome", expected=1, actual=2
    )  # fmt: skip
    ((named,), (why,)) = name_in_dialect([divergence], [Finding(DifferenceClass.MISSING, "seen", 0.9)], dialect)
    assert named.stage == ("unknown" if evidence else stage)
    assert evidence in why.evidence


def test_revisit_is_not_at_fault_for_a_resolvent_that_prune_emptied_on_one_side_only():
    goal = ((0, 1, 2),)
    expected = {Stage.PRUNE: ((1, 0, goal),), Stage.RENAME: ((1, 0, goal),), Stage.REVISIT: ()}
    actual = {Stage.PRUNE: ((1, 0, ()),), Stage.RENAME: ((1, 0, goal),), Stage.REVISIT: ((1, 0, ()),)}
    assert not [*find_later_faults(Stage.RESOLVE, expected, actual, Limits(), 0.0)]
    kept = actual | {Stage.PRUNE: expected[Stage.PRUNE]}
    assert [each.stage for each in find_later_faults(Stage.RESOLVE, expected, kept, Limits(), 0.0)] == [Stage.REVISIT]


@pytest.mark.parametrize("culprit", [Stage.MATCH_FACTS, Stage.RESOLVE])
def test_a_stage_is_no_later_fault_of_its_own(culprit: Stage):
    expected, actual = ({culprit: ((1, 0, ((0, 1, last),)),)} for last in (2, 3))
    assert [each.stage for each in find_later_faults(Stage.SELECT, expected, actual, Limits(), 0.0)] == [culprit]
    assert not [*find_later_faults(culprit, expected, actual, Limits(), 0.0)]


def test_scores_of_the_call_before_are_sought_among_steps_that_have_a_call_before():
    columns = trace_in(Dialect(), num=20).columns
    num = len(columns.resolvents.score)
    columns = columns._replace(resolvents=columns.resolvents._replace(score=np.random.default_rng(0).normal(size=num)))
    bounds, first = starts_of(columns.steps.num_resolvents), starts_of(columns.candidates.num_steps)
    divergences, views = [], {}
    for row in np.flatnonzero(columns.candidates.num_steps > 1)[:20].tolist():
        for step in (0, 1):
            # The scores of the step before; those of a first step are of no step of the run.
            own = columns.resolvents.score[bounds[first[row]] : bounds[first[row] + 1]] + 9 * (1 - step)
            views[row, step] = None, SimpleNamespace(resolvents=[SimpleNamespace(score=score) for score in own])
            divergences.append(SimpleNamespace(candidate=row, step=step, field="resolvents.score"))
    source = find_score_source(columns, divergences, views, 1e-9)
    assert source is not None
    assert "20 of 20 steps" in source.evidence


@pytest.mark.deep
def test_a_trace_of_any_dialect_contradicts_nothing_and_is_judged_by_its_own_steps(tmp_path):
    rng, seen = random.Random(5), set()
    for number in range(14):
        values = {name: rng.choice(choices) for name, choices in VALUES.items()}
        dialect = Dialect(**values, filters=tuple(rng.sample(FILTERS, rng.randint(3, len(FILTERS)))))
        path = tmp_path / f"{number}.h5"
        limits = Limits(dialect=dialect, max_depth=rng.randint(2, 5), max_atoms=2, max_resolvents=rng.randint(1, 6))
        kv.record("countries", path, "reference", queries=1, corruptions=2, limits=limits)
        assert not [note for note in check_trace(path).notes if "contradict" in note], dialect
        # The recorded positions do not say which candidates are positives.
        if dialect.exclusion != "positives_only":
            assert (retake(kv.open_trace(path).load()).divergences) == (), dialect
        steps, kinds = (part := kv.open_trace(path).load().columns).steps, part.resolvents.kind
        seen |= {"stop"} if (kinds == 3).any() else set()
        seen |= {"uncounted"} if (np.diff(steps.depth.astype(int)) == 0).any() else set()
        seen |= {"dropped"} if steps.dropped_atoms.any() else set()
    assert seen == {"stop", "uncounted", "dropped"}
