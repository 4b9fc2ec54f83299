"""The batches of a recording that are not in a shard yet, and the writing of a shard."""

import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.files.writing import noop, renamed_into
from kgverify.trace.files.manifest import Shard, render_hash, shard_name
from kgverify.trace.hdf5.writing import ArrayParts, write_arrays
from kgverify.trace.model.columns import Candidates, Columns, StepBatch, concatenate, join_candidates
from kgverify.trace.model.digests import compute_sequence, root_digest
from kgverify.trace.model.levels import Packing
from kgverify.trace.model.schema import SEQUENCE, Arrays, encode_columns

_MAX_THREADS: Final = 4

_GROUP_STEPS: Final = 1 << 16
"""Smaller batches are joined before their digests are computed."""


class UncommittedBatches:
    """Batches in memory, with their digests if those were given; counts of candidates, steps and bytes."""

    def __init__(self) -> None:
        self._batches: list[StepBatch] = []
        self.num_candidates = self.num_steps = self.num_bytes = 0

    def add(self, columns: Columns, sequence: NDArray[np.uint64] | None) -> None:
        """Add a batch, without a copy."""
        self._batches.append((columns, sequence))
        self.num_candidates += len(columns.candidates.query)
        self.num_steps += len(columns.steps.depth)
        self.num_bytes += sum(column.nbytes for level in columns for column in level)

    def fill(
        self, columns: Columns, sequence: NDArray[np.uint64] | None, max_steps: int, max_bytes: int
    ) -> "UncommittedBatches | None":
        """Return these batches and one more if together they exceed the maximum of steps or bytes; else None."""
        more = copy(self)
        more._batches = []
        more.add(columns, sequence)
        if more.num_steps <= max_steps and more.num_bytes <= max_bytes:
            return None
        more._batches = [*self._batches, *more._batches]
        return more

    def candidates(self) -> Candidates:
        """Return the candidates of all batches."""
        return join_candidates([columns.candidates for columns, _ in self._batches])

    def encode(self, absent: Collection[str], empty: Columns) -> dict[str, list[NDArray[Any]]]:
        """Return the columns and digests by path, in parts that follow one another; `empty` if there is no batch."""

        def encode(group: StepBatch) -> Arrays:
            columns, sequence = group
            arrays = encode_columns(columns, absent)
            arrays[SEQUENCE] = compute_sequence(columns, absent) if sequence is None else sequence
            return arrays

        groups = list(self._group()) if self._batches else [(empty, None)]
        # NumPy lets other threads run while it computes.
        with ThreadPoolExecutor(min(len(groups), os.cpu_count() or 1, _MAX_THREADS)) as pool:
            encoded = list(pool.map(encode, groups))
        return {name: [arrays[name] for arrays in encoded] for name in encoded[0]}

    def _group(self) -> Iterator[StepBatch]:
        group: list[Columns] = []
        num_steps = 0
        for columns, sequence in self._batches:
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


def write_shard(
    folder: Path,
    index: int,
    parts: ArrayParts,
    creator: str,
    packing: Packing = Packing.PLAIN,
    *,
    check: Callable[[], None] = noop,
    before_naming: Callable[[], None] = noop,
) -> Shard:
    """Write a shard under its name, force it to disk, and return its entry for the manifest.

    parts:         its datasets, digests included
    check:         called in another thread, while the shard is written; if it raises, no shard is left
    before_naming: called when the shard is on disk and was checked, before it is renamed; likewise
    """
    path = folder / shard_name(index)
    arrays = {**parts, "shard/index": [np.array([index], np.uint64)]}

    def check_and_hash() -> int:
        check()
        return _root_of(parts)

    with ThreadPoolExecutor(1) as pool:
        root = pool.submit(check_and_hash)

        def finish() -> None:
            root.result()
            before_naming()

        with renamed_into(path, is_durable=True, before_naming=finish) as temporary:
            written = write_arrays(temporary, arrays, creator, packing)
    return Shard(
        name=path.name,
        size=written.size,
        num_candidates=sum(len(part) for part in parts["candidates/query"]),
        num_steps=sum(len(part) for part in parts[SEQUENCE]),
        xxh3=written.xxh3,
        root=render_hash(root.result()),
    )


def _root_of(parts: ArrayParts) -> int:
    # The root does not need the optional columns.
    columns: list[Any] = [parts.get(f"candidates/{name}", parts[SEQUENCE]) for name in Candidates._fields]
    roots = (
        root_digest(Candidates(*part), sequence) for *part, sequence in zip(*columns, parts[SEQUENCE], strict=True)
    )
    return sum(roots) % (1 << 64)
