"""Campaigns: try generated problems on all cores until a budget is spent, and keep each divergence once.

A block is a fixed stretch of a seed's sequence of problems, which one process tries with one thread. Its result depends
on nothing else, so that a campaign's result is the same for any number of processes.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Final, TypeVar

from kgverify.comparison.exercise.exercise import MINIMUM, NOT_EXERCISED, Exercise, Minimum
from kgverify.errors import UserError
from kgverify.files.code_identity import list_changes
from kgverify.files.locking import locked_folder
from kgverify.files.writing import temporary_folder
from kgverify.program.dialect import OURS, Dialect
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, Sides
from kgverify.runs.separate_workers import MOST_KILLS, SeparateWorkers, describe_end, weigh_end
from kgverify.testing.campaigns.corpus import (
    Block,
    Corpus,
    Identity,
    Sighting,
    is_shrunk,
    mark_shrunk,
)
from kgverify.testing.campaigns.known_divergences import KnownDivergence
from kgverify.testing.campaigns.result import (
    CampaignResult,
    FoundDivergence,
    KnownJudgement,
    ReplayedFile,
    Tally,
    Watch,
)
from kgverify.testing.campaigns.tasks import Group, check_made, give, read_log, replay_text, shrink_text, try_block
from kgverify.testing.checking.failure import DEATH, Signature
from kgverify.testing.problems.features import ALL_FEATURES
from kgverify.testing.problems.scope import check_scope, list_scope
from kgverify.testing.reproducers.text_format import parse_reproducer, render_reproducer, saving_bugs, write_reproducer
from kgverify.testing.shrinking.shrink import MAX_CALLS
from kgverify.verification.evidence import describe_idle

MOST_EXAMPLES: Final = 2000
"""The number of problems of a campaign without a budget."""

BLOCK_SIZE: Final = 2048
"""Problems of a block. A large run costs less for each, especially where a run is compiled."""

MOST_LOST: Final = 100
"""Processes that may be killed one after the other before any of them has proved anything."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The engine to test, the one that it is compared with, the budget, and the folder for what is found.

    examples:       problems, those of earlier campaigns in the corpus included; None for no limit but the seconds
    seconds:        for trying problems; None for no limit but the examples
    jobs:           processes; 1 works in this process
    is_apart:       whether 1, too, is a process of its own, which an engine may end
    is_fresh:       whether to ignore which problems were tried before
    accept_changed: the names of changed code whose problems are not tried again (`kgverify.files.code_identity`)
    shrink_calls:   most runs of the engine for one shrink
    shrink_seconds: most seconds of one shrink
    most_shrunk:    divergences that are shrunk; the others wait for the next campaign
    minimum:        the exercise required of the whole campaign
    dialect:        of both engines and of the problems
    scope:          a scope whose problems are all tried, instead of those of the seed within a budget
    scheduler:      the address of a dask scheduler, used instead of `jobs`; an engine may then end or hang a worker
    """

    corpus: Path
    engine: EngineSpec = EAGER
    reference: EngineSpec = PLAIN
    lockstep: bool = False
    seed: int = 0
    examples: int | None = None
    seconds: float | None = None
    jobs: int = 1
    is_apart: bool = False
    known: tuple[KnownDivergence, ...] = ()
    is_fresh: bool = False
    accept_changed: tuple[str, ...] = ()
    shrink_calls: int = MAX_CALLS
    shrink_seconds: float = 20.0
    most_shrunk: int = 20
    minimum: Minimum = field(default_factory=lambda: MINIMUM)
    dialect: Dialect = OURS
    scope: str | None = None
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.scope is None:
            return
        check_scope(self.scope)
        if self.examples is not None or self.seconds is not None:
            raise UserError(
                "a scope has no budget: all of its problems are tried",
                where="scope",
                fix="leave out the number of examples and the time",
            )

    @property
    def sides(self) -> Sides:
        """Both engines."""
        return Sides(self.engine, self.reference)

    @property
    def runs_here(self) -> bool:
        """True if the work is done in this process."""
        return self.jobs == 1 and not self.is_apart and self.scheduler is None

    @property
    def most_examples(self) -> int | None:
        """The budget in examples; a default where neither examples nor seconds are given."""
        if self.scope is not None:
            return len(list_scope(self.scope, self.dialect))
        return MOST_EXAMPLES if self.examples is None and self.seconds is None else self.examples


@saving_bugs()
def run_campaign(campaign: Campaign, *, watch: Watch = lambda tally: None, today: date | None = None) -> CampaignResult:
    """Replay the corpus, try problems until the budget is spent, shrink new divergences, and judge the known ones.

    A KeyboardInterrupt lets blocks in progress finish, and the result is marked as interrupted; a second one is raised.
    UserError for an engine that cannot be made, a folder that cannot be used, or a process that died.
    """
    options = "--engine", "--reference"
    for side, make, option in zip(campaign.sides, campaign.sides.find_makers(), options, strict=True):
        if side.is_own:
            # Any other engine might end this process.
            check_made(make, option, campaign.dialect)
    with locked_folder(campaign.corpus, "this corpus", fix="wait until it ends, or give another folder as --corpus"):
        run = _Run(campaign, watch)
        watch(Tally("start"))
        with _make_executor(campaign) as executor:
            run.replay_corpus(executor)
            run.try_blocks(executor)
            run.keep_found()
            run.shrink_found(executor)
        return run.summarise(today or date.today())


class _Run:
    """A campaign in progress."""

    def __init__(self, campaign: Campaign, watch: Watch) -> None:
        self.campaign = campaign
        self.corpus = Corpus(campaign.corpus)
        self._code = campaign.sides.identify_code()
        self._log = self.corpus.log(
            Identity(
                engine=campaign.engine,
                reference=campaign.reference,
                lockstep=campaign.lockstep,
                seed=campaign.seed,
                block_size=BLOCK_SIZE,
                code=self._code,
                dialect=campaign.dialect,
                scope=campaign.scope,
            ),
            is_fresh=campaign.is_fresh,
            accept_changed=campaign.accept_changed,
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

        def take(number: int, found: Signature | None) -> None:
            path, made = files[number]
            self.replays.append((path, made.signature, found))

        tasks: list[tuple[Callable[..., Signature | None], tuple[object, ...]]] = [
            (replay_text, (render_reproducer(made), self.campaign.sides)) for _, made in files
        ]
        death: Signature | None = Signature("", "", DEATH)
        self._do_all(executor, "replay", tasks, take, death)
        self.replays.sort()

    def try_blocks(self, executor: Executor) -> None:
        """Try blocks, in order, until the budget is spent; those in the log are finished."""
        campaign, blocks, started = self.campaign, self.blocks, time.monotonic()
        self.num_resumed = sum(block.num_problems for block in blocks.values())
        tally = Tally("try", total=campaign.most_examples or 0, resumed=self.num_resumed)
        counted = reduce(Tally.add, blocks.values(), tally)

        num_lost = 0

        def find_tasks() -> Iterator[tuple[int, Callable[..., Block], tuple[object, ...]]]:
            for number, num in _blocks_to_do(blocks, BLOCK_SIZE, campaign.most_examples):
                if campaign.seconds is not None and time.monotonic() - started >= campaign.seconds:
                    return
                size_of[number] = num
                yield number, *find_task(number)

        def find_task(number: int) -> tuple[Callable[..., Block], tuple[object, ...]]:
            settings = campaign.sides, campaign.seed, number, BLOCK_SIZE, size_of[number], campaign.lockstep
            # Another machine does not see it.
            log = None if campaign.runs_here or campaign.scheduler is not None else logs / f"{number}.json"
            deadly = tuple(group for group, weight in deaths.get(number, {}).items() if weight >= MOST_KILLS)
            return try_block, (*settings, deadly, log, campaign.dialect, campaign.scope)

        def retry(number: int, exit_code: int) -> tuple[Callable[..., Block], tuple[object, ...]]:
            """Return the task of a block whose process ended: the same, without groups that certainly end it."""
            nonlocal num_lost
            group = read_log(logs / f"{number}.json")
            weight = weigh_end(exit_code)
            if group:
                num_lost = 0
                deaths.setdefault(number, Counter())[group] += weight
            elif group is not None and weight >= MOST_KILLS:
                raise self._died(exit_code, "while the engine was made")
            else:
                num_lost += 1
                if num_lost == MOST_LOST:
                    raise self._died(exit_code, f"before it proved anything, as {MOST_LOST - 1} others did")
            return find_task(number)

        def take(number: int, block: Block) -> None:
            nonlocal counted, num_lost
            num_lost = 0
            deaths.pop(number, None)
            is_partial = number in blocks
            if changes := list_changes(self._code, self.campaign.sides.identify_code(), changed_only=True):
                raise UserError(
                    f"code changed while the campaign ran: {'; '.join(changes.values())}",
                    where=str(self.campaign.corpus),
                    fix="run the command again: what was tried before the change is tried again",
                )
            blocks[number] = block
            self._log.add(block)
            # A partial block was tried again as a whole.
            counted = reduce(Tally.add, blocks.values(), tally) if is_partial else counted.add(block)

        def report(at_work: Iterable[int]) -> None:
            self.seconds = time.monotonic() - started
            num = sum(size_of[number] for number in at_work)
            self._watch(counted._replace(seconds=self.seconds, at_work=num, is_ending=self.is_interrupted))

        size_of: dict[int, int] = {}
        deaths: dict[int, Counter[Group]] = {}
        with temporary_folder("kgverify-fuzz-") as logs:
            self._work(executor, find_tasks(), take, report, retry)

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
        budget = (self.campaign.sides, self.campaign.shrink_calls, self.campaign.shrink_seconds)

        def take(number: int, text: str) -> None:
            path, made = waiting[number]
            write_reproducer(parse_reproducer(text) if text else mark_shrunk(made), path)

        tasks = [(shrink_text, (render_reproducer(made), *budget)) for _, made in waiting]
        self._do_all(executor, "shrink", tasks, take, "")

    def _do_all(
        self,
        executor: Executor,
        phase: str,
        tasks: Sequence[tuple[Callable[..., T], tuple[object, ...]]],
        take: Callable[[int, T], None],
        after_death: T,
    ) -> None:
        """Do all the tasks of a phase, and hand over the number and the result of each as it ends.

        after_death: the result of a task that ends its process
        """
        if not tasks:
            return
        started, begun = time.monotonic(), set[int]()

        def report(at_work: Iterable[int]) -> None:
            begun.update(running := set(at_work))
            seconds = time.monotonic() - started
            self._watch(Tally(phase, len(begun - running), len(tasks), seconds, is_ending=self.is_interrupted))

        def retry(number: int, exit_code: int) -> tuple[Callable[..., T], tuple[object, ...]]:
            ended[number] += weigh_end(exit_code)
            return tasks[number] if ended[number] < MOST_KILLS else (give, (after_death,))

        ended: Counter[int] = Counter()
        self._work(executor, ((number, *task) for number, task in enumerate(tasks)), take, report, retry)

    def _work(
        self,
        executor: Executor,
        tasks: Iterator[tuple[int, Callable[..., T], tuple[object, ...]]],
        take: Callable[[int, T], None],
        report: Callable[[Iterable[int]], None],
        retry: Callable[[int, int], tuple[Callable[..., T], tuple[object, ...]]],
    ) -> None:
        """Do numbered tasks, hand over each result, and report which numbers are being worked on.

        retry: returns what to do instead of a task whose process ended, with its exit code

        A KeyboardInterrupt cancels those not begun; a second one is raised.
        """
        running: dict[Future[T], int] = {}
        report(())

        def has_room() -> bool:
            most = 2 * executor.count_threads() if isinstance(executor, DaskWorkers) else self.campaign.jobs
            return not self.is_interrupted and len(running) < most

        while True:
            try:
                while has_room() and (task := next(tasks, None)):
                    number, function, arguments = task
                    report([*running.values(), number])
                    running[executor.submit(function, *arguments)] = number
                if not running:
                    break
                finished, _ = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in sorted(finished, key=running.__getitem__):
                    number = running.pop(future)
                    if isinstance(executor, SeparateWorkers) and isinstance(future.exception(), BrokenProcessPool):
                        function, arguments = retry(number, executor.replace(future))
                        running[executor.submit(function, *arguments)] = number
                    else:
                        take(number, future.result())
                report(running.values())
            except KeyboardInterrupt:
                if self.is_interrupted:
                    raise
                self.is_interrupted = True
                running = {future: number for future, number in running.items() if not future.cancel()}
                report(running.values())
        report(())

    def _died(self, exit_code: int, when: str) -> UserError:
        num_checked = sum(block.num_problems for block in self.blocks.values())
        return UserError(
            f"a process died {when} ({describe_end(exit_code)}); problems checked until then: {num_checked:,}",
            where=str(self.campaign.sides),
            fix="find what ends it, and run again: finished work is kept",
        )

    def summarise(self, today: date) -> CampaignResult:
        """Return the result: of all blocks, and of the corpus, as replayed at first and as it is now."""
        campaign, blocks = self.campaign, [block for _, block in sorted(self.blocks.items())]
        counts: Counter[Signature] = Counter()
        first: dict[Signature, int] = {}
        features: Counter[str] = Counter()
        for block in blocks:
            features.update(block.features)
            for sighting in block.sightings:
                counts[sighting.signature] += sighting.count
                first.setdefault(sighting.signature, sighting.index)
        totals = reduce(Tally.add, blocks, Tally("try"))
        allowed = {entry.signature for entry in campaign.known}
        shown_by = {found: path for path, _, found in reversed(self.replays) if found is not None}
        gone = {path for path, signature, found in self.replays if found != signature}
        made_of = dict(self.corpus.reproducers())
        path_of = {made.signature: path for path, made in reversed(made_of.items()) if path not in gone}
        divergences = []
        for signature in dict.fromkeys([*first, *(found for _, _, found in self.replays if found)]):
            each = FoundDivergence(
                signature=str(signature),
                stage=signature.stage,
                kind=signature.kind,
                is_new=str(signature) not in allowed,
                num_problems=counts[signature],
                first=first.get(signature, -1),
            )
            path = path_of.get(signature) or shown_by.get(signature)
            if path is not None:
                made = made_of[path]
                each.file, each.size, each.is_shrunk = str(path), made.problem.size, is_shrunk(made)
                each.program, each.neighbour = str(made.problem), made.neighbour
            divergences.append(each)
        seen = {each.signature: each.num_problems for each in divergences}
        replayed = {str(signature) for _, signature, _ in self.replays}
        return CampaignResult(
            engine=str(campaign.engine),
            reference=str(campaign.reference),
            dialect=campaign.dialect,
            seed=campaign.seed,
            scope=campaign.scope,
            lockstep=campaign.lockstep,
            is_interrupted=self.is_interrupted,
            num_problems=totals.done,
            num_resumed=self.num_resumed,
            num_skipped=sum(block.num_skipped for block in blocks),
            num_left=sum(block.num_left for block in blocks),
            num_candidates=totals.candidates,
            num_steps=totals.steps,
            num_resolvents=totals.resolvents,
            num_differing=totals.differing,
            num_confirmed=sum(block.num_confirmed for block in blocks),
            seconds=self.seconds,
            problems_per_second=(totals.done - self.num_resumed) / self.seconds if self.seconds else 0.0,
            num_measured=sum(block.num_measured for block in blocks),
            features={name: features[name] for name in ALL_FEATURES},
            stages=dict(totals.stages),
            classes=dict(totals.classes),
            divergences=divergences,
            known=[
                KnownJudgement(
                    signature=entry.signature,
                    issue=entry.issue,
                    reason=entry.reason,
                    expires=entry.expires,
                    status=entry.judge(seen, replayed, totals.done, today),
                    num_problems=seen.get(entry.signature, 0),
                )
                for entry in campaign.known
            ],
            exercise=reduce(Exercise.plus, (block.exercise for block in blocks), NOT_EXERCISED),
            minimum=dict(campaign.minimum),
            notes=[
                *(f"all problems are tried again: {each}" for each in self._log.changed),
                *(f"earlier problems count although code changed, as accepted: {each}" for each in self._log.accepted),
                *([] if divergences else describe_idle(campaign.engine.faults, campaign.reference.faults)),
            ],
            replays=[
                ReplayedFile(file=str(path), signature=str(signature), found=str(found or ""))
                for path, signature, found in self.replays
            ],
        )


def _make_executor(campaign: Campaign) -> Executor:
    if campaign.scheduler is not None:
        return DaskWorkers(campaign.scheduler, campaign.sides.foreign)
    return _Here() if campaign.runs_here else SeparateWorkers(campaign.jobs)


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
