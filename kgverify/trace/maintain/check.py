"""Checking a trace on disk part by part, and reporting which parts are intact, damaged or missing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.files.remote import fetched, find_remote
from kgverify.program.outcomes import Side
from kgverify.trace.files.manifest import MANIFEST, Manifest, Shard, read_manifest, render_hash
from kgverify.trace.hdf5.reading import opened_trace
from kgverify.trace.hdf5.stored_array import ReadMemory
from kgverify.trace.model.columns import Candidates, CandidateSet
from kgverify.trace.model.consistency import Contradictions, describe_rankings
from kgverify.trace.model.digests import candidate_keys
from kgverify.trace.read.data_file import DataFile, open_shard
from kgverify.trace.read.trace_file import check_alike, check_root

WHOLE, UNFINISHED, DAMAGED = "whole", "unfinished", "damaged"

_BLOCK: Final = 1 << 16
_SEARCHED: Final = 1 << 20
"""The candidates among which repetitions are searched at a time."""

_MOST_REPEATED: Final = 10


class PartState(msgspec.Struct, frozen=True):
    """The state of a dataset, a shard or a manifest; `problem` is empty if it is intact."""

    name: str
    problem: str = ""
    num_candidates: int | None = None
    num_steps: int | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check.

    state:          `whole`, `unfinished` (intact, but the recording did not end) or `damaged`
    num_candidates: candidates that can be read; `num_steps` likewise
    root:           root digest of all steps, 16 hexadecimal digits; empty if anything is damaged
    notes:          remarks that are not problems
    """

    path: str
    state: str
    parts: tuple[PartState, ...]
    num_candidates: int
    num_steps: int
    root: str
    notes: tuple[str, ...] = ()


def check_trace(path: Path | str) -> CheckReport:
    """Verify the checksums, digests, counts and structure of a file or a folder. UserError if it is not a trace at all."""
    with fetched(path) as copy:
        if not copy.is_dir() and not copy.is_file():
            raise UserError("no such trace", where=str(path), fix="check the path")
        report = _check(copy)
        remote = find_remote(path)
        return msgspec.structs.replace(report, path=str(path) if remote is None else remote.url)


def name_candidate(candidates: Candidates | CandidateSet, row: int) -> str:
    """Return the name of a candidate as text: `query 3, tail, atom (0, 5, 7)`."""
    atom = ", ".join(str(value) for value in candidates.atom[row].tolist())
    return f"query {candidates.query[row]}, {Side(int(candidates.side[row])).name.lower()}, atom ({atom})"


def find_duplicates(candidates: Candidates | CandidateSet) -> list[tuple[int, int]]:
    """Return the pairs of rows with the same candidate: each occurrence with the next one."""
    keys = candidate_keys(candidates)
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    return [(int(order[i]), int(order[i + 1])) for i in again]


@dataclass
class _Intact:
    """The intact files of a trace, with their contradictions and the root digest of their steps."""

    files: list[DataFile] = field(default_factory=list)
    contradictions: Contradictions = field(default_factory=Contradictions)
    root: int = 0

    @property
    def num_candidates(self) -> int:
        return sum(file.num_candidates for file in self.files)

    def add(self, file: DataFile, shard: Shard | None = None) -> None:
        """Check all of a file, block by block, and add it. UserError if it is damaged."""
        found, root = Contradictions(dict(self.contradictions.found)), 0
        for begin, columns, own in file.verify_blocks():
            rows = self.num_candidates + begin + np.arange(len(columns.candidates.query))
            found.add(columns, file.header, file.fields, rows)
            root += own
        root %= 1 << 64
        if shard is not None:
            check_root(root, shard, file.path)
        self.files.append(file)
        self.contradictions, self.root = found, (self.root + root) % (1 << 64)

    def candidates(self) -> Iterator[CandidateSet]:
        """Yield all candidates, block by block."""
        for file in self.files:
            for begin in range(0, file.num_candidates, _BLOCK):
                rows = begin, min(begin + _BLOCK, file.num_candidates)
                yield CandidateSet(*(file.read(f"candidates/{name}", *rows) for name in CandidateSet._fields))


def _name_repeated(intact: _Intact) -> Iterator[str]:
    """Yield the name of each candidate that is recorded again later."""
    num_parts = -(-intact.num_candidates // _SEARCHED)
    for number in range(num_parts):
        # The keys are cut in parts of equal width, so candidates with equal keys are in the same part.
        chosen = [
            block.take(np.flatnonzero((candidate_keys(block) >> 32) * num_parts >> 32 == number))
            for block in intact.candidates()
        ]
        part = CandidateSet(*map(np.concatenate, zip(*chosen, strict=True)))
        yield from (name_candidate(part, first) for first, _ in find_duplicates(part))


def _check_shards(path: Path, manifest: Manifest, intact: _Intact) -> Iterator[PartState]:
    """Check each shard, and yield its state."""
    memory = ReadMemory()
    for shard in manifest.shards:
        part = PartState(shard.name, "", shard.num_candidates, shard.num_steps)
        try:
            first = intact.files[0] if intact.files else None
            others = None if first is None else lambda first=first: first
            file = open_shard(path, shard, memory, others, is_mapped=False)
            check_alike(first or file, file, is_last=shard is manifest.shards[-1])
            intact.add(file, shard)
        except UserError as error:
            part = msgspec.structs.replace(part, problem=_describe(error, path))
        yield part


def _check_file(path: Path, intact: _Intact) -> Iterator[PartState]:
    """Yield the state of each dataset of a single file and then, if no dataset is damaged, that of the whole file."""
    whole = "structure and digests"
    try:
        file = DataFile(path, is_mapped=False)
        datasets = [*_check_datasets(file)]
        yield from datasets
        if not any(part.problem for part in datasets):
            intact.add(file)
            yield PartState(whole, "", file.num_candidates, file.num_steps)
    except UserError as error:
        yield PartState(whole, _describe(error, path))


def _check(path: Path) -> CheckReport:
    parts: list[PartState] = []
    notes: list[str] = []
    is_whole, intact = True, _Intact()
    if path.is_dir():
        if not (path / MANIFEST).exists() and not any(path.glob("shard-*.h5")):
            raise UserError(f"no {MANIFEST} in this folder, expected a trace", where=str(path), fix="check the path")
        try:
            manifest = read_manifest(path)
        except UserError as error:
            return CheckReport(str(path), DAMAGED, (PartState(MANIFEST, _describe(error, path)),), 0, 0, "")
        problem = "lists no shard of a complete trace" if manifest.is_complete and not manifest.shards else ""
        parts.append(PartState(MANIFEST, problem, manifest.num_candidates, manifest.num_steps))
        listed = {MANIFEST, *(shard.name for shard in manifest.shards)}
        others = sorted(each.name for each in path.iterdir() if each.name not in listed)
        notes += [f"{name} does not belong to the trace" for name in others]
        is_whole = manifest.is_complete and not path.name.endswith(".partial")
        parts += _check_shards(path, manifest, intact)
    else:
        with opened_trace(path):
            parts += _check_file(path, intact)
        is_whole = all("shard/index" not in file.stored for file in intact.files)
    is_damaged = any(part.problem for part in parts)
    texts = intact.contradictions.describe()
    rankings = intact.files[-1].rankings if intact.files and not is_damaged else None
    if rankings is not None:
        texts += describe_rankings(rankings, intact.candidates())
    notes += [f"recorded more than once: {name}" for name in islice(_name_repeated(intact), _MOST_REPEATED)]
    notes += [f"it contradicts itself: {text}" for text in texts]
    return CheckReport(
        str(path),
        DAMAGED if is_damaged else WHOLE if is_whole else UNFINISHED,
        tuple(parts),
        intact.num_candidates,
        sum(file.num_steps for file in intact.files),
        "" if is_damaged else render_hash(intact.root),
        tuple(notes),
    )


def _check_datasets(file: DataFile) -> Iterator[PartState]:
    for name in sorted(file.stored):
        problem = ""
        try:
            file.verify(name)
        except UserError as error:
            problem = error.message
        yield PartState(name, problem)


def _describe(error: UserError, path: Path) -> str:
    where = error.where.removeprefix(str(path)).lstrip("/:")
    return f"{where}: {error.message}" if where and not where.endswith((".h5", ".json")) else error.message
