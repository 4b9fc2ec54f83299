"""Checking a trace on disk part by part, and reporting which parts are intact, damaged or missing."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.files.remote import fetched, find_remote
from kgverify.program.outcomes import Side
from kgverify.trace.files.manifest import MANIFEST, Manifest, read_manifest, render_hash
from kgverify.trace.hdf5.reading import opened_trace
from kgverify.trace.model.columns import Candidates, Rankings, join_candidates
from kgverify.trace.model.consistency import Contradictions, describe_rankings
from kgverify.trace.model.digests import candidate_keys
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import DataFile, open_shard
from kgverify.trace.read.trace_file import check_alike, check_root

WHOLE, UNFINISHED, DAMAGED = "whole", "unfinished", "damaged"


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


def name_candidate(candidates: Candidates, row: int) -> str:
    """Return the name of a candidate as text: `query 3, tail, atom (0, 5, 7)`."""
    atom = ", ".join(str(value) for value in candidates.atom[row].tolist())
    return f"query {candidates.query[row]}, {Side(int(candidates.side[row])).name.lower()}, atom ({atom})"


def find_duplicates(candidates: Candidates) -> list[tuple[int, int]]:
    """Return the pairs of rows with the same candidate: each occurrence with the next one."""
    keys = candidate_keys(candidates)
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    return [(int(order[i]), int(order[i + 1])) for i in again]


_Part = tuple[PartState, Trace | None]
"""The state of a part, and its content if it is an intact file."""


def _load_shards(path: Path, manifest: Manifest) -> Iterator[_Part]:
    first: DataFile | None = None
    for shard in manifest.shards:
        part = PartState(shard.name, "", shard.num_candidates, shard.num_steps)
        try:
            file = open_shard(path, shard, first=None if first is None else lambda first=first: first)  # type: ignore[misc]
            check_alike(first or file, file, is_last=shard is manifest.shards[-1])
            trace = file.load()
            check_root(trace.root, shard, file.path)
        except UserError as error:
            yield msgspec.structs.replace(part, problem=_describe(error, path)), None
        else:
            first = first or file
            yield part, trace


def _load_file(path: Path) -> Iterator[_Part]:
    """Yield the state of each dataset of a single file and then, if no dataset is damaged, that of the whole file."""
    whole = "structure and digests"
    try:
        file = DataFile(path)
        datasets = [*_check_datasets(file)]
        yield from ((part, None) for part in datasets)
        if not any(part.problem for part in datasets):
            trace = file.load()
            yield PartState(whole, "", file.num_candidates, file.num_steps), trace
    except UserError as error:
        yield PartState(whole, _describe(error, path)), None


def _check(path: Path) -> CheckReport:
    parts: list[PartState] = []
    notes: list[str] = []
    is_whole = True
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
        loaded = _load_shards(path, manifest)
    else:
        with opened_trace(path):
            loaded = _load_file(path)
    contradictions = Contradictions()
    candidates: list[Candidates] = []
    rankings: Rankings | None = None
    root = 0
    for part, trace in loaded:
        parts.append(part)
        if trace is not None:
            contradictions.add(trace.columns, trace.header, trace.fields, sum(len(each.query) for each in candidates))
            candidates.append(trace.columns.candidates)
            rankings, root = trace.rankings, root + trace.root
            is_whole &= path.is_dir() or trace.is_complete
    joined = join_candidates(candidates)
    is_damaged = any(part.problem for part in parts)
    texts = contradictions.describe()
    if rankings is not None and not is_damaged:
        texts += describe_rankings(rankings, joined)
    repeated = [first for first, _ in find_duplicates(joined)[:10]]
    notes += [f"recorded more than once: {name_candidate(joined, first)}" for first in repeated]
    notes += [f"it contradicts itself: {text}" for text in texts]
    return CheckReport(
        str(path),
        DAMAGED if is_damaged else WHOLE if is_whole else UNFINISHED,
        tuple(parts),
        len(joined.query),
        int(joined.num_steps.sum(dtype=np.int64)),
        "" if is_damaged else render_hash(root % (1 << 64)),
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
