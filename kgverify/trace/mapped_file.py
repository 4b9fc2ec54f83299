"""One trace file, mapped into memory: a column is read where somebody looks at it, and no sooner."""

import mmap
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.columns import Candidates, Columns, Digests, Resolvents, Steps, expand_rows
from kgverify.trace.hdf5 import ChunkReader, locate_arrays
from kgverify.trace.offsets import Offsets
from kgverify.trace.schema import FIELD_OF, RECORD_AGAIN, Arrays
from kgverify.trace.stored import StoredArray

_BLOCK_BYTES: Final = 1 << 20

# What counts rows below, and the level or the ragged column that it counts.
COUNTS: Final = {
    "candidates/num_steps": "steps/num_atoms",
    "steps/num_resolvents": "resolvents/num_atoms",
    "steps/num_atoms": "steps/goal_atoms",
    "resolvents/num_atoms": "resolvents/atoms",
}
_LENGTH_FROM: Final = {
    "candidates": "candidates/num_steps",
    "steps": "steps/num_atoms",
    "resolvents": "resolvents/num_atoms",
    "digests": "steps/num_atoms",
}
RAGGED: Final = ("steps/goal_atoms", "resolvents/atoms")


class MappedFile:
    """A trace file whose structure was checked. Arrays that it gives are views of the file: read-only.

    UserError for what `docs/trace-format.md` refuses, as far as links, types, shapes, storage and lengths tell.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = locate_arrays(path)
        self.num_candidates = self.length("candidates/num_steps")
        self.num_steps = self.length("steps/num_atoms")
        self.num_resolvents = self.length("resolvents/num_atoms")
        self._check_lengths()
        self._offsets: dict[str, Offsets] = {}

    def length(self, name: str) -> int:
        """Rows of a dataset; of an absent one, of its level."""
        stored = self.stored.get(name) or self.stored[_LENGTH_FROM[name.split("/")[0]]]
        return stored.shape[0]

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of a dataset, or that an absent one is given in."""
        return np.dtype(self.stored[name].dtype if name in self.stored else FIELD_OF[name].dtypes[-1])

    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Rows of a dataset: a view where it is contiguous, else read; zeros where it is absent."""
        stored = self.stored.get(name)
        if stored is None:
            return np.zeros(end - begin, FIELD_OF[name].dtypes[-1])
        if stored.offset is None:
            return self._read_chunks(name, stored, begin, end)
        return self._view(stored)[begin:end]

    def whole(self, name: str) -> NDArray[Any]:
        """All rows; what is not contiguous is loaded, and kept."""
        stored = self.stored.get(name)
        if stored is None or stored.offset is not None:
            return self.read(name, 0, self.length(name))
        if name not in self._loaded:
            self._loaded[name] = self.read(name, 0, stored.shape[0])
        return self._loaded[name]

    def small(self, name: str) -> NDArray[Any]:
        """A dataset that is not large, its checksum verified."""
        array = self.read(name, 0, self.length(name))
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
        if found != self.stored[name].checksum:
            raise UserError(
                f"checksum is {found:016x}, expected {self.stored[name].checksum:016x}: the data were altered",
                where=f"{self.path}:{name}",
                fix=RECORD_AGAIN,
            )

    def offsets(self, name: str) -> Offsets:
        """Where the rows below begin, for a column of counts."""
        if name not in self._offsets:
            length, total = self.length(name), self.length(COUNTS[name])
            place = f"{self.path}:{name}"
            self._offsets[name] = Offsets(lambda begin, end: self.read(name, begin, end), length, total, place)
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
        return Columns(none, Steps(*[*steps, goals]), Resolvents(*[*resolvents, atoms]))

    def gather_candidates(self, rows: NDArray[np.int64]) -> Columns:
        """Candidates in any order, with all their steps."""

        def below(name: str, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
            counts = self.whole(name)
            first = self.offsets(name).of(chosen, counts)
            bounds = np.stack((first, first + counts[chosen]), axis=1).reshape(-1)
            return expand_rows(bounds, np.arange(0, len(bounds), 2))

        steps = below("candidates/num_steps", rows)
        resolvents = below("steps/num_resolvents", steps)
        elements = {"candidates": rows, "steps": steps, "resolvents": resolvents}
        ragged = {RAGGED[0]: below("steps/num_atoms", steps), RAGGED[1]: below("resolvents/num_atoms", resolvents)}

        def take(level: str, names: tuple[str, ...]) -> list[NDArray[Any]]:
            paths = [f"{level}/{name}" for name in names]
            return [self.whole(path)[ragged.get(path, elements[level])] for path in paths]

        return Columns(
            Candidates(*take("candidates", Candidates._fields)),
            Steps(*take("steps", Steps._fields)),
            Resolvents(*take("resolvents", Resolvents._fields)),
        )

    def read_digests(self, begin: int, end: int) -> Digests | None:
        """The stored digests of some steps; None where the file has none."""
        if "digests/sequence" not in self.stored:
            return None
        return Digests(*(self.read(f"digests/{name}", begin, end) for name in Digests._fields))

    def read_group(self, *prefixes: str) -> Arrays:
        """Small datasets by path, their checksums verified."""
        return {name: self.small(name) for name in self.stored if name.startswith(prefixes)}

    def release(self) -> None:
        """Let the system take back the pages that were looked at; they are read again when they are needed."""
        if hasattr(mmap, "MADV_DONTNEED") and "_map" in self.__dict__ and self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    @cached_property
    def _map(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _chunks(self) -> ChunkReader:
        return ChunkReader(self.path)

    @cached_property
    def _loaded(self) -> Arrays:
        return {}

    def _view(self, stored: StoredArray) -> NDArray[Any]:
        # numpy.memmap would map the file once for each dataset.
        return np.ndarray(stored.shape, stored.dtype, buffer=self._map, offset=stored.offset or 0)

    def _read_chunks(self, name: str, stored: StoredArray, begin: int, end: int) -> NDArray[Any]:
        if begin == end:
            return np.zeros((0, *stored.shape[1:]), stored.dtype)
        return self._chunks.read(name, stored, begin, end)

    def _check_lengths(self) -> None:
        for group, key in (*_LENGTH_FROM.items(), ("rankings", "rankings/query")):
            members = {
                name.partition("/")[2]: stored.shape[0]
                for name, stored in self.stored.items()
                if name.startswith(f"{group}/") and name not in RAGGED
            }
            expected = self.stored[key].shape[0] if members else 0
            if any(length != expected for length in members.values()):
                raise UserError(
                    f"lengths differ: {', '.join(f'{n} {length}' for n, length in members.items())}",
                    where=f"{self.path}:{group}",
                    fix="write one row for each in every column",
                )
