"""Checking what the columns of a mapped trace say, block by block: all that `read_trace` checks, in bounded memory."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.columns import Candidates, Columns, Digests
from kgverify.trace.digests import compute_digests, root_digest
from kgverify.trace.manifest import check_shard, render_hash
from kgverify.trace.mapped import MappedTrace
from kgverify.trace.mapped_file import COUNTS, MappedFile
from kgverify.trace.schema import RECORD_AGAIN
from kgverify.trace.validate import check_columns

BLOCK_STEPS: Final = 1 << 14


def verify_content(trace: MappedTrace) -> None:
    """UserError for whatever `read_trace` refuses: checksums, values, counts, digests, and what the manifest says."""
    trace.verify()
    _ = trace.program, trace.rankings
    for file, shard in zip(trace.files, trace.shards, strict=True):
        if shard is not None:
            check_shard(trace.path, shard)
        for name in COUNTS:
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
            digests = stored if stored is not None else compute_digests(file.read_candidates(begin, end))
            root += root_digest(candidates, digests.sequence)
        file.release()
    return root % (1 << 64)


def check_block(
    trace: MappedTrace, columns: Columns, stored: Digests | None, where: str, first_step: int = 0
) -> Digests:
    """The digests of some columns. UserError unless their values are possible and their digests those stored."""
    facts = trace.program.get("program/facts")
    check_columns(
        columns,
        trace.symbols,
        where,
        num_rules=len(trace.header.clauses.rules) or None,
        num_facts=None if facts is None else len(facts),
    )
    digests = compute_digests(columns)
    for name, found, expected in zip(Digests._fields, stored or (), digests, strict=False):
        if (found != expected).any():
            step = int(np.argmax(found != expected))
            raise UserError(
                f"step {first_step + step} has digest {int(found[step]):016x}, expected {int(expected[step]):016x}"
                " from its columns",
                where=f"{where}:digests/{name}",
                fix="write the digests that docs/trace-format.md defines, or none",
            )
    return digests


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
