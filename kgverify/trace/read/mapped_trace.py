"""A trace that stays on disk: opened in milliseconds, read where it is looked at, whatever its size."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.files.manifest import Manifest, Shard, check_no_link, read_manifest
from kgverify.trace.hdf5.chunk_reader import ChunkCache
from kgverify.trace.model.columns import Candidates, Columns, Digests, Rankings, concatenate, select_candidates
from kgverify.trace.model.header import Header
from kgverify.trace.model.lazy_names import LazyNames
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.schema import FIELD_OF, RECORD_AGAIN, Arrays, decode_rules, decode_symbols
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import check_facts, check_rankings, check_rules
from kgverify.trace.read.mapped_file import MappedFile, StoredDigests
from kgverify.trace.read.reader import SHARED, decode_header, partial_of


class MappedTrace:
    """A trace file, or a folder of shards, seen as one; UserError where the structure is not that of the format.

    Rows are counted over all files. Checksums are verified of what is small when it is read, of the rest by `verify`
    or by whoever passes over it; digests and the values of columns are not checked here.

    faults: shards that are missing or doubled, in words; they are left out. Without `tolerates_shards` a UserError.
    is_lazy: open a shard when it is first looked into, and check no sooner that it is what the manifest says
    """

    def __init__(self, path: Path | str, *, tolerates_shards: bool = False, is_lazy: bool = False) -> None:
        self.path = Path(path)
        self.source = str(path)
        self.faults: tuple[str, ...] = ()
        self.shards: tuple[Shard | None, ...] = (None,)
        self._tolerates_shards = tolerates_shards
        self._cache = ChunkCache()
        if self.path.is_dir() and is_lazy:
            self._list_folder()
            return
        if self.path.is_dir():
            self._open_folder()
        elif self.path.is_file():
            self.files: Sequence[MappedFile] = [self._open(self.path)]
            self.is_complete = "shard/index" not in self.files[0].stored
        else:
            partial = partial_of(self.path)
            fix = (
                f"its recording did not finish: resume it, or read {partial}" if partial.is_dir() else "check the path"
            )
            raise UserError("no such trace", where=self.source, fix=fix)
        self._count([(f.num_candidates, f.num_steps) for f in self.files])

    @property
    def num_resolvents(self) -> int:
        """Resolvents in all files."""
        return sum(file.num_resolvents for file in self.files)

    @cached_property
    def header(self) -> Header:
        """What the trace says of itself."""
        file = self.files[0]
        return decode_header({"header": file.small("header")}, str(file.path))

    @property
    def has_goals(self) -> bool:
        """Whether it is of a level that keeps the atoms of its goals."""
        return has_goals(self.header.level)

    @cached_property
    def symbols(self) -> Symbols:
        """The names of predicates and constants."""
        return decode_symbols(self.files[0].read_group("symbols/"), str(self.files[0].path))

    @cached_property
    def program(self) -> Arrays:
        """The facts and their lines, if the trace holds them."""
        arrays = self.files[0].read_group("program/")
        facts, lines = arrays.get("program/facts"), arrays.get("program/fact_lines")
        check_facts(facts, lines, self.symbols, str(self.files[0].path))
        check_rules(arrays, self.symbols, str(self.files[0].path))
        return arrays

    @cached_property
    def rules(self) -> tuple[Rule, ...] | None:
        """The program's rules; None where the trace holds none."""
        return decode_rules(self.program)

    @cached_property
    def rankings(self) -> Rankings | None:
        """The rankings; None where there are none."""
        arrays = self.files[-1].read_group("rankings/")
        if not arrays:
            return None
        rankings = Rankings(*(arrays[f"rankings/{name}"] for name in Rankings._fields))
        check_rankings(rankings, str(self.files[-1].path))
        return rankings

    @property
    def fields(self) -> frozenset[str]:
        """The columns that the files held."""
        return self.files[-1].fields

    def share_symbols(self, other: "MappedTrace") -> None:
        """Take the names of another trace where they are the same, byte for byte, rather than decode them again."""
        own, others = (trace.files[0].read_group("symbols/") for trace in (self, other))
        if all(np.array_equal(own[name], others[name]) for name in own):
            self.symbols = other.symbols

    def length(self, name: str) -> int:
        """Rows of a column in all files."""
        return sum(file.length(name) for file in self.files)

    def around(self, columns: Columns, digests: Digests, rankings: Rankings | None = None) -> Trace:
        """A trace in memory that has these columns, and everything else as here."""
        return Trace(
            header=self.header,
            symbols=self.symbols,
            columns=columns,
            digests=digests,
            rankings=rankings,
            facts=self.program.get("program/facts"),
            fact_lines=self.program.get("program/fact_lines"),
            fields=self.fields,
            is_complete=self.is_complete,
            source=self.source,
            rules=self.rules,
        )

    def look(self) -> Trace:
        """The trace without candidates, its names and facts as views: for a look at a few of them, unchecked."""
        # Every shard holds them; the one that is open costs nothing.
        opened = self.files.opened if isinstance(self.files, _Shards) else None
        file = opened or self.files[0]
        names: Any = [
            LazyNames(*(file.read_all(f"symbols/{kind}_{part}") for part in ("bytes", "offsets")))
            for kind in ("predicates", "constants")
        ]
        facts, lines = (
            file.read_all(name) if name in file.stored else None for name in ("program/facts", "program/fact_lines")
        )
        columns = file.read_steps(0, 0)
        return Trace(
            header=decode_header({"header": file.small("header")}, str(file.path)),
            symbols=Symbols(*names),
            columns=columns,
            digests=Digests(*(np.zeros(0, np.uint64) for _ in Digests._fields)),
            rankings=None,
            facts=facts,
            fact_lines=lines,
            fields=file.fields,
            is_complete=self.is_complete,
            source=self.source,
        )

    def read_candidates(self, begin: int, end: int) -> Columns:
        """Candidates with all their steps."""
        parts = [file.read_candidates(low, high) for file, low, high in self._split(self.candidate_starts, begin, end)]
        return concatenate(parts) if parts else self.files[0].read_candidates(0, 0)

    def gather_candidates(self, rows: NDArray[np.int64]) -> Columns:
        """Candidates in any order, with all their steps."""
        shard = np.searchsorted(self.candidate_starts, rows, side="right") - 1
        parts, places = [], []
        for i in np.unique(shard).tolist():
            place = np.flatnonzero(shard == i)
            parts.append(self.files[i].gather_candidates(rows[place] - self.candidate_starts[i]))
            places.append(place)
        if not parts:
            return self.files[0].read_candidates(0, 0)
        return (
            parts[0] if len(parts) == 1 else select_candidates(concatenate(parts), np.argsort(np.concatenate(places)))
        )

    def candidate_columns(self, begin: int = 0, end: int | None = None) -> Candidates:
        """Candidates without their steps; of one file a view."""
        pieces = self._split(self.candidate_starts, begin, self.num_candidates if end is None else end)
        parts = [[f.read(f"candidates/{name}", a, b) for name in Candidates._fields] for f, a, b in pieces]
        if not parts:
            return self.files[0].read_candidates(0, 0).candidates
        return Candidates(*(c[0] if len(c) == 1 else np.concatenate(c) for c in zip(*parts, strict=True)))

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of a column of candidates, in any order."""
        shard = np.searchsorted(self.candidate_starts, rows, side="right") - 1
        like = self.files[0].read(name, 0, 0)
        found = np.empty((len(rows), *like.shape[1:]), like.dtype)
        for i in np.unique(shard).tolist():
            place = shard == i
            found[place] = self.files[i].take(name, rows[place] - self.candidate_starts[i])
        return found

    def read_step(self, candidate: int, step: int) -> tuple[Columns, StoredDigests]:
        """One step of a candidate, with the candidate, and its stored digests. IndexError if there is none."""
        ((file, row, end),) = self._split(self.candidate_starts, candidate, candidate + 1)
        num_steps = int(file.read("candidates/num_steps", row, end)[0])
        if not 0 <= step < num_steps:
            raise IndexError(step)
        first = file.offsets("candidates/num_steps").at(row) + step
        candidates = Candidates(*(file.read(f"candidates/{name}", row, end) for name in Candidates._fields))
        return file.read_steps(first, first + 1)._replace(candidates=candidates), file.read_digests(first, first + 1)

    def read_digests(self, begin: int, end: int) -> list[StoredDigests]:
        """The stored digests of all steps of some neighbouring candidates, file by file."""
        found = []
        for file, low, high in self._split(self.candidate_starts, begin, end):
            first = file.offsets("candidates/num_steps")
            found.append(file.read_digests(first.at(low), first.at(high)))
        return found

    def first_step(self, candidate: int) -> int:
        """The row of a candidate's first step."""
        if candidate == self.num_candidates:
            return self.num_steps
        i = int(np.searchsorted(self.candidate_starts, candidate, side="right")) - 1
        inner = self.files[i].offsets("candidates/num_steps").at(candidate - int(self.candidate_starts[i]))
        return int(self.step_starts[i]) + inner

    def candidate_of(self, name: str, element: int) -> int:
        """The candidate that an element of a column belongs to, at whatever level."""
        for i, file in enumerate(self.files):
            length = file.length(name)
            if element >= length:
                element -= length
                continue
            level = name.split("/")[0]
            if name == "resolvents/atoms":
                element = file.offsets("resolvents/num_atoms").row_of(element)
            if name == "steps/goal_atoms":
                element = file.offsets("steps/num_atoms").row_of(element)
            if level == "resolvents":
                element = file.offsets("steps/num_resolvents").row_of(element)
            if level != "candidates":
                element = file.offsets("candidates/num_steps").row_of(element)
            return int(self.candidate_starts[i]) + element
        raise IndexError(element)

    def verify(self, *prefixes: str) -> None:
        """UserError unless the datasets whose paths begin so, or all, have their checksums."""
        for file in self.files:
            for name in file.stored:
                if name.startswith(prefixes or ("",)):
                    file.verify(name)
            file.release()

    def release(self) -> None:
        """Let the system take back the pages that were looked at."""
        for file in self.files:
            file.release()

    def _split(self, starts: NDArray[np.int64], begin: int, end: int) -> Iterator[tuple[MappedFile, int, int]]:
        """The files that a range of rows lies in, and the rows there."""
        for i in range(max(0, int(np.searchsorted(starts, begin, side="right")) - 1), len(self.files)):
            low, high = max(begin, int(starts[i])), min(end, int(starts[i + 1]))
            if low < high:
                yield self.files[i], low - int(starts[i]), high - int(starts[i])
            if starts[i + 1] >= end:
                return

    def _count(self, counts: list[tuple[int, int]]) -> None:
        self.candidate_starts, self.step_starts = (
            np.cumsum([0, *column], dtype=np.int64) for column in zip(*counts, strict=True)
        )
        self.num_candidates = int(self.candidate_starts[-1])
        self.num_steps = int(self.step_starts[-1])

    def _read_manifest(self) -> Manifest:
        manifest = read_manifest(self.path)
        if not manifest.shards:
            raise UserError("the manifest lists no shard", where=self.source, fix=RECORD_AGAIN)
        self.is_complete = manifest.is_complete and not self.path.name.endswith(".partial")
        return manifest

    def _list_folder(self) -> None:
        shards = self._read_manifest().shards
        self._count([(shard.num_candidates, shard.num_steps) for shard in shards])
        self.shards = shards
        self.files = _Shards(self, shards)

    def open_shard(self, index: int, shard: Shard) -> MappedFile:
        """A shard that is what the manifest says. UserError if it is another."""
        path = self.path / shard.name
        if not path.is_file():
            raise UserError("missing, expected because the manifest lists it", where=str(path), fix=RECORD_AGAIN)
        file = self._open(path)
        stored = file.small("shard/index").tolist() if "shard/index" in file.stored else None
        if stored != [index]:
            raise UserError(f"found {stored}, expected [{index}]", where=f"{path}:shard/index", fix=RECORD_AGAIN)
        self._check_shard(file, shard)
        return file

    def _open_folder(self) -> None:
        manifest = self._read_manifest()
        files, kept, faults = [], [], []
        for index, shard in enumerate(manifest.shards):
            path = self.path / shard.name
            if not path.exists() and not path.is_symlink():
                faults.append(f"{path} is missing, and the manifest lists it")
                continue
            file = self._open(path)
            stored = file.small("shard/index").tolist() if "shard/index" in file.stored else None
            if stored != [index]:
                if stored is not None and len(stored) == 1 and stored[0] < len(manifest.shards):
                    faults.append(f"{path} is shard {stored[0]} once more, expected shard {index}")
                    continue
                raise UserError(f"found {stored}, expected [{index}]", where=f"{path}:shard/index", fix=RECORD_AGAIN)
            self._check_shard(file, shard)
            files.append(file)
            kept.append(shard)
        self.files = files
        self.faults, self.shards = tuple(faults), tuple(kept)
        if faults and (not self._tolerates_shards or not self.files):
            raise UserError("; ".join(faults), where=self.source, fix=RECORD_AGAIN)
        for file in self.files[1:]:
            self._check_like_first(file)

    def _open(self, path: Path) -> MappedFile:
        if path != self.path:
            check_no_link(path)
        return MappedFile(path, self._cache)

    def _check_shard(self, file: MappedFile, shard: Shard) -> None:
        if (size := file.path.stat().st_size) != shard.size:
            raise UserError(f"takes {size} bytes, expected {shard.size}", where=str(file.path), fix=RECORD_AGAIN)
        found, expected = (file.num_candidates, file.num_steps), (shard.num_candidates, shard.num_steps)
        if found != expected:
            raise UserError(
                f"candidates and steps are {found}, expected {expected} from the manifest",
                where=str(file.path),
                fix=RECORD_AGAIN,
            )

    def _check_like_first(self, file: MappedFile) -> None:
        first = self.files[0]
        names = {*first.stored, *file.stored}
        for name in sorted(name for name in names if name.startswith(SHARED)):
            # The checksums stand for the bytes, which are verified when they are read.
            own, other = file.stored.get(name), first.stored.get(name)
            if own is None or other is None or own.checksum != other.checksum:
                raise UserError(
                    f"differs from that of {first.path.name}, expected the same in every shard",
                    where=f"{file.path}:{name}",
                    fix=RECORD_AGAIN,
                )
        odd = [n for n in names if (n in first.stored) != (n in file.stored) and not n.startswith("rankings/")]
        if odd:
            raise UserError(
                f"{FIELD_OF[min(odd)].name} is in one shard and not in another",
                where=str(file.path),
                fix="write the same columns everywhere",
            )
        if file.dtype("resolvents/score") != first.dtype("resolvents/score"):
            raise UserError(
                "scores have one type in one shard and another in another", where=str(file.path), fix=RECORD_AGAIN
            )
        held = next((f for f in self.files[:-1] if "rankings/query" in f.stored), None)
        if held is not None:
            raise UserError("found rankings, expected in the last shard alone", where=str(held.path), fix=RECORD_AGAIN)


class _Shards(Sequence[MappedFile]):
    """The shards of a folder, each opened when it is first looked into."""

    def __init__(self, trace: MappedTrace, shards: Sequence[Shard]) -> None:
        self._trace = trace
        self._shards = shards
        self._files: dict[int, MappedFile] = {}

    @property
    def opened(self) -> MappedFile | None:
        """Any that is open."""
        return next(iter(self._files.values()), None)

    def __len__(self) -> int:
        return len(self._shards)

    @overload
    def __getitem__(self, index: int) -> MappedFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[MappedFile]: ...

    def __getitem__(self, index: int | slice) -> MappedFile | Sequence[MappedFile]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        if index not in self._files:
            self._files[index] = self._trace.open_shard(index, self._shards[index])
        return self._files[index]
