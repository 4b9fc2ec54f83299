"""Recording of a run to disk in chunks, so that a killed recording loses only what was not committed."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kgverify.arguments import check_fields
from kgverify.engines.protocol import (
    Engine,
    ExplainedEngine,
    ProbedEngine,
    RecordingEngine,
    positions_of,
    split_positions,
)
from kgverify.errors import UserError
from kgverify.files.code_identity import UNIDENTIFIED, Code, list_changes, refuse_changes
from kgverify.files.reading import read_json
from kgverify.files.writing import make_folder, write_file
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.runs.run import Pipeline, Run, build_header
from kgverify.trace.files.manifest import CODE, partial_of
from kgverify.trace.model.columns import Candidates, CandidateSet, Columns, StepBatch, join_candidates
from kgverify.trace.model.header import Part
from kgverify.trace.model.schema import LevelName, TraceLevel
from kgverify.trace.model.stage_items import encode_stage_outputs
from kgverify.trace.write.writer import Clauses, Storage, TraceWriter

CHUNK: Final = 512
"""The number of candidates proved between two appends by an engine that does not prove ahead."""

DEEP_CHUNK: Final = 64
"""The same number at level `deep`, which repeats each step with its stages probed."""

CHUNK_SLOTS: Final = 16
"""The smallest number of these candidates per slot of an engine that proves in batches."""

RECORDED_POOL: Final = 1 << 17
"""The most candidates between two appends by an engine that proves ahead: their steps are in memory twice."""

SHARD_STEPS: Final = 1_000_000
"""The number of steps held in memory before they are written as a shard."""

MAX_APPEND_THREADS: Final = 3
"""The most chunks appended at the same time, each in memory, for an engine that proves ahead."""

APPEND_CORES: Final = 4
"""The number of cores for each of these chunks: packing uses several."""


@dataclass(frozen=True)
class RecordingOptions:
    """The options of a recording.

    Attributes:
        level: What is kept of each step: digests, steps, or deep (also what each stage gave).
        archive: Compress the file as far as HDF5's filters can.
        shard_steps: Steps committed at a time; a longer trace becomes a folder of shards.
        resume: Resume an interrupted recording.
        accept_changed: Resume although this code changed, such as `helper.py`.
        overwrite: Replace a trace that exists already.
        as_reference: Record a foreign engine as the reference of a later comparison: it gets the second implementation of
            corruptions and ranks.
        scheduler: The address of a dask scheduler, whose workers prove with the engine.
        rank: Record only the queries of one of several processes: their number modulo --world is this rank, from 0.
        world: The number of processes that record together, each its own trace; docs/traces.md.

    Example:
        >>> import kgverify as kv
        >>> deep = kv.RecordingOptions(level="deep")
        >>> kv.record("countries", "deep.h5", "reference", queries=1, corruptions=2, options=deep).num_candidates
        6
    """

    level: LevelName = "steps"
    archive: bool = False
    shard_steps: int = SHARD_STEPS
    resume: bool = False
    accept_changed: Sequence[str] = ()
    overwrite: bool = False
    as_reference: bool = False
    scheduler: str | None = None
    rank: int | None = None
    world: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.rank is None) != (self.world is None):
            raise UserError(
                "expected rank and world, found one of the two", where="rank", fix="give --rank and --world"
            )

    @property
    def part(self) -> Part | None:
        """The part of this process; None if it records alone. UserError for a rank outside of the world."""
        return None if self.rank is None or self.world is None else Part(self.rank, self.world, "modulo")


DEFAULT_OPTIONS = RecordingOptions()


@dataclass(frozen=True)
class Recording:
    """A finished recording.

    path:        the path of the trace; a text for a URL
    num_resumed: candidates that an earlier, interrupted recording had written
    accepted:    the changes of code since then that the user accepted, in words
    reasons:     why the engine ran on its device, in its mode and precision; empty if it does not say
    """

    path: Path | str
    num_candidates: int
    num_steps: int
    num_resumed: int
    reasons: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()


class _StoredCode(msgspec.Struct, frozen=True, tag_field="format", tag="kgverify recording code 1"):
    """The code of an unfinished recording, and the changes of it that the user accepted, in words."""

    code: Code = {}
    accepted: tuple[str, ...] = ()


def choose_append_threads(engine: Engine) -> int:
    """Return 1 for an engine that computes on the CPU; for an engine on a device, return more, by the number of cores."""
    if not (isinstance(engine, RecordingEngine) and engine.proves_ahead):
        return 1
    return max(1, min(MAX_APPEND_THREADS, (os.cpu_count() or 1) // APPEND_CORES))


def record(
    run: Run,
    pipeline: Pipeline,
    path: Path,
    options: RecordingOptions = DEFAULT_OPTIONS,
    *,
    phase: Phase = silent_phase,
) -> Recording:
    """Prove the candidates of a run and write the trace: one file, or a folder of shards if it is large.

    Until it is complete, the trace is in `<path>.partial`; with `resume`, recording resumes an existing one. Proved
    candidates are committed there every few seconds, as pieces of the next shard. UserError for a path that cannot be written,
    or a `.partial` of another run or other code.
    """
    candidates = pipeline.draw_for(run)
    program = run.graph.program
    proved: list[Candidates] = []
    stored = _StoredCode(pipeline.identify_code())
    writing = TraceWriter(
        path,
        build_header(run, pipeline.engine, options.level),
        program.symbols,
        clauses=Clauses(program.facts, program.fact_lines, program.rules),
        storage=Storage(is_archived=options.archive, shard_steps=options.shard_steps),
        resume=options.resume,
        # Another process may have finished the trace in the meantime.
        overwrites=options.overwrite or options.resume,
    )
    with phase(f"recording {pipeline.engine.info.name}", len(candidates.query)) as progress, writing as writer:
        resumed = writer.num_appended
        if resumed and writer.level is TraceLevel.DIGESTS:
            raise UserError(
                "holds no log-probabilities at this level, so its candidates cannot be ranked",
                where=str(partial_of(path)),
                fix="delete it and record again, or record at level steps, which can be resumed",
            )
        proved.append(writer.committed_candidates())
        if resumed:
            _check_resumed(candidates, proved[0], path)
            stored = _resume_code(partial_of(path), stored.code, options.accept_changed)
            progress(resumed)
        left = candidates.take(slice(resumed, None))
        parts = _note_code(prove_parts(pipeline.engine, left, progress, writer.level), partial_of(path), stored)
        proved += writer.append_parts(parts, choose_append_threads(pipeline.engine))
        all_candidates = join_candidates(proved)
        writer.set_rankings(pipeline.rank_in_dialect(run, all_candidates))
    num_steps = int(all_candidates.num_steps.sum(dtype=np.int64))
    reasons = pipeline.engine.reasons if isinstance(pipeline.engine, ExplainedEngine) else ()
    return Recording(path, len(candidates.query), num_steps, resumed, reasons, stored.accepted)


def _resume_code(partial: Path, here: Code, accept_changed: Collection[str]) -> _StoredCode:
    """Return the code to note for a resumed recording. UserError if it was made by other code."""
    path, fix = partial / CODE, f"delete {partial}"
    if path.is_file():
        stored = read_json(path, _StoredCode, purpose="the code of a recording", fix=fix)
    else:
        stored = _StoredCode(here | {"recording": f"{UNIDENTIFIED}it does not say which code made it"})
    changes = list_changes(stored.code, here)
    refuse_changes(changes, accept_changed, where=str(partial), what="candidates", fix=fix)
    return _StoredCode(here, tuple(dict.fromkeys((*stored.accepted, *changes.values()))))


def _note_code(
    parts: Iterator[Callable[[], StepBatch]], partial: Path, stored: _StoredCode
) -> Iterator[Callable[[], StepBatch]]:
    """Write the identity of the code beside a recording before its first part is appended."""
    for index, part in enumerate(parts):
        if not index:
            make_folder(partial)
            write_file(partial / CODE, msgspec.json.encode(stored))
        yield part


def prove_parts(
    engine: Engine,
    candidates: CandidateSet,
    progress: Progress,
    level: TraceLevel = TraceLevel.STEPS,
    size: int | None = None,
) -> Iterator[Callable[[], StepBatch]]:
    """Prove chunk by chunk; yield functions that read each chunk's columns and digests.

    size: the minimum number of candidates in a chunk; `CHUNK` if not given. An engine that proves ahead ignores it.
    """
    if level is TraceLevel.DEEP:
        for begin in range(0, len(candidates.query), DEEP_CHUNK):
            part = candidates.take(slice(begin, begin + DEEP_CHUNK))
            yield partial(_pair, prove_deep(engine, part, progress))
        return
    if isinstance(engine, RecordingEngine) and engine.proves_ahead:
        for recorded in engine.record(candidates, progress, level=level):
            yield recorded.read
        return
    # A batch runs empty at the end of each chunk, so large chunks are better.
    size = max(size or CHUNK, CHUNK_SLOTS * engine.info.layout.get("slots", 0))
    for begin in range(0, len(candidates.query), size):
        columns = engine.prove(candidates.take(slice(begin, begin + size)), progress)
        yield partial(_pair, columns)


def prove_deep(engine: Engine, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
    """Prove every candidate, then repeat each of its steps alone with the stages probed.

    Therefore, if other candidates of the batch changed a step, its stage outputs differ from the recorded step.
    UserError for an engine without `probe`, or a `probe` that returns something other than stage outputs.
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


def _pair(columns: Columns) -> StepBatch:
    return columns, None


def _check_resumed(drawn: CandidateSet, found: Candidates, path: Path) -> None:
    """Raise a UserError unless the candidates recorded before are the first ones of this run."""
    first = drawn.take(slice(len(found.query)))
    if not all(np.array_equal(own, getattr(found, name)) for name, own in first._asdict().items()):
        raise UserError(
            "holds candidates that are not the first of this run",
            where=str(partial_of(path)),
            fix="delete it, and record again",
        )
