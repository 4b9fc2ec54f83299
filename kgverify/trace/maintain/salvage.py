"""Salvaging one damaged file: keep what its checksums, or the digests of single steps, prove intact."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.errors import UserError
from kgverify.trace.hdf5.reading import Problems, load_arrays, locate_arrays
from kgverify.trace.model.columns import COUNTS, Columns, no_stage_items, select_candidates, starts_of
from kgverify.trace.model.digests import COUNTED, compute_digests
from kgverify.trace.model.levels import Packing, TraceLevel, has_goals, level_of, packing_of, required
from kgverify.trace.model.schema import STAGES, TOGETHER, Arrays, decode_columns, encode_columns, encode_level
from kgverify.trace.read.data_file import DataFile

# The columns that the digests of a step prove intact if a checksum does not.
_COUNTED: Final = frozenset(name.replace(".", "/") for name in COUNTED)
_DIGESTED: Final = _COUNTED | {"steps/goal_atoms", "resolvents/kind", "resolvents/atoms"}


@dataclass(frozen=True)
class Salvage:
    """The part of a file that is kept.

    arrays:    datasets by path, digests included; empty if nothing can be kept
    dropped:   columns that are lost for all candidates, by path
    rows:      int64 [n]  the candidates of the file that are kept
    num_candidates, num_steps: counts of the file before the damage; None if unknown
    reason:    the reason why nothing can be kept, or the problems found
    is_archived: whether the file was packed as archives are
    """

    arrays: Arrays
    reason: str
    dropped: tuple[str, ...] = ()
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    num_candidates: int | None = None
    num_steps: int | None = None
    is_archived: bool = False

    @property
    def number(self) -> int | None:
        """The number that the file states as a shard; None if it states none."""
        stated = self.arrays.get("shard/index", np.zeros(0)).tolist()
        return stated[0] if len(stated) == 1 else None

    @property
    def packing(self) -> Packing:
        """The packing of the file, for the part that is kept."""
        return packing_of(level_of(self.arrays["header"], ""), is_archived=self.is_archived)


def salvage(path: Path) -> Salvage:
    """Keep what is proved intact, if it makes a valid trace; write nothing."""
    problems: Problems = {}
    try:
        located = locate_arrays(path, problems)
        arrays, altered = load_arrays(path, located, problems)
    except UserError as error:
        return Salvage({}, error.message)
    reason = "; ".join(f"{name}: {problem}" for name, problem in sorted(problems.items()))
    steps_of = arrays.get("candidates/num_steps")
    counts = (None, None) if steps_of is None else (len(steps_of), int(steps_of.sum(dtype=np.int64)))
    nothing = Salvage({}, reason, num_candidates=counts[0], num_steps=counts[1])
    lost = problems.keys() - {"/"}
    doubtful = {name for name in lost if name in _DIGESTED and name in altered}
    try:
        level = level_of(arrays["header"], str(path)) if "header" in arrays else TraceLevel.STEPS
    except UserError as error:
        return replace(nothing, reason=error.message)
    if not has_goals(level):
        # No digest can be computed again: the columns that they count must exist, and they cannot prove a step intact.
        doubtful = set()
    has_digests = "digests/sequence" in arrays and not any(name.startswith("digests/") for name in lost)
    if doubtful and not has_digests:
        return replace(nothing, reason=f"{reason}; without intact digests nothing else proves {min(doubtful)} intact")
    needed = required(level).difference(STAGES) | (frozenset() if has_goals(level) else _COUNTED)
    if without := sorted((lost - doubtful) & needed):
        return replace(nothing, reason=f"{reason}; a trace without {without[0]} is invalid")
    dropped = lost - doubtful
    for group in TOGETHER:
        if dropped & set(group):
            dropped |= arrays.keys() & set(group)
    if dropped.intersection(STAGES):
        dropped |= set(STAGES)
    if "program/facts" in dropped:
        dropped |= arrays.keys() & {"program/fact_lines"}
    # Digests include the dropped counts: without these columns they differ.
    stored = {name: array for name, array in arrays.items() if name.startswith("digests/")} if has_digests else {}
    for name in dropped:
        arrays.pop(name, None)
    arrays |= {name: altered[name] for name in doubtful}
    try:
        kept, rows = _rebuild(path, arrays, stored, doubtful)
        is_archived = located.is_archived
        return replace(nothing, arrays=kept, rows=rows, dropped=tuple(sorted(dropped)), is_archived=is_archived)
    except (UserError, ValueError, LookupError) as error:
        why = error.message if isinstance(error, UserError) else str(error)
        return replace(nothing, reason=f"{reason}; the intact datasets do not make a trace: {why}".removeprefix("; "))


def _rebuild(path: Path, arrays: Arrays, stored: Arrays, doubtful: set[str]) -> tuple[Arrays, NDArray[np.int64]]:
    """Return the datasets of the candidates that are intact, and the rows of these candidates."""
    if level_of(arrays["header"], str(path)) is TraceLevel.DEEP and STAGES[0] not in arrays:
        # The lost outputs become unknown; the level stays, as in the other shards.
        arrays |= encode_level("stages", no_stage_items(len(arrays["steps/num_atoms"])))
    file = DataFile(path, arrays=arrays)
    for name in COUNTS.keys() & arrays.keys():
        file.offsets(name).build()
    _ = file.rankings
    columns = decode_columns(arrays)
    rows = np.arange(len(columns.candidates.query))
    digests: Arrays = {}
    if has_goals(file.level):
        if doubtful and stored:
            rows = _find_intact(columns, stored, encode_level("digests", compute_digests(columns)))
            columns = select_candidates(columns, rows)
        digests = encode_level("digests", file.check_block(columns, {}))
    else:
        file.check_block(columns, {})
    if stored:
        # An archive holds only the digests of the sequence.
        digests = {name: array for name, array in digests.items() if name in stored}
    kept = encode_columns(columns)
    return {name: kept.get(name, array) for name, array in arrays.items()} | digests, rows


def _find_intact(columns: Columns, stored: Arrays, computed: Arrays) -> NDArray[np.int64]:
    """Return the candidates all of whose steps have the stored digests."""
    if any(len(each) != len(columns.steps.depth) for each in stored.values()):
        raise ValueError("the digests are not those of its steps")
    is_wrong = np.zeros(len(columns.steps.depth) + 1, np.int64)
    for name, found in stored.items():
        is_wrong[1:] |= found != computed[name]
    running = np.cumsum(is_wrong)
    starts = starts_of(columns.candidates.num_steps)
    rows: NDArray[np.int64] = np.flatnonzero(running[starts[1:]] == running[starts[:-1]])
    return rows
