"""The levels of a recorded search, taken again from its own beams."""

import numpy as np

from kgverify.comparison.comparable import lockstep_columns
from kgverify.engines.beams import SearchingEngine, read_beams
from kgverify.engines.protocol import Engine
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Outcome
from kgverify.step.plain_step import find_outcome
from kgverify.step.search import Ended, aggregate
from kgverify.trace.model.columns import Candidates, Columns, concatenate, select_candidates, starts_of
from kgverify.trace.model.paths import count_depth, find_levels, find_made, find_parents


def retake_levels(recorded: Columns, engine: Engine, limits: Limits) -> tuple[Columns, int]:
    """Let an engine take each level from its recorded beam; the candidates end as the kept children demand.

    Return the columns, and the number of steps in levels from whose goals no engine can start; they stay as recorded.
    UserError if the engine takes no levels.
    """
    if not isinstance(engine, SearchingEngine):
        raise UserError(
            f"engine {engine.info.name} takes no level of a search from a given beam",
            where="engine",
            fix="judge the recording with the reference, or give the engine a method take_beams",
        )
    every = lockstep_columns(recorded)
    candidates, beams = read_beams(recorded)
    whole = [
        all(path.visited[-1] and min(atom[0] for atom in path.visited[-1]) >= 0 for path in beam) for beam in beams
    ]
    rows, left = np.flatnonzero(whole), np.flatnonzero(~np.array(whole, np.bool_))
    taken = engine.take_beams(candidates.take(rows), [beams[i] for i in rows.tolist()])
    if len(left):
        joined = concatenate([taken, select_candidates(every, left)])
        taken = select_candidates(joined, np.argsort(np.concatenate([rows, left])))
    steps = taken.steps._replace(
        depth=recorded.steps.depth, num_atoms=recorded.steps.num_atoms, goal_atoms=recorded.steps.goal_atoms
    )
    # The children that were kept hand their log-probabilities on, and tell where a path comes from.
    made = find_made(recorded)
    owner = np.repeat(recorded.paths.place, recorded.steps.num_resolvents)
    parent = np.where(made >= 0, np.append(owner, 0)[made], recorded.paths.parent).astype(np.int32)
    handed = np.where(
        made >= 0, np.append(recorded.paths.child_log_probability, 0.0)[made], recorded.paths.log_probability
    )
    paths = taken.paths._replace(
        level=recorded.paths.level, place=recorded.paths.place, parent=parent, log_probability=handed
    )
    given = taken._replace(candidates=recorded.candidates, steps=steps, paths=paths)
    num_left = int(every.candidates.num_steps[left].sum())
    return given._replace(candidates=_end(given, recorded, limits)), num_left


def _end(columns: Columns, recorded: Columns, limits: Limits) -> Candidates:
    """Return the candidates as the paths that the recorded search kept end."""
    steps, ended = columns.steps, list_ended(recorded, limits)
    owner = np.repeat(np.arange(len(ended)), recorded.candidates.num_steps)
    found = [aggregate(limits.dialect, [path for path, _ in each]) for each in ended]
    is_limited = np.bincount(owner, (steps.dropped_atoms > 0) | (steps.dropped_resolvents > 0), len(ended)) > 0
    kind, size, _ = limits.dialect.searching
    if kind == "all":
        owners, begins = find_levels(recorded)
        num = np.add.reduceat(steps.num_resolvents.astype(np.int64), begins) if len(begins) else begins
        is_limited[owners[num > size]] = True
    return recorded.candidates._replace(
        outcome=np.array([outcome for outcome, _ in found], np.int8),
        is_limited=is_limited.astype(np.uint8),
        log_probability=np.array([number for _, number in found], np.float64),
    )


def list_ended(columns: Columns, limits: Limits) -> list[list[tuple[Ended, tuple[tuple[int, int], ...]]]]:
    """Return the ended paths of each candidate of a search, in order of level and place.

    Each comes with the row of each of its steps, and the index of the resolvent that it chose there.
    """
    resolvents, child = columns.resolvents, columns.paths.child
    owner = np.repeat(np.arange(len(columns.candidates.query)), columns.candidates.num_steps)
    parents, levels, made = find_parents(columns), columns.paths.level, find_made(columns)
    depth = columns.steps.depth + count_depth(columns, skips_unary=limits.dialect.skips_unary)
    starts = starts_of(columns.steps.num_resolvents)
    before: list[tuple[tuple[int, int], ...]] = []
    for row, parent in enumerate(parents.tolist()):
        before.append((*before[parent], (parent, int(made[row] - starts[parent]))) if parent >= 0 else ())
    ended: list[list[tuple[Ended, tuple[tuple[int, int], ...]]]] = [[] for _ in columns.candidates.query]
    of_step = np.repeat(np.arange(len(owner)), columns.steps.num_resolvents)
    kept = np.flatnonzero(child >= 0)
    for i in kept[np.lexsort((child[kept], levels[of_step[kept]], owner[of_step[kept]]))].tolist():
        row = int(of_step[i])
        outcome = find_outcome(limits, GoalKind(int(resolvents.kind[i])), int(depth[row]))
        if outcome is not Outcome.OPEN:
            path = (*before[row], (row, int(i - starts[row])))
            choices = tuple([choice for _, choice in path])
            gained = float(columns.paths.child_log_probability[i])
            ended[owner[row]].append((Ended(outcome, gained, int(levels[row]), int(child[i]), choices), path))
    return ended
