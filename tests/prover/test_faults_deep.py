"""Two traces of level `deep` name the stage of every fault, as a replay in both engines does, without any engine."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from fault_programs import case_of

from kgverify import Equality
from kgverify.prover.faults.plant import FAULTS
from kgverify.runs.engine_makers import evaluator_pipeline
from kgverify.runs.run import Pipeline, Run, build_trace, reference_pipeline
from kgverify.trace.write.writer import write_again
from kgverify.verification.record import prove_deep
from kgverify.verification.recorded import compare_recorded
from kgverify.verification.verify import verify


def record_deep(run: Run, pipeline: Pipeline, path: Path) -> Path:
    candidates = pipeline.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    trace = build_trace(run, pipeline.engine, prove_deep(pipeline.engine, candidates), None)
    header = msgspec.structs.replace(trace.header, level="deep")
    write_again(replace(trace, header=header), path)
    return path


OF_EACH_STAGE = list({fault.stage: name for name, fault in FAULTS.items()}.values())


@pytest.mark.sample(1, deep=8)
@pytest.mark.parametrize("name", sorted({*OF_EACH_STAGE, "depth-not-reset", "overwritten-output", "sticky-outcome"}))
def test_recorded_stages_name_the_stage_that_a_replay_names(name: str, tmp_path: Path):
    case = case_of(name)
    run = case.run()
    expected = reference_pipeline(run)
    actual = evaluator_pipeline(run, faults=[name], mode="eager", device="cpu", slots=case.slots)
    live = verify(run, expected, actual, equality=Equality(determinism=False)).report
    paths = record_deep(run, expected, tmp_path / "e.h5"), record_deep(run, actual, tmp_path / "a.h5")
    told = compare_recorded(*paths).report
    stages = {(each.candidate, each.step): each.stage for each in live.divergences if each.step >= 0}
    found = {(each.candidate, each.step): each.stage for each in told.divergences if each.step >= 0}
    assert found == stages
