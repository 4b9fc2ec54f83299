"""One step of a derivation: a function for each stage, and their composition in the order of the dialect.

The stages and their names are those of docs/semantics.md. Every function is pure.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from enum import IntEnum
from functools import partial
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple

from kgreference.dialect import OURS, Dialect, Exclusion, LongResolvents, Memory, Order, Stopping, Unification
from kgreference.policy import Policy
from kgreference.program import Program
from kgreference.resolvent import FALSE, STOP, Kind, Matches, OriginKind, Resolvent, make_resolvent
from kgreference.terms import (
    Goal,
    Triple,
    binds_in_one_pass,
    canonical,
    first_free_variable,
    is_ground,
    is_same_set,
    substitute,
    unify,
    variables,
)


class Limits(NamedTuple):
    """The largest numbers of steps of a derivation, of atoms of a resolvent and of resolvents of a step; each at least 1.

    With ``exclude_query`` a ground query may not serve as a fact in its own derivation.
    """

    max_depth: int = 20
    max_atoms: int = 6
    max_resolvents: int = 120
    exclude_query: bool = True


class Outcome(IntEnum):
    """The state of a derivation after a step."""

    OPEN = 0
    PROVED = 1
    FAILED = 2
    DEPTH_LIMIT = 3


class Step(NamedTuple):
    """A step with the output of every stage. Log-probabilities are in nats; ``depth`` counts this step.

    ``after_limit`` holds the resolvents offered to the policy. A stage that is not applied has the output of an earlier
    stage. A step that ``is_uncounted`` has the depth at which it started.
    """

    goal: Goal
    selected: Triple
    matched_rules: list[int]
    matched_facts: list[int]
    after_resolve: list[Resolvent]
    after_prune: list[Resolvent]
    after_rename: list[Resolvent]
    after_revisit: list[Resolvent]
    after_close: list[Resolvent]
    after_limit: list[Resolvent]
    dropped_atoms: int
    dropped_resolvents: int
    scores: list[float]
    choice: int
    chosen: Resolvent
    log_probability: float
    depth: int
    outcome: Outcome
    is_uncounted: bool = False


make_step: Final[Callable[[Iterable[Any]], Step]] = partial(tuple.__new__, Step)
"""A function that makes a step from its fields, in order; calling the class takes several times as long."""


class Situation(NamedTuple):
    """The inputs of a step, which every stage receives.

    The goal and the visited goals are canonical, or keep their names if the dialect does not forget names. ``excluded``
    is the fact that the derivation may not use, if any. ``visited`` may lack the goal.
    """

    dialect: Dialect
    program: Program
    limits: Limits
    policy: Policy
    excluded: Triple | None
    goal: Goal
    depth: int
    visited: Set[Goal]


make_situation: Final[Callable[[Iterable[Any]], Situation]] = partial(tuple.__new__, Situation)
"""A function that makes a situation from its fields, like `make_step` for steps."""


# Separate names, since Python 3.11 takes several times as long to look up a member of an enum.
_GOAL, _TRUE, _RULE, _FACT = Kind.GOAL, Kind.TRUE, OriginKind.RULE, OriginKind.FACT
_OPEN, _PROVED, _FAILED, _DEPTH_LIMIT = Outcome.OPEN, Outcome.PROVED, Outcome.FAILED, Outcome.DEPTH_LIMIT
_ONE_PASS, _RULES_FIRST, _REJECT = Unification.ONE_PASS, Order.RULES_FIRST, LongResolvents.REJECT
_NO_MEMORY, _SEQUENCE, _ALWAYS, _WHERE_NO_TERMINAL = (
    Memory.NONE,
    Memory.SEQUENCE,
    Exclusion.ALWAYS,
    Stopping.WHERE_NO_TERMINAL,
)


def select(situation: Situation) -> Triple:
    """Return the leftmost atom."""
    return situation.goal[0]


def match_rules(situation: Situation, selected: Triple) -> Matches:
    """Find every rule, in the order of the dialect, whose head unifies with the selected atom by the dialect's unification.

    Each rule is first standardized apart.
    """
    dialect, program = situation.dialect, situation.program
    matches = program.rules_matching(selected)
    if dialect.unification is _ONE_PASS:
        rows = zip(*matches, strict=True)
        matches = Matches.of([row for row in rows if binds_in_one_pass(selected, program.rules[row[0]].head)])
    return _reverse(matches) if dialect.is_reversed else matches


def match_facts(situation: Situation, selected: Triple) -> Matches:
    """Find every fact, in the order of the dialect, that unifies with the selected atom and is not the excluded atom."""
    program, excluded = situation.program, situation.excluded
    matches = program.facts_matching(selected)
    if excluded is not None and matches.origins and (barred := program.facts.find(excluded)) in matches.origins:
        matches = Matches.of([row for row in zip(*matches, strict=True) if row[0] != barred])
    return _reverse(matches) if situation.dialect.is_reversed else matches


def _reverse(matches: Matches) -> Matches:
    return Matches.of(list(zip(*matches, strict=True))[::-1])


def resolve(situation: Situation, rule_matches: Matches, fact_matches: Matches) -> list[Resolvent]:
    """Return the resolvent of the goal with each clause, in the order of the dialect, all of kind GOAL."""
    dialect, goal = situation.dialect, situation.goal
    if dialect.forgets_names:
        by_rules = list(_resolve_with(_RULE, rule_matches, goal))
        by_facts = list(_resolve_with(_FACT, fact_matches, goal))
    else:
        by_rules, by_facts = _resolve_by_name(situation, rule_matches, fact_matches)
    return by_rules + by_facts if dialect.order is _RULES_FIRST else by_facts + by_rules


def _resolve_with(kind: OriginKind, matches: Matches, goal: Goal) -> Iterable[Resolvent]:
    """Return the resolvents with the clauses of one kind: each body, then the rest of the goal under the unifier.

    In the rest, the terms of the selected atom become the terms of the clause head, since the unifier makes them equal.
    Other variables are numbered after the clause's own, so that no variable captures another. The rest is built column
    by column: a term, then an atom, for all clauses at once.
    """
    origins, firsts, seconds, bodies, free_variables = matches
    if not origins:
        return []
    (_, first, second), rest = goal[0], goal[1:]
    others = [term for term in variables(rest) if term not in (first, second)]
    becomes: dict[int, Sequence[int]] = {
        term: [free - number for free in free_variables] for number, term in enumerate(others)
    }
    becomes[first], becomes[second] = firsts, seconds
    atoms = [
        zip(repeat(predicate), becomes.get(left) or repeat(left), becomes.get(right) or repeat(right))
        for predicate, left, right in rest
    ]
    rests = zip(*atoms, strict=False) if atoms else repeat(())  # not strict: the repeated columns are infinite
    return map(make_resolvent, zip(repeat(_GOAL), map(add, bodies, rests), repeat(kind), origins, strict=False))


def _resolve_by_name(
    situation: Situation, rule_matches: Matches, fact_matches: Matches
) -> tuple[list[Resolvent], list[Resolvent]]:
    """Resolve with clauses whose variables are new to the derivation, so that the goal's variables keep their names."""
    program, goal = situation.program, situation.goal
    first_free = max(map(first_free_variable, [goal, *situation.visited]))
    rules = dict(program.rules_apart(goal[0][0], first_free))

    def resolve_with(kind: OriginKind, origin: int, head: Triple, body: Goal) -> Resolvent:
        unifier = unify(goal[0], head)
        if unifier is None:
            raise ValueError(f"a clause that matches must unify with {goal[0]}, found {head}")
        return Resolvent(_GOAL, substitute((*body, *goal[1:]), unifier), kind, origin)

    by_rules = [resolve_with(_RULE, each, *rules[each]) for each in rule_matches.origins]
    by_facts = [resolve_with(_FACT, each, program.facts[each], ()) for each in fact_matches.origins]
    return by_rules, by_facts


def prune(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Delete every atom that is a fact and not the excluded atom. An empty resolvent becomes TRUE."""
    if not resolvents:
        return []
    facts, excluded = situation.program.facts, situation.excluded
    is_disjoint, find = facts.is_disjoint, facts.find
    pruned = []
    for resolvent in resolvents:
        atoms = resolvent.atoms
        if atoms and is_disjoint(atoms):
            pruned.append(resolvent)  # the common case: nothing to delete
            continue
        atoms = tuple([atom for atom in atoms if find(atom) < 0 or atom == excluded])
        kind = _GOAL if atoms else _TRUE
        pruned.append(make_resolvent((kind, atoms, resolvent.origin_kind, resolvent.origin)))
    return pruned


def rename(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make each resolvent canonical, unless the dialect keeps names."""
    return _rename(resolvents) if situation.dialect.forgets_names else list(resolvents)


def _rename(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    renamed = []
    for resolvent in resolvents:
        kind, goal, origin_kind, origin = resolvent
        atoms = canonical(goal)
        renamed.append(resolvent if atoms is goal else make_resolvent((kind, atoms, origin_kind, origin)))
    return renamed


def revisit(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop every resolvent that counts as the current goal or an earlier goal in the memory of the dialect."""
    dialect, goal, visited = situation.dialect, situation.goal, situation.visited
    if dialect.memory is _NO_MEMORY or not resolvents:
        return list(resolvents)
    seen = visited if goal in visited else {goal, *visited}
    if dialect.exempts_terminal:
        seen = seen - {()}
    if dialect.memory is _SEQUENCE:
        return [resolvent for resolvent in resolvents if resolvent.atoms not in seen]
    seen_sets = set(map(frozenset, seen))

    def is_seen(atoms: Goal) -> bool:
        is_renamed = dialect.forgets_names and any(is_same_set(atoms, each) for each in seen)
        return is_renamed or frozenset(atoms) in seen_sets

    return [resolvent for resolvent in resolvents if not is_seen(resolvent.atoms)]


def remove_duplicates(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Keep the first of the resolvents that are equal up to renaming."""
    firsts: dict[tuple[Kind, Goal], Resolvent] = {}
    for resolvent in resolvents:
        firsts.setdefault((resolvent.kind, canonical(resolvent.atoms)), resolvent)
    return list(firsts.values())


def close(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Return only the first proof, if there is one; only FALSE, if there is no resolvent."""
    for resolvent in resolvents:
        if not resolvent.atoms and resolvent.kind in (_TRUE, _GOAL):
            return _mark_proofs([resolvent])
    return list(resolvents) or [FALSE]


def _mark_proofs(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make every goal without atoms TRUE, as pruning does."""
    return [each if each.atoms or each.kind is not _GOAL else each._replace(kind=_TRUE) for each in resolvents]


def limit_atoms(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop or truncate the resolvents of more than ``max_atoms`` atoms."""
    most = situation.limits.max_atoms
    if situation.dialect.long_resolvents is _REJECT:
        return [each for each in resolvents if len(each.atoms) <= most]
    return [each._replace(atoms=each.atoms[:most]) for each in resolvents]


def limit_resolvents(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Keep the first ``max_resolvents`` resolvents."""
    return list(resolvents[: situation.limits.max_resolvents])


def offer_stop(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Add STOP if the dialect offers it. Return only FALSE if there is nothing else."""
    offers = situation.dialect.stopping is _WHERE_NO_TERMINAL
    if offers and all(resolvent.kind is _GOAL for resolvent in resolvents):
        return [*resolvents, STOP]
    return list(resolvents) or [FALSE]


def score(situation: Situation, resolvents: Sequence[Resolvent]) -> list[float]:
    """Return a score for each resolvent. A resolvent that is terminal and has no alternative gets 0."""
    if len(resolvents) == 1 and resolvents[0].kind is not _GOAL:
        return [0.0]
    if situation.dialect.forgets_names:
        return situation.policy.scores(situation.goal, resolvents)
    return situation.policy.scores(canonical(situation.goal), _rename(resolvents))


def choose(situation: Situation, scores: Sequence[float]) -> int:
    """Return the index of the highest score, the lowest index among equal scores."""
    return scores.index(max(scores))


def log_softmax(scores: Sequence[float], choice: int) -> float:
    """Return the logarithm of the choice's share of the exponentiated scores, in nats, regardless of their order."""
    if len(scores) == 1:
        return 0.0
    highest = max(scores)
    return scores[choice] - highest - math.log(math.fsum([math.exp(value - highest) for value in scores]))


def advance(
    situation: Situation, resolvents: Sequence[Resolvent], scores: Sequence[float], choice: int
) -> tuple[Resolvent, int, float]:
    """Return the resolvent that becomes the goal, the depth of a counted step, and the term of the log-probability."""
    return resolvents[choice], situation.depth + 1, log_softmax(scores, choice)


def finish(situation: Situation, chosen: Resolvent, depth: int) -> Outcome:
    """Return the outcome after ``depth`` counted steps. Stopping gives FAILED."""
    if chosen.kind is _TRUE:
        return _PROVED
    if chosen.kind is not _GOAL:
        return _FAILED
    return _DEPTH_LIMIT if depth == situation.limits.max_depth else _OPEN


FilterStage = Callable[[Situation, Sequence[Resolvent]], list[Resolvent]]
"""A stage that receives resolvents and returns the remaining ones."""


class Stages(NamedTuple):
    """The functions of a step. Replace one to judge an engine that no dialect describes.

    The signatures are those of this module's functions with the same names. A ``select`` that does not return the
    leftmost atom needs its own ``resolve``, since this module's ``resolve`` resolves the leftmost atom. In a dialect
    that forgets names, resolvents must stay canonical after ``rename``.

    Example:
        Stages(limit_resolvents=lambda situation, resolvents: list(resolvents[-2:])) keeps the last two resolvents.
    """

    select: Callable[[Situation], Triple] = select
    match_rules: Callable[[Situation, Triple], Matches] = match_rules
    match_facts: Callable[[Situation, Triple], Matches] = match_facts
    resolve: Callable[[Situation, Matches, Matches], list[Resolvent]] = resolve
    prune: FilterStage = prune
    rename: FilterStage = rename
    revisit: FilterStage = revisit
    remove_duplicates: FilterStage = remove_duplicates
    close: FilterStage = close
    limit_atoms: FilterStage = limit_atoms
    limit_resolvents: FilterStage = limit_resolvents
    offer_stop: FilterStage = offer_stop
    score: Callable[[Situation, Sequence[Resolvent]], list[float]] = score
    choose: Callable[[Situation, Sequence[float]], int] = choose
    advance: Callable[[Situation, Sequence[Resolvent], Sequence[float], int], tuple[Resolvent, int, float]] = advance
    finish: Callable[[Situation, Resolvent, int], Outcome] = finish


OUR_STAGES: Final = Stages()
"""The functions of this module."""


def take_step(situation: Situation, stages: Stages = OUR_STAGES, num_uncounted: int = 0) -> Step:
    """Take one step, from a goal after fewer than ``max_depth`` counted steps.

    ``num_uncounted``: the uncounted steps directly before this one.

    Raises ValueError for the empty goal, and for a goal at the depth limit.
    """
    return choose_resolvent(situation, find_resolvents(situation, stages, num_uncounted), stages)


Found = tuple[tuple[Any, ...], list[Resolvent], bool]
"""The fields of a step from ``goal`` to ``dropped_resolvents``, the resolvents to choose from, and ``is_uncounted``."""


def find_resolvents(situation: Situation, stages: Stages = OUR_STAGES, num_uncounted: int = 0) -> Found:
    """Apply the stages from `select` to `offer_stop`."""
    dialect, _, limits, _, _, goal, depth, _ = situation
    if not goal:
        raise ValueError("a step must start from a goal with atoms, found none")
    if not 0 <= depth < limits.max_depth:
        raise ValueError(f"a step must start at a depth from 0 to {limits.max_depth - 1}, found {depth}")
    selected = stages.select(situation)
    rule_matches = stages.match_rules(situation, selected)
    fact_matches = stages.match_facts(situation, selected)
    after_resolve = stages.resolve(situation, rule_matches, fact_matches)
    is_uncounted = False
    if dialect is OURS and stages is OUR_STAGES:
        # Written out, since the general way would take a third longer for small steps.
        after_prune = prune(situation, after_resolve)
        after_rename = rename(situation, after_prune)
        after_revisit = revisit(situation, after_rename)
        after_close = close(situation, after_revisit)
        short = limit_atoms(situation, after_close)
        remaining = limit_resolvents(situation, short)
        lost = len(after_close) - len(short), len(short) - len(remaining)
        offered = remaining or [FALSE]
    else:
        after, lost = _apply_filters(situation, stages, after_resolve)
        remaining = _mark_proofs(after[dialect.filter_stages[-1]])
        is_unary = dialect.skips_unary and len(remaining) == 1 and remaining[0].kind is _GOAL
        is_uncounted = is_unary and num_uncounted < limits.max_depth
        after_prune, after_rename = after.get("prune", after_resolve), after["rename"]
        after_revisit, after_close = after.get("revisit", after_rename), after.get("close", remaining)
        offered = remaining if is_uncounted else stages.offer_stop(situation, remaining)
    matched = list(rule_matches.origins), list(fact_matches.origins)
    filtered = after_resolve, after_prune, after_rename, after_revisit, after_close
    return (goal, selected, *matched, *filtered, offered, *lost), offered, is_uncounted


def _apply_filters(
    situation: Situation, stages: Stages, resolvents: list[Resolvent]
) -> tuple[dict[str, list[Resolvent]], tuple[int, int]]:
    """Apply the filters in the order of the dialect.

    Return the resolvents after each filter, and the resolvents that each limit dropped.
    """
    after, num_lost = {}, {"limit_atoms": 0, "limit_resolvents": 0}
    for name in situation.dialect.filter_stages:
        remaining = resolvents if resolvents == [FALSE] else getattr(stages, name)(situation, resolvents)
        if name in num_lost:
            num_lost[name] = (Counter(resolvents) - Counter(remaining)).total()
        after[name] = resolvents = remaining
    return after, (num_lost["limit_atoms"], num_lost["limit_resolvents"])


def choose_resolvent(situation: Situation, found: Found, stages: Stages = OUR_STAGES) -> Step:
    """Complete a step that `find_resolvents` began: apply the stages from `score` to `finish`."""
    scores = stages.score(situation, found[1])
    return complete_step(situation, found, scores, stages.choose(situation, scores), stages)


def complete_step(
    situation: Situation, found: Found, scores: list[float], choice: int, stages: Stages = OUR_STAGES
) -> Step:
    """Apply the stages `advance` and `finish` to a choice."""
    fields, offered, is_uncounted = found
    chosen, next_depth, log_probability = stages.advance(situation, offered, scores, choice)
    depth = situation.depth if is_uncounted else next_depth
    outcome = stages.finish(situation, chosen, depth)
    return make_step((*fields, scores, choice, chosen, log_probability, depth, outcome, is_uncounted))


def find_excluded(dialect: Dialect, limits: Limits, query: Triple, is_positive: bool) -> Triple | None:
    """Return the fact that a derivation may not use; None for a query with variables, which excludes nothing."""
    is_barred = dialect.exclusion is _ALWAYS or (dialect.exclusion is Exclusion.POSITIVES_ONLY and is_positive)
    return query if is_barred and limits.exclude_query and is_ground(query) else None
