"""The causes of the differences of two environments, and the condition under which each goes wrong.

The instances are rows. A row counts if the state before it was right on both sides, as far as the rows show it: every row in
lockstep; otherwise those that follow a row in which observation and flags agree, up to the first row of another kind.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.result import Cause, Divergence
from kgverify.conditions.features import Feature, Scale
from kgverify.conditions.find import Found, Table, find_in
from kgverify.conditions.instances import Cases, Instance, Unit
from kgverify.conditions.search import NOTHING
from kgverify.conditions.sentence import show
from kgverify.environments.compare import Compared, Pairs
from kgverify.environments.locate import SCALARS, RowPair, RowReader, root_of, settle
from kgverify.environments.trajectory import GROUPS, Stage, StepKind
from kgverify.trace.model.columns import expand_rows

MOST_CAUSES: Final = 8
"""The most causes with a condition."""

MOST_LOCATED: Final = 1_000
MOST_RIGHT: Final = 4_000
"""The maximum numbers of rows to examine: of those that differ, and of those that agree. Of more rows, a sample is taken."""

MOST_READ: Final = 200_000
"""The most rows whose groups of numbers are compared with those of other rows."""

MOST_NUMBERS: Final = 16
"""The maximum width of an observation or a state whose numbers become features."""

LOCAL: Final = (Stage.OBSERVE, Stage.MASK)
"""The stages that do not change the state: rows in a stretch of wrong ones count if the observation is right again later."""

ENDS: Final = "ends"
"""The field of a wrong end: both flags."""

_SHOWN: Final = (Stage.RESET, Stage.TRANSITION, Stage.OBSERVE, Stage.AUTORESET)
"""The stages at which a wrong observation may show."""

_Key: TypeAlias = tuple[str, str]
"""The stage and the field of a cause."""


class Row(NamedTuple):
    """A row as an instance of a condition."""

    is_wrong: bool
    location: str
    groups: Mapping[str, Hashable]


def _key_of(stage: str, field: str) -> _Key:
    return stage, ENDS if stage == Stage.END else root_of(field)


def describe_causes(
    compared: Compared, further: Sequence[Compared] = (), *, lockstep: bool = False
) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
    """Return the divergences with their causes, and the causes with their conditions, the earliest first.

    further: comparisons of the same sides with other seeds, whose rows show more
    """
    divergences = compared.comparison.divergences
    seen = [_Seen(each, lockstep, 1 + len(further)) for each in (compared, *further)] if divergences else []
    keys = [_key_of(each.stage, each.field) for each in divergences]
    joined = {} if lockstep else _join_stages({*keys}, seen)
    groups: dict[tuple[str, str], list[int]] = {}
    for i in sorted(range(len(divergences)), key=lambda i: (divergences[i].step, divergences[i].candidate)):
        groups.setdefault(joined.get(keys[i], keys[i]), []).append(i)
    causes: list[Cause] = []
    numbers: dict[int, int] = {}
    for (stage, root), members in groups.items():
        numbers |= dict.fromkeys(members, len(causes))
        some = [divergences[i] for i in members]
        kind = Counter(each.kind for each in some).most_common(1)[0][0]
        alike = {key for key in keys if joined.get(key, key) == (stage, root)}
        found = _find(stage, alike, seen) if len(causes) < MOST_CAUSES else None
        when = None if found is None else show(stage, found)
        cause = Cause(
            stage=stage,
            kind=kind,
            situation=_describe_situation(some, len(np.unique(compared.readers[0].slot))),
            num_candidates=len({each.candidate for each in some}),
            num_queries=0,
            num_divergences=len(members),
            num_later=0,
            first=members[0],
            condition="" if when is None else when.sentence,
            when=when,
            code=kind.code,
        )
        causes.append(cause)
    numbered = (
        msgspec.structs.replace(each, cause=numbers[i], stage=causes[numbers[i]].stage)
        for i, each in enumerate(divergences)
    )
    return tuple(numbered), tuple(causes)


def _join_stages(keys: Set[_Key], seen: Sequence["_Seen"]) -> dict[_Key, _Key]:
    """Return the stages and fields that are one fault, with its stage.

    Without the state, only the rows after a difference distinguish a wrong observation from a wrong state, and they may mislead.
    If one exact condition holds for all wrong rows, the observation is wrong. If it holds for the first wrong row of each
    stretch, the state is wrong.
    """
    joined: dict[_Key, _Key] = {}
    for root in {root for _, root in keys}:
        alike = {key for key in keys if key[1] == root}
        for stage, stages in ((Stage.OBSERVE, _SHOWN), (Stage.TRANSITION, (Stage.OBSERVE, Stage.TRANSITION))):
            some = {key for key in alike if key[0] in stages}
            if len(some) > 1 and not some & joined.keys():
                table, cases = _tabulate(stage, some, seen, is_first=False)
                best, _ = find_in(stage, cases, table)
                if best is not None and best.is_exact:
                    joined |= dict.fromkeys(some, (stage.value, root))
    return joined


def _describe_situation(divergences: Sequence[Divergence], num_slots: int) -> str:
    """Describe what all divergences share: the field, if it is a single number, and what the actual value is instead."""
    fields, evidence = ({getattr(each, name) for each in divergences} for name in ("field", "evidence"))
    parts = [field for field in fields if len(fields) == 1 and root_of(field) != field and "[" in field]
    if len(evidence) > 1:
        sources = [re.fullmatch(r"equals that of slot (\d+)", each.evidence) for each in divergences]
        if all(sources):
            away = {(int(s[1]) - each.candidate) % num_slots for s, each in zip(sources, divergences, strict=True) if s}
            names = {1: "equals that of the next slot", num_slots - 1: "equals that of the slot before"}
            evidence = (
                {names.get(min(away), f"equals that of the slot {min(away)} further")} if len(away) == 1 else set()
            )
    return ", ".join(filter(None, (*parts, *(evidence if len(evidence) == 1 else ()))))


def _find(stage: str, keys: Set[_Key], seen: Sequence["_Seen"]) -> Found | None:
    """Return the condition of a cause: from all rows that count, or else from the first difference of each slot only.

    None if a sample of the rows has none that went wrong.
    """
    found: Found | None = None
    for is_first in (False, True):
        table, cases = _tabulate(stage, keys, seen, is_first=is_first)
        best, _ = find_in(stage, cases, table)
        if best is not None and best.is_exact:
            return best
        found = found or best or Found(cases, table, NOTHING, (), False, 1.0)
    return found if found is not None and found.table.is_wrong.any() else None


def _tabulate(stage: str, keys: Set[_Key], seen: Sequence["_Seen"], *, is_first: bool) -> tuple[Table, Cases]:
    root = next(iter(keys))[1]
    features: tuple[Feature, ...] = ()
    parts, instances, are_resets = [], [], True
    for i, each in enumerate(seen):
        rows, is_wrong = each.collect(stage, keys, is_first=is_first)
        features, columns = zip(*each.columns, *_read_sources(each.compared.readers[0], root), strict=True)
        values = np.array([column[each.left[rows]] for column in columns], np.float64).T
        parts.append((values, is_wrong, each.episode[rows] + (i << 32)))
        places = zip(is_wrong.tolist(), each.slot[rows].tolist(), each.number[rows].tolist(), strict=True)
        instances += [Row(wrong, f"slot {slot}, step {step}", {"in one slot": slot}) for wrong, slot, step in places]
        are_resets &= bool(each.is_reset[rows].all())
    values, is_wrong, episodes = map(np.concatenate, zip(*parts, strict=True))
    rows, none = np.arange(len(is_wrong)), np.zeros(len(is_wrong), np.int64)
    table = Table(features, values, is_wrong, rows, rows, episodes, none, none)
    unit, rows_of = Unit.RESET if are_resets else Unit.STEP, cast(tuple[Instance, ...], tuple(instances))
    return table, Cases(unit, "wrong", "right", rows_of, is_sample=any(each.is_sample for each in seen))


@dataclass(eq=False)
class _Seen:
    """The rows of a comparison in pairs; the columns below have one value for each pair.

    num_alike: the number of comparisons whose rows are examined together
    is_sample: whether rows were left out
    """

    compared: Compared
    lockstep: bool
    num_alike: int = 1
    is_sample: bool = False

    def __post_init__(self) -> None:
        expected, actual = self.compared.readers
        self._pairs = pairs = Pairs(expected.side.columns, actual.side.columns)
        self.left, self._right = pairs.rows
        self.slot, self.number = expected.slot[self.left], expected.number[self.left]
        is_reset = expected.steps.kind == StepKind.RESET
        self.is_reset = is_reset[self.left]
        # An episode of the expected side: it has a number of its own over all slots.
        self.episode = np.cumsum(is_reset)[self.left] - 1
        names = {"steps": "kind", **{group.removesuffix("s"): group for group in GROUPS}}
        names |= {name: name for name in (*SCALARS, "overwritten")}
        self._agree = {name: pairs.agree(column) for name, column in names.items()}
        self._agree[ENDS] = self._agree["terminated"] & self._agree["truncated"]
        self._differs = ~np.logical_and.reduce(list(self._agree.values()))
        self._is_first = self._has_none_before(self._differs)
        self._is_valid, self._is_local = self._count()

    def _has_none_before(self, marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the rows before which no row of the candidate is marked: bool [R]."""
        before: NDArray[np.int64] = np.cumsum(marks) - marks
        found: NDArray[np.bool_] = before == before[self._pairs.begin]
        return found

    def _count(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the rows that count, and those that do if the stage does not change the state: bool [R] each."""
        drifts = self.compared.rounding.grown[self.left] & self._differs
        goes_on = self._has_none_before(~self._agree["steps"] | drifts) & ~drifts
        if self.lockstep:
            return goes_on, goes_on
        synced = np.logical_and.reduce(
            [self._agree[name] for name in ("steps", "observation", "state", "terminated", "truncated")]
        )
        after_synced = np.roll(synced, 1) | (self._pairs.begin == np.arange(len(synced)))
        last = np.full(self.episode.max(initial=0) + 1, -1)
        rows = np.arange(len(synced))
        np.maximum.at(last, self.episode[synced], rows[synced])
        valid: NDArray[np.bool_] = goes_on & (after_synced | (self.is_reset & synced))
        return valid, goes_on & (valid | (rows <= last[self.episode]))

    @cached_property
    def _located(self) -> dict[int, tuple[str, str]]:
        """The stage and the field of rows that differ, as far as they count."""
        if self.lockstep:
            divergences = self.compared.comparison.divergences
            keys = {(each.candidate, each.step): _key_of(each.stage, each.field) for each in divergences}
            rows = np.flatnonzero(self._differs & self._is_first)
            places = zip(rows.tolist(), self.slot[rows].tolist(), self.number[rows].tolist(), strict=True)
            return {row: keys[slot, number] for row, slot, number in places if (slot, number) in keys}
        rows = self._thin(np.flatnonzero(self._differs & self._is_local), MOST_LOCATED)
        found = [
            RowPair(*self.compared.readers, int(self.left[row]), int(self._right[row])).find() for row in rows.tolist()
        ]
        return {
            row: _key_of(each.stage.value, each.field) for row, each in zip(rows.tolist(), settle(found), strict=True)
        }

    def _thin(self, rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
        """Return a sample of some rows if they are too many."""
        every = -(-len(rows) * self.num_alike // most) or 1
        self.is_sample |= every > 1
        return rows[::every]

    def collect(self, stage: str, keys: Set[_Key], *, is_first: bool) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the rows that are instances of a cause, and the wrong ones among them: int64 [n] and bool [n]."""
        ((root, *_),) = {key[1:] for key in keys}
        counts = self._is_local if stage in LOCAL else self._is_valid
        if is_first:
            counts = counts & self._is_first
        is_wrong = np.zeros(len(counts), np.bool_)
        is_wrong[[row for row, key in self._located.items() if key in keys]] = True
        is_wrong &= counts
        is_right = counts & self._agree[root] & ~is_wrong
        if root + "s" in GROUPS:
            is_right &= self._pairs.values(GROUPS[root + "s"])[0] > 0
        if stage not in LOCAL:
            kinds = [kind for kind in (True, False) if (self.is_reset[is_wrong] == kind).any()]
            is_right &= np.isin(self.is_reset, kinds)
        if stage in (Stage.RESET, Stage.AUTORESET):
            is_end = (self._pairs.values("terminated")[0] | self._pairs.values("truncated")[0]).astype(bool)
            is_right &= np.where(self.is_reset, (self.number == 0) == (stage == Stage.RESET), is_end)
        right = self._thin(np.flatnonzero(is_right), MOST_RIGHT)
        rows = np.sort(np.concatenate([np.flatnonzero(is_wrong), right]))
        return rows, is_wrong[rows]

    @cached_property
    def columns(self) -> "list[_Column]":
        """The features of the expected rows."""
        return list(_read_features(*self.compared.readers))


_Column: TypeAlias = tuple[Feature, NDArray[Any]]
"""A feature, and its value in each row."""


def _make(
    name: str,
    scale: Scale,
    phrase: str,
    opposite: str = "",
    of: Unit = Unit.STEP,
    every: str = "",
) -> Feature:
    # What describes the place of a row is likelier to matter than its numbers.
    stages = frozenset[str]() if scale is Scale.NUMBER else frozenset[str](Stage)
    return Feature(name, "", frozenset({of}), scale, phrase, lambda _: None, opposite, stages, every=every)


def _read_sources(reader: RowReader, root: str) -> Iterator[_Column]:
    """Yield whether the value of a field differs from that of rows whose value may be taken by mistake."""
    group = root + "s" if root + "s" in GROUPS else root
    if group not in GROUPS and not hasattr(reader.steps, root):
        return
    rows = np.arange(len(reader.slot))
    ids: NDArray[Any] = getattr(reader.steps, root, rows)
    if group in GROUPS and len(rows) <= MOST_READ:
        known: dict[bytes, int] = {}
        ids = np.array([known.setdefault(reader.numbers(group, row).tobytes(), len(known)) for row in rows.tolist()])
    # Not every row has numbers of a group: the end of an episode has no mask.
    has = getattr(reader.steps, GROUPS[group]) > 0 if group in GROUPS else rows >= 0
    before = _find_before(reader, has)
    sources = {"the step before": np.where(before >= 0, before, rows)}
    width, num_slots = int(reader.number.max(initial=0)) + 1, int(reader.slot.max(initial=0)) + 1
    is_reset = reader.steps.kind == StepKind.RESET
    key = (reader.slot * width + reader.number) * 2 + is_reset
    for name, away in (("the next slot", 1), ("the slot before", -1)):
        sought = ((reader.slot + away) % num_slots * width + reader.number) * 2 + is_reset
        at = np.minimum(np.searchsorted(key, sought), len(rows) - 1)
        sources[name] = np.where(key[at] == sought, at, rows)
    for name, source in sources.items():
        words = f"whose {root} is not that of {name}", f"whose {root} is that of {name}"
        yield _make(f"{root} of {name}", Scale.FLAG, *words), ids != ids[source]


def _read_features(reader: RowReader, actual: RowReader) -> Iterator[_Column]:
    """Yield the features of the expected rows, with their values, [T] each. The calls are those of the actual side."""
    steps, of_episode = reader.steps, Unit.CANDIDATE
    rows, is_reset = np.arange(len(reader.slot)), steps.kind == StepKind.RESET
    begins = np.flatnonzero(is_reset)
    episode = np.cumsum(is_reset) - 1
    first = begins[episode]
    is_later = reader.number[first] > 0
    before, last = np.maximum(rows - 1, 0), np.maximum(first - 1, 0)
    begin_of_slot = np.searchsorted(reader.slot, reader.slot, "left")
    step = reader.number - reader.number[first]
    truncated, terminated = steps.truncated.astype(bool), steps.terminated.astype(bool)
    ends = truncated | terminated
    # With next_step, a reset takes a call of its own.
    is_next_step, of_slot = actual.side.autoreset == "next_step", _number_episodes(reader)
    call, calls = reader.number + of_slot * is_next_step, actual.number + _number_episodes(actual) * is_next_step
    others_end = (actual.steps.terminated | actual.steps.truncated).astype(bool)
    per_call = np.bincount(calls[others_end], minlength=int(call.max(initial=0)) + 1)

    yield (
        _make("slot", Scale.COUNT, "in slot {}", of=of_episode, every="in every {}th slot (slot {} first)"),
        reader.slot,
    )
    yield _make("episode", Scale.COUNT, "at episode {} of their slot", of=of_episode), of_slot + 1
    for name, flag in (("truncation", truncated), ("termination", terminated)):
        words = f"of an episode that follows a {name}", f"of an episode that does not follow a {name}"
        yield _make(f"follows a {name}", Scale.FLAG, *words, of_episode), is_later & flag[last]
        total = np.cumsum(flag) - flag
        words = f"after the first {name} of their slot", f"before the first {name} of their slot"
        yield _make(f"earlier {name}", Scale.FLAG, *words), total > total[begin_of_slot]
    length = np.where(is_later, step[last], 0)
    yield _make("length of the episode before", Scale.NUMBER, "after an episode of {} steps", of=of_episode), length
    yield _make("step", Scale.COUNT, "at step {} of their episode"), step
    yield _make("is a reset", Scale.FLAG, "that begin an episode", "that follow an action"), is_reset
    for name, flag in (("terminate", terminated), ("truncate", truncated), ("end", ends)):
        yield _make(f"{name}s it", Scale.FLAG, f"that {name} their episode", f"that do not {name} their episode"), flag
    others = per_call[call] - ends > 0
    yield _make("another ends", Scale.FLAG, "while another slot ends", "while no other slot ends"), others
    ended = np.where(is_reset[before], ends[np.maximum(rows - 2, 0)] & (call > 1), ends[before])
    after = (call > 0) & (per_call[np.maximum(call - 1, 0)] - ended > 0)
    yield _make("another ended", Scale.FLAG, "after another slot ended", "after no other slot ended"), after
    yield _make("action in the slot", Scale.COUNT, "at action {} of their slot"), reader.number
    yield _make("reward", Scale.NUMBER, "with a reward of {}"), steps.reward
    if steps.num_masked.any():
        legal = np.add.reduceat(np.append(reader.side.columns.masks.number, 0.0), reader.starts["masks"][:-1])
        legal = np.where(steps.num_masked > 0, legal, 0)
        yield _make("legal actions", Scale.COUNT, "with {} legal actions"), legal
        yield _make("legal actions before", Scale.COUNT, "after {} legal actions"), legal[before] * ~is_reset
    yield from _read_numbers(reader)


def _number_episodes(reader: RowReader) -> NDArray[np.int64]:
    """Return the number of each row's episode in its slot, from 0: int64 [T]."""
    episode = np.cumsum(reader.steps.kind == StepKind.RESET)
    return np.asarray(episode - episode[np.searchsorted(reader.slot, reader.slot, "left")], np.int64)


def _read_numbers(reader: RowReader) -> Iterator[_Column]:
    """Yield the numbers of the action, the observation and the state, in the row and in the last one that has them."""
    for group, scale in (("actions", Scale.ID), ("observations", Scale.NUMBER), ("states", Scale.NUMBER)):
        widths = getattr(reader.steps, GROUPS[group])
        width = int(widths.max(initial=0))
        if not 0 < width <= MOST_NUMBERS:
            continue
        if group == "actions" and np.dtype(reader.side.dtypes[group][0]).kind not in "iub":
            scale = Scale.NUMBER
        whole, before = widths == width, _find_before(reader, widths > 0)
        numbers = np.zeros((len(widths), width))
        at = expand_rows(reader.starts[group], np.flatnonzero(whole))
        numbers[whole] = getattr(reader.side.columns, group).number[at].reshape(-1, width)
        for name, column in zip(reader.side.names[group], numbers.T, strict=True):
            earlier = np.where(before >= 0, column[before], 0)
            changes = whole & (before >= 0) & (column != earlier)
            yield _make(name, scale, f"with {name} {{}}"), column
            words = f"that change {name}", f"that do not change {name}"
            yield _make(f"{name} changes", Scale.FLAG, *words)._replace(stages=frozenset()), changes
            yield _make(f"{name} before", scale, f"after {name} {{}}"), earlier


def _find_before(reader: RowReader, has: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the last row before each, in its slot, of some rows; -1 without one: int64 [T]."""
    rows = np.arange(len(has))
    last = np.maximum.accumulate(np.where(has, rows, -1))
    before = np.where(rows > 0, last[rows - 1], -1)
    return np.where((before >= 0) & (reader.slot[before] == reader.slot), before, -1)
