"""Traces of the shape of real ones, of any size: 8.1 resolvents a step with a long tail, 2.86 atoms a goal."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.limits import Limits
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Candidates, Columns, Rankings, Resolvents, Steps
from kgverify.trace.model.header import EngineInfo, Header, PolicyInfo
from kgverify.trace.write.writer import NO_CLAUSES, Clauses, Storage, TraceWriter

NUM_PREDICATES: Final = 20
NUM_CONSTANTS: Final = 2_000
SYMBOLS: Final = Symbols(
    tuple(f"p{i}" for i in range(NUM_PREDICATES)), tuple(f"entity {i}" for i in range(NUM_CONSTANTS))
)
HEADER: Final = Header(EngineInfo("synthetic", precision="float32"), Limits(), PolicyInfo("none"), "")

DEFAULTS: Final = Storage()


def make_columns(seed: int, num_steps: int) -> Columns:
    """Make candidates with this number of steps in total; the same seed gives the same candidates."""
    random = np.random.default_rng(seed)

    def atoms(num: int) -> NDArray[np.int32]:
        found = random.integers(-4, NUM_CONSTANTS, (num, 3), np.int32)
        found[:, 0] = random.integers(0, NUM_PREDICATES, num, np.int32)
        return found

    lengths = random.integers(1, 20, num_steps // 5 + 1).astype(np.uint32)
    ends = np.cumsum(lengths)
    num = int(np.searchsorted(ends, num_steps)) + 1
    lengths = lengths[:num]
    lengths[-1] -= int(ends[num - 1]) - num_steps
    num_resolvents = np.clip(np.exp(random.normal(1.42, 1.21, num_steps)), 1, 120).astype(np.uint32)
    total = int(num_resolvents.sum())
    goal_sizes, sizes = (np.clip(1 + random.poisson(1.87, n), 1, 6).astype(np.uint16) for n in (num_steps, total))
    return Columns(
        Candidates(
            random.integers(0, 10_000, num, np.int32),
            random.integers(0, 2, num, np.int8),
            atoms(num),
            lengths,
            random.integers(1, 4, num, np.int8),
            np.zeros(num, np.uint8),
            random.normal(size=num),
        ),
        Steps(
            random.integers(0, 20, num_steps, np.uint16),
            goal_sizes,
            num_resolvents,
            np.zeros(num_steps, np.uint32),
            np.zeros(num_steps, np.uint32),
            (random.random(num_steps) * num_resolvents).astype(np.int32),
            np.zeros(num_steps, np.int8),
            atoms(int(goal_sizes.sum())),
        ),
        Resolvents(
            np.zeros(total, np.uint8),
            sizes,
            random.integers(1, 3, total, np.uint8),
            random.integers(0, 1_000, total, np.int32),
            random.normal(size=total).astype(np.float32),
            atoms(int(sizes.sum())),
        ),
    )


def write_synthetic(path: Path, num_steps: int, *, shard_steps: int = 1_000_000, seed: int = 0) -> None:
    """Write a trace of this number of steps: shards of `shard_steps`, or one file if one shard is enough."""
    with TraceWriter(path, HEADER, SYMBOLS, storage=Storage(shard_steps=shard_steps)) as writer:
        for begin in range(0, num_steps, 250_000):
            writer.append(make_columns(seed + begin, min(250_000, num_steps - begin)))
            if num_steps > shard_steps and (begin + 250_000) % shard_steps == 0:
                writer.commit()


def write_trace(
    path: Path,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    *,
    clauses: Clauses = NO_CLAUSES,
    storage: Storage = DEFAULTS,
) -> None:
    """Write a whole trace as one file, at once."""
    whole = replace(storage, shard_steps=1 << 62, shard_bytes=1 << 62, commit_seconds=inf)
    with TraceWriter(path, header, symbols, clauses=clauses, storage=whole) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)
