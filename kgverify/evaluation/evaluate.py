"""Large evaluations: parts are proved, ranked and kept one after the other, by one process or by several."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kgverify.engines.protocol import Progress, no_progress
from kgverify.evaluation.part_file import PartResult
from kgverify.evaluation.part_store import FolderStore, MemoryStore, Store
from kgverify.evaluation.part_work import EveryCandidate, PartWork
from kgverify.evaluation.parts import Identity, Part, Plan, identify, plan_parts
from kgverify.evaluation.processes import Alone, Team
from kgverify.evaluation.proving import naming_memory, prove_candidates
from kgverify.evaluation.rank_work import choose_rank_work
from kgverify.runs.progress import Phase, silent_phase
from kgverify.runs.run import Pipeline, Run

if TYPE_CHECKING:
    from kgverify.engines.compiled.state import Layout

_POLL_SECONDS: Final = 0.1

Say = Callable[[str], None]
"""Told of what is out of the ordinary."""


@dataclass(frozen=True, eq=False)
class Harvest:
    """What is there of an evaluation. This process, and none but it, leads the team.

    results:        of the parts that are done
    num_resumed:    parts that were there already
    num_candidates: of the parts done now, by all processes; in so many seconds, after so many of warming up
    """

    identity: Identity
    plan: Plan
    results: dict[int, PartResult]
    num_resumed: int
    num_candidates: int
    seconds: float
    warm_up_seconds: float

    @property
    def missing(self) -> list[Part]:
        """What is still to be done."""
        return [part for part in self.plan.parts if part.number not in self.results]


def choose_batch(
    run: Run,
    *,
    device: str = "auto",
    mode: str = "auto",
    memory: int | None = None,
    slots: int | None = None,
    part_size: int | None = None,
    rank_only: bool = False,
) -> "Layout":
    """Sizes of the compiled evaluator for the parts of a run, within the memory, bytes: by default a share of the free.

    UserError for a device that is not there, or too little memory.
    """
    from kgverify.engines.compiled.execution.device import resolve_device
    from kgverify.engines.compiled.layout import choose_evaluation_layout

    found = resolve_device(device)
    plan = plan_parts(run, found.type, part_size, rank_only=rank_only)
    largest = max(part.num_candidates for part in plan.parts)
    return choose_evaluation_layout(
        run.graph.program, run.limits, run.policy, found, largest, memory=memory, slots=slots, mode=mode
    )


def evaluate(
    run: Run,
    pipeline: Pipeline,
    *,
    folder: Path | None = None,
    part_size: int | None = None,
    rank_only: bool = False,
    team: Team | None = None,
    phase: Phase = silent_phase,
    say: Say = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Harvest | None:
    """Evaluate a run in parts; to the leader what came of it, to the others of the team None.

    folder:      where the parts are kept, and from where an evaluation is gone on with; in memory if not given
    rank_only:   whether candidates that cannot matter for a rank are left out (`kgverify.evaluation.rank_only`)
    should_stop: asked before each part
    UserError for a folder of another evaluation, a policy whose log-probabilities are no numbers, or too little memory.
    """
    team = Alone() if team is None else team
    plan = plan_parts(run, pipeline.engine.info.device, part_size, rank_only=rank_only)
    identity = identify(run, pipeline.engine, plan)
    store: Store = MemoryStore() if folder is None else FolderStore(folder, identity)
    leads = team.index == 0
    if leads:
        store.open(plan.parts, say)
    missing = [
        plan.parts[i] for i in msgspec.json.decode(team.share(msgspec.json.encode(store.missing)), type=list[int])
    ]
    num_candidates = sum(part.num_candidates for part in missing)
    began = time.monotonic()
    work: PartWork = EveryCandidate(run, pipeline)
    if rank_only and missing:
        work = choose_rank_work(run, pipeline)
    worker = _Worker(work, store, team, should_stop)
    started = time.monotonic()
    with naming_memory(pipeline.engine.info):
        if missing:
            _warm_up(run, pipeline, missing[0])
        warmed_up = time.monotonic()
        if not leads:
            worker.work(missing, no_progress)
            return None
        num_resumed = len(plan.parts) - len(missing)
        with phase("evaluating", num_candidates) as progress:
            worker.work(missing, progress)
            worker.wait_for_others(progress)
    seconds = time.monotonic() - warmed_up + started - began
    results = store.collect(plan.parts, say)
    done = sum(part.num_candidates for part in missing if part.number in results)
    return Harvest(identity, plan, results, num_resumed, done, seconds, warmed_up - started)


def _warm_up(run: Run, pipeline: Pipeline, part: Part) -> None:
    """Let the engine compile what it compiles at the first candidate."""
    drawn = pipeline.draw(run.graph, run.split, part.queries[:1], 0, run.seed)
    prove_candidates(pipeline.engine, drawn.take(slice(0, 1)))


class _Worker:
    """What one process does: draws the next part and ranks the last one while the engine proves."""

    def __init__(self, work: PartWork, store: Store, team: Team, should_stop: Callable[[], bool]) -> None:
        self._part_work, self._store, self._team = work, store, team
        self._should_stop = should_stop
        self._num_own = self._num_told = 0
        team.add(f"process {team.index}", os.getpid())

    def work(self, missing: Sequence[Part], progress: Progress) -> None:
        """Take parts, until there are none or it is to stop; then say so."""
        try:
            with ThreadPoolExecutor(1) as beside:
                self._work(self._take(missing), beside, progress)
        finally:
            self._team.add(f"left {self._team.index}", 1)

    def _work(self, parts: Iterator[Part], beside: ThreadPoolExecutor, progress: Progress) -> None:
        part = next(parts, None)
        upcoming = None if part is None else beside.submit(self._part_work.draw, part)
        kept: Future[None] | None = None
        while part is not None and upcoming is not None:
            drawn = upcoming.result()
            following = next(parts, None)
            upcoming = None if following is None else beside.submit(self._part_work.draw, following)
            proved = self._part_work.prove(part, drawn, progress)
            if kept is not None:
                kept.result()
            kept = beside.submit(self._keep, part, proved)
            self._num_own += part.num_candidates
            self._team.add("candidates", part.num_candidates)
            self._tell_of_others(progress)
            if self._is_to_stop():
                break
            part = following
        if kept is not None:
            kept.result()

    def _take(self, missing: Sequence[Part]) -> Iterator[Part]:
        while not self._is_to_stop():
            turn = self._team.add("taken", 1) - 1
            if turn >= len(missing):
                return
            yield missing[turn]

    def _is_to_stop(self) -> bool:
        """One that stops stops all."""
        return self._team.add("stop", int(self._should_stop())) > 0

    def _keep(self, part: Part, proved: Any) -> None:
        self._store.put(part, self._part_work.summarize(part, proved))

    def wait_for_others(self, progress: Progress) -> None:
        """Until every process has left off, or is gone."""
        while not all(self._has_left(index) for index in range(self._team.size)):
            self._tell_of_others(progress)
            # Says it to the others.
            self._is_to_stop()
            time.sleep(_POLL_SECONDS)
        self._tell_of_others(progress)

    def _has_left(self, index: int) -> bool:
        if self._team.add(f"left {index}", 0):
            return True
        process = self._team.add(f"process {index}", 0)
        if not process:
            # It has not begun; one that begins when all are to stop does nothing.
            return self._is_to_stop()
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        return False

    def _tell_of_others(self, progress: Progress) -> None:
        num = self._team.add("candidates", 0) - self._num_own
        progress(num - self._num_told)
        self._num_told = num
