"""The judges of a mutant beside the tests: generated problems for one of a prover, the known answers for one of a judge."""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from kgverify.engines.native.choice import NATIVE
from kgverify.testing.checking.engine_makers import MakePipeline, compiled_maker

from kgverify.engines.protocol import Engine, Positions
from kgverify.engines.sizes import Sizes
from kgverify.errors import InternalError
from kgverify.progress import Progress, no_progress
from kgverify.runs.run import Pipeline, Run
from kgverify.testing.checking.check import Batch, find_suspects, prepare_batches
from kgverify.testing.problems.decode import draw_problems
from kgverify.testing.problems.problem import Problem
from kgverify.trace.model.columns import CandidateSet, Columns
from kgverify.trace.model.header import EngineInfo
from kgverify.verification.verify import verify

# The known answers stand beside the tests of each part.
sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("engines", "evaluation", "judge", "ranking")]

from evaluation_answers.evaluations import check_known_evaluation
from evaluation_answers.known_models import check_known_models
from judge_answers import answers, files, runs, traces
from known_draws import check_known_draws
from known_judge import exercise_known, judge_known
from known_proofs import check_native_proofs, check_tensor_proofs
from known_stages import check_known_stages
from known_steps import check_known_steps

NUM_PROBLEMS: Final = 240
"""The number of generated problems on which a mutant is tried."""
FIRST_ROUND: Final = 16
"""Problems of the first round; each further round has twice as many, up to `LARGEST_ROUND`."""
LARGEST_ROUND: Final = 512
SEED: Final = 0

Round = Callable[[], bool]
"""Tries some problems and returns whether the mutant is detected."""


class NamedRound(NamedTuple):
    """A round, and its name or the number of problems tried by its end."""

    name: str
    detects: Round


class Crash(BaseException):
    """The engine under test raised an exception. It is no Exception, so that nothing searches for the problem at fault."""


_JUDGED: Final = frozenset({"reference", "compiled", "native"})
"""The parts that are provers."""
_KNOWN: Final[dict[str, Callable[[], object]]] = {
    "known differences": lambda: answers.check_known_differences(exercise_known),
    "known pairs": lambda: answers.check_known_pairs(judge_known, is_recorded=True),
    "known runs": lambda: runs.check_known_runs(verify),
    "known traces of runs": lambda: runs.check_traces_of_runs(judge_known),
    "known draws": check_known_draws,
    "known models": lambda: check_known_models("cpu"),
    "known evaluation": lambda: list(check_known_evaluation("cpu")),
    "known traces": traces.check_known_traces,
    "known steps": check_known_steps,
    "known stages": check_known_stages,
    "known native proofs": check_native_proofs,
    "known tensor proofs": check_tensor_proofs,
    "known files": lambda: files.check_known_files(judge_known),
}
"""The checks that `diff` and `evaluate` make before they give a verdict; each raises an error if it is wrong."""


def draw_rounds(num_problems: int) -> list[list[Problem]]:
    """Generate `num_problems` problems, divided into rounds."""
    problems = list(islice(draw_problems(SEED), num_problems))
    rounds, size = [], FIRST_ROUND
    while problems:
        rounds.append(problems[:size])
        problems, size = problems[size:], min(2 * size, LARGEST_ROUND)
    return rounds


def make_rounds(part: str, num_problems: int) -> list[NamedRound]:
    """Return the rounds for a part's mutants, with the preparation that needs no planted mutant."""
    if part not in _JUDGED:
        return [NamedRound(name, partial(_raises, check)) for name, check in _KNOWN.items()]
    rounds = draw_rounds(num_problems)
    judge = _reference_round if part == "reference" else partial(_evaluator_round, _MAKERS[part])
    return list(_numbered(rounds, judge))


def _numbered(rounds: Sequence[list[Problem]], judge: Callable[[list[Problem]], Round]) -> Iterator[NamedRound]:
    total = 0
    for problems in rounds:
        total += len(problems)
        yield NamedRound(f"{total} problems", judge(problems))


def _raises(check: Callable[[], object]) -> bool:
    try:
        check()
    except InternalError:
        return True
    return False


def _evaluator_round(make: MakePipeline, problems: list[Problem]) -> Round:
    """Compare with proofs that the reference has made already, and every step from the reference's goals as well."""
    batches = prepare_batches(problems)
    return lambda: _differs(make, batches, lockstep=True)


def _reference_round(problems: list[Problem]) -> Round:
    return lambda: _differs(_MAKERS["compiled"], prepare_batches(problems), lockstep=False)


def _differs(make: MakePipeline, batches: Sequence[Batch], *, lockstep: bool) -> bool:
    return any(find_suspects(batch, partial(_make_pipeline, make), lockstep=lockstep) for batch in batches)


class _Loud:
    """An engine whose exceptions end the trial."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        """The description of the engine."""
        return self._engine.info

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Call the engine, turning an exception into a crash."""
        try:
            return self._engine.prove(candidates, progress)
        except Exception as error:
            raise Crash from error

    def step(self, positions: Positions) -> Columns:
        """Call the engine, turning an exception into a crash."""
        try:
            return self._engine.step(positions)
        except Exception as error:
            raise Crash from error


def _make_pipeline(make: MakePipeline, run: Run, sizes: Sizes) -> Pipeline:
    try:
        pipeline = make(run, sizes)
    except Exception as error:
        raise Crash from error
    return pipeline._replace(engine=_Loud(pipeline.engine))


_MAKERS: Final[dict[str, MakePipeline]] = {"compiled": compiled_maker(), "native": compiled_maker(mode=NATIVE)}
