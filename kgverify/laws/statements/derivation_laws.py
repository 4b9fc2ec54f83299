"""Laws of a single derivation, which hold within one trace for any program."""

from collections.abc import Callable, Iterator
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from kgverify.comparison.step_view import outcome_name
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import law
from kgverify.laws.presumptions import (
    COUNTS_EVERY_STEP,
    DROPS_VISITED,
    FORGETS_NAMES,
    LIMITS_LAST,
    NEVER_STOPS,
    PROOF_ALONE,
)
from kgverify.laws.statements.compare_runs import LOG_PROBABILITY_ERROR
from kgverify.program.outcomes import GoalKind, Origin, Outcome
from kgverify.program.stages import Stage
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import find_outcome


@law("Every candidate given is reported exactly once, in the order given.", needs_rows=False, presumes=None)
def _reported_once(case: Case) -> Iterator[Finding]:
    if case.is_aligned:
        return
    reported = case.columns.candidates
    given, found = (
        [(*key, *atom) for *key, atom in zip(each.query.tolist(), each.side.tolist(), each.atom.tolist(), strict=True)]
        for each in (case.candidates, reported)
    )
    for position, (one, other) in enumerate(zip_longest(given, found)):
        if one != other:
            texts = [case.atom_name(each[2:]) if each else "nothing more" for each in (one, other)]
            query = int((one or other or (-1,))[0])
            yield Finding(-1, -1, Stage.RECYCLE, f"candidate {position}", texts[0], texts[1], query)
            return


@law("A derivation has a step, and its first goal is the candidate's atom.", needs_rows=False)
def _begins_at_candidate(case: Case) -> Iterator[Finding]:
    candidates = case.columns.candidates
    for row, atom in enumerate(map(tuple, candidates.atom.tolist())):
        if not candidates.num_steps[row]:
            yield Finding(row, -1, Stage.RECYCLE, "num_steps", "1 step or more", "0 steps")
            continue
        first = case.steps[case.first_step[row]]
        wanted = number_variables(iter([atom]))
        if first.goal != wanted:
            yield Finding(row, 0, Stage.RECYCLE, "goal", case.names.goal(wanted), case.names.goal(first.goal))  # type: ignore[arg-type]


@law(
    "Each further goal is the resolvent chosen in the step before, each step's depth is the number of steps before it, and"
    " a step follows if and only if the outcome is OPEN: what has ended never changes.",
    needs_rows=False,
    presumes=(COUNTS_EVERY_STEP,),
)
def _goal_is_choice(case: Case) -> Iterator[Finding]:
    steps = case.columns.steps
    ordinal = np.arange(len(case.owner)) - case.first_step[case.owner]
    yield from case.of_steps(steps.depth != ordinal, Stage.ADVANCE, "depth", ordinal, steps.depth)
    is_last = np.zeros(len(case.owner), np.bool_)
    is_last[case.first_step[1:][case.columns.candidates.num_steps > 0] - 1] = True
    expected = np.where(is_last, "an outcome other than OPEN", "OPEN, since a step follows")
    is_wrong = (steps.outcome == Outcome.OPEN) == is_last
    yield from case.of_steps(is_wrong, Stage.FINISH, "outcome", expected, _named(steps.outcome))
    for row in np.flatnonzero(~is_last):
        chosen = case.steps[row].chosen
        goal = case.steps[row + 1].goal
        if chosen is not None and chosen != (GoalKind.GOAL, goal):
            texts = case.names.goal(chosen[1], chosen[0]), case.names.goal(goal)
            yield case.of_step(row + 1, Stage.ADVANCE, "goal", *texts)


@law(
    "A step's outcome is PROVED if TRUE was chosen, FAILED if FALSE was, DEPTH_LIMIT if it is the max_depth-th step, else"
    " OPEN; a candidate's outcome is that of its last step.",
    needs_rows=False,
    presumes=(COUNTS_EVERY_STEP,),
)
def _outcome(case: Case) -> Iterator[Finding]:
    steps, candidates = case.columns.steps, case.columns.candidates
    for row, step in enumerate(case.steps):
        kind = step.chosen[0] if step.chosen is not None else GoalKind.GOAL
        expected = find_outcome(case.limits, GoalKind(kind), step.depth + 1)
        if expected != step.outcome:
            yield case.of_step(row, Stage.FINISH, "outcome", outcome_name(expected), outcome_name(step.outcome))
    most = case.limits.max_depth
    yield from case.of_steps(steps.depth >= most, Stage.FINISH, "depth", f"less than {most}", steps.depth)
    ends = candidates.outcome.copy()
    has_steps = candidates.num_steps > 0
    ends[has_steps] = steps.outcome[case.first_step[1:][has_steps] - 1]
    yield from case.of_candidates(
        ends != candidates.outcome, Stage.RECYCLE, "outcome", _named(ends), _named(candidates.outcome)
    )


def _named(outcomes: NDArray[np.integer]) -> Callable[[int], str]:
    return lambda row: outcome_name(int(outcomes[row]))


@law("A derivation is marked limited if and only if one of its steps dropped something.", needs_rows=False)
def _limited_mark(case: Case) -> Iterator[Finding]:
    dropped = case.columns.steps.dropped_atoms.astype(np.int64) + case.columns.steps.dropped_resolvents
    candidates = case.columns.candidates
    is_limited = np.zeros(len(candidates.query), np.uint8)
    is_limited[case.owner[dropped > 0]] = 1
    is_wrong = is_limited != (candidates.is_limited != 0)
    yield from case.of_candidates(is_wrong, Stage.LIMIT, "is_limited", is_limited, candidates.is_limited)


@law(
    "A step has a resolvent. TRUE and FALSE stand alone. FALSE has no origin, all else has one. A goal has an atom.",
    needs_rows=False,
    presumes=(PROOF_ALONE, NEVER_STOPS),
)
def _terminal_alone(case: Case) -> Iterator[Finding]:
    resolvents, steps = case.columns.resolvents, case.columns.steps
    yield from case.of_steps(steps.num_resolvents == 0, Stage.CLOSE, "num_resolvents", "1 or more", "0")
    is_terminal = resolvents.kind != GoalKind.GOAL
    num = steps.num_resolvents[case.step_of]

    def kind_of(row: int) -> str:
        return GoalKind(int(resolvents.kind[row])).name

    yield from case.of_resolvents(
        is_terminal & (num != 1),
        Stage.CLOSE,
        "kind",
        lambda row: f"{kind_of(row)} alone",
        lambda row: f"{kind_of(row)} among {count_of(num[row], 'resolvent')}",
    )
    lacks_origin = resolvents.origin_kind == Origin.NONE
    may_lack = np.isin(resolvents.kind, (GoalKind.FALSE, GoalKind.STOP))
    yield from case.of_resolvents(
        lacks_origin != may_lack,
        Stage.RESOLVE,
        "origin_kind",
        lambda row: f"{kind_of(row)} of {'no origin' if may_lack[row] else 'a clause'}",
        lambda row: f"{kind_of(row)} of {Origin(int(resolvents.origin_kind[row])).name.lower()}",
    )
    is_empty = ~is_terminal & (resolvents.num_atoms == 0)
    yield from case.of_resolvents(is_empty, Stage.PRUNE, "num_atoms", "1 or more; a goal without atoms is TRUE", "0")


@law(
    "No resolvent has more than max_atoms atoms and no step more than max_resolvents resolvents; beside TRUE nothing was"
    " dropped, and where resolvents were dropped beyond a limit there are max_resolvents.",
    needs_rows=False,
    presumes=(LIMITS_LAST, NEVER_STOPS),
)
def _within_limits(case: Case) -> Iterator[Finding]:
    resolvents, steps, limits = case.columns.resolvents, case.columns.steps, case.limits
    most_atoms, most = limits.max_atoms, limits.max_resolvents
    num, num_atoms = steps.num_resolvents, resolvents.num_atoms
    yield from case.of_resolvents(num_atoms > most_atoms, Stage.LIMIT, "num_atoms", f"at most {most_atoms}", num_atoms)
    yield from case.of_steps(num > most, Stage.LIMIT, "num_resolvents", f"at most {most}", num)
    dropped = (steps.dropped_atoms.astype(np.int64) + steps.dropped_resolvents)[case.step_of]
    is_wrong = (resolvents.kind == GoalKind.TRUE) & (dropped > 0)
    yield from case.of_resolvents(is_wrong, Stage.CLOSE, "dropped", "nothing, beside TRUE", dropped)
    is_short = (steps.dropped_resolvents > 0) & (num != most)
    yield from case.of_steps(is_short, Stage.LIMIT, "num_resolvents", f"{most}, since more were dropped", num)


@law(
    "Resolvents of rules come before those of facts, each kind in the order of the clauses, each clause at most once; in the"
    " opposite order where the dialect says so.",
    needs_rows=False,
)
def _clause_order(case: Case) -> Iterator[Finding]:
    resolvents = case.columns.resolvents
    dialect, kind = case.limits.dialect, resolvents.origin_kind.astype(np.int64)
    # Stopping, which no clause makes, is last.
    kind = np.where(kind == Origin.NONE, len(Origin), len(Origin) - kind if dialect.order == "facts_first" else kind)
    origin = resolvents.origin.astype(np.int64)
    key = (kind << 40) + (-origin if dialect.is_reversed else origin)
    is_wrong = (case.step_of[1:] == case.step_of[:-1]) & (key[1:] <= key[:-1])

    def clause_of(row: int) -> str:
        return case.names.clause(int(resolvents.origin_kind[row]), int(resolvents.origin[row]))

    yield from case.of_resolvents(
        is_wrong,
        Stage.RESOLVE,
        "origin",
        lambda row: f"a clause after {clause_of(row)}",
        lambda row: clause_of(row + 1) or "no clause",
    )


@law(
    "Variables of a resolvent are numbered 0, 1, 2 ... by first appearance.",
    needs_rows=False,
    presumes=(FORGETS_NAMES,),
)
def _canonical(case: Case) -> Iterator[Finding]:
    has_variables = np.zeros(len(case.owner), np.bool_)
    atom_of = np.repeat(case.step_of, case.columns.resolvents.num_atoms)
    has_variables[atom_of[(case.columns.resolvents.atoms[:, 1:] < 0).any(1)]] = True
    for row in np.flatnonzero(has_variables):
        for each in case.steps[row].resolvents:
            wanted = number_variables(iter(each.atoms))
            if each.atoms != wanted:
                texts = case.names.goal(wanted), case.names.goal(each.atoms)  # type: ignore[arg-type]
                yield case.of_step(row, Stage.RENAME, "atoms", *texts)
                break


@law(
    "No resolvent equals a goal visited in its derivation, the current one included.",
    needs_rows=False,
    presumes=(DROPS_VISITED, FORGETS_NAMES),
)
def _no_visited_goal(case: Case) -> Iterator[Finding]:
    num_steps = case.columns.candidates.num_steps
    for row in range(len(num_steps)):
        goals = set()
        for at in range(int(case.first_step[row]), int(case.first_step[row + 1])):
            step = case.steps[at]
            goals.add(step.goal)
            for each in step.resolvents:
                if each.atoms in goals:
                    yield case.of_step(at, Stage.REVISIT, "resolvents", "no visited goal", case.names.resolvent(each))
                    break


@law(
    "Scores are finite, those of TRUE and FALSE are 0, and the choice is the first of the highest recorded scores.",
    needs_rows=False,
)
def _first_highest(case: Case) -> Iterator[Finding]:
    resolvents, score = case.columns.resolvents, case.columns.resolvents.score
    yield from case.of_resolvents(~np.isfinite(score), Stage.SCORE, "score", "a number", score)
    is_end = np.isin(resolvents.kind, (GoalKind.TRUE, GoalKind.FALSE))
    yield from case.of_resolvents(is_end & (score != 0), Stage.SCORE, "score", "0, of TRUE or FALSE", score)
    for row, step in enumerate(case.steps):
        scores = [each.score for each in step.resolvents]
        if scores and np.isfinite(sum(scores)) and step.choice != scores.index(max(scores)):
            first = f"{scores.index(max(scores))}, the first of the highest scores"
            yield case.of_step(row, Stage.CHOOSE, "choice", first, step.choice)


@law(
    "A candidate's log-probability is the sum, over its steps, of the log-softmax of the recorded scores at the choice,"
    " within 1e-6 relative for each step.",
    needs_rows=False,
)
def _log_probability(case: Case) -> Iterator[Finding]:
    resolvents, steps, candidates = case.columns.resolvents, case.columns.steps, case.columns.candidates
    num = steps.num_resolvents.astype(np.int64)
    is_choice = (steps.choice >= 0) & (steps.choice < num)
    if not is_choice.all() or not len(num):
        return
    score = resolvents.score.astype(np.float64)
    begin = case.first_resolvent[:-1]
    highest = np.maximum.reduceat(score, begin)
    total = np.log(np.add.reduceat(np.exp(score - np.repeat(highest, num)), begin)) + highest
    expected = np.bincount(case.owner, score[begin + steps.choice] - total, minlength=len(candidates.query))
    allowed = LOG_PROBABILITY_ERROR * (1 + np.abs(expected)) * np.maximum(candidates.num_steps, 1)
    found = candidates.log_probability
    is_wrong = ~(np.abs(expected - found) <= allowed)
    texts = (lambda row: repr(float(expected[row]))), (lambda row: repr(float(found[row])))
    yield from case.of_candidates(is_wrong, Stage.ADVANCE, "log_probability", *texts)
