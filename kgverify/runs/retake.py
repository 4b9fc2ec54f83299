"""Recorded traces taken again by an engine: a step from every recorded goal, or whole derivations of their candidates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from kgverify.codes import Code, Coded
from kgverify.comparison.comparable import lockstep_columns
from kgverify.engines.policy import SHORTEST, Policy
from kgverify.engines.protocol import Engine, Positions, positions_of, take_positions
from kgverify.errors import UserError, count_of
from kgverify.program.limits import MAX_DEPTH, DeclaredLimits, Limits
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.program.program import Program
from kgverify.runs.retake_levels import retake_levels
from kgverify.trace.model.columns import (
    CandidateSet,
    Columns,
    concatenate,
    expand_rows,
    no_stage_items,
    select_candidates,
    starts_of,
)
from kgverify.trace.model.consistency import compare_first_goals
from kgverify.trace.model.digests import compute_digests, renumber
from kgverify.trace.model.header import EngineInfo, known_columns
from kgverify.trace.model.paths import count_depth, find_made, has_paths
from kgverify.trace.model.schema import has_goals
from kgverify.trace.model.trace import Trace

_CANDIDATES: Final = 1 << 10
"""The number of candidates whose goals the engine gets together. It gets each step with all goals visited before."""

OF_POLICY: Final = frozenset(
    {"resolvents.score", "steps.choice", "steps.outcome", "candidates.outcome", "candidates.log_probability"}
)
"""The columns that depend on the policy; they are not judged if the policy is unknown."""

MakeEngine = Callable[[Program, Limits, Policy], Engine]


def retake_steps(
    recorded: Trace,
    make: MakeEngine,
    limits: DeclaredLimits,
    policy: Policy = SHORTEST,
    positions: Positions | None = None,
) -> tuple[Trace, int]:
    """Let an engine take a step from each goal of a trace, with the goals that the trace visited before.

    Return the candidates and goals of the trace with the engine's resolvents, and the number of recorded steps from whose
    goals no engine can start. These steps stay as recorded.

    limits:    a limit that is unknown here is taken from the trace; else it is the default
    policy:    the engine's policy; if the trace has another one, choices, scores and outcomes stay as recorded
    positions: the goals visited before each step; by default those of the trace

    UserError if the trace does not contain its goals, facts and rules.
    """
    if not has_goals(recorded.header.level) or "steps.goal_atoms" not in recorded.fields:
        raise _lacking(recorded, "goals")
    has_policy = recorded.header.policy.name == policy.name
    engine, complete, facts = _make(recorded, make, limits, policy)
    canonical = complete.dialect.forgets_names
    knows_depth, skips_unary = "steps.depth" in recorded.fields, complete.dialect.skips_unary
    given = recorded.columns._replace(stages=no_stage_items())
    if not (knows_depth and skips_unary) and not has_paths(given):
        given = _count_steps(given, skips_unary=skips_unary)
    if has_paths(given):
        columns, num_left = retake_levels(given, engine, complete)
    elif positions is None:
        columns, num_left = _retake(given, engine, complete.max_depth, canonical=canonical)
    else:
        columns, num_left = _retake_part(given, positions, engine, complete.max_depth, canonical=canonical)
    if not knows_depth:
        columns = _leave_depth_open(columns, recorded.columns)
    followed = "paths.child" if has_paths(given) else "steps.choice"
    if {followed, "resolvents.kind", "resolvents.atoms"} <= recorded.fields:
        columns = _follow_choices(columns, recorded.columns)
    if not has_policy:
        before = recorded.columns.candidates
        candidates = columns.candidates._replace(outcome=before.outcome, log_probability=before.log_probability)
        columns = columns._replace(candidates=candidates)
    info = engine.info
    info = msgspec.structs.replace(info, unknown=tuple({*info.unknown, *(() if has_policy else OF_POLICY)}))
    trace = _as_trace(recorded, columns, info, complete, facts, "from the goals of")
    return replace(trace, fields=trace.fields - ({"steps.depth"} - recorded.fields)), num_left


def prove_again(recorded: Trace, make: MakeEngine, limits: DeclaredLimits) -> Trace:
    """Let an engine prove the candidates of a trace from their beginning, with the facts, rules and limits of the trace.

    limits: a limit that is unknown here is taken from the trace; else it is the default

    UserError if the trace does not contain its facts and rules, or was not made by the policy `shortest`.
    """
    policy = recorded.header.policy.name
    if policy not in ("", SHORTEST.name):
        raise UserError(
            f"was recorded with the policy {policy!r}, whose weights it does not hold",
            where=recorded.source or "trace",
            fix="record the engine with kgverify record --policy, and compare both traces",
        )
    engine, complete, facts = _make(recorded, make, limits, SHORTEST)
    columns = engine.prove(CandidateSet(*recorded.columns.candidates[:3]))
    return _as_trace(recorded, columns, engine.info, complete, facts, "on the candidates of")


def _make(
    recorded: Trace, make: MakeEngine, limits: DeclaredLimits, policy: Policy
) -> tuple[Engine, Limits, NDArray[np.int32]]:
    """Return an engine for the program of a trace, its limits, and the facts."""
    if recorded.facts is None:
        raise _lacking(recorded, "facts")
    first = np.sort(np.unique(recorded.facts, axis=0, return_index=True)[1])
    program = Program(recorded.symbols, recorded.facts[first], recorded.rules or (), (), (), ())
    complete = limits.completed(recorded.header.limits).with_defaults()
    return make(program, complete, policy), complete, program.facts


def _lacking(recorded: Trace, what: str) -> UserError:
    return UserError(
        f"does not hold {what}, which an engine needs to take its steps",
        where=recorded.source or "trace",
        fix="record it at level steps with its facts and rules, or name its graph with --graph, in Python job=",
    )


def _as_trace(
    recorded: Trace, columns: Columns, info: EngineInfo, limits: Limits, facts: NDArray[np.int32], what: str
) -> Trace:
    """Return the columns of an engine as a trace of the same candidates."""
    return replace(
        recorded,
        header=msgspec.structs.replace(recorded.header, limits=limits, engine=info, recording="", absent=()),
        columns=columns,
        digests=compute_digests(columns),
        rankings=None,
        facts=facts,
        fact_lines=None,
        fields=known_columns(info, limits),
        source=f"{info.name}, {what} {recorded.source or 'the trace'}",
    )


def describe_left(num: int) -> Coded:
    """Explain why steps from which no engine can start leave a comparison undecided."""
    verbs = ("starts", "was") if num == 1 else ("start", "were")
    where = "from a goal with a hole or without atoms"
    return Code.STEPS_LEFT.mark(f"{count_of(num, 'recorded step')} {verbs[0]} {where}, and {verbs[1]} not judged")


def _retake(columns: Columns, engine: Engine, max_depth: int, *, canonical: bool) -> tuple[Columns, int]:
    parts, num_left = [], 0
    num = len(columns.candidates.query)
    for begin in range(0, num or 1, _CANDIDATES):
        part = select_candidates(columns, np.arange(begin, min(begin + _CANDIDATES, num)))
        taken, left = _retake_part(part, positions_of(part), engine, max_depth, canonical=canonical)
        parts.append(taken)
        num_left += left
    return concatenate(parts), num_left


def _count_steps(columns: Columns, *, skips_unary: bool) -> Columns:
    """Return the steps with their depths, counted from the beginning of each candidate; some steps may not add depth.

    A candidate that begins with its query begins at depth 0. Any other begins at its recorded depth, or at 0 if it is unknown.
    """
    num_steps = columns.candidates.num_steps.astype(np.int64)
    counts = count_depth(columns, skips_unary=skips_unary)
    before = np.cumsum(counts) - counts
    has_steps = num_steps > 0
    begins = starts_of(num_steps)[:-1][has_steps]
    # Unknown depths are zeros.
    at = np.where(compare_first_goals(columns)[has_steps] == 1, 0, columns.steps.depth[begins])
    depth = np.minimum(before + np.repeat(at - before[begins], num_steps[has_steps]), MAX_DEPTH)
    return columns._replace(steps=columns.steps._replace(depth=depth.astype(np.uint16)))


def _leave_depth_open(columns: Columns, recorded: Columns) -> Columns:
    """Keep the recorded outcome of steps at an unknown depth if the outcome depends only on the depth."""
    given, num_steps = recorded.steps, recorded.candidates.num_steps.astype(np.int64)
    by_depth = (int(Outcome.OPEN), int(Outcome.DEPTH_LIMIT))
    is_open = np.isin(columns.steps.outcome, by_depth) & np.isin(given.outcome, by_depth)
    is_open &= np.repeat(compare_first_goals(recorded) != 1, num_steps)
    outcome = np.where(is_open, given.outcome, columns.steps.outcome).astype(np.int8)
    last = np.cumsum(num_steps) - 1
    ended = columns.candidates.outcome.copy()
    ended[num_steps > 0] = outcome[last[num_steps > 0]]
    return columns._replace(
        candidates=columns.candidates._replace(outcome=ended), steps=columns.steps._replace(outcome=outcome)
    )


def _follow_choices(columns: Columns, recorded: Columns) -> Columns:
    """Replace the goal of each step by the resolvent chosen before, if the recorded goal differs from it."""
    steps, made = recorded.steps, recorded.resolvents
    chosen = find_made(recorded)
    rows = np.flatnonzero(chosen >= 0)
    chosen = chosen[rows]
    is_goal = made.kind[chosen] == GoalKind.GOAL
    rows, chosen = rows[is_goal], chosen[is_goal]
    starts, made_starts = starts_of(steps.num_atoms), starts_of(made.num_atoms)
    is_other = steps.num_atoms[rows] != made.num_atoms[chosen]
    alike, others = rows[~is_other], chosen[~is_other]
    atoms = renumber(steps.goal_atoms, starts)[expand_rows(starts, alike)]
    differs = (atoms != renumber(made.atoms, made_starts)[expand_rows(made_starts, others)]).any(axis=1)
    owner = np.repeat(np.arange(len(alike)), steps.num_atoms[alike])
    is_other[~is_other] = np.bincount(owner, differs, len(alike)) > 0
    if not is_other.any():
        return columns
    rows, chosen = rows[is_other], chosen[is_other]
    num_atoms = steps.num_atoms.copy()
    num_atoms[rows] = made.num_atoms[chosen]
    goal_atoms = np.empty((int(num_atoms.sum(dtype=np.int64)), 3), np.int32)
    kept = np.setdiff1d(np.arange(len(num_atoms)), rows)
    goal_atoms[expand_rows(starts_of(num_atoms), kept)] = steps.goal_atoms[expand_rows(starts, kept)]
    goal_atoms[expand_rows(starts_of(num_atoms), rows)] = made.atoms[expand_rows(made_starts, chosen)]
    return columns._replace(steps=columns.steps._replace(num_atoms=num_atoms, goal_atoms=goal_atoms))


def _retake_part(
    recorded: Columns, positions: Positions, engine: Engine, max_depth: int, *, canonical: bool
) -> tuple[Columns, int]:
    steps = recorded.steps
    if canonical:
        positions = positions._replace(atoms=renumber(positions.atoms, starts_of(positions.num_atoms)))
    # A recorded depth beyond the limit contradicts the trace itself.
    positions = positions._replace(depth=np.minimum(positions.depth, max_depth - 1).astype(np.uint16))
    has_hole = np.zeros(len(steps.num_atoms), bool)
    has_hole[np.repeat(np.arange(len(has_hole)), steps.num_atoms)[steps.goal_atoms[:, 0] < 0]] = True
    rows = np.flatnonzero((steps.num_atoms > 0) & ~has_hole)
    taken = engine.step(take_positions(positions, rows))
    if len(rows) < len(has_hole):
        taken = _fill(recorded, taken, rows)
    owner = np.repeat(np.arange(len(recorded.candidates.query)), recorded.candidates.num_steps)
    dropped = (taken.steps.dropped_atoms > 0) | (taken.steps.dropped_resolvents > 0)
    last = np.cumsum(recorded.candidates.num_steps.astype(np.int64)) - 1
    has_steps = recorded.candidates.num_steps > 0
    outcome = recorded.candidates.outcome.copy()
    outcome[has_steps] = taken.steps.outcome[last[has_steps]]
    candidates = recorded.candidates._replace(
        outcome=outcome,
        is_limited=(np.bincount(owner, dropped, len(has_steps)) > 0).astype(np.uint8),
        log_probability=np.bincount(owner, taken.candidates.log_probability, len(has_steps)).astype(np.float64),
    )
    given = taken.steps._replace(depth=steps.depth, num_atoms=steps.num_atoms, goal_atoms=steps.goal_atoms)
    return taken._replace(candidates=candidates, steps=given), len(has_hole) - len(rows)


def _fill(recorded: Columns, taken: Columns, rows: NDArray[np.int64]) -> Columns:
    """Return each step as a candidate: the new step if the engine took one, else the recorded step."""
    every = lockstep_columns(recorded)
    left = np.setdiff1d(np.arange(len(recorded.steps.num_atoms)), rows)
    joined = concatenate([taken, select_candidates(every, left)])
    return select_candidates(joined, np.argsort(np.concatenate([rows, left])))
