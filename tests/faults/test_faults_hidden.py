"""The stage at fault where a probe could hide it: at an exact size, in the state between steps, in an engine without a probe."""

from dataclasses import replace
from typing import Any

import pytest
from fault_programs import WALKS, case_of
from run_engines import UNEXPLAINED

from kgverify.engines.compiled.stages.choose import SCORES
from kgverify.engines.compiled.stages.stage_functions import build_stages
from kgverify.engines.compiled.state import PAD
from kgverify.engines.protocol import Engine, ProbedEngine
from kgverify.faults.catalogue import FAULTS
from kgverify.faults.plant import compiled_pipeline_with_faults
from kgverify.program.limits import Limits
from kgverify.program.stages import STEP_STAGES
from kgverify.report.report import Report
from kgverify.runs.run import Pipeline, Run, compiled_pipeline, reference_pipeline
from kgverify.trace.model.columns import Columns
from kgverify.verification.verify import verify

SOUND = build_stages(SCORES["shortest"])


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
    return verify(run, reference_pipeline(run), judged, check_determinism=False, effort=UNEXPLAINED).report


def judge_stages(run: Run, **wrong: Any) -> Report:
    stages = SOUND._replace(**wrong)
    return report_on(run, compiled_pipeline(run, mode="eager", device="cpu", slots=2, stages=stages))


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


MISTAKEN = pytest.param(
    "scatter-collision", marks=pytest.mark.xfail(reason="a known limit: inferred as match_facts", strict=True)
)
STEP_FAULTS = [name for name, fault in FAULTS.items() if fault.stage in STEP_STAGES and name not in MISTAKEN.values]


@pytest.mark.sample(5, deep=15)
@pytest.mark.parametrize("name", [*STEP_FAULTS, MISTAKEN])
def test_the_stage_of_an_engine_that_shows_none_is_inferred_from_its_step(name: str):
    case = case_of(name)
    run = case.run()
    judged = compiled_pipeline_with_faults(run, [name], mode="eager", device="cpu", slots=case.slots)
    engine = Silent(judged.engine)
    assert not isinstance(engine, ProbedEngine)
    report = report_on(run, judged._replace(engine=engine))
    first = report.divergences[0]
    assert first.stage == FAULTS[name].stage
    if first.field.startswith(("steps.", "resolvents.")) and first.stage != "advance":
        assert not first.is_replayed
        assert "inferred from its step" in first.evidence
        assert first.confidence <= 0.7
