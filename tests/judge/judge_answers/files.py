"""Known pairs on disk: the traces of known pairs, stored whole, in shards, with fewer columns, incomplete and damaged."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from judge_answers.answers import (
    Answer,
    JudgeRecorded,
    Known,
    answer_of,
    require_known,
)
from judge_answers.pairs import (
    ERROR,
    blank,
    make_rankings,
    pair_of,
    take,
    with_header,
)
from judge_answers.rare_pairs import long_sums, near_tie_and_bits, not_a_number
from run_engines import memory_folder

from kgverify import TraceWriter, UserError
from kgverify.garbage_collection import without_garbage_collection
from kgverify.kinds import KNOWLEDGE_GRAPH
from kgverify.trace.hdf5.writing import write_arrays
from kgverify.trace.model.columns import select_candidates
from kgverify.trace.model.schema import Arrays, Packing
from kgverify.trace.model.stage_items import encode_stage_outputs
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile
from kgverify.trace.write.writer import Clauses, Storage
from kgverify.verification.planted_changes import require

_SMALL: Final = {"block_steps": 7, "piece_bytes": 256, "verifies_content": False}
_PLAIN: Final = {"verifies_content": False}

# Differences that a file can hold: no choice outside its step, and no number that is not finite where none is allowed.
_STORED: Final = (0, 1, 4, 9, 13, 19, 23, 0, 30, 32, 34, 42, 46, 47, 49, 54, 58, 61, 65, 67, 0, 0)


_SAME_SHAPE: Final = (0, 1, 4, 9, 0, 0, 30, 32, 0, 34, 0, 42, 47, 49, 0, 0, 65, 67, 0, 54, 32, 0)


def _write(trace: Trace, path: Path, level: str = "steps", shard_steps: int = 1 << 40) -> Path:
    """Write a trace as a file, or as a folder of shards."""
    clauses = Clauses(trace.facts, trace.fact_lines, trace.rules)
    storage = Storage(level, KNOWLEDGE_GRAPH.optional - trace.fields, shard_steps=shard_steps)
    with TraceWriter(path, trace.header, trace.symbols, clauses=clauses, storage=storage) as writer:
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
    yield from _in_pieces(folder)
    parts = _write(bits, folder / "parts", shard_steps=9)
    first, second, *_ = sorted(parts.glob("*.h5"))
    yield Known("a shard alone", first, first, _PLAIN)
    others = with_header(bits, run=msgspec.structs.replace(bits.header.run, seed=3))
    other = sorted(_write(others, folder / "others", shard_steps=9).glob("*.h5"))[1]
    original = second.read_bytes()
    second.write_bytes(other.read_bytes())
    yield Known("a shard of another run", equal, parts, _PLAIN)
    second.write_bytes(original)
    next(iter(sorted(parts.glob("*.h5")))).unlink()
    yield Known("a shard is missing", equal, parts, _PLAIN)


def _in_pieces(folder: Path) -> Iterator[Known]:
    """Yield pairs that are compared in pieces of two rows, of which some differ, far from each other."""
    for number, (name, (expected, actual)) in enumerate(
        {
            "ranges that differ": pair_of((0, 4, 0, 0, 0, 9, 0, 0, 0, 0, 34, 0, 0, 23, 0, 0, 0, 4), error=ERROR),
            "scores and sums that errors excuse": pair_of((32, 0, 0, 0, 33, 0, 0, 68, 0, 0, 32), error=ERROR),
            "a sum behind a long derivation": long_sums(),
            "a near-tie and other bits": near_tie_and_bits(),
            "a score that is not a number": not_a_number(),
        }.items()
    ):
        left, right = (
            _write(each, folder / f"pieces-{number}-{side}.h5") for side, each in enumerate((expected, actual))
        )
        yield Known(name, left, right, {"block_steps": 7, "piece_bytes": 16, "verifies_content": False})
    expected, actual = pair_of((0, 9, 4, 19, 30, 0), error=ERROR, is_one_query=True)
    left, right = _write(actual, folder / "order-0.h5"), _write(take(actual, [0, 2, 1, 4, 3, 5]), folder / "order-1.h5")
    yield Known("in order at the ends", left, right, _PLAIN)
    file = DataFile(_write(pair_of((0, 4, 0))[0], folder / "steps.h5"))
    kept = {name: file.read_all(name) for name in file.stored if not name.startswith("digests/")}
    left = _write(pair_of((0, 4, 0))[1], folder / "compact-1.h5", "compact")
    yield Known("steps without digests, and compact", _store(kept, folder / "undigested.h5"), left, _SMALL)
    left = _write(expected, folder / "compact-0.h5", "compact")
    counted = blank(actual, actual.fields - {"steps.dropped_atoms", "steps.dropped_resolvents"})
    for name, other in {"compact": actual, "compact, of other counts": counted}.items():
        yield Known(f"{name} files", left, _write(other, folder / f"{name}.h5", "compact"), _SMALL)


def _check_refusals(judge: JudgeRecorded, folder: Path) -> None:
    """InternalError unless every dataset is verified by its checksum, and counts and digests by what they count."""
    nothing = replace(pair_of((60, 60))[0], rankings=None)
    _refuse_checksums(judge, _write(_with_stages(nothing), folder / "nothing.h5", "deep"))
    trace = replace(pair_of((0, 9))[0], rankings=make_rankings((0, 0, 1, 1.0, 1.0)))
    whole = _write(_with_stages(trace), folder / "refused.h5", "deep")
    _refuse_checksums(judge, whole)
    file = DataFile(whole)
    arrays = {name: file.read_all(name) for name in file.stored}
    for name in (each.path for each in KNOWLEDGE_GRAPH.counts if each in KNOWLEDGE_GRAPH.compared):
        more = arrays[name].copy()
        more[-1] += 1
        both = _store({**arrays, name: more}, folder / f"counts-{name.replace('/', '-')}.h5")
        _require_refusal(judge, name, whole, both)
        _require_refusal(judge, name, both, both)
    digests = arrays["digests/sequence"].copy()
    digests[2] ^= np.uint64(1)
    wrong = _store({**arrays, "digests/sequence": digests}, folder / "digests.h5")
    _require_refusal(judge, "digests/sequence: step 2", whole, wrong, verifies_content=True)


def _with_stages(trace: Trace) -> Trace:
    """Return a trace that recorded no output of any stage."""
    stages = encode_stage_outputs({} for _ in trace.columns.steps.depth)
    return replace(trace, columns=trace.columns._replace(stages=stages))


def _refuse_checksums(judge: JudgeRecorded, path: Path) -> None:
    """InternalError unless another checksum of any dataset is refused, on either side."""
    files = TraceFile(path), TraceFile(path)
    for file in files:
        stored = file.files[0].stored
        # The header was read, and verified, when the file was opened.
        for name, right in [item for item in stored.items() if item[0] != "header"]:
            stored[name] = replace(right, checksum=1)
            _require_refusal(judge, name, *files)
            stored[name] = right


def _require_refusal(judge: JudgeRecorded, name: str, expected: Any, actual: Any, **options: Any) -> None:
    try:
        judge(expected, actual, **{**_SMALL, **options})
    except UserError as error:
        require(name in str(error), f"a wrong {name} is refused as {error}")
    else:
        require(False, f"a wrong {name} is read")


def _store(arrays: Arrays, path: Path) -> Path:
    """Write datasets with the checksums that they have."""
    write_arrays(path, arrays, "known", Packing.PLAIN)
    return path


def _spoil(data: bytes, content: bytes) -> bytes:
    """Change the last byte of each occurrence of some bytes."""
    require(content in data, "a column is not stored as it is")
    return data.replace(content, content[:-1] + bytes([content[-1] ^ 1]))


def known_file_answers(judge: JudgeRecorded) -> Iterator[tuple[str, Answer]]:
    """Yield the answers of a judge for the known pairs on disk."""
    with memory_folder() as folder:
        for known in stored_pairs(folder):
            try:
                _, report = judge(known.expected, known.actual, **known.options)
                yield known.name, answer_of(report, str(folder))
            except UserError as error:
                # The checksum of a file depends on the moment of its recording.
                text = re.sub(r"\b[0-9a-f]{16}\b", "<checksum>", str(error).replace(str(folder), ""))
                yield known.name, Answer("refused", 0, 0, 0, hashlib.sha256(text.encode()).hexdigest()[:16])


@cache
@without_garbage_collection()
def check_known_files(judge: JudgeRecorded) -> None:
    """InternalError unless each known pair on disk has its known answer."""
    for name, answer in known_file_answers(judge):
        require_known(name, answer)
    with memory_folder() as folder:
        _check_refusals(judge, folder)
