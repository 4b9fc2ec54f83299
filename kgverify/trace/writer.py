"""Writing a trace: one file if it is small, else shards that are safe on disk once committed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify import __version__
from kgverify.errors import UserError
from kgverify.logic.program import Rule, Symbols
from kgverify.trace.columns import Columns, Rankings, concatenate, empty_columns
from kgverify.trace.digests import compute_digests, root_digest
from kgverify.trace.hdf5 import read_arrays, write_arrays
from kgverify.trace.header import SCHEMA_VERSION, Header
from kgverify.trace.levels import lower_arrays, optional_columns_of, packing_of, parse_level, uncounted
from kgverify.trace.manifest import (
    MANIFEST,
    Manifest,
    Shard,
    check_shard,
    hash_file,
    list_shards,
    put_in_place,
    read_manifest,
    render_hash,
    shard_name,
    write_at_once,
    write_manifest,
)
from kgverify.trace.reader import partial_of
from kgverify.trace.schema import (
    OPTIONAL_COLUMNS,
    Arrays,
    decode_columns,
    encode_columns,
    encode_level,
    encode_rules,
    encode_symbols,
)
from kgverify.trace.trace import NOTHING_UNKNOWN, Unknown
from kgverify.trace.unknown import merge_fields
from kgverify.trace.validate import check_columns, check_facts, check_rankings, check_rules, check_types


class TraceWriter:
    """A context manager that writes a trace at `path`, where nothing appears before the trace is complete.

    header:      must say the `schema_version` that is written
    facts:       int32 [F, 3]  the program's facts; optional
    fact_lines:  int32 [F]     their lines; optional
    shard_steps: steps held in memory before they are committed as a shard in `<path>.partial`
    absent:      columns that the prover does not know, named as in `Trace.fields`; not written
    level:       a `TraceLevel`: which columns are kept; None for that of the header
    is_archived: packed as small as HDF5's own filters can
    rules:       the program's rules, for goals to be rebuilt where the level leaves them out; optional
    unknown:     what a trace that is written again held beyond this schema
    resume:      go on with a `<path>.partial` left behind: skip the first `num_committed` candidates

    An error inside the context leaves the committed shards in `<path>.partial`. UserError for what cannot be
    written, and for a `<path>.partial` that is there without `resume`, or belongs to another run.
    """

    def __init__(
        self,
        path: Path | str,
        header: Header,
        symbols: Symbols,
        *,
        facts: NDArray[np.int32] | None = None,
        fact_lines: NDArray[np.int32] | None = None,
        shard_steps: int = 1_000_000,
        absent: Iterable[str] = (),
        resume: bool = False,
        level: str | None = None,
        is_archived: bool = False,
        rules: Sequence[Rule] | None = None,
        unknown: Unknown = NOTHING_UNKNOWN,
    ) -> None:
        self._path = Path(path)
        self._where = str(path)
        self._partial = partial_of(self._path)
        self._symbols = symbols
        self._creator = header.creator or f"kgverify {__version__}"
        self._shard_steps = shard_steps
        self._absent = frozenset(absent)
        self._level = parse_level(level or header.level, self._where)
        self._packing = packing_of(self._level, is_archived=is_archived)
        self._unknown = unknown
        if header.schema_version != SCHEMA_VERSION:
            raise UserError(
                f"schema version is {header.schema_version}, expected {SCHEMA_VERSION}",
                where=f"{path}:header",
                fix=f"write schema version {SCHEMA_VERSION}",
            )
        if odd := sorted(self._absent - OPTIONAL_COLUMNS):
            raise UserError(
                f"{odd[0]} may not be absent, only {', '.join(sorted(OPTIONAL_COLUMNS))}",
                where=self._where,
                fix="write the column",
            )
        if fact_lines is not None and facts is not None and not len(fact_lines):
            fact_lines = None
        check_facts(facts, fact_lines, symbols, self._where)
        self._num_rules = len(header.clauses.rules) or None
        self._num_facts = None if facts is None else len(facts)
        header = msgspec.structs.replace(
            header, level=self._level.value, absent=tuple(uncounted(self._level, self._absent | set(header.absent)))
        )
        self._shared: Arrays = {"header": np.frombuffer(_encode_header(header, self._unknown, self._where), np.uint8)}
        self._shared |= encode_symbols(symbols, self._where)
        if facts is not None:
            self._shared["program/facts"] = facts
        if fact_lines is not None:
            self._shared["program/fact_lines"] = fact_lines
        if rules:
            self._shared |= encode_rules(rules)
            check_rules(self._shared, symbols, self._where)
        # What every shard repeats, as its level has it.
        self._shared = lower_arrays(self._shared, self._level) | {"header": self._shared["header"]}
        self._check_place()
        self._parts: list[Columns] = []
        self._num_buffered = 0
        self._rankings: Rankings | None = None
        self._score_dtype: np.dtype[np.floating] | None = None
        self._is_closed = False
        self._manifest = self._resume() if resume else self._begin()

    @property
    def num_committed(self) -> int:
        """Candidates that are safe on disk, from the first on."""
        return self._manifest.num_candidates

    def append(self, columns: Columns) -> None:
        """Add candidates with all their steps; the arrays may not change afterwards."""
        if self._is_closed:
            raise ValueError("the writer is closed")
        if self._manifest.is_complete and len(columns.candidates.query):
            raise UserError(
                "found further candidates, but all were committed before",
                where=str(self._partial),
                fix="skip the first `num_committed` candidates",
            )
        check_types(encode_columns(columns), self._where)
        check_columns(columns, self._symbols, self._where, num_rules=self._num_rules, num_facts=self._num_facts)
        dtype = columns.resolvents.score.dtype
        if self._score_dtype is not None and self._score_dtype != dtype:
            raise UserError(
                f"dtype is {dtype}, expected {self._score_dtype} as before",
                where=f"{self._where}:resolvents/score",
                fix="append scores of one type",
            )
        self._score_dtype = dtype
        self._parts.append(columns)
        self._num_buffered += len(columns.steps.depth)
        if self._num_buffered > self._shard_steps:
            self.commit()

    def commit(self) -> None:
        """Put what was appended so far safely on disk, as a shard; nothing if there is nothing."""
        if self._num_buffered or any(len(part.candidates.query) for part in self._parts):
            self._commit(is_complete=False)

    def set_rankings(self, rankings: Rankings) -> None:
        """Give the rankings, before closing."""
        check_types(encode_level("rankings", rankings), self._where)
        check_rankings(rankings, self._where)
        self._rankings = rankings

    def close(self) -> None:
        """Write what is left and put the trace in its place; a second call does nothing."""
        if self._is_closed:
            return
        if not self._partial.is_dir():
            write_at_once(self._path, lambda path: write_arrays(path, self._encode(), self._creator, self._packing))
        else:
            if not self._manifest.is_complete:
                self._commit(is_complete=True)
            put_in_place(self._partial, self._path)
        self._is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def _check_place(self) -> None:
        if not self._path.parent.is_dir():
            raise UserError("its folder does not exist", where=self._where, fix=f"create {self._path.parent} first")
        if self._path.is_dir() and not (self._path / MANIFEST).is_file():
            raise UserError(
                "a folder that is not a trace is in the way",
                where=self._where,
                fix="move it, or choose another path",
            )

    def _begin(self) -> Manifest:
        if self._partial.exists():
            raise UserError(
                "a recording that did not finish is in the way",
                where=str(self._partial),
                fix="resume it, or delete this folder",
            )
        return list_shards((), is_complete=False, creator=self._creator)

    def _resume(self) -> Manifest:
        if not (self._partial / MANIFEST).is_file():
            # Killed before the first commit, or there is nothing to resume.
            return list_shards((), is_complete=False, creator=self._creator)
        manifest = read_manifest(self._partial)
        for shard in manifest.shards:
            check_shard(self._partial, shard)
        if manifest.shards:
            path = self._partial / manifest.shards[0].name
            arrays = read_arrays(path)
            self._check_same_run(arrays, path)
            if "resolvents/score" in arrays:
                self._score_dtype = arrays["resolvents/score"].dtype
        return manifest

    def _check_same_run(self, arrays: Arrays, path: Path) -> None:
        own = {name for name in arrays if name in self._shared or name.startswith("program/")}
        for name in sorted(own | self._shared.keys()):
            found, expected = arrays.get(name), self._shared.get(name)
            if found is None or expected is None or not np.array_equal(found, expected):
                raise UserError(
                    "differs from that of the run to be resumed",
                    where=f"{path}:{name}",
                    fix=f"resume with the same program, options and versions, or delete {self._partial}",
                )
        if odd := sorted(
            name
            for name in optional_columns_of(self._level, OPTIONAL_COLUMNS)
            if (name.replace(".", "/") in arrays) == (name in self._absent)
        ):
            raise UserError(
                f"{odd[0]} is in the shards or in this run, not in both",
                where=str(path),
                fix=f"resume with the same columns, or delete {self._partial}",
            )

    @property
    def _score_type(self) -> type[np.floating]:
        return np.float64 if self._score_dtype is None else self._score_dtype.type

    def _encode(self) -> Arrays:
        # A last shard may hold rankings alone; it has the columns of the others all the same.
        columns = concatenate(self._parts) if self._parts else empty_columns(self._score_type)
        if self._absent:
            # Digests are those of what is read back.
            columns = decode_columns(encode_columns(columns, self._absent))
        digests = compute_digests(columns)
        self._sequence = digests.sequence
        arrays = self._shared | encode_columns(columns, self._absent) | encode_level("digests", digests)
        if self._rankings is not None:
            arrays |= encode_level("rankings", self._rankings)
        return lower_arrays(arrays, self._level) | dict(self._unknown.arrays)

    def _commit(self, *, is_complete: bool) -> None:
        """Write the buffer as the next shard: first the file, then the manifest that lists it."""
        index = len(self._manifest.shards)
        self._partial.mkdir(exist_ok=True)
        arrays = self._encode() | {"shard/index": np.array([index], np.uint64)}
        if not is_complete:
            arrays = {name: array for name, array in arrays.items() if not name.startswith("rankings/")}
        path = self._partial / shard_name(index)
        write_at_once(path, lambda temporary: write_arrays(temporary, arrays, self._creator, self._packing))
        candidates = decode_columns(arrays).candidates
        shard = Shard(
            name=path.name,
            size=path.stat().st_size,
            num_candidates=len(candidates.query),
            num_steps=len(self._sequence),
            xxh3=hash_file(path),
            root=render_hash(root_digest(candidates, self._sequence)),
        )
        shards = (*self._manifest.shards, shard)
        manifest = list_shards(shards, is_complete=is_complete, creator=self._creator)
        write_manifest(self._partial, manifest)
        self._manifest = manifest
        self._parts, self._num_buffered = [], 0


def write_trace(
    path: Path | str,
    header: Header,
    symbols: Symbols,
    columns: Columns,
    rankings: Rankings | None = None,
    *,
    facts: NDArray[np.int32] | None = None,
    fact_lines: NDArray[np.int32] | None = None,
    absent: Iterable[str] = (),
    level: str | None = None,
    is_archived: bool = False,
    rules: Sequence[Rule] | None = None,
    unknown: Unknown = NOTHING_UNKNOWN,
) -> None:
    """Write a whole trace as one file, at once. UserError for what cannot be written."""
    with TraceWriter(
        path,
        header,
        symbols,
        facts=facts,
        fact_lines=fact_lines,
        shard_steps=1 << 62,
        absent=absent,
        level=level,
        is_archived=is_archived,
        rules=rules,
        unknown=unknown,
    ) as writer:
        writer.append(columns)
        if rankings is not None:
            writer.set_rankings(rankings)


def _encode_header(header: Header, unknown: Unknown, where: str) -> bytes:
    try:
        return msgspec.json.encode(merge_fields(msgspec.to_builtins(header), unknown.header))
    except UnicodeEncodeError as error:
        raise UserError(
            "holds text that UTF-8 cannot encode",
            where=f"{where}:header",
            fix="decode the input files as UTF-8",
        ) from error
