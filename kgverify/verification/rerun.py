"""A further run of some candidates, in another order, for the experiments with a batch."""

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import NO_CANDIDATE
from kgverify.comparison.step_view import StepReader
from kgverify.conditions.batch import Actual, CandidateReader
from kgverify.conditions.experiment import Rerun
from kgverify.conditions.features import read_declared
from kgverify.engines.protocol import DescribedEngine, candidate_set
from kgverify.runs.run import Pipeline, Run, build_trace
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.trace import Trace


def rerun(
    run: Run, expected: Pipeline, actual: Pipeline, trace: Trace, comparer: Comparer, rows: NDArray[np.int64]
) -> Rerun | None:
    """Prove rows of the expected trace's candidates by the engine under test, and compare them with what was expected.

    A candidate that the engine does not return is wrong. None if near-ties leave open whether the others agree.
    """
    columns = select_candidates(trace.columns, rows)
    proved = actual.engine.prove(candidate_set(columns))
    left = build_trace(run, expected.engine, columns, None)
    right = build_trace(run, actual.engine, proved, None)
    compared = Comparer(left, right, comparer.alike._replace(lockstep=False))
    comparison = compared.compare()
    if comparison.near_ties:
        return None
    is_alike = len(proved.candidates.query) == len(rows)
    c = proved.candidates
    reader = CandidateReader(
        columns.candidates,
        Actual(c.outcome.tolist(), c.num_steps.tolist()) if is_alike else None,
        actual.engine.info,
        comparer.program.origins,
        lambda: (StepReader(columns), StepReader(proved)),
    )
    wrong = {each.candidate for each in comparison.divergences if each.expected != NO_CANDIDATE}
    own = read_declared(actual.engine, proved) if is_alike and isinstance(actual.engine, DescribedEngine) else ()
    return Rerun(wrong, reader, own)
