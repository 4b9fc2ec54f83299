"""Campaigns: try generated problems on all cores until a budget is spent, and keep each divergence once.

A block is a fixed stretch of a seed's sequence of problems, which one process tries with one thread. Its result depends
on nothing else, so that a campaign's result is the same for any number of processes.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import msgspec

from kgverify.comparison.exercise.exercise import MINIMUM, NOT_EXERCISED, Minimum, find_missing
from kgverify.engines.table import COMPILED, make_entry
from kgverify.errors import UserError
from kgverify.files.code_identity import list_changes
from kgverify.files.locking import locked_folder
from kgverify.files.writing import temporary_folder, write_file
from kgverify.garbage_collection import skip_existing_objects, without_garbage_collection
from kgverify.program.atoms import Variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.runs.dask_workers import DaskWorkers
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, MakePipeline, Sides, make_reference
from kgverify.runs.pool import MOST_KILLS, Calls, Here, Processes, Workers, describe_end, weigh_end
from kgverify.testing.campaigns.result import (
    NOT_SHRUNK,
    Block,
    CampaignResult,
    Corpus,
    Counts,
    FoundDivergence,
    Identity,
    KnownDivergence,
    KnownJudgement,
    ReplayedFile,
    Sighting,
    Tally,
    Watch,
    is_shrunk,
    mark_shrunk,
    name_source,
)
from kgverify.testing.checking.check import (
    Batch,
    Suspect,
    confirm,
    count_agreeing,
    find_suspects,
    judge,
    prepare_alone,
    prepare_batch,
)
from kgverify.testing.checking.failure import DEATH, Failure, Signature, fails_same_way
from kgverify.testing.checking.guard import explain, find_supported, in_replaceable_process, make_once
from kgverify.testing.problems.decode import (
    ALONE_ON_DEVICE_EVERY,
    SIZE,
    check_scope,
    decode_problem,
    draw_boundary_problem,
    draw_device_problem,
    draw_kernel_problem,
    draw_problems,
    list_scope,
    put_in_dialect,
    runs_alone,
)
from kgverify.testing.problems.features import ALL_FEATURES, count_features
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import (
    Reproducer,
    make_reproducer,
    parse_reproducer,
    render_reproducer,
    saving_bugs,
    write_reproducer,
)
from kgverify.testing.shrinking.shrink import Budget, join_problems, shrink
from kgverify.verification.evidence import describe_idle

T = TypeVar("T")

PATIENCE: Final = 12
"""Confirmed problems in a row without a new signature after which the rest of a block is not confirmed."""
MOST_DEAD: Final = 3
"""Problems that each end a process after which the rest of a block is not run: each takes several processes to find."""
MEASURED_EVERY: Final = 64
"""Features are counted in the first block and in every 64th: counting takes as long as comparing."""

Group: TypeAlias = tuple[int, ...]
"""The problems of one run, by their indices in a block."""


@without_garbage_collection()
def check_made(make: MakePipeline, where: str = "engine", dialect: Dialect = OURS) -> None:
    """Raise UserError if an engine cannot be made even for the simplest problem; that would look like a crash."""
    with suppress(NotImplementedError):
        # A policy that the engine does not support is no mistake.
        simplest = put_in_dialect(decode_problem(bytes(SIZE)), dialect)
        make_once(explain(make, where, allows_unsupported=True), simplest)


def try_block(
    sides: Sides,
    seed: int,
    number: int,
    size: int,
    num_problems: int,
    lockstep: bool,
    deaths: tuple[Group, ...] = (),
    log: Path | None = None,
    dialect: Dialect = OURS,
    scope: str | None = None,
) -> Block:
    """Try the first problems of a block, and confirm those that differ until nothing new is seen.

    deaths: problems whose common run ends a process; they are run in halves, and one alone is a failure
    log:    a file that names the problems of the run in progress, none while an engine is made (see `read_log`); with it,
            this process may end itself
    scope:  the problems are those of this scope, and not of the seed's sequence

    UserError for a third party's engine that cannot be made.
    """
    if log is not None:
        write_file(log, "[]")
    engine = sides.engine
    make, reference = sides.find_makers()
    first, source = number * size, name_source(seed, scope)
    drawn, alone = _draw_block(engine, seed, first, num_problems, dialect, scope)
    indices = list(range(num_problems))
    for side, each, where in ((engine, make, "--engine"), (sides.reference, reference, "--reference")):
        if side.name != COMPILED and each is not make_reference:
            check_made(each, f"{where} {side}", dialect)
            supported = find_supported(each, drawn)
            indices = [i for i in indices if i in supported]
    groups = [[i] for i in indices if i in alone]
    together = [i for i in indices if i not in alone]
    groups += [
        _end_with_open_query([together[member] for member in group], drawn, number)
        for group in group_problems([drawn[i] for i in together])
    ]
    batches: list[Batch] = []
    suspects: list[Suspect] = []
    dead: list[int] = []
    exercise = NOT_EXERCISED
    with nullcontext() if log is None else in_replaceable_process():
        for group in _halve(groups, deaths):
            if len(dead) == MOST_DEAD:
                break
            if tuple(group) in deaths:
                dead += group
                continue
            if log is not None:
                write_file(log, json.dumps(group))
            is_alone = group[0] in alone
            batch = (
                prepare_alone(seed, first + group[0], group[0], drawn[group[0]], reference)
                if is_alone
                else prepare_batch(group, [drawn[i] for i in group], reference)
            )
            batches.append(batch)
            found = find_suspects(batch, make, lockstep=lockstep)
            suspects += found
            if not is_alone or exercise is NOT_EXERCISED or find_missing(exercise, MINIMUM):
                exercise = exercise.plus(count_agreeing(batch, found))
            if any(suspect.hangs for suspect in suspects):
                break
        suspects.sort(key=lambda suspect: suspect.number)
        sightings: dict[Signature, Sighting] = {}
        num_confirmed = patience = 0
        for suspect in suspects:
            if patience == PATIENCE:
                break
            if (suspect.number,) in deaths:
                dead.append(suspect.number)
                continue
            if log is not None:
                write_file(log, json.dumps([suspect.number]))
            failure = confirm(suspect, make, lockstep=lockstep)
            num_confirmed, patience = num_confirmed + 1, patience + 1
            if _add_sighting(sightings, failure, first, source, sides, lockstep):
                patience = 0
    for i in dead:
        # Either engine may have ended the process, so that neither runs again.
        batch = prepare_alone(seed, first + i, i, drawn[i]) if i in alone else prepare_batch([i], [drawn[i]])
        problem = batch.merged.problems[0]
        signature = Signature("", "", DEATH)
        failure = Failure(index=i, problem=problem, group=(problem,), signature=signature, message="the process ended")
        _add_sighting(sightings, failure, first, source, sides, lockstep)
    run = {i for batch in batches for i in batch.indices}
    only_together = _find_smallest([each for each in deaths if {*each} <= run - {*dead}])
    for deadly in only_together:
        # Its halves were checked, and only their common run ends a process.
        signature = Signature("", "", DEATH)
        sighting = sightings.setdefault(signature, Sighting(signature=signature, index=first + deadly[0]))
        sighting.count += 1
    num_tried = len(run | {*dead})
    block = Block(
        number=number,
        num_problems=num_problems,
        num_skipped=num_problems - len(indices),
        num_left=len(indices) - num_tried,
        num_candidates=sum(len(batch.columns.candidates.query) for batch in batches),
        num_steps=sum(len(batch.columns.steps.depth) for batch in batches),
        num_resolvents=sum(len(batch.columns.resolvents.kind) for batch in batches),
        num_differing=len({*dead} | {suspect.number for suspect in suspects} | {each[0] for each in only_together}),
        num_confirmed=num_confirmed + len(dead),
        sightings=list(sightings.values()),
        exercise=exercise,
    )
    # Features are read from stages in the order of the default dialect; a scope has no others to ask for.
    if number % MEASURED_EVERY == 0 and reference is make_reference and dialect == OURS and scope is None:
        block.num_measured = sum(len(batch.indices) for batch in batches)
        block.features = count_features(batches)
    return block


@without_garbage_collection()
def _draw_block(
    engine: EngineSpec, seed: int, first: int, num_problems: int, dialect: Dialect, scope: str | None
) -> tuple[list[Problem], set[int]]:
    """Return problems for an engine, from an index on, and which of them run alone, by their numbers among these."""
    if scope is not None:
        return list(list_scope(scope, dialect)[first : first + num_problems]), set()
    drawn = list(islice(draw_problems(seed, first, dialect), num_problems))
    if engine.mode == "fused" and engine.device == "cpu":
        # Triton's interpreter takes as long as the work, so tiny problems exercise the kernels most.
        alone = set(range(num_problems))
        drawn = [draw_kernel_problem(seed, first + i) for i in alone]
    elif engine.mode == "fused":
        # One compilation of the kernels serves all sizes.
        every = ALONE_ON_DEVICE_EVERY
        alone = {i for i in range(num_problems) if runs_alone(first + i, every)}
        for i in alone:
            drawn[i] = draw_device_problem(seed, (first + i) // every)
    else:
        # A mode of `torch.compile` would compile each run.
        is_free = not make_entry(COMPILED, mode=engine.mode).compiles
        alone = {i for i in range(num_problems) if is_free and runs_alone(first + i)}
        for i in alone:
            drawn[i] = put_in_dialect(draw_boundary_problem(seed, first + i), dialect)
    skip_existing_objects()
    return drawn, alone


def _end_with_open_query(group: list[int], problems: Sequence[Problem], number: int) -> list[int]:
    """Return the indices of a group with another problem last for each block, if possible one with two variables."""
    is_open = [
        any(isinstance(a, Variable) and isinstance(b, Variable) for _, a, b in problems[i].unranked) for i in group
    ]
    last = [i for i, each in zip(group, is_open, strict=True) if each] or group
    chosen = last[number % len(last)]
    return [*(i for i in group if i != chosen), chosen]


def read_log(log: Path) -> Group | None:
    """Return the problems of the run in which a process ended; none if it was making an engine, None before it began."""
    try:
        return tuple(json.loads(log.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
    finally:
        log.unlink(missing_ok=True)


def _find_smallest(groups: Iterable[Group]) -> list[Group]:
    """Return the groups in which no other one is contained."""
    smallest: list[Group] = []
    for group in sorted(groups, key=len):
        if not any({*other} <= {*group} for other in smallest):
            smallest.append(group)
    return smallest


def _halve(groups: Iterable[list[int]], deaths: Collection[Group]) -> Iterator[list[int]]:
    """Yield groups of indices, in halves where a whole one ended a process."""
    for group in groups:
        if len(group) > 1 and tuple(group) in deaths:
            middle = len(group) // 2
            yield from _halve((group[:middle], group[middle:]), deaths)
        else:
            yield group


def _add_sighting(
    sightings: dict[Signature, Sighting], failure: Failure, first: int, source: str, sides: Sides, lockstep: bool
) -> bool:
    """Count a failure; return whether it is the first with its signature, and so has a reproducer made."""
    # Identified by what a shrink holds fixed, so that different signatures stay different.
    failure = replace(failure, signature=failure.signature.held)
    is_new = failure.signature not in sightings
    if is_new:
        index = first + failure.index
        made = _make_reproducer(failure, sides, lockstep)
        notes = (f"problem {index} of {source}", NOT_SHRUNK)
        text = render_reproducer(replace(made, notes=notes)) if made else ""
        sightings[failure.signature] = Sighting(signature=failure.signature, index=index, text=text)
    sightings[failure.signature].count += 1
    return is_new


def replay_text(text: str, sides: Sides) -> Signature | None:
    """Return the signature with which a reproducer diverges on both engines; None if they agree."""
    made = parse_reproducer(text)
    make, reference = sides.find_makers()
    failure = judge(made.problem, make, reference=reference, lockstep=made.lockstep)
    if failure is None:
        return None
    return made.signature if fails_same_way(failure.signature, made.signature) else failure.signature.held


def shrink_text(text: str, sides: Sides, budget: Budget) -> str:
    """Return the shrunk reproducer; an empty string if its problem no longer fails in the same way."""
    made = parse_reproducer(text)
    make, reference = sides.find_makers()
    failure = judge(made.problem, make, reference=reference, lockstep=made.lockstep)
    if failure is None or not fails_same_way(failure.signature, made.signature):
        return ""
    shrunk = shrink(failure, make, budget, reference=reference, lockstep=made.lockstep)
    smallest = make_reproducer(
        shrunk.failure,
        sides.engine,
        reference=sides.reference,
        lockstep=made.lockstep,
        neighbour=shrunk.change,
        notes=mark_shrunk(made).notes,
    )
    return render_reproducer(replace(smallest, signature=made.signature))


def give(result: T) -> T:
    """Return the result of a task that is not tried again."""
    return result


def _make_reproducer(failure: Failure, sides: Sides, lockstep: bool) -> Reproducer | None:
    """Return the reproducer of a failure; for one that needs a batch, of the batch as one problem if that fails too."""
    if failure.is_alone:
        return make_reproducer(failure, sides.engine, reference=sides.reference, lockstep=lockstep)
    make, reference = sides.find_makers()
    for joined in join_problems(failure.group):
        again = judge(joined, make, reference=reference, lockstep=lockstep)
        if again is not None and fails_same_way(again.signature, failure.signature):
            found = replace(again, signature=failure.signature)
            return make_reproducer(found, sides.engine, reference=sides.reference, lockstep=lockstep)
    return None


MOST_EXAMPLES: Final = 2000
"""The number of problems of a campaign without a budget."""

BLOCK_SIZE: Final = 2048
"""Problems of a block. A large run costs less for each, especially where a run is compiled."""

SHRINK_BUDGET: Final = Budget(seconds=20.0)
"""The budget of one shrink."""

MOST_LOST: Final = 100
"""Processes that may be killed one after the other before any of them has proved anything."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """The engine to test, the one that it is compared with, the budget, and the folder for what is found.

    examples:       problems, those of earlier campaigns in the corpus included; None for no limit but the seconds
    seconds:        for trying problems; None for no limit but the examples
    jobs:           processes; 1 works in this process
    is_apart:       whether 1, too, is a process of its own, which an engine may end
    is_fresh:       whether to ignore which problems were tried before
    accept_changed: the names of changed code whose problems are not tried again (`kgverify.files.code_identity`)
    shrink_budget:  of one shrink
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
    shrink_budget: Budget = SHRINK_BUDGET
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
        with _make_workers(campaign) as workers:
            run.replay_corpus(workers)
            run.try_blocks(workers)
            run.keep_found()
            run.shrink_found(workers)
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

    def replay_corpus(self, workers: Workers) -> None:
        """Run every reproducer of the corpus again."""
        files = self.corpus.reproducers()

        def take(number: int, found: Signature | None) -> None:
            path, made = files[number]
            self.replays.append((path, made.signature, found))

        tasks: list[tuple[Callable[..., Signature | None], tuple[object, ...]]] = [
            (replay_text, (render_reproducer(made), self.campaign.sides)) for _, made in files
        ]
        death: Signature | None = Signature("", "", DEATH)
        self._do_all(workers, "replay", tasks, take, death)
        self.replays.sort()

    def try_blocks(self, workers: Workers) -> None:
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
            self._work(workers, find_tasks(), take, report, retry)

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

    def shrink_found(self, workers: Workers) -> None:
        """Shrink the reproducers that have not been shrunk, unless the campaign was interrupted."""
        changed = {path for path, signature, found in self.replays if found != signature}
        waiting = [
            (path, made) for path, made in self.corpus.reproducers() if not is_shrunk(made) and path not in changed
        ][: self.campaign.most_shrunk]
        if self.is_interrupted:
            return
        settings = self.campaign.sides, self.campaign.shrink_budget

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
        self._work(workers, ((number, *task) for number, task in enumerate(tasks)), take, report, retry)

    def _work(
        self,
        workers: Workers,
        tasks: Iterator[tuple[int, Callable[..., T], tuple[object, ...]]],
        take: Callable[[int, T], None],
        report: Callable[[Iterable[int]], None],
        retry: Callable[[int, int], tuple[Callable[..., T], tuple[object, ...]]],
    ) -> None:
        """Do numbered tasks, hand over each result, and report which numbers are being worked on.

        retry: returns what to do instead of a task whose process ended, with its exit code

        A KeyboardInterrupt cancels those not begun; a second one is raised.
        """
        report(())
        with Calls(workers, retry) as calls:
            while True:
                try:
                    most = 2 * workers.count() if self.campaign.scheduler is not None else workers.count()
                    while not self.is_interrupted and len(calls.running) < most and (task := next(tasks, None)):
                        number, function, arguments = task
                        report([*calls.running, number])
                        calls.begin(number, function, *arguments)
                    if not calls.running:
                        break
                    if ended := calls.take(0.5):
                        take(*ended)
                    report(calls.running)
                except KeyboardInterrupt:
                    if self.is_interrupted:
                        raise
                    self.is_interrupted = True
                    calls.cancel()
                    report(calls.running)
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
        for block in blocks:
            for sighting in block.sightings:
                counts[sighting.signature] += sighting.count
                first.setdefault(sighting.signature, sighting.index)
        tally, totals = reduce(Tally.add, blocks, Tally("try")), reduce(Counts.plus, blocks, Counts())
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
        sums = msgspec.structs.asdict(totals) | {
            "features": {name: totals.features.get(name, 0) for name in ALL_FEATURES}
        }
        return CampaignResult(
            **sums,
            engine=str(campaign.engine),
            reference=str(campaign.reference),
            dialect=campaign.dialect,
            seed=campaign.seed,
            scope=campaign.scope,
            lockstep=campaign.lockstep,
            is_interrupted=self.is_interrupted,
            num_resumed=self.num_resumed,
            seconds=self.seconds,
            problems_per_second=(totals.num_problems - self.num_resumed) / self.seconds if self.seconds else 0.0,
            stages=dict(tally.stages),
            classes=dict(tally.classes),
            divergences=divergences,
            known=[
                KnownJudgement(
                    signature=entry.signature,
                    issue=entry.issue,
                    reason=entry.reason,
                    expires=entry.expires,
                    status=entry.judge(seen, replayed, totals.num_problems, today),
                    num_problems=seen.get(entry.signature, 0),
                )
                for entry in campaign.known
            ],
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
