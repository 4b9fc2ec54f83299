"""One step of a derivation: a function for each stage, and their composition.

The stages and their names are those of docs/semantics.md. Every function is pure.
"""

import math
from collections.abc import Callable, Iterable, Sequence, Set
from enum import IntEnum
from functools import partial
from itertools import repeat
from operator import add
from typing import Any, Final, NamedTuple

from kgreference.policy import Policy
from kgreference.program import Program
from kgreference.resolvent import FALSE, Kind, Matches, OriginKind, Resolvent, make_resolvent
from kgreference.terms import Goal, Triple, canonical, variables


class Limits(NamedTuple):
    """The most steps of a derivation, atoms of a resolvent and resolvents of a step; each 1 or more.

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

    In another dialect, ``after_limit`` holds the resolvents that the policy is offered. A stage that is not applied gives the
    output of an earlier one. A step that ``is_uncounted`` has the depth at which it started.
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
"""Make a step out of its fields, in order; the class itself takes several times as long."""


def select(goal: Goal) -> Triple:
    """Return the leftmost atom."""
    return goal[0]


def match_rules(program: Program, selected: Triple) -> Matches:
    """Find every rule, in order, whose head unifies with the selected atom, after it is standardized apart."""
    return program.rules_matching(selected)


def match_facts(program: Program, excluded: Triple | None, selected: Triple) -> Matches:
    """Find every fact, in order, that unifies with the selected atom and is not the excluded atom."""
    matches = program.facts_matching(selected)
    if excluded is None or not matches.origins:
        return matches
    barred = program.facts.find(excluded)
    if barred not in matches.origins:
        return matches
    return Matches.of([row for row in zip(*matches, strict=True) if row[0] != barred])


def resolve(goal: Goal, rule_matches: Matches, fact_matches: Matches) -> list[Resolvent]:
    """Return the resolvent of the goal with each clause, rules first."""
    by_rules = _resolve_with(OriginKind.RULE, rule_matches, goal)
    by_facts = _resolve_with(OriginKind.FACT, fact_matches, goal)
    return [*by_rules, *by_facts]


def _resolve_with(kind: OriginKind, matches: Matches, goal: Goal) -> Iterable[Resolvent]:
    """Return the resolvents with the clauses of one kind: each body, then the rest of the goal under the unifier.

    In the rest, the terms of the selected atom become those of the clause head, to which the unifier makes them
    equal. Other variables are numbered after the clause's own, so that none captures another. The rest is built
    column by column: a term, then an atom, for all clauses at once.
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
    rests = zip(*atoms, strict=False) if atoms else repeat(())  # not strict: the repeated ones are infinite
    return map(make_resolvent, zip(repeat(Kind.GOAL), map(add, bodies, rests), repeat(kind), origins, strict=False))


def prune(program: Program, excluded: Triple | None, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Delete every atom that is a fact and not the excluded atom; an empty resolvent becomes TRUE."""
    is_disjoint, find = program.facts.is_disjoint, program.facts.find
    pruned = []
    for resolvent in resolvents:
        atoms = resolvent.atoms
        if atoms and is_disjoint(atoms):
            pruned.append(resolvent)  # the common case: nothing to delete
            continue
        atoms = tuple([atom for atom in atoms if find(atom) < 0 or atom == excluded])
        kind = Kind.GOAL if atoms else Kind.TRUE
        pruned.append(make_resolvent((kind, atoms, resolvent.origin_kind, resolvent.origin)))
    return pruned


def rename(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make each resolvent canonical."""
    renamed = []
    for resolvent in resolvents:
        kind, goal, origin_kind, origin = resolvent
        atoms = canonical(goal)
        renamed.append(resolvent if atoms is goal else make_resolvent((kind, atoms, origin_kind, origin)))
    return renamed


def revisit(goal: Goal, visited: Set[Goal], resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop every resolvent equal to the current goal or to one visited before."""
    if not resolvents:
        return []
    seen = visited if goal in visited else {goal, *visited}
    return [resolvent for resolvent in resolvents if resolvent.atoms not in seen]


def close(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Return the first TRUE alone, if there is one; FALSE alone, if there is no resolvent."""
    true = Kind.TRUE
    for resolvent in resolvents:
        if resolvent.kind is true:
            return [resolvent]
    return list(resolvents) or [FALSE]


def limit(limits: Limits, resolvents: Sequence[Resolvent]) -> tuple[list[Resolvent], int, int]:
    """Return the resolvents within the limits, and the numbers dropped for their atoms and beyond the maximum."""
    short = [resolvent for resolvent in resolvents if len(resolvent.atoms) <= limits.max_atoms]
    kept = short[: limits.max_resolvents]
    return kept or [FALSE], len(resolvents) - len(short), len(short) - len(kept)


def score(policy: Policy, goal: Goal, resolvents: Sequence[Resolvent]) -> list[float]:
    """Return a score for each resolvent; TRUE and FALSE are alone and get 0."""
    if resolvents[0].kind is not Kind.GOAL:
        return [0.0]
    return policy.scores(goal, resolvents)


def choose(scores: Sequence[float]) -> int:
    """Return the index of the highest score; the lowest index among equal ones."""
    return scores.index(max(scores))


def log_softmax(scores: Sequence[float], choice: int) -> float:
    """Return the logarithm of the choice's share of the exponentiated scores, in nats, independent of their order."""
    if len(scores) == 1:
        return 0.0
    highest = max(scores)
    return scores[choice] - highest - math.log(math.fsum([math.exp(value - highest) for value in scores]))


def advance(
    resolvents: Sequence[Resolvent], scores: Sequence[float], choice: int, depth: int
) -> tuple[Resolvent, int, float]:
    """Return the resolvent that becomes the goal, the new depth, and the term to add to the log-probability."""
    return resolvents[choice], depth + 1, log_softmax(scores, choice)


def finish(limits: Limits, chosen: Resolvent, depth: int) -> Outcome:
    """Return the outcome after ``depth`` steps."""
    if chosen.kind is Kind.TRUE:
        return Outcome.PROVED
    if chosen.kind is Kind.FALSE:
        return Outcome.FAILED
    if depth == limits.max_depth:
        return Outcome.DEPTH_LIMIT
    return Outcome.OPEN


def excluded_atom(limits: Limits, query: Triple) -> Triple | None:
    """Return the fact that a derivation may not use; None for a query with variables, which excludes nothing."""
    _, first, second = query
    return query if limits.exclude_query and first >= 0 and second >= 0 else None


def check_start(limits: Limits, goal: Goal, depth: int) -> None:
    """Raise ValueError for the empty goal, and for a goal at the depth limit."""
    if not goal:
        raise ValueError("a step must start from a goal with atoms, found none")
    if not 0 <= depth < limits.max_depth:
        raise ValueError(f"a step must start at a depth from 0 to {limits.max_depth - 1}, found {depth}")


def take_step(
    program: Program, limits: Limits, policy: Policy, query: Triple, goal: Goal, depth: int, visited: Set[Goal]
) -> Step:
    """Take one step from a canonical goal after ``depth`` steps, fewer than ``max_depth``.

    ``visited`` holds the goals of the derivation so far, with or without the current one.

    Raises ValueError for the empty goal, and for a goal at the depth limit.
    """
    return choose_resolvent(limits, policy, depth, find_resolvents(program, limits, query, goal, depth, visited))


def find_resolvents(
    program: Program, limits: Limits, query: Triple, goal: Goal, depth: int, visited: Set[Goal]
) -> tuple[Any, ...]:
    """Return the fields of a step from ``goal`` to ``dropped_resolvents``: the stages from `select` to `limit`."""
    check_start(limits, goal, depth)
    excluded = excluded_atom(limits, query)

    selected = select(goal)
    rule_matches = match_rules(program, selected)
    fact_matches = match_facts(program, excluded, selected)
    after_resolve = resolve(goal, rule_matches, fact_matches)
    after_prune = prune(program, excluded, after_resolve)
    after_rename = rename(after_prune)
    after_revisit = revisit(goal, visited, after_rename)
    after_close = close(after_revisit)
    after_limit, dropped_atoms, dropped_resolvents = limit(limits, after_close)
    return (
        goal,
        selected,
        list(rule_matches.origins),
        list(fact_matches.origins),
        after_resolve,
        after_prune,
        after_rename,
        after_revisit,
        after_close,
        after_limit,
        dropped_atoms,
        dropped_resolvents,
    )


def choose_resolvent(limits: Limits, policy: Policy, depth: int, found: tuple[Any, ...]) -> Step:
    """Complete a step that `find_resolvents` began: the stages from `score` to `finish`."""
    goal, after_limit = found[0], found[9]
    scores = score(policy, goal, after_limit)
    choice = choose(scores)
    chosen, next_depth, log_probability = advance(after_limit, scores, choice, depth)
    outcome = finish(limits, chosen, next_depth)
    return make_step((*found, scores, choice, chosen, log_probability, next_depth, outcome, False))
