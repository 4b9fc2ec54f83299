"""The comparison of a block by its columns, for any schema: which steps differ, and in which column first."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.comparable import ComparablePair
from kgverify.comparison.equal_columns import Rounded, agree, count_terms, differ_in
from kgverify.comparison.modulo import BenignSteps
from kgverify.comparison.result import DIGEST, Divergence, Level, NearTie, Value
from kgverify.comparison.step_view import Names, StepView, side_name
from kgverify.errors import count_of
from kgverify.program.outcomes import Side
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH, expand_rows, starts_of
from kgverify.trace.model.schema import Column, EqualityRule, Schema
from kgverify.trace.model.trace import Trace


class StepPairs(NamedTuple):
    """The steps that both sides have: the row of each step on each side, and its candidate."""

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    candidate: NDArray[np.int64]


def pair_steps(*counts: NDArray[np.uint32]) -> StepPairs:
    """Pair the steps that both sides have, given the number of steps of each candidate on each side."""
    common = np.minimum(*(count.astype(np.int64) for count in counts))
    candidate = np.repeat(np.arange(len(common)), common)
    ordinal = np.arange(len(candidate)) - np.repeat(np.cumsum(common) - common, common)
    first = [starts_of(count)[:-1] for count in counts]
    return StepPairs(first[0][candidate] + ordinal, first[1][candidate] + ordinal, candidate)


class ColumnComparer:
    """The comparer of a block: row i of the expected candidates with row i of the actual candidates.

    In a free-running comparison, the first difference decides a candidate. In lockstep, each candidate has one step. If a
    step differs in several columns, the column of the earliest stage counts.

    divergences, near_ties:     in the order of candidates
    num_steps, num_resolvents:  the numbers of steps and resolvents that were compared
    rounded:                    the scores of the steps that agree
    views:                      both versions of each step that differs, by (candidate, step)
    benign:                     the steps that are equal only up to the declared differences
    """

    def __init__(self, pair: ComparablePair, *, lockstep: bool = False) -> None:
        self.pair, self.lockstep, self.schema = pair, lockstep, pair.schema
        self.views: dict[tuple[int, int], tuple[StepView, StepView]] = {}
        self.benign: list[BenignSteps] = []
        self.num_resolvents, self.rounded = 0, Rounded()
        self._sides: tuple[Any, Any] = pair.expected.columns, pair.actual.columns
        self._candidates = self._sides[0].candidates, self._sides[1].candidates
        self._ends = [each for each in self.schema.compared if each.group == "candidates" and not each.is_identity]
        self._pairs = pair_steps(*(side.num_steps for side in self._candidates))
        found = self._collect(self._pairs, self._find_differing(self._pairs))
        self.divergences, self.near_ties, self._is_compared = found
        self.num_steps = int(np.count_nonzero(self._is_compared))

    def _find_differing(self, pairs: StepPairs) -> NDArray[np.bool_]:
        """Return a mask of the pairs of steps that differ in any field, scores by more than the tolerance."""
        return find_differing(self.pair.expected, self.pair.actual, pairs, self.pair)

    def _collect(
        self, pairs: StepPairs, differs: NDArray[np.bool_]
    ) -> tuple[list[Divergence], list[NearTie], NDArray[np.bool_]]:
        """Return divergences, near-ties, and a mask of compared pairs; skip pairs after the one that decides a candidate."""
        divergences: list[Divergence] = []
        near_ties: list[NearTie] = []
        decided: dict[int, int] = {}
        for i in np.flatnonzero(differs).tolist():
            candidate = int(pairs.candidate[i])
            if candidate in decided:
                continue
            found = self._compare_step(candidate, int(pairs.expected[i]), int(pairs.actual[i]))
            if found is None:
                continue
            decided[candidate] = i
            if isinstance(found, NearTie):
                near_ties.append(found)
            else:
                divergences.append(found)
        num = len(self._candidates[0].num_steps)
        is_other = np.zeros(num, np.bool_)
        for each in self._ends:
            is_other |= differ_in(each, 0.0, *(self.schema.values(side, each.path) for side in self._sides))
        rest = (candidate for candidate in np.flatnonzero(is_other).tolist() if candidate not in decided)
        divergences += filter(None, map(self._compare_whole, rest))
        last = np.full(num, len(differs), np.int64)
        last[list(decided)] = list(decided.values())
        divergences.sort(key=lambda each: (each.candidate, each.step))
        return divergences, near_ties, np.arange(len(differs)) <= last[pairs.candidate]

    @cached_property
    def _by_stage(self) -> list[Column]:
        """The columns of steps, in the order of the stages that produce them."""
        order = {stage: number for number, stage in enumerate(self.schema.stages)}
        compared = (each for each in self.schema.compared if each.name not in self.pair.not_compared)
        of_steps = (each for each in compared if each.group != "candidates")
        return sorted(of_steps, key=lambda each: order.get(each.stage, -1))

    def _compare_step(self, candidate: int, row: int, other: int) -> Divergence | NearTie | None:
        """Compare two steps, given their rows; return None if they agree after all."""
        found = self._compare_columns(candidate, row, other, self._by_stage)
        if found is not None or not self.pair.by_digest:
            return found
        texts = [
            f"{int(side.digests.sequence[own]):016x}"
            for side, own in ((self.pair.expected, row), (self.pair.actual, other))
        ]
        step = self._number(candidate, row)
        return self._name_divergence(candidate, step, "", DIGEST, (texts[0], texts[1]), Level.RENAMING)

    def _number(self, candidate: int, row: int) -> int:
        """Return the number of a step in its candidate, given its row on the expected side."""
        return row - int(starts_of(self._candidates[0].num_steps)[candidate])

    def _compare_columns(self, candidate: int, row: int, other: int, columns: Sequence[Column]) -> Divergence | None:
        """Return a divergence in the first of some columns in which two steps differ, given their rows."""
        readers = self.pair.expected.reader, self.pair.actual.reader
        steps = [reader.read_steps(own, own + 1) for reader, own in zip(readers, (row, other), strict=True)]
        for each in columns:
            left, right = (self.schema.values(step, each.path) for step in steps)
            if not agree(each, left, right, self.pair.score_tolerance, np.ones(1, np.uint32))[0]:
                step = self._number(candidate, row)
                level = Level.OUTCOME if each.rule is EqualityRule.EQUAL else Level.TOLERANCE
                values = _render(left), _render(right)
                return self._name_divergence(candidate, step, each.stage, each.name, values, level)
        return None

    def _compare_whole(self, candidate: int) -> Divergence | None:
        """Compare the rest of a candidate whose common steps agree: steps that only one side has, and how it ended."""
        at = slice(candidate, candidate + 1)
        num_steps = self._candidates[0].num_steps[at]
        for each in self._ends:
            left, right = (self.schema.values(side, each.path)[at] for side in self._sides)
            if self._excuses(each, candidate) or agree(each, left, right, self.pair.score_tolerance, num_steps)[0]:
                continue
            stage, texts, level = self._describe_end(each, left, right)
            step = min(int(left[0]), int(right[0])) if each.counts == "steps" else -1
            return self._name_divergence(candidate, step, stage, each.name, texts, level)
        return None

    def _excuses(self, column: Column, candidate: int) -> bool:
        """Return whether to ignore a difference in how a candidate ended."""
        return False

    def _describe_end(
        self, column: Column, expected: NDArray[Any], actual: NDArray[Any]
    ) -> tuple[str, tuple[Value, Value], Level]:
        """Return the stage of a difference in how a candidate ended, both values in readable form, and the level."""
        level = Level.OUTCOME if column.rule is EqualityRule.EQUAL else Level.TOLERANCE
        if column.counts:
            return column.stage, (count_of(int(expected[0]), "step"), count_of(int(actual[0]), "step")), level
        # The values are text, since JSON has no NaN.
        return column.stage, (repr(expected[0].item()), repr(actual[0].item())), level

    def _name_divergence(
        self, candidate: int, step: int, stage: str, field: str, values: tuple[Value, Value], level: Level, **facts: Any
    ) -> Divergence:
        candidates = self._candidates[0]
        num_steps = max(int(side.num_steps[candidate]) for side in self._candidates)
        identity = [getattr(candidates, name)[candidate].tolist() for name in self.schema.identity]
        return Divergence(
            candidate=candidate,
            **name_candidate(self.schema, self.pair.names, identity),
            step=step,
            stage=stage,
            field=field,
            level=level,
            expected=values[0],
            actual=values[1],
            later_steps=0 if self.lockstep or step < 0 else max(0, num_steps - step - 1),
            **facts,
        )


def name_candidate(schema: Schema, names: Names, identity: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a divergence that name a candidate, given the values that identify it."""
    if schema == KNOWLEDGE_GRAPH:
        query, side, atom = identity
        return {"atom": names.atom(tuple(atom)), "query": query, "side": side_name(side)}
    text = ", ".join(f"{name} {value}" for name, value in zip(schema.identity, identity, strict=True))
    return {"atom": text, "query": -1, "side": side_name(Side.NONE)}


def _render(values: NDArray[Any]) -> Value:
    """Return the values of a column in one step in readable form."""
    texts = [str(each) for each in values.tolist()]
    if len(texts) != 1:
        return texts
    value: Value = values[0].item() if values.ndim == 1 and values.dtype.kind in "iub" else texts[0]
    return value


def find_differing(expected: Trace, actual: Trace, pairs: StepPairs, judged: ComparablePair) -> NDArray[np.bool_]:
    """Return a mask of the pairs of steps that differ in any field, scores by more than the tolerance.

    Digests are compared instead of the columns that they count. If one side lacks columns, digests are compared only instead
    of atoms: a digest that cannot be computed from its columns does not prove them equal.

    judged: an object that names the columns that are not compared, and the tolerance
    """
    schema, score_tolerance = expected.schema, judged.score_tolerance
    lacking = judged.not_compared
    present = [each for each in schema.compared if not each.of_search or each.name in expected.fields]
    compared = [each for each in present if each.name not in lacking and (lacking or not each.is_digested)]
    sides = (expected.columns, pairs.expected), (actual.columns, pairs.actual)
    differs: NDArray[np.bool_] = expected.digests.sequence[pairs.expected] != actual.digests.sequence[pairs.actual]
    for each in compared:
        if each.rows == "steps":
            num_steps = count_terms(each, expected.columns)[pairs.expected] if each.of_search else None
            differs |= differ_in(
                each,
                score_tolerance,
                *(schema.values(side, each.path)[rows] for side, rows in sides),
                num_steps=num_steps,
            )
    for counts in schema.counts:
        below = [each for each in compared if each.rows == counts.counts and each.rows in schema.groups]
        if counts.rows != "steps" or not below:
            continue
        same = np.flatnonzero(~differs)
        rows = [expand_rows(starts_of(schema.values(side, counts.path)), steps[same]) for side, steps in sides]
        wrong = np.zeros(len(rows[0]), np.bool_)
        for each in below:
            values = (schema.values(side, each.path)[own] for (side, _), own in zip(sides, rows, strict=True))
            num_steps = count_terms(each, expected.columns)[rows[0]] if each.of_search else None
            wrong |= differ_in(each, score_tolerance, *values, num_steps=num_steps)
        owner = np.repeat(same, schema.values(expected.columns, counts.path)[pairs.expected[same]])
        differs[owner[wrong]] = True
    return differs
