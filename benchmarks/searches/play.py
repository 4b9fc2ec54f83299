"""Runs of search engines outside of the differ: a fault must change what its engine records."""

from typing import Any, Final

import numpy as np

from benchmarks.searches.faults import Settings
from kgverify.ranking.draw import draw_candidates
from kgverify.runs.job import Engines, Job, Proofs, Queries, Source
from kgverify.trace.model.columns import Columns

TOLERANCE: Final = 1e-9
"""The rounding of scores and their sums, in nats."""


def play(engine: Any, settings: Settings) -> Columns:
    """Return what an engine records in a run."""
    queries = Queries.choose(settings.queries, settings.corruptions, 1)
    proofs = Proofs(settings.limits, settings.policy)
    run = Job(Source(settings.graph), queries, Engines(engine, None), proofs).make_run()
    candidates = draw_candidates(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    return engine(run.graph.program, run.limits, run.policy).prove(candidates)  # type: ignore[no-any-return]


def list_differences(expected: Columns, actual: Columns) -> list[str]:
    """Return the names of the columns that differ by more than rounding."""
    names = []
    for level in ("candidates", "steps", "resolvents", "paths"):
        left, right = getattr(expected, level), getattr(actual, level)
        for name, one, other in zip(left._fields, left, right, strict=True):
            is_equal = one.shape == other.shape and (
                np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
                if one.dtype.kind == "f"
                else (one == other).all()
            )
            if not is_equal:
                names.append(f"{level}.{name}")
    return names
