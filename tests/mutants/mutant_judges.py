"""Who judges a mutant of each part: generated problems against the other side first, then the tests of the part."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kgverify.engines.protocol import Engine, Positions, Progress, no_progress
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.check import Batch, find_suspects, prepare_batches
from kgverify.testing.checking.engine_makers import compiled_maker
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.problem import Problem, Sizes
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo

NUM_PROBLEMS: Final = 2000
"""Generated problems that a mutant has to stand."""
FIRST_ROUND: Final = 16
"""Problems of the first round; each further one has twice as many, up to `LARGEST_ROUND`."""
LARGEST_ROUND: Final = 512
SEED: Final = 0

TESTS: Final = {
    "reference": (
        "reference/test_reference_terms.py",
        "reference/test_reference_program.py",
        "reference/test_reference_step.py",
        "reference/test_reference_derivation.py",
        "reference/test_reference_two_tower.py",
        "reference/test_reference_corrupt.py",
        "reference/test_reference_rank.py",
        "reference/test_reference_model.py",
        "reference/test_reference_prolog.py",
    ),
    "compiled": (
        "engines/test_engine_stages.py",
        "engines/test_engine_tables.py",
        "engines/test_engine_precision.py",
        "engines/test_engine_errors.py",
        "engines/test_engine_compiled.py",
        "engines/test_engine_fact_index.py",
        "harness/test_verification_replay.py",
        "engines/test_engine_invariance.py",
    ),
    "differ": (
        "diff",
        "harness/test_verification_replay.py",
        "harness/test_verification_verify.py",
        "harness/test_verification_attribute.py",
        "regressions/test_regressions.py",
        "report/test_report_terminal.py",
        "report/test_report_view.py",
        "report/test_report_formats.py",
    ),
}
"""Test files of each part, the quickest first."""
DESELECTED: Final = (
    "harness/test_verification_verify.py::test_the_compiled_evaluator_agrees_on_wn18rr_where_a_predicate_has_34796_facts",
)
"""Tests that take long and tell nothing that others do not."""

Round = Callable[[], bool]
"""Tries some problems; whether the mutant gives itself away."""


class NamedRound(NamedTuple):
    """A round with the problems that have been tried by its end."""

    num_problems: int
    is_told: Round


class Crash(BaseException):
    """The engine under test raised an exception; no Exception, so that nobody looks for the problem that does it."""


def draw_rounds(num_problems: int) -> list[list[Problem]]:
    """So many generated problems in rounds."""
    problems = list(islice(draw_problems(SEED), num_problems))
    rounds, size = [], FIRST_ROUND
    while problems:
        rounds.append(problems[:size])
        problems, size = problems[size:], min(2 * size, LARGEST_ROUND)
    return rounds


def make_rounds(part: str, num_problems: int) -> list[NamedRound]:
    """Rounds for a mutant of a part. What can be made ready before the mutant is planted is made ready here."""
    if part == "differ":
        return []
    rounds = draw_rounds(num_problems)
    judge = _of_reference if part == "reference" else _of_compiled
    return list(_numbered(rounds, judge))


def _numbered(rounds: Sequence[list[Problem]], judge: Callable[[list[Problem]], Round]) -> Iterator[NamedRound]:
    total = 0
    for problems in rounds:
        total += len(problems)
        yield NamedRound(total, judge(problems))


def _of_compiled(problems: list[Problem]) -> Round:
    """The reference has proved the problems already; the evaluator takes every step from its goals as well."""
    batches = prepare_batches(problems)
    return lambda: _differs(batches, lockstep=True)


def _of_reference(problems: list[Problem]) -> Round:
    return lambda: _differs(prepare_batches(problems), lockstep=False)


def _differs(batches: Sequence[Batch], *, lockstep: bool) -> bool:
    return any(find_suspects(batch, _make_pipeline, lockstep=lockstep) for batch in batches)


class _Loud:
    """An engine whose exceptions end the judging."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """That of the engine."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """As the engine does."""
        try:
            return self._engine.prove(candidates, progress)
        except Exception as error:
            raise Crash from error

    def step(self, positions: Positions) -> Columns:
        """As the engine does."""
        try:
            return self._engine.step(positions)
        except Exception as error:
            raise Crash from error


def _make_pipeline(run: Run, sizes: Sizes) -> Pipeline:
    try:
        pipeline = _MAKE(run, sizes)
    except Exception as error:
        raise Crash from error
    return pipeline._replace(engine=_Loud(pipeline.engine))


_MAKE: Final = compiled_maker()
