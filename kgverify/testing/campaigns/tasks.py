"""The tasks of a campaign's processes: trying a block, replaying a reproducer, and shrinking one."""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from kgverify.comparison.exercise.exercise import MINIMUM, NOT_EXERCISED, find_missing
from kgverify.engines.table import COMPILED, make_entry
from kgverify.files.writing import write_file
from kgverify.garbage_collection import skip_existing_objects, without_garbage_collection
from kgverify.program.atoms import Variable
from kgverify.program.dialect import OURS, Dialect
from kgverify.runs.engine_makers import EngineSpec, MakePipeline, Sides, make_reference
from kgverify.testing.campaigns.corpus import NOT_SHRUNK, Block, Sighting, mark_shrunk, name_source
from kgverify.testing.checking.check import (
    Batch,
    Suspect,
    confirm,
    count_agreeing,
    find_suspects,
    judge,
    prepare_alone,
    prepare_batch,
    prepare_batches,
)
from kgverify.testing.checking.failure import DEATH, Failure, Signature, fails_same_way
from kgverify.testing.checking.guard import explain
from kgverify.testing.checking.supported import find_supported, make_once
from kgverify.testing.checking.watchdog import in_replaceable_process
from kgverify.testing.problems.boundaries import (
    ALONE_ON_DEVICE_EVERY,
    draw_boundary_problem,
    draw_device_problem,
    draw_kernel_problem,
    runs_alone,
)
from kgverify.testing.problems.decode import SIZE, decode_problem, draw_problems
from kgverify.testing.problems.features import count_features
from kgverify.testing.problems.merge import group_problems
from kgverify.testing.problems.problem import Problem
from kgverify.testing.problems.scope import list_scope
from kgverify.testing.problems.switches import put_in_dialect
from kgverify.testing.reproducers.reproducer import Reproducer, make_reproducer
from kgverify.testing.reproducers.text_format import parse_reproducer, render_reproducer
from kgverify.testing.shrinking.shrink import join_problems, shrink

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
                else prepare_batch(group, drawn, reference)
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
        (batch,) = [prepare_alone(seed, first + i, i, drawn[i])] if i in alone else prepare_batches([drawn[i]])
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


def shrink_text(text: str, sides: Sides, max_calls: int, seconds: float) -> str:
    """Return the shrunk reproducer; an empty string if its problem no longer fails in the same way."""
    made = parse_reproducer(text)
    make, reference = sides.find_makers()
    failure = judge(made.problem, make, reference=reference, lockstep=made.lockstep)
    if failure is None or not fails_same_way(failure.signature, made.signature):
        return ""
    shrunk = shrink(failure, make, reference=reference, lockstep=made.lockstep, max_calls=max_calls, seconds=seconds)
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
