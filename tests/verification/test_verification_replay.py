"""Replaying a divergent step names its stage; where it does not reproduce, what the traces say stays."""

import msgspec
import numpy as np
import pytest
from run_engines import UNEXPLAINED, countries_run, eager_pipeline, staged_pipeline

from kgverify import Equality, Limits, Stage
from kgverify.comparison.compare import Comparer, compare
from kgverify.comparison.locate import first_difference, render_difference
from kgverify.comparison.step_view import Names
from kgverify.program.outcomes import STEP_STAGES
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.runs.run import build_trace, reference_pipeline
from kgverify.verification.replay import Explainer, find_later_faults, find_position
from kgverify.verification.verify import verify


def test_both_engines_return_the_same_for_every_stage():
    run = countries_run()
    reference, compiled = reference_pipeline(run).engine, eager_pipeline(run).engine
    columns = reference.prove(reference_pipeline(run).draw(run.graph, "test", run.queries, 5, 0))
    candidate = int(np.argmax(columns.candidates.num_steps))
    for step in range(int(columns.candidates.num_steps[candidate])):
        position = find_position(columns, candidate, step)
        assert int(position.depth[0]) == step
        expected, actual = reference.probe(position), compiled.probe(position)
        assert list(expected) == list(STEP_STAGES)
        assert first_difference(expected, actual, 0.0) is None
        assert set(actual) == set(STEP_STAGES)


def test_a_wrong_stage_is_named_and_shown_by_its_replay():
    run = countries_run()
    stages = Stages(SCORES["shortest"])
    wrong = stages._replace(score=lambda *inputs: -stages.score(*inputs))
    judged = staged_pipeline(run, wrong, faults=("score-negated",))
    report = verify(
        run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)
    ).report
    cause = report.first_cause
    assert (cause.stage, cause.field, cause.is_replayed) == ("score", "stage.score", True)
    assert [-float(value) for value in cause.expected] == [float(value) for value in cause.actual]
    assert report.environment.actual.faults == ("score-negated",)


def test_a_step_that_is_right_alone_is_a_fault_of_the_batch_machinery():
    run = countries_run()
    pipeline = reference_pipeline(run)
    columns = pipeline.engine.prove(pipeline.draw(run.graph, "test", run.queries, 5, 0))
    trace = build_trace(run, pipeline.engine, columns, None)
    choice = columns.steps.choice.copy()
    choice[3] += 1
    flipped = build_trace(run, pipeline.engine, columns._replace(steps=columns.steps._replace(choice=choice)), None)
    divergences = compare(trace, flipped).divergences
    assert len(divergences) == 1
    engines = pipeline.engine, pipeline.engine
    (replayed,) = Explainer(trace, Comparer(trace, flipped), {}, engines).replay(divergences)
    assert divergences[0].stage == "choose"
    assert replayed.divergence == msgspec.structs.replace(divergences[0], stage="recycle", is_replayed=True)
    assert replayed.outputs is None


class WrongAlone:
    """An engine that steps right, and makes one wrong choice in every run of its own. row: the step of that choice."""

    def __init__(self, engine, row):
        self.info, self.probe, self.step = engine.info, engine.probe, engine.step
        self._prove, self._row = engine.prove, row

    def prove(self, candidates, *options):
        columns = self._prove(candidates, *options)
        choice = columns.steps.choice.copy()
        choice[self._row] += 1
        return columns._replace(steps=columns.steps._replace(choice=choice))


@pytest.mark.parametrize(("step", "stage"), [(0, "recycle"), (1, "advance")])
def test_what_goes_wrong_before_a_step_is_handed_on_by_advance_or_put_there_by_recycle(step, stage):
    run = countries_run()
    pipeline = reference_pipeline(run)
    wrong = WrongAlone(pipeline.engine, step)
    candidates = pipeline.draw(run.graph, "test", run.queries, 5, 0)
    trace, other = (build_trace(run, each, each.prove(candidates), None) for each in (pipeline.engine, wrong))
    divergences = compare(trace, other).divergences
    assert [(each.candidate, each.step) for each in divergences] == [(0, step)]
    (replayed,) = Explainer(trace, Comparer(trace, other), {}, (pipeline.engine, wrong)).replay(divergences)
    assert replayed.divergence.stage == stage


@pytest.mark.parametrize(
    ("stage", "expected", "actual", "shown"),
    [
        (Stage.SELECT, (0, 1, -1), (0, 2, -1), None),
        (Stage.MATCH_FACTS, (0, 1, 2), (0, 2), (1, ["nothing more"])),
        (Stage.MATCH_RULES, (0, 1), (1, 0), (2, 2)),
        (Stage.RESOLVE, ((1, 0, ((0, 1, -1),)),), (), (1, ["nothing more"])),
        (Stage.CLOSE, ((1, 1, 0, ()),), ((2, 0, 0, ()),), (1, 1)),
        (Stage.LIMIT, ((), 1, 0), ((), 0, 1), ("dropped 1 by max_atoms", "dropped 0 by max_atoms")),
        (Stage.LIMIT, (((0, 1, 0, ((0, 1, 2),)),), 0, 0), ((), 0, 0), (1, ["nothing more"])),
        (Stage.SCORE, (1.0, 2.0), (1.0, 3.0), (["1.0", "2.0"], ["1.0", "3.0"])),
        (Stage.CHOOSE, 0, 1, (0, 1)),
        (Stage.ADVANCE, (0, ((0, 1, 2),), 1), (2, (), 1), None),
        (Stage.FINISH, 1, 9, ("PROVED", "outcome#9")),
    ],
)
def test_a_difference_in_a_stage_is_shown_with_names(stage, expected, actual, shown):
    run = countries_run()
    pipeline = reference_pipeline(run)
    candidates = pipeline.draw(run.graph, "test", range(1), 0, 0)
    names = Names(build_trace(run, pipeline.engine, pipeline.engine.prove(candidates), None))
    values = render_difference(stage, expected, actual, names)
    assert values[0] != values[1]
    msgspec.json.encode(values)
    for value, wanted in zip(values, shown or (), strict=bool(shown)):
        if isinstance(wanted, int) and isinstance(value, list):
            assert len(value) == wanted
        elif isinstance(wanted, str):
            assert value.startswith(wanted)
        else:
            assert value == wanted


def test_items_of_a_stage_differ_if_the_same_input_gave_something_else():
    pruned = ((1, 0, ((0, -1, 1),)), (1, 1, ((0, -2, 1),)), (2, 0, ()))
    sides = [{Stage.PRUNE: pruned, Stage.RENAME: pruned}, {Stage.PRUNE: pruned, Stage.RENAME: pruned}]
    limits = Limits()
    assert not list(find_later_faults(Stage.PRUNE, *sides, limits, 0.0))
    renamed = pruned[:1], ((1, 1, ((0, -1, 1),)),), pruned[2:]
    sides[0][Stage.RENAME] = sum(renamed, ())
    (fault,) = find_later_faults(Stage.PRUNE, *sides, limits, 0.0)
    assert (fault.stage, fault.expected, fault.actual) == (Stage.RENAME, renamed[1], pruned[1:2])
    # What was pruned otherwise is not the fault of `rename`.
    sides[1][Stage.PRUNE] = (pruned[0], (1, 1, ()), pruned[2])
    assert Stage.RENAME not in [each.stage for each in find_later_faults(Stage.PRUNE, *sides, limits, 0.0)]
