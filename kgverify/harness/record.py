"""Recording a run to disk, piece by piece, so that a killed recording loses only what was not committed."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kgverify.engines.protocol import Progress, no_progress
from kgverify.errors import UserError
from kgverify.harness.run import Pipeline, Run, build_header
from kgverify.ranking.rank import RANK_TOLERANCE
from kgverify.trace.columns import Candidates, Columns, concatenate, empty_columns
from kgverify.trace.levels import TraceLevel
from kgverify.trace.reader import partial_of, read_trace
from kgverify.trace.writer import TraceWriter

CHUNK: Final = 512
"""Candidates proved between two appends."""

COMMIT_SECONDS: Final = 60.0
"""A kill loses no more than what was proved in this time and in one chunk."""

SHARD_STEPS: Final = 1_000_000
"""Steps held in memory before they are committed as a shard."""


@dataclass(frozen=True)
class Recording:
    """What was recorded: numbers of candidates and steps; `num_resumed` candidates were there already."""

    path: Path
    num_candidates: int
    num_steps: int
    num_resumed: int


def record(
    run: Run,
    pipeline: Pipeline,
    path: Path,
    *,
    resume: bool = False,
    progress: Progress = no_progress,
    shard_steps: int = SHARD_STEPS,
    level: str = "steps",
    is_archived: bool = False,
) -> Recording:
    """Prove the candidates of a run and write the trace: one file, or a folder of shards where it is large.

    Until it is complete the trace stands in `<path>.partial`; with `resume`, one left behind is gone on with. UserError
    for a path that cannot be written, or a `.partial` of another run.

    level:       a `TraceLevel`: which columns are kept
    is_archived: packed as small as HDF5's own filters can
    """
    candidates = pipeline.draw_for(run)
    program = run.graph.program
    proved: list[Columns] = []
    num_steps = 0
    with TraceWriter(
        path,
        build_header(run, pipeline.engine, level),
        program.symbols,
        facts=program.facts,
        fact_lines=program.fact_lines,
        shard_steps=shard_steps,
        resume=resume,
        is_archived=is_archived,
        rules=program.rules,
    ) as writer:
        resumed = writer.num_committed
        if resumed and level == TraceLevel.DIGESTS:
            raise UserError(
                "holds no log-probabilities at this level, and candidates cannot be ranked without them",
                where=str(partial_of(path)),
                fix="delete it and record again, or record at level compact, which can be resumed",
            )
        if resumed:
            committed = read_trace(partial_of(path)).columns
            proved.append(_without_steps(committed))
            num_steps += len(committed.steps.depth)
            progress(resumed)
        committed_at = time.monotonic()
        for begin in range(resumed, len(candidates.query), CHUNK):
            columns = pipeline.engine.prove(candidates.take(slice(begin, begin + CHUNK)), progress)
            writer.append(columns)
            if time.monotonic() - committed_at > COMMIT_SECONDS:
                writer.commit()
                committed_at = time.monotonic()
            num_steps += len(columns.steps.depth)
            proved.append(_without_steps(columns))
        all_candidates: Candidates = concatenate(proved).candidates
        writer.set_rankings(pipeline.rank(all_candidates, run.triples, RANK_TOLERANCE))
    return Recording(path, len(candidates.query), num_steps, resumed)


def _without_steps(columns: Columns) -> Columns:
    """The candidates alone: all that ranking needs."""
    return empty_columns()._replace(candidates=columns.candidates)
