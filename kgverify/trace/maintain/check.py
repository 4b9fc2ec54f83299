"""Checking a trace on disk, part by part: what is whole, what is wrong, what is missing."""

from pathlib import Path

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.program.outcomes import Side
from kgverify.trace.files.journal import Journal, journal_name, list_journals, read_journal
from kgverify.trace.files.manifest import MANIFEST, Manifest, read_manifest
from kgverify.trace.hdf5.datasets import examine_arrays
from kgverify.trace.model.columns import Candidates
from kgverify.trace.model.digests import candidate_keys
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.reader import check_alike, read_journal_part, read_shard, read_trace
from kgverify.trace.write.uncommitted import join_candidates

WHOLE, UNFINISHED, DAMAGED = "whole", "unfinished", "damaged"


class PartState(msgspec.Struct, frozen=True):
    """A dataset, a shard, a journal or a manifest; `problem` is empty where nothing is wrong with it."""

    name: str
    problem: str = ""
    num_candidates: int | None = None
    num_steps: int | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """What was found.

    state:          `whole`, `unfinished`: nothing is wrong, but the recording did not end, or `damaged`
    num_candidates: that can be read; `num_steps` as well
    root:           root digest of all steps, 16 hexadecimal digits; empty where something is damaged
    notes:          what is no fault but worth knowing
    """

    path: str
    state: str
    parts: tuple[PartState, ...]
    num_candidates: int
    num_steps: int
    root: str
    notes: tuple[str, ...] = ()


def check_trace(path: Path | str) -> CheckReport:
    """Verify checksums, digests, counts and structure of a file or a folder. UserError if there is no trace at all."""
    path = Path(path)
    if path.is_dir():
        return _check_folder(path)
    if not path.is_file():
        raise UserError("no such trace", where=str(path), fix="check the path")
    return _check_file(path)


def name_candidate(candidates: Candidates, row: int) -> str:
    """A candidate as a person reads it: `query 3, tail, atom (0, 5, 7)`."""
    atom = ", ".join(str(value) for value in candidates.atom[row].tolist())
    return f"query {candidates.query[row]}, {Side(int(candidates.side[row])).name.lower()}, atom ({atom})"


def find_doubled(candidates: Candidates) -> list[tuple[int, int]]:
    """Rows of the same candidate: of each that occurs again, the first and the next."""
    keys = candidate_keys(candidates)
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    return [(int(order[i]), int(order[i + 1])) for i in again]


def _check_file(path: Path) -> CheckReport:
    examined = examine_arrays(path)
    names = sorted(examined.intact.keys() | examined.problems.keys())
    parts = [PartState(name, examined.problems.get(name, "")) for name in names]
    num_candidates = num_steps = 0
    root = ""
    state = DAMAGED
    if not examined.problems:
        try:
            trace = read_trace(path)
        except UserError as error:
            parts.append(PartState("structure and digests", _tell(error, path)))
        else:
            num_candidates, num_steps = len(trace.columns.candidates.query), len(trace.columns.steps.depth)
            parts.append(PartState("structure and digests", "", num_candidates, num_steps))
            root = f"{trace.root:016x}"
            state = WHOLE if trace.is_complete else UNFINISHED
    return CheckReport(str(path), state, tuple(parts), num_candidates, num_steps, root)


def _check_folder(folder: Path) -> CheckReport:
    if not (folder / MANIFEST).exists() and not list_journals(folder) and not any(folder.glob("shard-*.h5")):
        raise UserError(f"no {MANIFEST} in this folder, expected a trace", where=str(folder), fix="check the path")
    parts: list[PartState] = []
    candidates: list[Candidates] = []
    root = 0
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        return CheckReport(str(folder), DAMAGED, (PartState(MANIFEST, _tell(error, folder)),), 0, 0, "")
    if (folder / MANIFEST).exists():
        parts.append(PartState(MANIFEST, "", manifest.num_candidates, manifest.num_steps))
    shared: dict[str, bytes] = {}
    first: Trace | None = None
    for index, shard in enumerate(manifest.shards):
        try:
            trace = read_shard(folder, index, shard, shared)
            first = first or trace
            check_alike(first, trace, is_last=index + 1 == len(manifest.shards))
        except UserError as error:
            parts.append(PartState(shard.name, _tell(error, folder), shard.num_candidates, shard.num_steps))
            continue
        parts.append(PartState(shard.name, "", shard.num_candidates, shard.num_steps))
        candidates.append(trace.columns.candidates)
        root += trace.root
    notes = _note_files(folder, manifest)
    if not manifest.is_complete and (folder / journal_name(len(manifest.shards))).is_file():
        name = journal_name(len(manifest.shards))
        try:
            notes += _note_tear(read_journal(folder / name))
            pending = read_journal_part(folder, manifest, shared)
            if pending is not None:
                check_alike(first or pending, pending, is_last=True)
                parts.append(
                    PartState(name, "", len(pending.columns.candidates.query), len(pending.columns.steps.depth))
                )
                candidates.append(pending.columns.candidates)
                root += pending.root
            else:
                parts.append(PartState(name, "", 0, 0))
        except UserError as error:
            parts.append(PartState(name, _tell(error, folder)))
    is_damaged = any(part.problem for part in parts)
    there = join_candidates(candidates)
    doubled = find_doubled(there)
    notes += [f"recorded more than once: {name_candidate(there, first)}" for first, _ in doubled[:10]]
    state = DAMAGED if is_damaged else UNFINISHED
    if not is_damaged and manifest.is_complete and not folder.name.endswith(".partial"):
        state = WHOLE
    return CheckReport(
        str(folder),
        state,
        tuple(parts),
        len(there.query),
        int(there.num_steps.sum(dtype=np.int64)),
        "" if is_damaged else f"{root % (1 << 64):016x}",
        tuple(notes),
    )


def _note_tear(journal: Journal) -> list[str]:
    return [
        f"{journal.path.name} ends in what was never confirmed: {damage.message}, {damage.num_bytes} bytes"
        f" from byte {damage.offset} on"
        for damage in journal.damages
        if not damage.was_committed
    ]


def _note_files(folder: Path, manifest: Manifest) -> list[str]:
    listed = {MANIFEST, *(shard.name for shard in manifest.shards)}
    if not manifest.is_complete:
        listed.add(journal_name(len(manifest.shards)))
    return [f"{path.name} is no part of the trace" for path in sorted(folder.iterdir()) if path.name not in listed]


def _tell(error: UserError, path: Path) -> str:
    place = error.where.removeprefix(str(path)).lstrip("/:")
    return f"{place}: {error.message}" if place and not place.endswith((".h5", ".json")) else error.message
