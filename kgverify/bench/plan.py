"""The plan of a benchmark: its size, its modes, the work that it measures, and the sample that the reference proves."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.bench.result import Work
from kgverify.errors import UserError, suggest
from kgverify.runs.run import Run


class Size(NamedTuple):
    """The amount of work, and the time limit of its repeats.

    queries, corruptions: of a run; corruptions for each query and side
    slots:   derivations in flight, at most
    sample:  candidates that the reference proves, at most
    seconds: time limit of a mode's repeats, after at least `LEAST_REPEATS`
    """

    queries: int
    corruptions: int
    slots: int
    sample: int
    seconds: float


SIZES: Final = {
    "small": Size(10, 20, 64, 128, 4.0),
    "medium": Size(50, 50, 256, 256, 20.0),
    "large": Size(200, 100, 4096, 512, 60.0),
    "extreme": Size(5000, 100, 65536, 1024, 120.0),
}

FOR_GPUS: Final = ("extreme",)
"""Sizes that take hours on a CPU."""

LEAST_REPEATS: Final = 3
"""Fewer repeats give no estimate of the noise."""


def find_size(name: str) -> Size:
    """Return the size of that name. UserError for an unknown one."""
    if name not in SIZES:
        raise UserError(
            f"unknown size {name!r}", where="size", fix=suggest(name, SIZES) or f"choose {', '.join(SIZES)}"
        )
    return SIZES[name]


@dataclass(frozen=True)
class Plan:
    """The options of a benchmark.

    name:    of the size
    modes:   None for all that make a difference on the device
    repeats: of the steady state, at most
    faults:  planted in the evaluator, for the record
    """

    name: str
    size: Size
    modes: tuple[str, ...] | None = None
    device: str = "auto"
    precision: str = "float32"
    repeats: int = 10
    has_fresh_cache: bool = False
    faults: tuple[str, ...] = ()


def describe_work(run: Run, **more: Any) -> Work:
    """Describe the work on a run for the result. more: the fields of `Work` that a run does not know."""
    limits = run.limits
    policy = run.policy.info
    return Work(
        graph=run.graph.name,
        graph_sha256=run.graph.program.sha256,
        split=run.split,
        seed=run.seed,
        num_queries=run.num_queries,
        num_corruptions=run.num_corruptions,
        policy=policy.name,
        policy_sha256=policy.sha256,
        limits={
            "max_depth": limits.max_depth,
            "max_atoms": limits.max_atoms,
            "max_resolvents": limits.max_resolvents,
            "exclude_query": int(limits.exclude_query),
        },
        **more,
    )


def draw_sample(num_candidates: int, num: int, seed: int) -> NDArray[np.int64]:
    """Draw up to `num` candidates by the seed: int64 [n], ascending."""
    drawn = np.random.default_rng(seed).permutation(num_candidates)[:num]
    return np.sort(drawn).astype(np.int64)
