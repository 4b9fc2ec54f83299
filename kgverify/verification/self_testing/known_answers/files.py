"""Known pairs on disk: the traces of known pairs, stored whole, in shards, with fewer columns, incomplete and damaged."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import xxhash

from kgverify.comparison.compare import Sizes
from kgverify.engines.reference.garbage_collection import without_garbage_collection
from kgverify.errors import UserError
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import OPTIONAL_COLUMNS
from kgverify.trace.model.trace import Trace
from kgverify.trace.write.encode import Clauses
from kgverify.trace.write.writer import Durability, Storage, TraceWriter
from kgverify.verification.self_testing.known_answers.answers import (
    Answer,
    JudgeRecorded,
    Known,
    answer_of,
    require_known,
)
from kgverify.verification.self_testing.known_answers.pairs import ERROR, blank, pair_of, take
from kgverify.verification.self_testing.stored_self_test import require

_SMALL: Final = {"sizes": Sizes(7, 256, 3), "verifies_content": False}
_PLAIN: Final = {"verifies_content": False}

# Differences that a file can hold: no choice outside its step, and no number that is not finite where none is allowed.
_STORED: Final = (0, 1, 4, 9, 13, 19, 23, 0, 30, 32, 34, 42, 46, 47, 49, 54, 58, 61, 65, 67, 0, 0)


_SAME_SHAPE: Final = (0, 1, 4, 9, 0, 0, 30, 32, 0, 34, 0, 42, 47, 49, 0, 0, 65, 67, 0, 54, 32, 0)


def _write(trace: Trace, path: Path, level: str = "steps", shard_steps: int = 1 << 40) -> Path:
    """Write a trace as a file, or as a folder of shards."""
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    storage = Storage(level, OPTIONAL_COLUMNS - trace.fields, shard_steps=shard_steps)
    durability = Durability(has_journal=False)
    with TraceWriter(
        path, trace.header, trace.symbols, clauses=clauses, storage=storage, durability=durability
    ) as writer:
        for rows in np.array_split(np.arange(len(trace.columns.candidates.query)), 3):
            writer.append(select_candidates(trace.columns, rows))
        if trace.rankings is not None:
            writer.set_rankings(trace.rankings)
    return path


def stored_pairs(folder: Path) -> Iterator[Known]:
    """Yield the known pairs on disk, written below a folder."""
    expected, actual = pair_of(_STORED, error=ERROR)
    whole = _write(expected, folder / "expected.h5")
    shards = _write(actual, folder / "shards", shard_steps=40)
    yield Known("a file and shards", whole, shards, _SMALL)
    yield Known("shards, verified and listed in part", shards, whole, {**_SMALL, "verifies_content": True, "kept": 4})
    pair = pair_of(_SAME_SHAPE, error=ERROR)
    left, right = (_write(each, folder / f"like-{i}.h5") for i, each in enumerate(pair))
    yield Known("in files of one shape", left, right, _SMALL)
    left, right = (_write(each, folder / f"digests-{i}.h5", "digests") for i, each in enumerate((expected, actual)))
    yield Known("digests in files", left, right, _SMALL)
    lacking = take(actual, (0, 1, 9, 13, 0))
    lacking = blank(lacking, lacking.fields - {"steps.dropped_atoms", "steps.dropped_resolvents", "resolvents.score"})
    yield Known("without columns", whole, _write(lacking, folder / "lacking.h5"), _PLAIN)
    same, bits = (replace(each, rankings=None) for each in pair_of((0, 32, 0, 32, 0), error=ERROR))
    equal, other = _write(same, folder / "same.h5"), _write(bits, folder / "bits.h5")
    yield Known("equal within errors", equal, other, _SMALL)
    yield Known("in another order", equal, _write(take(bits, [0, 2, 1, 3, 4]), folder / "order.h5"), _PLAIN)
    nothing = _write(replace(pair_of((60, 60))[0], rankings=None), folder / "empty.h5")
    yield Known("without steps", nothing, nothing, _PLAIN)
    path = folder / "scores.h5"
    path.write_bytes(_spoil(other.read_bytes(), bits.columns.resolvents.score.tobytes()))
    yield Known("damaged scores", equal, path, _PLAIN)
    lost = _write(blank(same, same.fields - {"resolvents.score"}), folder / "lost.h5")
    yield Known("damaged scores of one side", path, lost, _PLAIN)
    path = folder / "damaged.h5"
    path.write_bytes(_spoil(nothing.read_bytes(), xxhash.xxh3_64(b"").intdigest().to_bytes(8, "little")))
    yield Known("a damaged checksum of nothing", nothing, path, _PLAIN)
    parts = _write(bits, folder / "parts", shard_steps=9)
    next(iter(sorted(parts.glob("*.h5")))).unlink()
    yield Known("a shard is missing", equal, parts, _PLAIN)


def _spoil(data: bytes, content: bytes) -> bytes:
    """Change the last byte of each occurrence of some bytes."""
    require(content in data, "a column is not stored as it is")
    return data.replace(content, content[:-1] + bytes([content[-1] ^ 1]))


def known_file_answers(judge: JudgeRecorded) -> Iterator[tuple[str, Answer]]:
    """Yield the answers of a judge for the known pairs on disk."""
    # A folder in memory has no disk to wait for.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="kgverify-known-", dir=memory) as name:
        folder = Path(name)
        for known in stored_pairs(folder):
            try:
                _, report = judge(known.expected, known.actual, **known.options)
                yield known.name, answer_of(report, str(folder))
            except UserError as error:
                text = str(error).replace(str(folder), "")
                yield known.name, Answer("refused", 0, 0, 0, hashlib.sha256(text.encode()).hexdigest()[:16])


@cache
@without_garbage_collection()
def check_known_files(judge: JudgeRecorded) -> None:
    """InternalError unless each known pair on disk has its known answer."""
    for name, answer in known_file_answers(judge):
        require_known(name, answer)
