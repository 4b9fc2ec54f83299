"""A step stage by stage: what agrees, what differs, what follows, and what a trace does not hold."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from report_runs import change

from kgverify.comparison.compare import Comparer
from kgverify.program.outcomes import STEP_STAGES
from kgverify.report.step_document import INPUT, DerivationReader, Mark, StageLine, walk_stages
from kgverify.trace.model.columns import select_steps
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.trace import Trace
from kgverify.verification.verify import Verification


def by_stage(lines: tuple[StageLine, ...]) -> dict[str, StageLine]:
    found = {line.stage: line for line in lines}
    assert list(found)[: len(STEP_STAGES) + 1] == [INPUT, *(stage.value for stage in STEP_STAGES)]
    return found


def walk_of_change(trace: Trace, level: str, field: str, edit) -> dict[str, StageLine]:
    """The walk through the first divergence of a trace from itself with one column changed; nothing is replayed."""
    values = getattr(getattr(trace.columns, level), field).copy()
    edit(values)
    columns = trace.columns._replace(**{level: getattr(trace.columns, level)._replace(**{field: values})})
    changed = replace(trace, columns=columns, digests=compute_digests(columns))
    first = Comparer(trace, changed).compare().divergences[0]
    return by_stage(walk_stages(DerivationReader(trace, changed), first.candidate, first.step, first))


def culprits(lines: dict[str, StageLine]) -> list[str]:
    return [stage for stage, line in lines.items() if line.is_culprit]


def set_first(value):
    def edit(values):
        values[0] = value

    return edit


def test_each_side_has_a_number_of_steps_of_its_own(agreeing: Verification):
    trace = agreeing.expected
    num_steps = trace.columns.candidates.num_steps.copy()
    num_steps[0] -= 1
    kept = np.delete(np.arange(len(trace.columns.steps.depth)), int(num_steps[0]))
    columns = select_steps(trace.columns, kept)
    columns = columns._replace(candidates=columns.candidates._replace(num_steps=num_steps))
    reader = DerivationReader(trace, replace(trace, columns=columns, digests=compute_digests(columns)))
    assert reader.num_steps(SimpleNamespace(candidate=0, expected="p(a, b)")) == (num_steps[0] + 1, num_steps[0])


def test_a_step_behind_another_choice_is_not_reached_the_same_way(agreeing: Verification):
    trace = agreeing.expected
    steps, num_steps = trace.columns.steps, trace.columns.candidates.num_steps
    first = np.cumsum(num_steps) - num_steps
    candidate = int(np.flatnonzero((num_steps > 1) & (steps.num_resolvents[first.astype(int)] > 1))[0])
    choice = steps.choice.copy()
    row = int(first[candidate])
    choice[row] = (choice[row] + 1) % int(steps.num_resolvents[row])
    columns = trace.columns._replace(steps=steps._replace(choice=choice))
    reader = DerivationReader(trace, replace(trace, columns=columns, digests=compute_digests(columns)))
    assert [reader.sides(candidate, step)[2] for step in (0, 1)] == [True, False]


def test_a_replay_settles_the_stages_before_the_culprit(faulty: Verification):
    first = faulty.report.divergences[0]
    reader = DerivationReader(faulty.expected, faulty.actual)
    lines = by_stage(walk_stages(reader, first.candidate, first.step, first))
    assert culprits(lines) == ["match_facts"]
    assert lines["match_facts"].expected == tuple(first.expected)
    assert lines["select"].mark is lines["match_rules"].mark is lines[INPUT].mark is Mark.AGREES
    assert "replayed" in lines["select"].note
    assert lines["prune"].mark is lines["revisit"].mark is Mark.NOT_HELD
    assert lines["rename"].mark is lines["choose"].mark is lines["finish"].mark is Mark.FOLLOWS
    read_off = change(first, is_replayed=False, field="resolvents.atoms")
    lines = by_stage(walk_stages(reader, first.candidate, first.step, read_off))
    assert lines["select"].mark is Mark.NOT_HELD
    assert "inferred from the traces" in lines["match_facts"].note


def test_a_step_that_agrees_agrees_in_every_stage_that_is_held(agreeing: Verification):
    reader = DerivationReader(agreeing.expected, agreeing.actual)
    marks = {each.stage: each.mark for each in walk_stages(reader, 0, 0, None)}
    assert {stage for stage, mark in marks.items() if mark is Mark.NOT_HELD} == {"select", "prune", "revisit"}
    assert set(marks.values()) == {Mark.AGREES, Mark.NOT_HELD}


@pytest.mark.parametrize(
    ("level", "field", "value", "stage"),
    [
        ("steps", "outcome", 2, "finish"),
        ("steps", "dropped_atoms", 5, "limit"),
        ("resolvents", "score", 99.0, "score"),
        ("resolvents", "origin", 2, "match_rules"),
    ],
)
def test_what_is_read_off_two_traces_has_its_stage(
    agreeing: Verification, level: str, field: str, value: float, stage: str
):
    lines = walk_of_change(agreeing.expected, level, field, set_first(value))
    assert culprits(lines) == [stage]
    order = [INPUT, *(each.value for each in STEP_STAGES)]
    before = [lines[each].mark for each in order[: order.index(stage)]]
    assert set(before) <= {Mark.AGREES, Mark.NOT_HELD}
    after = [lines[each].mark for each in order[order.index(stage) + 1 :]]
    assert Mark.DIFFERS not in after


def test_another_choice_is_the_choice_and_the_next_goal_follows(agreeing: Verification):
    trace = agreeing.expected
    many = int(np.argmax(trace.columns.steps.num_resolvents))

    def edit(values):
        values[many] = (values[many] + 1) % 2

    assert culprits(walk_of_change(trace, "steps", "choice", edit)) == ["choose"]


def test_where_the_goals_differ_the_step_before_is_to_blame(agreeing: Verification):
    trace = agreeing.expected
    first_atom = int(trace.columns.steps.num_atoms[0])

    def edit(values):
        values[first_atom, 1] = 0 if values[first_atom, 1] else 1

    lines = walk_of_change(trace, "steps", "goal_atoms", edit)
    assert culprits(lines) == [INPUT]
    assert lines[INPUT].note.startswith("the output of advance in the step before")
    assert Mark.DIFFERS not in {line.mark for stage, line in lines.items() if stage != INPUT}


def test_what_ran_beside_a_step_stands_after_its_stages(faulty: Verification):
    first = change(faulty.report.divergences[0], stage="recycle", field="resolvents.atoms", is_replayed=True)
    lines = walk_stages(DerivationReader(faulty.expected, faulty.actual), first.candidate, first.step, first)
    assert (lines[-1].stage, lines[-1].is_culprit) == ("recycle", True)
    assert "the steps that run beside it" in lines[-1].note
    assert Mark.DIFFERS not in {line.mark for line in lines[:-1]}


def test_columns_that_a_trace_lacks_are_not_held(agreeing: Verification):
    lacking = {"resolvents.score", "resolvents.origin", "resolvents.origin_kind", "steps.dropped_atoms"}
    actual = replace(agreeing.actual, fields=agreeing.actual.fields - lacking)
    marks = {each.stage: each.mark for each in walk_stages(DerivationReader(agreeing.expected, actual), 0, 0, None)}
    for stage in ("match_rules", "match_facts", "limit", "score"):
        assert marks[stage] is Mark.NOT_HELD
    assert marks["choose"] is Mark.AGREES


def test_a_step_that_one_side_lacks_has_its_culprit_alone(faulty: Verification):
    reader = DerivationReader(faulty.expected, faulty.actual)
    first = change(faulty.report.divergences[0], step=2, stage="recycle", field="candidates.num_steps")
    assert [line.stage for line in walk_stages(reader, first.candidate, 2, first)] == ["recycle"]
    assert walk_stages(reader, first.candidate, 2, None) == ()
