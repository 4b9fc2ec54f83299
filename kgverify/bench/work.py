"""What a benchmark does, told for the record; the sample that the reference proves."""

import numpy as np
from numpy.typing import NDArray

from kgverify.bench.result import Work
from kgverify.runs.run import Run

_MOST_OF_ERROR = 300


def describe_work(
    run: Run,
    *,
    kind: str,
    size: str,
    num_candidates: int,
    slots: int,
    precision: str,
    steps: int = 0,
    faults: tuple[str, ...] = (),
) -> Work:
    """The work on a run."""
    limits = run.limits
    policy = run.policy.info
    return Work(
        kind=kind,
        size=size,
        graph=run.graph.name,
        graph_sha256=run.graph.program.sha256,
        split=run.split,
        seed=run.seed,
        num_queries=run.num_queries,
        num_corruptions=run.num_corruptions,
        num_candidates=num_candidates,
        slots=slots,
        policy=policy.name,
        policy_sha256=policy.sha256,
        limits={
            "max_depth": limits.max_depth,
            "max_atoms": limits.max_atoms,
            "max_resolvents": limits.max_resolvents,
            "exclude_query": int(limits.exclude_query),
        },
        precision=precision,
        steps=steps,
        faults=faults,
    )


def draw_sample(num_candidates: int, num: int, seed: int) -> NDArray[np.int64]:
    """int64 [n]: so many candidates, or all, drawn by the seed, ascending."""
    drawn = np.random.default_rng(seed).permutation(num_candidates)[:num]
    return np.sort(drawn).astype(np.int64)


def describe_error(error: BaseException) -> str:
    """Its kind and the lines of its text that say something, cut where it is long."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line)
    if len(text) > _MOST_OF_ERROR:
        text = f"{text[:_MOST_OF_ERROR]} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
