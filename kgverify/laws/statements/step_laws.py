"""Laws of single steps: a step depends on its goal, the visited goals and the query alone, and on these as stated."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from kgverify.comparison.step_view import ResolventView, StepView
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import make_positions
from kgverify.laws.case import Case, Finding, read_steps
from kgverify.laws.law import law
from kgverify.laws.presumptions import (
    DROPS_VISITED,
    FORGETS_NAMES,
    KNOWS_EXCLUDED,
    LIMITS_LAST,
    NEVER_STOPS,
    OUR_MEMORY,
    PRUNES_FIRST,
    REJECTS,
)
from kgverify.laws.statements.compare_runs import difference_of_counts, difference_of_resolvents, difference_of_steps
from kgverify.program.limits import MAX_ATOMS
from kgverify.program.outcomes import GoalKind
from kgverify.program.stages import Stage
from kgverify.step.clauses import Atoms
from kgverify.testing.problems.merge import merge

WIDE_RESOLVENTS = 128
"""`max_resolvents` of steps in which nothing should be dropped; where something is, nothing is said."""


@law("A step taken by itself from its position (query, depth, goals visited) is the step of the run.")
def _step_alone(case: Case) -> Iterator[Finding]:
    stepped = read_steps(case.engine.step(case.positions))
    error = 2 * case.score_error
    for row in range(len(case.owner)):
        found = difference_of_steps(case.steps[row], stepped[row], error, case.names)
        if found is not None and found[0] != "near-tie":
            yield case.of_step(row, Stage.RECYCLE, found[0], found[2], found[1])


@law(
    "A step that has not visited the earlier goals has the same resolvents in the same order, these goals among them, where"
    " no limit drops anything.",
    presumes=(DROPS_VISITED, OUR_MEMORY, FORGETS_NAMES, NEVER_STOPS),
)
def _visited_goals(case: Case) -> Iterator[Finding]:
    rows = np.flatnonzero(case.positions.num_goals > 1).tolist()
    stepped = _step_from(case, rows, [[case.steps[row].goal] for row in rows])
    for row, other in zip(rows, stepped, strict=True):
        one = case.steps[row]
        if any(each.dropped_atoms or each.dropped_resolvents for each in (one, other)):
            continue
        visited = {step.goal for step in case.steps_until(row)}
        kept = [each for each in _offered(other) if each.kind == GoalKind.TRUE or each.atoms not in visited]
        wanted, found = ([each.content for each in listed] for listed in (kept, _offered(one)))
        if wanted != found:
            texts = ["; ".join(case.names.goal(a, k) for k, a in each) or "none" for each in (wanted, found)]
            yield case.of_step(row, Stage.REVISIT, "resolvents", *texts)


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
    for row in range(len(case.owner)):
        one, wide = case.steps[row], stepped[row]
        if wide.dropped_atoms or wide.dropped_resolvents:
            continue
        every, found = _offered(wide), _offered(one)
        short = [each for each in every if len(each.atoms) <= narrow.max_atoms]
        kept = short[: narrow.max_resolvents]
        counts = len(every) - len(short), len(short) - len(kept)
        difference = difference_of_resolvents(kept, found, case.names)
        if difference is not None:
            yield case.of_step(row, Stage.LIMIT, *difference)
        elif counts != (one.dropped_atoms, one.dropped_resolvents):
            texts = [
                f"{a} dropped for their atoms, {b} beyond max_resolvents"
                for a, b in (counts, (one.dropped_atoms, one.dropped_resolvents))
            ]
            yield case.of_step(row, Stage.LIMIT, "dropped", *texts)


@law(
    "A fact other than the excluded atom, put behind a goal of less than max_atoms atoms, changes neither the resolvents nor"
    " what is dropped, if the goal itself counts as visited. (Said of steps before the last that max_depth allows.)",
    presumes=(PRUNES_FIRST, KNOWS_EXCLUDED, FORGETS_NAMES),
)
def _redundant_subgoal(case: Case) -> Iterator[Finding]:
    facts_of = case.by_problem(case.clauses.facts, lambda fact: case.program.symbols.predicates[fact[0]])
    problem_of = case.merged.owner[case.columns.candidates.query].tolist()
    rows: list[int] = []
    goals: list[list[Atoms]] = []
    for row in range(len(case.owner)):
        step = case.steps[row]
        owner = int(case.owner[row])
        excluded = case.clauses.excluded(case.columns.candidates.atom[owner].tolist())
        facts = [fact for fact in facts_of.get(problem_of[owner], ()) if fact != excluded]
        visited = [each.goal for each in case.steps_until(row)]
        has_room = len(step.goal) < case.limits.max_atoms and len(visited) < case.limits.max_depth
        if step.goal and has_room and facts:
            goals.append([*visited, (*step.goal, facts[row % len(facts)])])
            rows.append(row)
    for row, other in zip(rows, _step_from(case, rows, goals), strict=True):
        one = case.steps[row]
        found = difference_of_resolvents(one.resolvents, other.resolvents, case.names)
        found = found or difference_of_counts(one, other)
        if found is not None:
            field, expected, actual = found
            yield case.of_step(row, Stage.PRUNE, f"{field} of {case.names.goal(other.goal)}", expected, actual)


def _step_from(case: Case, rows: list[int], goals: Sequence[Sequence[Atoms]]) -> list[StepView]:
    """Take steps again from rows of the case, each with other visited goals, of which the last is the current one."""
    if not rows:
        return []
    positions = make_positions(case.positions.candidates.take(np.array(rows)), case.positions.depth[rows], goals)
    return read_steps(case.engine.step(positions))


def _offered(step: StepView) -> list[ResolventView]:
    return [each for each in step.resolvents if each.kind != GoalKind.FALSE]
