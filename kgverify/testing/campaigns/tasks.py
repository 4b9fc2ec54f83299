"""The tasks of a campaign's processes: trying a block, replaying a reproducer, and shrinking one."""

from dataclasses import replace
from itertools import islice
from typing import Final

from kgverify.engines.reference.garbage_collection import without_garbage_collection
from kgverify.errors import UserError
from kgverify.testing.campaigns.corpus import NOT_SHRUNK, Block, Sighting, mark_shrunk
from kgverify.testing.checking.check import confirm, find_suspects, judge, prepare_batches
from kgverify.testing.checking.engine_makers import (
    COMPILED,
    EngineSpec,
    MakePipeline,
    find_maker,
    find_supported,
    make_once,
)
from kgverify.testing.checking.failure import Failure, Signature, fails_same_way
from kgverify.testing.problems.decode import SIZE, decode_problem, draw_problems
from kgverify.testing.problems.features import count_features
from kgverify.testing.reproducers.reproducer import Reproducer, make_reproducer
from kgverify.testing.reproducers.text_format import parse_reproducer, render_reproducer
from kgverify.testing.shrinking.shrink import join_problems, shrink

PATIENCE: Final = 12
"""Confirmed problems in a row without a new signature after which the rest of a block is not confirmed."""
MEASURED_EVERY: Final = 16
"""Features are counted in the first block and in every 16th: counting takes as long as comparing."""


@without_garbage_collection()
def check_made(make: MakePipeline) -> None:
    """Raise UserError if an engine cannot be made even for the simplest problem; that would look like a crash."""
    try:
        make_once(make, decode_problem(bytes(SIZE)))
    except UserError:
        raise
    except Exception:
        return  # A crash, which the problems show, or a policy that the engine does not support.


def try_block(engine: EngineSpec, seed: int, number: int, size: int, num_problems: int, lockstep: bool) -> Block:
    """Try the first problems of a block, and confirm those that differ until nothing new is seen.

    UserError for a third party's engine that cannot be made.
    """
    make = find_maker(engine)
    first = number * size
    drawn = list(islice(draw_problems(seed, first), num_problems))
    indices = list(range(num_problems))
    if engine.name != COMPILED:
        check_made(make)
        indices = find_supported(make, drawn)
    problems = [drawn[i] for i in indices]
    batches = prepare_batches(problems)
    suspects = [suspect for batch in batches for suspect in find_suspects(batch, make, lockstep=lockstep)]
    suspects.sort(key=lambda suspect: suspect.number)
    sightings: dict[Signature, Sighting] = {}
    num_confirmed = patience = 0
    for suspect in suspects:
        if patience == PATIENCE:
            break
        failure = confirm(suspect, make, lockstep=lockstep)
        # Identified by what a shrink holds fixed, so that different signatures stay different.
        failure = replace(failure, signature=failure.signature.held)
        num_confirmed, patience = num_confirmed + 1, patience + 1
        if failure.signature not in sightings:
            patience = 0
            index = first + indices[suspect.number]
            note = f"problem {index} of seed {seed}"
            made = _make_reproducer(failure, engine, lockstep)
            text = render_reproducer(replace(made, notes=(note, NOT_SHRUNK))) if made else ""
            sightings[failure.signature] = Sighting(signature=failure.signature, index=index, text=text)
        sightings[failure.signature].count += 1
    block = Block(
        number=number,
        num_problems=num_problems,
        num_skipped=num_problems - len(problems),
        num_candidates=sum(len(batch.expected.columns.candidates.query) for batch in batches),
        num_steps=sum(len(batch.expected.columns.steps.depth) for batch in batches),
        num_resolvents=sum(len(batch.expected.columns.resolvents.kind) for batch in batches),
        num_differing=len(suspects),
        num_confirmed=num_confirmed,
        sightings=list(sightings.values()),
    )
    if number % MEASURED_EVERY == 0:
        block.num_measured = len(problems)
        block.features = count_features(batches)
    return block


def replay_text(text: str, engine: EngineSpec) -> Signature | None:
    """Return the signature with which a reproducer diverges on an engine; None if both sides agree."""
    made = parse_reproducer(text)
    failure = judge(made.problem, find_maker(engine), lockstep=made.lockstep)
    if failure is None:
        return None
    return made.signature if fails_same_way(failure.signature, made.signature) else failure.signature.held


def shrink_text(text: str, engine: EngineSpec, max_calls: int, seconds: float) -> str:
    """Return the shrunk reproducer; an empty string if its problem no longer fails in the same way."""
    made, make = parse_reproducer(text), find_maker(engine)
    failure = judge(made.problem, make, lockstep=made.lockstep)
    if failure is None or not fails_same_way(failure.signature, made.signature):
        return ""
    shrunk = shrink(failure, make, lockstep=made.lockstep, max_calls=max_calls, seconds=seconds)
    notes = mark_shrunk(made).notes
    smallest = make_reproducer(shrunk.failure, engine, lockstep=made.lockstep, neighbour=shrunk.change, notes=notes)
    return render_reproducer(replace(smallest, signature=made.signature))


def _make_reproducer(failure: Failure, engine: EngineSpec, lockstep: bool) -> Reproducer | None:
    """Return the reproducer of a failure; for one that needs a batch, of the batch as one problem if that fails too."""
    if failure.is_alone:
        return make_reproducer(failure, engine, lockstep=lockstep)
    for joined in join_problems(failure.group):
        again = judge(joined, find_maker(engine), lockstep=lockstep)
        if again is not None and fails_same_way(again.signature, failure.signature):
            return make_reproducer(replace(again, signature=failure.signature), engine, lockstep=lockstep)
    return None
