"""Digests of steps: three numbers that classify a difference without reading the step.

If two steps differ in `sequence`, they differ only in the order of resolvents if `multiset` agrees, only in the
numbering of variables if `renaming` agrees, and otherwise in content. `docs/traces.md` defines the digests.
They are built from the splitmix64 step (Steele, Lea, Flood 2014), are not cryptographic, and leave out scores
and origins.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from kgverify.trace.model.columns import (
    KNOWLEDGE_GRAPH,
    Candidates,
    CandidateSet,
    Columns,
    Digests,
    cut_rows,
    starts_of,
)
from kgverify.trace.model.schema import Schema

Words = NDArray[np.uint64]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)

# Arrays with this number of elements stay in the second-level cache, and bound the memory in use.
_BLOCK: Final = 1 << 15
_MAX_TABLE: Final = 1 << 16


COUNTED: Final = frozenset(
    {"steps.depth", "steps.dropped_atoms", "steps.dropped_resolvents", "steps.choice", "steps.outcome"}
)
"""The columns that digests count but an engine may not know; unknown ones count as 0. Named as in `Trace.fields`."""


def mix(words: Words) -> Words:
    """Return the splitmix64 step of each word."""
    return _mix_(words.copy())


def fold(state: Words, words: Words) -> Words:
    """Return `mix(state ^ mix(words))`: fold words into running digests, in order."""
    return _mix_(state ^ mix(words))


def words_of(values: NDArray[np.integer]) -> Words:
    """Return integers as 64-bit words in two's complement."""
    return np.asarray(values).astype(np.int64).view(np.uint64)


def compute_digests(columns: Columns, schema: Schema = KNOWLEDGE_GRAPH) -> Digests:
    """Compute the digests of every step. ValueError if counts do not add up."""
    if schema != KNOWLEDGE_GRAPH:
        return Digests(*[_digest_rows(columns, schema, "steps")] * len(Digests._fields))
    return Digests(*_compute(columns, len(Digests._fields)))


def compute_sequence(columns: Columns, absent: Collection[str] = (), schema: Schema = KNOWLEDGE_GRAPH) -> Words:
    """Compute only the first of the digests, uint64 [T], in half the time. ValueError if counts do not add up.

    absent: columns, named as in `Trace.fields`, that will not be stored and count as zeros
    """
    if schema != KNOWLEDGE_GRAPH:
        return _digest_rows(columns, schema, "steps")
    names = [name.removeprefix("steps.") for name in COUNTED.intersection(absent)]
    unknown: dict[str, Any] = {name: np.zeros_like(getattr(columns.steps, name)) for name in names}
    return _compute(columns._replace(steps=columns.steps._replace(**unknown)), 1)[0]


def _compute(columns: Columns, num: int) -> list[Words]:
    """Compute all three digests, or only the first."""
    steps, resolvents = columns.steps, columns.resolvents
    num_steps = len(steps.num_atoms)
    for counts, total in (
        (steps.num_atoms, len(steps.goal_atoms)),
        (steps.num_resolvents, len(resolvents.num_atoms)),
        (resolvents.num_atoms, len(resolvents.atoms)),
    ):
        if (found := int(counts.sum(dtype=np.int64))) != total:
            raise ValueError(f"counts add up to {found}, but there are {total} rows")
    digests = [np.empty(num_steps, np.uint64) for _ in range(num)]
    hasher = _GoalHasher(columns, is_renaming=num > 1)
    starts = starts_of(steps.num_resolvents)
    goal_atom = atom = 0
    for low, high in _pieces(steps.num_resolvents):
        rows = slice(low, high)
        goal_end = goal_atom + int(steps.num_atoms[rows].sum(dtype=np.int64))
        goals = hasher.hash_goals(
            np.zeros(high - low, np.uint8), steps.num_atoms[rows], steps.goal_atoms[goal_atom:goal_end]
        )
        inner = slice(int(starts[low]), int(starts[high]))
        end = atom + int(resolvents.num_atoms[inner].sum(dtype=np.int64))
        options = hasher.hash_goals(resolvents.kind[inner], resolvents.num_atoms[inner], resolvents.atoms[atom:end])
        goal_atom, atom = goal_end, end
        block = _digest_block(hasher, columns, rows, starts[low : high + 1] - starts[low], goals, options, num)
        for whole, part in zip(digests, block, strict=True):
            whole[rows] = part
    return digests


def digest_candidates(columns: Any, steps: Words, schema: Schema = KNOWLEDGE_GRAPH) -> Words:
    """Return uint64 [N], a digest of each candidate: what identifies it, its outcome, and the digests of its steps in order."""
    return _digest_rows(columns, schema, "candidates", steps)


def _digest_rows(columns: Any, schema: Schema, level: str, steps: Words | None = None) -> Words:
    """Hash each row of a level: its columns in order, each count together with the hashes of the rows it counts.

    Numbers that may differ within a tolerance are left out.

    steps: the hashes of the steps, if they are known
    """
    own = [each for each in schema.compared if each.rows == level and each.is_digested]
    state = np.zeros(len(schema.values(columns, own[0].path)), np.uint64)
    for each in own:
        values = schema.values(columns, each.path)
        for part in values.reshape(len(values), max(1, each.width)).T:
            state = fold(state, part.astype(np.float64).view(np.uint64) if part.dtype.kind == "f" else words_of(part))
        if each.counts:
            starts = starts_of(values)
            position = words_of(np.arange(starts[-1]) - np.repeat(starts[:-1], values))
            is_given = steps is not None and each.counts == "steps"
            counted = cast(Words, steps) if is_given else _digest_rows(columns, schema, each.counts)
            state = fold(state, _segment_sums(fold(position, counted), starts))
    return state


def candidate_keys(candidates: Candidates | CandidateSet, schema: Schema = KNOWLEDGE_GRAPH) -> Words:
    """Return uint64 [N], a hash of what identifies each candidate: its query, side and atom."""
    columns = [getattr(candidates, name) for name in schema.identity]
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        for values in column.reshape(len(column), -1).T if column.size else ():
            key = fold(key, words_of(values))
    return key


def root_digest(candidates: Candidates, sequence: Words, schema: Schema = KNOWLEDGE_GRAPH) -> int:
    """Return one number for all steps: a sum modulo 2^64, so the roots of parts add up to the root of the whole."""
    keys = candidate_keys(candidates, schema)
    ends = np.cumsum(candidates.num_steps, dtype=np.int64)
    starts = ends - candidates.num_steps
    root = 0
    for low, high in _pieces(candidates.num_steps):
        counts = candidates.num_steps[low:high]
        begin, end = int(starts[low]), int(ends[high - 1])
        index = np.arange(begin, end) - np.repeat(starts[low:high], counts)
        words = fold(np.repeat(keys[low:high], counts), words_of(index)) ^ sequence[begin:end]
        root += int(_mix_(words).sum(dtype=np.uint64))
    return root % (1 << 64)


class _GoalHashes(NamedTuple):
    """Hashes of goals as numbered, and after renumbering; the same array if all goals were canonical already."""

    exact: Words
    renamed: Words


class _Table:
    """A lookup table for `mix` of integers, used if their range is narrow."""

    def __init__(self, *columns: NDArray[np.integer]) -> None:
        filled = [column for column in columns if column.size]
        self.low = min((int(column.min()) for column in filled), default=0)
        self.high = max((int(column.max()) for column in filled), default=0)
        self.is_narrow = self.high - self.low < _MAX_TABLE
        self.mixed = mix(words_of(np.arange(self.low, self.high + 1))) if self.is_narrow else None

    def mix(self, values: NDArray[np.integer]) -> Words:
        """Return the same as `mix(words_of(values))`, for values that the constructor received."""
        if self.mixed is None:
            return _mix_(words_of(values))
        return self.mixed[values.astype(np.int64) - self.low]


class _GoalHasher:
    """A hasher of goals and resolvents, with lookup tables for the words that occur in the columns.

    is_renaming: whether to hash goals with renumbered variables as well
    """

    def __init__(self, columns: Columns, *, is_renaming: bool) -> None:
        self._is_renaming = is_renaming
        steps, resolvents = columns.steps, columns.resolvents
        atoms = (steps.goal_atoms, resolvents.atoms)
        self.arguments = _Table(*(a[:, i] for a in atoms for i in (1, 2)))
        self.predicates = _Table(*(a[:, 0] for a in atoms))
        self.sizes = _Table(steps.num_atoms, resolvents.num_atoms)
        self.counts = _Table(steps.num_resolvents, steps.depth)
        num_positions = self.sizes.high + 1
        num_predicates = self.predicates.high - self.predicates.low + 1
        self.prefixes: Words | None = None
        if num_positions * num_predicates <= _MAX_TABLE:
            position = np.repeat(np.arange(num_positions), num_predicates)
            predicate = np.tile(np.arange(num_predicates), num_positions) + self.predicates.low
            self.prefixes = self._prefix(position, predicate)
            self.num_predicates = num_predicates

    def hash_goals(
        self, kind: NDArray[np.uint8], num_atoms: NDArray[np.uint16], atoms: NDArray[np.int32]
    ) -> _GoalHashes:
        """Return uint64 [n], the hashes of n goals whose atoms lie one goal after the other."""
        starts = starts_of(num_atoms)
        exact = np.empty(len(num_atoms), np.uint64)
        renamed = exact
        for low, high in _pieces(num_atoms):
            counts, piece = num_atoms[low:high], atoms[starts[low] : starts[high]]
            ends = starts[low : high + 1] - starts[low]
            exact[low:high] = self._hash(kind[low:high], counts, piece, ends)
            canonical = renumber(piece, ends) if self._is_renaming else piece
            if canonical is not piece and renamed is exact:
                renamed = exact.copy()
            if renamed is not exact:
                renamed[low:high] = (
                    exact[low:high]
                    if canonical is piece
                    else self._hash(kind[low:high], counts, canonical, ends, is_renumbered=True)
                )
        return _GoalHashes(exact, renamed)

    def _hash(
        self,
        kind: NDArray[np.uint8],
        num_atoms: NDArray[np.uint16],
        atoms: NDArray[np.int32],
        starts: NDArray[np.int64],
        *,
        is_renumbered: bool = False,
    ) -> Words:
        position = np.arange(len(atoms)) - np.repeat(starts[:-1], num_atoms)
        if self.prefixes is None:
            words = self._prefix(position, atoms[:, 0])
        else:
            position *= self.num_predicates
            position += atoms[:, 0]
            position -= self.predicates.low
            words = self.prefixes[position]
        for argument in (atoms[:, 1], atoms[:, 2]):
            # Renumbering may introduce variables that are not in the table.
            words ^= _mix_(words_of(argument)) if is_renumbered else self.arguments.mix(argument)
            _mix_(words)
        state = self.sizes.mix(num_atoms)
        state ^= kind
        return fold(_mix_(state), _segment_sums(words, starts))

    def _prefix(self, position: NDArray[np.integer], predicate: NDArray[np.integer]) -> Words:
        state = fold(np.zeros(len(position), np.uint64), words_of(position))
        return fold(state, words_of(predicate))


def _digest_block(
    hasher: _GoalHasher,
    columns: Columns,
    rows: slice,
    starts: NDArray[np.int64],
    goals: _GoalHashes,
    options: _GoalHashes,
    num: int,
) -> list[Words]:
    steps = columns.steps
    num_resolvents = steps.num_resolvents[rows]
    choice = steps.choice[rows]
    position = words_of(np.arange(starts[-1]) - np.repeat(starts[:-1], num_resolvents))
    dropped = [mix(words_of(column[rows])) for column in (steps.dropped_atoms, steps.dropped_resolvents)]
    counted = [hasher.counts.mix(num_resolvents), *dropped]
    chosen = mix(words_of(choice))
    ended = [mix(words_of(steps.outcome[rows])), hasher.counts.mix(steps.depth[rows])]

    def finish(goal: Words, total: Words, selected: Words) -> Words:
        state = fold(goal, total)
        for mixed in (*counted, selected, *ended):
            state ^= mixed
            _mix_(state)
        return state

    def in_order(goal: Words, hashes: Words) -> Words:
        mixed = mix(hashes)
        mixed ^= position
        return finish(goal, _segment_sums(_mix_(mixed), starts), chosen)

    sequence = in_order(goals.exact, options.exact)
    if num == 1:
        return [sequence]
    total = _segment_sums(mix(options.exact), starts)
    multiset = finish(goals.exact, total, mix(_chosen(options.exact, choice, starts)))
    if goals.renamed is goals.exact and options.renamed is options.exact:
        return [sequence, multiset, sequence]
    return [sequence, multiset, in_order(goals.renamed, options.renamed)]


def _chosen(hashes: Words, choice: NDArray[np.int32], starts: NDArray[np.int64]) -> Words:
    """Return the hash of each step's chosen resolvent; 0 if the choice is not a resolvent of the step."""
    chosen = np.zeros(len(choice), np.uint64)
    is_valid = (choice >= 0) & (choice < np.diff(starts))
    chosen[is_valid] = hashes[starts[:-1][is_valid] + choice[is_valid]]
    return chosen


def renumber(atoms: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return int32 [n, 3], with each goal's variables numbered by first appearance; the same array if they already were."""
    is_variable = atoms < 0
    is_variable[:, 0] = False
    where = np.flatnonzero(is_variable)
    if not len(where):
        return atoms
    renumbered = atoms.flatten()
    number = -1 - renumbered[where].astype(np.int64)
    goal = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[where // 3]
    key = (goal << 32) | number
    # In a canonical goal each variable is at most one above the highest so far.
    highest = np.maximum.accumulate(key)
    bound = np.empty_like(key)
    bound[0] = goal[0] << 32
    bound[1:] = np.maximum(highest[:-1] + 1, goal[1:] << 32)
    if (key <= bound).all():
        return atoms
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    # Goals are in order, so a goal's variables are neighbours in `order`.
    owner = goal[first[order]]
    offset = np.searchsorted(owner, np.arange(len(starts) - 1))
    renumbered[where] = -1 - (rank[inverse.reshape(-1)] - offset[goal])
    return renumbered.reshape(-1, 3)


def _pieces(counts: NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Return ranges of ragged rows; each has at most `_BLOCK` rows and elements, or is a single row."""
    return cut_rows(starts_of(counts.astype(np.int64) + 1), _BLOCK)


def _segment_sums(values: Words, starts: NDArray[np.int64]) -> Words:
    """Return the sum modulo 2^64 of each ragged row; 0 for an empty one."""
    running = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values, out=running[1:])
    return running[starts[1:]] - running[starts[:-1]]


def _mix_(words: Words) -> Words:
    words += _GAMMA
    shifted = words >> np.uint64(30)
    words ^= shifted
    words *= _FIRST
    np.right_shift(words, np.uint64(27), out=shifted)
    words ^= shifted
    words *= _SECOND
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted
    return words
