"""One trace file, mapped into memory: a column is read where somebody looks at it, and no sooner."""

import mmap
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.hdf5.byte_ranges import Place
from kgverify.trace.hdf5.chunk_reader import ChunkCache, PackedReader
from kgverify.trace.hdf5.datasets import locate_arrays
from kgverify.trace.hdf5.stored_file import check_checksum, open_again
from kgverify.trace.model.columns import (
    Candidates,
    Columns,
    Digests,
    Resolvents,
    StageItems,
    Steps,
    expand_rows,
    no_stage_items,
)
from kgverify.trace.model.levels import TraceLevel
from kgverify.trace.model.offsets import Offsets
from kgverify.trace.model.required_datasets import check_level, level_of
from kgverify.trace.model.schema import FIELD_OF, STAGES, Arrays, absent_column, num_rows

_BLOCK_BYTES: Final = 1 << 20

# What counts rows below, and the level or the ragged column that it counts.
COUNTS: Final = {
    "candidates/num_steps": "steps/num_atoms",
    "steps/num_resolvents": "resolvents/num_atoms",
    "steps/num_atoms": "steps/goal_atoms",
    "resolvents/num_atoms": "resolvents/atoms",
}
RAGGED: Final = ("steps/goal_atoms", "resolvents/atoms")

# The same of what the stages gave, which is not compared by columns.
STAGE_COUNTS: Final = {"stages/num_items": "stages/stage", "stages/num_atoms": "stages/atoms"}
_PER_STEP: Final = ("stages/told", "stages/num_items")


StoredDigests = dict[str, NDArray[np.uint64]]
"""By their names in `Digests`, those that a file holds."""


class MappedFile:
    """A trace file of any level whose structure was checked. Of what is contiguous the arrays are views: read-only.

    cache: of the chunks of what is packed

    UserError for what `docs/trace-format.md` refuses, as far as links, types, shapes, storage, level and lengths tell.
    """

    def __init__(self, path: Path, cache: ChunkCache | None = None) -> None:
        self.path = path
        self.stored, self._identity = locate_arrays(path)
        self._packed = PackedReader(path, self._identity, cache or ChunkCache())
        check_level(self.stored, self.level, str(path))
        self._num_rows = num_rows({name: stored.shape[0] for name, stored in self.stored.items()})
        self.num_candidates, self.num_steps, self.num_resolvents = self._num_rows.values()
        self._num_rows["digests"] = self.num_steps
        self._check_lengths()
        self._offsets: dict[str, Offsets] = {}

    @cached_property
    def level(self) -> TraceLevel:
        """How much of each step it keeps."""
        return level_of(self.small("header"), str(self.path))

    @property
    def has_stages(self) -> bool:
        """Whether it holds what the stages gave."""
        return STAGES[0] in self.stored

    @property
    def fields(self) -> frozenset[str]:
        """The columns that it holds, as `Trace.fields` names them."""
        shared = ("header", "symbols/", "shard/")
        return frozenset(FIELD_OF[path].name for path in self.stored if not path.startswith(shared))

    def length(self, name: str) -> int:
        """Rows of a dataset; of an absent one, of its level, and no atoms."""
        if name in self.stored:
            return self.stored[name].shape[0]
        return 0 if FIELD_OF[name].width else self._num_rows[name.split("/")[0]]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of a dataset, or that an absent one is given in."""
        return np.dtype(self.stored[name].dtype if name in self.stored else FIELD_OF[name].dtypes[-1])

    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Rows of a dataset: a view where it is contiguous, else read; zeros where it is absent."""
        stored = self.stored.get(name)
        if stored is None:
            return absent_column(name, end - begin)
        if stored.place.offset < 0:
            return self._packed.read(stored.place, begin, end)
        return self._view(stored.place)[begin:end]

    def take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a dataset in any order, as `read` gives them."""
        stored = self.stored.get(name)
        if stored is None:
            return absent_column(name, len(rows))
        if stored.place.offset < 0:
            return self._packed.take(stored.place, rows)
        taken: NDArray[Any] = self._view(stored.place)[rows]
        return taken

    def read_all(self, name: str) -> NDArray[Any]:
        """All rows, as `read` gives them."""
        return self.read(name, 0, self.length(name))

    def small(self, name: str) -> NDArray[Any]:
        """A dataset that is not large, its checksum verified."""
        array = self.read_all(name)
        self.check_sum(name, xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).data))
        return array

    def verify(self, name: str) -> None:
        """UserError unless a dataset's bytes have the checksum stored with it."""
        stored = self.stored[name]
        hasher = xxhash.xxh3_64()
        num_rows = max(1, _BLOCK_BYTES // (self.dtype(name).itemsize * (stored.shape[1] if stored.shape[1:] else 1)))
        for begin in range(0, stored.shape[0], num_rows):
            hasher.update(self.read(name, begin, min(begin + num_rows, stored.shape[0])).data)
        self.check_sum(name, hasher.intdigest())

    def check_sum(self, name: str, found: int) -> None:
        """UserError unless this is the checksum stored with a dataset."""
        check_checksum(found, self.stored[name].checksum, f"{self.path}:{name}")

    def offsets(self, name: str) -> Offsets:
        """Where the rows below begin, for a column of counts."""
        if name not in self._offsets:
            length, total = self.length(name), self.length((COUNTS | STAGE_COUNTS)[name])
            place = f"{self.path}:{name}"
            self._offsets[name] = Offsets(
                lambda begin, end: self.read(name, begin, end),
                lambda rows: self.take(name, rows),
                length,
                total,
                place,
            )
        return self._offsets[name]

    def read_candidates(self, begin: int, end: int) -> Columns:
        """Candidates with all their steps."""
        first = self.offsets("candidates/num_steps")
        candidates = Candidates(*(self.read(f"candidates/{name}", begin, end) for name in Candidates._fields))
        return self.read_steps(first.at(begin), first.at(end))._replace(candidates=candidates)

    def read_steps(self, begin: int, end: int) -> Columns:
        """Steps with all their resolvents; no candidates."""
        first_goal, first_resolvent, first_atom = (
            self.offsets(name) for name in ("steps/num_atoms", "steps/num_resolvents", "resolvents/num_atoms")
        )
        low, high = first_resolvent.at(begin), first_resolvent.at(end)
        steps = [self.read(f"steps/{name}", begin, end) for name in Steps._fields[:-1]]
        resolvents = [self.read(f"resolvents/{name}", low, high) for name in Resolvents._fields[:-1]]
        goals = self.read("steps/goal_atoms", first_goal.at(begin), first_goal.at(end))
        atoms = self.read("resolvents/atoms", first_atom.at(low), first_atom.at(high))
        none = Candidates(*(self.read(f"candidates/{name}", 0, 0) for name in Candidates._fields))
        items = self._read_items(begin, end) if self.has_stages else no_stage_items()
        return Columns(none, Steps(*[*steps, goals]), Resolvents(*[*resolvents, atoms]), items)

    def _read_items(self, begin: int, end: int) -> StageItems:
        first_item, first_atom = (self.offsets(name) for name in STAGE_COUNTS)
        low, high = first_item.at(begin), first_item.at(end)
        ranges = dict.fromkeys(_PER_STEP, (begin, end)) | {STAGES[-1]: (first_atom.at(low), first_atom.at(high))}
        return StageItems(*(self.read(name, *ranges.get(name, (low, high))) for name in STAGES))

    def gather_candidates(self, rows: NDArray[np.int64]) -> Columns:
        """Candidates in any order, with all their steps."""

        def below(name: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
            first = self.offsets(name).of(chosen)
            bounds = np.stack((first, first + self.take(name, chosen)), axis=1).reshape(-1)
            return expand_rows(bounds, np.arange(0, len(bounds), 2))

        steps = below("candidates/num_steps", rows)
        resolvents = below("steps/num_resolvents", steps)
        elements = {"candidates": rows, "steps": steps, "resolvents": resolvents}
        ragged = {RAGGED[0]: below("steps/num_atoms", steps), RAGGED[1]: below("resolvents/num_atoms", resolvents)}

        def take(level: str, names: tuple[str, ...]) -> list[NDArray[Any]]:
            paths = [f"{level}/{name}" for name in names]
            return [self.take(path, ragged.get(path, elements[level])) for path in paths]

        items = no_stage_items()
        if self.has_stages:
            elements["stages"] = below("stages/num_items", steps)
            ragged |= dict.fromkeys(_PER_STEP, steps)
            ragged["stages/atoms"] = below("stages/num_atoms", elements["stages"])
            items = StageItems(*take("stages", StageItems._fields))
        return Columns(
            Candidates(*take("candidates", Candidates._fields)),
            Steps(*take("steps", Steps._fields)),
            Resolvents(*take("resolvents", Resolvents._fields)),
            items,
        )

    def read_digests(self, begin: int, end: int) -> StoredDigests:
        """The digests of some steps that the file holds: none, that of the sequence, or all."""
        held = [name for name in Digests._fields if f"digests/{name}" in self.stored]
        return {name: self.read(f"digests/{name}", begin, end) for name in held}

    def read_group(self, *prefixes: str) -> Arrays:
        """Small datasets by path, their checksums verified."""
        return {name: self.small(name) for name in self.stored if name.startswith(prefixes)}

    def release(self) -> None:
        """Let the system take back the pages that were looked at; they are read again when they are needed."""
        if hasattr(mmap, "MADV_DONTNEED") and "_map" in self.__dict__ and self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def _map(self) -> mmap.mmap:
        with open_again(self.path, self._identity) as descriptor:
            return mmap.mmap(descriptor, self._identity[2], access=mmap.ACCESS_READ)

    def _view(self, place: Place) -> NDArray[Any]:
        # That it lies within the file was checked. numpy.memmap would map the file once for each dataset.
        return np.ndarray(place.shape, place.dtype, buffer=self._map, offset=place.offset)

    def _check_lengths(self) -> None:
        groups = {
            group: [name for name in self.stored if name.startswith(f"{group}/") and name not in RAGGED]
            for group in (*self._num_rows, "rankings")
        }
        groups["steps"] += [name for name in _PER_STEP if name in self.stored]
        groups["stages"] = [name for name in STAGES[len(_PER_STEP) : -1] if name in self.stored]
        for group, names in groups.items():
            members = {name.removeprefix(f"{group}/"): self.stored[name].shape[0] for name in names}
            expected = self._num_rows.get(group, next(iter(members.values()), 0))
            if any(length != expected for length in members.values()):
                raise UserError(
                    f"lengths differ: {', '.join(f'{n} {length}' for n, length in members.items())}",
                    where=f"{self.path}:{group}",
                    fix="write one row for each in every column",
                )
