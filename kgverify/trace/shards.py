"""Writing and reading one shard of a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.columns import Candidates
from kgverify.trace.digests import root_digest
from kgverify.trace.hdf5 import write_arrays
from kgverify.trace.levels import Packing
from kgverify.trace.manifest import Shard, render_hash, shard_name, write_at_once

Parts = Mapping[str, Sequence[NDArray[Any]]]


def write_shard(folder: Path, index: int, parts: Parts, creator: str, packing: Packing = Packing.PLAIN) -> Shard:
    """Write a shard under its name, safely on disk; what the manifest says of it.

    parts: the datasets by path, digests among them, each in parts that lie one after the other
    """
    path = folder / shard_name(index)
    arrays = {**parts, "shard/index": [np.array([index], np.uint64)]}
    written = write_at_once(path, lambda temporary: write_arrays(temporary, arrays, creator, packing))
    names = [f"candidates/{name}" for name in Candidates._fields]
    num_candidates = sum(len(part) for part in parts["candidates/query"])
    # The root needs neither outcomes nor what may be absent.
    columns: list[Any] = [np.concatenate(parts[name]) if name in parts else np.zeros(num_candidates) for name in names]
    candidates = Candidates(*columns)
    sequence = np.concatenate(parts["digests/sequence"])
    return Shard(
        name=path.name,
        size=written.size,
        num_candidates=num_candidates,
        num_steps=len(sequence),
        xxh3=written.xxh3,
        root=render_hash(root_digest(candidates, sequence)),
    )
