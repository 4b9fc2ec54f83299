"""Interventions: the expected step takes the place of a wrong one, and the engine under test goes on by itself.

First this is done once in each derivation, then wherever it goes wrong again in the same way. If all derivations then end as
expected, nothing else was wrong with them. The metric with their endings is the one that a repair of the cause would give,
measured instead of taken from the expected run.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.align import align_candidates
from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.rankings import mean_reciprocal_rank
from kgverify.comparison.result import NO_CANDIDATE, Cause, Divergence, Repair
from kgverify.comparison.step_view import StepReader
from kgverify.engines.adapters.stepwise import read_positions
from kgverify.engines.protocol import Engine, Positions, candidate_set, make_positions, positions_of, take_positions
from kgverify.program.limits import Limits
from kgverify.program.outcomes import Outcome, Stage
from kgverify.runs.run import SCORE_SUMS
from kgverify.step.clauses import number_variables
from kgverify.trace.model.columns import (
    Candidates,
    Columns,
    concatenate,
    join_candidates,
    select_candidates,
    starts_of,
)
from kgverify.trace.model.consistency import weigh_choices
from kgverify.trace.model.paths import count_depth
from kgverify.verification.lockstep import Compared, Task, compare_steps

_NOT_OF_A_STEP: Final = (Stage.CORRUPT, Stage.RECYCLE, Stage.RANK)
"""The stages whose faults lie outside of any step, so that no step repairs them."""


class _Chosen(NamedTuple):
    """The candidates of a cause, by row of the expected and of the actual trace, and the number of their first wrong step."""

    expected: NDArray[np.int64]
    actual: NDArray[np.int64]
    step: NDArray[np.int64]


def measure_repairs(
    task: Task, compared: Compared, divergences: Sequence[Divergence], causes: Sequence[Cause]
) -> tuple[Cause, ...]:
    """Return the causes with their interventions, if the cause lies in steps that the engine repeats from the expected goals.

    At most `Effort.repaired` candidates of a cause are tried; the metric is measured only if these are all.
    """
    pairs = align_candidates(*(candidate_set(each.columns) for each in compared.traces))
    actual_of = dict(zip(pairs.expected.tolist(), pairs.actual.tolist(), strict=True))
    steps = defaultdict[int, dict[int, int]](dict)
    for each in divergences:
        if each.step >= 0 and each.expected != NO_CANDIDATE and each.candidate in actual_of:
            for number in {each.cause, each.other_cause}:
                steps[number][each.candidate] = each.step
    repaired = []
    for number, cause in enumerate(causes):
        rows = np.array(sorted(steps[number])[: task.effort.repaired], np.int64)
        if cause.stage in _NOT_OF_A_STEP or not len(rows):
            repaired.append(cause)
            continue
        chosen = _Chosen(
            rows,
            np.array([actual_of[row] for row in rows.tolist()], np.int64),
            np.array([steps[number][row] for row in rows.tolist()], np.int64),
        )
        repair = _intervene(task, compared, chosen, is_whole=len(rows) == cause.num_candidates)
        repaired.append(msgspec.structs.replace(cause, repair=repair))
    return tuple(repaired)


def _intervene(task: Task, compared: Compared, chosen: _Chosen, *, is_whole: bool) -> Repair | None:
    """Return what the engine does after the expected steps; None if it repeats no wrong step from the expected goals.

    A step depends on the goals visited alone. So the engine takes a step from every expected goal, all at once, and where it
    takes the expected ones, it would reach the next of these goals by itself.
    """
    pipeline = task.pipelines[1]
    expected = compared.traces[0].reader.gather_candidates(chosen.expected)
    owner, place = _locate_steps(expected)
    asked = np.flatnonzero(place >= chosen.step[owner])
    owner, place = owner[asked], place[asked]
    # Candidates share positions, since one triple may be a corruption of several queries.
    _, firsts, of = np.unique(
        _number_positions(expected, task.run.limits)[asked], return_index=True, return_inverse=True
    )
    taken = pipeline.engine.step(take_positions(positions_of(expected), asked[firsts]))
    if len(taken.candidates.query) != len(firsts):
        return None
    wanted = select_candidates(lockstep_columns(expected), asked[firsts])
    found = compare_steps(task.run, pipeline, compared.traces[0], wanted, taken, compared.comparer.alike).compare()
    kinds = {each.candidate: (each.stage, each.field) for each in found.divergences}
    wrong = defaultdict[int, list[tuple[int, tuple[str, str]]]](list)
    for row, step, position in zip(owner.tolist(), place.tolist(), of.tolist(), strict=True):
        if position in kinds:
            wrong[row].append((step, kinds[position]))
    is_first = place == chosen.step[owner]
    first = select_candidates(taken, of[is_first])
    own = first.candidates._replace(query=expected.candidates.query[owner[is_first]])
    first = first._replace(candidates=own)
    repeated = _find_repeated(task, compared, chosen, first)
    tried = [row for row in wrong if repeated[row] and wrong[row][0][0] == chosen.step[row]]
    if not tried:
        return None
    last = [next((step for step, kind in wrong[row] if kind != wrong[row][0][1]), len(place)) for row in tried]
    is_left = np.array(last) < len(place)
    left, at = np.array(tried)[is_left], np.array(last)[is_left]
    metric = None
    if is_whole and len(tried) == len(chosen.step) and all(each.rankings is not None for each in compared.traces):
        later = _go_on(pipeline.engine, select_candidates(expected, left), at, task.run.limits)
        metric = _measure(task, compared, chosen.actual, _put(expected.candidates, left, later))
    return Repair(
        num_tried=len(tried),
        num_once=sum(len(wrong[row]) == 1 for row in tried),
        num_healed=len(tried) - len(left),
        num_steps=sum(step < end for row, end in zip(tried, last, strict=True) for step, _ in wrong[row]),
        elsewhere=f"candidate {chosen.expected[left[0]]}, step {at[0]}" if len(left) else "",
        metric=metric,
    )


def _locate_steps(columns: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the candidate of each step, and the number of the step in it: int64 [S] both."""
    num_steps = columns.candidates.num_steps.astype(np.int64)
    owner = np.repeat(np.arange(len(num_steps)), num_steps)
    return owner, np.arange(len(owner)) - starts_of(num_steps)[owner]


def _number_positions(columns: Columns, limits: Limits) -> NDArray[np.int64]:
    """Return a number for each step, the same for steps of one triple at one depth after the same goals: int64 [S]."""
    numbers: dict[Hashable, int] = {}
    found = []
    candidates, steps, reader = columns.candidates, columns.steps, StepReader(columns)
    for row, atom in enumerate(candidates.atom.tolist()):
        # A query may use other facts than its corruptions do.
        query = int(candidates.query[row]) if limits.dialect.exclusion == "positives_only" else 0
        before: Hashable = (query, int(candidates.side[row]), *atom)
        for step in range(reader.first_step[row], reader.first_step[row + 1]):
            before = numbers.setdefault((before, int(steps.depth[step]), reader.goal_of(step)), len(numbers))
            found.append(before)
    return np.array(found, np.int64)


def _find_repeated(task: Task, compared: Compared, chosen: _Chosen, again: Columns) -> NDArray[np.bool_]:
    """Return the candidates whose wrong step the engine takes again from the expected goal: the control."""
    actual = compared.traces[1].reader.gather_candidates(chosen.actual)
    repeated = chosen.step < actual.candidates.num_steps
    rows = starts_of(actual.candidates.num_steps)[:-1][repeated] + chosen.step[repeated]
    recorded = select_candidates(lockstep_columns(actual), rows)
    again = select_candidates(again, np.flatnonzero(repeated))
    found = compare_steps(
        task.run, task.pipelines[1], compared.traces[1], recorded, again, compared.comparer.alike
    ).compare()
    differing = {each.candidate for each in found.divergences}
    repeated[repeated] = [i not in differing for i in range(len(rows))]
    return repeated


def _go_on(engine: Engine, expected: Columns, at: NDArray[np.int64], limits: Limits) -> Candidates:
    """Return the endings of derivations that follow the expected ones up to a step, from which the engine goes on by itself."""
    owner, place = _locate_steps(expected)
    before, begins = np.flatnonzero(place < at[owner]), np.flatnonzero(place == at[owner])
    later, of = _run_on(engine, take_positions(positions_of(expected), begins), limits)
    columns = concatenate([select_candidates(lockstep_columns(expected), before), later])
    of = np.concatenate([owner[before], of])
    order = np.argsort(of, kind="stable")
    steps, counts = columns.steps, np.bincount(of, minlength=len(at))
    is_cut = (steps.dropped_atoms > 0) | (steps.dropped_resolvents > 0)
    return expected.candidates._replace(
        num_steps=counts.astype(np.uint32),
        outcome=steps.outcome[order][np.cumsum(counts) - 1],
        is_limited=(np.bincount(of, is_cut, len(at)) > 0).astype(np.uint8),
        log_probability=np.bincount(of, weigh_choices(steps, columns.resolvents), len(at)).astype(np.float64) + 0.0,
    )


def _put(candidates: Candidates, rows: NDArray[np.int64], others: Candidates) -> Candidates:
    """Return candidates with others in some rows."""
    joined: Any = join_candidates([candidates, others])
    source = np.arange(len(candidates.query))
    source[rows] = len(source) + np.arange(len(rows))
    return Candidates(*(values[source] for values in joined))


def _run_on(engine: Engine, positions: Positions, limits: Limits) -> tuple[Columns, NDArray[np.int64]]:
    """Let an engine go on from positions by its own choices; return its steps, and the position from which each came."""
    _, goals = read_positions(positions)
    visited, depth = [list(each) for each in goals], positions.depth.astype(np.int64)
    rows = np.arange(len(depth))
    parts, owners = list[Columns](), [rows[:0]]
    # A derivation takes at most as many uncounted steps as counted ones; an engine that goes on beyond that stays open.
    for _ in range(2 * limits.max_depth + 1):
        if not len(rows):
            break
        asked = make_positions(positions.candidates.take(rows), depth[rows], [visited[i] for i in rows.tolist()])
        columns = engine.step(asked)
        parts.append(columns)
        owners.append(rows)
        depth[rows] += count_depth(columns, skips_unary=limits.dialect.skips_unary)
        reader = StepReader(columns)
        is_open = columns.steps.outcome == Outcome.OPEN
        for place in np.flatnonzero(is_open).tolist():
            view = reader.read(place)
            atoms = view.resolvents[view.choice].atoms
            visited[rows[place]].append(number_variables(iter(atoms)) if limits.dialect.forgets_names else tuple(atoms))
        rows = rows[is_open]
    return concatenate(parts), np.concatenate(owners)


def _measure(task: Task, compared: Compared, rows: NDArray[np.int64], repaired: Candidates) -> float:
    """Return the actual metric with the repaired endings of some candidates."""
    actual = compared.traces[1]
    if SCORE_SUMS not in actual.fields:
        repaired = repaired._replace(log_probability=np.zeros_like(repaired.log_probability))
    return mean_reciprocal_rank(task.ranks[1](_put(actual.columns.candidates, rows, repaired)))
