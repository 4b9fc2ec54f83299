"""The reference prover on several processes or machines."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kgverify.engines.protocol import Engine
from kgverify.errors import UserError, find_missing_dependency
from kgverify.runs.run import Pipeline, Run, reference_pipeline, reference_triples
from kgverify.runs.separate_workers import RepeatingWorkers

if TYPE_CHECKING:
    from kgverify.engines.reference.parallel import FannedOut

_MOST_BESIDE: Final = 8

_NUM_OF_PROCESS: Final = 1024
"""The candidates for which a further process is worth its start."""


@contextmanager
def reference_over(run: Run, *, jobs: int = 1, scheduler: str | None = None) -> Iterator[Pipeline]:
    """Provide the reference's pipeline until the context ends; its traces are the same wherever it runs.

    jobs:      processes on this machine; 1 means this process
    scheduler: the address of a dask scheduler, used instead of `jobs`; its workers need kgverify installed

    UserError for a scheduler that does not answer, or if the package `distributed` is missing.
    """
    if scheduler is not None:
        with _connect(scheduler) as client:
            yield with_reference_ranking(
                _fan_out(run, client.get_executor(), share=partial(client.scatter, broadcast=True))
            )
    elif jobs > 1:
        with RepeatingWorkers(jobs) as executor:
            yield with_reference_ranking(_fan_out(run, executor))
    else:
        yield reference_pipeline(run)


@contextmanager
def reference_beside(run: Run, num: int) -> Iterator[Pipeline]:
    """Provide the reference's pipeline to prove `num` candidates after other work.

    Its processes start at once, if they save time and there are cores left.
    """
    jobs = min(_MOST_BESIDE, len(os.sched_getaffinity(0)) // 2, (num - 1) // _NUM_OF_PROCESS)
    if jobs < 2:
        yield reference_pipeline(run)
        return
    with RepeatingWorkers(jobs) as executor:
        engine = _fan_out(run, executor)
        engine.warm_up(jobs)
        yield with_reference_ranking(engine)


def _fan_out(run: Run, executor: Any, **options: Any) -> "FannedOut":
    from kgverify.engines.reference.engine import ReferenceEngine
    from kgverify.engines.reference.parallel import FannedOut

    make = partial(ReferenceEngine, run.graph.program, run.limits, run.policy, triples=reference_triples(run))
    return FannedOut(make, executor, **options)


def with_reference_ranking(engine: Engine) -> Pipeline:
    """Return an engine's pipeline with the corruptions and ranks of the reference, implemented apart from kgverify's."""
    from kgverify.engines.reference import ranking

    return Pipeline(engine, ranking.draw_candidates, ranking.rank_candidates)


def _connect(scheduler: str) -> Any:
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise find_missing_dependency(error, where="--scheduler") or error from error
    try:
        return distributed.Client(scheduler)
    except (OSError, ValueError) as error:
        raise UserError(
            f"no scheduler answers at {scheduler!r} ({error})",
            where="--scheduler",
            fix="start one with `dask scheduler`, and give the address that it prints",
        ) from error
