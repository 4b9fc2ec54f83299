"""Encoding the batches of a recording, and writing a shard."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from kgverify.files.writing import renamed_into
from kgverify.trace.files.manifest import Shard, numbers_of, render_hash
from kgverify.trace.hdf5.writing import ArrayParts, write_arrays
from kgverify.trace.model.columns import Candidates, Columns, StepBatch, concatenate
from kgverify.trace.model.digests import compute_sequence, root_digest
from kgverify.trace.model.levels import Packing
from kgverify.trace.model.schema import SEQUENCE, Arrays, encode_columns

_MAX_THREADS: Final = 4

_GROUP_STEPS: Final = 1 << 16
"""Smaller batches are joined before their digests are computed."""


def encode_batches(batches: Sequence[StepBatch], absent: Collection[str]) -> list[Arrays]:
    """Return the columns and digests of batches by path, in parts that follow one another."""

    def encode(group: StepBatch) -> Arrays:
        columns, sequence = group
        arrays = encode_columns(columns, absent)
        arrays[SEQUENCE] = compute_sequence(columns, absent) if sequence is None else sequence
        return arrays

    # NumPy lets other threads run while it computes.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS)) as pool:
        return list(pool.map(encode, _group(batches)))


def _group(batches: Iterable[StepBatch]) -> Iterator[StepBatch]:
    group: list[Columns] = []
    num_steps = 0
    for columns, sequence in batches:
        if group and (sequence is not None or num_steps + len(columns.steps.depth) > _GROUP_STEPS):
            yield concatenate(group), None
            group, num_steps = [], 0
        if sequence is not None:
            yield columns, sequence
        else:
            group.append(columns)
            num_steps += len(columns.steps.depth)
    if group:
        yield concatenate(group), None


def write_shard(folder: Path, name: str, parts: ArrayParts, creator: str, packing: Packing = Packing.PLAIN) -> Shard:
    """Write a shard under its name, force it to disk, and return its entry for the manifest.

    parts: its datasets, digests included
    """
    arrays = {**parts, "shard/index": [np.array(numbers_of(name), np.uint64)]}
    with (
        ThreadPoolExecutor(1) as pool,
        renamed_into(folder / name, is_durable=True) as temporary,
    ):
        root = pool.submit(_root_of, parts)
        checksum = write_arrays(temporary, arrays, creator, packing)
    return Shard(
        name=name,
        size=(folder / name).stat().st_size,
        num_candidates=sum(len(part) for part in parts["candidates/query"]),
        num_steps=sum(len(part) for part in parts[SEQUENCE]),
        xxh3=render_hash(checksum),
        root=render_hash(root.result()),
    )


def _root_of(parts: ArrayParts) -> int:
    # The root does not need the optional columns.
    columns: list[Any] = [parts.get(f"candidates/{name}", parts[SEQUENCE]) for name in Candidates._fields]
    roots = (
        root_digest(Candidates(*part), sequence) for *part, sequence in zip(*columns, parts[SEQUENCE], strict=True)
    )
    return sum(roots) % (1 << 64)
