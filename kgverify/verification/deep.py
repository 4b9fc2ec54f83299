"""Proofs with the stages of every step probed, for traces of level `deep`."""

from kgverify.engines.protocol import Engine, ProbedEngine, Progress, no_progress, positions_of, split_positions
from kgverify.errors import UserError
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.stage_items import encode_stage_outputs


def prove_deep(engine: Engine, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
    """Prove every candidate, then repeat each of its steps alone with the stages probed.

    If other candidates of the batch changed a step, the output of its stages therefore differs from the recorded step.
    UserError for an engine without `probe`, or a `probe` that returns something other than outputs of stages.
    """
    where = f"engine {engine.info.name}"
    if not isinstance(engine, ProbedEngine):
        raise UserError(
            "level deep needs an engine that returns the outputs of its stages, and this one has no method `probe`",
            where=where,
            fix="implement kgverify.engines.protocol.ProbedEngine, or record at level steps",
        )
    columns = engine.prove(candidates)
    positions = positions_of(columns)
    steps_left = columns.candidates.num_steps.tolist()[::-1]
    outputs = []
    for position in split_positions(positions, 1):
        outputs.append(engine.probe(position))
        steps_left[-1] -= 1
        while steps_left and not steps_left[-1]:
            steps_left.pop()
            progress(1)
    try:
        return columns._replace(stages=encode_stage_outputs(outputs))
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"`probe` returned an invalid output of a stage: {error}",
            where=where,
            fix="return what kgverify.trace.model.stage_items.StageOutputs describes",
        ) from error
