"""Large evaluations: this process, or workers, prove, rank and store one part after the other."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from kgverify.engines.protocol import LeastModel
from kgverify.errors import UserError
from kgverify.evaluation.parts import (
    Identity,
    PartResult,
    PartStore,
    Warn,
    identify,
    opened_folder,
)
from kgverify.evaluation.proving import (
    FullWork,
    PartWork,
    begin_work,
    do_part,
    do_piece,
    explain_out_of_memory,
    join_proved,
    make_work,
    warm_up,
)
from kgverify.evaluation.rank_only import RankOnly, build_rank_only
from kgverify.program.limits import OURS, Dialect
from kgverify.progress import Phase, Progress, silent_phase
from kgverify.runs.fan_out import DaskWorkers
from kgverify.runs.pool import Processes, Workers, do_all, send_maker
from kgverify.runs.run import Part, Pipeline, Plan, Run, plan_parts
from kgverify.trace.model.columns import CandidateSet

PARTS_AHEAD: Final = 4
"""The parts sent ahead for each worker thread, so that no thread waits for its next part."""
STORING_THREADS: Final = 8
"""The number of results that are stored at the same time."""
PIECES: Final = 4
"""The pieces into which each of the last parts is cut, so that no worker waits long for the others at the end."""
PARTS_CUT: Final = 2
"""The parts cut for each worker thread, which may have a part waiting in addition to the part that it proves."""
_MOST_CUT: Final = 64
"""The maximum number of parts that are cut, since this process draws and ranks their candidates."""
_LEAST_PIECE: Final = 32
"""The minimum number of candidates in a piece of a cut part."""


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The finished parts of an evaluation.

    num_resumed:     the number of parts that were finished before
    accepted:        the changes of code between the parts that the user accepted, in words
    num_candidates:  the number of candidates in the parts that were finished in this run
    seconds, warm_up_seconds: the time for these parts, and the time to warm up before them
    model:           the least model, if it decided which candidates to leave out
    num_processes:   the number of processes that proved them
    """

    identity: Identity
    plan: Plan
    results: dict[int, PartResult]
    num_resumed: int
    num_candidates: int
    seconds: float
    warm_up_seconds: float
    model: LeastModel | None = None
    accepted: tuple[str, ...] = ()
    num_processes: int = 1

    @property
    def missing(self) -> list[Part]:
        """The unfinished parts."""
        return [part for part in self.plan.parts if part.number not in self.results]


@dataclass(frozen=True, eq=False)
class EvaluationSettings:
    """The settings of an evaluation.

    part_size:      the maximum number of candidates in a part; by default it depends on their total number and the device
    rank_only:      whether to leave out candidates that cannot affect a rank (`kgverify.evaluation.rank_only`)
    folder:         the folder of the parts, a path or URL, from which an interrupted evaluation resumes; without it, the parts
                    are kept in memory
    accept_changed: the names of changed code whose parts are reused nevertheless (`kgverify.files.code_identity`)
    workers:        the workers that prove the parts instead of this process, and `make`, which makes the pipeline there
    should_stop:    called before each part
    """

    part_size: int | None = None
    rank_only: bool = False
    folder: Path | None = None
    accept_changed: Collection[str] = ()
    workers: Workers | None = None
    make: Callable[[], Pipeline] | None = None
    phase: Phase = silent_phase
    warn: Warn = lambda _: None
    should_stop: Callable[[], bool] = lambda: False


def evaluate(run: Run, pipeline: Pipeline, settings: EvaluationSettings | None = None) -> EvaluationResult:
    """Evaluate a run part by part.

    UserError for a folder of another evaluation or other code, log-probabilities that are not finite, or too little memory.
    """
    settings = EvaluationSettings() if settings is None else settings
    workers, info = settings.workers, pipeline.engine.info
    _check_dialect(run.limits.dialect, rank_only=settings.rank_only)
    if isinstance(workers, DaskWorkers):
        workers.engines = pipeline.engines
    opened = nullcontext() if settings.folder is None else opened_folder(settings.folder)
    with opened as part_folder, explain_out_of_memory(info):
        plan = plan_parts(run, info.device, settings.part_size, rank_only=settings.rank_only)
        identity = identify(run, pipeline.engine, plan, pipeline.identify_code())
        store = PartStore(part_folder, identity, settings.accept_changed)
        store.open(plan.parts, settings.warn)
        missing = [plan.parts[i] for i in store.missing]
        build: Callable[[Run, Pipeline], PartWork] = build_rank_only if settings.rank_only and missing else FullWork
        began = time.monotonic()
        work = build(run, pipeline)
        made = None
        if workers is not None and settings.make is not None and missing:
            made = send_maker(partial(make_work, run, settings.make, build, info, missing[0]), workers)
            if isinstance(workers, Processes):
                # Several calls at once, so that each process begins one.
                for future in [workers.submit(begin_work, *made) for _ in range(workers.count())]:
                    future.result()
        elif missing:
            warm_up(run, pipeline, missing[0])
        warmed_up = time.monotonic()
        model = _prove_parts(store, settings, work, missing, made)
        seconds = time.monotonic() - warmed_up
        results = store.collect(plan.parts, settings.warn)
    return EvaluationResult(
        identity=identity,
        plan=plan,
        results=results,
        num_resumed=len(plan.parts) - len(missing),
        num_candidates=sum(part.num_candidates for part in missing if part.number in results),
        num_processes=workers.count() if isinstance(workers, Processes) else 1,
        seconds=seconds,
        warm_up_seconds=warmed_up - began,
        model=model,
        accepted=store.accepted,
    )


def _check_dialect(dialect: Dialect, *, rank_only: bool) -> None:
    """Raise UserError for a dialect that ranks candidates differently."""
    if dialect.unproved != OURS.unproved or (rank_only and dialect != OURS):
        raise UserError(
            f"{'--rank-only rests' if rank_only else 'ranks rest'} on the default dialect, found {dialect}",
            where="dialect",
            fix="compare the engines with kgverify diff, which ranks as the dialect says",
        )


def _cut(drawn: CandidateSet, num: int) -> list[CandidateSet]:
    """Cut candidates into `num` pieces, or fewer if the pieces would be too small."""
    bounds = np.linspace(0, len(drawn.query), max(1, min(num, len(drawn.query) // _LEAST_PIECE)) + 1).astype(np.int64)
    return [drawn.take(slice(*pair)) for pair in pairwise(bounds.tolist())]


def _prove_parts(
    store: PartStore,
    settings: EvaluationSettings,
    work: PartWork,
    missing: Sequence[Part],
    made: tuple[Any, str] | None,
) -> LeastModel | None:
    """Prove parts until all are done or the evaluation stops. Return the least model that the work needed.

    made: what `send_maker` returned for the work, if workers prove the parts
    """
    ranking, model = work if isinstance(work, RankOnly) else None, None
    if ranking is not None:
        ranking.should_stop = settings.should_stop
    try:
        with settings.phase("evaluating", sum(part.num_candidates for part in missing)) as progress:
            if settings.workers is None or made is None:
                _prove_here(store, settings, work, missing, progress)
            else:
                _send_parts(store, settings, settings.workers, made, work, missing, progress)
        model = None if ranking is None else ranking.model
    except KeyboardInterrupt:
        if settings.workers is not None or not settings.should_stop():
            raise
    finally:
        if ranking is not None:
            ranking.stop.set()
    if ranking is not None and ranking.is_given_up:
        settings.warn(
            "--rank-only skipped nothing: its least model takes more work or memory than to prove every candidate"
        )
    return model


def _send_parts(
    store: PartStore,
    settings: EvaluationSettings,
    workers: Workers,
    made: tuple[Any, str],
    work: PartWork,
    missing: Sequence[Part],
    progress: Progress,
) -> None:
    """Send parts to workers and store their results as they arrive, until all are stored or the evaluation stops.

    The last parts are cut into pieces if the engine proves each candidate by itself. Several results are stored at
    the same time, since an object store is slow.
    """
    is_divisible = isinstance(work, FullWork) and work.is_divisible
    # The proved pieces of each cut part that is not finished.
    proved: dict[int, list[Any]] = {}
    storing: dict[Future[None], Part] = {}

    def find_calls() -> Iterator[tuple[tuple[Part, int], Callable[..., Any], tuple[object, ...]]]:
        for i, part in enumerate(missing):
            num_threads = workers.count()
            num_cut = min(PARTS_CUT * num_threads, _MOST_CUT, len(missing))
            if is_divisible and len(missing) - i <= num_cut:
                pieces = _cut(work.draw(part), PIECES * max(1, num_threads // num_cut))
                proved[part.number] = [None] * len(pieces)
                yield from (((part, k), do_piece, (*made, part, piece)) for k, piece in enumerate(pieces))
            else:
                yield (part, 0), do_part, (*made, part)

    def store_part(part: Part, pieces: list[Any], *, is_cut: bool) -> None:
        store.put(part, work.summarize(part, join_proved(pieces)) if is_cut else pieces[0])

    def note_stored(*, waits: bool) -> None:
        for future in [each for each in storing if waits or each.done()]:
            future.result()
            progress(storing.pop(future).num_candidates)

    def count_room() -> int:
        return PARTS_AHEAD * workers.count() - len(storing)

    with ThreadPoolExecutor(STORING_THREADS) as threads:
        for ended in do_all(workers, find_calls(), count_room, settings.should_stop):
            if ended is not None:
                (part, k), found = ended
                pieces = proved.get(part.number, [None])
                pieces[k] = found
                if None not in pieces:
                    is_cut = proved.pop(part.number, None) is not None
                    storing[threads.submit(store_part, part, pieces, is_cut=is_cut)] = part
            note_stored(waits=False)
        note_stored(waits=True)


def _prove_here(
    store: PartStore, settings: EvaluationSettings, work: PartWork, missing: Sequence[Part], progress: Progress
) -> None:
    """Prove the parts: while the engine proves one, draw the next one, and rank and store the previous one."""
    drawn = ((part, work.draw(part)) for part in missing)
    with ThreadPoolExecutor(1) as beside:
        upcoming: Future[Any] = beside.submit(next, drawn, None)
        stored: Future[Any] | None = None
        while not settings.should_stop() and (given := upcoming.result()) is not None:
            upcoming = beside.submit(next, drawn, None)
            part, its_input = given
            proved = work.prove(part, its_input, progress)
            if stored is not None:
                stored.result()
            stored = beside.submit(lambda part, proved: store.put(part, work.summarize(part, proved)), part, proved)
        if stored is not None:
            stored.result()
