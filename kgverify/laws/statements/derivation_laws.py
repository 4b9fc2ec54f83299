"""Laws of a single derivation, which hold within one trace for any program."""

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np

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
    for row in np.flatnonzero(steps.depth != ordinal):
        yield case.of_step(row, Stage.ADVANCE, "depth", ordinal[row], steps.depth[row])
    is_last = np.zeros(len(case.owner), np.bool_)
    is_last[case.first_step[1:][case.columns.candidates.num_steps > 0] - 1] = True
    for row in np.flatnonzero((steps.outcome == Outcome.OPEN) == is_last):
        expected = "an outcome other than OPEN" if is_last[row] else "OPEN, since a step follows"
        yield case.of_step(row, Stage.FINISH, "outcome", expected, outcome_name(int(steps.outcome[row])))
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
    num = steps.num_resolvents.astype(np.int64)
    is_choice = (steps.choice >= 0) & (steps.choice < num)
    kind = np.full(len(num), GoalKind.GOAL, np.int64)
    kind[is_choice] = case.columns.resolvents.kind[case.first_resolvent[:-1][is_choice] + steps.choice[is_choice]]
    expected = np.where(steps.depth + 1 >= case.limits.max_depth, Outcome.DEPTH_LIMIT, Outcome.OPEN)
    expected = np.where(kind == GoalKind.TRUE, Outcome.PROVED, expected)
    expected = np.where((kind == GoalKind.FALSE) | (kind == GoalKind.STOP), Outcome.FAILED, expected)
    for row in np.flatnonzero(expected != steps.outcome):
        texts = outcome_name(int(expected[row])), outcome_name(int(steps.outcome[row]))
        yield case.of_step(row, Stage.FINISH, "outcome", *texts)
    for row in np.flatnonzero(steps.depth >= case.limits.max_depth):
        yield case.of_step(row, Stage.FINISH, "depth", f"less than {case.limits.max_depth}", steps.depth[row])
    has_steps = candidates.num_steps > 0
    last = steps.outcome[case.first_step[1:][has_steps] - 1]
    for row, outcome in zip(np.flatnonzero(has_steps), last, strict=True):
        if candidates.outcome[row] != outcome:
            texts = outcome_name(int(outcome)), outcome_name(int(candidates.outcome[row]))
            yield Finding(int(row), -1, Stage.RECYCLE, "outcome", *texts)


@law("A derivation is marked limited if and only if one of its steps dropped something.", needs_rows=False)
def _limited_mark(case: Case) -> Iterator[Finding]:
    dropped = case.columns.steps.dropped_atoms.astype(np.int64) + case.columns.steps.dropped_resolvents
    candidates = case.columns.candidates
    is_limited = np.bincount(case.owner[dropped > 0], minlength=len(candidates.query)) > 0
    for row in np.flatnonzero(is_limited != (candidates.is_limited != 0)):
        yield Finding(
            int(row), -1, Stage.LIMIT, "is_limited", str(int(is_limited[row])), str(candidates.is_limited[row])
        )


@law(
    "A step has a resolvent. TRUE and FALSE stand alone. FALSE has no origin, all else has one. A goal has an atom.",
    needs_rows=False,
    presumes=(PROOF_ALONE, NEVER_STOPS),
)
def _terminal_alone(case: Case) -> Iterator[Finding]:
    resolvents, steps = case.columns.resolvents, case.columns.steps
    for row in np.flatnonzero(steps.num_resolvents == 0):
        yield case.of_step(row, Stage.CLOSE, "num_resolvents", "1 or more", 0)
    step_of = np.repeat(np.arange(len(steps.num_resolvents)), steps.num_resolvents)
    is_terminal = resolvents.kind != GoalKind.GOAL
    for each in np.flatnonzero(is_terminal & (steps.num_resolvents[step_of] != 1)):
        name = GoalKind(int(resolvents.kind[each])).name
        count = steps.num_resolvents[step_of[each]]
        yield case.of_step(
            step_of[each], Stage.CLOSE, "kind", f"{name} alone", f"{name} among {count_of(count, 'resolvent')}"
        )
    lacks_origin = resolvents.origin_kind == Origin.NONE
    for each in np.flatnonzero(lacks_origin != np.isin(resolvents.kind, (GoalKind.FALSE, GoalKind.STOP))):
        kind, origin = (
            GoalKind(int(resolvents.kind[each])).name,
            Origin(int(resolvents.origin_kind[each])).name.lower(),
        )
        expected = "no origin" if kind in ("FALSE", "STOP") else "a clause"
        yield case.of_step(step_of[each], Stage.RESOLVE, "origin_kind", f"{kind} of {expected}", f"{kind} of {origin}")
    for each in np.flatnonzero(~is_terminal & (resolvents.num_atoms == 0)):
        yield case.of_step(step_of[each], Stage.PRUNE, "num_atoms", "1 or more; a goal without atoms is TRUE", 0)


@law(
    "No resolvent has more than max_atoms atoms and no step more than max_resolvents resolvents; beside TRUE nothing was"
    " dropped, and where resolvents were dropped beyond a limit there are max_resolvents.",
    needs_rows=False,
    presumes=(LIMITS_LAST, NEVER_STOPS),
)
def _within_limits(case: Case) -> Iterator[Finding]:
    resolvents, steps, limits = case.columns.resolvents, case.columns.steps, case.limits
    step_of = np.repeat(np.arange(len(steps.num_resolvents)), steps.num_resolvents)
    for each in np.flatnonzero(resolvents.num_atoms > limits.max_atoms):
        count = resolvents.num_atoms[each]
        yield case.of_step(step_of[each], Stage.LIMIT, "num_atoms", f"at most {limits.max_atoms}", count)
    for row in np.flatnonzero(steps.num_resolvents > limits.max_resolvents):
        count = steps.num_resolvents[row]
        yield case.of_step(row, Stage.LIMIT, "num_resolvents", f"at most {limits.max_resolvents}", count)
    dropped = steps.dropped_atoms.astype(np.int64) + steps.dropped_resolvents
    for each in np.flatnonzero((resolvents.kind == GoalKind.TRUE) & (dropped[step_of] > 0)):
        yield case.of_step(step_of[each], Stage.CLOSE, "dropped", "nothing, beside TRUE", dropped[step_of[each]])
    is_short = (steps.dropped_resolvents > 0) & (steps.num_resolvents != limits.max_resolvents)
    for row in np.flatnonzero(is_short):
        count = steps.num_resolvents[row]
        expected = f"{limits.max_resolvents}, since more were dropped"
        yield case.of_step(row, Stage.LIMIT, "num_resolvents", expected, count)


@law(
    "Resolvents of rules come before those of facts, each kind in the order of the clauses, each clause at most once; in the"
    " opposite order where the dialect says so.",
    needs_rows=False,
)
def _clause_order(case: Case) -> Iterator[Finding]:
    resolvents = case.columns.resolvents
    step_of = np.repeat(np.arange(len(case.owner)), case.columns.steps.num_resolvents)
    dialect, kind = case.limits.dialect, resolvents.origin_kind.astype(np.int64)
    # Stopping, which no clause makes, is last.
    kind = np.where(kind == Origin.NONE, len(Origin), len(Origin) - kind if dialect.order == "facts_first" else kind)
    origin = resolvents.origin.astype(np.int64)
    key = (kind << 40) + (-origin if dialect.is_reversed else origin)
    is_wrong = (step_of[1:] == step_of[:-1]) & (key[1:] <= key[:-1])
    for each in np.flatnonzero(is_wrong):
        made_by = [
            case.names.clause(int(resolvents.origin_kind[i]), int(resolvents.origin[i])) for i in (each, each + 1)
        ]
        yield case.of_step(
            step_of[each], Stage.RESOLVE, "origin", f"a clause after {made_by[0]}", made_by[1] or "no clause"
        )


@law(
    "Variables of a resolvent are numbered 0, 1, 2 ... by first appearance.",
    needs_rows=False,
    presumes=(FORGETS_NAMES,),
)
def _canonical(case: Case) -> Iterator[Finding]:
    has_variables = np.zeros(len(case.owner), np.bool_)
    step_of = np.repeat(np.arange(len(case.owner)), case.columns.steps.num_resolvents)
    atom_of = np.repeat(step_of, case.columns.resolvents.num_atoms)
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
    resolvents, steps = case.columns.resolvents, case.columns.steps
    step_of = np.repeat(np.arange(len(steps.num_resolvents)), steps.num_resolvents)
    score = resolvents.score
    for each in np.flatnonzero(~np.isfinite(score)):
        yield case.of_step(step_of[each], Stage.SCORE, "score", "a number", score[each])
    is_end = np.isin(resolvents.kind, (GoalKind.TRUE, GoalKind.FALSE))
    for each in np.flatnonzero(is_end & (score != 0)):
        yield case.of_step(step_of[each], Stage.SCORE, "score", "0, of TRUE or FALSE", score[each])
    filled = np.flatnonzero(steps.num_resolvents > 0)
    if not len(filled):
        return
    begin = case.first_resolvent[:-1][filled]
    highest = np.maximum.reduceat(score, begin)
    is_highest = score == np.repeat(highest, steps.num_resolvents[filled])
    position = np.where(is_highest, np.arange(len(score)), len(score))
    first = np.minimum.reduceat(position, begin) - begin
    for row, wanted in zip(filled, first, strict=True):
        if steps.choice[row] != wanted and np.isfinite(
            score[case.first_resolvent[row] : case.first_resolvent[row + 1]].sum()
        ):
            yield case.of_step(
                row, Stage.CHOOSE, "choice", f"{wanted}, the first of the highest scores", steps.choice[row]
            )


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
    for row in np.flatnonzero(~(np.abs(expected - candidates.log_probability) <= allowed)):
        yield Finding(
            int(row),
            -1,
            Stage.ADVANCE,
            "log_probability",
            repr(float(expected[row])),
            repr(float(candidates.log_probability[row])),
        )
