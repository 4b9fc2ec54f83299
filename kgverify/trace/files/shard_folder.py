"""The folder of a recording as it grows: its shards and its journal."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.trace.files.disk import make_folder
from kgverify.trace.files.journal import Journal, JournalWriter, Start, journal_name, list_journals
from kgverify.trace.files.manifest import Manifest, Part, list_shards, write_manifest
from kgverify.trace.model.columns import Columns, Rankings
from kgverify.trace.model.levels import TraceLevel, is_kept, packing_of
from kgverify.trace.model.schema import Arrays, encode_level
from kgverify.trace.write.shard import write_shard
from kgverify.trace.write.uncommitted import Pending, encode_batch


class ShardFolder:
    """The shards that are committed.

    start: what a journal says of the recording
    whole: what every file repeats
    """

    def __init__(self, path: Path, start: Start, part: Part | None, level: TraceLevel, whole: Arrays) -> None:
        self.path = path
        self.manifest: Manifest = list_shards((), is_complete=False, creator=start.creator, part=part)
        self._start, self._part, self._level, self._whole = start, part, level, whole
        self._packing = packing_of(level, is_archived=start.is_archived)

    def encode(
        self, pending: Pending, empty: Columns, rankings: Rankings | None = None
    ) -> dict[str, list[NDArray[Any]]]:
        """What a file holds, by path, in parts that need not be joined; digests included."""
        whole = self._whole if rankings is None else self._whole | encode_level("rankings", rankings)
        kept = {n: p for n, p in pending.encode(self._start.absent, empty).items() if is_kept(n, self._level)}
        return {name: [array] for name, array in whole.items()} | kept

    def add(
        self,
        index: int,
        parts: dict[str, list[NDArray[Any]]],
        check: Callable[[], None],
        wait: Callable[[], None],
        *,
        is_complete: bool = False,
    ) -> None:
        """Write a shard: the file, then its name, then the manifest that lists it.

        check: called while the file is written
        wait:  called before the file is given its name, until the shard before is listed
        """
        shard = write_shard(
            self.path, index, parts, self._start.creator, self._packing, check=check, before_naming=wait
        )
        shards = (*self.manifest.shards, shard)
        manifest = list_shards(shards, is_complete=is_complete, creator=self._start.creator, part=self._part)
        write_manifest(self.path, manifest)
        self.manifest = manifest


class JournalOfShards:
    """A journal in a folder, one for each shard that does not come at once.

    start:                  what each says of the recording, but for the shard
    max_seconds, max_bytes: as `JournalWriter` has them
    """

    def __init__(
        self,
        folder: Path,
        start: Start,
        level: TraceLevel,
        shared: Arrays,
        *,
        max_seconds: float,
        max_bytes: int,
    ) -> None:
        self._folder = folder
        self._start, self._level, self._shared = start, level, shared
        self._max_seconds, self._max_bytes = max_seconds, max_bytes
        self._writer: JournalWriter | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything was appended since the last shard."""
        return self._writer is not None

    def append(self, shard: int, columns: Columns, sequence: NDArray[np.uint64] | None) -> bool:
        """Write a batch that is to become part of a shard; whether it, and all before, was forced to disk."""
        if self._writer is None:
            make_folder(self._folder)
            self._writer = self._open(shard)
            self._writer.begin(msgspec.structs.replace(self._start, shard=shard), self._shared)
        batch = encode_batch(columns, sequence, self._start.absent, self._level)
        return self._writer.append(batch, len(columns.candidates.query), len(columns.steps.depth))

    def go_on(self, shard: int, journal: Journal) -> None:
        """Go on with one that was left behind."""
        self._writer = self._open(shard)
        self._writer.go_on(journal)

    def sync(self) -> bool:
        """Force what there is to disk; whether there is anything."""
        if self._writer is not None:
            self._writer.sync()
        return self._writer is not None

    def save(self) -> bool:
        """After a failure: force to disk what is there, and close; whether that could be done."""
        if self._writer is None:
            return False
        is_saved = self._writer.save()
        self._writer.close()
        return is_saved

    def end(self) -> None:
        """What was journalled is safe elsewhere."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for path in list_journals(self._folder):
            path.unlink()

    def _open(self, shard: int) -> JournalWriter:
        path = self._folder / journal_name(shard)
        return JournalWriter(path, max_seconds=self._max_seconds, max_bytes=self._max_bytes)
