"""What was appended since the last shard: held by the writer, and in the journal of a recording that did not finish."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.files.journal import Journal, journal_name, read_journal
from kgverify.trace.files.manifest import check_no_link
from kgverify.trace.model.columns import Candidates, Columns, concatenate, empty_columns
from kgverify.trace.model.digests import Words, compute_sequence
from kgverify.trace.model.levels import TraceLevel, is_kept
from kgverify.trace.model.required_datasets import level_of
from kgverify.trace.model.schema import OPTIONAL_COLUMNS, RECORD_AGAIN, SEQUENCE, Arrays, decode_columns, encode_columns

Given: TypeAlias = tuple[Columns, Words | None]
"""Candidates with their steps, and the digests of the steps where they came with them."""

_MAX_THREADS: Final = 4

_GROUP_STEPS: Final = 1 << 16
"""Smaller batches are joined before their digests are computed."""


class Pending:
    """Batches in memory, with the digests of the steps that came with them; counts of candidates, steps and bytes."""

    def __init__(self) -> None:
        self._batches: list[Given] = []
        self.num_candidates = self.num_steps = self.num_bytes = 0

    def with_batch(self, columns: Columns, sequence: Words | None) -> "Pending":
        """These batches and one more."""
        more = copy(self)
        more._batches = [*self._batches]
        more.add(columns, sequence)
        return more

    def add(self, columns: Columns, sequence: Words | None) -> None:
        """Hold a batch; nothing is copied."""
        self._batches.append((columns, sequence))
        self.num_candidates += len(columns.candidates.query)
        self.num_steps += len(columns.steps.depth)
        self.num_bytes += _bytes_of(columns)

    def exceeds(self, columns: Columns, max_steps: int, max_bytes: int) -> bool:
        """Whether with these there would be more steps, or more bytes."""
        num_steps = self.num_steps + len(columns.steps.depth)
        return num_steps > max_steps or self.num_bytes + _bytes_of(columns) > max_bytes

    def candidates(self) -> Candidates:
        """Of all batches."""
        return join_candidates([columns.candidates for columns, _ in self._batches])

    def encode(self, absent: Iterable[str], empty: Columns) -> dict[str, list[NDArray[Any]]]:
        """The columns and digests by path, in parts that lie one after the other; `empty` where there is no batch."""

        def encode(group: Given) -> Arrays:
            columns, sequence = group
            arrays = encode_columns(columns, absent)
            arrays[SEQUENCE] = sequence_of(columns, absent) if sequence is None else sequence
            return arrays

        groups = list(self._group()) if self._batches else [(empty, None)]
        # NumPy lets other threads run while it computes.
        with ThreadPoolExecutor(min(len(groups), os.cpu_count() or 1, _MAX_THREADS)) as pool:
            encoded = list(pool.map(encode, groups))
        return {name: [arrays[name] for arrays in encoded] for name in encoded[0]}

    def _group(self) -> Iterator[Given]:
        group: list[Columns] = []
        num_steps = 0
        for columns, sequence in self._batches:
            if group and (sequence is not None or num_steps + len(columns.steps.depth) > _GROUP_STEPS):
                yield concatenate(group), None
                group, num_steps = [], 0
            if sequence is not None:
                yield columns, sequence
            else:
                group.append(columns)
                num_steps += len(columns.steps.depth)
        if group:
            yield concatenate(group), None


def _bytes_of(columns: Columns) -> int:
    return sum(column.nbytes for level in columns for column in level)


def encode_batch(columns: Columns, sequence: Words | None, absent: Iterable[str], level: TraceLevel) -> Arrays:
    """What the journal of a trace of this level holds of a batch."""
    arrays = encode_columns(columns, absent)
    if sequence is not None:
        arrays[SEQUENCE] = sequence
    return {name: array for name, array in arrays.items() if is_kept(name, level)}


def sequence_of(columns: Columns, absent: Iterable[str] = ()) -> Words:
    """The digests of the steps as they are read back, without the absent columns."""
    return compute_sequence(decode_columns(encode_columns(columns, absent)) if absent else columns)


def join_candidates(parts: Sequence[Candidates]) -> Candidates:
    """One after the other."""
    if not parts:
        return empty_columns().candidates
    return Candidates(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def open_journal(folder: Path, shard: int) -> Journal | None:
    """The journal of the shard to come; None if there is none. UserError if what was committed to it was altered."""
    path = folder / journal_name(shard)
    check_no_link(path)
    if not path.is_file():
        return None
    journal = read_journal(path)
    if journal.is_damaged:
        found = next(damage for damage in journal.damages if damage.was_committed)
        raise UserError(
            f"damaged: {found.message}, at byte {found.offset}",
            where=str(path),
            fix=f"see what can be recovered: kgverify trace repair {folder}",
        )
    return journal


def read_pending(folder: Path, shard: int) -> Arrays | None:
    """The journal's batches as the arrays of that shard; None if it holds none. UserError if it is damaged."""
    journal = open_journal(folder, shard)
    if journal is None or not journal.batches:
        return None
    try:
        return gather(journal) | {"shard/index": np.array([shard], np.uint64)}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"holds batches that are none: {error}", where=str(journal.path), fix=RECORD_AGAIN) from error


def gather(journal: Journal) -> Arrays:
    """The batches of a journal with what every shard repeats, and digests: what the level of its header keeps of them."""
    columns = columns_of(journal)
    absent = {name for name in OPTIONAL_COLUMNS if name.replace(".", "/") not in journal.batches[0].arrays}
    given = [batch.arrays.get(SEQUENCE) for batch in journal.batches]
    parts = [
        sequence_of(decode_columns(batch.arrays)) if sequence is None else sequence
        for batch, sequence in zip(journal.batches, given, strict=True)
    ]
    arrays = journal.shared | encode_columns(columns, absent) | {SEQUENCE: np.concatenate(parts)}
    level = level_of(journal.shared["header"], str(journal.path))
    return {name: array for name, array in arrays.items() if is_kept(name, level)}


def columns_of(journal: Journal) -> Columns:
    """The batches of a journal, one after the other; absent columns are zeros."""
    return concatenate([decode_columns(batch.arrays) for batch in journal.batches])
