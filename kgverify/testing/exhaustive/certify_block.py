"""Compare a block of programs under every setting of limits, for a certificate."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import msgspec

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import Verdict
from kgverify.engines.reference.garbage_collection import without_garbage_collection
from kgverify.program.limits import Limits
from kgverify.runs.delta_debugging import halve
from kgverify.runs.progress import silent_phase
from kgverify.runs.run import Pipeline, build_trace, reference_pipeline
from kgverify.testing.checking.check import check_problems
from kgverify.testing.checking.engine_makers import EngineSpec, MakePipeline, find_maker
from kgverify.testing.exhaustive.scope import Scope, ScopedProgram, enumerate_programs
from kgverify.testing.problems.merge import Merged, merge
from kgverify.testing.problems.problem import Problem, Sizes
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.lockstep import follow_near_ties

MOST_SHOWN: Final = 10
"""Findings of a block that are described; all are counted."""

_SLOTS: Final = 4096

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


def certify_spec(scope: Scope, number: int, first: int, programs: Sequence[ScopedProgram], engine: EngineSpec) -> Block:
    """Certify a block like `certify_block`, in a process that makes the engine itself."""
    return certify_block(scope, number, first, programs, find_maker(engine), None)


def certify_block(
    scope: Scope,
    number: int,
    first: int,
    programs: Sequence[ScopedProgram],
    make: MakePipeline,
    progress: ShowProgress | None,
) -> Block:
    """Compare a block of programs, merged into one, under all settings of limits.

    first: the index in the scope of the block's first program
    """
    begin = time.perf_counter()
    findings: list[Finding] = []
    problems = divergent = 0
    with without_garbage_collection():
        merged = merge([program.problem(scope.limits[0]) for program in programs])
        num_queries = len(merged.unranked.query)
        for limits in scope.limits:
            differing = _find_differing(merged, limits, make)
            if differing is None:
                indices = [_find_undecided(programs, limits, make)]
                divergent += 1
            else:
                indices = sorted({int(merged.owner[merged.unranked.query[row]]) for row in differing})
                divergent += len(differing)
                problems += num_queries
            shown = indices[: MOST_SHOWN - len(findings)]
            findings += [_describe(first + i, programs[i].problem(limits), make) for i in shown]
            if progress is not None:
                progress(num_queries)
    seconds = round(time.perf_counter() - begin, 3)
    return Block(number, len(programs), problems, divergent, tuple(findings), seconds)


def _find_differing(merged: Merged, limits: Limits, make: MakePipeline) -> list[int] | None:
    """Return the rows of the candidates that differ; None if the engine fails or nothing can be compared."""
    run = replace(merged.run, limits=limits)
    candidates = merged.unranked
    num = len(candidates.query)
    reference = reference_pipeline(run).engine
    expected = build_trace(run, reference, reference.prove(candidates), None)
    try:
        pipeline = make(run, _sizes(num))
        actual = build_trace(run, pipeline.engine, pipeline.engine.prove(candidates), None)
    except Exception:
        # The exception is reported for the program that causes it.
        return None
    comparer = Comparer(expected, actual)
    comparison, _ = follow_near_ties(comparer, comparer.compare(), run, pipeline, silent_phase)
    rows = sorted({row for each in comparison.divergences if 0 <= (row := each.candidate) < num})
    if not rows and (comparison.verdict is not Verdict.AGREE or comparison.coverage.candidates != num):
        return None
    return rows


def _find_undecided(programs: Sequence[ScopedProgram], limits: Limits, make: MakePipeline) -> int:
    """Return, by halving, the index of a program on which the engine fails; the first of a group if only that fails."""

    def fails(indices: list[int]) -> bool:
        return _find_differing(merge([programs[i].problem(limits) for i in indices]), limits, make) is None

    return halve(range(len(programs)), fails)[0]


def _describe(program: int, problem: Problem, make: MakePipeline) -> Finding:
    """Return the first failure of a program by itself, one query at a time."""
    limits = msgspec.structs.asdict(problem.limits)
    for query in problem.unranked:
        alone = replace(problem, unranked=(query,))
        for failure in check_problems([alone], make, most=1):
            return Finding(program, limits, str(failure.signature), str(failure.problem))
    return Finding(program, limits, "only in one run with others", str(problem))


def _sizes(num_candidates: int) -> Sizes:
    slots = min(_SLOTS, num_candidates)
    return Sizes(slots=slots, match_window=2 * slots, score_window=2 * slots, pool=num_candidates)


def describe_engine(scope: Scope, make: MakePipeline) -> dict[str, str]:
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
