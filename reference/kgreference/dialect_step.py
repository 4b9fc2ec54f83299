"""One step in a dialect: the stages of `kgreference.step`, chosen and ordered as the dialect says.

In our own dialect the step is that of `kgreference.step.take_step`. Every function is pure.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Final, NamedTuple

from kgreference import step as ours
from kgreference.dialect import Dialect, Exclusion, LongResolvents, Memory, Order, Stopping, Unification
from kgreference.policy import Policy
from kgreference.program import Program
from kgreference.resolvent import FALSE, STOP, Kind, Matches, OriginKind, Resolvent
from kgreference.step import Limits, Outcome, Step
from kgreference.terms import (
    Goal,
    Triple,
    binds_in_one_pass,
    canonical,
    first_free_variable,
    is_same_set,
    substitute,
    unify,
)


class Situation(NamedTuple):
    """The inputs of a step, as each stage receives them.

    The goal and the visited goals are canonical, or keep their names where the dialect does not forget them.
    ``excluded`` is the fact that the derivation may not use, if there is one.
    """

    dialect: Dialect
    program: Program
    limits: Limits
    policy: Policy
    excluded: Triple | None
    goal: Goal
    depth: int
    visited: Set[Goal]


def select(situation: Situation) -> Triple:
    """Return the leftmost atom."""
    return ours.select(situation.goal)


def match_rules(situation: Situation, selected: Triple) -> Matches:
    """Find every rule, in the order of the dialect, whose head unifies with the selected atom as the dialect says."""
    program, dialect = situation.program, situation.dialect
    matches = ours.match_rules(program, selected)
    if dialect.unification is Unification.ONE_PASS:
        rows = zip(*matches, strict=True)
        matches = Matches.of([row for row in rows if binds_in_one_pass(selected, program.rules[row[0]].head)])
    return _reverse(matches) if dialect.is_reversed else matches


def match_facts(situation: Situation, selected: Triple) -> Matches:
    """Find every fact, in the order of the dialect, that unifies with the selected atom and is not the excluded atom."""
    matches = ours.match_facts(situation.program, situation.excluded, selected)
    return _reverse(matches) if situation.dialect.is_reversed else matches


def _reverse(matches: Matches) -> Matches:
    return Matches.of(list(zip(*matches, strict=True))[::-1])


def resolve(situation: Situation, rule_matches: Matches, fact_matches: Matches) -> list[Resolvent]:
    """Return the resolvent of the goal with each clause, in the order of the dialect; all are of kind GOAL."""
    if situation.dialect.forgets_names:
        resolvents = ours.resolve(situation.goal, rule_matches, fact_matches)
    else:
        resolvents = _resolve_by_name(situation, rule_matches, fact_matches)
    if situation.dialect.order is Order.RULES_FIRST:
        return resolvents
    num_rules = len(rule_matches.origins)
    return [*resolvents[num_rules:], *resolvents[:num_rules]]


def _resolve_by_name(situation: Situation, rule_matches: Matches, fact_matches: Matches) -> list[Resolvent]:
    """Resolve with clauses whose variables occur in no goal of the derivation, so that the goal's keep their names."""
    program, goal = situation.program, situation.goal
    first_free = max(map(first_free_variable, [goal, *situation.visited]))
    rules = dict(program.rules_apart(goal[0][0], first_free))
    clauses = [(OriginKind.RULE, origin, rules[origin].head, rules[origin].body) for origin in rule_matches.origins]
    clauses += [(OriginKind.FACT, origin, program.facts[origin], ()) for origin in fact_matches.origins]
    resolvents = []
    for kind, origin, head, body in clauses:
        unifier = unify(goal[0], head)
        if unifier is None:
            raise ValueError(f"a clause that matches must unify with {goal[0]}, found {head}")
        resolvents.append(Resolvent(Kind.GOAL, substitute((*body, *goal[1:]), unifier), kind, origin))
    return resolvents


def prune(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Delete every atom that is a fact and not the excluded atom; an empty resolvent becomes TRUE."""
    return ours.prune(situation.program, situation.excluded, resolvents)


def rename(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make each resolvent canonical, unless the dialect keeps names."""
    return ours.rename(resolvents) if situation.dialect.forgets_names else list(resolvents)


def revisit(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop every resolvent that the memory of the dialect takes for the current goal or for one visited before."""
    dialect = situation.dialect
    if dialect.memory is Memory.NONE:
        return list(resolvents)
    visited = {situation.goal, *situation.visited}
    visited_sets = {frozenset(goal) for goal in visited}

    def is_visited(atoms: Goal) -> bool:
        if dialect.exempts_terminal and not atoms:
            return False
        if dialect.memory is Memory.SEQUENCE:
            return atoms in visited
        if frozenset(atoms) in visited_sets:
            return True
        return dialect.forgets_names and any(is_same_set(atoms, goal) for goal in visited)

    return [resolvent for resolvent in resolvents if not is_visited(resolvent.atoms)]


def remove_duplicates(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Keep the first of the resolvents that are equal up to renaming."""
    firsts: dict[tuple[Kind, Goal], Resolvent] = {}
    for resolvent in resolvents:
        firsts.setdefault((resolvent.kind, canonical(resolvent.atoms)), resolvent)
    return list(firsts.values())


def close(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Return the first proof alone, if there is one; FALSE alone, if there is no resolvent."""
    return ours.close(_mark_proofs(resolvents))


def _mark_proofs(resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Make every goal without atoms TRUE, as pruning does."""
    return [each._replace(kind=Kind.TRUE) if each.kind is Kind.GOAL and not each.atoms else each for each in resolvents]


def limit_atoms(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Drop or truncate the resolvents of more than ``max_atoms`` atoms."""
    most = situation.limits.max_atoms
    if situation.dialect.long_resolvents is LongResolvents.REJECT:
        return [each for each in resolvents if len(each.atoms) <= most]
    return [each._replace(atoms=each.atoms[:most]) for each in resolvents]


def limit_resolvents(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Keep the first ``max_resolvents`` resolvents."""
    return list(resolvents[: situation.limits.max_resolvents])


def offer_stop(situation: Situation, resolvents: Sequence[Resolvent]) -> list[Resolvent]:
    """Offer stopping as the dialect says; FALSE alone, if there is nothing else."""
    offers = situation.dialect.stopping is Stopping.WHERE_NO_TERMINAL
    if offers and all(resolvent.kind is Kind.GOAL for resolvent in resolvents):
        return [*resolvents, STOP]
    return list(resolvents) or [FALSE]


def score(situation: Situation, resolvents: Sequence[Resolvent]) -> list[float]:
    """Return a score for each resolvent, all canonical; one that is alone and not a goal gets 0."""
    if len(resolvents) == 1 and resolvents[0].kind is not Kind.GOAL:
        return [0.0]
    return situation.policy.scores(canonical(situation.goal), ours.rename(resolvents))


def choose(situation: Situation, scores: Sequence[float]) -> int:
    """Return the index of the highest score; the lowest index among equal ones."""
    return ours.choose(scores)


def advance(
    situation: Situation, resolvents: Sequence[Resolvent], scores: Sequence[float], choice: int
) -> tuple[Resolvent, int, float]:
    """Return the resolvent that becomes the goal, the depth of a counted step, and the term of the log-probability."""
    return ours.advance(resolvents, scores, choice, situation.depth)


def finish(situation: Situation, chosen: Resolvent, depth: int) -> Outcome:
    """Return the outcome after ``depth`` counted steps; stopping is FAILED."""
    return Outcome.FAILED if chosen.kind is Kind.STOP else ours.finish(situation.limits, chosen, depth)


FilterStage = Callable[[Situation, Sequence[Resolvent]], list[Resolvent]]
"""A stage that takes resolvents and returns those that remain."""


class Stages(NamedTuple):
    """The functions of a step. Replace one to judge an engine that no dialect describes.

    The signatures are those of this module's functions of the same names. A ``select`` that does not return the leftmost
    atom needs a ``resolve`` of its own, since that of this module resolves the leftmost one.

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


class _Filtered(NamedTuple):
    """The resolvents after each filter, under the names of the fields of `Step`, and those that the limits dropped."""

    after: dict[str, list[Resolvent]]
    resolvents: list[Resolvent]
    dropped_atoms: int
    dropped_resolvents: int


def _apply_filters(situation: Situation, stages: Stages, resolvents: list[Resolvent]) -> _Filtered:
    """Apply the filters in the order of the dialect; renaming precedes the comparison with visited goals."""
    functions: dict[str, FilterStage] = {
        "prune": stages.prune,
        "rename": stages.rename,
        "revisit": stages.revisit,
        "duplicates": stages.remove_duplicates,
        "close": stages.close,
        "max_atoms": stages.limit_atoms,
        "max_resolvents": stages.limit_resolvents,
    }
    order = [str(each) for each in situation.dialect.filters]
    order.insert(order.index("revisit") if "revisit" in order else len(order), "rename")
    after = {}
    num_lost = {"max_atoms": 0, "max_resolvents": 0}
    for name in order:
        remaining = resolvents if resolvents == [FALSE] else functions[name](situation, resolvents)
        if name in num_lost:
            num_lost[name] = (Counter(resolvents) - Counter(remaining)).total()
        after[name] = resolvents = remaining
    return _Filtered(after, _mark_proofs(resolvents), num_lost["max_atoms"], num_lost["max_resolvents"])


def take_dialect_step(situation: Situation, stages: Stages, num_uncounted: int = 0) -> Step:
    """Take one step in a dialect, from a goal after fewer than ``max_depth`` counted steps.

    ``num_uncounted``: the uncounted steps directly before this one. ``visited`` may lack the current goal.

    Raises ValueError for the empty goal, and for a goal at the depth limit.
    """
    dialect, limits, goal, depth = situation.dialect, situation.limits, situation.goal, situation.depth
    ours.check_start(limits, goal, depth)
    selected = stages.select(situation)
    rule_matches = stages.match_rules(situation, selected)
    fact_matches = stages.match_facts(situation, selected)
    after_resolve = stages.resolve(situation, rule_matches, fact_matches)
    filtered = _apply_filters(situation, stages, after_resolve)
    remaining = filtered.resolvents
    is_unary = len(remaining) == 1 and remaining[0].kind is Kind.GOAL
    is_uncounted = dialect.skips_unary and is_unary and num_uncounted < limits.max_depth
    offered = remaining if is_uncounted else stages.offer_stop(situation, remaining)
    scores = stages.score(situation, offered)
    choice = stages.choose(situation, scores)
    chosen, next_depth, log_probability = stages.advance(situation, offered, scores, choice)
    if is_uncounted:
        next_depth = depth
    return Step(
        goal=goal,
        selected=selected,
        matched_rules=list(rule_matches.origins),
        matched_facts=list(fact_matches.origins),
        after_resolve=after_resolve,
        after_prune=filtered.after.get("prune", after_resolve),
        after_rename=filtered.after["rename"],
        after_revisit=filtered.after.get("revisit", filtered.after["rename"]),
        after_close=filtered.after.get("close", remaining),
        after_limit=offered,
        dropped_atoms=filtered.dropped_atoms,
        dropped_resolvents=filtered.dropped_resolvents,
        scores=scores,
        choice=choice,
        chosen=chosen,
        log_probability=log_probability,
        depth=next_depth,
        outcome=stages.finish(situation, chosen, next_depth),
        is_uncounted=is_uncounted,
    )


def find_excluded(dialect: Dialect, limits: Limits, query: Triple, is_positive: bool) -> Triple | None:
    """Return the fact that a derivation may not use."""
    is_barred = dialect.exclusion is Exclusion.ALWAYS or (dialect.exclusion is Exclusion.POSITIVES_ONLY and is_positive)
    return ours.excluded_atom(limits, query) if is_barred else None
