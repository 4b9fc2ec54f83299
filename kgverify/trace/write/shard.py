"""Writing and reading one shard of a folder."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.files.manifest import Shard, render_hash, shard_name, write_at_once
from kgverify.trace.hdf5.datasets import write_arrays
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.digests import root_digest
from kgverify.trace.model.levels import Packing

Parts = Mapping[str, Sequence[NDArray[Any]]]


def no_more() -> None:
    """Nothing more is to be done."""


def write_shard(
    folder: Path,
    index: int,
    parts: Parts,
    creator: str,
    packing: Packing = Packing.PLAIN,
    *,
    check: Callable[[], None] = no_more,
    before_naming: Callable[[], None] = no_more,
) -> Shard:
    """Write a shard under its name, safely on disk; what the manifest says of it.

    parts:         the datasets by path, digests among them, each in parts that lie one after the other
    check:         called in another thread, while the shard is written; an error leaves no shard
    before_naming: called when the shard is on disk and was checked, before it is given its name; so does an error of its
    """
    path = folder / shard_name(index)
    arrays = {**parts, "shard/index": [np.array([index], np.uint64)]}

    def vouch() -> int:
        check()
        return _root_of(parts)

    with ThreadPoolExecutor(1) as pool:
        root = pool.submit(vouch)

        def finish() -> None:
            root.result()
            before_naming()

        written = write_at_once(path, lambda temporary: write_arrays(temporary, arrays, creator, packing), finish)
    return Shard(
        name=path.name,
        size=written.size,
        num_candidates=sum(len(part) for part in parts["candidates/query"]),
        num_steps=sum(len(part) for part in parts["digests/sequence"]),
        xxh3=written.xxh3,
        root=render_hash(root.result()),
    )


def _root_of(parts: Parts) -> int:
    num_candidates = sum(len(part) for part in parts["candidates/query"])
    names = [f"candidates/{name}" for name in Candidates._fields]
    # The root needs neither outcomes nor what may be absent.
    columns: list[Any] = [np.concatenate(parts[name]) if name in parts else np.zeros(num_candidates) for name in names]
    return root_digest(Candidates(*columns), np.concatenate(parts["digests/sequence"]))
