"""Small-scope certificates: an engine compared with the reference on every program of a scope."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from kgverify.diff.compare import Comparer
from kgverify.diff.result import Verdict
from kgverify.errors import UserError
from kgverify.fuzz.check import check_problems
from kgverify.fuzz.garbage import without_garbage_collection
from kgverify.fuzz.merge import Merged, merge
from kgverify.fuzz.pipelines import MakePipeline, compiled_maker
from kgverify.fuzz.problem import Problem, Sizes
from kgverify.fuzz.scope import (
    SCOPES,
    Count,
    Scope,
    ScopedProgram,
    count_programs,
    enumerate_programs,
    find_scope,
)
from kgverify.harness.lockstep import follow_near_ties
from kgverify.harness.phases import silent_phase
from kgverify.harness.run import Pipeline, build_trace, reference_pipeline
from kgverify.logic.limits import Limits
from kgverify.trace.header import EngineInfo

__all__ = [
    "SCOPES",
    "Certificate",
    "Count",
    "Finding",
    "Scope",
    "ScopedProgram",
    "certify",
    "count_programs",
    "enumerate_programs",
    "find_scope",
]

PROGRAMS_AT_ONCE: Final = 1000
"""Programs of a block, which share a run under each setting of limits. More of them are hardly faster."""

MOST_SHOWN: Final = 10
"""Findings of a block that are told; all are counted."""

_SLOTS: Final = 4096
_FORMAT: Final = 1

ShowProgress: TypeAlias = Callable[[int], None]
"""Called with the number of problems done since the last call; at first with those of an earlier run."""


class Finding(msgspec.Struct, frozen=True):
    """A problem on which the engine differs from the reference.

    program:   its place among the scope's programs
    limits:    the setting
    signature: of its first divergence
    problem:   as text
    """

    program: int
    limits: dict[str, int | bool]
    signature: str
    problem: str


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared in a scope, and what differed.

    expected: what the scope holds, counted by Burnside's lemma
    compared: programs enumerated, problems compared; those of a run in which the engine failed are not
    divergent: problems that differ, and one for each run that failed; `findings` tells of the first of each block
    seconds:  spent on the comparison, earlier runs included
    engine:   what was compared with the reference
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
        """Whether every problem of the scope was compared, as many as Burnside's lemma counts."""
        return self.compared == self.expected

    @property
    def is_proof(self) -> bool:
        """Whether no divergence exists in the scope."""
        return self.is_complete and not self.divergent

    def __str__(self) -> str:
        """The certificate as text."""
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
        """What is proved, in a sentence."""
        missing = self.expected.problems - self.compared.problems
        left = f"; {missing:,} problems have not been compared" if not self.is_complete else ""
        if self.divergent:
            return f"{self.divergent:,} {'problem diverges' if self.divergent == 1 else 'problems diverge'}{left}"
        return f"no divergence found{left}" if left else "no divergence exists in this scope"


class _Opening(msgspec.Struct, frozen=True):
    """The first line of a state file."""

    format: int
    scope: str
    programs_at_once: int
    engine: dict[str, str]


class _Block(msgspec.Struct, frozen=True):
    """A further line: a finished block."""

    block: int
    programs: int
    problems: int
    divergent: int
    findings: tuple[Finding, ...]
    seconds: float


def certify(
    scope: Scope,
    make_pipeline: MakePipeline | None = None,
    *,
    state: str | Path | None = None,
    progress: ShowProgress | None = None,
    programs_at_once: int = PROGRAMS_AT_ONCE,
    most_blocks: int | None = None,
) -> Certificate:
    """Compare an engine (the eager evaluator, if none is given) with the reference on every problem of a scope.

    Everything recorded is compared, free-running, with the policy `shortest`; corruptions and ranks are not part of it.

    state:       a file with a line for each finished block, from which an interrupted run is taken up again
    most_blocks: stop after so many further blocks; the certificate is then incomplete

    UserError for a state file of another scope, engine or block size, or of a file that is none.
    """
    make = make_pipeline or compiled_maker()
    engine = _describe_engine(scope, make)
    opening = _Opening(_FORMAT, scope.digest, programs_at_once, engine)
    path = None if state is None else Path(state)
    blocks = {} if path is None else _open_state(path, opening)
    if progress is not None and blocks:
        progress(sum(block.problems for block in blocks.values()))
    num_new = 0
    for number, programs in enumerate(_in_blocks(enumerate_programs(scope), programs_at_once)):
        if number in blocks:
            if blocks[number].programs != len(programs):
                raise _unusable(
                    str(path), f"block {number} has {blocks[number].programs} programs, not {len(programs)}"
                )
            continue
        if num_new == most_blocks:
            break
        blocks[number] = block = _certify_block(scope, number, number * programs_at_once, programs, make, progress)
        num_new += 1
        if path is not None:
            _append(path, block)
    done = blocks.values()
    return Certificate(
        scope=scope.name,
        description=str(scope),
        digest=scope.digest,
        engine=engine,
        expected=count_programs(scope),
        compared=Count(sum(block.programs for block in done), sum(block.problems for block in done)),
        limits=len(scope.limits),
        divergent=sum(block.divergent for block in done),
        findings=tuple(finding for _, block in sorted(blocks.items()) for finding in block.findings),
        seconds=sum(block.seconds for block in done),
    )


def _certify_block(
    scope: Scope,
    number: int,
    first: int,
    programs: Sequence[ScopedProgram],
    make: MakePipeline,
    progress: ShowProgress | None,
) -> _Block:
    """All settings of limits; they share one program, made of all, renamed apart."""
    begin = time.perf_counter()
    findings: list[Finding] = []
    problems = divergent = 0
    with without_garbage_collection():
        merged = merge([program.problem(scope.limits[0]) for program in programs])
        num_queries = len(merged.unranked.query)
        for limits in scope.limits:
            differing = _find_differing(merged, limits, make)
            if differing is None:
                places = [_find_undecided(programs, limits, make)]
                divergent += 1
            else:
                places = sorted({int(merged.owner[merged.unranked.query[row]]) for row in differing})
                divergent += len(differing)
                problems += num_queries
            told = places[: MOST_SHOWN - len(findings)]
            findings += [_tell(first + place, programs[place].problem(limits), make) for place in told]
            if progress is not None:
                progress(num_queries)
    seconds = round(time.perf_counter() - begin, 3)
    return _Block(number, len(programs), problems, divergent, tuple(findings), seconds)


def _find_differing(merged: Merged, limits: Limits, make: MakePipeline) -> list[int] | None:
    """The rows of the candidates that differ; None where the engine fails or nothing can be compared."""
    run = replace(merged.run, limits=limits)
    candidates = merged.unranked
    num = len(candidates.query)
    reference = reference_pipeline(run).engine
    expected = build_trace(run, reference, reference.prove(candidates), None)
    try:
        pipeline = make(run, _sizes(num))
        actual = build_trace(run, pipeline.engine, pipeline.engine.prove(candidates), None)
    except Exception:
        # What the engine raised is told of the program that makes it do so.
        return None
    comparer = Comparer(expected, actual)
    comparison, _ = follow_near_ties(comparer, comparer.compare(), run, pipeline, silent_phase)
    rows = sorted({row for each in comparison.divergences if 0 <= (row := each.candidate) < num})
    if not rows and (comparison.verdict is not Verdict.AGREE or comparison.coverage.candidates != num):
        return None
    return rows


def _find_undecided(programs: Sequence[ScopedProgram], limits: Limits, make: MakePipeline) -> int:
    """The place of a program that the engine fails on, by halving; the first of those that it fails on together."""
    first, last = 0, len(programs)
    while last - first > 1:
        middle = (first + last) // 2
        for half in ((first, middle), (middle, last)):
            merged = merge([program.problem(limits) for program in programs[slice(*half)]])
            if _find_differing(merged, limits, make) is None:
                first, last = half
                break
        else:
            break
    return first


def _tell(program: int, problem: Problem, make: MakePipeline) -> Finding:
    """The first failure of a program by itself, one query at a time."""
    limits = msgspec.structs.asdict(problem.limits)
    for query in problem.unranked:
        alone = replace(problem, unranked=(query,))
        for failure in check_problems([alone], make, most=1):
            return Finding(program, limits, str(failure.signature), str(failure.problem))
    return Finding(program, limits, "in company only", str(problem))


def _sizes(num_candidates: int) -> Sizes:
    slots = min(_SLOTS, num_candidates)
    return Sizes(slots=slots, match_window=2 * slots, score_window=2 * slots, pool=num_candidates)


def _describe_engine(scope: Scope, make: MakePipeline) -> dict[str, str]:
    """What must stay the same for a run to be taken up again: the engine and its versions, not the sizes of its batch."""
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


def _in_blocks(programs: Iterator[ScopedProgram], size: int) -> Iterator[list[ScopedProgram]]:
    while block := list(islice(programs, size)):
        yield block


def _open_state(path: Path, opening: _Opening) -> dict[int, _Block]:
    """The blocks that a state file has; a new file is begun. A last line that was not finished is cut off."""
    try:
        content = path.read_bytes() if path.exists() else b""
        end = content.rfind(b"\n") + 1
        if not end:
            if content and not msgspec.json.encode(opening).startswith(content):
                raise _unusable(str(path), "it is no state of a certificate")
            path.write_bytes(msgspec.json.encode(opening) + b"\n")
            return {}
        first, *lines = content[:end].splitlines()
        try:
            found = msgspec.json.decode(first, type=_Opening)
            blocks = [msgspec.json.decode(line, type=_Block) for line in lines]
        except msgspec.DecodeError as error:
            raise _unusable(str(path), f"it is no state of a certificate: {error}") from None
        for name, what in (
            ("format", "format"),
            ("scope", "scope"),
            ("programs_at_once", "block size"),
            ("engine", "engine"),
        ):
            if getattr(found, name) != getattr(opening, name):
                expected, actual = (json.dumps(getattr(each, name)) for each in (opening, found))
                raise _unusable(str(path), f"it is of another {what}: expected {expected}, found {actual}")
        if end < len(content):
            with path.open("r+b") as file:
                file.truncate(end)
    except OSError as error:
        raise UserError(f"cannot be used: {error.strerror}", where=str(path), fix="give another path") from None
    return {block.block: block for block in blocks}


def _append(path: Path, block: _Block) -> None:
    try:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(block) + b"\n")
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", where=str(path), fix="give another path") from None


def _unusable(where: str, message: str) -> UserError:
    return UserError(message, where=where, fix="give a new path, or delete the file")
