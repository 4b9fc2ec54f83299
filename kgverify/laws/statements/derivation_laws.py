"""Laws of a single derivation, which hold within one trace for any program."""

from collections.abc import Iterator
from itertools import pairwise
from math import isfinite

import numpy as np

from kgverify.comparison.step_view import ResolventView, outcome_name
from kgverify.errors import count_of
from kgverify.laws.case import Case, Finding
from kgverify.laws.law import (
    COUNTS_EVERY_STEP,
    DROPS_VISITED,
    FORGETS_NAMES,
    LIMITS_LAST,
    NEVER_STOPS,
    PROOF_ALONE,
    law,
)
from kgverify.program.outcomes import GoalKind, Origin, Outcome, Stage
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import find_outcome

LOG_PROBABILITY_ERROR = 1e-6
"""The relative tolerance of a step's log-probability."""


@law("Every candidate given is reported exactly once, in the order given.", runs_again=False, presumes=None)
def _reported_once(case: Case) -> Iterator[Finding]:
    yield from case.misplaced


@law("A derivation has a step, and its first goal is the candidate's atom.", runs_again=False)
def _begins_at_candidate(case: Case) -> Iterator[Finding]:
    for row, atom in enumerate(case.columns.candidates.atom.tolist()):
        steps, wanted = case.derivations[row], number_variables([atom])
        if not steps:
            yield Finding(row, -1, Stage.RECYCLE, "num_steps", "1 step or more", "0 steps")
        elif steps[0].goal != wanted:
            yield Finding(row, 0, Stage.RECYCLE, "goal", case.names.goal(wanted), case.names.goal(steps[0].goal))  # type: ignore[arg-type]


@law(
    "Each further goal is the resolvent chosen in the step before, each step's depth is the number of steps before it, and"
    " a step follows if and only if the outcome is OPEN: what has ended never changes.",
    runs_again=False,
    presumes=(COUNTS_EVERY_STEP,),
)
def _goal_is_choice(case: Case) -> Iterator[Finding]:
    for (row, number), step in case.walk():
        following = next(iter(case.derivations[row][number + 1 : number + 2]), None)
        if step.depth != number:
            yield Finding(row, number, Stage.ADVANCE, "depth", number, step.depth)
        if (step.outcome == Outcome.OPEN) != (following is not None):
            expected = "an outcome other than OPEN" if following is None else "OPEN, since a step follows"
            yield Finding(row, number, Stage.FINISH, "outcome", expected, outcome_name(step.outcome))
        chosen = step.chosen
        if following is not None and chosen is not None and chosen != (GoalKind.GOAL, following.goal):
            texts = case.names.goal(chosen[1], chosen[0]), case.names.goal(following.goal)
            yield Finding(row, number + 1, Stage.ADVANCE, "goal", *texts)


@law(
    "A step's outcome is PROVED if TRUE was chosen, FAILED if FALSE was, DEPTH_LIMIT if it is the max_depth-th step, else"
    " OPEN; a candidate's outcome is that of its last step.",
    runs_again=False,
    presumes=(COUNTS_EVERY_STEP,),
)
def _outcome(case: Case) -> Iterator[Finding]:
    most = case.limits.max_depth
    for at, step in case.walk():
        kind = step.chosen[0] if step.chosen is not None else GoalKind.GOAL
        expected = find_outcome(case.limits, GoalKind(kind), step.depth + 1)
        if expected != step.outcome:
            yield Finding(*at, Stage.FINISH, "outcome", outcome_name(expected), outcome_name(step.outcome))
        if step.depth >= most:
            yield Finding(*at, Stage.FINISH, "depth", f"less than {most}", step.depth)
    for row, outcome in enumerate(case.columns.candidates.outcome.tolist()):
        for last in case.derivations[row][-1:]:
            if last.outcome != outcome:
                texts = outcome_name(last.outcome), outcome_name(outcome)
                yield Finding(row, -1, Stage.RECYCLE, "outcome", *texts)


@law("A derivation is marked limited if and only if one of its steps dropped something.", runs_again=False)
def _limited_mark(case: Case) -> Iterator[Finding]:
    for row, mark in enumerate(case.columns.candidates.is_limited.tolist()):
        is_limited = any(step.dropped_atoms or step.dropped_resolvents for step in case.derivations[row])
        if is_limited != bool(mark):
            yield Finding(row, -1, Stage.LIMIT, "is_limited", int(is_limited), mark)


@law(
    "A step has a resolvent. TRUE and FALSE stand alone. FALSE has no origin, all else has one. A goal has an atom.",
    runs_again=False,
    presumes=(PROOF_ALONE, NEVER_STOPS),
)
def _terminal_alone(case: Case) -> Iterator[Finding]:
    for at, step in case.walk():
        if not step.resolvents:
            yield Finding(*at, Stage.CLOSE, "num_resolvents", "1 or more", 0)
        for each in step.resolvents:
            kind, origin = GoalKind(each.kind), Origin(each.origin_kind)
            if kind is not GoalKind.GOAL and len(step.resolvents) != 1:
                beside = f"{kind.name} among {count_of(len(step.resolvents), 'resolvent')}"
                yield Finding(*at, Stage.CLOSE, "kind", f"{kind.name} alone", beside)
            may_lack = kind in (GoalKind.FALSE, GoalKind.STOP)
            if (origin is Origin.NONE) != may_lack:
                texts = (
                    f"{kind.name} of {'no origin' if may_lack else 'a clause'}",
                    f"{kind.name} of {origin.name.lower()}",
                )
                yield Finding(*at, Stage.RESOLVE, "origin_kind", *texts)
            if kind is GoalKind.GOAL and not each.atoms:
                yield Finding(*at, Stage.PRUNE, "num_atoms", "1 or more; a goal without atoms is TRUE", 0)


@law(
    "No resolvent has more than max_atoms atoms and no step more than max_resolvents resolvents; beside TRUE nothing was"
    " dropped, and where resolvents were dropped beyond a limit there are max_resolvents.",
    runs_again=False,
    presumes=(LIMITS_LAST, NEVER_STOPS),
)
def _within_limits(case: Case) -> Iterator[Finding]:
    most_atoms, most = case.limits.max_atoms, case.limits.max_resolvents
    for at, step in case.walk():
        num, num_dropped = len(step.resolvents), step.dropped_atoms + step.dropped_resolvents
        for each in step.resolvents:
            if len(each.atoms) > most_atoms:
                yield Finding(*at, Stage.LIMIT, "num_atoms", f"at most {most_atoms}", len(each.atoms))
            if each.kind == GoalKind.TRUE and num_dropped:
                yield Finding(*at, Stage.CLOSE, "dropped", "nothing, beside TRUE", num_dropped)
        if num > most:
            yield Finding(*at, Stage.LIMIT, "num_resolvents", f"at most {most}", num)
        if step.dropped_resolvents and num != most:
            yield Finding(*at, Stage.LIMIT, "num_resolvents", f"{most}, since more were dropped", num)


@law(
    "Resolvents of rules come before those of facts, each kind in the order of the clauses, each clause at most once; in the"
    " opposite order where the dialect says so.",
    runs_again=False,
)
def _clause_order(case: Case) -> Iterator[Finding]:
    dialect = case.limits.dialect
    kinds = [Origin.RULE, Origin.FACT] if dialect.order == "rules_first" else [Origin.FACT, Origin.RULE]
    # Stopping comes last; no clause makes it.
    place = {kind: i for i, kind in enumerate((*kinds, Origin.NONE))}

    def order_of(each: ResolventView) -> tuple[int, int]:
        return place[Origin(each.origin_kind)], -each.origin if dialect.is_reversed else each.origin

    for at, step in case.walk():
        for one, other in pairwise(step.resolvents):
            if order_of(other) <= order_of(one):
                texts = (
                    f"a clause after {case.names.clause(*one.clause)}",
                    case.names.clause(*other.clause) or "no clause",
                )
                yield Finding(*at, Stage.RESOLVE, "origin", *texts)


@law(
    "Variables of a resolvent are numbered 0, 1, 2 ... by first appearance.",
    runs_again=False,
    presumes=(FORGETS_NAMES,),
)
def _canonical(case: Case) -> Iterator[Finding]:
    for at, step in case.walk():
        for each in step.resolvents:
            wanted = number_variables(each.atoms)
            if each.atoms != wanted:
                yield Finding(*at, Stage.RENAME, "atoms", case.names.goal(wanted), case.names.goal(each.atoms))  # type: ignore[arg-type]


@law(
    "No resolvent equals a goal visited in its derivation, the current one included.",
    runs_again=False,
    presumes=(DROPS_VISITED, FORGETS_NAMES),
)
def _no_visited_goal(case: Case) -> Iterator[Finding]:
    for row, steps in enumerate(case.derivations):
        goals = set()
        for number, step in enumerate(steps):
            goals.add(step.goal)
            for each in step.resolvents:
                if each.atoms in goals:
                    found = case.names.resolvent(each)
                    yield Finding(row, number, Stage.REVISIT, "resolvents", "no visited goal", found)


@law(
    "Scores are finite, those of TRUE and FALSE are 0, and the choice is the first of the highest recorded scores.",
    runs_again=False,
)
def _first_highest(case: Case) -> Iterator[Finding]:
    for at, step in case.walk():
        scores = [each.score for each in step.resolvents]
        for each in step.resolvents:
            if not isfinite(each.score):
                yield Finding(*at, Stage.SCORE, "score", "a number", each.score)
            if each.kind in (GoalKind.TRUE, GoalKind.FALSE) and each.score != 0:
                yield Finding(*at, Stage.SCORE, "score", "0, of TRUE or FALSE", each.score)
        if scores and isfinite(sum(scores)) and step.choice != scores.index(max(scores)):
            first = f"{scores.index(max(scores))}, the first of the highest scores"
            yield Finding(*at, Stage.CHOOSE, "choice", first, step.choice)


@law(
    "A candidate's log-probability is the sum, over its steps, of the log-softmax of the recorded scores at the choice,"
    " within 1e-6 relative for each step.",
    runs_again=False,
)
def _log_probability(case: Case) -> Iterator[Finding]:
    if any(step.chosen is None for step in case.steps):
        return
    for row, found in enumerate(case.columns.candidates.log_probability.tolist()):
        steps = [([each.score for each in step.resolvents], step.choice) for step in case.derivations[row]]
        expected = float(sum(scores[choice] - np.logaddexp.reduce(scores) for scores, choice in steps))
        allowed = LOG_PROBABILITY_ERROR * (1 + abs(expected)) * max(1, len(steps))
        if not abs(expected - found) <= allowed:
            yield Finding(row, -1, Stage.ADVANCE, "log_probability", repr(expected), repr(found))
