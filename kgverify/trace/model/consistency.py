"""Contradictions inside a trace: columns that cannot all be true of one derivation.

The trace of a wrong engine is still readable, and a comparison with a sound engine finds the error. But two traces that
contradict themselves in the same way prove nothing, so a comparison must know about it. Unknown columns contradict nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kgverify.program.limits import OURS
from kgverify.program.outcomes import GoalKind, Outcome, Side
from kgverify.trace.model.columns import (
    Candidates,
    CandidateSet,
    Columns,
    Rankings,
    Resolvents,
    Steps,
    expand_rows,
    starts_of,
)
from kgverify.trace.model.digests import Words, candidate_keys, fold, renumber
from kgverify.trace.model.header import Header
from kgverify.trace.model.paths import find_parents, has_paths
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.score_tolerance import UNIT_ROUNDOFF, bound_score_error, name_precision

Rows = NDArray[np.int64]

_OUTCOMES: Final = {
    GoalKind.GOAL: (Outcome.OPEN, Outcome.DEPTH_LIMIT),
    GoalKind.TRUE: (Outcome.PROVED,),
    GoalKind.FALSE: (Outcome.FAILED,),
    GoalKind.STOP: (Outcome.FAILED,),
}
"""The outcomes that a step may have for each kind of chosen resolvent."""

_ROUNDINGS: Final = 64
"""The rounding errors that a log-probability may collect in each step, in roundings of the derivation's largest score."""


@dataclass
class Contradictions:
    """The contradictions found so far, by the text that describes them.

    found: for each, the number of contradictory steps or candidates, and the first one: its candidate, and its step or -1
    """

    found: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, columns: Columns, header: Header, fields: frozenset[str], rows: Rows) -> None:
        """Add the contradictions in some candidates, given their rows in the trace."""
        block = _Block(columns, header, fields)
        for what, is_wrong in block.judge_candidates():
            self._add(what, is_wrong, lambda row: (int(rows[row]), -1))

        def place(step: int) -> tuple[int, int]:
            candidate = int(block.owner[step])
            return int(rows[candidate]), step - int(block.first[candidate])

        for what, is_wrong in block.judge_steps():
            self._add(what, is_wrong, place)

    def add_ends(
        self, candidates: Candidates, ended: NDArray[np.int8] | None, fields: frozenset[str], first_candidate: int
    ) -> None:
        """Add the contradictions at the ends of consecutive candidates; `ended` holds the outcome of each one's last step."""
        for what, is_wrong in _judge_ends(candidates, ended, fields):
            self._add(what, is_wrong, lambda row: (first_candidate + row, -1))

    def describe(self) -> list[str]:
        """Return each contradiction as text, with the number of occurrences and the first one."""
        return [
            f"{num:,} {what} (first: candidate {candidate}{'' if step < 0 else f', step {step}'})"
            for what, (num, candidate, step) in self.found.items()
        ]

    def _add(self, what: str, is_wrong: NDArray[np.bool_], place: Callable[[int], tuple[int, int]]) -> None:
        if num := int(np.count_nonzero(is_wrong)):
            before, candidate, step = self.found.get(what) or (0, *place(int(np.argmax(is_wrong))))
            self.found[what] = (before + num, candidate, step)


def find_contradictory(columns: Columns, header: Header, fields: frozenset[str]) -> NDArray[np.bool_]:
    """Return a mask of the candidates whose columns contradict each other, or whose log-probability is not finite: bool [N]."""
    block, candidates = _Block(columns, header, fields), columns.candidates
    is_wrong = np.zeros(len(candidates.query), bool)
    if "candidates.log_probability" in fields:
        is_wrong |= ~np.isfinite(candidates.log_probability)
    for _, is_other in block.judge_candidates():
        is_wrong |= is_other
    for _, is_other in block.judge_steps():
        is_wrong[block.owner[is_other]] = True
    return is_wrong


def _judge_ends(
    candidates: Candidates, ended: NDArray[np.int8] | None, fields: frozenset[str]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each contradiction at the ends of derivations, with a mask of candidates; `ended` is None if it is unknown."""
    if not fields.issuperset(("candidates.num_steps", "candidates.outcome")):
        return
    outcome, num_steps = candidates.outcome, candidates.num_steps
    # A candidate may also be a single step, from any goal.
    is_open = (outcome == Outcome.OPEN) & (num_steps != 1)
    yield "candidates end OPEN: their derivations were not recorded to the end", is_open
    if ended is not None:
        is_other = (outcome != ended) & (num_steps > 0)
        yield "candidates have an outcome that is not that of their last step", is_other
    is_bare = (num_steps == 0) & ((outcome == Outcome.PROVED) | (outcome == Outcome.DEPTH_LIMIT))
    yield "candidates are PROVED or DEPTH_LIMIT without a step", is_bare


class _Block:
    """Some candidates with their steps. first: the first step of each candidate; owner: the candidate of each step."""

    def __init__(self, columns: Columns, header: Header, fields: frozenset[str]) -> None:
        self._candidates, self._steps, self._resolvents, *_ = self._columns = columns
        self._header, self._limits, self._has_paths = header, header.limits, has_paths(columns)
        # A trace in an unknown dialect is checked against the default one.
        self._dialect = self._limits.dialect or OURS
        self._fields = fields
        counts = self._candidates.num_steps.astype(np.int64)
        self._ends = np.cumsum(counts)
        self.first = self._ends - counts
        self.owner = np.repeat(np.arange(len(counts)), counts)
        self._has_steps = counts > 0
        self._last = self._ends[self._has_steps] - 1
        self._is_last = np.zeros(len(self._steps.depth), bool)
        self._is_last[self._last] = True

    def _knows(self, *names: str) -> bool:
        return self._fields.issuperset(names)

    def judge_candidates(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield each contradiction in candidates, with a mask of the candidates that have it."""
        candidates, steps = self._candidates, self._steps
        if not self._knows("candidates.num_steps"):
            return
        ended = None
        if self._knows("steps.outcome") and not self._has_paths:
            ended = np.zeros(len(candidates.outcome), np.int8)
            ended[self._has_steps] = steps.outcome[self._last]
        yield from _judge_ends(candidates, ended, self._fields)
        if (
            self._knows("candidates.is_limited", "steps.dropped_atoms", "steps.dropped_resolvents")
            and not self._has_paths
        ):
            has_dropped = np.zeros(len(candidates.query), bool)
            has_dropped[self.owner[(steps.dropped_atoms > 0) | (steps.dropped_resolvents > 0)]] = True
            is_other = (has_dropped != (candidates.is_limited > 0)) & self._is_from_start
            yield "candidates are marked as limited, or not, against the resolvents dropped in their steps", is_other
        sums = "candidates.log_probability", "resolvents.score", "steps.choice", "steps.num_resolvents"
        if self._knows(*sums) and not self._has_paths:
            yield "candidates have a log-probability that is not that of their choices", self._has_other_sum()
        if has_goals(self._header.level) and self._knows("steps.num_atoms", "steps.goal_atoms"):
            is_other = (compare_first_goals(self._columns) == -1) & self._is_from_start
            yield "candidates begin with another goal than the atom to prove", is_other

    @cached_property
    def _is_from_start(self) -> NDArray[np.bool_]:
        """A mask of the candidates whose derivations were recorded from their first step on."""
        is_from_start = np.zeros(len(self._has_steps), bool)
        if self._knows("steps.depth"):
            is_from_start[self._has_steps] = self._steps.depth[self.first[self._has_steps]] == 0
        return is_from_start

    @cached_property
    def _may_be_uncounted(self) -> NDArray[np.bool_]:
        """A mask of the steps whose only resolvent is a goal, if the dialect does not count such steps."""
        num = self._steps.num_resolvents
        if not self._dialect.skips_unary or not self._knows("steps.num_resolvents"):
            return np.full(len(self._steps.depth), self._dialect.skips_unary)
        may_be: NDArray[np.bool_] = num == 1
        if self._knows("resolvents.kind"):
            may_be[may_be] = self._resolvents.kind[self._starts[:-1][may_be]] == GoalKind.GOAL
        return may_be

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return starts_of(self._steps.num_resolvents)

    @cached_property
    def _has_choice(self) -> NDArray[np.bool_]:
        """A mask of the steps whose choice is one of their resolvents."""
        choice = self._steps.choice
        is_valid: NDArray[np.bool_] = (choice >= 0) & (choice < self._steps.num_resolvents)
        return is_valid

    def _has_other_sum(self) -> NDArray[np.bool_]:
        """Return the candidates whose log-probability does not follow from finite scores."""
        gain, wanted = weigh_choices(self._steps, self._resolvents), self._candidates.log_probability
        is_known = self._is_from_start & np.isfinite(wanted)
        is_known[self.owner[~np.isfinite(gain)]] = False
        sums = np.bincount(self.owner, np.where(np.isfinite(gain), gain, 0.0), len(wanted))
        engine = self._header.engine
        score = self._resolvents.score
        unit = max(UNIT_ROUNDOFF[name_precision(engine.precision)], float(np.finfo(self._resolvents.score.dtype).eps))
        error = 2 * bound_score_error(self._header.policy, engine.precision) + _ROUNDINGS * unit * np.maximum(
            1.0, float(np.abs(score[np.isfinite(score)]).max(initial=0.0))
        )
        tolerance = error * np.maximum(1, self._candidates.num_steps.astype(np.int64)) + 1e-6 * np.abs(wanted)
        is_other: NDArray[np.bool_] = is_known & (np.abs(sums - wanted) > tolerance)
        return is_other

    def judge_steps(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield each contradiction in steps, with a mask of the steps that have it."""
        if not self._knows("candidates.num_steps"):
            return
        steps, limits = self._steps, self._limits
        parent = find_parents(self._columns)
        is_first = parent < 0
        if self._knows("steps.outcome") and not self._has_paths:
            is_ended = steps.outcome != Outcome.OPEN
            yield "steps ended their derivation, and others follow", is_ended & ~self._is_last
        if self._knows("steps.depth"):
            gain = steps.depth.astype(np.int64) - steps.depth[parent].astype(np.int64)
            is_other = ~is_first & (gain != 1) & ~((gain == 0) & self._may_be_uncounted[parent])
            yield "steps have a depth that does not follow the step before", is_other
            if limits.max_depth is not None:
                yield f"steps are deeper than max_depth {limits.max_depth} allows", steps.depth >= limits.max_depth
        if self._knows("steps.depth", "steps.outcome") and limits.max_depth is not None:
            is_at_limit = steps.depth.astype(np.int64) + 1 >= limits.max_depth
            is_limit = steps.outcome == Outcome.DEPTH_LIMIT
            is_other = is_limit & ~is_at_limit
            is_other |= is_at_limit & (steps.outcome == Outcome.OPEN) & ~self._may_be_uncounted
            # A path of which no child was kept has no outcome.
            is_other &= ~(self._has_paths & (steps.choice < 0))
            yield (
                f"steps end with DEPTH_LIMIT, or do not, against their depth and max_depth {limits.max_depth}",
                is_other,
            )
        if self._knows("steps.num_resolvents"):
            yield from self._judge_resolvents()

    def _judge_resolvents(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        steps, resolvents, limits = self._steps, self._resolvents, self._limits
        num_steps = len(steps.num_resolvents)
        of_step = np.repeat(np.arange(num_steps), steps.num_resolvents)
        if (
            self._knows("resolvents.kind")
            and limits.max_resolvents is not None
            and "max_resolvents" in self._dialect.filters
            and int(steps.num_resolvents.max(initial=0)) > limits.max_resolvents
        ):
            num = np.bincount(of_step[resolvents.kind != GoalKind.STOP], minlength=num_steps)
            yield f"steps have more than max_resolvents {limits.max_resolvents} resolvents", num > limits.max_resolvents
        has_atoms = has_goals(self._header.level) and self._knows("resolvents.num_atoms", "resolvents.kind")
        if has_atoms and limits.max_atoms is not None and "max_atoms" in self._dialect.filters:
            is_long = (resolvents.num_atoms > limits.max_atoms) & (resolvents.kind == GoalKind.GOAL)
            has_long = np.zeros(num_steps, bool)
            has_long[of_step[is_long]] = True
            yield f"steps have resolvents of more than max_atoms {limits.max_atoms} atoms", has_long
        if not self._knows("steps.choice"):
            return
        choice, has_choice = steps.choice, self._has_choice
        yield "steps have a choice that is not one of their resolvents", ~has_choice & (choice != -1)
        if not self._knows("resolvents.kind"):
            return
        row = np.where(has_choice, self._starts[:-1] + choice, 0)
        kind = resolvents.kind[row] if len(resolvents.kind) else np.zeros(num_steps, np.uint8)
        if self._knows("steps.outcome"):
            is_other = ~has_choice & (steps.outcome == Outcome.PROVED)
            for each, allowed in _OUTCOMES.items():
                is_other |= has_choice & (kind == each) & ~np.isin(steps.outcome, allowed)
            yield "steps have an outcome that the resolvent they chose does not give", is_other
        if self._knows("steps.num_atoms", "steps.goal_atoms", "resolvents.atoms") and has_atoms and not self._has_paths:
            yield "steps begin with a goal that the step before did not choose", self._begins_otherwise(row, kind)

    def _begins_otherwise(self, row: Rows, kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return the steps whose goal is not the chosen resolvent of the step before, up to renumbering variables."""
        steps, resolvents = self._steps, self._resolvents
        is_other = np.zeros(len(row), bool)
        before = np.flatnonzero(self._has_choice & ~self._is_last & (kind == GoalKind.GOAL))
        made, goal = row[before], before + 1
        is_like = resolvents.num_atoms[made] == steps.num_atoms[goal]
        is_other[goal[~is_like]] = True
        made, goal = made[is_like], goal[is_like]
        counts = steps.num_atoms[goal]
        ends = starts_of(counts)
        left = resolvents.atoms[expand_rows(starts_of(resolvents.num_atoms), made)]
        right = steps.goal_atoms[expand_rows(starts_of(steps.num_atoms), goal)]
        differs = (renumber(left, ends) != renumber(right, ends)).any(1) & (left[:, 0] >= 0) & (right[:, 0] >= 0)
        is_other[np.repeat(goal, counts)[differs]] = True
        return is_other


def compare_first_goals(columns: Columns) -> NDArray[np.int8]:
    """Return 1 for each candidate whose first goal is its atom, up to renaming, -1 for another atom, else 0."""
    num_steps, num_atoms = columns.candidates.num_steps.astype(np.int64), columns.steps.num_atoms
    first_step, first_atom = starts_of(num_steps)[:-1], starts_of(num_atoms)[:-1]
    found = np.zeros(len(num_steps), np.int8)
    rows = np.flatnonzero((num_steps > 0) & (np.append(num_atoms, 0)[first_step] == 1))
    begun, atoms = columns.steps.goal_atoms[first_atom[first_step[rows]]], columns.candidates.atom[rows]
    each = np.arange(len(rows) + 1)
    is_own = (renumber(begun, each) == renumber(atoms, each)).all(axis=1)
    found[rows] = np.where(is_own, 1, np.where((begun[:, 0] < 0) | (atoms[:, 0] < 0), 0, -1))
    return found


def weigh_choices(steps: Steps, resolvents: Resolvents) -> NDArray[np.float64]:
    """Return the log-softmax of each step's choice: float64 [S], in nats; NaN if it follows from no finite scores."""
    score, num = resolvents.score.astype(np.float64), steps.num_resolvents.astype(np.int64)
    gain = np.full(len(num), np.nan)
    has_choice = np.flatnonzero((steps.choice >= 0) & (steps.choice < num))
    if len(has_choice):
        starts = starts_of(num)
        filled = np.flatnonzero(num)
        highest, total = np.zeros(len(num)), np.ones(len(num))
        with np.errstate(invalid="ignore"):
            highest[filled] = np.maximum.reduceat(score, starts[:-1][filled])
            total[filled] = np.add.reduceat(np.exp(score - np.repeat(highest, num)), starts[:-1][filled])
            gain[has_choice] = score[starts[has_choice] + steps.choice[has_choice]]
            gain -= highest + np.log(total)
    gain[~np.isfinite(np.bincount(np.repeat(np.arange(len(num)), num), score, len(num)))] = np.nan
    return gain


def describe_rankings(rankings: Rankings, blocks: Iterable[CandidateSet]) -> list[str]:
    """Describe the rankings that rank more candidates than a trace has, given all its candidates."""
    if not len(rankings.query):
        return []
    wanted, place = np.unique(_group_keys(rankings), return_inverse=True)
    counts = np.zeros(len(wanted), np.int64)
    for block in blocks:
        keys = _group_keys(block)
        at = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
        counts += np.bincount(at[wanted[at] == keys], minlength=len(wanted))
    num = counts[place]
    is_more = rankings.num_ranked > num
    if not is_more.any():
        return []
    row = int(np.argmax(is_more))
    side = Side(int(rankings.side[row])).name.lower()
    return [
        f"{int(is_more.sum()):,} rankings are of more candidates than the trace has (first: query"
        f" {rankings.query[row]}, {side}: {rankings.num_ranked[row]} ranked, {num[row]} in the trace)"
    ]


def _group_keys(of: Rankings | CandidateSet) -> Rows:
    return of.query.astype(np.int64) * len(Side) + of.side


def count_repeated(candidates: Candidates | CandidateSet, first_step: Words | None = None) -> int:
    """Count the candidates that repeat the query, side and atom, and the digest of the first step, of an earlier candidate."""
    keys = candidate_keys(candidates)
    if first_step is not None:
        keys = fold(keys, first_step)
    return len(keys) - len(np.unique(keys))
