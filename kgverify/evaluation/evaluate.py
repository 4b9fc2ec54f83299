"""Large evaluations: one or more processes prove, rank and store one part after the other."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np

from kgverify.engines.protocol import LeastModel
from kgverify.errors import UserError
from kgverify.evaluation.parts import (
    Identity,
    PartResult,
    PartStore,
    Warn,
    identify,
    join_shares,
    opened_folder,
    pack_result,
    unpack_result,
)
from kgverify.evaluation.proving import (
    FullWork,
    PartWork,
    ProcessGroup,
    Share,
    do_part,
    do_piece,
    explain_out_of_memory,
    join_proved,
    make_work,
    warm_up,
)
from kgverify.evaluation.rank_only import RankOnly, build_rank_only
from kgverify.program.limits import OURS, Dialect
from kgverify.progress import Phase, Progress, no_progress, silent_phase
from kgverify.runs.fan_out import DaskWorkers
from kgverify.runs.pool import Workers, do_all, send_maker
from kgverify.runs.run import Part, Pipeline, Plan, Run, plan_parts
from kgverify.trace.model.columns import CandidateSet

_POLL_SECONDS: Final = 0.1
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
    """The finished parts of an evaluation. Only the leading process has it.

    num_resumed:     the number of parts that were finished before
    accepted:        the changes of code between the parts that the user accepted, in words
    num_candidates:  the number of candidates in the parts that all processes finished in this run
    seconds, warm_up_seconds: the time for these parts, and the time to warm up before them
    model:           the least model, if it decided which candidates to leave out
    num_processes:   the number of processes that shared the work
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
    group:          the processes that share the work
    workers:        the workers that prove the parts instead of this process, and `make`, which makes the pipeline there
    should_stop:    called before each part
    """

    part_size: int | None = None
    rank_only: bool = False
    folder: Path | None = None
    accept_changed: Collection[str] = ()
    group: ProcessGroup = field(default_factory=ProcessGroup)
    workers: Workers | None = None
    make: Callable[[], Pipeline] | None = None
    phase: Phase = silent_phase
    warn: Warn = lambda _: None
    should_stop: Callable[[], bool] = lambda: False


def evaluate(run: Run, pipeline: Pipeline, settings: EvaluationSettings | None = None) -> EvaluationResult | None:
    """Evaluate a run part by part. Return the result in the leading process, None in the others.

    UserError for a folder of another evaluation or other code, log-probabilities that are not finite, or too little memory.
    """
    settings = EvaluationSettings() if settings is None else settings
    group, workers = settings.group, settings.workers
    _check_dialect(run.limits.dialect, rank_only=settings.rank_only)
    leads, info = group.index == 0, pipeline.engine.info
    if isinstance(workers, DaskWorkers):
        workers.engines = pipeline.engines
    opened = nullcontext() if settings.folder is None else opened_folder(settings.folder, is_locked=leads)
    with opened as part_folder, explain_out_of_memory(info):
        plan = plan_parts(run, info.device, settings.part_size, rank_only=settings.rank_only)
        identity = identify(run, pipeline.engine, plan, pipeline.identify_code())
        store = PartStore(part_folder, identity, settings.accept_changed)
        if leads:
            store.open(plan.parts, settings.warn)
        numbers = msgspec.json.decode(group.broadcast(msgspec.json.encode(store.missing)), type=list[int])
        missing = [plan.parts[i] for i in numbers]
        build: Callable[[Run, Pipeline], PartWork] = build_rank_only if settings.rank_only and missing else FullWork
        began = time.monotonic()
        with _Worker(store, settings) as worker:
            work = build(run, pipeline)
            if isinstance(work, RankOnly):
                work.should_stop = settings.should_stop
            if missing and workers is None:
                warm_up(run, pipeline, missing[0])
            warmed_up = time.monotonic()
            if not leads:
                worker.work(work, missing, no_progress)
                return None
            make = None if settings.make is None else partial(make_work, run, settings.make, build, info)
            model = worker.lead(work, missing, make)
        seconds = time.monotonic() - warmed_up
        results = store.collect(plan.parts, settings.warn)
    return EvaluationResult(
        identity=identity,
        plan=plan,
        results=results,
        num_resumed=len(plan.parts) - len(missing),
        num_candidates=sum(part.num_candidates for part in missing if part.number in results),
        num_processes=group.size,
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


class _Worker:
    """The work of one process: while the engine proves, it draws the next part and ranks the previous one."""

    def __init__(self, store: PartStore, settings: EvaluationSettings) -> None:
        self._store, self._settings, self._group = store, settings, settings.group
        self._num_own = self._num_reported = 0

    def __enter__(self) -> Self:
        """Register this process, so that the others notice when it ends."""
        self._group.add(f"process {self._group.index}", os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        """Announce that this process has finished, or failed."""
        self._group.add(f"left {self._group.index}", 1)

    def lead(self, work: PartWork, missing: Sequence[Part], make: Callable[[], PartWork] | None) -> LeastModel | None:
        """Work until all parts are done or the evaluation stops. Return the least model that the work needed.

        make: makes the work on the workers, if there are any
        """
        settings, ranking = self._settings, work if isinstance(work, RankOnly) else None
        model = None
        try:
            with settings.phase("evaluating", sum(part.num_candidates for part in missing)) as progress:
                if settings.workers is None or make is None:
                    self.work(work, missing, progress)
                    self._wait_for_others(progress)
                else:
                    self._send_parts(settings.workers, send_maker(make, settings.workers), work, missing, progress)
            model = None if ranking is None else ranking.model
        except KeyboardInterrupt:
            if not settings.should_stop():
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
        self, workers: Workers, made: tuple[Any, str], work: PartWork, missing: Sequence[Part], progress: Progress
    ) -> None:
        """Send parts to workers and store their results as they arrive, until all are stored or the evaluation stops.

        The last parts are cut into pieces if the engine proves each candidate by itself. Several results are stored at
        the same time, since an object store is slow.

        made: what `send_maker` returned for the work
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
            self._store.put(part, work.summarize(part, join_proved(pieces)) if is_cut else pieces[0])

        def note_stored(*, waits: bool) -> None:
            for future in [each for each in storing if waits or each.done()]:
                future.result()
                progress(storing.pop(future).num_candidates)

        with ThreadPoolExecutor(STORING_THREADS) as threads:
            for ended in do_all(workers, find_calls(), lambda: PARTS_AHEAD * workers.count() - len(storing)):
                if ended is not None:
                    (part, k), found = ended
                    pieces = proved.get(part.number, [None])
                    pieces[k] = found
                    if None not in pieces:
                        is_cut = proved.pop(part.number, None) is not None
                        storing[threads.submit(store_part, part, pieces, is_cut=is_cut)] = part
                note_stored(waits=False)
                if self._settings.should_stop():
                    break
            note_stored(waits=True)

    def work(self, work: PartWork, missing: Sequence[Part], progress: Progress) -> None:
        """Take parts until none is left or the evaluation stops.

        If there are fewer parts than processes, all processes prove each part together, if the work supports it.
        """
        if isinstance(work, RankOnly) and work.is_shareable and len(missing) < self._group.size:
            self._work_together(work, missing, progress)
        else:
            self._work_alone(work, missing, progress)

    def _work_together(self, work: RankOnly, missing: Sequence[Part], progress: Progress) -> None:
        """Prove a share of each part; the leader adds up the shares. It leaves out a part if another process has ended."""
        group = self._group
        for part in missing:
            if self._must_stop():
                return
            own = Share(group, part.number)
            shares = [work.summarize(part, work.prove(part, work.draw(part), progress, own))]
            if not own.leads:
                group.send(f"part {part.number} of {group.index}", pack_result(shares[0]))
                continue
            for index in range(1, group.size):
                message = self._wait_for(f"part {part.number} of {index}", index)
                if message is None:
                    # The other processes need not prove more parts either.
                    group.add("stop", 1)
                    return
                shares.append(unpack_result(message))
            self._store.put(part, join_shares(shares))

    def _wait_for(self, name: str, index: int) -> bytes | None:
        """Return the message of a process; None if the process ended without sending it."""
        while (message := self._group.receive(name)) is None:
            if self._has_left(index):
                return self._group.receive(name)
            time.sleep(_POLL_SECONDS / 20)
        return message

    def _work_alone(self, work: PartWork, missing: Sequence[Part], progress: Progress) -> None:
        drawn = ((part, work.draw(part)) for part in self._take(missing))
        with ThreadPoolExecutor(1) as beside:
            upcoming: Future[Any] = beside.submit(next, drawn, None)
            stored: Future[Any] | None = None
            while (given := upcoming.result()) is not None:
                upcoming = beside.submit(next, drawn, None)
                part, its_input = given
                proved = work.prove(part, its_input, progress)
                if stored is not None:
                    stored.result()
                stored = beside.submit(
                    lambda part, proved: self._store.put(part, work.summarize(part, proved)), part, proved
                )
                self._num_own += part.num_candidates
                self._group.add("candidates", part.num_candidates)
                self._report_others(progress)
                if self._must_stop():
                    break
            if stored is not None:
                stored.result()

    def _take(self, missing: Sequence[Part]) -> Iterator[Part]:
        while not self._must_stop():
            index = self._group.add("taken", 1) - 1
            if index >= len(missing):
                return
            yield missing[index]

    def _must_stop(self) -> bool:
        """Return whether any process wants to stop; then all processes stop."""
        return self._group.add("stop", int(self._settings.should_stop())) > 0

    def _wait_for_others(self, progress: Progress) -> None:
        """Wait until every other process has finished or ended."""
        others = [index for index in range(self._group.size) if index != self._group.index]
        while not all(self._has_left(index) for index in others):
            self._report_others(progress)
            # This also passes a stop on to the others.
            self._must_stop()
            time.sleep(_POLL_SECONDS)
        self._report_others(progress)

    def _has_left(self, index: int) -> bool:
        if self._group.add(f"left {index}", 0):
            return True
        process = self._group.add(f"process {index}", 0)
        if not process:
            # It has not started; a process that starts after a stop does nothing.
            return self._must_stop()
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        return False

    def _report_others(self, progress: Progress) -> None:
        num = self._group.add("candidates", 0) - self._num_own
        progress(num - self._num_reported)
        self._num_reported = num
