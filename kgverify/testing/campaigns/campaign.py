"""Campaigns: try generated problems on all cores until a budget is spent, and keep each divergence once.

A block is a fixed stretch of a seed's sequence of problems, which one process tries with one thread. Its result depends
on nothing else, so that a campaign's result is the same for any number of processes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, TypeVar

from kgverify.errors import UserError
from kgverify.runs.workers import start_workers
from kgverify.testing.campaigns.corpus import (
    Block,
    Corpus,
    Identity,
    Sighting,
    digest_code,
    is_shrunk,
    mark_shrunk,
)
from kgverify.testing.campaigns.known_divergences import KnownDivergence
from kgverify.testing.campaigns.result import CampaignResult, Counts, Tally, Watch, summarise_campaign
from kgverify.testing.campaigns.tasks import check_made, replay_text, shrink_text, try_block
from kgverify.testing.checking.engine_makers import COMPILED, EAGER, EngineSpec, find_maker
from kgverify.testing.checking.failure import Signature
from kgverify.testing.reproducers.text_format import parse_reproducer, render_reproducer, saving_bugs, write_reproducer
from kgverify.testing.shrinking.shrink import MAX_CALLS

MOST_EXAMPLES: Final = 2000
"""The number of problems of a campaign without a budget."""

BLOCK_SIZE: Final = 2048
"""Problems of a block. A large run costs less for each, especially where a run is compiled."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The engine to test, the budget, and the folder for what is found.

    examples:       problems, those of earlier campaigns in the corpus included; None for no limit but the seconds
    seconds:        for trying problems; None for no limit but the examples
    jobs:           processes; 1 works in this process
    is_fresh:       whether to ignore which problems were tried before
    shrink_calls:   most runs of the engine for one shrink
    shrink_seconds: most seconds of one shrink
    most_shrunk:    divergences that are shrunk; the others wait for the next campaign
    """

    corpus: Path
    engine: EngineSpec = EAGER
    lockstep: bool = False
    seed: int = 0
    examples: int | None = None
    seconds: float | None = None
    jobs: int = 1
    known: tuple[KnownDivergence, ...] = ()
    is_fresh: bool = False
    shrink_calls: int = MAX_CALLS
    shrink_seconds: float = 20.0
    most_shrunk: int = 20

    @property
    def most_examples(self) -> int | None:
        """The budget in examples; a default where neither examples nor seconds are given."""
        return MOST_EXAMPLES if self.examples is None and self.seconds is None else self.examples


@saving_bugs()
def run_campaign(campaign: Campaign, *, watch: Watch = lambda tally: None, today: date | None = None) -> CampaignResult:
    """Replay the corpus, try problems until the budget is spent, shrink new divergences, and judge the known ones.

    A KeyboardInterrupt lets blocks in progress finish, and the result is marked as interrupted; a second one is raised.
    UserError for an engine that cannot be made, a folder that cannot be used, or a process that died.
    """
    make = find_maker(campaign.engine)
    if campaign.engine.name == COMPILED:
        # Any other engine might end this process.
        check_made(make)
    run = _Run(campaign, watch)
    watch(Tally("start"))
    try:
        with _executor(campaign.jobs) as executor:
            run.replay_corpus(executor)
            run.try_blocks(executor)
            run.keep_found()
            run.shrink_found(executor)
    except BrokenProcessPool:
        raise UserError(
            "a process died",
            where=str(campaign.engine),
            fix="run again with --jobs 1 to see it die; finished work is kept",
        ) from None
    return summarise_campaign(
        engine=str(campaign.engine),
        seed=campaign.seed,
        lockstep=campaign.lockstep,
        blocks=[block for _, block in sorted(run.blocks.items())],
        num_resumed=run.num_resumed,
        seconds=run.seconds,
        replays=run.replays,
        reproducers=run.corpus.reproducers(),
        known=campaign.known,
        today=today or date.today(),
        is_interrupted=run.is_interrupted,
    )


class _Run:
    """A campaign in progress."""

    def __init__(self, campaign: Campaign, watch: Watch) -> None:
        self.campaign = campaign
        self.corpus = Corpus(campaign.corpus)
        self._log = self.corpus.log(
            Identity(
                engine=campaign.engine,
                lockstep=campaign.lockstep,
                seed=campaign.seed,
                block_size=BLOCK_SIZE,
                code=digest_code(campaign.engine),
            ),
            is_fresh=campaign.is_fresh,
        )
        self.blocks = {block.number: block for block in self._log.records}
        self.replays: list[tuple[Path, Signature, Signature | None]] = []
        self.num_resumed = 0
        self.seconds = 0.0
        self.is_interrupted = False
        self._watch = watch

    def replay_corpus(self, executor: Executor) -> None:
        """Run every reproducer of the corpus again."""
        files = self.corpus.reproducers()
        tasks = [(replay_text, (render_reproducer(made), self.campaign.engine)) for _, made in files]
        for number, found in self._gather(executor, "replay", tasks):
            path, made = files[number]
            self.replays.append((path, made.signature, found))
        self.replays.sort()

    def try_blocks(self, executor: Executor) -> None:
        """Try blocks, in order, until the budget is spent; those in the log are finished."""
        campaign, blocks, size = self.campaign, self.blocks, BLOCK_SIZE
        self.num_resumed = sum(block.num_problems for block in blocks.values())
        most, started = campaign.most_examples, time.monotonic()
        todo = _blocks_to_do(blocks, size, most)
        running: set[Future[Block]] = set()
        handed: dict[Future[Block], int] = {}
        counts = Counts(blocks.values())
        is_ending = self.is_interrupted

        def end() -> bool:
            return campaign.seconds is not None and time.monotonic() - started >= campaign.seconds

        def report(num_next: int = 0) -> None:
            self.seconds = time.monotonic() - started
            self._watch(
                counts.tally(
                    total=most or 0,
                    seconds=self.seconds,
                    resumed=self.num_resumed,
                    at_work=sum(handed[future] for future in running) + num_next,
                    is_ending=self.is_interrupted,
                )
            )

        report()
        while True:
            try:
                # One more than there are processes, so that none of them waits.
                while not is_ending and not end() and len(running) < campaign.jobs + (campaign.jobs > 1):
                    number, num_problems = next(todo, (-1, 0))
                    if number < 0:
                        is_ending = True
                        break
                    report(num_problems)
                    task = (campaign.engine, campaign.seed, number, size, num_problems, campaign.lockstep)
                    future = executor.submit(try_block, *task)
                    running.add(future)
                    handed[future] = num_problems
                if not running:
                    break
                finished, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=lambda future: future.result().number):
                    block = future.result()
                    is_partial = block.number in blocks
                    blocks[block.number] = block
                    self._log.add(block)
                    if is_partial:
                        # A partial block was tried again as a whole.
                        counts = Counts(blocks.values())
                    else:
                        counts.add(block)
                    del handed[future]
                report()
            except KeyboardInterrupt:
                if self.is_interrupted:
                    raise
                self.is_interrupted = is_ending = True
                running -= {future for future in running if future.cancel()}
                report()
        report()

    def keep_found(self) -> None:
        """Write a reproducer of each divergence that has none in the corpus."""
        judged = {path: found == signature for path, signature, found in self.replays}
        still = {made.signature for path, made in self.corpus.reproducers() if judged.get(path, True)}
        first: dict[Signature, Sighting] = {}
        for _, block in sorted(self.blocks.items()):
            for sighting in block.sightings:
                if sighting.text:
                    first.setdefault(sighting.signature, sighting)
        for signature, sighting in first.items():
            if signature not in still:
                self.corpus.add(parse_reproducer(sighting.text))

    def shrink_found(self, executor: Executor) -> None:
        """Shrink the reproducers that have not been shrunk, unless the campaign was interrupted."""
        changed = {path for path, signature, found in self.replays if found != signature}
        waiting = [
            (path, made) for path, made in self.corpus.reproducers() if not is_shrunk(made) and path not in changed
        ][: self.campaign.most_shrunk]
        if self.is_interrupted:
            return
        budget = (self.campaign.engine, self.campaign.shrink_calls, self.campaign.shrink_seconds)
        tasks = [(shrink_text, (render_reproducer(made), *budget)) for _, made in waiting]
        for number, text in self._gather(executor, "shrink", tasks):
            path, made = waiting[number]
            write_reproducer(parse_reproducer(text) if text else mark_shrunk(made), path)

    def _gather(
        self, executor: Executor, phase: str, tasks: Sequence[tuple[Callable[..., T], tuple[object, ...]]]
    ) -> Iterator[tuple[int, T]]:
        """Yield the number and the result of each task as it ends; a KeyboardInterrupt cancels those not begun."""
        if not tasks:
            return
        started = time.monotonic()

        def report(done: int) -> None:
            seconds = time.monotonic() - started
            self._watch(Tally(phase, done, len(tasks), seconds, is_ending=self.is_interrupted))

        futures: dict[Future[T], int] = {}
        running: set[Future[T]] = set()
        report(0)
        try:
            for number, (function, arguments) in enumerate(tasks):
                future = executor.submit(function, *arguments)
                futures[future] = number
                if future.done():
                    report(number + 1)
            running = set(futures)
        except KeyboardInterrupt:
            self.is_interrupted, running = True, set(futures)
        while running:
            try:
                finished, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt:
                if self.is_interrupted:
                    raise
                self.is_interrupted = True
                running -= {future for future in running if future.cancel()}
                report(len(futures) - len(running))
                continue
            for future in finished:
                yield futures[future], future.result()
            report(len(futures) - len(running))


def _blocks_to_do(done: dict[int, Block], size: int, most: int | None) -> Iterator[tuple[int, int]]:
    """Yield the number of each unfinished block, and how many problems of it to try."""
    number = 0
    while most is None or number * size < most:
        num_problems = size if most is None else min(size, most - number * size)
        if number not in done or done[number].num_problems < num_problems:
            yield number, num_problems
        number += 1


class _Here(Executor):
    """An executor that does the work at once, in this process."""

    def submit(self, function: Callable[..., T], /, *arguments: object, **named: object) -> Future[T]:
        """Return a finished future of the call's result."""
        future: Future[T] = Future()
        future.set_result(function(*arguments, **named))
        return future


def _executor(jobs: int) -> AbstractContextManager[Executor]:
    return nullcontext(_Here()) if jobs == 1 else start_workers(jobs)
