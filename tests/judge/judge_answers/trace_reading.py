"""Reading a known trace in every way: whole, in ranges, in another order, by element, and block by block."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from column_names import name_difference
from judge_answers.trace_formula import MOST, NUM_STEPS, make_columns, make_steps

from kgverify.errors import InternalError
from kgverify.program.program import Symbols
from kgverify.trace.model.columns import Candidates, Columns, Rankings
from kgverify.trace.model.digests import compute_digests, root_digest
from kgverify.trace.read.data_file import BLOCK_STEPS
from kgverify.trace.read.trace_file import TraceFile

SYMBOLS: Final = Symbols(("p", "q"), ("a", "b", "c"))
RANKINGS: Final = Rankings(
    np.array([0, 70_000], np.int32),
    np.array([1, 0], np.int8),
    np.array([3, 70_000], np.uint32),
    np.array([1.0, 65_537.0]),
    np.array([2.5, 70_000.0]),
)


class KnownTrace(NamedTuple):
    """A trace that was written from the formula.

    numbers:   the numbers of its candidates
    starts:    the first candidate of each file, and the end
    is_packed: whether it holds scores in single precision and no counts of what was dropped, which are read as zeros
    num_clauses: the rules, and the facts, of the program
    """

    path: Path
    numbers: Sequence[int]
    starts: Sequence[int]
    is_packed: bool = False
    num_clauses: int = MOST

    def make(self, rows: Iterable[int]) -> Columns:
        """Return the candidates in some rows, with their steps."""
        return self._pack(make_columns([self.numbers[row] for row in rows], self._dtype, self.num_clauses))

    def make_step(self, row: int, step: int) -> Columns:
        """Return one step of the candidate in a row."""
        return self._pack(make_steps(np.array([self.numbers[row]]), np.array([step]), self._dtype, self.num_clauses))

    @property
    def _dtype(self) -> "type[np.floating[Any]]":
        return np.float32 if self.is_packed else np.float64

    def _pack(self, columns: Columns) -> Columns:
        if not self.is_packed:
            return columns
        zeros = np.zeros(len(columns.steps.depth), np.uint32)
        return columns._replace(steps=columns.steps._replace(dropped_atoms=zeros, dropped_resolvents=zeros))


def require_known(is_right: object, what: str) -> None:
    """InternalError unless something about a known trace is right."""
    if not is_right:
        raise InternalError(f"a known trace is not read as it was written: {what}")


def require_columns(found: Sequence[Any], known: Sequence[Any], what: str) -> None:
    """InternalError unless groups of columns have the same types and values."""
    name = name_difference(found, known)
    require_known(not name, f"{name} of {what}")


def check_reading(known: KnownTrace) -> None:
    """Read a known trace in every way. InternalError if it has other columns, or belongs together in another way."""
    num = len(known.numbers)
    whole = known.make(range(num))
    digests = compute_digests(whole)
    file = TraceFile(known.path)
    trace = file.load()
    require_columns(trace.columns[:3], whole[:3], "all candidates")
    require_columns([trace.digests, trace.rankings, file.rankings], [digests, RANKINGS, RANKINGS], "a whole trace")
    require_known(file.symbols == trace.symbols == SYMBOLS, "names")
    file.verify_content()
    root = root_digest(whole.candidates, digests.sequence)
    require_known(trace.root == file.compute_root() == root, "the root")
    _check_ranges(file, known, whole.candidates)
    _check_gathering(file, known, whole.candidates)
    _check_owners(file, known)
    blocks = list(file.split())
    edges = [*(begin for begin, _ in blocks), num]
    require_known(blocks == [*pairwise(edges)] and {*known.starts} <= {*edges}, "its blocks")
    counts = [int(whole.candidates.num_steps[begin:end].sum()) for begin, end in blocks if end - begin > 1]
    require_known(max(counts) <= BLOCK_STEPS, f"a block of {max(counts)} steps")


def _check_ranges(file: TraceFile, known: KnownTrace, candidates: Candidates) -> None:
    """Read ranges that begin and end at, before and behind the edges of files; the empty ones as well."""
    num = len(known.numbers)
    edges = sorted({row for start in known.starts for row in (start - 1, start, start + 1) if 0 <= row <= num})
    for number, begin in enumerate(edges):
        for end in edges[number:]:
            found = file.candidate_columns(begin, end)
            require_columns([found], [_slice(candidates, begin, end)], f"candidates {begin} to {end}")
    require_columns([file.candidate_columns()], [candidates], "all candidates")
    for width in (0, 2):
        for begin, end in zip(edges, edges[width:], strict=False):
            rows = range(begin, end)
            require_columns(file.read_candidates(begin, end)[:3], known.make(rows)[:3], f"the steps of {rows}")


def _slice(candidates: Candidates, begin: int, end: int) -> Candidates:
    every: Any = candidates
    return Candidates(*(column[begin:end] for column in every))


def _check_gathering(file: TraceFile, known: KnownTrace, candidates: Candidates) -> None:
    """Read candidates of several files in orders that are not their own inverses, some of them twice."""
    num = len(known.numbers)
    for rows in ([*known.starts[1:-1], num - 1, 0], [0, 0, num - 1], [], [row * 5 % num for row in range(num)]):
        chosen = np.array(rows, np.int64)
        if len(rows) < num:
            require_columns(file.gather_candidates(chosen)[:3], known.make(rows)[:3], f"candidates {rows}")
        for name, column in candidates._asdict().items():
            found = file.gather_column(f"candidates/{name}", chosen)
            require_known(found.dtype == column.dtype and np.array_equal(found, column[chosen]), f"{name} of {rows}")


def _check_owners(file: TraceFile, known: KnownTrace) -> None:
    """Look up the candidate of the first and the last element of each, its last step, and its digests."""
    ends = dict.fromkeys(
        ("candidates/query", "steps/depth", "steps/goal_atoms", "resolvents/kind", "resolvents/atoms"), 0
    )
    for row, number in enumerate(known.numbers):
        columns = known.make([row])
        for name, begin in ends.items():
            group, column = name.split("/")
            ends[name] = end = begin + len(getattr(getattr(columns, group), column))
            found = {file.candidate_of(name, element) for element in (begin, end - 1) if begin < end}
            require_known(found <= {row}, f"the candidate of element {begin} or {end - 1} of {name}")
        own = compute_digests(columns).sequence
        stored = [part["sequence"] for part in file.read_digests(row, row + 1)]
        require_known(np.array_equal(np.concatenate(stored), own), f"the digests of candidate {row}")
        last = int(NUM_STEPS[number]) - 1
        if last >= 0:
            step, digests = file.read_step(row, last)
            require_columns(step[:3], [columns.candidates, *known.make_step(row, last)[1:3]], f"step {last} of {row}")
            require_known(digests["sequence"].tolist() == own[last:].tolist(), f"the digest of step {last} of {row}")
