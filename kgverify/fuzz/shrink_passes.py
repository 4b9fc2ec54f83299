"""The passes of the shrinker: each makes one kind of thing in a problem fewer, as long as it fails in the same way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec

from kgverify.fuzz.merge import Merged, merge
from kgverify.fuzz.problem import DEFAULT_SIZES, NO_SPREAD, SHORTEST, Problem, Sizes
from kgverify.fuzz.shrink_oracle import Oracle
from kgverify.fuzz.shrink_terms import (
    VARIABLE_NAMES,
    asked_for,
    led_to,
    merge_constants,
    merged_predicates,
    rename_plainly,
    unfolded,
    with_conclusions,
    with_fewer_variables,
    with_one_less,
)
from kgverify.logic.atoms import NamedAtom, Variable, decode_variable, is_variable
from kgverify.logic.limits import Limits
from kgverify.logic.program import Symbols
from kgverify.ranking.corrupt import ALL

Pass: TypeAlias = Callable[[Problem, Oracle], Problem]
"""From a problem that fails to one that fails in the same way and is no larger; the same one where there is none."""

T = TypeVar("T")

MOST_FOR_PAIRS: Final = 16
"""Elements of a problem of which two things are changed at once; fewer where each attempt is a run of its own."""
MOST_FOR_PAIRS_ALONE: Final = 10
MOST_MERGED: Final = 6
"""Constants that others are merged into, and that conclusions are made of."""


def lower_limits(problem: Problem, oracle: Oracle) -> Problem:
    """Each limit as low as it can be."""
    for name in ("max_depth", "max_resolvents", "max_atoms"):
        while (value := getattr(problem.limits, name)) > 1:
            values = dict.fromkeys(v for v in (1, 2, value // 4, value // 2, value - 1) if 1 <= v < value)
            found = oracle.first([_limited(problem, name, v) for v in values], problem)
            if found is None:
                break
            problem = found
    return problem


def drop_queries(problem: Problem, oracle: Oracle) -> Problem:
    """One query, with as few corruptions as may be; unranked, if that does not matter."""
    if len(problem.queries) + len(problem.unranked) > 1:
        single = [replace(problem, queries=(), unranked=(query,)) for query in problem.unranked]
        single += [replace(problem, queries=(query,), unranked=()) for query in problem.queries]
        problem = oracle.first(single, problem) or problem
    if problem.queries:
        problem = (
            oracle.first([replace(problem, num_corruptions=n) for n in _fewer(problem.num_corruptions)], problem)
            or problem
        )
        candidates = list_candidates(merge([problem]))
        unranked = [
            replace(problem, queries=(), unranked=(each,), num_corruptions=0) for each in dict.fromkeys(candidates)
        ]
        whole = replace(problem, queries=(), unranked=tuple(candidates), num_corruptions=0)
        problem = oracle.first([*unranked[:32], whole], problem) or problem
    if not problem.queries and problem.num_corruptions:
        problem = oracle.first([replace(problem, num_corruptions=0, seed=0)], problem) or problem
    problem = _fewer_of(problem, oracle, problem.unranked, partial(_with_queries, problem, problem.queries))
    return _fewer_of(problem, oracle, problem.queries, partial(_with_queries, problem, unranked=problem.unranked))


def _with_queries(problem: Problem, queries: tuple[NamedAtom, ...], unranked: tuple[NamedAtom, ...]) -> Problem | None:
    return replace(problem, queries=queries, unranked=unranked) if queries or unranked else None


def drop_rules(problem: Problem, oracle: Oracle) -> Problem:
    """As few rules as may be."""
    return _fewer_of(problem, oracle, problem.rules, lambda kept: replace(problem, rules=kept))


def drop_facts(problem: Problem, oracle: Oracle) -> Problem:
    """As few facts as may be."""
    return _fewer_of(problem, oracle, problem.facts, lambda kept: replace(problem, facts=kept))


def drop_constants(problem: Problem, oracle: Oracle) -> Problem:
    """As few further constants as may be."""
    return _fewer_of(problem, oracle, problem.constants, lambda kept: replace(problem, constants=kept))


def drop_body_atoms(problem: Problem, oracle: Oracle) -> Problem:
    """Rules as short as may be."""
    return _repeat(problem, oracle, with_one_less) if problem.rules else problem


def skip_rules(problem: Problem, oracle: Oracle) -> Problem:
    """In place of a rule, the query that it leads to, or the fact that it leads up to."""

    def attempts(now: Problem) -> Iterator[Problem]:
        if now.rules:
            yield from asked_for(now)
        for i in range(len(now.rules)):
            yield from led_to(now, i)
            yield from unfolded(now, i)
        if len(now.rules) <= MOST_MERGED:
            for i in range(len(now.rules)):
                yield from with_conclusions(now, i, MOST_MERGED)

    return _repeat(problem, oracle, attempts)


def merge_symbols(problem: Problem, oracle: Oracle) -> Problem:
    """As few predicates and constants as may be."""
    problem = _repeat(problem, oracle, merged_predicates)
    while True:
        names = problem.domain
        most = 1 if len(names) > 4 * MOST_MERGED else MOST_MERGED
        pairs = [(late, early) for i, late in enumerate(names) for early in names[: min(i, most)]]
        pairs.reverse()
        places = oracle.sift([merge_constants(problem, dict([pair])) for pair in pairs], problem)
        # Of each constant the last pair is the one with the first of those that it may become.
        into = list(dict(pairs[i] for i in places).items())
        attempts = [merge_constants(problem, dict(into[:n])) for n in _counts(len(into))]
        attempts += [merge_constants(problem, dict([pairs[i]])) for i in places]
        found = oracle.first(list(dict.fromkeys(attempts)), problem)
        if found is None:
            return problem
        problem = found


def merge_and_drop(problem: Problem, oracle: Oracle) -> Problem:
    """One element less where symbols become one: what neither dropping nor merging alone can do."""

    def attempts(now: Problem) -> Iterator[Problem]:
        for merged in (*with_fewer_variables(now, 2), *_with_constants_merged(now)):
            yield from with_one_less(merged)

    fits = 1 < problem.size <= (MOST_FOR_PAIRS if oracle.can_share(problem) else MOST_FOR_PAIRS_ALONE)
    return _repeat(problem, oracle, attempts) if fits else problem


def _with_constants_merged(problem: Problem) -> Iterator[Problem]:
    names = problem.domain
    for i, late in enumerate(names):
        for early in names[:i]:
            yield merge_constants(problem, {late: early})


def simplify_policy(problem: Problem, oracle: Oracle) -> Problem:
    """The policy that needs no weights, or else a small one; the first seed."""
    policy = problem.policy
    if policy != SHORTEST:
        # Not fewer hidden units before a layer norm: of two it makes much of a rounding error.
        small = policy._replace(embedding=2, hidden=2, blocks=0)
        attempts = [SHORTEST, small._replace(seed=0), small, policy._replace(seed=0)]
        different = [replace(problem, policy=each) for each in attempts if each != policy]
        problem = oracle.first(different, problem) or problem
    return problem


def simplify_spread(problem: Problem, oracle: Oracle) -> Problem:
    """As few unused symbols as may be."""
    if problem.spread == NO_SPREAD:
        return problem
    problem = oracle.first([replace(problem, spread=NO_SPREAD)], problem) or problem
    for name in problem.spread._fields:
        while value := getattr(problem.spread, name):
            fewer = [problem.spread._replace(**{name: v}) for v in dict.fromkeys((0, value // 2, value - 1))]
            found = oracle.first([replace(problem, spread=each) for each in fewer], problem)
            if found is None:
                break
            problem = found
    return problem


def fewer_slots(problem: Problem, oracle: Oracle) -> Problem:
    """As few slots as may be, where they matter."""
    while not oracle.can_share(problem) and (slots := problem.sizes.slots) > 1:
        fewer = [problem.sizes._replace(slots=v) for v in dict.fromkeys((1, 2, slots // 2, slots - 1)) if v < slots]
        found = oracle.first([replace(problem, sizes=each) for each in fewer], problem)
        if found is None:
            break
        problem = found
    return problem


def simplify_sizes(problem: Problem, oracle: Oracle) -> Problem:
    """Sizes of the batch as they are by default, or as small as may be."""
    if problem.sizes == DEFAULT_SIZES:
        return problem
    problem = oracle.first([replace(problem, sizes=DEFAULT_SIZES)], problem) or problem
    for name in Sizes._fields:
        default = getattr(DEFAULT_SIZES, name)
        if getattr(problem.sizes, name) != default:
            plain = replace(problem, sizes=problem.sizes._replace(**{name: default}))
            problem = oracle.first([plain], problem) or problem
    return problem


def restore_limits(problem: Problem, oracle: Oracle) -> Problem:
    """The default of each limit that does not matter: then it need not be told."""
    if problem.limits == Limits():
        return problem
    problem = oracle.first([replace(problem, limits=Limits())], problem) or problem
    for name in Limits.__struct_fields__:
        default = getattr(Limits(), name)
        if getattr(problem.limits, name) != default:
            problem = oracle.first([_limited(problem, name, default)], problem) or problem
    return problem


def plain_names(problem: Problem, oracle: Oracle) -> Problem:
    """Constants a, b, c ..., predicates p, q, r ..., variables X, Y, Z ..."""
    return oracle.first([rename_plainly(problem)], problem) or problem


PASSES: Final[tuple[Pass, ...]] = (
    lower_limits,
    fewer_slots,
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
"""Repeated until none of them finds anything."""

LAST_PASSES: Final[tuple[Pass, ...]] = (simplify_sizes, restore_limits, plain_names)
"""What makes a problem no smaller and easier to read."""


def list_candidates(merged: Merged) -> list[NamedAtom]:
    """The candidates of a run, in the order in which they are proved."""
    run, symbols = merged.run, merged.graph.program.symbols
    drawn = merged.expected.draw(run.graph, run.split, run.queries, run.num_corruptions, run.seed)
    return [_decode(row, symbols) for row in drawn.atom.tolist()]


def _decode(row: Sequence[int], symbols: Symbols) -> NamedAtom:
    first, second = (
        symbols.constants[each] if not is_variable(each) else Variable(VARIABLE_NAMES[decode_variable(each)])
        for each in row[1:]
    )
    return NamedAtom(symbols.predicates[row[0]], first, second)


def _limited(problem: Problem, name: str, value: int | bool) -> Problem:
    return replace(problem, limits=msgspec.structs.replace(problem.limits, **{name: value}))


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


def _fewer_of(
    problem: Problem, oracle: Oracle, items: Sequence[T], rebuild: Callable[[tuple[T, ...]], Problem | None]
) -> Problem:
    """The problem with as few of the items as may be: blocks of them left out, large ones first.

    Where problems can share a run all blocks of a size are tried in one; then those that can be left out one at a time
    are left out together, as many as will go. Else one block after the other. Source: delta debugging, Zeller and
    Hildebrandt, IEEE TSE 28(2), 2002.
    """
    kept, size = tuple(items), len(items)
    while size >= 1 and kept:
        blocks = [frozenset(range(at, min(at + size, len(kept)))) for at in range(0, len(kept), size)]
        leave_out = _leave_out_together if oracle.can_share(problem) else _leave_out_in_turn
        left, smaller = leave_out(problem, oracle, kept, blocks, rebuild)
        if left == kept:
            size //= 2
        else:
            problem, kept = smaller, left
            size = min(size, max(1, len(kept) // 2))
    return problem


def _leave_out_together(
    problem: Problem,
    oracle: Oracle,
    kept: tuple[T, ...],
    blocks: Sequence[frozenset[int]],
    rebuild: Callable[[tuple[T, ...]], Problem | None],
) -> tuple[tuple[T, ...], Problem]:
    singles = [(block, built) for block in blocks if (built := rebuild(_without(kept, block))) is not None]
    removable = [singles[i][0] for i in oracle.sift([built for _, built in singles], problem)]
    unions = [frozenset().union(*removable[:n]) for n in _counts(len(removable))]
    unions += removable[1:]
    attempts = {rebuilt: left for union in unions if (rebuilt := rebuild(left := _without(kept, union))) is not None}
    found = oracle.first(list(attempts), problem)
    return (kept, problem) if found is None else (attempts[found], found)


def _leave_out_in_turn(
    problem: Problem,
    oracle: Oracle,
    kept: tuple[T, ...],
    blocks: Sequence[frozenset[int]],
    rebuild: Callable[[tuple[T, ...]], Problem | None],
) -> tuple[tuple[T, ...], Problem]:
    gone: frozenset[int] = frozenset()
    for block in blocks:
        attempt = rebuild(_without(kept, gone | block))
        if attempt is not None and oracle.holds(attempt):
            problem, gone = attempt, gone | block
    return _without(kept, gone), problem


def _without(items: tuple[T, ...], places: frozenset[int]) -> tuple[T, ...]:
    return tuple(item for i, item in enumerate(items) if i not in places)


def _counts(num: int) -> list[int]:
    """How many of `num` blocks to leave out together: all, and ever fewer, down to one."""
    if num <= 32:
        return list(range(num, 0, -1))
    counts = {1, num}
    n = num
    while n > 1:
        n = n * 7 // 8
        counts.add(n)
    return sorted(counts - {0}, reverse=True)
