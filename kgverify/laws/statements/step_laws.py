"""Laws of single steps: a step depends only on its goal, the visited goals and the query, and in the stated ways."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from kgverify.comparison.comparable import lockstep_columns
from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import make_positions
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.laws.law import (
    DROPS_VISITED,
    FORGETS_NAMES,
    KNOWS_EXCLUDED,
    LIMITS_LAST,
    NEVER_STOPS,
    OUR_MEMORY,
    PRUNES_FIRST,
    REJECTS,
    law,
)
from kgverify.laws.statements.compare_runs import differing, differing_step
from kgverify.program.limits import MAX_ATOMS
from kgverify.program.outcomes import GoalKind, Stage
from kgverify.step.clauses import Atoms
from kgverify.testing.problems.merge import merge

WIDE_RESOLVENTS = 128
"""The `max_resolvents` of steps that should drop nothing; a step that still drops something is not judged."""


@law("A step taken by itself from its position (query, depth, goals visited) is the step of the run.")
def _step_alone(case: Case) -> Iterator[Finding]:
    stepped, taken = case.engine.step(case.positions), lockstep_columns(case.columns)
    sums = stepped.candidates.log_probability
    taken = taken._replace(candidates=taken.candidates._replace(log_probability=sums))
    for finding in differing(case, stepped, Stage.RECYCLE, taken, lockstep=True):
        row, number = case.places[finding.candidate]
        yield finding._replace(candidate=row, step=number)


@law(
    "A step that has not visited the earlier goals has the same resolvents in the same order, these goals among them, where"
    " no limit drops anything.",
    presumes=(DROPS_VISITED, OUR_MEMORY, FORGETS_NAMES, NEVER_STOPS),
)
def _visited_goals(case: Case) -> Iterator[Finding]:
    rows = np.flatnonzero(case.positions.num_goals > 1).tolist()
    stepped = _step_from(case, rows, [[case.steps[row].goal] for row in rows])
    for row, other in zip(rows, stepped, strict=True):
        one, (candidate, number) = case.steps[row], case.places[row]
        if any(each.dropped_atoms or each.dropped_resolvents for each in (one, other)):
            continue
        visited = {step.goal for step in case.derivations[candidate][: number + 1]}
        kept = [each for each in _offered(other) if each.kind == GoalKind.TRUE or each.atoms not in visited]
        expected, actual = (one._replace(resolvents=tuple(listed)) for listed in (kept, _offered(one)))
        yield from differing_step(case, case.places[row], Stage.REVISIT, expected, actual)


@law(
    "A step's resolvents are those of the step under limits that drop nothing, less those of more than max_atoms atoms, and"
    " of the rest the first max_resolvents; what was dropped is counted so.",
    presumes=(LIMITS_LAST, REJECTS, NEVER_STOPS),
)
def _limits(case: Case) -> Iterator[Finding]:
    narrow = case.limits
    longest = max((len(rule.body) for rule in case.program.rules), default=1)
    limits = msgspec.structs.replace(
        narrow,
        max_atoms=min(MAX_ATOMS, narrow.max_atoms + longest - 1),
        max_resolvents=max(WIDE_RESOLVENTS, narrow.max_resolvents),
    )
    problems = [replace(problem, limits=limits) for problem in case.merged.problems]
    policy = SHORTEST if case.run.policy.name == "shortest" else merge(problems).run.policy
    stepped = read_steps(case.vary(limits=limits, policy=policy).step(case.positions))
    for (at, one), wide in zip(case.walk(), stepped, strict=True):
        if wide.dropped_atoms or wide.dropped_resolvents:
            continue
        every = _offered(wide)
        short = [each for each in every if len(each.atoms) <= narrow.max_atoms]
        kept = short[: narrow.max_resolvents]
        expected = one._replace(
            resolvents=tuple(kept),
            dropped_atoms=len(every) - len(short),
            dropped_resolvents=len(short) - len(kept),
        )
        yield from differing_step(case, at, Stage.LIMIT, expected, one._replace(resolvents=tuple(_offered(one))))


@law(
    "A fact other than the excluded atom, put behind a goal of less than max_atoms atoms, changes neither the resolvents nor"
    " what is dropped, if the goal itself counts as visited. (Said of steps before the last that max_depth allows.)",
    presumes=(PRUNES_FIRST, KNOWS_EXCLUDED, FORGETS_NAMES),
)
def _redundant_subgoal(case: Case) -> Iterator[Finding]:
    facts_of = case.by_problem(case.clauses.facts, lambda fact: case.program.symbols.predicates[fact[0]])
    candidates = case.columns.candidates
    rows: list[int] = []
    goals: list[list[Atoms]] = []
    for i, ((row, number), step) in enumerate(case.walk()):
        excluded = case.clauses.excluded(candidates.atom[row].tolist())
        of_problem = facts_of.get(int(case.merged.owner[candidates.query[row]]), ())
        facts = [fact for fact in of_problem if fact != excluded]
        visited = [each.goal for each in case.derivations[row][: number + 1]]
        has_room = len(step.goal) < case.limits.max_atoms and len(visited) < case.limits.max_depth
        if step.goal and has_room and facts:
            goals.append([*visited, (*step.goal, facts[i % len(facts)])])
            rows.append(i)
    for i, other in zip(rows, _step_from(case, rows, goals), strict=True):
        yield from differing_step(case, case.places[i], Stage.PRUNE, case.steps[i], other)


def _step_from(case: Case, rows: list[int], goals: Sequence[Sequence[Atoms]]) -> list[StepView]:
    """Take the steps of some rows of the case again, each with other visited goals, the current one last."""
    if not rows:
        return []
    positions = make_positions(case.positions.candidates.take(np.array(rows)), case.positions.depth[rows], goals)
    return read_steps(case.engine.step(positions))


def _offered(step: StepView) -> list[ResolventView]:
    return [each for each in step.resolvents if each.kind != GoalKind.FALSE]
