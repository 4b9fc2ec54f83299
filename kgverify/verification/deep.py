"""Proving with the stages of every step watched: what a trace of level `deep` records."""

from kgverify.engines.protocol import Engine, ProbedEngine, Progress, no_progress, positions_of, split_positions
from kgverify.errors import UserError
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.stage_items import encode_stage_outputs


def prove_deep(engine: Engine, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
    """Run every candidate to its end, then take each of its steps again by itself, with the stages watched.

    Where what ran beside a step changed it, its stages therefore give something else than was recorded of the step.
    UserError for an engine that cannot show its stages, or shows what is no output of a stage.
    """
    where = f"engine {engine.info.name}"
    if not isinstance(engine, ProbedEngine):
        raise UserError(
            "level deep needs an engine that shows what its stages give, and it has no method `probe`",
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
            f"`probe` gave what is no output of a stage: {error}",
            where=where,
            fix="give what kgverify.trace.model.stage_items.StageOutputs describes",
        ) from error
