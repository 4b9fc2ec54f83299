"""The stage at fault where a probe could hide it: at an exact size, in the state between steps, in an engine without a probe."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fault_programs import WALKS, Case, case_of
from run_engines import UNEXPLAINED, staged_pipeline

from kgverify import Engine, Equality, Limits, Report
from kgverify.engines.protocol import ProbedEngine
from kgverify.program.outcomes import STEP_STAGES, GoalKind, Origin
from kgverify.prover.faults.plant import FAULTS
from kgverify.prover.stages.choose import SCORES
from kgverify.prover.stages.stage_functions import Stages
from kgverify.prover.state import PAD
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, reference_pipeline
from kgverify.trace.model.columns import Columns
from kgverify.verification.verify import verify

SOUND = Stages(SCORES["shortest"])


class Silent:
    """An engine without its probe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> Any:
        return self._engine.info

    def prove(self, *given: Any) -> Columns:
        return self._engine.prove(*given)

    def step(self, *given: Any) -> Columns:
        return self._engine.step(*given)


def report_on(run: Run, judged: Pipeline) -> Report:
    return verify(run, reference_pipeline(run), judged, effort=UNEXPLAINED, equality=Equality(determinism=False)).report


def judge_stages(run: Run, **wrong: Any) -> Report:
    stages = SOUND._replace(**wrong)
    return report_on(run, staged_pipeline(run, stages, slots=2))


def test_a_fault_at_exactly_the_padding_is_seen_by_the_probe():
    run = replace(WALKS.run(), limits=Limits(max_atoms=1))

    def forget_full_goals(tables, atoms, *given):
        return SOUND.revisit(tables, atoms, *given) & (atoms[:, -1, 0] == PAD)

    report = judge_stages(run, revisit=forget_full_goals)
    assert {(each.stage, each.is_replayed) for each in report.divergences} == {("revisit", True)}


def test_a_wrong_state_that_a_step_leaves_is_a_fault_of_advance():
    def forget_visited(derivations, *given):
        return SOUND.advance(derivations, *given)._replace(visited=derivations.visited)

    report = judge_stages(WALKS.run(), advance=forget_visited)
    assert {each.stage for each in report.divergences} == {"advance"}


GROWTH = Case(
    """
    e(a, b) e(b, c)
    g(X, Y) <- g(Y, X), k(X, Z)
    g(X, Y) <- e(X, Z), k(Z, Y)
    """,
    "g(a, c) g(b, c)",
    Limits(max_depth=8, max_atoms=4),
)
VARIABLES = Case("e(a, b)\ng(X, Y) <- k(A, B), k(C, D), k(E, F), k(G, H), k(X, Y)", "g(a, c)")


def forget_last_of_full_goal(tables: Any, items: Any, head: Any, goal: Any, offset: int) -> Any:
    """Resolve without the last atom of a goal that fills the padding."""
    atoms = SOUND.resolve(tables, items, head, goal, offset).clone()
    atoms[goal[:, -1, 0] != PAD, -1] = PAD
    return atoms


def lose_variables_from_the_eighth_on(atoms: Any) -> Any:
    """Number variables in three bits, 0 being none."""
    named = SOUND.rename(atoms)
    return named.where((named >= -7) | (named == PAD), 0)


@pytest.mark.parametrize(
    ("case", "stage", "wrong"),
    [
        (GROWTH, "resolve", forget_last_of_full_goal),
        # All resolvents have the right length, and those of a goal as long as the limit allows are dropped.
        (GROWTH._replace(program=GROWTH.program.split("g(X, Y) <- e")[0]), "resolve", forget_last_of_full_goal),
        (VARIABLES, "rename", lose_variables_from_the_eighth_on),
        # The resolvent is as long as the limit allows.
        (VARIABLES._replace(limits=Limits(max_atoms=5)), "rename", lose_variables_from_the_eighth_on),
    ],
)
def test_a_fault_at_an_exact_size_is_inferred_from_goals_on_which_later_stages_have_no_effect(
    case: Case, stage: str, wrong: Any
):
    run = case.run()
    judged = staged_pipeline(run, SOUND._replace(**{stage: wrong}), slots=2)
    report = report_on(run, judged._replace(engine=Silent(judged.engine)))
    assert {each.stage for each in report.divergences} == {stage}


class WithGaps(Silent):
    """An engine that lists resolvents of no clause: in every slot, or only in the first ones of each batch."""

    def __init__(self, engine: Engine, num_slots: float) -> None:
        super().__init__(engine)
        self._num_slots = num_slots

    def prove(self, *given: Any) -> Columns:
        return self._spoil(super().prove(*given))

    def step(self, *given: Any) -> Columns:
        return self._spoil(super().step(*given))

    def _spoil(self, columns: Columns) -> Columns:
        owner = np.repeat(np.arange(len(columns.candidates.num_steps)), columns.candidates.num_steps)
        slot = np.repeat(owner, columns.steps.num_resolvents)
        is_gap = (slot < self._num_slots) & (columns.resolvents.kind == GoalKind.GOAL)
        kinds = np.where(is_gap, np.uint8(Origin.NONE), columns.resolvents.origin_kind)
        return columns._replace(resolvents=columns.resolvents._replace(origin_kind=kinds))


@pytest.mark.parametrize(("num_slots", "stage"), [(1, "recycle"), (np.inf, "limit")])
def test_resolvents_of_no_clause_are_put_there_by_limit_or_by_recycle_where_they_depend_on_the_slot(
    num_slots: float, stage: str
):
    run = WALKS._replace(num_corruptions=0).run()
    judged = evaluator_pipeline(run, mode="eager", device="cpu", slots=2)
    report = report_on(run, judged._replace(engine=WithGaps(judged.engine, num_slots)))
    assert {each.stage for each in report.divergences} == {stage}


STEP_FAULTS = [name for name, fault in FAULTS.items() if fault.stage in STEP_STAGES]


@pytest.mark.sample(5, deep=15)
@pytest.mark.parametrize("name", STEP_FAULTS)
def test_the_stage_of_an_engine_that_shows_none_is_inferred_from_its_step(name: str):
    case = case_of(name)
    run = case.run()
    judged = evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=case.slots)
    engine = Silent(judged.engine)
    assert not isinstance(engine, ProbedEngine)
    report = report_on(run, judged._replace(engine=engine))
    first = report.divergences[0]
    assert first.stage == FAULTS[name].stage
    if first.field.startswith(("steps.", "resolvents.")) and first.stage != "advance":
        assert not first.is_replayed
        assert "inferred from its step" in first.evidence
        assert first.confidence <= 0.7
