"""What can be kept of one damaged file: what its checksums, or the digests of single steps, vouch for."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from kgverify.errors import UserError
from kgverify.trace.hdf5.datasets import examine_arrays
from kgverify.trace.model.columns import Columns, Rankings, no_stage_items, select_candidates, starts_of
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.levels import Packing, TraceLevel, has_goals, packing_of, required
from kgverify.trace.model.required_datasets import check_level, level_of
from kgverify.trace.model.schema import (
    STAGES,
    TOGETHER,
    Arrays,
    decode_columns,
    decode_symbols,
    encode_columns,
    encode_level,
)
from kgverify.trace.model.validate import check_columns, check_facts, check_rankings, check_rules
from kgverify.trace.read.reader import decode_header

# What the digests of a step vouch for where a checksum does not.
_DIGESTED: Final = frozenset(
    f"{group}/{name}"
    for group, names in (
        ("steps", ("depth", "dropped_atoms", "dropped_resolvents", "choice", "outcome", "goal_atoms")),
        ("resolvents", ("kind", "atoms")),
    )
    for name in names
)


_COUNTED: Final = frozenset({"steps/dropped_atoms", "steps/dropped_resolvents"})


@dataclass(frozen=True)
class Salvage:
    """What is kept of a file.

    arrays:    by path, digests included; None if nothing can be kept
    dropped:   columns that are lost for all candidates, by path
    rows:      int64 [n]  of the candidates of the file, those that are kept
    num_candidates, num_steps: that the file held; None if that cannot be told
    reason:    why nothing can be kept, or what is wrong
    is_archived: how the file was packed
    """

    arrays: Arrays | None
    reason: str
    dropped: tuple[str, ...] = ()
    rows: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(0, np.int64))
    num_candidates: int | None = None
    num_steps: int | None = None
    is_archived: bool = False

    @property
    def packing(self) -> Packing:
        """How what is kept is to be packed: as the file was."""
        assert self.arrays is not None
        return packing_of(level_of(self.arrays["header"], ""), is_archived=self.is_archived)


def salvage(path: Path) -> Salvage:
    """Keep what is vouched for, if it makes a valid trace; nothing is written."""
    try:
        examined = examine_arrays(path)
    except UserError as error:
        return Salvage(None, error.message)
    reason = "; ".join(f"{name}: {problem}" for name, problem in sorted(examined.problems.items()))
    arrays = dict(examined.intact)
    steps_of = arrays.get("candidates/num_steps")
    counts = (None, None) if steps_of is None else (len(steps_of), int(steps_of.sum(dtype=np.int64)))
    lost = examined.problems.keys() - {"/"}
    doubtful = {name for name in lost if name in _DIGESTED and name in examined.altered}
    try:
        level = level_of(arrays["header"], str(path)) if "header" in arrays else TraceLevel.STEPS
    except UserError as error:
        return Salvage(None, error.message, (), *_NONE, *counts)
    if not has_goals(level):
        # No digest can be computed again: what they count must be there, and they cannot vouch for a step.
        doubtful = set()
    has_digests = "digests/sequence" in arrays and not any(name.startswith("digests/") for name in lost)
    if doubtful and not has_digests:
        return Salvage(
            None, f"{reason}; without intact digests nothing else vouches for {min(doubtful)}", (), *_NONE, *counts
        )
    needed = required(level).difference(STAGES) | (frozenset() if has_goals(level) else _COUNTED)
    if without := sorted((lost - doubtful) & needed):
        return Salvage(None, f"{reason}; a trace without {without[0]} is none", (), *_NONE, *counts)
    dropped = lost - doubtful
    for group in TOGETHER:
        if dropped & set(group):
            dropped |= arrays.keys() & set(group)
    if dropped.intersection(STAGES):
        dropped |= set(STAGES)
    if "program/facts" in dropped:
        dropped |= arrays.keys() & {"program/fact_lines"}
    # Digests take in the dropped counts: without these columns they are others.
    stored = {name: array for name, array in arrays.items() if name.startswith("digests/")} if has_digests else {}
    for name in dropped:
        arrays.pop(name, None)
    arrays |= {name: examined.altered[name] for name in doubtful}
    try:
        kept = _rebuild(path, arrays, stored, doubtful, tuple(sorted(dropped)), reason, counts)
        return replace(kept, is_archived=examined.is_archived)
    except (UserError, ValueError, LookupError) as error:
        why = error.message if isinstance(error, UserError) else str(error)
        return Salvage(None, f"{reason}; what is intact makes no trace: {why}".removeprefix("; "), (), *_NONE, *counts)


_NONE: Final = (np.zeros(0, np.int64),)


def _rebuild(
    path: Path,
    arrays: Arrays,
    stored: Arrays,
    doubtful: set[str],
    dropped: tuple[str, ...],
    reason: str,
    counts: tuple[int | None, int | None],
) -> Salvage:
    where = str(path)
    header = decode_header(arrays, where)
    symbols = decode_symbols(arrays, where)
    check_level(arrays, header.level, where)
    check_rules(arrays, symbols, where)
    check_facts(arrays.get("program/facts"), arrays.get("program/fact_lines"), symbols, where)
    if "rankings/query" in arrays:
        check_rankings(Rankings(*(arrays[f"rankings/{name}"] for name in Rankings._fields)), where)
    if level_of(arrays["header"], where) is TraceLevel.DEEP and STAGES[0] not in arrays:
        # What is lost was not told; the trace stays what it is otherwise, as its other shards are.
        arrays |= encode_level("stages", no_stage_items(len(arrays["steps/depth"])))
    columns = decode_columns(arrays)
    rows = np.arange(len(columns.candidates.query))
    digests: Arrays = {}
    if has_goals(header.level):
        digests = encode_level("digests", compute_digests(columns))
        if doubtful and stored:
            rows = _vouched(columns, stored, digests)
            columns = select_candidates(columns, rows)
            digests = encode_level("digests", compute_digests(columns))
    elif len(arrays["digests/sequence"]) != len(columns.steps.depth):
        raise ValueError("the digests are not those of its steps")
    if stored:
        # An archive holds no more than those of the sequence.
        digests = {name: array for name, array in digests.items() if name in stored}
    facts = arrays.get("program/facts")
    check_columns(
        columns,
        symbols,
        where,
        num_rules=len(header.clauses.rules) or None,
        num_facts=None if facts is None else len(facts),
    )
    kept = encode_columns(columns)
    arrays = {name: kept.get(name, array) for name, array in arrays.items()} | digests
    return Salvage(arrays, reason, dropped, rows, *counts)


def _vouched(columns: Columns, stored: Arrays, computed: Arrays) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The candidates all of whose steps have the digests that were stored."""
    if any(len(each) != len(columns.steps.depth) for each in stored.values()):
        raise ValueError("the digests are not those of its steps")
    is_wrong = np.zeros(len(columns.steps.depth) + 1, np.int64)
    for name, found in stored.items():
        is_wrong[1:] |= found != computed[name]
    running = np.cumsum(is_wrong)
    starts = starts_of(columns.candidates.num_steps)
    rows: np.ndarray[tuple[int], np.dtype[np.int64]] = np.flatnonzero(running[starts[1:]] == running[starts[:-1]])
    return rows
