"""The stage of the first difference of two trajectories, from the rows themselves and those around them."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Divergence, Level, Value
from kgverify.environments.side import Side
from kgverify.environments.trajectory import ENVIRONMENT, GROUPS, Overwritten, Stage, StepKind, number_actions
from kgverify.program.outcomes import DifferenceClass
from kgverify.trace.model.columns import starts_of

MOST_SHOWN: Final = 8
"""The numbers of an observation that a divergence lists."""

MOST_AHEAD: Final = 64
"""The rows after a difference that are looked at to tell a wrong observation from a wrong state."""

MOST_BEYOND: Final = 1024
"""The rows after a difference in which one rule for all observations is sought."""

SAME_RULE: Final = 1e-4
"""The relative difference of two factors or offsets that count as one: observations may be rounded."""

MOST_APART: Final = 4
"""The distance of the slots whose values the actual side may show by mistake."""

FEWEST_AHEAD: Final = 3
"""The fewest observations that show a rule."""

NOT_RETURNED: Final = "not returned"

SCALARS: Final = ("log_probability", "value", "reward", "terminated", "truncated")
"""The columns of steps that are numbers or flags, the policy's first."""


class RowReader:
    """A reader of one side's rows.

    first:  int64 [N]  the first row of each candidate
    slot:   int64 [T]  the slot of each row
    number: int64 [T]  the number of the row's action in its slot, from 1; a RESET row has that of the action before, or 0
    starts: the first number of each row, by group, and the number of all: int64 [T + 1]
    """

    def __init__(self, side: Side) -> None:
        columns = side.columns
        self.side, self.steps = side, columns.steps
        self.first = starts_of(columns.candidates.num_steps)
        self.slot = np.repeat(columns.candidates.slot.astype(np.int64), columns.candidates.num_steps)
        self.number = number_actions(columns)
        self.starts = {group: starts_of(getattr(columns.steps, count)) for group, count in GROUPS.items()}

    def numbers(self, group: str, row: int) -> NDArray[np.float64]:
        """Return the numbers of a group in a row."""
        starts = self.starts[group]
        found: NDArray[np.float64] = getattr(self.side.columns, group).number[starts[row] : starts[row + 1]]
        return found

    def rows_of(self, slot: int) -> range:
        """Return the rows of a slot."""
        return range(*np.searchsorted(self.slot, (slot, slot + 1)).tolist())

    def find(self, slot: int, number: int, kind: int) -> int | None:
        """Return the row of a slot with this number and kind; None without one."""
        rows = self.rows_of(slot)
        first, end = np.searchsorted(self.number[rows.start : rows.stop], (number, number + 1)).tolist()
        return next((row for row in rows[first:end] if self.steps.kind[row] == kind), None)

    def episode_ends(self, row: int) -> bool:
        """Return whether the row ends an episode."""
        return bool(self.steps.terminated[row] or self.steps.truncated[row])


class Finding(NamedTuple):
    """A stage, the names and values that differ, and what the actual values are instead.

    persists: whether an observation stays wrong until the episode ends, as after a wrong transition, or is right again in
              the next step; None if that is unknown, or does not matter
    """

    stage: Stage
    field: str
    values: Sequence[Value]
    kind: DifferenceClass = DifferenceClass.NUMBER
    evidence: str = ""
    persists: bool | None = None


def locate(divergences: Sequence[Divergence], expected: RowReader, actual: RowReader) -> list[Divergence]:
    """Return each divergence with its stage, the names and values that differ, and the number of its action as its step."""
    found = [_find(each, expected, actual) for each in divergences]
    settled = []
    for divergence, (slot, number, _), each in zip(
        divergences, found, settle([each for *_, each in found]), strict=True
    ):
        stage = each.stage
        seed = int(expected.side.columns.candidates.seed[divergence.candidate])
        is_discrete = stage in (Stage.END, Stage.AUTORESET, Stage.MASK)
        settled.append(
            msgspec.structs.replace(
                divergence,
                candidate=slot,
                atom=f"slot {slot}, seed {seed}",
                step=number,
                stage=stage.value,
                field=each.field,
                expected=each.values[0],
                actual=each.values[1],
                kind=each.kind,
                evidence=each.evidence,
                confidence=1.0,
                level=Level.OUTCOME if is_discrete else Level.TOLERANCE,
            )
        )
    return settled


def settle(found: Sequence[Finding]) -> list[Finding]:
    """Return some findings with one stage for the observations of a field: `transition` if any of them stays wrong."""
    persisting = {root_of(each.field) for each in found if each.persists}
    return [
        each._replace(stage=Stage.TRANSITION)
        if each.persists is not None and root_of(each.field) in persisting
        else each
        for each in found
    ]


def root_of(field: str) -> str:
    """Return the name of a field up to its parts: `observation` for `observation.position[2]`."""
    return re.split(r"[\[.]", field)[0]


def _stage_of(name: str) -> Stage:
    return Stage(ENVIRONMENT.column_of[f"steps/{name}"].stage)


def _find(divergence: Divergence, expected: RowReader, actual: RowReader) -> tuple[int, int, Finding]:
    """Return the slot of a divergence, the number of its action, and its stage."""
    row, other = (int(side.first[divergence.candidate]) + max(0, divergence.step) for side in (expected, actual))
    is_within = row < expected.first[divergence.candidate + 1] and other < actual.first[divergence.candidate + 1]
    if divergence.step >= 0 and is_within:
        return int(expected.slot[row]), int(expected.number[row]), RowPair(expected, actual, row, other).find()
    texts = ("goes on", "ends") if len(expected.slot) > len(actual.slot) else ("ends", "goes on")
    reader, at = (expected, row) if row < expected.first[divergence.candidate + 1] else (actual, other)
    at = min(at, len(reader.slot) - 1)
    found = Finding(Stage.AUTORESET, "steps.kind", texts, DifferenceClass.CONTENT)
    return int(reader.slot[at]), int(reader.number[at]), found


class RowPair:
    """Two rows that differ: one of each side, of the same number in the same slot."""

    def __init__(self, expected: RowReader, actual: RowReader, row: int, other: int) -> None:
        self.expected, self.actual, self.row, self.other = expected, actual, row, other
        self.kind = int(expected.steps.kind[row])
        self.slot, self.number = int(expected.slot[row]), int(expected.number[row])

    def find(self) -> Finding:
        """Return the stage of the difference."""
        if self.kind != int(self.actual.steps.kind[self.other]):
            texts = [StepKind(kind).name.lower() for kind in (self.kind, int(self.actual.steps.kind[self.other]))]
            what = (
                "the episode was over, and no reset followed"
                if self.kind == StepKind.RESET
                else "a reset without an end"
            )
            return Finding(Stage.AUTORESET, "steps.kind", texts, DifferenceClass.CONTENT, what)
        if self.kind == StepKind.RESET:
            return self._find_in_reset()
        return self._find_in_step()

    def _numbers(self, group: str, ahead: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the numbers of both sides, in these rows or in later ones."""
        return self.expected.numbers(group, self.row + ahead), self.actual.numbers(group, self.other + ahead)

    def _differs(self, group: str, ahead: int = 0) -> bool:
        return not _is_same(*self._numbers(group, ahead))

    def _states_differ(self) -> bool:
        """Return whether both sides show their state, and the states differ; a row that ends an episode has none."""
        return all(map(len, self._numbers("states"))) and self._differs("states")

    def _find_in_reset(self) -> Finding:
        begins = Stage.RESET if not self.number else Stage.AUTORESET
        if self._states_differ():
            return self._of_group("states", begins)
        if self._differs("observations"):
            # A right state that is shown wrongly.
            is_state_right = "states" in self.expected.side.names and "states" in self.actual.side.names
            is_shown = is_state_right or (not self._keeps_number() and self._is_shown_wrongly())
            return self._of_group("observations", Stage.OBSERVE if is_shown else begins)
        if differing := self._differing():
            return self._of_scalar(differing[0])
        return self._find_overwritten() or self._of_group("masks", Stage.MASK)

    def _differing(self) -> list[str]:
        """Return the columns of steps that differ, the policy's first."""
        return [name for name in SCALARS if self._scalars(name)[0] != self._scalars(name)[1]]

    def _find_in_step(self) -> Finding:
        for group in ("actions", "hidden"):
            if self._differs(group):
                return self._of_group(group, Stage.CHOOSE)
        differing = self._differing()
        if differing and _stage_of(differing[0]) is Stage.CHOOSE:
            return self._of_scalar(differing[0])
        if self._states_differ():
            return self._of_group("states", Stage.TRANSITION)
        has_final = [bool(len(each)) for each in self._numbers("observations")]
        if self._differs("observations") and all(has_final):
            is_state_known = all(map(len, self._numbers("states")))
            found = self._find_in_observation(is_state_known=is_state_known)
            if not differing or not (is_state_known or found.stage is Stage.OBSERVE):
                return found
        if differing:
            return self._of_scalar(differing[0])
        if has_final[0] != has_final[1]:
            values = [_shorten(each) for each in self._numbers("observations")]
            what = "the observation that ended the episode was lost" if has_final[0] else ""
            return Finding(Stage.AUTORESET, "observation", values, DifferenceClass.MISSING, what)
        return self._find_overwritten() or self._of_group("masks", Stage.MASK)

    def _find_in_observation(self, *, is_state_known: bool) -> Finding:
        """Return whether a wrong observation comes from a reset, from a wrong state, or is only shown wrongly."""
        found = self._of_group("observations", Stage.OBSERVE)
        if self._shows_next_episode():
            return found._replace(stage=Stage.AUTORESET, evidence="equals the first observation of the next episode")
        if is_state_known or self._is_shown_wrongly():
            return found
        persists = True if self._differs("masks") else self._persists()
        is_of_other = found.kind in (DifferenceClass.STALE, DifferenceClass.FOREIGN)
        is_shown = persists is False or (persists is None and is_of_other)
        return found._replace(stage=Stage.OBSERVE if is_shown else Stage.TRANSITION, persists=persists)

    def _find_overwritten(self) -> Finding | None:
        """Return the finding that the call changed an array that was returned before, or the actions."""
        codes = [Overwritten(int(reader.steps.overwritten[row])) for reader, row in self._sides]
        if codes[0] == codes[1]:
            return None
        stage = Stage.TRANSITION if Overwritten.ACTION in codes else Stage.OBSERVE
        what = " and ".join(str(code) for code in codes if code)
        texts = [f"the call changed {code}" if code else "nothing is changed" for code in codes]
        return Finding(stage, "overwritten", texts, DifferenceClass.CONTENT, f"a caller who keeps {what} loses it")

    @property
    def _sides(self) -> tuple[tuple[RowReader, int], tuple[RowReader, int]]:
        return (self.expected, self.row), (self.actual, self.other)

    def _scalars(self, name: str) -> tuple[float, float]:
        left, right = (getattr(reader.steps, name)[row].item() for reader, row in self._sides)
        return left, right

    def _shows_next_episode(self) -> bool:
        """Return whether the last observation of an episode is the first one of the next."""
        reader, row = self.actual, self.other
        if not reader.episode_ends(row) or row + 1 >= len(reader.slot) or reader.steps.kind[row + 1] != StepKind.RESET:
            return False
        return _is_same(reader.numbers("observations", row), reader.numbers("observations", row + 1))

    def _keeps_number(self) -> bool:
        """Return whether a wrong number of a reset is still that of the row before, on the actual side."""
        if not self.number:
            return False
        left, right = self._numbers("observations")
        before = self.actual.numbers("observations", self.other - 1)
        return len(before) == len(right) == len(left) and bool(
            ((right == before) & (right != left) & (right != 0)).any()
        )

    def _persists(self) -> bool | None:
        """Return whether every later observation of the episode is wrong; False if the next one is right, else None."""
        kinds = self.expected.steps.kind
        wrong = [self._differs("observations", i) for i in self._ahead() if kinds[self.row + i] == StepKind.STEP][1:]
        if wrong and not wrong[0]:
            return False
        return True if len(wrong) >= FEWEST_AHEAD and all(wrong) else None

    def _is_shown_wrongly(self) -> bool:
        """Return whether one rule gives the observations from the right ones, in this episode or in all rows of this kind.

        A wrong state would not keep to a factor, to an exchange of numbers, or to being a step late. An offset counts only
        where resets do not have it, since it may be a place.
        """
        return any(self._has_rule(is_beyond_episode=each) for each in (False, True))

    def _has_rule(self, *, is_beyond_episode: bool) -> bool:
        shown = [self._numbers("observations", i) for i in self._ahead(is_beyond_episode=is_beyond_episode)]
        same_width = [(left, right) for left, right in shown if len(left) == len(right) and len(left)]
        if len(same_width) < FEWEST_AHEAD:
            return False
        left, right = (np.array(each) for each in zip(*same_width, strict=True))
        is_wrong = (left != right).any(axis=0)
        left, right = left[:, is_wrong], right[:, is_wrong]
        if not (np.ptp(left, axis=0) > 0).all():
            return False
        is_late = self.kind == StepKind.STEP and _is_same(right[1:], left[:-1])
        if is_late or _is_same(np.sort(left, axis=1), np.sort(right, axis=1)):
            return True
        with np.errstate(all="ignore"):
            factor, offset = right / left, right - left
            is_scaled = np.ptp(factor, axis=0) <= SAME_RULE * np.abs(factor[0])
            is_moved = np.ptp(offset, axis=0) <= SAME_RULE * np.abs(offset[0])
        if not is_beyond_episode:
            # The dynamics may keep the factor of a single number, such as of one that decays.
            return left.shape[1] > 1 and bool(np.ptp(factor) <= SAME_RULE * np.abs(factor[0, 0]))
        return bool((is_scaled | (is_moved & (self.kind == StepKind.STEP))).all())

    def _ahead(self, *, is_beyond_episode: bool = False) -> Iterator[int]:
        """Yield the distances of later rows, from 0 to the end of the episode; or further, as long as their kinds agree.

        Beyond the episode, only rows of the same kind are yielded.
        """
        num = min(reader.rows_of(self.slot).stop - row for reader, row in self._sides)
        for ahead in range(min(num, MOST_BEYOND if is_beyond_episode else MOST_AHEAD)):
            row, other = self.row + ahead, self.other + ahead
            kind = self.expected.steps.kind[row]
            if kind != self.actual.steps.kind[other]:
                return
            if not is_beyond_episode or kind == self.kind:
                yield ahead
            if not is_beyond_episode and (self.expected.episode_ends(row) or self.actual.episode_ends(other)):
                return

    def _of_scalar(self, name: str) -> Finding:
        """Return the number that differs, and where else the expected side has the actual one."""
        left, right = self._scalars(name)
        stage = _stage_of(name)
        if stage is Stage.END:
            texts = [str(bool(each)).lower() for each in (left, right)]
            is_exchanged = self._scalars("terminated") == self._scalars("truncated")[::-1]
            evidence = "terminated and truncated are exchanged" if is_exchanged else ""
            return Finding(stage, name, texts, DifferenceClass.OUTCOME, evidence)
        values = getattr(self.expected.steps, name)
        sources = self._sources() if stage is Stage.REWARD and right else ()
        same = ((kind, f"equals that of {words}") for words, kind, row in sources if values[row] == right)
        return Finding(stage, name, [_render(left), _render(right)], *next(same, (DifferenceClass.NUMBER, "")))

    def _of_group(self, group: str, stage: Stage) -> Finding:
        """Return the numbers of a group that differ, and where else the expected side has the actual numbers."""
        left, right = self._numbers(group)
        names = self.expected.side.names.get(group, ())
        root = group.removesuffix("s")
        if len(left) != len(right):
            texts = [f"{len(each):,} numbers" if len(each) else NOT_RETURNED for each in (left, right)]
            return Finding(stage, root, texts, DifferenceClass.CONTENT)
        where = np.flatnonzero(~((left == right) | (np.isnan(left) & np.isnan(right))))
        named = [names[i] if i < len(names) else f"{root}[{i}]" for i in where.tolist()]
        values = [_list_numbers(named, each[where]) for each in (left, right)]
        field = named[0] if len(named) == 1 else root
        kind, evidence = self._find_numbers(group, left, right, where)
        return Finding(stage, field, values, kind, evidence)

    def _find_numbers(
        self, group: str, left: NDArray[np.float64], right: NDArray[np.float64], where: NDArray[np.int64]
    ) -> tuple[DifferenceClass, str]:
        wrong = right[where]
        for words, kind, row in self._sources():
            there = self.expected.numbers(group, row)
            if len(there) == len(left) and _is_same(there[where], wrong):
                return kind, f"equals that of {words}"
        if (
            len(where) > 1
            and not _is_same(np.sort(left[where]), left[where])
            and _is_same(np.sort(left[where]), np.sort(wrong))
        ):
            return DifferenceClass.REORDERED, "the same numbers in other places"
        return DifferenceClass.NUMBER, ""

    def _sources(self) -> Iterator[tuple[str, DifferenceClass, int]]:
        """Yield the rows of the expected side whose values the actual side may show by mistake, the likeliest first."""
        rows = self.expected.rows_of(self.slot)
        if self.row - 1 >= rows.start:
            yield "the step before", DifferenceClass.STALE, self.row - 1
        if self.kind == StepKind.RESET and self.number:
            yield "the first reset", DifferenceClass.STALE, rows.start
        # The nearest other slots, and the first one.
        near = [self.slot + sign * apart for apart in range(1, MOST_APART + 1) for sign in (-1, 1)]
        for slot in dict.fromkeys((*near, 0)):
            at = None if slot == self.slot else self.expected.find(slot, self.number, self.kind)
            if at is not None:
                yield f"slot {slot}", DifferenceClass.FOREIGN, at


def _is_same(left: NDArray[np.float64], right: NDArray[np.float64]) -> bool:
    return np.array_equal(left, right, equal_nan=True)


def _render(value: float) -> Value:
    # JSON has neither NaN nor infinity.
    return value if np.isfinite(value) else repr(value)


def _shorten(numbers: NDArray[np.float64]) -> Value:
    if not len(numbers):
        return NOT_RETURNED
    return ", ".join(f"{number:.9g}" for number in numbers[:MOST_SHOWN].tolist()) + (
        ", ..." if len(numbers) > MOST_SHOWN else ""
    )


def _list_numbers(names: Sequence[str], numbers: NDArray[np.float64]) -> Value:
    if len(numbers) == 1:
        return _render(numbers[0].item())
    shown = [f"{name} = {number:.9g}" for name, number in zip(names[:MOST_SHOWN], numbers.tolist(), strict=False)]
    return [*shown, f"... and {len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else shown
