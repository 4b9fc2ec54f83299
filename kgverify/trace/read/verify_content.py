"""Checking what the columns of a mapped trace say, block by block: all that `read_trace` checks, in bounded memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.files.manifest import check_shard, render_hash
from kgverify.trace.model.columns import Candidates, Columns, Digests
from kgverify.trace.model.digests import compute_digests, root_digest
from kgverify.trace.model.schema import RECORD_AGAIN
from kgverify.trace.model.validate import check_columns
from kgverify.trace.read.mapped_file import COUNTS, STAGE_COUNTS, MappedFile, StoredDigests
from kgverify.trace.read.mapped_trace import MappedTrace

BLOCK_STEPS: Final = 1 << 14


def verify_content(trace: MappedTrace) -> None:
    """UserError for whatever `read_trace` refuses: checksums, values, counts, digests, and what the manifest says."""
    trace.verify()
    _ = trace.program, trace.rankings
    for file, shard in zip(trace.files, trace.shards, strict=True):
        if shard is not None:
            check_shard(trace.path, shard)
        for name in (*COUNTS, *(STAGE_COUNTS if file.has_stages else ())):
            file.offsets(name).build()
        root = 0
        for begin, end in split_candidates(file):
            columns = file.read_candidates(begin, end)
            first = file.offsets("candidates/num_steps").at(begin)
            stored = file.read_digests(first, first + len(columns.steps.depth))
            digests = check_block(trace, columns, stored, str(file.path), first)
            root += root_digest(columns.candidates, digests.sequence)
        file.release()
        if shard is not None and render_hash(root % (1 << 64)) != shard.root:
            raise UserError(
                f"root is {render_hash(root % (1 << 64))}, expected {shard.root} from the manifest",
                where=str(file.path),
                fix=RECORD_AGAIN,
            )


def stored_root(trace: MappedTrace) -> int:
    """The root digest of all steps, from the digests stored; computed where there are none."""
    root = 0
    for file in trace.files:
        for begin, end in split_candidates(file):
            first = file.offsets("candidates/num_steps")
            candidates = Candidates(*(file.read(f"candidates/{name}", begin, end) for name in Candidates._fields))
            stored = file.read_digests(first.at(begin), first.at(end))
            if "sequence" not in stored:
                stored = compute_digests(file.read_candidates(begin, end))._asdict()
            root += root_digest(candidates, stored["sequence"])
        file.release()
    return root % (1 << 64)


def check_block(
    trace: MappedTrace, columns: Columns, stored: StoredDigests, where: str, first_step: int = 0
) -> Digests:
    """The digests of some columns. UserError unless their values are possible and their digests those stored.

    Of a level without goals they are those stored, and zeros for those that are not.
    """
    facts = trace.program.get("program/facts")
    check_columns(
        columns,
        trace.symbols,
        where,
        num_rules=len(trace.header.clauses.rules) or None,
        num_facts=None if facts is None else len(facts),
    )
    if not trace.has_goals:
        zeros = np.zeros(len(columns.steps.depth), np.uint64)
        return Digests(*(stored.get(name, zeros) for name in Digests._fields))
    digests = compute_digests(columns)
    for name, found in stored.items():
        expected = getattr(digests, name)
        if (found != expected).any():
            step = int(np.argmax(found != expected))
            raise UserError(
                f"step {first_step + step} has digest {int(found[step]):016x}, expected {int(expected[step]):016x}"
                " from its columns",
                where=f"{where}:digests/{name}",
                fix="write the digests that docs/trace-format.md defines, or none",
            )
    return digests


def split_trace(trace: MappedTrace) -> Iterator[tuple[int, int]]:
    """Ranges of candidates of the whole trace, each in one file, as `split_candidates` has them."""
    for file, first in zip(trace.files, trace.candidate_starts.tolist(), strict=False):
        for begin, end in split_candidates(file):
            yield first + begin, first + end
        file.release()


def split_candidates(file: MappedFile) -> Iterator[tuple[int, int]]:
    """Ranges of candidates with about `BLOCK_STEPS` steps each, or of a single one."""
    first = file.offsets("candidates/num_steps")
    begin = 0
    while begin < file.num_candidates:
        end = min(begin + BLOCK_STEPS, file.num_candidates)
        if first.at(end) - first.at(begin) > BLOCK_STEPS:
            counts = file.read("candidates/num_steps", begin, end)
            sums = np.cumsum(counts, dtype=np.int64)
            end = begin + max(1, int(np.searchsorted(sums, BLOCK_STEPS, side="right")))
        yield begin, end
        begin = end
