"""The self-test of a comparison: before AGREE is given, planted changes show that it can still see.

Every compared column is changed in its first and last row, at a boundary of blocks and in the last candidate, by values that
no tolerance excuses. The code that gave AGREE must report each change in the right candidate, step and field. What it must
report follows from the change alone. A change that is not reported is an InternalError: there is no verdict.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.compare import Comparer
from kgverify.comparison.result import DIGEST, NO_CANDIDATE, Comparison, Divergence, SelfTest, Verdict
from kgverify.comparison.source import FileSource, MemorySource
from kgverify.program.outcomes import GoalKind, Origin, Outcome, Side
from kgverify.trace.model.columns import Candidates, Columns, Digests, Resolvents, Steps, select_candidates
from kgverify.trace.model.digests import compute_digests
from kgverify.trace.model.levels import has_goals
from kgverify.trace.model.score_error import judge_tolerance
from kgverify.trace.model.trace import Trace
from kgverify.trace.read.data_file import BLOCK_STEPS
from kgverify.verification.self_testing.benign_changes import find_wrong_owners
from kgverify.verification.self_testing.stored_self_test import plant_in_stored_columns, require

IDENTITY: Final = ("candidates.query", "candidates.side", "candidates.atom")

_COUNTS: Final = ("candidates.num_steps", "steps.num_atoms", "steps.num_resolvents", "resolvents.num_atoms")
_CODES: Final[dict[str, type[IntEnum]]] = {
    "candidates.side": Side,
    "candidates.outcome": Outcome,
    "steps.outcome": Outcome,
    "resolvents.kind": GoalKind,
    "resolvents.origin_kind": Origin,
}
_ATOMS: Final = ("candidates.atom", "steps.goal_atoms", "resolvents.atoms")
_UNDIGESTED: Final = ("resolvents.origin_kind", "resolvents.origin", "resolvents.score")

_RESOLVENTS: Final = ("resolvents.atoms", "resolvents.origin", "resolvents.order")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "steps.num_atoms": ("steps.goal_atoms",),
    "steps.num_resolvents": _RESOLVENTS,
    "resolvents.num_atoms": ("resolvents.atoms",),
    "resolvents.kind": ("resolvents.atoms",),
    "resolvents.origin_kind": ("resolvents.origin",),
}
"""The field in which a change of a column shows, if it is not the column."""

_DELTAS: Final = (1, 256, 65_536, 1 << 30)
"""Differences that a narrower type does not hold."""

_MOST_ROWS: Final = 20_000
"""The most rows of the copied candidates in which all of `_DELTAS` are tried in all columns of atoms."""


def run_self_test(comparer: Comparer) -> SelfTest:
    """Return the changes planted in each column, all seen. InternalError if the comparer, which gave AGREE, does not see one.

    Candidates with a near-tie are left out: their further steps are compared elsewhere.
    """
    comparison = comparer.comparison
    columns = _compared_columns(comparer, comparison)
    _check_coverage(comparer, comparison)
    check_digests()
    seen: Counter[str] = Counter()
    base = _load_base(comparer, comparison)
    if base is not None:
        by_digest = not all(has_goals(trace.header.level) for trace in base)
        if not by_digest and comparer.score_tolerance and "resolvents.score" in columns:
            seen["steps.choice"] += _plant_beside_tie(comparer, *base)
        if by_digest:
            columns = [*columns, DIGEST if not has_goals(base[1].header.level) else "steps.goal_atoms"]
        for column in columns:
            seen[column] += _Planting(comparer, *base, column, by_digest).test()
    seen += plant_in_stored_columns(comparer)
    return SelfTest(sum(num > 0 for num in seen.values()), seen.total())


def _compared_columns(comparer: Comparer, comparison: Comparison) -> list[str]:
    """Return the columns that both traces have. InternalError unless the comparison lists the same ones."""
    groups = (("candidates", Candidates), ("steps", Steps), ("resolvents", Resolvents))
    names = [f"{group}.{name}" for group, kind in groups for name in kind._fields]
    fields = [source.fields for source in comparer.sources]
    if any(comparer.rebuilds):
        return [name for name in names if name in comparison.coverage.fields]
    both = [name for name in names if all(name in each for each in fields)]
    lost = () if comparer.has_same_numbering else ("resolvents.origin_kind", "resolvents.origin")
    missing = set(both) ^ (set(comparison.coverage.fields) - {DIGEST})
    require(missing <= set(lost), f"{', '.join(sorted(missing))} is in both traces and not compared, or the reverse")
    return [name for name in both if name not in missing]


def _check_coverage(comparer: Comparer, comparison: Comparison) -> None:
    """InternalError unless everything was compared, row by row where columns are stored, within the errors accepted."""
    covered = comparison.coverage
    headers = [source.header for source in comparer.sources]
    accepted = judge_tolerance(headers[0], headers[1], comparer.score_error).value
    require(comparer.score_tolerance <= accepted, f"the tolerance is {comparer.score_tolerance}, accepted {accepted}")
    _check_pairs(comparer)
    for source in comparer.sources:
        num = source.num_candidates
        require(covered.candidates == num, f"{covered.candidates} of {num} candidates were compared")
        if comparison.near_ties:
            continue
        num_steps, num_resolvents = source.num_steps, _count_resolvents(source)
        require(covered.steps == num_steps, f"{covered.steps} of {num_steps} steps were compared")
        is_repeating = any(each.kind == "duplicates" for each in comparison.benign)
        if "steps.num_resolvents" in covered.fields and not is_repeating:
            num = covered.resolvents
            require(num == num_resolvents, f"{num} of {num_resolvents} resolvents were compared")
        if not isinstance(source, FileSource):
            continue
        for name, num in comparer.num_stored.items():
            rows = sum(file.stored[name].shape[0] for file in source.trace.files)
            require(num == rows, f"{num} of {rows} rows of {name} were compared")


def _check_pairs(comparer: Comparer) -> None:
    """InternalError unless every candidate of one trace is paired with the same candidate of the other."""
    expected, actual = comparer.sources
    rows = np.arange(expected.num_candidates)
    others = comparer.counterparts(rows)
    is_once = len(others) == actual.num_candidates and bool((np.bincount(others, minlength=len(others)) == 1).all())
    require(is_once, "a candidate of the actual trace was compared twice, or not at all")
    is_named_alike = comparer.has_same_numbering and not comparer.modulo
    for name in ("query", "side", *(["atom"] if is_named_alike else [])):
        is_same = np.array_equal(expected.gather_column(name, rows), actual.gather_column(name, others))
        require(is_same, f"candidates with different values of {name} were compared")


def _count_resolvents(source: Any) -> int:
    if isinstance(source, MemorySource):
        return len(source.trace.columns.resolvents.kind)
    return sum(
        file.stored["resolvents/kind"].shape[0] for file in source.trace.files if "resolvents/kind" in file.stored
    )


def _load_base(comparer: Comparer, comparison: Comparison) -> tuple[Trace, Trace] | None:
    """Return the first and last candidates, and those at a boundary, on both sides; None without candidates to change."""
    source = comparer.sources[0]
    num = source.num_candidates
    tied = {tie.candidate for tie in comparison.near_ties}
    counts = source.gather_column("num_steps", np.arange(min(num, BLOCK_STEPS)))
    boundary = int(np.searchsorted(np.cumsum(counts, dtype=np.int64), BLOCK_STEPS, side="right"))
    boundary = boundary if 0 < boundary < num else num // 2
    wanted = (range(num), range(boundary - 1, -1, -1), range(boundary, num), range(num - 1, -1, -1))
    rows = {next((row for row in each if row not in tied), -1) for each in wanted} - {-1}
    return comparer.load_pairs(np.array(sorted(rows))) if rows else None


class _Change(NamedTuple):
    """A change of one element, or of two counts whose sum stays.

    rows:    the rows of the column
    values:  their values in the actual trace
    owners:  the candidates that then differ, with the step of the difference; None where it is not known
    numbers: the expected and the actual value that the divergence must show; None where it shows texts
    """

    rows: tuple[Any, ...]
    values: tuple[Any, ...]
    owners: dict[int, int | None]
    numbers: tuple[int, int] | None = None


class _Planting:
    """Changes planted in copies of a few candidates, in one column."""

    def __init__(self, comparer: Comparer, expected: Trace, actual: Trace, column: str, by_digest: bool) -> None:
        self._comparer, self._column, self._by_digest = comparer, column, by_digest
        self._tolerance = comparer.score_tolerance
        self._is_count = column in _COUNTS
        order = self._arrange(expected)
        self._traces = _copy(expected, order), _copy(actual, order)
        self._starts = _element_starts(self._traces[1].columns, column)
        self._first_steps = _starts(self._traces[1].columns.candidates.num_steps)
        self._has_goals = has_goals(actual.header.level)

    def _arrange(self, expected: Trace) -> NDArray[np.int64]:
        """Return the candidates to copy, in order: each with rows in the column twice, and further ones for all deltas."""
        lengths = np.diff(_element_starts(expected.columns, self._column))
        filled = np.flatnonzero(lengths)
        num_rows = len(expected.columns.resolvents.kind) + len(expected.columns.steps.depth)
        if self._is_count:
            return filled
        copies = 2 if num_rows * len(_DELTAS) > _MOST_ROWS else 4
        return np.repeat(filled, copies if self._column in (*IDENTITY, *_ATOMS, "resolvents.origin") else 2)

    def test(self) -> int:
        """Return the number of changes planted, all of which were seen."""
        changes = self._without_benign(list(self._draw()))
        for apart in _keep_apart(changes):
            self._check(apart)
        if not self._by_digest:
            self._check_alone(changes)
        return len(changes)

    def _without_benign(self, changes: list[_Change]) -> list[_Change]:
        """Return the changes that are not benign, with the candidates and steps in which they are not."""
        if not self._comparer.modulo or self._column == DIGEST:
            return changes
        kept = []
        for change in changes:
            sides = self._traces[0].columns, self._change_columns([change])
            owners = find_wrong_owners(self._comparer, self._column, sides, change.owners)
            # What is benign in one of two candidates may still change its sum of log-probabilities.
            if owners.keys() == change.owners.keys():
                kept.append(change._replace(owners=owners))
        return kept

    def _draw(self) -> Iterator[_Change]:
        num = len(self._starts) - 1
        for copy in range(num):
            if self._column in IDENTITY and copy and (copy % 2 == 0 or copy == 1):
                # Some candidates must remain in both traces.
                continue
            begin, end = int(self._starts[copy]), int(self._starts[copy + 1])
            row = (begin, end - 1, (begin + end) // 2, begin + (end - begin) // 3)[copy % 4]
            row = end - 1 if copy == num - 1 else row
            change = self._move_count(row) if self._is_count else self._change_value(row, copy)
            if change is not None:
                yield change

    def _values(self, side: int) -> NDArray[Any]:
        if self._column == DIGEST:
            return self._traces[side].digests.sequence
        group, name = self._column.split(".")
        values: NDArray[Any] = getattr(getattr(self._traces[side].columns, group), name)
        return values

    def _owner(self, row: int) -> tuple[int, int | None]:
        """Return the copy that a row belongs to, and the step in which a change of it shows."""
        candidate = int(np.searchsorted(self._starts, row, side="right")) - 1
        if self._column.startswith("candidates."):
            return candidate, None if self._column == "candidates.num_steps" else -1
        steps = self._first_steps
        step_of = _element_starts(self._traces[1].columns, self._column, by_step=True)
        step = int(np.searchsorted(step_of, row, side="right")) - 1
        if self._comparer.lockstep:
            depth = None if self._column == "steps.depth" else int(self._traces[0].columns.steps.depth[step])
            return candidate, depth
        return candidate, step - int(steps[candidate])

    def _move_count(self, row: int) -> _Change | None:
        """Move a row below from one row to its neighbour."""
        counts = self._values(1)
        for left in (row, row - 1):
            if left < 0 or left + 1 >= len(counts):
                continue
            pair = (left, left + 1) if counts[left] else (left + 1, left)
            if not counts[pair[0]]:
                continue
            owners = [self._owner(each) for each in sorted(pair)]
            return _Change(pair, (counts[pair[0]] - 1, counts[pair[1]] + 1), dict(reversed(owners)))
        return None

    def _change_value(self, row: int, copy: int) -> _Change | None:
        column = self._column
        old = self._values(1)[row]
        candidate, step = self._owner(row)
        at: Any = (row, copy % 3) if column in _ATOMS else row
        new: Any
        numbers = None
        if column in _CODES:
            codes = [int(code) for code in _CODES[column] if code != old]
            new = codes[copy % len(codes)]
        elif column == "candidates.is_limited":
            new = 1 - old
        elif column == DIGEST:
            new = int(old) ^ 1 << (0, 8, 31, 63)[copy % 4]
        elif column in ("resolvents.score", "candidates.log_probability"):
            new = self._beyond(float(self._values(0)[row]), candidate, copy, old.dtype.type)
        elif column in _ATOMS:
            new = self._other_symbol(int(old[copy % 3]), copy)
        elif column == "steps.choice":
            new = self._other_choice(row, int(old), copy)
        elif column == "resolvents.origin" and not self._comparer.has_same_numbering:
            new = int(old) - 1 if old else int(old) + 1
        else:
            new = _shift(int(old), _DELTAS[copy // 2 % 4], old.dtype)
            numbers = (int(old), new) if column.startswith("steps.") else None
        return None if new is None else _Change((at,), (new,), {candidate: step}, numbers)

    def _beyond(self, expected: float, candidate: int, copy: int, dtype: type[np.floating]) -> np.floating:
        """Return a score, or a sum of log-probabilities, just beyond the tolerance."""
        if not np.isfinite(expected):
            return dtype(0)
        tolerance = self._tolerance
        if self._column == "candidates.log_probability":
            num_steps = max(1, int(self._traces[0].columns.candidates.num_steps[candidate]))
            tolerance = 2 * tolerance * num_steps + 1e-9 * max(1.0, abs(expected))
        end = dtype(np.inf if copy % 2 else -np.inf)
        value = dtype(expected + (1.25 if copy % 2 else -1.25) * tolerance)
        beyond: np.floating = np.nextafter(np.nextafter(value, end), end)
        return beyond

    def _other_symbol(self, old: int, copy: int) -> int | None:
        if self._comparer.has_same_numbering:
            delta = _DELTAS[copy % len(_DELTAS)]
            return _shift(old, delta, np.dtype(np.int32)) if old >= 0 else old - delta
        if old < 0:
            return old - 1
        # Only names that the trace has can be renumbered.
        symbols = self._traces[1].symbols
        num = len(symbols.constants if copy % 3 else symbols.predicates)
        return (old + 1) % num if num > 1 else None

    def _other_choice(self, step: int, old: int, copy: int) -> int:
        """Return a choice without a resolvent, or one whose score is outside every tolerance."""
        steps, scores = self._traces[0].columns.steps, self._traces[0].columns.resolvents.score
        first, num = int(_starts(steps.num_resolvents)[step]), int(steps.num_resolvents[step])
        wanted = ((old + 1) % max(1, num), num, old + 256, old + 65_536)[copy % 4]
        is_resolvent = 0 <= wanted < num
        if is_resolvent and 0 <= old < num and (self._tolerance or self._comparer.modulo):
            gap = abs(float(scores[first + wanted]) - float(scores[first + old]))
            is_resolvent = not gap <= 5 * self._tolerance
            return wanted if is_resolvent else num
        return wanted if wanted != old else num

    def _change_columns(self, changes: Collection[_Change]) -> Columns:
        """Return the columns of the actual copies with changes."""
        group, name = self._column.split(".")
        columns = self._traces[1].columns
        return columns._replace(**{group: getattr(columns, group)._replace(**{name: self._changed_values(changes)})})

    def _changed_values(self, changes: Collection[_Change]) -> NDArray[Any]:
        values = self._values(1).copy()
        for change in changes:
            for row, value in zip(change.rows, change.values, strict=True):
                values[row] = value
        return values

    def _apply(self, changes: Collection[_Change]) -> Trace:
        """Return the actual copies with changes, and with the digests that follow from them."""
        trace = self._traces[1]
        if self._column == DIGEST:
            return replace(trace, digests=trace.digests._replace(sequence=self._changed_values(changes)))
        columns, digests = self._change_columns(changes), trace.digests
        if not self._column.startswith("candidates.") and self._column not in _UNDIGESTED:
            digests = compute_digests(columns) if self._has_goals else self._flip_digests(changes)
        return replace(trace, columns=columns, digests=digests)

    def _flip_digests(self, changes: Collection[_Change]) -> Digests:
        """Return the digests without goals, in which the changed steps have others."""
        sequence = self._traces[1].digests.sequence.copy()
        step_of = _element_starts(self._traces[1].columns, self._column, by_step=True)
        for row in {row for change in changes for row in change.rows}:
            sequence[int(np.searchsorted(step_of, row, side="right")) - 1] ^= np.uint64(1)
        return self._traces[1].digests._replace(sequence=sequence)

    def _check_alone(self, changes: Collection[_Change]) -> None:
        """InternalError if the copies count as equal as a whole with any one change."""
        expected, actual = self._traces
        small = self._comparer.like(expected, actual)
        rows = np.arange(len(expected.columns.candidates.query))
        for change in changes:
            is_equal, _ = small.agrees((expected.columns, self._change_columns([change])), rows, rows)
            require(not is_equal, f"a block with another {self._column} in row {change.rows[0]} counts as equal")

    def _check(self, changes: Collection[_Change]) -> None:
        """InternalError unless each change is reported where and as it is."""
        expected, actual = self._traces[0], self._apply(changes)
        found = self._comparer.like(expected, actual).compare()
        # Digests without goals do not show what an error of scores excuses.
        verdicts = {
            Verdict.DIVERGE,
            *([Verdict.INCONCLUSIVE] if self._by_digest and (self._tolerance or self._comparer.modulo) else []),
        }
        require(found.verdict in verdicts, f"{found.verdict.value} with another {self._column}")
        if self._column in IDENTITY:
            self._check_unpaired(expected, actual, found.divergences)
            return
        owners = {candidate: step for change in changes for candidate, step in change.owners.items()}
        listed = {each.candidate: each for each in found.divergences}
        require(
            listed.keys() == owners.keys() and len(found.divergences) == len(listed),
            f"{len(owners)} candidates have another {self._column}, and {len(found.divergences)} divergences are listed",
        )
        allowed = self._allowed_fields()
        for candidate, step in owners.items():
            each = listed[candidate]
            require(
                (not allowed or each.field in allowed) and step in (None, each.step),
                f"another {self._column} in step {step} of candidate {candidate} is reported as another {each.field}"
                f" in step {each.step}",
            )
        for change in changes:
            for candidate in change.owners if change.numbers else ():
                shown = listed[candidate]
                require(
                    shown.field != self._column or (shown.expected, shown.actual) == change.numbers,
                    f"{self._column} is reported as {shown.expected} and {shown.actual}, and is {change.numbers}",
                )

    def _allowed_fields(self) -> tuple[str, ...]:
        if self._column == "candidates.num_steps":
            # A candidate that begins with a step of another may differ in anything.
            return ()
        allowed = _FIELDS.get(self._column, (self._column,))
        return (*allowed, DIGEST) if self._by_digest else allowed

    def _check_unpaired(self, expected: Trace, actual: Trace, divergences: tuple[Divergence, ...]) -> None:
        """InternalError unless the candidates that only one side has are reported as such."""
        sides = [_identities(trace) for trace in (expected, actual)]
        for wanted, listed in (
            (sides[0] - sides[1], [each for each in divergences if each.actual == NO_CANDIDATE]),
            (sides[1] - sides[0], [each for each in divergences if each.expected == NO_CANDIDATE]),
        ):
            found = Counter((each.query, each.side) for each in listed)
            counted: Counter[tuple[int, str]] = Counter()
            for (query, side, _), num in wanted.items():
                counted[query, Side(side).name.lower()] += num
            require(
                found == counted and all(each.field == "candidates.atom" for each in listed),
                f"{wanted.total()} candidates have another {self._column}, and {found.total()} are reported",
            )


def _keep_apart(changes: list[_Change]) -> list[list[_Change]]:
    """Return the changes in lists of which no candidate has two: counts next to each other would undo one another."""
    lists: list[list[_Change]] = []
    for change in changes:
        free = (each for each in lists if not any(change.owners.keys() & other.owners.keys() for other in each))
        fitting = next(free, None)
        if fitting is None:
            lists.append([change])
        else:
            fitting.append(change)
    return lists


def _plant_beside_tie(comparer: Comparer, expected: Trace, actual: Trace) -> int:
    """Plant a choice that the error of scores excuses, together with another outcome, which nothing excuses."""
    steps, scores = actual.columns.steps, actual.columns.resolvents.score.copy()
    own = expected.columns.resolvents.score.astype(np.float64)
    first = _starts(steps.num_resolvents)
    tolerance = comparer.score_tolerance
    for step in range(len(steps.choice)):
        begin, end, old = int(first[step]), int(first[step + 1]), int(steps.choice[step])
        others = [i for i in range(end - begin) if i != old and 0 <= old < end - begin]
        other = next((i for i in others if abs(own[begin + i] - own[begin + old]) < tolerance / 4), None)
        if other is None:
            continue
        scores[begin:end] = own[begin:end]
        scores[begin + other] = own[begin:end].max() + tolerance / 2
        if scores[begin:end].argmax() != other:
            continue
        choice, outcome = steps.choice.copy(), steps.outcome.copy()
        choice[step], outcome[step] = other, (outcome[step] + 1) % len(Outcome)
        resolvents = actual.columns.resolvents._replace(score=scores)
        columns = actual.columns._replace(steps=steps._replace(choice=choice, outcome=outcome), resolvents=resolvents)
        found = comparer.like(expected, replace(actual, columns=columns, digests=compute_digests(columns))).compare()
        require(found.verdict is Verdict.DIVERGE, f"{found.verdict.value} with another outcome of a choice that ties")
        return 1
    return 0


def _identities(trace: Trace) -> Counter[tuple[int, int, tuple[str, ...]]]:
    """Count the candidates by query, side and atom, in names."""
    symbols, candidates = trace.symbols, trace.columns.candidates

    def name(names: tuple[str, ...], number: int) -> str:
        return names[number] if 0 <= number < len(names) else str(number)

    atoms = [
        (name(symbols.predicates, p), name(symbols.constants, a), name(symbols.constants, b))
        for p, a, b in candidates.atom.tolist()
    ]
    return Counter(zip(candidates.query.tolist(), candidates.side.tolist(), atoms, strict=True))


def _shift(old: int, delta: int, dtype: np.dtype[Any]) -> int:
    """Return another integer of the type, at a distance that fits it."""
    info = np.iinfo(dtype)
    delta = delta if delta <= info.max >> 1 else 1
    return old + delta if old + delta <= info.max else old - delta


def _starts(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _element_starts(columns: Columns, column: str, *, by_step: bool = False) -> NDArray[np.int64]:
    """Return the first row of each candidate, or of each step, in a column, and the number of rows."""
    steps, resolvents = columns.steps, columns.resolvents
    group, name = column.split(".")
    if group == "candidates":
        return np.arange(len(columns.candidates.query) + 1)
    first = np.arange(len(steps.depth) + 1) if by_step else _starts(columns.candidates.num_steps)
    if group == "resolvents":
        first = _starts(steps.num_resolvents)[first]
        return _starts(resolvents.num_atoms)[first] if name == "atoms" else first
    return _starts(steps.num_atoms)[first] if name == "goal_atoms" else first


def _copy(trace: Trace, order: NDArray[np.int64]) -> Trace:
    """Return copies of some candidates of a trace, with the digests of their steps."""
    starts = _starts(trace.columns.candidates.num_steps)
    steps = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order.tolist()] or [np.arange(0)])
    digests = Digests(*(words[steps] for words in trace.digests))
    return replace(trace, columns=select_candidates(trace.columns, order), digests=digests, rankings=None)


@cache
def check_digests() -> None:
    """InternalError unless steps that differ in any one value have different digests."""
    goal = [(1, -1, 5), (2, 3, -2)]
    resolvents = [(0, [(1, 2, -1), (3, -1, 4)]), (0, [(2, 5, 6)]), (1, [])]
    step = {"depth": 1, "dropped_atoms": 2, "dropped_resolvents": 3, "choice": 1, "outcome": 0}
    variants: list[tuple[dict[str, int], Any, Any]] = [(step, goal, resolvents)]
    for name, old in step.items():
        dtype = np.dtype({"depth": np.uint16, "outcome": np.int8}.get(name, np.int32))
        variants += [({**step, name: new}, goal, resolvents) for new in {_shift(old, d, dtype) for d in _DELTAS}]

    def changed(atoms: list[Any]) -> Iterator[list[Any]]:
        for i, atom in enumerate(atoms):
            for k in range(3):
                for delta in (*_DELTAS, *range(2, 8)):
                    value = atom[k] + delta if atom[k] >= 0 else atom[k] - delta
                    yield [*atoms[:i], (*atom[:k], value, *atom[k + 1 :]), *atoms[i + 1 :]]
        yield atoms[:-1]
        if len(atoms) > 1:
            yield atoms[::-1]

    variants += [(step, other, resolvents) for other in changed(goal)]
    for i, (kind, atoms) in enumerate(resolvents):
        for other in changed(atoms) if atoms else ():
            variants.append((step, goal, [*resolvents[:i], (kind, other), *resolvents[i + 1 :]]))
        variants.append((step, goal, [*resolvents[:i], (2, atoms), *resolvents[i + 1 :]]))
        variants.append((step, goal, resolvents[:i] + resolvents[i + 1 :]))
    variants.append((step, goal, [resolvents[1], resolvents[0], resolvents[2]]))
    listed = [each for _, _, made in variants for each in made]
    steps = Steps(
        np.array([each["depth"] for each, _, _ in variants], np.uint16),
        np.array([len(atoms) for _, atoms, _ in variants], np.uint16),
        np.array([len(made) for _, _, made in variants], np.uint32),
        np.array([each["dropped_atoms"] for each, _, _ in variants], np.uint32),
        np.array([each["dropped_resolvents"] for each, _, _ in variants], np.uint32),
        np.array([each["choice"] for each, _, _ in variants], np.int32),
        np.array([each["outcome"] for each, _, _ in variants], np.int8),
        np.array([atom for _, atoms, _ in variants for atom in atoms], np.int32).reshape(-1, 3),
    )
    zeros = np.zeros(len(listed), np.int32)
    made = Resolvents(
        np.array([kind for kind, _ in listed], np.uint8),
        np.array([len(atoms) for _, atoms in listed], np.uint16),
        zeros.astype(np.uint8),
        zeros,
        zeros.astype(np.float32),
        np.array([atom for _, atoms in listed for atom in atoms], np.int32).reshape(-1, 3),
    )
    none = Candidates(*(np.zeros((0, 3) if name == "atom" else 0, np.int32) for name in Candidates._fields))  # type: ignore[arg-type]
    digests = compute_digests(Columns(none, steps, made))
    require(len(set(digests.sequence.tolist())) == len(variants), "different steps have the same digest")
