"""Small-scope certificates: an engine compared with the reference on every program of a scope.

A block of programs is the work of one process and depends on nothing else. So a certificate is the same, except for
its seconds, for any number of processes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kgverify.errors import UserError
from kgverify.runs.ledger import FIX, Ledger
from kgverify.runs.workers import start_workers
from kgverify.testing.checking.engine_makers import EAGER, EngineSpec, MakePipeline, find_maker
from kgverify.testing.exhaustive.burnside import count_programs
from kgverify.testing.exhaustive.certify_block import (
    MOST_SHOWN,
    Block,
    Finding,
    ShowProgress,
    certify_block,
    certify_spec,
    describe_engine,
)
from kgverify.testing.exhaustive.scope import Count, Scope, ScopedProgram, enumerate_programs
from kgverify.testing.reproducers.text_format import saving_bugs

PROGRAMS_AT_ONCE: Final = 1000
"""Programs of a block, which share a run under each setting of limits. Larger blocks are hardly faster."""

_FORMAT: Final = 1


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing an engine on a scope.

    expected:  what the scope contains, counted by Burnside's lemma
    compared:  programs enumerated and problems compared; problems of a run in which the engine failed do not count
    divergent: problems that differ, and one for each run that failed; `findings` describes the first of each block
    seconds:   of all processes together, earlier runs included
    engine:    the engine under test
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

    @property
    def is_complete(self) -> bool:
        """True if every problem of the scope was compared, as counted by Burnside's lemma."""
        return self.compared == self.expected

    @property
    def is_proof(self) -> bool:
        """True if no divergence exists in the scope."""
        return self.is_complete and not self.divergent

    def __str__(self) -> str:
        """Return the certificate as text."""
        rate = self.compared.problems / self.seconds if self.seconds else 0.0
        lines = [
            f"scope {self.scope}: {self.description}",
            f"{self.compared.programs:,} programs, {self.compared.problems:,} problems compared"
            f" (Burnside: {self.expected.programs:,} and {self.expected.problems:,})"
            f" in {self.seconds:,.0f} s, {rate:,.0f} a second",
            self.statement,
        ]
        for finding in self.findings[:MOST_SHOWN]:
            lines += ["", f"program {finding.program}: {finding.signature}", finding.problem]
        return "\n".join(lines)

    @property
    def statement(self) -> str:
        """The conclusion in a sentence."""
        missing = self.expected.problems - self.compared.problems
        left = f"; {missing:,} problems have not been compared" if not self.is_complete else ""
        if self.divergent:
            return f"{self.divergent:,} {'problem diverges' if self.divergent == 1 else 'problems diverge'}{left}"
        return f"no divergence found{left}" if left else "no divergence exists in this scope"


class _Identity(msgspec.Struct, frozen=True):
    """The first line of a state file."""

    format: int
    scope: str
    block_size: int = msgspec.field(name="programs_at_once")
    engine: dict[str, str]


class _Task(NamedTuple):
    """A block that is not finished."""

    number: int
    first: int
    programs: list[ScopedProgram]


@saving_bugs()
def certify(
    scope: Scope,
    engine: EngineSpec | MakePipeline = EAGER,
    *,
    state: str | Path | None = None,
    progress: ShowProgress = lambda num_problems: None,
    programs_at_once: int = PROGRAMS_AT_ONCE,
    most_blocks: int | None = None,
    jobs: int = 1,
    on_interrupt: Callable[[], None] = lambda: None,
) -> Certificate:
    """Compare an engine (by default the eager evaluator) with the reference on every problem of a scope.

    Everything recorded is compared, free-running, with the policy `shortest`, without corruptions and ranks.

    state:       a file with a line for each finished block, from which an interrupted run resumes
    most_blocks: stop after this many further blocks; the certificate is then incomplete
    jobs:        processes; 1 works in this process, more need an `EngineSpec`, since each makes the engine

    On KeyboardInterrupt `on_interrupt` is called, blocks in progress are finished and saved, and it is raised; a second
    one is raised at once.

    UserError for a file that is not a state file or has another scope, engine or block size, and for a process that died.
    """
    make = find_maker(engine) if isinstance(engine, EngineSpec) else engine
    described = describe_engine(scope, make)
    ledger = None
    if state is not None:
        identity = _Identity(_FORMAT, scope.digest, programs_at_once, described)
        ledger = Ledger(Path(state), identity, Block, title="state of a certificate")
    blocks = {block.block: block for block in ledger.records} if ledger else {}
    if blocks:
        progress(sum(block.problems for block in blocks.values()))
    expected = count_programs(scope)
    tasks = islice(_blocks_to_do(scope, programs_at_once, blocks, str(state)), most_blocks)
    # No more processes than there are unfinished blocks.
    jobs = min(jobs, max(1, -(-expected.programs // programs_at_once) - len(blocks)))
    finished: Iterator[Block]
    if jobs == 1:
        finished = (certify_block(scope, *task, make, progress) for task in tasks)
    else:
        finished = _share(scope, engine, tasks, progress, jobs, None if ledger is None else on_interrupt)
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
        expected=expected,
        compared=Count(sum(block.programs for block in done), sum(block.problems for block in done)),
        limits=len(scope.limits),
        divergent=sum(block.divergent for block in done),
        findings=tuple(finding for block in done for finding in block.findings),
        seconds=sum(block.seconds for block in done),
    )


def _blocks_to_do(scope: Scope, size: int, done: dict[int, Block], where: str) -> Iterator[_Task]:
    """Yield the unfinished blocks, in order. UserError if a finished one has another number of programs."""
    # Blocks that are added meanwhile are not checked.
    num_programs = {number: block.programs for number, block in done.items()}
    for number, programs in enumerate(_in_blocks(enumerate_programs(scope), size)):
        if number not in num_programs:
            yield _Task(number, number * size, programs)
        elif num_programs[number] != len(programs):
            message = f"block {number} has {num_programs[number]} programs, not {len(programs)}"
            raise UserError(message, where=where, fix=FIX)


def _in_blocks(programs: Iterator[ScopedProgram], size: int) -> Iterator[list[ScopedProgram]]:
    while block := list(islice(programs, size)):
        yield block


def _share(
    scope: Scope,
    engine: EngineSpec | MakePipeline,
    tasks: Iterator[_Task],
    progress: ShowProgress,
    jobs: int,
    on_interrupt: Callable[[], None] | None,
) -> Iterator[Block]:
    """Yield the results of several processes as blocks finish.

    on_interrupt: called at a KeyboardInterrupt, which then waits for the blocks in progress; None raises it at once
    """
    if not isinstance(engine, EngineSpec):
        raise UserError(
            "other processes cannot be given an engine, only its name", where="jobs", fix="give an EngineSpec"
        )
    running: set[Future[Block]] = set()
    interrupt: KeyboardInterrupt | None = None
    try:
        with start_workers(jobs) as executor:
            while True:
                try:
                    # No more than there are processes: each begins at once, and an interrupt waits for it.
                    while interrupt is None and len(running) < jobs and (task := next(tasks, None)) is not None:
                        running.add(executor.submit(certify_spec, scope, *task, engine))
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
    except BrokenProcessPool:
        raise UserError("a process died", where=str(engine), fix="run again with --jobs 1 to see it die") from None
