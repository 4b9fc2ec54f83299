"""Campaigns: try generated problems on all cores until a budget is spent, and keep each divergence once.

A block is a fixed stretch of a seed's sequence of problems, which one process tries with one thread. Its result depends
on nothing else, so a campaign has the same result for any number of processes.
"""

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import chain, islice
from math import inf
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from kgverify.comparison.exercise.exercise import MINIMUM, NOT_EXERCISED, Minimum, find_missing
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.files.code_identity import list_changes
from kgverify.files.writing import locked_folder, temporary_folder, write_file
from kgverify.garbage_collection import skip_existing_objects, without_garbage_collection
from kgverify.graphs.graph import GraphFile, GraphFiles
from kgverify.interrupts import Ended, OutOfTime, stop_after
from kgverify.program.atoms import Variable
from kgverify.program.limits import OURS, Dialect
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, MakePipeline, Sides, make_reference
from kgverify.runs.fan_out import DaskWorkers
from kgverify.runs.job import Source
from kgverify.runs.pool import MOST_KILLS, Calls, Here, Processes, Workers, describe_end, weigh_end
from kgverify.testing.campaigns.result import (
    NOT_SHRUNK,
    NOTHING_TRIED,
    Block,
    CampaignResult,
    Corpus,
    Counts,
    FoundDivergence,
    Identity,
    ReplayedFile,
    Sighting,
    Tally,
    Tried,
    Watch,
    describe_signature,
    is_shrunk,
    mark_shrunk,
    name_source,
)
from kgverify.testing.checking.check import (
    Batch,
    Checker,
    Suspect,
    count_agreeing,
    prepare_alone,
    prepare_batch,
)
from kgverify.testing.checking.failure import DEATH, REFUSED, Failure, Signature, fails_same_way
from kgverify.testing.checking.guard import EngineRefusal, check_made, in_replaceable_process, skip_refused
from kgverify.testing.checking.timed_work import work_in_time
from kgverify.testing.problems.decode import (
    draw_boundary_problem,
    draw_problems,
    draw_simplest,
    put_in_dialect,
    runs_alone,
)
from kgverify.testing.problems.fit import find_supports, fit_problems
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.neighbourhood import cut_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import (
    make_reproducer,
    parse_reproducer,
    render_reproducer,
    saving_bugs,
    write_reproducer,
)
from kgverify.testing.shrinking.shrink import Budget, join_problems, shrink
from kgverify.verification.judgement import describe_idle

T = TypeVar("T")

OPTIONS: Final = ("--engine", "--reference")
"""The options that name both engines."""
DIED: Final = Signature("", "", DEATH)

PATIENCE: Final = 12
"""The number of confirmed problems in a row without a new signature after which the rest of a block is not confirmed."""
MOST_REASONS: Final = 8
"""The largest number of different reasons for refusals that a block keeps."""
MOST_DEAD: Final = 3
"""The number of process-ending problems after which the rest of a block is not run: finding each takes several processes."""

_COLLECTED_EVERY: Final = 8
"""The number of blocks after which a process collects garbage: some 20 MB a block, and a few tenths of a second."""

Group: TypeAlias = tuple[int, ...]
"""The problems of one run, by their indices in a block."""


def try_block(
    work: Identity,
    number: int,
    num_problems: int,
    deaths: Collection[Group] = (),
    log: Path | None = None,
    seconds: float = inf,
) -> Block:
    """Try the first problems of a block, and confirm differing problems until nothing new is seen.

    deaths:  groups of problems whose common run ends a process. They are run in halves; a single problem that ends a
             process is a failure
    log:     a file that names the problems of the run in progress, or none while an engine is made (see `read_log`). If
             it is given, this process may end itself
    seconds: the time; the block has only the problems tried until then

    UserError for a third party's engine that cannot be made.
    """
    begun, trial = time.monotonic(), _BlockTrial(work, number, num_problems, deaths, log)
    trial.check_sides()
    with nullcontext() if log is None else in_replaceable_process():
        slow = trial.find_suspects(trial.group(range(num_problems)), TRYING * seconds)
        with suppress(OutOfTime), stop_after(seconds - (time.monotonic() - begun)):
            trial.confirm_suspects()
    deadly = trial.add_dead()
    batches, dead, num_skipped = trial.batches, {*trial.dead}, len(trial.refused)
    num_tried = num_problems - num_skipped if seconds == inf else len(trial.run | dead | {*slow})
    return Block(
        number=number,
        num_problems=num_skipped + num_tried,
        num_skipped=num_skipped,
        refusals=dict(Counter(trial.refused.values()).most_common(MOST_REASONS)),
        num_left=num_tried - len(trial.run | dead),
        num_candidates=sum(len(batch.columns.candidates.query) for batch in batches),
        num_steps=sum(len(batch.columns.steps.depth) for batch in batches),
        num_resolvents=sum(len(batch.columns.resolvents.kind) for batch in batches),
        num_differing=len(dead | {suspect.number for suspect in trial.suspects} | {each[0] for each in deadly}),
        num_confirmed=trial.num_confirmed + len(trial.dead),
        sightings=list(trial.sightings.values()),
        exercise=trial.exercise,
    )


class _BlockTrial:
    """A block in progress.

    drawn, alone:  the problems of the block, and which of them run alone, by their indices in the block
    batches:       the runs that ended, with the suspects that they showed
    dead:          the problems that each end a process
    refused:       the reasons why an engine declines problems, by their indices in the block
    num_confirmed: the suspects that were run by themselves
    exercise:      the exercise of the problems on which both sides agree
    """

    def __init__(
        self, work: Identity, number: int, num_problems: int, deaths: Collection[Group], log: Path | None
    ) -> None:
        self._work, self._number, self._deaths, self._log = work, number, deaths, log
        self._first = number * work.block_size
        self._begin(())
        self._checker = _find_checker(work.sides, work.lockstep)
        self.drawn, self.alone = _draw_block(work, self._first, num_problems)
        sides, makers, graph = work.sides, self._makers, work.graph
        self._supports = find_supports(sides, makers, None if graph is None else Source(graph).load())
        self.drawn = fit_problems(self.drawn, self._supports, work.seed, self._first)
        self.batches: list[Batch] = []
        self.suspects: list[Suspect] = []
        self.dead: list[int] = []
        self.refused: dict[int, str] = {}
        self.sightings: dict[Signature, Sighting] = {}
        self.num_confirmed, self.exercise = 0, NOT_EXERCISED

    def _begin(self, group: Sequence[int]) -> None:
        if self._log is not None:
            write_file(self._log, json.dumps(group))

    @property
    def _makers(self) -> tuple[MakePipeline, MakePipeline]:
        return self._checker.make, self._checker.reference

    def check_sides(self) -> None:
        """Raise UserError if a third party's engine cannot be made even for a simple problem."""
        (simplest,) = fit_problems([draw_simplest(self._work.dialect)], self._supports, self._work.seed)
        for side, make, option in zip(self._work.sides, self._makers, OPTIONS, strict=True):
            if side.name != COMPILED and make is not make_reference:
                check_made(make, f"{option} {side}", simplest)

    def group(self, indices: Sequence[int]) -> list[list[int]]:
        """Return the groups in which problems are run. Some problems run alone; others can share a run."""
        together = [i for i in indices if i not in self.alone]
        return [[i] for i in indices if i in self.alone] + [
            _end_with_open_query([together[member] for member in group], self.drawn, self._number)
            for group in group_problems([self.drawn[i] for i in together])
        ]

    def _prepare(self, group: Sequence[int], reference: MakePipeline = make_reference) -> Batch:
        if group[0] in self.alone:
            index = self._first + group[0]
            return prepare_alone(self._work.seed, index, group[0], self.drawn[group[0]], reference)
        return prepare_batch(group, [self.drawn[i] for i in group], reference)

    def find_suspects(self, groups: Iterable[list[int]], seconds: float) -> list[int]:
        """Run groups, until a run hangs, too many problems have ended a process, or the time is over.

        Return the problems that were too slow.
        """
        return work_in_time(_halve(groups, self._deaths), seconds, self._find_in_group)

    def _find_in_group(self, group: Sequence[int]) -> bool:
        """Run a group, and return whether others may follow."""
        if tuple(group) in self._deaths:
            self.dead += group
            return len(self.dead) < MOST_DEAD
        self._begin(group)
        batch = self._prepare(group, self._checker.reference)
        try:
            found = self._checker.find_suspects(batch)
        except EngineRefusal as refusal:
            parts = skip_refused(self._makers, self.drawn, group, str(refusal), self.refused)
            return all(self._find_in_group(part) for part in parts)
        self.batches.append(batch)
        self.suspects += found
        if group[0] not in self.alone or self.exercise is NOT_EXERCISED or find_missing(self.exercise, MINIMUM):
            self.exercise = self.exercise.plus(count_agreeing(batch, found))
        return not any(suspect.hangs for suspect in found)

    def confirm_suspects(self) -> None:
        """Run suspects by themselves, in order, until nothing new has been seen for a while."""
        patience = 0
        for suspect in sorted(self.suspects, key=lambda suspect: suspect.number):
            if patience == PATIENCE:
                return
            if (suspect.number,) in self._deaths:
                self.dead.append(suspect.number)
                continue
            self._begin([suspect.number])
            failure = self._checker.confirm(suspect)
            if failure.signature.kind == REFUSED:
                continue
            is_new = self._add_sighting(failure.signature, failure.index, failure)
            self.num_confirmed, patience = self.num_confirmed + 1, 0 if is_new else patience + 1

    def add_dead(self) -> list[Group]:
        """Count the problems that ended a process as failures. Return the groups that end a process only in a common run."""
        for i in self.dead:
            # Either engine may have ended the process, so neither runs again.
            (problem,) = self._prepare([i]).merged.problems
            failure = Failure(index=i, problem=problem, group=(problem,), signature=DIED, message="the process ended")
            self._add_sighting(DIED, i, failure)
        # The halves of these groups are already checked.
        left = self.run - {*self.dead}
        deadly = _find_smallest([each for each in self._deaths if {*each} <= left])
        for each in deadly:
            self._add_sighting(DIED, each[0], None)
        return deadly

    @property
    def run(self) -> set[int]:
        """The problems that were run."""
        return {i for batch in self.batches for i in batch.indices}

    def _add_sighting(self, signature: Signature, number: int, failure: Failure | None) -> bool:
        """Count a failure. Return whether it is the first with its signature, so that it needs a reproducer."""
        # Failures are identified by the parts that a shrink holds fixed, so that different signatures stay different.
        held, index = signature.held, self._first + number
        is_new = held not in self.sightings
        if is_new:
            text = "" if failure is None else _write_down(replace(failure, signature=held), self._work, index)
            self.sightings[held] = Sighting(signature=held, index=index, text=text)
        self.sightings[held].count += 1
        return is_new


@without_garbage_collection()
def _draw_block(work: Identity, first: int, num_problems: int) -> tuple[list[Problem], set[int]]:
    """Return problems from an index on, and the positions among them of the problems that run alone."""
    engine, seed = work.engine, work.seed
    cut = () if work.graph is None else _cut_graph(work.graph, work.dialect)
    of_seed = draw_problems(seed, max(0, first - len(cut)), work.dialect)
    drawn = list(islice(chain(cut[first:], of_seed), num_problems))
    num_cut = max(0, len(cut) - first)
    # The kernels of `fused` are compiled once for all sizes. A mode of `torch.compile` would compile each run.
    can_run = engine.mode == "fused" or not make_entry(COMPILED, mode=engine.mode).compiles
    alone = {i for i in range(num_cut, num_problems) if can_run and runs_alone(first + i)}
    for i in alone:
        drawn[i] = put_in_dialect(draw_boundary_problem(seed, first + i), work.dialect)
    if first // work.block_size % _COLLECTED_EVERY == _COLLECTED_EVERY - 1:
        # Engines and indices of earlier blocks are parts of cycles, which nothing else would free.
        gc.collect()
    skip_existing_objects()
    return drawn, alone


@lru_cache(maxsize=1)
def _cut_graph(graph: GraphFiles, dialect: Dialect) -> tuple[Problem, ...]:
    return tuple(cut_problems(Source(graph).load(), dialect))


def _end_with_open_query(group: list[int], problems: Sequence[Problem], number: int) -> list[int]:
    """Return the indices of a group. The last problem varies by block; if possible it has an open query of two variables."""
    is_open = [
        any(isinstance(a, Variable) and isinstance(b, Variable) for _, a, b in problems[i].unranked) for i in group
    ]
    last = [i for i, each in zip(group, is_open, strict=True) if each] or group
    chosen = last[number % len(last)]
    return [*(i for i in group if i != chosen), chosen]


def read_log(log: Path) -> Group | None:
    """Return the problems of the run in which a process ended: none if it was making an engine, None if no run had begun."""
    try:
        return tuple(json.loads(log.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    finally:
        log.unlink(missing_ok=True)


def _find_smallest(groups: Iterable[Group]) -> list[Group]:
    """Return the groups that contain no other group."""
    smallest: list[Group] = []
    for group in sorted(groups, key=len):
        if not any({*other} <= {*group} for other in smallest):
            smallest.append(group)
    return smallest


def _halve(groups: Iterable[list[int]], deaths: Collection[Group]) -> Iterator[list[int]]:
    """Yield groups of indices; a group that ended a process is yielded in halves."""
    for group in groups:
        if len(group) > 1 and tuple(group) in deaths:
            middle = len(group) // 2
            yield from _halve((group[:middle], group[middle:]), deaths)
        else:
            yield group


def replay_text(text: str, sides: Sides) -> Signature | None:
    """Return the signature with which a reproducer diverges on both engines; None if they agree."""
    made = parse_reproducer(text)
    failure = _find_checker(sides, made.lockstep).judge(made.problem)
    if failure is None:
        return None
    return made.signature if fails_same_way(failure.signature, made.signature) else failure.signature.held


def shrink_text(text: str, sides: Sides, budget: Budget) -> str:
    """Return the shrunk reproducer; an empty string if its problem no longer fails in the same way."""
    made = parse_reproducer(text)
    checker = _find_checker(sides, made.lockstep)
    failure = checker.judge(made.problem)
    if failure is None or not fails_same_way(failure.signature, made.signature):
        return ""
    shrunk = shrink(failure, checker, budget)
    smallest = make_reproducer(
        replace(shrunk.failure, signature=made.signature),
        sides.engine,
        reference=sides.reference,
        lockstep=made.lockstep,
        neighbour=shrunk.change,
        notes=mark_shrunk(made).notes,
    )
    return render_reproducer(smallest)


def _find_checker(sides: Sides, lockstep: bool) -> Checker:
    return Checker(*sides.find_makers(), lockstep)


def give(result: T) -> T:
    """Return the fixed result of a task that is not tried again."""
    return result


def _write_down(failure: Failure, work: Identity, index: int) -> str:
    """Return the reproducer of a failure as text.

    If the failure needs a batch, join the batch into one problem. Return an empty text if that problem does not fail
    alike.
    """
    if not failure.is_alone:
        again = map(_find_checker(work.sides, work.lockstep).judge, join_problems(failure.group))
        alike = (each for each in again if each is not None and fails_same_way(each.signature, failure.signature))
        if (joined := next(alike, None)) is None:
            return ""
        failure = replace(joined, signature=failure.signature)
    notes = (f"problem {index} of {name_source(work)}", NOT_SHRUNK)
    made = make_reproducer(failure, work.engine, reference=work.reference, lockstep=work.lockstep, notes=notes)
    return render_reproducer(made)


MOST_EXAMPLES: Final = 2000
"""The number of problems of a campaign without a budget."""

BLOCK_SIZE: Final = 2048
"""The number of problems of a block. Large runs cost less per problem, especially if each run is compiled."""

SHRINK_BUDGET: Final = Budget(seconds=20.0)
"""The budget of one shrink. All shrinks share it, or the time that is left, if the time of the campaign is limited."""
TRYING: Final = 0.8
"""The share of a block's time until which problems run; the rest is for confirming those that differ."""

MOST_LOST: Final = 100
"""The number of processes that may be killed in a row before any of them has proved anything."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The engine to test, the reference that it is compared with, the budget, and the folder for the findings.

    examples:       the number of problems, including those of earlier campaigns in the corpus; None if only the seconds
                    are limited
    seconds:        the time for trying problems; None if only the examples are limited
    jobs:           the number of processes; 1 means this process
    is_apart:       whether even a single job runs in a separate process, which an engine may end
    is_fresh:       whether to try problems again that were tried before
    accept_changed: the names of changed code whose problems are not tried again (`kgverify.files.code_identity`)
    shrink_budget:  the budget of one shrink
    most_shrunk:    the number of divergences that are shrunk; the others wait for the next campaign
    minimum:        the exercise required of the whole campaign
    dialect:        the dialect of both engines and of the problems
    graph:          a graph; the neighbourhoods of its test queries come before the problems from the seed
    files:          the contents of its files
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
    is_fresh: bool = False
    accept_changed: tuple[str, ...] = ()
    shrink_budget: Budget = SHRINK_BUDGET
    most_shrunk: int = 20
    minimum: Minimum = field(default_factory=lambda: MINIMUM)
    dialect: Dialect = OURS
    graph: GraphFiles | None = None
    files: tuple[GraphFile, ...] = ()
    scheduler: str | None = None

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
        """The budget in examples; a default if neither examples nor seconds are given."""
        return MOST_EXAMPLES if self.examples is None and self.seconds is None else self.examples


@saving_bugs()
def run_campaign(campaign: Campaign, *, watch: Watch = lambda tally: None) -> CampaignResult:
    """Replay the corpus, try problems until the budget is spent, and shrink new divergences.

    After a KeyboardInterrupt, blocks in progress finish, and the result is marked as interrupted; a second one is
    raised. UserError for an engine that cannot be made, a folder that cannot be used, or a process that died.
    """
    for side, make, option in zip(campaign.sides, campaign.sides.find_makers(), OPTIONS, strict=True):
        if side.is_own:
            # Any other engine might end this process.
            check_made(make, option, draw_simplest(campaign.dialect))
    with locked_folder(campaign.corpus, "this corpus", fix="wait until it ends, or give another folder as --corpus"):
        run = _Run(campaign, watch)
        watch(Tally("start"))
        with _make_workers(campaign) as workers:
            run.replay_corpus(workers)
            run.try_blocks(workers)
            run.keep_found()
            run.shrink_found(workers)
        return run.summarise()


class _Run:
    """A campaign in progress."""

    def __init__(self, campaign: Campaign, watch: Watch) -> None:
        self.campaign = campaign
        self.corpus = Corpus(campaign.corpus)
        self._code = campaign.sides.identify_code()
        inputs = {name: getattr(campaign, name) for name in Identity.__struct_fields__ if hasattr(campaign, name)}
        self._work_identity = Identity(**inputs, block_size=BLOCK_SIZE, code=self._code)
        self._log = self.corpus.log(
            self._work_identity, is_fresh=campaign.is_fresh, accept_changed=campaign.accept_changed
        )
        self.blocks = {block.number: block for block in self._log.records}
        self.replays: list[tuple[Path, Signature, Signature | None]] = []
        self.num_resumed = 0
        self.seconds = 0.0
        self.is_interrupted = False
        self._watch = watch

    def replay_corpus(self, workers: Workers) -> None:
        """Run every reproducer of the corpus again."""
        files = self.corpus.reproducers()

        def take(number: int, found: Signature | None) -> None:
            path, made = files[number]
            self.replays.append((path, made.signature, found))

        tasks = [(replay_text, (render_reproducer(made), self.campaign.sides)) for _, made in files]
        death: Signature | None = DIED
        self._do_all(workers, "replay", tasks, take, death)
        self.replays.sort()

    def try_blocks(self, workers: Workers) -> None:
        """Try blocks, in order, until the budget is spent. Blocks in the log are already finished."""
        campaign, blocks, started = self.campaign, self.blocks, time.monotonic()
        self.num_resumed = sum(block.num_problems for block in blocks.values())
        tried = reduce(Tried.plus, blocks.values(), NOTHING_TRIED)
        num_lost = 0

        def find_tasks() -> Iterator[tuple[int, Callable[..., Block], tuple[object, ...]]]:
            for number, num in _blocks_to_do(blocks, BLOCK_SIZE, campaign.most_examples):
                if campaign.seconds is not None and time.monotonic() - started >= campaign.seconds:
                    return
                size_of[number] = num
                yield number, *find_task(number)

        def find_task(number: int) -> tuple[Callable[..., Block], tuple[object, ...]]:
            # Another machine cannot see the log file.
            log = None if campaign.runs_here or campaign.scheduler is not None else logs / f"{number}.json"
            deadly = tuple(group for group, weight in deaths.get(number, {}).items() if weight >= MOST_KILLS)
            left = inf if campaign.seconds is None else campaign.seconds - (time.monotonic() - started)
            return try_block, (self._work_identity, number, size_of[number], deadly, log, left)

        def retry(number: int, exit_code: int) -> tuple[Callable[..., Block], tuple[object, ...]]:
            """Return the task of a block whose process ended: the same task without the groups that certainly end it."""
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
            nonlocal tried, num_lost
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
            if block.num_problems == size_of[number]:
                self._log.add(block)
            # A partial block was tried again as a whole.
            tried = reduce(Tried.plus, blocks.values(), NOTHING_TRIED) if is_partial else tried.plus(block)

        def report() -> None:
            self.seconds = time.monotonic() - started
            num = campaign.most_examples or 0
            self._watch(Tally("try", tried.num_problems, num, self.seconds, self.is_interrupted, tried))

        size_of: dict[int, int] = {}
        deaths: dict[int, Counter[Group]] = {}
        with temporary_folder("kgverify-fuzz-") as logs:
            self._work(workers, find_tasks(), take, report, retry)

    def keep_found(self) -> None:
        """Write a reproducer of each divergence that the corpus lacks."""
        judged = {path: found == signature for path, signature, found in self.replays}
        still = {made.signature for path, made in self.corpus.reproducers() if judged.get(path, True)}
        for each in self._sum_up().sightings:
            if each.text and each.signature not in still:
                self.corpus.add(parse_reproducer(each.text))

    def _sum_up(self) -> Tried:
        return reduce(Tried.plus, [block for _, block in sorted(self.blocks.items())], NOTHING_TRIED)

    def shrink_found(self, workers: Workers) -> None:
        """Shrink the reproducers that are not shrunk yet, unless the campaign was interrupted."""
        changed = {path for path, signature, found in self.replays if found != signature}
        waiting = [
            (path, made) for path, made in self.corpus.reproducers() if not is_shrunk(made) and path not in changed
        ][: self.campaign.most_shrunk]
        if self.is_interrupted:
            return
        budget = self.campaign.shrink_budget
        if self.campaign.seconds is not None and waiting:
            left = max(budget.seconds, self.campaign.seconds - self.seconds)
            shared = left * min(workers.count(), len(waiting)) / len(waiting)
            budget = budget._replace(seconds=min(budget.seconds, shared))
        settings = self.campaign.sides, budget

        def take(number: int, text: str) -> None:
            path, made = waiting[number]
            write_reproducer(parse_reproducer(text) if text else mark_shrunk(made), path)

        tasks = [(shrink_text, (render_reproducer(made), *settings)) for _, made in waiting]
        self._do_all(workers, "shrink", tasks, take, "")

    def _do_all(
        self,
        workers: Workers,
        phase: str,
        tasks: Sequence[tuple[Callable[..., T], tuple[object, ...]]],
        take: Callable[[int, T], None],
        after_death: T,
    ) -> None:
        """Do all the tasks of a phase, and pass on the number and the result of each task when it ends.

        after_death: the result of a task that ended its process
        """
        if not tasks:
            return
        started, num_done = time.monotonic(), 0

        def report() -> None:
            self._watch(Tally(phase, num_done, len(tasks), time.monotonic() - started, self.is_interrupted))

        def count(number: int, result: T) -> None:
            nonlocal num_done
            num_done += 1
            take(number, result)

        def retry(number: int, exit_code: int) -> tuple[Callable[..., T], tuple[object, ...]]:
            ended[number] += weigh_end(exit_code)
            return tasks[number] if ended[number] < MOST_KILLS else (give, (after_death,))

        ended: Counter[int] = Counter()
        self._work(workers, ((number, *task) for number, task in enumerate(tasks)), count, report, retry)

    def _work(
        self,
        workers: Workers,
        tasks: Iterator[tuple[int, Callable[..., T], tuple[object, ...]]],
        take: Callable[[int, T], None],
        report: Callable[[], None],
        retry: Callable[[int, int], tuple[Callable[..., T], tuple[object, ...]]],
    ) -> None:
        """Do numbered tasks, pass on each result, and report the progress.

        retry: returns the replacement of a task whose process ended, given the exit code

        A Ctrl-C cancels the tasks that have not begun; a second one, and another signal, is raised.
        """
        report()
        with Calls(workers, retry) as calls:
            while True:
                try:
                    most = 2 * workers.count() if self.campaign.scheduler is not None else workers.count()
                    while not self.is_interrupted and len(calls.running) < most and (task := next(tasks, None)):
                        number, function, arguments = task
                        calls.begin(number, function, *arguments)
                    if not calls.running:
                        break
                    if ended := calls.take(0.5):
                        take(*ended)
                    report()
                except KeyboardInterrupt as error:
                    if self.is_interrupted or isinstance(error, Ended):
                        raise
                    self.is_interrupted = True
                    calls.cancel()
                    report()
        report()

    def _died(self, exit_code: int, when: str) -> UserError:
        num_checked = sum(block.num_problems for block in self.blocks.values())
        return UserError(
            f"a process died {when} ({describe_end(exit_code)}); problems checked until then: {num_checked:,}",
            where=str(self.campaign.sides),
            fix="find what ends it, and run again: finished work is kept",
        )

    def summarise(self) -> CampaignResult:
        """Return the result of all blocks and of the corpus, both as first replayed and as it is now."""
        campaign, total = self.campaign, self._sum_up()
        divergences = self._list_divergences(total)
        return CampaignResult(
            **{name: getattr(total, name) for name in Counts.__struct_fields__},
            engine=str(campaign.engine),
            reference=str(campaign.reference),
            stopped=self._describe_stop(total),
            **{name: getattr(campaign, name) for name in ("dialect", "seed", "graph", "lockstep")},
            is_interrupted=self.is_interrupted,
            num_resumed=self.num_resumed,
            seconds=self.seconds,
            problems_per_second=(total.num_problems - self.num_resumed) / self.seconds if self.seconds else 0.0,
            stages=total.stages,
            classes=total.classes,
            divergences=divergences,
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

    def _describe_stop(self, total: Tried) -> str:
        campaign, num = self.campaign, total.num_problems - total.num_left
        most = campaign.most_examples
        if campaign.seconds is None or (most is not None and num >= most):
            return ""
        of = "" if most is None else f" of {most:,}"
        return f"after {self.seconds:.0f} of {campaign.seconds:g} s: {num:,}{of} problems"

    def _list_divergences(self, total: Tried) -> list[FoundDivergence]:
        """Return each divergence of the problems or of the corpus, with its reproducer."""
        seen_in = {each.signature: each for each in total.sightings}
        gone = {path for path, signature, found in self.replays if found != signature}
        made_of = dict(self.corpus.reproducers())
        # A file that still shows the divergence in its name comes before a file that now shows another.
        path_of = {found: path for path, _, found in reversed(self.replays) if found is not None}
        path_of |= {made.signature: path for path, made in reversed(made_of.items()) if path not in gone}
        divergences = []
        for signature in dict.fromkeys([*seen_in, *(found for _, _, found in self.replays if found)]):
            sighting = seen_in.get(signature, Sighting(signature=signature, index=-1))
            path = path_of.get(signature)
            each = describe_signature(signature, path, None if path is None else made_of[path])
            each.num_problems, each.first = sighting.count, sighting.index
            divergences.append(each)
        return divergences


def _make_workers(campaign: Campaign) -> Workers:
    if campaign.scheduler is not None:
        return DaskWorkers(campaign.scheduler, campaign.sides.foreign)
    return Here() if campaign.runs_here else Processes(campaign.jobs)


def _blocks_to_do(done: dict[int, Block], size: int, most: int | None) -> Iterator[tuple[int, int]]:
    """Yield the number of each unfinished block, and how many problems of it to try."""
    number = 0
    while most is None or number * size < most:
        num_problems = size if most is None else min(size, most - number * size)
        if number not in done or done[number].num_problems < num_problems:
            yield number, num_problems
        number += 1
