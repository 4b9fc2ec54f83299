"""Large evaluations: parts are proved, ranked and kept one after the other, by one process or by several."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.engines.protocol import Engine, Progress, no_progress
from kgverify.errors import UserError
from kgverify.harness.part_file import PartResult, summarize_part
from kgverify.harness.part_store import FolderStore, MemoryStore, Store
from kgverify.harness.parts import Identity, Part, Plan, identify, plan_parts
from kgverify.harness.phases import Phase, silent_phase
from kgverify.harness.run import Pipeline, Run
from kgverify.harness.team import Alone, Team
from kgverify.trace.columns import Candidates, CandidateSet

if TYPE_CHECKING:
    from kgverify.engines.compiled.state import Layout

_POLL_SECONDS: Final = 0.1

Say = Callable[[str], None]
"""Told of what is out of the ordinary."""


class Ended(Protocol):
    """How candidates ended, as an `Evaluation` of the compiled evaluator tells it."""

    @property
    def results(self) -> Sequence[NDArray[Any]]:
        """outcome [N], is_limited [N], log_probability float64 [N]"""
        ...

    @property
    def num_choices(self) -> int:
        """Between two resolvents or more."""
        ...

    @property
    def num_rescored(self) -> int:
        """Made again in a higher precision."""
        ...

    @property
    def smallest_gap(self) -> float:
        """In nats."""
        ...


@runtime_checkable
class Evaluator(Engine, Protocol):
    """An engine that can prove candidates without recording steps. Any other records them, and they are dropped."""

    def evaluate(self, candidates: CandidateSet, progress: Progress = no_progress) -> Ended:
        """How every candidate ends."""
        ...


@dataclass(frozen=True, eq=False)
class Harvest:
    """What is there of an evaluation. This process, and none but it, leads the team.

    results:        of the parts that are done
    num_resumed:    parts that were there already
    num_candidates: proved now, by all processes; in so many seconds, after so many of warming up
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
    memory: int | None = None,
    slots: int | None = None,
    part_size: int | None = None,
) -> "Layout":
    """Sizes of the compiled evaluator for the parts of a run, within the memory, bytes: by default a share of the free.

    UserError for a device that is not there, or too little memory.
    """
    from kgverify.engines.compiled.compile import resolve_device
    from kgverify.engines.compiled.sizing import choose_evaluation_layout

    found = resolve_device(device)
    largest = max(part.num_candidates for part in plan_parts(run, found.type, part_size).parts)
    return choose_evaluation_layout(run.limits, run.policy, found, largest, memory=memory, slots=slots)


def evaluate(
    run: Run,
    pipeline: Pipeline,
    *,
    folder: Path | None = None,
    part_size: int | None = None,
    team: Team | None = None,
    phase: Phase = silent_phase,
    say: Say = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Harvest | None:
    """Evaluate a run in parts; to the leader what came of it, to the others of the team None.

    folder:      where the parts are kept, and from where an evaluation is gone on with; in memory if not given
    should_stop: asked before each part
    UserError for a folder of another evaluation, or a policy whose log-probabilities are no numbers.
    """
    team = Alone() if team is None else team
    plan = plan_parts(run, pipeline.engine.info.device, part_size)
    identity = identify(run, pipeline.engine, plan)
    store: Store = MemoryStore() if folder is None else FolderStore(folder, identity)
    leads = team.index == 0
    if leads:
        store.open(plan.parts, say)
    missing = [
        plan.parts[i] for i in msgspec.json.decode(team.share(msgspec.json.encode(store.missing)), type=list[int])
    ]
    worker = _Worker(run, pipeline, store, team, should_stop)
    started = time.monotonic()
    if missing:
        worker.warm_up(missing[0])
    warmed_up = time.monotonic()
    num_candidates = sum(part.num_candidates for part in missing)
    if not leads:
        worker.work(missing, no_progress)
        return None
    num_resumed = len(plan.parts) - len(missing)
    with phase("evaluating", num_candidates) as progress:
        worker.work(missing, progress)
        worker.wait_for_others(progress)
    seconds = time.monotonic() - warmed_up
    results = store.collect(plan.parts, say)
    done = sum(part.num_candidates for part in missing if part.number in results)
    return Harvest(identity, plan, results, num_resumed, done, seconds, warmed_up - started)


class _Worker:
    """What one process does: draws the next part and ranks the last one while the engine proves."""

    def __init__(self, run: Run, pipeline: Pipeline, store: Store, team: Team, should_stop: Callable[[], bool]) -> None:
        self._run, self._pipeline, self._store, self._team = run, pipeline, store, team
        self._should_stop = should_stop
        self._num_own = self._num_told = 0
        team.add(f"process {team.index}", os.getpid())

    def warm_up(self, part: Part) -> None:
        """Let the engine compile what it compiles at the first candidate."""
        _prove(self._pipeline.engine, self._draw(part).take(slice(0, 1)), no_progress)

    def work(self, missing: Sequence[Part], progress: Progress) -> None:
        """Take parts, until there are none or it is to stop; then say so."""
        try:
            with ThreadPoolExecutor(1) as beside:
                self._work(self._take(missing), beside, progress)
        finally:
            self._team.add(f"left {self._team.index}", 1)

    def _work(self, parts: Iterator[Part], beside: ThreadPoolExecutor, progress: Progress) -> None:
        part = next(parts, None)
        drawn = None if part is None else beside.submit(self._draw, part)
        kept: Future[None] | None = None
        while part is not None and drawn is not None:
            candidates = drawn.result()
            following = next(parts, None)
            drawn = None if following is None else beside.submit(self._draw, following)
            proved, gaps = _prove(self._pipeline.engine, candidates, progress)
            if kept is not None:
                kept.result()
            kept = beside.submit(self._keep, part, proved, gaps)
            self._num_own += len(candidates.query)
            self._team.add("candidates", len(candidates.query))
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

    def _draw(self, part: Part) -> CandidateSet:
        run = self._run
        return self._pipeline.draw(run.graph, run.split, part.queries, run.num_corruptions, run.seed)

    def _keep(self, part: Part, proved: Candidates, gaps: tuple[int, int, float]) -> None:
        rankings = self._pipeline.rank_finite(self._run, proved)
        if rankings is None:
            raise UserError(
                f"a log-probability of {part.name} is no number, and so has no rank",
                where="policy",
                fix=f"look at its candidates: kgverify diff --queries {part.queries.stop}",
            )
        self._store.put(part, summarize_part(proved, rankings, self._run.triples, self._run.seed, gaps))

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


def _prove(engine: Engine, drawn: CandidateSet, progress: Progress) -> tuple[Candidates, tuple[int, int, float]]:
    """The candidates as they ended, and how close the choices were: choices, those made again, smallest gap."""
    if not isinstance(engine, Evaluator):
        return engine.prove(drawn, progress).candidates, (0, 0, float("inf"))
    ended = engine.evaluate(drawn, progress)
    outcome, is_limited, log_probability = ended.results
    proved = Candidates(
        *drawn,
        num_steps=np.zeros(len(drawn.query), np.uint32),
        outcome=outcome.astype(np.int8),
        is_limited=is_limited.astype(np.uint8),
        log_probability=log_probability,
    )
    return proved, (ended.num_choices, ended.num_rescored, ended.smallest_gap)
