"""One file of a trace, opened lazily: a column is read when it is needed, and checked when it is loaded or verified."""

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.program.program import Rule, Symbols
from kgverify.trace.files.manifest import Shard, ShardError, find_shard, numbers_of, render_hash, shard_name
from kgverify.trace.hdf5.reading import locate_arrays
from kgverify.trace.hdf5.stored_array import (
    FLETCHER32,
    ReadMemory,
    StoredArray,
    load_array,
    open_again,
    read_chunk,
    read_rows,
    take_rows,
    translate_hdf5_errors,
)
from kgverify.trace.model.codec import decode_rules, decode_symbols
from kgverify.trace.model.column_reader import ColumnReader
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, LABELS, Columns, Digests, Rankings
from kgverify.trace.model.digests import Words, compute_digests, root_digest
from kgverify.trace.model.header import Header, check_version, unknown_columns
from kgverify.trace.model.header import decode_header as header_of
from kgverify.trace.model.schema import SEQUENCE, Arrays, Schema, check_file_checksum, has_goals, parse_level
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.validate import (
    check_columns,
    check_facts,
    check_lengths,
    check_program,
    check_rankings,
    check_rules,
)

_CHECKSUM_BYTES: Final = 1 << 20
_TAKEN_ROWS: Final = 1 << 13

_Item = TypeVar("_Item")


class DataFile(ColumnReader):
    """A file of a trace, of any level, whose structure was checked. Contiguous arrays are read-only views of the file.

    stored: its datasets by path
    level:  the level of the trace
    memory: the memory for reading all files of the trace
    first:  a function that returns the first file of the trace, which has the names and the program of a piece
    schema: the schema of its columns
    is_mapped: False to copy arrays from the file, so that a medium that cannot be read raises a UserError

    UserError if `docs/traces.md` refuses its links, types, shapes, storage, level or lengths.
    """

    def __init__(
        self,
        path: Path,
        memory: ReadMemory | None = None,
        first: "Callable[[], DataFile] | None" = None,
        schema: Schema = KNOWLEDGE_GRAPH,
        is_mapped: bool = True,
    ) -> None:
        super().__init__()
        self.path, self.schema, self.source = path, schema, str(path)
        self._file = locate_arrays(path, schema)
        self.stored, self._identity = self._file.arrays, self._file.identity
        self._memory = memory or ReadMemory()
        self._first, self._is_mapped = first, is_mapped
        self.level = parse_level(self.header.level, f"{path}:header")
        # The names of a piece are in the first file of the recording.
        is_piece = "shard/index" in self.stored and not self.has_names
        schema.check_level(self.stored, self.level, str(path), is_piece=is_piece)
        check_file_checksum(
            {name: stored.checksum or 0 for name, stored in self.stored.items()}, self._file.checksum, str(path)
        )
        lengths = {name: stored.shape[0] for name, stored in self.stored.items()}
        check_lengths(lengths, str(path), schema)
        self._num_rows = schema.num_rows(lengths)
        self.num_candidates, self.num_steps = self._num_rows["candidates"], self._num_rows["steps"]

    @property
    def is_archived(self) -> bool:
        """True if the file is packed as archives are."""
        return any(FLETCHER32 in each.filters for each in self.stored.values())

    @property
    def checksum(self) -> str:
        """The checksum of the file, 16 hexadecimal digits."""
        return render_hash(self._file.checksum)

    @property
    def has_names(self) -> bool:
        """True if it holds the names and the program; False for a later piece of a recording."""
        return any(name.startswith("symbols/") for name in self.stored)

    @property
    def has_stages(self) -> bool:
        """True if it holds the outputs of the stages."""
        return any(name in self.stored for name in self.schema.deep)

    @property
    def fields(self) -> frozenset[str]:
        """The columns that it holds and its engine knows, as `Trace.fields` names them."""
        shared = ("header", "symbols/", "shard/")
        held = frozenset(self.schema.column_of[path].name for path in self.stored if not path.startswith(shared))
        return held - unknown_columns(self.header.engine, self.header.limits)

    @cached_property
    def header(self) -> Header:
        """The header. UserError if its JSON is not a header."""
        if "header" not in self.stored:
            raise self.schema.missing("header", str(self.path))
        # Mapping the file would keep it open.
        header = self._load({"header": self.stored["header"]})["header"]
        return decode_header(header.tobytes(), str(self.path))

    @cached_property
    def symbols(self) -> Symbols:
        """The names of predicates and constants."""
        arrays = self.read_group("symbols/")
        if arrays:
            return decode_symbols(arrays, str(self.path))
        return self._other("the names").symbols

    @cached_property
    def program(self) -> Arrays:
        """The facts, their lines, and the rules as ids, as far as the trace holds them."""
        if not self.has_names:
            return self._other("the program").program
        arrays = self.read_group("program/")
        facts, lines = arrays.get("program/facts"), arrays.get("program/fact_lines")
        check_facts(facts, lines, self.symbols, str(self.path))
        check_rules(arrays, self.symbols, str(self.path))
        check_program(arrays, self.symbols, self.header.program_sha256, str(self.path))
        return arrays

    @cached_property
    def rules(self) -> tuple[Rule, ...] | None:
        """The program's rules; None if the trace holds none."""
        return decode_rules(self.program)

    @cached_property
    def rankings(self) -> Rankings | None:
        """The rankings; None if the file holds no rankings."""
        arrays = self.read_group("rankings/")
        if not arrays:
            return None
        rankings = Rankings(*(arrays[f"rankings/{name}"] for name in Rankings._fields))
        check_rankings(rankings, str(self.path))
        return rankings

    def length(self, name: str) -> int:
        """Return the number of rows of a dataset; if it is absent, that of its level, and 0 for atoms."""
        if name in self.stored:
            return self.stored[name].shape[0]
        return self._num_rows.get(self.schema.column_of[name].rows, 0)

    def num_rows(self, level: str) -> int:
        """Return the number of rows of a level: a group, or a column that has a length of its own."""
        return self.length(level) if level in self.schema.column_of else self._num_rows.get(level, 0)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a dataset, or the type in which an absent one is returned."""
        return np.dtype(self.stored[name].dtype if name in self.stored else self.schema.column_of[name].dtypes[-1])

    def read(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """Return rows of a dataset: a view if it is contiguous, else a copy; zeros if it is absent."""
        stored = self.stored.get(name)
        if stored is None:
            return self.schema.absent(name, end - begin)
        if stored.offset >= 0 and self._is_mapped:
            return self._view(stored, stored.num_bytes * (end - begin) // max(1, stored.shape[0]))[begin:end]
        with open_again(self.path, self._identity) as descriptor, translate_hdf5_errors(stored.where):
            # No two chunks share bytes, so the offset identifies a chunk.
            return read_rows(
                descriptor,
                stored,
                begin,
                end,
                lambda chunk: self._memory.get(
                    (self._identity, chunk.offset), lambda: read_chunk(descriptor, chunk, stored)
                ),
            )

    def take(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a dataset in any order, as `read` does."""
        stored = self.stored.get(name)
        if stored is None:
            return self.schema.absent(name, len(rows))
        if stored.offset < 0 or not self._is_mapped:
            return take_rows(stored, rows, lambda begin, end: self.read(name, begin, end))
        # Rows from everywhere map most of the dataset.
        parts = np.split(rows, range(_TAKEN_ROWS, len(rows), _TAKEN_ROWS))
        return np.concatenate([self._view(stored, stored.num_bytes)[part] for part in parts])

    def read_all(self, name: str) -> NDArray[Any]:
        """Return all rows of a dataset, as `read` does."""
        return self.read(name, 0, self.length(name))

    def small(self, name: str) -> NDArray[Any]:
        """Return a small dataset after verifying its checksum."""
        array = self.read_all(name)
        self.stored[name].check_checksum(xxhash.xxh3_64_intdigest(np.ascontiguousarray(array).data))
        return array

    def read_group(self, *prefixes: str) -> Arrays:
        """Return the small datasets of a group by path, after verifying their checksums."""
        return {name: self.small(name) for name in self.stored if name.startswith(prefixes)}

    def verify(self, name: str) -> None:
        """Raise a UserError unless a dataset's bytes have the checksum stored with it."""
        stored = self.stored[name]
        hasher = xxhash.xxh3_64()
        rows = max(1, _CHECKSUM_BYTES // (self.dtype(name).itemsize * (stored.shape[1] if stored.shape[1:] else 1)))
        for begin in range(0, stored.shape[0], rows):
            hasher.update(np.ascontiguousarray(self.read(name, begin, min(begin + rows, stored.shape[0]))).data)
        self.stored[name].check_checksum(hasher.intdigest())

    def read_digests(self, begin: int, end: int) -> Words | None:
        """Return the sequence digests of some steps; None if they are not stored."""
        return self.read(SEQUENCE, begin, end) if SEQUENCE in self.stored else None

    def load(self) -> Trace:
        """Read the whole file into memory, and check every checksum, value and digest."""
        arrays = self.load_arrays()
        columns = self.schema.decode(arrays)
        digests = self.check_block(columns, arrays.get(SEQUENCE))
        return replace(self.with_columns(columns, digests, self.rankings), labels=self.read_labels())

    def with_columns(self, columns: Columns, digests: Digests, rankings: Rankings | None = None) -> Trace:
        """Return this file's metadata with other columns, in memory."""
        return Trace(
            header=self.header,
            symbols=self.symbols,
            columns=columns,
            digests=digests,
            rankings=rankings,
            facts=self.program.get("program/facts"),
            fact_lines=self.program.get("program/fact_lines"),
            fields=self.fields,
            is_complete="shard/index" not in self.stored,
            source=str(self.path),
            rules=self.rules,
            schema=self.schema,
        )

    def read_labels(self) -> NDArray[np.uint8] | None:
        """Return uint8 [N], 1 for the true triple of its query and side; None if the file does not say which they are."""
        labels = self._file.labels
        return None if labels is None else self._load({LABELS: labels})[LABELS]

    def load_arrays(self) -> Arrays:
        """Read every dataset that the schema names into memory, and verify its checksum."""
        return self._load(self.stored)

    def _load(self, arrays: Mapping[str, StoredArray]) -> Arrays:
        if not arrays:
            return {}
        with open_again(self.path, self._identity) as descriptor:
            return {name: load_array(descriptor, stored) for name, stored in arrays.items()}

    def verify_content(self) -> int:
        """Check every checksum and value, block by block, in bounded memory; return the root digest of the steps."""
        return sum(root for _, _, root in self.verify_blocks()) % (1 << 64)

    def verify_blocks(self) -> Iterator[tuple[int, Columns, int]]:
        """Yield blocks after checking every checksum, and their values: the first candidate, the columns, the root digest."""
        for name in self.stored:
            self.verify(name)
        _ = self.program, self.rankings, self.read_labels()
        self.check_counts()
        offsets = self.offsets("candidates/num_steps")
        for begin, end in self.split():
            first, columns = offsets.at(begin), self.read_candidates(begin, end)
            try:
                digests = self.check_block(columns, self.read_digests(first, offsets.at(end)), first)
            except UserError:
                # An error in the whole file names the row of the file, not that of the block.
                self.load()
                raise
            yield begin, columns, root_digest(columns.candidates, digests.sequence, self.schema)

    def check_counts(self) -> None:
        """Raise a UserError unless the counts add up."""
        for each in self.schema.counts:
            if each.path in self.stored:
                self.offsets(each.path).build()

    def compute_root(self) -> int:
        """Return the root digest of the steps, from the stored digests; compute those that are not stored."""
        root = 0
        offsets = self.offsets("candidates/num_steps")
        for begin, end in self.split():
            first = offsets.at(begin)
            sequence = self.read_digests(first, offsets.at(end))
            if sequence is None:
                sequence = self.check_block(self.read_candidates(begin, end), None, first).sequence
            root += root_digest(self.candidate_columns(begin, end), sequence, self.schema)
        return root % (1 << 64)

    def check_block(
        self,
        columns: Columns,
        stored: Words | None,
        first_step: int = 0,
        *,
        where: str = "",
    ) -> Digests:
        """Return the digests of some columns. UserError unless their values are valid and match the stored sequence digests.

        At a level without goals, return the stored digests, with zeros for digests that are not stored.

        where: the name of the columns in errors; by default, that of the file
        """
        where = where or str(self.path)
        facts = self.program.get("program/facts")
        num_rules = len(self.header.clauses.rules) or None
        num_facts = None if facts is None else len(facts)
        check_columns(columns, where, num_rules=num_rules, num_facts=num_facts, schema=self.schema)
        if not has_goals(self.level):
            zeros = np.zeros(self.schema.count_rows(columns)["steps"], np.uint64)
            return Digests(zeros if stored is None else stored, zeros, zeros)
        digests = compute_digests(columns, self.schema)
        expected = digests.sequence
        if stored is not None and (stored != expected).any():
            step = int(np.argmax(stored != expected))
            raise UserError(
                f"step {first_step + step} has digest {int(stored[step]):016x},"
                f" expected {int(expected[step]):016x} from its columns",
                where=f"{where}:{SEQUENCE}",
                fix="write the digests that docs/traces.md defines, or none",
            )
        return digests

    def _other(self, what: str) -> "DataFile":
        """Return the first file of the trace, to use instead of a piece. UserError for a piece opened by itself."""
        if self._first is None:
            raise UserError(
                f"is a piece of a recording, without {what}", where=str(self.path), fix="read the folder that it is in"
            )
        return self._first()

    @cached_property
    def _map(self) -> mmap.mmap:
        with open_again(self.path, self._identity) as descriptor:
            return mmap.mmap(descriptor, self._identity.size, access=mmap.ACCESS_READ)

    def _view(self, stored: StoredArray, num_bytes: int) -> NDArray[Any]:
        """Return a dataset, some bytes of which are read."""
        # The dataset was checked to lie within the file. numpy.memmap would map the file once for each dataset.
        mapped = self._memory.view(self._map, num_bytes)
        return np.ndarray(stored.shape, stored.dtype, buffer=mapped, offset=stored.offset)


def open_shard(
    folder: Path,
    shard: Shard,
    memory: ReadMemory | None = None,
    first: Callable[[], DataFile] | None = None,
    schema: Schema = KNOWLEDGE_GRAPH,
    is_mapped: bool = True,
) -> DataFile:
    """Open a shard of a folder. ShardError if it is missing, misplaced, or does not match the manifest."""
    path = find_shard(folder, shard)
    file = DataFile(path, memory, first, schema, is_mapped)
    stored = file.small("shard/index").tolist() if "shard/index" in file.stored else []
    if stored != [*numbers_of(shard.name)]:
        raise ShardError(
            f"found {stored}, expected {[*numbers_of(shard.name)]}",
            name=shard.name,
            reason="misplaced",
            where=f"{path}:shard/index",
            fix="put every shard in its place",
            stated=shard_name(*stored) if stored else "",
        )
    for what, found, expected in (
        ("size", path.stat().st_size, shard.size),
        ("checksum", file.checksum, shard.xxh3),
        ("candidates and steps", (file.num_candidates, file.num_steps), (shard.num_candidates, shard.num_steps)),
    ):
        if found != expected:
            message = f"{what}: {found}, expected {expected} from the manifest: one of them was altered"
            raise ShardError(message, name=shard.name, reason="altered", where=str(path))
    return file


class LazySequence(Sequence[_Item]):
    """A sequence whose items are made by `make` when they are needed."""

    def __init__(self, length: int, make: Callable[[int], _Item]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        found = range(self._length)[index]
        return self._make(found) if isinstance(found, int) else [self._make(i) for i in found]


def lazy_names(content: NDArray[Any], offsets: NDArray[Any]) -> Sequence[str]:
    """Return names of a mapped trace, each decoded when it is needed; bytes that are not UTF-8 are escaped."""

    def decode(index: int) -> str:
        begin, end = offsets[index : index + 2].tolist()
        return content[begin:end].tobytes().decode("utf-8", "backslashreplace")

    return LazySequence(max(0, len(offsets) - 1), decode)


def decode_header(content: bytes, where: str) -> Header:
    """Decode the JSON of a header. UserError if it is not a header."""
    where = f"{where}:header"
    try:
        header = header_of(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"not a header: {error}", where=where, fix="write the JSON that docs/traces.md describes"
        ) from error
    except UserError as error:
        raise UserError(error.message, where=where, fix=error.fix) from error
    check_version(header.schema_version, where)
    return header
