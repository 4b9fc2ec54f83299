"""The passes of the shrinker: each reduces one kind of thing in a problem as long as it fails in the same way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from kgverify.engines.sizes import Sizes
from kgverify.program.atoms import NamedAtom
from kgverify.program.limits import NUMBERS, Limits
from kgverify.ranking.corrupt import ALL
from kgverify.runs.delta_debugging import count_down
from kgverify.testing.problems.merge import merge
from kgverify.testing.problems.problem import DEFAULT_SIZES, NO_SPREAD, SHORTEST, Problem
from kgverify.testing.shrinking.oracle import Oracle
from kgverify.testing.shrinking.terms import (
    ask_fact,
    ask_premise,
    assert_conclusion,
    drop_one,
    list_predicates,
    merge_constants,
    merge_predicates,
    merge_variables,
    rename_plainly,
    replace_symbols,
    unfold_rule,
)

Pass: TypeAlias = Callable[[Problem, Oracle], Problem]
"""A function from a failing problem to one that fails in the same way and is no larger, or to the same problem."""

T = TypeVar("T")

MOST_FOR_PAIRS: Final = 16
"""Elements of a problem up to which two things are changed at once; fewer if attempts run one by one."""
MOST_FOR_PAIRS_ALONE: Final = 10
MOST_MERGED: Final = 6
"""Constants that others are merged into, and from which conclusions are made."""


def lower_limits(problem: Problem, oracle: Oracle) -> Problem:
    """Lower each limit as far as possible; a limit that can be neither 1 nor one less stays."""
    for name in ("max_depth", "max_resolvents", "max_atoms"):
        for is_end in (True, False):
            value = getattr(problem.limits, name)
            lower = (1, value - 1) if is_end else (2, value // 4, value // 2)
            attempts = [problem.with_number("limits", name, v) for v in dict.fromkeys(lower) if 1 <= v < value]
            found = oracle.first(attempts, problem)
            if found is None:
                break
            problem = found
    return problem


def drop_queries(problem: Problem, oracle: Oracle) -> Problem:
    """Reduce the queries to one, with as few corruptions as possible, and unranked if that does not matter."""
    if len(problem.queries) + len(problem.unranked) > 1:
        single = [replace(problem, queries=(), unranked=(query,)) for query in problem.unranked]
        single += [replace(problem, queries=(query,), unranked=()) for query in problem.queries]
        problem = oracle.first(single, problem) or problem
    if problem.queries:
        problem = (
            oracle.first([replace(problem, num_corruptions=n) for n in _fewer(problem.num_corruptions)], problem)
            or problem
        )
        candidates = merge([problem]).list_candidates()
        unranked = [
            replace(problem, queries=(), unranked=(each,), num_corruptions=0) for each in dict.fromkeys(candidates)
        ]
        whole = replace(problem, queries=(), unranked=tuple(candidates), num_corruptions=0)
        problem = oracle.first([*unranked[:32], whole], problem) or problem
    if not problem.queries and problem.num_corruptions:
        problem = oracle.first([replace(problem, num_corruptions=0, seed=0)], problem) or problem
    problem = oracle.drop_items(problem, problem.unranked, partial(_with_queries, problem, problem.queries))
    return oracle.drop_items(problem, problem.queries, partial(_with_queries, problem, unranked=problem.unranked))


def _with_queries(problem: Problem, queries: tuple[NamedAtom, ...], unranked: tuple[NamedAtom, ...]) -> Problem | None:
    return replace(problem, queries=queries, unranked=unranked) if queries or unranked else None


def drop_rules(problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many rules as possible."""
    return oracle.drop_items(problem, problem.rules, lambda kept: replace(problem, rules=kept))


def drop_facts(problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many facts as possible."""
    after = problem.spread.after

    def rebuild(kept: tuple[tuple[int, NamedAtom], ...]) -> Problem:
        # Unused symbols stay between the same facts.
        spread = problem.spread._replace(after=sum(i < after for i, _ in kept))
        return replace(problem, facts=tuple(fact for _, fact in kept), spread=spread if after else problem.spread)

    return oracle.drop_items(problem, tuple(enumerate(problem.facts)), rebuild)


def drop_constants(problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many further constants as possible."""
    return oracle.drop_items(problem, problem.constants, lambda kept: replace(problem, constants=kept))


def drop_body_atoms(problem: Problem, oracle: Oracle) -> Problem:
    """Shorten the rules as far as possible."""
    return _repeat(problem, oracle, drop_one) if problem.rules else problem


def skip_rules(problem: Problem, oracle: Oracle) -> Problem:
    """Replace a rule by the query that it leads to, or by a fact that it concludes."""

    def attempts(now: Problem) -> Iterator[Problem]:
        if now.rules:
            yield from ask_fact(now)
        for i in range(len(now.rules)):
            yield from ask_premise(now, i)
            yield from unfold_rule(now, i)
        if len(now.rules) <= MOST_MERGED:
            for i in range(len(now.rules)):
                yield from assert_conclusion(now, i, MOST_MERGED)

    return _repeat(problem, oracle, attempts)


def merge_symbols(problem: Problem, oracle: Oracle) -> Problem:
    """Merge predicates and constants as far as possible."""
    if oracle.needs_batch:
        # Each attempt is proved individually, so the few likely ones go first.
        predicates = list_predicates(problem)
        if len(predicates) > 2:
            one = replace_symbols(problem, {}, dict.fromkeys(predicates[1:], predicates[0]))
            problem = one if oracle.holds(one) else problem
        if len(problem.domain) > 2:
            one = merge_constants(problem, dict.fromkeys(problem.domain[1:], problem.domain[0]))
            problem = one if oracle.holds(one) else problem
    problem = _repeat(problem, oracle, merge_predicates)
    while True:
        names = problem.domain
        most = 1 if len(names) > 4 * MOST_MERGED else MOST_MERGED
        pairs = [(late, early) for i, late in enumerate(names) for early in names[: min(i, most)]]
        pairs.reverse()
        indices = list(oracle.sift([merge_constants(problem, dict([pair])) for pair in pairs], problem))
        # The last pair of each constant has the first one that it may become.
        into = list(dict(pairs[i] for i in indices).items())
        attempts = [merge_constants(problem, dict(into[:n])) for n in count_down(len(into))]
        attempts += [merge_constants(problem, dict([pairs[i]])) for i in indices]
        found = oracle.first(list(dict.fromkeys(attempts)), problem)
        if found is None:
            return problem
        problem = found


def merge_and_drop(problem: Problem, oracle: Oracle) -> Problem:
    """Merge symbols and drop an element at once, where neither alone is possible."""

    def attempts(now: Problem) -> Iterator[Problem]:
        for merged in (*merge_variables(now, 2), *_merge_two_constants(now)):
            yield from drop_one(merged)

    fits = 1 < problem.size <= (MOST_FOR_PAIRS if oracle.can_share else MOST_FOR_PAIRS_ALONE)
    return _repeat(problem, oracle, attempts) if fits else problem


def _merge_two_constants(problem: Problem) -> Iterator[Problem]:
    names = problem.domain
    for i, late in enumerate(names):
        for early in names[:i]:
            yield merge_constants(problem, {late: early})


def simplify_policy(problem: Problem, oracle: Oracle) -> Problem:
    """Replace the policy by one without weights, or else by a small one with the first seed."""
    policy = problem.policy
    if policy != SHORTEST:
        # Not fewer hidden units before a layer norm, which enlarges rounding errors of two.
        small = policy._replace(embedding=2, hidden=2, blocks=0)
        attempts = [SHORTEST, small._replace(seed=0), small, policy._replace(seed=0)]
        different = [replace(problem, policy=each) for each in attempts if each != policy]
        problem = oracle.first(different, problem) or problem
    return problem


def simplify_spread(problem: Problem, oracle: Oracle) -> Problem:
    """Remove as many unused symbols as possible."""
    if problem.spread == NO_SPREAD:
        return problem
    problem = oracle.first([replace(problem, spread=NO_SPREAD)], problem) or problem
    for name in problem.spread._fields:
        problem = _lower(problem, oracle, "spread", name, lambda value: (0, value // 2, value - 1))
    return problem


def reduce_slots(problem: Problem, oracle: Oracle) -> Problem:
    """Reduce the slots as far as possible if they matter, and use the default windows, which are tried faster."""
    if not oracle.needs_batch:
        return problem
    plain = DEFAULT_SIZES._replace(slots=problem.sizes.slots, pool=problem.sizes.pool)
    if problem.sizes != plain:
        problem = oracle.first([replace(problem, sizes=plain)], problem) or problem

    def fewer(value: int) -> tuple[int, ...]:
        return (1, 2, value // 2, value - 1) if value > 1 else ()

    return _lower(problem, oracle, "sizes", "slots", fewer)


def simplify_sizes(problem: Problem, oracle: Oracle) -> Problem:
    """Set each size of the batch that does not matter to its default."""
    return _restore(problem, oracle, "sizes", DEFAULT_SIZES, Sizes._fields)


def restore_limits(problem: Problem, oracle: Oracle) -> Problem:
    """Set each limit that does not matter to its default, so that readers need not consider it."""
    return _restore(problem, oracle, "limits", Limits(dialect=problem.limits.dialect), NUMBERS)


def simplify_names(problem: Problem, oracle: Oracle) -> Problem:
    """Rename constants to a, b, c ..., predicates to p, q, r ..., variables to X, Y, Z ..."""
    return oracle.first([rename_plainly(problem)], problem) or problem


PASSES: Final[tuple[Pass, ...]] = (
    lower_limits,
    reduce_slots,
    drop_queries,
    drop_rules,
    drop_facts,
    drop_body_atoms,
    skip_rules,
    merge_symbols,
    merge_and_drop,
    drop_constants,
    simplify_policy,
    simplify_spread,
)
"""Passes that are repeated until none of them finds anything."""

LAST_PASSES: Final[tuple[Pass, ...]] = (simplify_sizes, restore_limits, simplify_names)
"""Passes that make a problem no smaller, but easier to read."""


def _restore(problem: Problem, oracle: Oracle, part: str, default: Limits | Sizes, names: Sequence[str]) -> Problem:
    """Set the numbers of a part to their defaults: all at once if possible, then one after the other."""
    if getattr(problem, part) == default:
        return problem
    whole: dict[str, Any] = {part: default}
    problem = oracle.first([replace(problem, **whole)], problem) or problem
    for name in names:
        value = getattr(default, name)
        if getattr(getattr(problem, part), name) != value:
            problem = oracle.first([problem.with_number(part, name, value)], problem) or problem
    return problem


def _lower(problem: Problem, oracle: Oracle, part: str, name: str, lower: Callable[[int], tuple[int, ...]]) -> Problem:
    """Lower a number of a part as far as possible; `lower` gives the numbers to try."""

    def attempts(now: Problem) -> Iterator[Problem]:
        value = getattr(getattr(now, part), name)
        yield from (now.with_number(part, name, each) for each in dict.fromkeys(lower(value)) if 0 <= each < value)

    return _repeat(problem, oracle, attempts)


def _fewer(num: int) -> list[int]:
    if num == ALL:
        return [0, 1, 2, 4, 8]
    return list(dict.fromkeys(n for n in (0, 1, num // 2, num - 1) if 0 <= n < num))


def _repeat(problem: Problem, oracle: Oracle, attempts: Callable[[Problem], Iterator[Problem]]) -> Problem:
    while True:
        found = oracle.first(list(attempts(problem)), problem)
        if found is None:
            return problem
        problem = found
