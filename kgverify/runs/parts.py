"""The division of a run into parts, and the batch size of an engine that proves them.

The run alone determines its parts. So the result of an evaluation does not depend on who proves a part, or when.
"""

import sys
from typing import Final, NamedTuple

import numpy as np

from kgverify.engines.sizes import Workload
from kgverify.ranking.corrupt import ALL, count_candidates
from kgverify.runs.run import Run
from kgverify.trace.model.columns import cut_rows, starts_of

SIZES: Final = {"cuda": (1 << 17, 1 << 20), "cpu": (1 << 13, 1 << 16)}
"""The least and the greatest default size of a part, in candidates. It is large on a GPU, whose slots run empty at the end of
each part."""

RANKED_SIZES: Final = {"cuda": (1 << 25, 1 << 25), "cpu": SIZES["cpu"]}
"""The same for ranks among all corruptions without steps: few of these candidates are proved."""

LEAST_WORK: Final = 5 << 21
"""The rows of the least model's joins that every run may afford: 0.5 s of a CPU."""

WORK_OF_CANDIDATE: Final = {"cpu": 64, "cuda": 4}
"""The further rows for each candidate: a tenth of the time that it takes to prove one, 20 µs or more by one core."""

WORK_OF_TORCH: Final = 48 << 20
"""The rows joined in the time that it takes to import torch, which the native evaluator does not need: 2 s."""

_MIN_PARTS: Final = 64
"""Enough for several GPUs to end at about the same time, where the sizes allow it."""


class Part(NamedTuple):
    """Consecutive queries: their indices, and the number of their candidates."""

    number: int
    queries: range
    num_candidates: int

    @property
    def name(self) -> str:
        """The name of the part's file."""
        return f"part-{self.number:06d}.npz"


class Plan(NamedTuple):
    """The parts of a run.

    size:      the most candidates of a part; a query that alone has more is a part by itself
    rank_only: whether only ranks are computed
    """

    size: int
    parts: tuple[Part, ...]
    rank_only: bool = False


def plan_parts(run: Run, device: str, size: int | None = None, *, rank_only: bool = False) -> Plan:
    """Group consecutive queries whose candidates together are no more than `size`.

    Without `size`, the number of the run's candidates and the kind of device determine it, and nothing else.
    """
    queries = run.queries
    counts = count_candidates(run.graph, run.split, queries, run.num_corruptions)
    if size is None:
        sizes = RANKED_SIZES if rank_only and run.num_corruptions == ALL else SIZES
        least, most = sizes.get(device, sizes["cpu"])
        size = int(np.clip(int(counts.sum()) // _MIN_PARTS, least, most))
    starts = starts_of(counts)
    parts: list[Part] = []
    for begin, end in cut_rows(starts, size):
        parts.append(Part(len(parts), queries[begin:end], int(starts[end] - starts[begin])))
    return Plan(size, tuple(parts), rank_only)


def choose_most_work(run: Run, device: str) -> int:
    """Return the rows that a run's least model may join: a small share of the time that the candidates take to prove."""
    num = int(count_candidates(run.graph, run.split, run.queries, run.num_corruptions).sum())
    least = LEAST_WORK if "torch" in sys.modules else LEAST_WORK - WORK_OF_TORCH
    return least + WORK_OF_CANDIDATE.get(device, WORK_OF_CANDIDATE["cpu"]) * num


def describe_work(run: Run, size: int | None = None, *, rank_only: bool = False, records: bool = False) -> Workload:
    """Return the work of a run for its engine: the candidates of the largest part."""

    def count(device: str) -> int:
        return max(part.num_candidates for part in plan_parts(run, device, size, rank_only=rank_only).parts)

    return Workload(count, records)
