"""An engine shows the stages of the reference in every step, and proves the same after it was interrupted."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from random_programs import candidates_of, program_of

from kgverify import Engine, Limits, Stage
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import positions_of, take_position
from kgverify.laws import compiled_maker, draw_problems
from kgverify.program.outcomes import STEP_STAGES
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.tick import stage_ticks
from kgverify.runs.run import reference_pipeline
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import DEFAULT_SIZES, PolicySpec
from kgverify.trace.model.columns import CandidateSet, Columns

SIZES = DEFAULT_SIZES._replace(slots=2, pool=3, match_window=2)


def engines(num: int) -> Iterator[tuple[Engine, Engine, CandidateSet, Columns]]:
    """Yield the reference and an engine with small windows, and what the reference proves, for generated problems."""
    for problem in islice(draw_problems(31), num):
        merged = merge([replace(problem, policy=PolicySpec("shortest"))])
        pipeline = reference_pipeline(merged.run)
        candidates = pipeline.draw_for(merged.run)
        engine = compiled_maker()(merged.run, SIZES).engine
        yield pipeline.engine, engine, candidates, pipeline.engine.prove(candidates)


def test_the_stages_of_every_last_step_are_those_of_the_reference() -> None:
    for reference, engine, _, columns in engines(12):
        positions, last = positions_of(columns), np.cumsum(columns.candidates.num_steps) - 1
        for row in last.tolist():
            expected, actual = (each.probe(take_position(positions, row)) for each in (reference, engine))
            assert expected == actual


def test_the_clauses_after_a_proof_are_shown() -> None:
    program = program_of("p(a, b)\nr(X, Y) <- p(X, Y)\nr(X, Y) <- r(Y, X)\nr(X, Y) <- p(Y, X)", queries="r(a, b)")
    limits = Limits()
    candidates = candidates_of(program, "r(a, b)")
    reference = ReferenceEngine(program, limits, SHORTEST)
    layout = choose_layout(limits, slots=1, match_window=1)
    engine = CompiledEngine(program, limits, SHORTEST, mode="eager", device="cpu", layout=layout)
    position = take_position(positions_of(reference.prove(candidates)), 0)
    expected = reference.probe(position)
    assert [len(goal) for *_, goal in expected[Stage.RENAME]] == [0, 1, 1]
    assert engine.probe(position) == expected


@pytest.mark.parametrize("number", [1, 2, 4])
def test_an_engine_that_was_interrupted_proves_the_same_afterwards(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it is interrupted within steps.
    monkeypatch.setattr(stage_ticks, "_READ_AT_ONCE", 0)
    num_interrupted = 0
    for _, engine, candidates, expected in engines(6):
        ended: list[int] = []

        def stop(num: int, ended: list[int] = ended) -> None:
            ended.append(num)
            if len(ended) == number:
                raise InterruptedError

        with suppress(InterruptedError):
            engine.prove(candidates, stop)
        num_interrupted += len(ended) == number
        ended.clear()
        for each in engine._work:
            # What is left of a step that was begun.
            each.fill_(number)
        columns = engine.prove(candidates, ended.append)
        assert sum(ended) == len(candidates.query)
        assert columns.steps.choice.tolist() == expected.steps.choice.tolist()
        assert columns.resolvents.atoms.tolist() == expected.resolvents.atoms.tolist()
    assert num_interrupted > 3


def test_every_stage_is_shown() -> None:
    reference, engine, _, columns = next(engines(1))
    position = take_position(positions_of(columns), 0)
    assert list(engine.probe(position)) == list(reference.probe(position)) == list(STEP_STAGES)
