"""Checking a trace on disk part by part: what is intact, what is damaged, what is missing."""

from pathlib import Path

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.files.remote import fetched, find_remote
from kgverify.program.outcomes import Side
from kgverify.trace.files.manifest import MANIFEST, Manifest, read_manifest
from kgverify.trace.hdf5.reading import opened_trace
from kgverify.trace.model.columns import Candidates, join_candidates
from kgverify.trace.model.consistency import Contradictions, describe_rankings
from kgverify.trace.model.digests import candidate_keys
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

    state:          `whole`, `unfinished`: intact, but the recording did not end, or `damaged`
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
    """Verify checksums, digests, counts and structure of a file or a folder. UserError if it is not a trace at all."""
    with fetched(path) as copy:
        if not copy.is_dir() and not copy.is_file():
            raise UserError("no such trace", where=str(path), fix="check the path")
        report = _check_folder(copy) if copy.is_dir() else _check_file(copy)
        remote = find_remote(path)
        return msgspec.structs.replace(report, path=str(path) if remote is None else remote.url)


def name_candidate(candidates: Candidates, row: int) -> str:
    """Return the name of a candidate as text: `query 3, tail, atom (0, 5, 7)`."""
    atom = ", ".join(str(value) for value in candidates.atom[row].tolist())
    return f"query {candidates.query[row]}, {Side(int(candidates.side[row])).name.lower()}, atom ({atom})"


def find_duplicates(candidates: Candidates) -> list[tuple[int, int]]:
    """Return pairs of rows with the same candidate: each occurrence and the next."""
    keys = candidate_keys(candidates)
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    return [(int(order[i]), int(order[i + 1])) for i in again]


def _check_file(path: Path) -> CheckReport:
    with opened_trace(path):
        pass
    parts: list[PartState] = []
    notes: list[str] = []
    candidates: Candidates | None = None
    try:
        file = DataFile(path)
        for name in sorted(file.stored):
            try:
                file.verify(name)
            except UserError as error:
                parts.append(PartState(name, error.message))
            else:
                parts.append(PartState(name))
        if not any(part.problem for part in parts):
            trace = file.load()
            candidates, steps, *_ = trace.columns
            found = Contradictions()
            found.add(trace.columns, trace.header, trace.fields)
            texts = found.describe()
            if trace.rankings is not None:
                texts += describe_rankings(trace.rankings, candidates)
            notes = _note_duplicates(candidates) + [f"it contradicts itself: {text}" for text in texts]
            parts.append(PartState("structure and digests", "", len(candidates.query), len(steps.depth)))
    except UserError as error:
        parts.append(PartState("structure and digests", _describe(error, path)))
    if candidates is None:
        return CheckReport(str(path), DAMAGED, tuple(parts), 0, 0, "", tuple(notes))
    state = WHOLE if trace.is_complete else UNFINISHED
    counts = len(candidates.query), len(steps.depth)
    return CheckReport(str(path), state, tuple(parts), *counts, f"{trace.root:016x}", tuple(notes))


def _check_folder(folder: Path) -> CheckReport:
    if not (folder / MANIFEST).exists() and not any(folder.glob("shard-*.h5")):
        raise UserError(f"no {MANIFEST} in this folder, expected a trace", where=str(folder), fix="check the path")
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        return CheckReport(str(folder), DAMAGED, (PartState(MANIFEST, _describe(error, folder)),), 0, 0, "")
    parts = [PartState(MANIFEST, "", manifest.num_candidates, manifest.num_steps)]
    traces: list[tuple[Candidates, int]] = []
    contradictions = Contradictions()
    first: DataFile | None = None
    for shard in manifest.shards:
        problem = ""
        try:
            file = open_shard(folder, shard, first=None if first is None else lambda first=first: first)  # type: ignore[misc]
            check_alike(first or file, file, is_last=shard is manifest.shards[-1])
            trace = file.load()
            check_root(trace.root, shard, file.path)
            contradictions.add(trace.columns, trace.header, trace.fields, sum(len(each.query) for each, _ in traces))
            traces.append((trace.columns.candidates, trace.root))
            first = first or file
        except UserError as error:
            problem = _describe(error, folder)
        parts.append(PartState(shard.name, problem, shard.num_candidates, shard.num_steps))
    is_damaged = any(part.problem for part in parts)
    candidates = join_candidates([each for each, _ in traces])
    notes = _note_files(folder, manifest) + _note_duplicates(candidates)
    notes += [f"it contradicts itself: {text}" for text in contradictions.describe()]
    is_whole = manifest.is_complete and not folder.name.endswith(".partial")
    return CheckReport(
        str(folder),
        DAMAGED if is_damaged else WHOLE if is_whole else UNFINISHED,
        tuple(parts),
        len(candidates.query),
        int(candidates.num_steps.sum(dtype=np.int64)),
        "" if is_damaged else f"{sum(root for _, root in traces) % (1 << 64):016x}",
        tuple(notes),
    )


def _note_duplicates(candidates: Candidates) -> list[str]:
    return [
        f"recorded more than once: {name_candidate(candidates, first)}" for first, _ in find_duplicates(candidates)[:10]
    ]


def _note_files(folder: Path, manifest: Manifest) -> list[str]:
    listed = {MANIFEST, *(shard.name for shard in manifest.shards)}
    return [f"{path.name} does not belong to the trace" for path in sorted(folder.iterdir()) if path.name not in listed]


def _describe(error: UserError, path: Path) -> str:
    where = error.where.removeprefix(str(path)).lstrip("/:")
    return f"{where}: {error.message}" if where and not where.endswith((".h5", ".json")) else error.message
