"""Reading a trace, whoever wrote it: everything is checked, nothing is repaired."""

from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.journal import journal_name
from kgverify.trace.files.manifest import Manifest, Shard, ShardError, check_shard, read_manifest, render_hash
from kgverify.trace.hdf5.datasets import read_file
from kgverify.trace.hdf5.stored_file import FileContent
from kgverify.trace.model.columns import Digests, Rankings, concatenate
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.header import READABLE_VERSIONS, Header, expected_versions
from kgverify.trace.model.levels import TraceLevel, has_goals
from kgverify.trace.model.required_datasets import check_level
from kgverify.trace.model.schema import (
    FIELD_OF,
    RECORD_AGAIN,
    SEQUENCE,
    Arrays,
    decode_columns,
    decode_rules,
    decode_symbols,
)
from kgverify.trace.model.trace import Trace
from kgverify.trace.model.unknown_data import find_unknown, join_unknown
from kgverify.trace.model.validate import check_columns, check_facts, check_rankings, check_rules, check_types
from kgverify.trace.write.uncommitted import read_pending

SHARED: Final = ("header", "symbols/", "program/")
"""What every shard repeats."""


def read_trace(path: Path | str, *, verify_digests: bool = True) -> Trace:
    """Read a trace file, or a folder of shards with its manifest.

    verify_digests: recompute stored digests and compare; checksums are verified in any case.

    UserError if there is no trace or it is damaged, foreign, hostile or inconsistent: `docs/trace-format.md`
    lists what is refused. A folder whose recording did not finish is read as far as it was committed.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path, verify_digests)
    if not path.is_file():
        partial = partial_of(path)
        raise UserError(
            "no such trace",
            where=str(path),
            fix=f"its recording did not finish: resume it, or read {partial}" if partial.is_dir() else "check the path",
        )
    return decode_trace(read_file(path), str(path), verify_digests=verify_digests)


def partial_of(path: Path) -> Path:
    """Where the shards of a trace are until it is complete."""
    return path.with_name(path.name + ".partial")


def decode_header(arrays: Arrays, where: str) -> Header:
    """The header, from its JSON. UserError if it is none."""
    place = f"{where}:header"
    try:
        header = msgspec.json.decode(arrays["header"].tobytes(), type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"not a header: {error}", where=place, fix="write the JSON that docs/trace-format.md describes"
        ) from error
    except UserError as error:
        raise UserError(error.message, where=place, fix=error.fix) from error
    if header.schema_version not in READABLE_VERSIONS:
        raise UserError(
            f"schema version is {header.schema_version}, expected {expected_versions()}",
            where=place,
            fix=RECORD_AGAIN,
        )
    # Version 1 gave the level no meaning.
    return header if header.schema_version > 1 else msgspec.structs.replace(header, level=TraceLevel.STEPS.value)


def decode_trace(content: FileContent, where: str, *, verify_digests: bool = True) -> Trace:
    """The trace that a file holds. UserError where its datasets do not fit together."""
    arrays = content.arrays
    header = decode_header(arrays, where)
    check_level(arrays, header.level, where)
    symbols = decode_symbols(arrays, where)
    columns = decode_columns(arrays)
    facts, fact_lines = arrays.get("program/facts"), arrays.get("program/fact_lines")
    check_facts(facts, fact_lines, symbols, where)
    check_rules(arrays, symbols, where)
    check_columns(
        columns,
        symbols,
        where,
        num_rules=len(header.clauses.rules) or None,
        num_facts=None if facts is None else len(facts),
    )
    digests = _decode_digests(arrays, where, len(columns.steps.depth))
    if has_goals(header.level):
        is_whole = "digests/multiset" in arrays
        if verify_digests or not is_whole:
            computed = compute_digests(columns)
            if verify_digests:
                _check_digests(arrays, computed, where)
            digests = digests if is_whole else computed
    rankings = None
    if "rankings/query" in arrays:
        rankings = Rankings(*(arrays[f"rankings/{name}"] for name in Rankings._fields))
        check_rankings(rankings, where)
    return Trace(
        header=header,
        symbols=symbols,
        columns=columns,
        digests=digests,
        rankings=rankings,
        facts=facts,
        fact_lines=fact_lines,
        fields=frozenset(FIELD_OF[p].name for p in arrays if not p.startswith(("header", "symbols/", "shard/"))),
        is_complete="shard/index" not in arrays,
        source=where,
        rules=decode_rules(arrays),
        unknown=find_unknown(content, header),
    )


def _decode_digests(arrays: Arrays, where: str, num_steps: int) -> Digests:
    """The digests that the file holds; those that it does not are zeros."""
    stored = [arrays.get(f"digests/{name}") for name in Digests._fields]
    lengths = {name: len(d) for name, d in zip(Digests._fields, stored, strict=True) if d is not None}
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"lengths differ: {', '.join(f'{n} {length}' for n, length in lengths.items())}",
            where=f"{where}:digests/sequence",
            fix="write one digest of each kind for each step, or none",
        )
    if lengths and set(lengths.values()) != {num_steps}:
        raise UserError(
            f"found {lengths['sequence']} digests for {num_steps} steps",
            where=f"{where}:digests/sequence",
            fix="write one digest of each kind for each step, or none",
        )
    return Digests(*(np.zeros(num_steps, np.uint64) if d is None else d for d in stored))


def check_sequence(sequence: NDArray[np.uint64], num_steps: int, where: str) -> None:
    """UserError unless there is one digest, uint64, for each step."""
    check_types({SEQUENCE: sequence}, where)
    if len(sequence) != num_steps:
        raise UserError(
            f"found {len(sequence)} digests for {num_steps} steps",
            where=f"{where}:{SEQUENCE}",
            fix="write one digest for each step, or none",
        )


def _check_digests(arrays: Arrays, computed: Digests, where: str) -> None:
    for name, expected in zip(Digests._fields, computed, strict=True):
        found = arrays.get(f"digests/{name}")
        if found is None:
            continue
        differs: NDArray[Any] = found != expected
        if differs.any():
            step = int(np.argmax(differs))
            raise UserError(
                f"step {step} has digest {int(found[step]):016x}, expected {int(expected[step]):016x} from its columns",
                where=f"{where}:digests/{name}",
                fix="write the digests that docs/trace-format.md defines, or none",
            )


def _read_folder(folder: Path, verify_digests: bool) -> Trace:
    manifest = read_manifest(folder)
    parts = []
    shared: dict[str, bytes] = {}
    for index, shard in enumerate(manifest.shards):
        parts.append(read_shard(folder, index, shard, shared, verify_digests=verify_digests))
    if (pending := read_journal_part(folder, manifest, shared)) is not None:
        parts.append(pending)
    if not parts:
        raise UserError("the manifest lists no shard", where=str(folder), fix=RECORD_AGAIN)
    return _join(parts, folder, manifest)


def read_shard(
    folder: Path, index: int, shard: Shard, shared: dict[str, bytes], *, verify_digests: bool = True
) -> Trace:
    """Read a shard of a folder. `shared`, what every shard repeats, is filled by the first. UserError as `read_trace`."""
    check_shard(folder, shard)
    where = str(folder / shard.name)
    content = read_file(folder / shard.name)
    arrays = content.arrays
    shared.update(shared or shared_of(arrays))
    check_shared(shared, arrays, "the shards before", where)
    _check_index(arrays, index, where)
    trace = decode_trace(content, where, verify_digests=verify_digests)
    _check_counts(trace, shard, where)
    return trace


def read_journal_part(folder: Path, manifest: Manifest, shared: dict[str, bytes]) -> Trace | None:
    """What a recording that did not finish had appended since its last shard. UserError if that was altered."""
    index = len(manifest.shards)
    pending = None if manifest.is_complete else read_pending(folder, index)
    if pending is None:
        return None
    where = str(folder / journal_name(index))
    shared.update(shared or shared_of(pending))
    check_shared(shared, pending, "the shards before", where)
    return decode_trace(FileContent(pending, {}, ()), where, verify_digests=False)


def shared_of(arrays: Arrays) -> dict[str, bytes]:
    """What every shard repeats."""
    return {name: array.tobytes() for name, array in arrays.items() if name.startswith(SHARED)}


def check_shared(expected: dict[str, bytes], arrays: Arrays, name: str, where: str) -> None:
    """UserError unless a shard repeats what another, of this name, holds."""
    found = shared_of(arrays)
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            raise UserError(
                f"differs from that of {name}, expected the same in every shard",
                where=f"{where}:{path}",
                fix=RECORD_AGAIN,
            )


def _check_index(arrays: Arrays, index: int, where: str) -> None:
    stored = arrays.get("shard/index")
    if stored is None or stored.tolist() != [index]:
        raise ShardError(
            f"found {'none' if stored is None else stored.tolist()}, expected [{index}]",
            name=Path(where).name,
            reason="misplaced",
            where=f"{where}:shard/index",
            fix="put every shard in its place",
        )


def _check_counts(trace: Trace, shard: Shard, where: str) -> None:
    found = len(trace.columns.candidates.query), len(trace.columns.steps.depth), render_hash(trace.root)
    expected = shard.num_candidates, shard.num_steps, shard.root
    if found != expected:
        raise UserError(
            f"candidates, steps and root are {found}, expected {expected} from the manifest",
            where=where,
            fix=RECORD_AGAIN,
        )


def _join(parts: list[Trace], folder: Path, manifest: Manifest) -> Trace:
    first, last = parts[0], parts[-1]
    for part in parts:
        check_alike(first, part, is_last=part is last)
    return Trace(
        header=first.header,
        symbols=first.symbols,
        columns=concatenate([part.columns for part in parts]),
        digests=Digests(*(np.concatenate(columns) for columns in zip(*(p.digests for p in parts), strict=True))),
        rankings=last.rankings,
        facts=first.facts,
        fact_lines=first.fact_lines,
        fields=last.fields,
        is_complete=manifest.is_complete and not folder.name.endswith(".partial"),
        source=str(folder),
        rules=first.rules,
        unknown=join_unknown([part.unknown for part in parts]),
    )


def check_alike(first: Trace, part: Trace, *, is_last: bool) -> None:
    """UserError unless a shard has the columns of the first, and rankings only if it is the last."""
    of_rankings = {f"rankings.{name}" for name in Rankings._fields}
    if part.fields - of_rankings != first.fields - of_rankings:
        odd = min((part.fields ^ first.fields) - of_rankings)
        raise UserError(
            f"{odd} is in one shard and not in another",
            where=part.source,
            fix="write the same columns everywhere",
        )
    if part.columns.resolvents.score.dtype != first.columns.resolvents.score.dtype:
        raise UserError(
            "scores have one type in one shard and another in another",
            where=part.source,
            fix=RECORD_AGAIN,
        )
    if part.rankings is not None and not is_last:
        raise UserError("found rankings, expected in the last shard alone", where=part.source, fix=RECORD_AGAIN)
