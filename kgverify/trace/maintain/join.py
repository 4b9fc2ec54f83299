"""Joining the traces of several writers (processes, ranks or machines) into one."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from kgverify.errors import UserError, count_of
from kgverify.files.writing import explained
from kgverify.trace.files.manifest import (
    Manifest,
    Shard,
    check_no_partial,
    check_output_path,
    list_shards,
    lock_trace,
    new_folder,
    partial_of,
    read_manifest,
    shard_name,
    write_manifest,
)
from kgverify.trace.maintain.check import find_duplicates, name_candidate
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, LABELS, Candidates, Rankings, join_candidates
from kgverify.trace.model.digests import candidate_keys
from kgverify.trace.model.schema import SEQUENCE, Arrays, Packing, encode_level, packing_of
from kgverify.trace.read.data_file import DataFile
from kgverify.trace.read.trace_file import TraceFile, check_same_run, read_trace
from kgverify.trace.write.writer import write_shard
from kgverify.version import __version__

_SHOWN = 10
"""The most candidates or parts that a message names."""

MOST_MISSING: Final = 1000
"""The most missing parts that are listed: a manifest may claim any number of parts."""

_MAY_DIFFER = {name.replace(".", "/") for name in KNOWLEDGE_GRAPH.optional} | {LABELS, SEQUENCE}


class PartsError(UserError):
    """The error for traces of several writers that do not form one whole trace.

    missing: the missing parts or candidates
    doubled: the parts or candidates that occur more than once
    """

    def __init__(
        self, message: str, *, where: str, fix: str, missing: Sequence[str] = (), doubled: Sequence[str] = ()
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.missing, self.doubled = tuple(missing), tuple(doubled)


def unite(
    paths: Sequence[Path | str],
    output: Path | str,
    *,
    like: Path | str | None = None,
    drop_rankings: bool = False,
    overwrites: bool = True,
) -> Manifest:
    """Join several complete traces of one run into one folder of shards, with their candidates in the order of `paths`.

    like:          a trace with exactly the expected candidates
    overwrites:    replace an existing trace at `output`
    drop_rankings: leave out the rankings; otherwise only one of the traces may rank each query and side

    One shard is in memory at a time. PartsError for a part or a candidate that is missing or doubled; UserError for
    traces of different runs, or a trace that cannot be read.
    """
    output = Path(output)
    sources = [Path(path) for path in paths]
    expected = None if like is None else read_trace(like).columns.candidates
    opened = _open(sources)
    with lock_trace(output, overwrites=overwrites), explained(output, kept="the traces to join are unchanged"):
        check_output_path(output)
        check_no_partial(partial_of(output))
        with new_folder(output) as folder:
            return _write(opened, folder, expected, drop_rankings)


def check_parts(manifests: Sequence[tuple[Path, Manifest]]) -> None:
    """Raise a PartsError unless the traces are all the parts of one recording, each once, or no trace is a part."""
    parts = [(path, manifest.part) for path, manifest in manifests if manifest.part is not None]
    if not parts:
        return
    where = str(parts[0][0])
    counts = sorted({part.count for _, part in parts})
    if len(parts) < len(manifests) or len(counts) > 1:
        raise PartsError(
            f"is a part of {' and of '.join(map(str, counts))}, among traces that are not",
            where=where,
            fix="join the parts of one recording",
        )
    paths: dict[int, list[Path]] = {}
    for path, part in parts:
        paths.setdefault(part.index, []).append(path)
    absent = (i for i in range(counts[0]) if i not in paths)
    missing = [f"part {i} of {counts[0]}" for i in islice(absent, MOST_MISSING)]
    doubled = [
        f"part {i} of {counts[0]} ({', '.join(map(str, there))})" for i, there in paths.items() if len(there) > 1
    ]
    if missing or doubled:
        found = [f"{_shorten(names)} {what}" for names, what in ((missing, "missing"), (doubled, "doubled")) if names]
        raise PartsError(
            "; ".join(found),
            where=where,
            fix="give every part once",
            missing=missing,
            doubled=doubled,
        )


def _open(sources: Sequence[Path]) -> list[TraceFile]:
    """Open all traces. PartsError unless they are complete, and are either all the parts of one recording or no parts."""
    manifests = []
    single = list_shards((), is_complete=True, creator="")
    for source in sources:
        if not source.exists():
            raise PartsError("no such trace", where=str(source), fix="check the path", missing=[str(source)])
        manifest = read_manifest(source) if source.is_dir() else single
        if not manifest.is_complete or source.name.endswith(".partial"):
            raise PartsError(
                "its recording did not finish", where=str(source), fix="resume it, then join", missing=[str(source)]
            )
        manifests.append((source, manifest))
    if not manifests:
        raise UserError("no trace to join", fix="give the paths of complete traces")
    check_parts(manifests)
    opened = [TraceFile(source, is_lazy=True) for source in sources]
    if shards := [trace.source for trace in opened if not trace.is_complete]:
        raise UserError("is a shard, not a whole trace", where=shards[0], fix="give the folder that it belongs to")
    return opened


def _write(sources: Sequence[TraceFile], partial: Path, expected: Candidates | None, drop_rankings: bool) -> Manifest:
    first: DataFile | None = None
    kinds: tuple[frozenset[str], Any] | None = None
    candidates: list[Candidates] = []
    rankings: list[tuple[Path, Arrays]] = []
    shards: list[Shard] = []
    held: tuple[Arrays, Packing] | None = None
    creator = f"kgverify {__version__}"
    num_files = sum(len(source.files) for source in sources)
    for number, (file, arrays) in enumerate(_read_parts(sources), 1):
        path = file.path
        first = first or file
        check_same_run(first, file)
        if any(name.startswith("rankings/") for name in arrays):
            rankings.append((path, {n: arrays.pop(n) for n in list(arrays) if n.startswith("rankings/")}))
        columns = KNOWLEDGE_GRAPH.decode(arrays).candidates
        if not len(columns.query) and (held is not None or number < num_files):
            continue
        scores = arrays.get("resolvents/score")
        kind = frozenset(arrays) & _MAY_DIFFER, None if scores is None else scores.dtype
        if kinds is not None and kind != kinds:
            raise UserError(
                "has other columns, or another type of score, than the traces before",
                where=str(path),
                fix="record every part with the same options",
            )
        kinds = kind
        candidates.append(columns)
        if held is not None:
            shards.append(_put(partial, len(shards), *held, creator))
        held = arrays, packing_of(file.level, is_archived=file.is_archived)
    _check_candidates(candidates, [source.path for source in sources], expected)
    assert held is not None
    if rankings and not drop_rankings:
        held = held[0] | _join_rankings(rankings), held[1]
    shards.append(_put(partial, len(shards), *held, creator))
    manifest = list_shards(tuple(shards), is_complete=True, creator=creator)
    write_manifest(partial, manifest)
    return manifest


def _read_parts(sources: Sequence[TraceFile]) -> Iterator[tuple[DataFile, Arrays]]:
    """Yield each file with its datasets, after verifying everything that `kgverify trace check` verifies."""
    for source in sources:
        for file, trace in source.load_parts():
            arrays = file.load_arrays()
            arrays.pop("shard/index", None)
            if "digests/sequence" not in arrays:
                arrays[SEQUENCE] = trace.digests.sequence
            if trace.labels is not None:
                arrays[LABELS] = trace.labels
            yield file, arrays


def _put(partial: Path, index: int, arrays: Arrays, packing: Packing, creator: str) -> Shard:
    return write_shard(partial, shard_name(index), {name: [array] for name, array in arrays.items()}, creator, packing)


def _check_candidates(parts: Sequence[Candidates], paths: Sequence[Path], expected: Candidates | None) -> None:
    there = join_candidates(parts)
    if doubled := find_duplicates(there):
        names = [name_candidate(there, first) for first, _ in doubled]
        raise PartsError(
            f"found {count_of(len(doubled), 'candidate')} more than once: {_shorten(names)}",
            where=", ".join(map(str, paths)),
            fix="give every writer its own candidates",
            doubled=names,
        )
    if expected is None:
        return
    found, wanted = candidate_keys(there), candidate_keys(expected)
    missing = [name_candidate(expected, int(row)) for row in np.flatnonzero(~np.isin(wanted, found))]
    extra = [name_candidate(there, int(row)) for row in np.flatnonzero(~np.isin(found, wanted))]
    if missing or extra:
        messages = [
            f"{count_of(len(names), what)}: {_shorten(names)}"
            for names, what in ((missing, "missing candidate"), (extra, "unexpected candidate"))
            if names
        ]
        raise PartsError("; ".join(messages), where=str(paths[0]), fix="join all parts of one run", missing=missing)


def _shorten(names: Sequence[str]) -> str:
    return "; ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def _join_rankings(parts: Sequence[tuple[Path, Arrays]]) -> Arrays:
    """Join all rankings, in order of query and side."""
    columns: list[Any] = [
        np.concatenate([arrays[f"rankings/{name}"] for _, arrays in parts]) for name in Rankings._fields
    ]
    joined = Rankings(*columns)
    order = np.lexsort((joined.side, joined.query))
    joined = Rankings(*(column[order] for column in columns))
    again = (joined.query[1:] == joined.query[:-1]) & (joined.side[1:] == joined.side[:-1])
    if again.any():
        row = int(np.argmax(again))
        name = f"query {joined.query[row]}, side {joined.side[row]}"
        raise PartsError(
            f"{name} is ranked in more than one trace, each with a part of its candidates",
            where=str(parts[0][0]),
            fix="give all candidates of a query to one writer, or leave the rankings out",
            doubled=[name],
        )
    return encode_level("rankings", joined)
