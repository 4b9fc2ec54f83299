"""Small-scope certificates: an engine compared with the reference on every program of a scope.

A block of programs is the work of one process and depends on nothing else. So a certificate is the same, except for
its seconds, for any number of processes.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Verdict
from kgverify.engines.load_engine import pass_on
from kgverify.engines.sizes import Sizes
from kgverify.errors import UserError, count_of
from kgverify.escaping import make_visible
from kgverify.files.locking import lock_beside
from kgverify.garbage_collection import without_garbage_collection
from kgverify.program.limits import NUMBERS, Limits
from kgverify.program.outcomes import Outcome
from kgverify.progress import silent_phase
from kgverify.runs.delta_debugging import halve
from kgverify.runs.engine_makers import EAGER, PLAIN, EngineSpec, MakePipeline, Sides, make_reference
from kgverify.runs.ledger import FIX, Ledger, WorkIdentity
from kgverify.runs.run import Pipeline, build_trace
from kgverify.runs.separate_workers import RepeatingWorkers
from kgverify.testing.checking.check import check_problems
from kgverify.testing.exhaustive.scope import Count, Scope, ScopedProgram, enumerate_programs
from kgverify.testing.problems.merge import Merged, merge
from kgverify.testing.problems.problem import Problem
from kgverify.testing.reproducers.text_format import saving_bugs
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.lockstep import follow_near_ties

PROGRAMS_AT_ONCE: Final = 1000
"""Programs of a block, which share a run under each setting of limits. Larger blocks are hardly faster."""

_FORMAT: Final = 1

MOST_SHOWN: Final = 10
"""Findings of a block that are described; all are counted."""

_SLOTS: Final = 4096

Makers: TypeAlias = tuple[MakePipeline, MakePipeline]
"""The makers of the engine under test, and of the reference."""

ShowProgress: TypeAlias = Callable[[int], None]
"""A callback with the number of problems done since the last call, at first those of earlier runs."""


class Finding(msgspec.Struct, frozen=True):
    """A problem on which the engine differs from the reference.

    program:   its index among the scope's programs
    limits:    the setting
    signature: of its first divergence
    problem:   as text
    """

    program: int
    limits: dict[str, int | bool]
    signature: str
    problem: str


class Block(msgspec.Struct, frozen=True):
    """The result of a block of programs; except for the seconds, it depends on nothing else."""

    block: int
    programs: int
    problems: int
    divergent: int
    findings: tuple[Finding, ...]
    seconds: float
    proved: int = 0


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing an engine on a scope.

    expected:  what the scope contains, counted by Burnside's lemma
    compared:  programs enumerated and problems compared; problems of a run in which the engine failed do not count
    divergent: problems that differ, and one for each run that failed; `findings` describes the first of each block
    seconds:   of all processes together, earlier runs included
    engine:    the engine under test; and the reference, if it is not kgverify's own
    proved:    problems that the reference proves
    resumed:   of the problems, those that an earlier run compared
    accepted:  the changes of code since then that the user accepted, in words
    """

    scope: str
    description: str
    digest: str
    engine: dict[str, str]
    expected: Count
    compared: Count
    limits: int
    divergent: int
    findings: tuple[Finding, ...]
    seconds: float
    proved: int = 0
    resumed: int = 0
    accepted: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True if every problem of the scope was compared, as counted by Burnside's lemma."""
        return self.compared == self.expected

    @property
    def is_proof(self) -> bool:
        """True if no divergence exists in the scope, and something is proved in it."""
        return self.is_complete and not self.divergent and self.proved > 0

    def __str__(self) -> str:
        """Return the certificate as text."""
        rate = self.compared.problems / self.seconds if self.seconds else 0.0
        lines = [
            f"scope {self.scope}: {self.description}",
            f"{count_of(self.compared.programs, 'program')}, {count_of(self.compared.problems, 'problem')} compared"
            f" (Burnside: {self.expected.programs:,} and {self.expected.problems:,})"
            f" in {self.seconds:,.0f} s, {rate:,.0f} a second",
            self.statement,
            *([f"{count_of(self.resumed, 'problem')} compared by an earlier run"] if self.resumed else []),
            *(f"although code changed since then, as accepted: {each}" for each in self.accepted),
        ]
        for finding in self.findings[:MOST_SHOWN]:
            lines += ["", f"program {finding.program}: {finding.signature}", *finding.problem.split("\n")]
        return "\n".join(map(make_visible, lines))

    @property
    def statement(self) -> str:
        """The conclusion in a sentence."""
        missing = self.expected.problems - self.compared.problems
        left = f"; {missing:,} problems have not been compared" if not self.is_complete else ""
        if self.divergent:
            return f"{self.divergent:,} {'problem diverges' if self.divergent == 1 else 'problems diverge'}{left}"
        if not self.proved:
            return f"inconclusive: too little was exercised: the reference proves nothing{left}"
        return f"no divergence found{left}" if left else "no divergence exists in this scope"


class _Identity(WorkIdentity, frozen=True, kw_only=True):
    """The first line of a state file."""

    format: int
    scope: str
    block_size: int = msgspec.field(name="programs_at_once")
    engine: dict[str, str]


_Task: TypeAlias = tuple[int, int, Sequence[ScopedProgram]]
"""The number of a block that is not finished, the index of its first program, and its programs."""


@saving_bugs()
def certify(
    scope: Scope,
    engine: EngineSpec = EAGER,
    *,
    reference: EngineSpec = PLAIN,
    state: str | Path | None = None,
    accept_changed: Collection[str] = (),
    progress: ShowProgress = lambda num_problems: None,
    programs_at_once: int = PROGRAMS_AT_ONCE,
    jobs: int = 1,
    on_interrupt: Callable[[], None] = lambda: None,
) -> Certificate:
    """Compare an engine (by default the eager evaluator) with the reference on every problem of a scope.

    Everything recorded is compared, free-running, with the policy `shortest`, without corruptions and ranks.

    state: a file with a line for each finished block, from which an interrupted run resumes
    accept_changed: the names of changed code whose blocks are resumed nevertheless
    jobs:  processes; 1 works in this process

    On KeyboardInterrupt `on_interrupt` is called, blocks in progress are finished and saved, and it is raised; a second
    one is raised at once.

    UserError for a file that is not a state file or has another scope, engine or block size, and for a process that died.
    """
    with nullcontext() if state is None else lock_beside(Path(state), "this file"):
        sides = Sides(engine, reference)
        make, make_expected = sides.find_makers()
        described = _describe_engine(scope, make)
        if make_expected is not make_reference:
            described |= {f"reference {key}": value for key, value in _describe_engine(scope, make_expected).items()}
        ledger = None
        if state is not None:
            identity = _Identity(
                format=_FORMAT,
                scope=scope.digest,
                block_size=programs_at_once,
                engine=described,
                code=sides.identify_code(),
            )
            title = "state of a certificate"
            ledger = Ledger(Path(state), identity, Block, title=title, accept_changed=accept_changed)
        blocks = {block.block: block for block in ledger.records} if ledger else {}
        num_resumed = sum(block.problems for block in blocks.values())
        if blocks:
            progress(num_resumed)
        tasks = _blocks_to_do(scope, programs_at_once, blocks, str(state))
        # No more processes than there are unfinished blocks.
        jobs = min(jobs, max(1, -(-scope.count.programs // programs_at_once) - len(blocks)))
        finished: Iterator[Block]
        if jobs == 1:
            finished = (certify_block(scope, *task, sides, progress) for task in tasks)
        else:
            finished = _share(scope, sides, tasks, progress, jobs, None if ledger is None else on_interrupt)
        for block in finished:
            blocks[block.block] = block
            if ledger:
                ledger.add(block)
        done = [block for _, block in sorted(blocks.items())]
        return Certificate(
            scope=scope.name,
            description=str(scope),
            digest=scope.digest,
            engine=described,
            expected=scope.count,
            compared=Count(sum(block.programs for block in done), sum(block.problems for block in done)),
            limits=len(scope.limits),
            divergent=sum(block.divergent for block in done),
            findings=tuple(finding for block in done for finding in block.findings),
            seconds=sum(block.seconds for block in done),
            proved=sum(block.proved for block in done),
            resumed=num_resumed,
            accepted=ledger.accepted if ledger else (),
        )


def _blocks_to_do(scope: Scope, size: int, done: dict[int, Block], where: str) -> Iterator[_Task]:
    """Yield the unfinished blocks, in order. UserError if a finished one has another number of programs."""
    # Blocks that are added meanwhile are not checked.
    num_programs = {number: block.programs for number, block in done.items()}
    every = enumerate_programs(scope)
    for number, programs in enumerate(iter(lambda: list(islice(every, size)), [])):
        if number not in num_programs:
            yield number, number * size, programs
        elif num_programs[number] != len(programs):
            message = f"block {number} has {count_of(num_programs[number], 'program')}, not {len(programs)}"
            raise UserError(message, where=where, fix=FIX)


def _share(
    scope: Scope,
    sides: Sides,
    tasks: Iterator[_Task],
    progress: ShowProgress,
    jobs: int,
    on_interrupt: Callable[[], None] | None,
) -> Iterator[Block]:
    """Yield the results of several processes as blocks finish.

    on_interrupt: called at a KeyboardInterrupt, which then waits for the blocks in progress; None raises it at once
    """
    running: set[Future[Block]] = set()
    interrupt: KeyboardInterrupt | None = None
    with RepeatingWorkers(jobs) as executor:
        while True:
            try:
                # No more than there are processes: each begins at once, and an interrupt waits for it.
                while interrupt is None and len(running) < jobs and (task := next(tasks, None)) is not None:
                    running.add(executor.submit(certify_block, scope, *task, sides))
                if not running:
                    break
                finished, running = wait(running, return_when=FIRST_COMPLETED)
            except KeyboardInterrupt as pressed:
                if interrupt is not None or on_interrupt is None:
                    raise
                interrupt, running = pressed, {future for future in running if not future.cancel()}
                on_interrupt()
                continue
            for block in sorted((future.result() for future in finished), key=lambda block: block.block):
                progress(block.problems)
                yield block
        if interrupt is not None:
            raise interrupt


def certify_block(
    scope: Scope,
    number: int,
    first: int,
    programs: Sequence[ScopedProgram],
    sides: Sides,
    progress: ShowProgress = lambda num_problems: None,
) -> Block:
    """Compare a block of programs, merged into one, under all settings of limits.

    first: the index in the scope of the block's first program
    """
    begin, makers = time.perf_counter(), sides.find_makers()
    findings: list[Finding] = []
    problems = divergent = proved = 0
    with without_garbage_collection():
        merged = merge([program.problem(scope.limits[0]) for program in programs], makers[1])
        num_queries = len(merged.unranked.query)
        for limits in scope.limits:
            found = _find_differing(merged, limits, makers[0])
            if found is None:
                indices = [_find_undecided(programs, limits, makers)]
                divergent += 1
            else:
                differing, num_proved = found
                proved += num_proved
                indices = sorted({int(merged.owner[merged.unranked.query[row]]) for row in differing})
                divergent += len(differing)
                problems += num_queries
            shown = indices[: MOST_SHOWN - len(findings)]
            findings += [_describe(first + i, programs[i].problem(limits), makers) for i in shown]
            progress(num_queries)
    seconds = round(time.perf_counter() - begin, 3)
    return Block(number, len(programs), problems, divergent, tuple(findings), seconds, proved)


def _find_differing(merged: Merged, limits: Limits, make: MakePipeline) -> tuple[list[int], int] | None:
    """Return the rows of the candidates that differ, and how many the reference proves.

    None if the engine fails or nothing can be compared.
    """
    run = replace(merged.run, limits=limits)
    candidates = merged.unranked
    num = len(candidates.query)
    try:
        reference = merged.reference(run, _sizes(num)).engine
        expected = build_trace(run, reference, reference.prove(candidates), None)
    except BaseException as error:
        pass_on(error)
        if merged.reference is make_reference:
            raise
        return None
    try:
        pipeline = make(run, _sizes(num))
        actual = build_trace(run, pipeline.engine, pipeline.engine.prove(candidates), None)
    except BaseException as error:
        pass_on(error)
        # The exception is reported for the program that causes it.
        return None
    comparer = Comparer(expected, actual)
    comparison, _ = follow_near_ties(comparer, comparer.compare(), run, pipeline, silent_phase)
    rows = sorted({row for each in comparison.divergences if 0 <= (row := each.candidate) < num})
    if not rows and (comparison.verdict is not Verdict.AGREE or comparison.coverage.candidates != num):
        return None
    return rows, int((expected.columns.candidates.outcome == Outcome.PROVED).sum())


def _find_undecided(programs: Sequence[ScopedProgram], limits: Limits, makers: Makers) -> int:
    """Return, by halving, the index of a program on which the engine fails; the first of a group if only that fails."""

    def fails(indices: list[int]) -> bool:
        merged = merge([programs[i].problem(limits) for i in indices], makers[1])
        return _find_differing(merged, limits, makers[0]) is None

    return halve(range(len(programs)), fails)[0]


def _describe(program: int, problem: Problem, makers: Makers) -> Finding:
    """Return the first failure of a program by itself, one query at a time."""
    limits = {name: getattr(problem.limits, name) for name in NUMBERS}
    for query in problem.unranked:
        alone = replace(problem, unranked=(query,))
        for failure in check_problems([alone], makers[0], reference=makers[1], most=1):
            return Finding(program, limits, str(failure.signature), str(failure.problem))
    return Finding(program, limits, "only in one run with others", str(problem))


def _sizes(num_candidates: int) -> Sizes:
    slots = min(_SLOTS, num_candidates)
    return Sizes(slots=slots, match_window=2 * slots, score_window=2 * slots, pool=num_candidates)


def _describe_engine(scope: Scope, make: MakePipeline) -> dict[str, str]:
    """Return what must not change when a run resumes: the engine and its versions, without the sizes of its batch."""
    merged = merge([next(enumerate_programs(scope)).problem(scope.limits[0])])
    pipeline: Pipeline = make(merged.run, _sizes(len(merged.unranked.query)))
    info: EngineInfo = pipeline.engine.info
    return {
        "name": info.name,
        "mode": info.mode,
        "device": info.device,
        "precision": info.precision,
        "faults": ", ".join(info.faults),
        **{f"version of {name}": version for name, version in sorted(info.versions.items())},
    }
