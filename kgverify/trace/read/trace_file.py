"""The reader of traces: a file, or a folder of shards, opened in milliseconds and read lazily, whatever its size."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from os.path import relpath
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import finalize

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.files.remote import fetched, names_url
from kgverify.files.writing import refuse_link
from kgverify.program.program import Rule, Symbols
from kgverify.trace.files.manifest import (
    MANIFEST,
    Shard,
    ShardError,
    numbers_of,
    partial_of,
    read_manifest,
    render_hash,
    replaced_of,
)
from kgverify.trace.hdf5.stored_array import ReadMemory
from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    NO_DIGESTS,
    Candidates,
    Columns,
    Digests,
    Rankings,
    concatenate,
    join_candidates,
    select_candidates,
)
from kgverify.trace.model.digests import Words
from kgverify.trace.model.header import Header, Part, differing_fields
from kgverify.trace.model.schema import RECORD_AGAIN, Arrays, Schema
from kgverify.trace.model.trace import Trace, describe_trace
from kgverify.trace.read.data_file import DataFile, LazySequence, lazy_names, open_shard

MOST_SHOWN: Final = 10
"""A message describes at most this many traces."""

MOST_MISSING: Final = 1000
"""The most missing ranks that are listed: a trace may claim any size of the world."""

SHARED: Final = ("header", "symbols/", "program/")
"""The datasets that every shard repeats; a piece of a recording repeats only the header."""


def read_trace(path: Path | str, schema: Schema = KNOWLEDGE_GRAPH) -> Trace:
    """Read a whole trace into memory: open it, and load it.

    UserError if there is no trace, or if it is damaged, foreign, hostile or inconsistent: `docs/traces.md` lists
    the reasons.
    """
    return TraceFile(path, is_lazy=True, schema=schema).load()


class Member(NamedTuple):
    """The trace of one process: its path, its part, and the number of its candidates."""

    path: Path
    part: Part
    num_candidates: int

    def __str__(self) -> str:
        """Return `rank 1 (rank-1.h5)`."""
        return f"rank {self.part.rank} ({self.path.name})"


class TraceFile:
    """A trace on disk: one file, a folder of shards, or a folder of the traces of several processes.

    Rows are numbered over all files, and the traces of processes are in the order of their ranks.

    Small datasets are verified when they are read. The checksums, values and digests of the others are verified by
    `load`, by `verify_content`, or by a caller that reads all of a column.

    files:       the files, each a `DataFile`
    shards:      the entry of each file in the manifest; None for a single file
    members:     the traces of processes; one for the trace of one of several processes, none for other traces
    faults:      messages about shards that were left out because they are missing or duplicated, and about ranks whose
                 traces are missing or did not finish
    is_complete: False for a single shard and for a recording that did not finish
    schema:      the schema of its columns
    """

    def __init__(
        self,
        path: Path | str,
        *,
        tolerates_shards: bool = False,
        is_lazy: bool = False,
        schema: Schema = KNOWLEDGE_GRAPH,
        members: Sequence[Path] = (),
    ) -> None:
        self.schema = schema
        # A downloaded copy of a URL is deleted with this object.
        self._copies = ExitStack()
        self.path = self._copies.enter_context(fetched(path))
        finalize(self, self._copies.close)
        self.source = str(path)
        self._reopen = partial(type(self), tolerates_shards=tolerates_shards, is_lazy=is_lazy, schema=schema)
        self.faults: tuple[str, ...] = ()
        self.shards: tuple[Shard | None, ...] = (None,)
        self._members: tuple[Member, ...] = ()
        self._lasts: list[int] = []
        self.files: Sequence[DataFile]
        counted: list[DataFile | Shard]
        self._memory = ReadMemory()
        if paths := members or find_members(self.path):
            counted = self._open_members(paths, tolerates_shards, needs_ranks=not members)
        elif self.path.is_dir():
            counted = self._open_folder(tolerates_shards, is_lazy)
        elif self.path.exists():
            self.files = [DataFile(self.path, self._memory, schema=schema)]
            self.is_complete = "shard/index" not in self.files[0].stored
            counted = [*self.files]
        else:
            unfinished, old = partial_of(self.path), replaced_of(self.path)
            fix = (
                f"its recording did not finish: resume it, or read {unfinished}"
                if unfinished.is_dir()
                else "check the path"
            )
            fix = f"it was being replaced: rename {old}, or repeat what replaced it" if old.exists() else fix
            raise UserError("no such trace", where=self.source, fix=fix)
        counts = [(each.num_candidates, each.num_steps) for each in counted]
        self.candidate_starts, self.step_starts = (
            np.cumsum([0, *column], dtype=np.int64) for column in zip(*counts, strict=True)
        )
        self.num_candidates = int(self.candidate_starts[-1])
        self.num_steps = int(self.step_starts[-1])
        self._lasts = self._lasts or [len(self.files) - 1]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the location: the copy opens the trace there."""
        location = self.source if names_url(self.source) else self.path.absolute()
        return self._reopen, (location,)

    def __repr__(self) -> str:
        """Return the path, the engine and the numbers of candidates and steps."""
        text = describe_trace(self.source, self.header, self.num_candidates, self.num_steps)
        return f"<{type(self).__name__} {text}>"

    def num_rows(self, level: str) -> int:
        """Return the number of rows of a level in all files."""
        return sum(file.num_rows(level) for file in self.files)

    @cached_property
    def header(self) -> Header:
        """The header of the trace. Of several traces, it is the first one's, without a part."""
        header = self.files[0].header
        if len(self._lasts) < 2:
            return header
        ids = [self.files[i].header.recording for i in self._lasts]
        return msgspec.structs.replace(header, part=None, recording="+".join(ids) if all(ids) else "")

    @property
    def members(self) -> tuple[Member, ...]:
        """The traces of processes."""
        part = self.header.part
        return self._members if part is None else (Member(self.path, part, self.num_candidates),)

    @property
    def symbols(self) -> Symbols:
        """The names of predicates and constants."""
        return self.files[0].symbols

    @property
    def program(self) -> Arrays:
        """The facts, their lines, and the rules as ids, as far as the trace holds them."""
        return self.files[0].program

    @property
    def rules(self) -> tuple[Rule, ...] | None:
        """The program's rules; None if the trace holds none."""
        return self.files[0].rules

    @property
    def rankings(self) -> Rankings | None:
        """The rankings; None if the trace holds no rankings, or if two processes ranked the same query and side."""
        return self.join_rankings(refuses=False)

    def join_rankings(self, *, refuses: bool = True) -> Rankings | None:
        """Join the rankings of all traces by query and side. UserError, or None, if two traces ranked the same ones."""
        found = [ranked for i in self._lasts if (ranked := self.files[i].rankings) is not None]
        if len(found) < 2:
            return found[0] if found else None
        columns: Any = [np.concatenate(column) for column in zip(*found, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        joined = Rankings(*(column[order] for column in columns))
        again = (joined.query[1:] == joined.query[:-1]) & (joined.side[1:] == joined.side[:-1])
        if again.any() and not refuses:
            return None
        if again.any():
            row = int(np.argmax(again))
            raise UserError(
                f"query {joined.query[row]}, side {joined.side[row]} is ranked in more than one trace",
                where=self.source,
                fix="give all candidates of a query to one writer, or leave the rankings out",
            )
        return joined

    @property
    def fields(self) -> frozenset[str]:
        """The columns that the files hold. Rankings are in the last file; the program may be only in the first."""
        return self.files[0].fields.union(*(self.files[i].fields for i in self._lasts))

    def release(self) -> None:
        """Do nothing, unlike `Trace.release`: the columns that were read are not kept."""

    def share_symbols(self, other: "TraceFile") -> None:
        """Reuse the names of another trace, instead of decoding them again, if they are the same byte for byte."""
        own, others = (trace.files[0].read_group("symbols/") for trace in (self, other))
        if all(np.array_equal(own[name], others[name]) for name in own):
            self.files[0].symbols = other.symbols

    def length(self, name: str) -> int:
        """Return the number of rows of a column in all files."""
        return sum(file.length(name) for file in self.files)

    def load(self) -> Trace:
        """Read the whole trace into memory, and check every checksum, value and digest.

        UserError for a trace that is damaged or inconsistent.
        """
        parts = [trace for _, trace in self.load_parts()]
        if len(parts) == 1 and not self.path.is_dir():
            return parts[0]
        digests = Digests(*(np.concatenate(columns) for columns in zip(*(p.digests for p in parts), strict=True)))
        whole = self.with_columns(concatenate([part.columns for part in parts]), digests, self.rankings)
        return replace(whole, labels=_join_labels([part.labels for part in parts]))

    def load_parts(self) -> Iterator[tuple[DataFile, Trace]]:
        """Yield each file with its content, checked as `load` does; one file is in memory at a time."""
        for index, shard in enumerate(self.shards):
            file = self.files[index]
            check_alike(self.files[0], file, is_last=index in self._lasts)
            trace = file.load()
            if shard is not None:
                check_root(trace.root, shard, file.path)
            yield file, trace

    def with_columns(self, columns: Columns, digests: Digests, rankings: Rankings | None = None) -> Trace:
        """Return this trace's metadata with other columns, in memory."""
        trace = self.files[0].with_columns(columns, digests, rankings)
        return replace(trace, header=self.header, fields=self.fields, is_complete=self.is_complete, source=self.source)

    def metadata_only(self) -> Trace:
        """Return the trace unchecked and without candidates, its names and facts as views, to show a few candidates."""
        file = self.files[0]
        names: Any = [
            lazy_names(*(file.read_all(f"symbols/{kind}_{part}") for part in ("bytes", "offsets")))
            for kind in ("predicates", "constants")
        ]
        facts, lines = (
            file.read_all(name) if name in file.stored else None for name in ("program/facts", "program/fact_lines")
        )
        return Trace(
            header=self.header,
            symbols=Symbols(*names),
            columns=file.read_steps(0, 0),
            digests=NO_DIGESTS,
            rankings=None,
            facts=facts,
            fact_lines=lines,
            fields=file.fields,
            is_complete=self.is_complete,
            source=self.source,
            schema=self.schema,
        )

    def read_candidates(self, begin: int, end: int) -> Columns:
        """Return candidates with all their steps."""
        parts = [file.read_candidates(low, high) for file, low, high in self._split(begin, end)]
        return concatenate(parts) if parts else self.files[0].read_candidates(0, 0)

    def gather_candidates(self, rows: NDArray[np.int64]) -> Columns:
        """Return candidates in any order, with all their steps."""
        found = [(file.gather_candidates(local), position) for file, position, local in self._by_file(rows)]
        if len(found) < 2:
            return found[0][0] if found else self.files[0].read_candidates(0, 0)
        parts, positions = zip(*found, strict=True)
        return select_candidates(concatenate(parts), np.argsort(np.concatenate(positions)), self.schema)

    def candidate_columns(self, begin: int = 0, end: int | None = None) -> Candidates:
        """Return candidates without their steps; views if they are in one file."""
        pieces = self._split(begin, self.num_candidates if end is None else end)
        parts = [file.candidate_columns(low, high) for file, low, high in pieces]
        return parts[0] if len(parts) == 1 else join_candidates(parts or [self.files[0].candidate_columns(0, 0)])

    def read_labels(self) -> NDArray[np.uint8] | None:
        """Return uint8 [N], 1 for the true triple of its query and side; None unless every file says which they are."""
        return _join_labels([file.read_labels() for file in self.files])

    def gather_column(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a column of candidates, in any order."""
        like = self.files[0].read(name, 0, 0)
        found = np.empty((len(rows), *like.shape[1:]), like.dtype)
        for file, position, local in self._by_file(rows):
            found[position] = file.take(name, local)
        return found

    def _by_file(self, rows: NDArray[np.int64]) -> Iterator[tuple[DataFile, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each file that holds some of the given candidates, their positions in `rows`, and their rows in the file."""
        shard = np.searchsorted(self.candidate_starts, rows, side="right") - 1
        for i in np.unique(shard).tolist():
            position = np.flatnonzero(shard == i)
            yield self.files[i], position, rows[position] - self.candidate_starts[i]

    def read_step(self, candidate: int, step: int) -> tuple[Columns, Words | None]:
        """Return one step of a candidate, with the candidate, and its stored digest. IndexError if it does not exist."""
        ((file, row, end),) = self._split(candidate, candidate + 1)
        num_steps = int(file.read("candidates/num_steps", row, end)[0])
        if not 0 <= step < num_steps:
            raise IndexError(step)
        first = file.offsets("candidates/num_steps").at(row) + step
        columns = file.read_steps(first, first + 1)._replace(candidates=file.candidate_columns(row, end))
        return columns, file.read_digests(first, first + 1)

    def read_digests(self, begin: int, end: int) -> Iterator[Words]:
        """Yield the stored digests of all steps of some neighbouring candidates, file by file."""
        for file, low, high in self._split(begin, end):
            first = file.offsets("candidates/num_steps")
            words = file.read_digests(first.at(low), first.at(high))
            if words is not None:
                yield words

    def candidate_of(self, name: str, element: int) -> int:
        """Return the candidate to which an element of a column belongs, at any level."""
        for i, file in enumerate(self.files):
            length = file.length(name)
            if element >= length:
                element -= length
                continue
            owner = {each.counts: each for each in self.schema.counts}
            level = self.schema.column_of[name].rows
            while level in owner:
                element = file.offsets(owner[level].path).row_of(element)
                level = owner[level].rows
            return int(self.candidate_starts[i]) + element
        raise IndexError(element)

    def split(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of candidates of the whole trace, each within one file, as `DataFile.split` does."""
        for file, first in zip(self.files, self.candidate_starts.tolist(), strict=False):
            for begin, end in file.split():
                yield first + begin, first + end

    def verify(self, *prefixes: str) -> None:
        """Raise a UserError unless all datasets, or those whose paths have one of the prefixes, match their checksums."""
        for file in self.files:
            for name in file.stored:
                if name.startswith(prefixes or ("",)):
                    file.verify(name)

    def check_block(self, columns: Columns, stored: Words | None, where: str = "") -> Digests:
        """Return the digests of some columns, checked as `DataFile.check_block` does."""
        return self.files[0].check_block(columns, stored, where=where or self.source)

    def verify_content(self) -> None:
        """Check everything that `load` checks, block by block, in bounded memory. UserError as for `load`."""
        for file, shard in zip(self.files, self.shards, strict=True):
            root = file.verify_content()
            if shard is not None:
                check_root(root, shard, file.path)

    def compute_root(self) -> int:
        """Return the root digest of all steps, from the stored digests; compute those that are not stored."""
        return sum(file.compute_root() for file in self.files) % (1 << 64)

    def _split(self, begin: int, end: int) -> Iterator[tuple[DataFile, int, int]]:
        """Yield the files that hold a range of candidates, with the rows there."""
        starts = self.candidate_starts
        for i in range(max(0, int(np.searchsorted(starts, begin, side="right")) - 1), len(self.files)):
            low, high = max(begin, int(starts[i])), min(end, int(starts[i + 1]))
            if low < high:
                yield self.files[i], low - int(starts[i]), high - int(starts[i])
            if starts[i + 1] >= end:
                return

    def _open_folder(self, tolerates_shards: bool, is_lazy: bool) -> "list[DataFile | Shard]":
        """Open the files of the folder; return, for each, an object with the numbers of its candidates and steps."""
        manifest = read_manifest(self.path)
        self.is_complete = manifest.is_complete and not self.path.name.endswith(".partial")
        if not manifest.shards:
            raise UserError("the manifest lists no shard", where=self.source, fix=RECORD_AGAIN)
        self.shards = manifest.shards
        opened: dict[int, DataFile] = {}

        def open_one(index: int) -> DataFile:
            if index not in opened:
                first = partial(open_one, 0) if index else None
                opened[index] = open_shard(self.path, manifest.shards[index], self._memory, first, self.schema)
            return opened[index]

        self.files = LazySequence(len(self.shards), open_one)
        if not is_lazy:
            self._open_all(tolerates_shards, {shard.name for shard in manifest.shards})
        return [shard for shard in self.shards if shard is not None]

    def _open_all(self, tolerates_shards: bool, listed: set[str]) -> None:
        opened: list[tuple[DataFile, Shard | None]] = []
        faults = []
        for index, shard in enumerate(self.shards):
            try:
                opened.append((self.files[index], shard))
            except ShardError as error:
                if error.reason == "missing":
                    faults.append(f"{self.path / error.name} is missing, and the manifest lists it")
                elif error.stated in listed:
                    faults.append(f"{self.path / error.name} states that it is {error.stated}")
                else:
                    raise
        if faults and (not tolerates_shards or not opened):
            raise UserError("; ".join(faults), where=self.source, fix=RECORD_AGAIN)
        self.faults = tuple(faults)
        self.files, self.shards = [file for file, _ in opened], tuple(shard for _, shard in opened)
        for number, file in enumerate(self.files, 1):
            check_alike(self.files[0], file, is_last=number == len(self.files))

    def _open_members(
        self, paths: Sequence[Path], tolerates_shards: bool, needs_ranks: bool
    ) -> "list[DataFile | Shard]":
        """Open several traces, in the order of their ranks if they have ranks, and return all their files."""
        traces = [self._reopen(path) for path in paths]
        faults = [f"{trace.path} is not complete: resume its recording" for trace in traces if not trace.is_complete]
        if needs_ranks or any(trace.members for trace in traces):
            faults += [f"{rank} has no trace in {self.source}" for rank in _list_missing(traces)]
            traces.sort(key=lambda trace: trace.members[0].part.rank)
        if faults and not tolerates_shards:
            raise UserError("; ".join(faults), where=self.source, fix="give the complete traces of all ranks")
        self._members = tuple(member for trace in traces for member in trace.members)
        self.faults = (*faults, *(fault for trace in traces for fault in trace.faults))
        self.files = [file for trace in traces for file in trace.files]
        self.shards = tuple(shard for trace in traces for shard in trace.shards)
        starts = np.cumsum([0, *(len(trace.shards) for trace in traces)]).tolist()
        self._lasts = [start + i for start, trace in zip(starts, traces, strict=False) for i in trace._lasts]
        self.is_complete = True
        for index, file in enumerate(self.files):
            check_alike(self.files[0], file, is_last=index in self._lasts)
        return list(self.files)


def find_members(folder: Path) -> list[Path]:
    """Return the traces in a folder that is not a trace itself: files ending in .h5, and folders of shards."""
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return []
    paths = sorted(folder.iterdir())
    found = [p for p in paths if (p / MANIFEST).is_file() or (p.suffix == ".h5" and not numbers_of(p.name))]
    for path in found:
        refuse_link(path)
    return found


def _list_missing(traces: "Sequence[TraceFile]") -> list[str]:
    """Return the ranks without a trace. UserError unless all traces are of processes of one recording."""
    parts = [member.part for trace in traces for member in trace.members]
    if len({(part.world, part.assign) for part in parts}) != 1 or not all(trace.members for trace in traces):
        texts = [f"{trace.path} ({trace.header.part or 'no rank'})" for trace in traces[:MOST_SHOWN]]
        raise UserError(
            f"expected the traces of the processes of one recording, found {', '.join(texts)}",
            where=str(traces[0].path.parent),
            fix="state rank, world and rule in each of them (docs/traces.md), or give the path of one trace",
        )
    ranks, world = {part.rank for part in parts}, parts[0].world
    return list(islice((f"rank {i} of {world}" for i in range(world) if i not in ranks), MOST_MISSING))


def _join_labels(parts: Sequence[NDArray[np.uint8] | None]) -> NDArray[np.uint8] | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found and len(found) == len(parts) else None


def check_same_run(first: DataFile, file: DataFile) -> None:
    """Raise a UserError unless a file repeats the header, names and program of the first file, as far as a piece has them."""
    shared = {*first.stored, *file.stored} if file.has_names else file.stored
    for name in sorted(name for name in shared if name.startswith(SHARED)):
        # Equal checksums suffice: the bytes are verified when they are read.
        own, other = file.stored.get(name), first.stored.get(name)
        is_same = own is not None and other is not None and own.checksum == other.checksum
        what = ""
        if name == "header" and not is_same:
            what = differing_fields(first.small(name).tobytes(), file.small(name).tobytes(), "part")
            is_same = not what
        if not is_same:
            raise UserError(
                f"differs{what} from that of {relpath(first.path, file.path.parent)}, expected the same in every shard",
                where=f"{file.path}:{name}",
                fix=RECORD_AGAIN
                if "shard/index" in file.stored
                else "record every part with the same program and options",
            )


def check_alike(first: DataFile, file: DataFile, *, is_last: bool) -> None:
    """Raise a UserError unless a file is of the same run as the first and has the same columns; only the last has rankings."""
    check_same_run(first, file)
    names = {*first.stored, *file.stored}
    odd = [
        n
        for n in names
        if (n in first.stored) != (n in file.stored) and not n.startswith(("rankings/", "shard/", *SHARED))
    ]
    if odd:
        raise UserError(
            f"{first.schema.column_of[min(odd)].name} is in one shard and not in another",
            where=str(file.path),
            fix="write the same columns everywhere",
        )
    if odd := [path for path in first.schema.mixed if file.dtype(path) != first.dtype(path)]:
        raise UserError(
            f"{odd[0]} has one type in one shard and another in another", where=str(file.path), fix=RECORD_AGAIN
        )
    if "rankings/query" in file.stored and not is_last:
        raise UserError("found rankings, expected in the last shard alone", where=str(file.path), fix=RECORD_AGAIN)


def check_root(root: int, shard: Shard, path: Path) -> None:
    """Raise a UserError unless the root digest of a shard matches the manifest."""
    if render_hash(root) != shard.root:
        raise UserError(
            f"root is {render_hash(root)}, expected {shard.root} from the manifest", where=str(path), fix=RECORD_AGAIN
        )
