"""The comparison of two runs: of their free steps, or of the steps that the actual engine takes from the expected goals."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kgverify.comparison.compare import Comparer, Options
from kgverify.comparison.equality import Equality
from kgverify.comparison.rankings import RankCandidates
from kgverify.comparison.result import Comparison
from kgverify.comparison.step_view import Views
from kgverify.engines.protocol import Engine
from kgverify.progress import Phase
from kgverify.runs.run import Pipeline, Run
from kgverify.trace.model.score_error import ScoreError
from kgverify.trace.model.trace import Trace
from kgverify.verification.effort import Effort
from kgverify.verification.lockstep import compare_in_lockstep, follow_near_ties, lockstep_comparer


class Task(NamedTuple):
    """Two pipelines to compare on a run, and what counts as equal. score_error: settled for these two."""

    run: Run
    pipelines: tuple[Pipeline, Pipeline]
    score_error: ScoreError
    equality: Equality
    effort: Effort
    phase: Phase

    @property
    def engines(self) -> tuple[Engine, Engine]:
        """The expected and the actual engine."""
        return self.pipelines[0].engine, self.pipelines[1].engine

    @property
    def ranks(self) -> tuple[RankCandidates, RankCandidates]:
        """The functions by which the two sides rank candidates."""
        expected, actual = (partial(each.rank_in_dialect, self.run) for each in self.pipelines)
        return expected, actual


class Compared(NamedTuple):
    """Both traces, ranked alike, and what their comparison found.

    stepper: compared the steps from the expected goals; None if this was not done
    """

    traces: Sequence[Trace]
    comparer: Comparer
    stepper: Comparer | None
    comparison: Comparison
    views: Views

    @property
    def parts(self) -> tuple[Comparer, ...]:
        """The comparers by which differences were found."""
        return (self.comparer,) if self.stepper is None else (self.comparer, self.stepper)


def compare(task: Task, traces: tuple[Trace, ...]) -> Compared:
    """Compare the traces: every step from the expected goals, or the free runs and what follows near-ties in them."""
    modulo = task.equality.benign
    comparer = Comparer(traces[0], traces[1], Options(score_error=task.score_error, modulo=modulo))
    actual = task.pipelines[1]
    if not task.equality.lockstep:
        found = follow_near_ties(comparer, comparer.compare(), task.run, actual, task.phase)
        return Compared(traces, comparer, None, *found)
    stepper = lockstep_comparer(task.run, traces[0], actual, task.phase, task.score_error, modulo)
    return Compared(traces, comparer, stepper, *compare_in_lockstep(stepper, comparer))
